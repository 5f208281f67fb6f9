"""The private names of Ray for its records of jobs, which are kept here and in ``compat``."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..compat import RayChanged

SUBMITTED = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Variable that Ray sets for the process of a submitted job."""
DRIVER = "ray_job"
"""Key of our metadata: the id that Ray has given to the process of a run."""


class JobStore:
    """Ray's records of submitted jobs, from the key-value store of its head; see ``job_record``.

    ``missing_jobs`` says whether this version of Ray has them.
    """

    def __init__(self) -> None:
        import ray
        from ray._private import ray_constants, worker
        from ray.dashboard import consts
        from ray.dashboard.modules.job.common import JOB_LOGS_PATH_TEMPLATE, JobInfoStorageClient
        from ray.experimental import internal_kv

        self._kv, self._prefix = internal_kv, JobInfoStorageClient.JOB_DATA_KEY_PREFIX
        self._jobs, self._agents = ray_constants.KV_NAMESPACE_JOB, ray_constants.KV_NAMESPACE_DASHBOARD
        context = ray.get_runtime_context()
        self.driver, self.node = context.get_job_id(), context.get_node_id()
        self._agent = f"{consts.DASHBOARD_AGENT_ADDR_NODE_ID_PREFIX}{self.node}"
        self._logs, self._log = worker._global_node.get_logs_dir_path(), JOB_LOGS_PATH_TEMPLATE

    def log_of(self, name: str) -> Path:
        """Where the pages of Ray look for the output of a job of this node."""
        return Path(self._logs) / self._log.format(submission_id=name)

    def agent(self) -> str | None:
        """The address of this node's agent, which serves that log; None as long as it has none."""
        found = self._kv._internal_kv_get(self._agent, namespace=self._agents)
        host, port = json.loads(found)[:2] if found else ("", 0)
        return f"http://{host}:{port}" if port and port > 0 else None

    def put(self, name: str, info: Mapping[str, Any]) -> None:
        """Write a record."""
        from ray.job_submission import JobInfo

        text = json.dumps(JobInfo(**info).to_json())
        self._kv._internal_kv_put(f"{self._prefix}{name}", text, overwrite=True, namespace=self._jobs)

    def all(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """All records by their names, as ``put`` takes them; without environments, which records of ours have none of."""
        for key in self._kv._internal_kv_list(self._prefix, namespace=self._jobs):
            found = self._kv._internal_kv_get(key, namespace=self._jobs)
            if found:
                info = json.loads(found)
                info.pop("runtime_env_json", None)
                yield key.decode().removeprefix(self._prefix), info

    @staticmethod
    def dead_drivers() -> set[str]:
        """The ids of Ray for processes that are gone."""
        from ray._private import state

        return {row["JobID"] for row in state.jobs() if row["IsDead"]}


def missing_jobs() -> list[str]:
    """The names that ``JobStore`` needs and this version of Ray lacks."""
    try:
        from ray._private import ray_constants, state
        from ray.dashboard import consts
        from ray.dashboard.modules.job import common
        from ray.experimental import internal_kv
    except ImportError as error:
        return [str(error)]
    wanted = (
        (common, "JobInfoStorageClient", "JOB_LOGS_PATH_TEMPLATE"),
        (getattr(common, "JobInfoStorageClient", None), "JOB_DATA_KEY_PREFIX"),
        (consts, "DASHBOARD_AGENT_ADDR_NODE_ID_PREFIX"),
        (internal_kv, "_internal_kv_get", "_internal_kv_put", "_internal_kv_list"),
        (ray_constants, "KV_NAMESPACE_JOB", "KV_NAMESPACE_DASHBOARD"),
        (state, "jobs"),
    )
    return [name for place, *names in wanted for name in names if not hasattr(place, name)]


def opened() -> JobStore | None:
    """The records of jobs of the Ray that is open; None where none is, or, after a warning, where this version of Ray has none that we
    know.
    """
    import ray

    if not ray.is_initialized():  # a thread that asked it all the same would start one
        return None
    if lacks := missing_jobs():
        warnings.warn(
            "Ray's dashboard shows the run as a driver without a log and a message: this version of Ray has no "
            + ", ".join(lacks),
            RayChanged,
            stacklevel=2,
        )
        return None
    return JobStore()


__all__ = ["DRIVER", "SUBMITTED", "JobStore", "missing_jobs", "opened"]
