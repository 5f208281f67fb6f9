"""Ray, started for one run or joined: token auth kept on, quiet, found by address and never by accident."""

from __future__ import annotations

import atexit
import logging
import os
import re
import secrets
import socket
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...compiler.errors import QdrunError
from ...compiler.runtime.cache import home_folder
from ..exit_codes import RESUMABLE
from ..jobcode.places import clean_variable
from ..private import SessionFolder, make_private
from ..study.devices import cores
from . import compat
from .pages.job_record import SUBMISSION, JobRecord
from .pages.job_store import missing_jobs
from .pages.packages import missing_packages
from .standing import hold, standing

OBJECT_STORE_BYTES = 256 << 20
CONNECT_S = 5.0
LEAVE_S = 3.0
STARTS, TOO_LATE = 3, "timed out during startup"
"""How often a start of Ray is tried that Ray itself gives up, by these words."""
START_WAIT_S = "60"
"""Seconds that Ray waits for its node; its default is 30."""
SILENT: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": True}
_OURS: list[
    SessionFolder | None
] = []  # while this process holds a Ray that `open_cluster` opened: its folder, None of one that was joined
_USERS: list[int] = []  # file descriptors: while this process uses the Ray that stands on this machine


class ClusterError(QdrunError, ConnectionError):
    """Ray cannot be started or joined; nothing was run."""

    exit_code = 4


class NoWorker(ClusterError):
    """A run ends because no worker gets as far as its first trial: a package, a file or a device is missing there."""


@dataclass(frozen=True)
class Capacity:
    """What the nodes of a cluster offer: cores in all, the most cores and bytes that one node has, and where its dashboard is.

    ``gpus``: devices that Ray knows of and hands out. ``head``: host:port of its control plane. ``node``: the same of the process that runs
    the node of this process (its raylet). ``record``: of the run among the jobs of Ray, if there may be a dashboard.
    """

    cores: int
    node_cores: int
    node_memory_bytes: int
    dashboard_url: str = ""
    gpus: int = 0
    head: str = ""
    node: str = ""
    record: JobRecord | None = None


def check_environment(address: str | None, dashboard: bool = False) -> None:
    """Refuse to start Ray without its password: it listens on every interface of the machine. Look whether an address can be right, and
    whether a Ray that is started here can have the ``dashboard`` that is asked for.

    Raises:
        ClusterError: ``RAY_AUTH_MODE`` turns token auth off for a local run, nothing listens at the address, or a package is missing.
    """
    if address is not None:
        check_address(address)
    if address is None:
        check_loopback()
    if address is None and os.environ.get("RAY_AUTH_MODE", "token") != "token":
        raise ClusterError(
            f"RAY_AUTH_MODE={os.environ['RAY_AUTH_MODE']} would leave Ray open: it listens on every interface of this machine\n"
            "  do: unset RAY_AUTH_MODE, or join a cluster that you secured with --address"
        )
    if address is None and dashboard and standing() is None:
        check_packages("leave out --dashboard")


def check_packages(without: str) -> None:
    """Refuse a dashboard whose packages are not installed. ``without``: what does without it.

    Raises:
        ClusterError: some are not.
    """
    if missing := missing_packages():
        raise ClusterError(
            f"Ray's dashboard needs packages that are not installed: {', '.join(missing)}\n"
            f"  do: pip install 'ray[default]'; or {without}"
        )


def check_loopback() -> None:
    """Refuse a machine whose processes cannot talk to each other: Ray would wait for them for ever.

    Raises:
        ClusterError: 127.0.0.1 does not answer.
    """
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname()[:2], timeout=CONNECT_S).close()
    except OSError as error:
        raise ClusterError(
            f"cannot start Ray on this machine: 127.0.0.1, by which its processes talk to each other, does not answer: {error.strerror}\n"
            "  do: `ip link set lo up` as root; a container or sandbox without a network needs its loopback interface"
        ) from error


