"""Ray, started for one run or joined: token auth kept on, quiet, found by address and never by accident."""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..compiler.errors import QdrunError
from .devices import cores

OBJECT_STORE_BYTES = 256 << 20
LONGEST_TEMP_DIR = 40
_OURS: list[bool] = []  # not empty while this process holds a Ray that `open_cluster` opened


class ClusterError(QdrunError, ConnectionError):
    """Ray cannot be started or joined; nothing was run."""


@dataclass(frozen=True)
class Capacity:
    """What the nodes of a cluster offer: cores in all, the most cores and bytes that one node has, and where its dashboard is.

    ``gpus``: devices that Ray knows of and hands out.
    """

    cores: int
    node_cores: int
    node_memory_bytes: int
    dashboard_url: str = ""
    gpus: int = 0


def check_environment(address: str | None) -> None:
    """Refuse to start Ray without its password: it listens on every interface of the machine.

    Raises:
        ClusterError: ``RAY_AUTH_MODE`` turns token auth off for a local run.
    """
    if address is None and os.environ.get("RAY_AUTH_MODE", "token") != "token":
        raise ClusterError(
            f"RAY_AUTH_MODE={os.environ['RAY_AUTH_MODE']} would leave Ray open: it listens on every interface of this machine\n"
            "  do: unset RAY_AUTH_MODE, or join a cluster that you secured with --address"
        )


def open_cluster(address: str | None, *, dashboard: bool = False, gpus: int = 0) -> Capacity:
    """Start Ray on this machine, or join the cluster at ``address``; a program that has Ray open already keeps using that one.

    Ray's processes die with the thread that started them: call it from one that lives as long as the run.

    Args:
        address: of a cluster; None to start Ray here.
        dashboard: start its dashboard, too.
        gpus: devices of this machine that a Ray started here hands out.

    Raises:
        ClusterError: it cannot be started or reached, or refuses the token.
    """
    check_environment(address)
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # Ray announces its own future defaults
        import ray
        from ray._private import worker as ray_worker

        url = "" if ray.is_initialized() else _init(address, dashboard, gpus)
        ray_worker._worker_logs_enabled = False  # else Ray prints the deaths of workers on stdout; the run reports them itself
    protect_token()
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    node_cores = max(int(node.get("CPU", 0)) for node in nodes)
    return Capacity(
        cores=sum(int(node.get("CPU", 0)) for node in nodes),
        node_cores=node_cores,
        node_memory_bytes=max(int(node.get("memory", 0)) for node in nodes),
        dashboard_url=url,
        gpus=sum(int(node.get("GPU", 0)) for node in nodes),
    )


def _init(address: str | None, dashboard: bool, gpus: int) -> str:
    """Start or join; the address of the dashboard, if there is one."""
    import ray

    options = {"address": address} if address is not None else _local_options(dashboard, gpus)
    try:
        context = ray.init(**options, log_to_driver=False, logging_level=logging.ERROR, configure_logging=True)
    except (ConnectionError, RuntimeError, ValueError, OSError, TimeoutError) as error:
        what = f"cannot join the Ray cluster at {address}" if address is not None else "cannot start Ray on this machine"
        hint = "check the address and the token (RAY_AUTH_TOKEN or ~/.ray/auth_token)" if address else "see the cause above"
        raise ClusterError(f"{what}: {error}\n  do: {hint}") from error
    _OURS.append(True)
    return getattr(context, "dashboard_url", "") or ""


def _local_options(dashboard: bool, gpus: int) -> dict[str, Any]:
    options: dict[str, Any] = {
        "address": "local",
        "num_cpus": cores(),
        "num_gpus": gpus,
        "object_store_memory": OBJECT_STORE_BYTES,
    }
    options |= {"include_dashboard": dashboard, "dashboard_host": "127.0.0.1"}
    if "RAY_TMPDIR" not in os.environ and len(tempfile.gettempdir()) > LONGEST_TEMP_DIR:
        options["_temp_dir"] = tempfile.mkdtemp(prefix="qdrun-", dir="/tmp")  # Ray's socket paths must stay short
    return options


def token_file() -> Path:
    """Where Ray keeps the token of this user."""
    return Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")


def protect_token() -> None:
    """Make the token readable by its owner alone: Ray writes it readable by all."""
    path = token_file()
    if path.is_file() and path.stat().st_mode & 0o077 and path.stat().st_uid == os.getuid():
        path.chmod(0o600)


def close_cluster() -> None:
    """Stop what ``open_cluster`` started, or leave the cluster that it joined; a Ray that was open before it stays open."""
    import ray

    if _OURS and ray.is_initialized():
        _OURS.clear()
        ray.shutdown()
