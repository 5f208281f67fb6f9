"""Compares the private names of Ray that this package uses with the Ray that is installed."""

from __future__ import annotations

import inspect

from . import compat
from .pages.job_store import missing_jobs


def missing() -> list[str]:
    """The private names that the Ray that is installed lacks."""
    out = [compat.lacks_node()]
    try:
        from ray._raylet import AuthenticationTokenLoader, Config  # pyright: ignore[reportAttributeAccessIssue]

        out += [
            name
            for name, there in (
                ("Config.initialize", Config),
                ("AuthenticationTokenLoader.instance", AuthenticationTokenLoader),
            )
            if not hasattr(there, name.partition(".")[2])
        ]
        out += [] if hasattr(AuthenticationTokenLoader.instance(), "reset_cache") else ["AuthenticationTokenLoader.reset_cache"]
        from ray._private import services, state, worker
        from ray.autoscaler.v2 import sdk

        out += [] if hasattr(sdk, "get_cluster_status") else ["autoscaler.v2.sdk.get_cluster_status"]
        out += [] if hasattr(state, "actors") else ["state.actors"]
        out += [] if hasattr(state, "available_resources_per_node") else ["state.available_resources_per_node"]
        text = inspect.getsource(services.start_raylet)
        out += [name for name in (*compat.AGENT_COMMANDS, *compat.AGENT_PLACE) if f'"{name}=' not in text]
        out += [] if hasattr(worker, "_worker_logs_enabled") else ["worker._worker_logs_enabled"]
        from ray.core.generated import gcs_service_pb2
        from ray.job_config import JobConfig
        from ray.job_submission import JobSubmissionClient

        out += [] if hasattr(JobSubmissionClient, "_do_request") else ["JobSubmissionClient._do_request"]
        out += [] if hasattr(JobConfig(), "_py_driver_sys_path") else ["JobConfig._py_driver_sys_path"]
        out += missing_jobs()
        service, method = compat.ALIVE_METHOD.strip("/").removeprefix("ray.rpc.").split("/")
        out += [] if method in gcs_service_pb2.DESCRIPTOR.services_by_name[service].methods_by_name else [compat.ALIVE_METHOD]
    except (ImportError, KeyError) as error:
        out.append(str(error))
    return [name for name in out if name]


__all__ = ["missing"]