def open_cluster(
    address: str | None, *, dashboard: bool = False, gpus: int = 0, job: Mapping[str, str] | None = None, keep: bool = False
) -> Capacity:
    """Start Ray on this machine, or join the cluster at ``address``; a program that has Ray open already keeps using that one.

    Without an address a Ray that stands here (``standing``) is joined, if it suits.

    Ray's processes die with the thread that started them: call it from one that lives as long as the run.

    Args:
        address: of a cluster; None to start Ray here.
        dashboard: start its dashboard, too.
        gpus: devices of this machine that a Ray started here hands out.
        job: metadata of the Ray Job that this process becomes, as Ray's dashboard shows them; ``job_name`` is its name there, and ``run``
            the id of its run: see ``JobRecord``.
        keep: for many runs: look for no other one, and start its workers ahead.

    Raises:
        ClusterError: it cannot be started or reached, or refuses the token.
    """
    check_environment(address)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # Ray announces its own future defaults
        set_up(quiet=address is not None)
        import ray

        # the jobs of a Ray that is started here without a dashboard are shown nowhere
        shown = dashboard or address is not None or ray.is_initialized() or standing() is not None
        job = dict(job or {})
        if shown and "run" in job and not missing_jobs():
            job[SUBMISSION] = job["run"]
        url = "" if ray.is_initialized() or keep or address is not None else _join(gpus, job)
        if not ray.is_initialized():
            url = _init(address, dashboard, gpus, job, keep)
        compat.quiet_deaths()
        record = JobRecord.begin(job) if shown else None
    here = ray.get_runtime_context().get_node_id()
    rows = [node for node in ray.nodes() if node["Alive"]]
    nodes = [node["Resources"] for node in rows]
    node_cores = max(int(node.get("CPU", 0)) for node in nodes)
    return Capacity(
        cores=sum(int(node.get("CPU", 0)) for node in nodes),
        node_cores=node_cores,
        node_memory_bytes=max(int(node.get("memory", 0)) for node in nodes),
        dashboard_url=url,
        gpus=sum(int(node.get("GPU", 0)) for node in nodes),
        head=ray.get_runtime_context().gcs_address,
        node=next((f"{row['NodeManagerAddress']}:{row['NodeManagerPort']}" for row in rows if row["NodeID"] == here), ""),
        record=record,
    )


def set_up(*, quiet: bool) -> None:
    """Set the variables that Ray reads when it is loaded; one that was loaded before, by a job's file for instance, reads them again.

    ``quiet``: else twenty lines of Ray about a wrong token come before our one.

    Raises:
        ClusterError: it cannot read them again.
    """
    wanted = {"RAY_AUTH_MODE": "token", "RAY_DEDUP_LOGS": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    wanted["RAY_raylet_start_wait_time_s"] = START_WAIT_S
    wanted |= {"RAY_BACKEND_LOG_LEVEL": "error"} if quiet else {}
    clean_variable()
    compat.keep_loopback_direct()
    late = compat.loaded() and "RAY_AUTH_MODE" not in os.environ
    for name, value in wanted.items():
        os.environ.setdefault(name, value)
    if not late:
        return
    import ray

    if not ray.is_initialized():
        try:
            compat.read_settings_again()
        except RuntimeError as error:
            raise ClusterError(str(error)) from error


def _join(gpus: int, job: Mapping[str, str]) -> str:
    """Join the Ray that stands on this machine, if it suits; the address of its dashboard. Workers get the variables of this process."""
    import ray

    if standing() is None:
        return ""
    users = hold()  # waits while `qdrun down` ends it
    found = standing()
    if found is None or not found.suits(gpus):
        os.close(users)
        return ""
    changes = found.changes()
    config = compat.job_config(job, {"env_vars": changes} if changes else None)
    try:
        check_address(found.address)  # Ray itself would wait for a head that is gone
        ray.init(address=found.address, job_config=config, **SILENT)
    except Exception as error:
        os.close(users)
        raise ClusterError(
            f"cannot join the Ray of `qdrun up` at {found.address}: {str(error).splitlines()[0]}\n  do: `qdrun down`, then `qdrun up`"
        ) from error
    _OURS.append(None)
    _USERS.append(users)
    return found.dashboard


def _init(address: str | None, dashboard: bool, gpus: int, job: Mapping[str, str], keep: bool) -> str:
    """Start or join; the address of the dashboard, if there is one."""
    import ray

    metadata = compat.job_config(job)
    folder = None
    try:
        if address is None:
            make_token()
            folder = SessionFolder()
            url = _started(dashboard, gpus, folder, metadata, keep)
        else:
            url = getattr(ray.init(address=address, job_config=metadata, **SILENT), "dashboard_url", "") or ""
    except Exception as error:  # of Ray: ConnectionError, RuntimeError, AuthenticationError and others, see `translated`
        if address is None:
            ray.shutdown()  # the dashboard alone may have failed
        raise translated(error, address, "" if folder is None else str(folder.path)) from error
    if address is not None and os.environ["RAY_AUTH_MODE"] == "token":
        try:
            check_token_is_wanted(address, ray.get_runtime_context().gcs_address)
        except ClusterError:
            ray.shutdown()
            raise
    _OURS.append(folder)
    return url


def _started(dashboard: bool, gpus: int, folder: SessionFolder, job: Any, keep: bool) -> str:
    """Start Ray here; the address of its dashboard. On a busy machine Ray may give up its own start too early: then it is tried again."""
    import ray

    for attempt in range(STARTS):
        try:
            with compat.small_head() as dashboard_server, compat.started_with(ahead=keep):
                ray.init(**_local_options(dashboard, gpus, folder), job_config=job, **SILENT)
                return dashboard_server.result()
        except Exception as error:
            if attempt + 1 == STARTS or TOO_LATE not in " ".join(str(part) for part in _chain(error)):
                raise
            ray.shutdown()
    raise AssertionError("unreachable")


def check_token_is_wanted(address: str, head: str) -> None:
    """Refuse a cluster that lets everybody in, and one of which that is not known. ``head``: host:port of its control plane.

    Raises:
        ClusterError: it is one of these.
    """
    asks = compat.asks_for_token(head)
    if asks is False:
        raise ClusterError(
            f"the Ray cluster at {address} has no token, and this process has one: its nodes and our workers would reject each other\n"
            "  do: start the cluster with RAY_AUTH_MODE=token and a token, or set RAY_AUTH_MODE=disabled to join it as it is, open to "
            "everybody who reaches it"
        )
    if asks is None:
        raise ClusterError(
            f"the Ray cluster at {address} does not show whether it refuses clients without a token: {head} gives no known answer\n"
            "  do: install the same Ray here and there, of a version that qdrun supports; or join it as it is with RAY_AUTH_MODE=disabled"
        )


def check_address(address: str) -> None:
    """Refuse an address that Ray would wait for: half a minute where nothing listens.

    Raises:
        ClusterError: it is of another kind, its name is unknown, or nothing listens there.
    """
    if "://" in address:
        kind = address.partition("://")[0]
        what = {"ray": "of Ray Client, which qdrun does not use", "http": "of a dashboard", "https": "of a dashboard"}
        raise ClusterError(
            f"cannot join the Ray cluster at {address}: that is an address {what.get(kind, 'that Ray does not know')}\n"
            "  do: give the host and port that `ray start --head` printed, as in head:6379"
        )
    if address in ("auto", "local"):
        return
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or not 0 < int(port) < 65536:
        raise ClusterError(
            f"cannot join the Ray cluster at {address}: that is no host:port\n  do: write for example {address or 'head'}:6379"
            if not colon
            else f"cannot join the Ray cluster at {address}: `{port}` is no port\n  do: write for example {host}:6379"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except OSError as error:
        raise ClusterError(_unreachable(address, host, error)) from error


def _unreachable(address: str, host: str, error: OSError) -> str:
    """What a connection that failed means, and what to do."""
    head = f"cannot join the Ray cluster at {address}: "
    if isinstance(error, socket.gaierror):
        return f"{head}no machine is called {host}\n  do: check the name; `ray start --head` prints the address"
    if isinstance(error, ConnectionRefusedError):
        return (
            f"{head}{host} refuses the connection: no Ray listens on that port\n"
            "  do: `ray status` on that machine says whether Ray runs; `ray start --head --port 6379` starts it"
        )
    if isinstance(error, TimeoutError):
        return f"{head}no answer within {CONNECT_S:g} s\n  do: check the address, and that no firewall stands in between"
    return f"{head}{error.strerror or error}\n  do: check the address and the network"


def translated(error: BaseException, address: str | None, folder: str = "") -> ClusterError:
    """Ray's error about a cluster in words that say what to do. Ray says `Failed to connect` for a wrong token as for a dead head.

    ``folder``: where a Ray that was started here has left its logs.
    """
    text = " ".join(str(part) for part in _chain(error))
    logs = f"look into the logs in {folder or ray_folder()}/session_latest/logs"
    where = f"cannot join the Ray cluster at {address}" if address is not None else "cannot start Ray on this machine"
    if "Version mismatch" in text or "version mismatch" in text:
        return ClusterError(
            f"{where}: {_versions(text)}\n  do: install that Ray and that Python here, or run qdrun on the cluster"
        )
    if type(error).__name__ == "AuthenticationError" or "authentication token" in text or "unauthenticated" in text.lower():
        return ClusterError(f"{where}: {about_token(here=address is None)}")
    if "RAY_AUTH_TOKEN_PATH" in text:
        return ClusterError(f"{where}: {about_token(here=address is None)}")
    if address is not None and isinstance(error, ConnectionError | TimeoutError):
        return ClusterError(
            f"{where}: something listens there and does not let us in: another token, another program, or a head that hangs\n"
            f"  token: {about_token()}"
        )
    if TOO_LATE in text:
        return ClusterError(
            f"{where}: its node was not up within the time that Ray waits, {STARTS} times; the machine is very busy, or the node ended\n"
            f"  do: try again when less runs here; else {logs}"
        )
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return ClusterError(f"{where}: {first}\n  do: {logs}")


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and those that it was made from."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__


def _versions(text: str) -> str:
    """Which versions differ, from Ray's message: first those of the cluster, then ours."""
    rays, pythons = re.findall(r"Ray: (\S+)", text), re.findall(r"Python: (\S+)", text)
    if len(rays) < 2 or len(pythons) < 2:
        return "its versions of Ray or Python are others"
    return f"it runs Ray {rays[0]} and Python {pythons[0]}, here are Ray {rays[1]} and Python {pythons[1]}"


def about_token(*, here: bool = False) -> str:
    """Which token was used, and what to do when it was the wrong one. ``here``: for a Ray of our own, which takes any."""
    if here and not token_file().is_file():
        return f"there is no token in {token_file()}\n  do: `ray get-auth-token --generate` makes one, or unset RAY_AUTH_TOKEN_PATH"
    copy = "copy the cluster's token (there: `ray get-auth-token`)"
    if os.environ.get("RAY_AUTH_MODE", "token") != "token":
        return f"RAY_AUTH_MODE={os.environ['RAY_AUTH_MODE']}, so no token was sent\n  do: unset RAY_AUTH_MODE, and {copy}"
    if os.environ.get("RAY_AUTH_TOKEN"):
        return f"the token in the variable RAY_AUTH_TOKEN was sent, which is not the cluster's\n  do: {copy} into it"
    path = token_file()
    if not path.is_file():
        return f"there is no token in {path}\n  do: {copy} into that file, with permissions 0600"
    if not path.stat().st_size:
        return f"the token file {path} is empty\n  do: {copy} into it, with permissions 0600"
    if not os.access(path, os.R_OK):
        return f"the token file {path} cannot be read by you\n  do: chown it to you and chmod 600 it"
    return f"the token in {path} was sent, which is not the cluster's, or its head is too busy\n  do: {copy} into that file"


def ray_folder() -> str:
    """Where Ray keeps its sessions."""
    return os.path.join(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir(), "ray")


def _local_options(dashboard: bool, gpus: int, folder: SessionFolder) -> dict[str, Any]:
    return {
        "address": "local",
        "num_cpus": cores(),
        "num_gpus": gpus,
        "object_store_memory": OBJECT_STORE_BYTES,
        "include_dashboard": dashboard,
        "dashboard_host": "127.0.0.1",
        "_temp_dir": str(folder.path),
    }


def token_file() -> Path:
    """Where Ray keeps the token of this user."""
    return Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or home_folder() / ".ray" / "auth_token")


def make_token() -> None:
    """Create a token for this user's Ray if there is none, readable by this user only: Ray would write one that is readable by all.

    One at a place that the user names is left to the user.
    """
    if os.environ.get("RAY_AUTH_TOKEN"):
        return
    path = token_file()
    if "RAY_AUTH_TOKEN_PATH" not in os.environ and not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        make_private(path, secrets.token_hex(compat.TOKEN_BYTES).encode())
    protect_token()


def protect_token() -> None:
    """Make the token readable by its owner alone."""
    path = token_file()
    if path.is_file() and path.stat().st_mode & 0o077 and path.stat().st_uid == os.getuid():
        path.chmod(0o600)


@contextmanager
def kept_open(address: str | None, gpus: int, job: Mapping[str, str] | None = None) -> Iterator[None]:
    """While open, this process has a Ray, which runs use and leave open. See ``open_cluster``."""
    ours = len(_OURS)
    open_cluster(address, gpus=gpus, job=job)
    opened = len(_OURS) > ours
    mine = _OURS.pop() if opened else None
    try:
        yield
    finally:
        if opened:
            _OURS.append(mine)
            close_cluster()


def close_cluster(*, lost: bool = False) -> None:
    """Stop what ``open_cluster`` started, or leave the cluster that it joined; a Ray that was open before it stays open.

    ``lost``: its head is gone. Ray's own end asks that head, and hangs until Ray ends the process with an error: it is waited for a few
    seconds, and if it hangs still when this process exits, the process ends without it, as a run that can be resumed (exit code 5).
    """
    if not _OURS:  # then Ray need not even be loaded: it looks at RAY_AUTH_MODE when it is, and never again
        return
    import ray

    if ray.is_initialized():
        folder = _OURS.pop()
        while _USERS:
            os.close(_USERS.pop())
        if not lost:
            ray.shutdown()
            if folder is not None:
                folder.remove()
            return
        leaving = threading.Thread(target=ray.shutdown, name="leave", daemon=True)
        leaving.start()
        leaving.join(LEAVE_S)
        if leaving.is_alive():
            atexit.register(_exit_without_ray)  # runs before Ray's own, which was registered earlier
        elif folder is not None:
            folder.remove()


def _exit_without_ray() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(RESUMABLE)
