"""Runs as Ray Jobs: submitted over HTTP to the dashboard of a cluster, one job for each run; asked how they are; found dead."""

from __future__ import annotations

import json
import logging
import os
import shlex
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..store.layout import RunFolder
from ..store.owner import Owner
from . import compat
from .cluster import CONNECT_S, ClusterError, about_token, token_file
from .known_clusters import trusted

OVER = ("SUCCEEDED", "FAILED", "STOPPED")
NO_SUPERVISOR = "JOB_SUPERVISOR_ACTOR_START_FAILURE"
"""Ray's word for a record that it has not made itself, for a second, see ``pages.job_record``: the process may live."""
ASK_S = 3.0
NO_AGENT, AGENT_S, AGENT_LOOK_S = "No available agent", 30.0, 1.0
"""What a cluster says that has just begun, and how long it is asked again."""
ABOUT_AGENT = (
    "see dashboard_agent.log on the head; of two Rays on one machine, one needs its own port: "
    "`ray start --head --dashboard-agent-listen-port 52366`"
)
PYTHON = "python"
"""The command of a run on the head: Ray runs a job's command with the PATH of its own environment."""


def is_dashboard(address: str | None) -> bool:
    """Whether an address is one for the Jobs API: ``http://head:8265``."""
    return address is not None and address.startswith(("http://", "https://"))


class Jobs:
    """The Jobs API of a cluster.

    Args:
        address: of its dashboard.

    Raises:
        ClusterError: nothing answers there, it is no dashboard of Ray, or it refuses the token.
    """

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        check_dashboard(self.address)
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "error")
        os.environ.setdefault(
            "RAY_AUTH_MODE", "token"
        )  # Ray looks when it is loaded, and never again: this process may run something, too
        for name in ("ray.dashboard.modules.dashboard_sdk", "ray._private.runtime_env.packaging"):
            logging.getLogger(name).setLevel(logging.WARNING)  # the run reports its shipped files itself
        try:
            # with a header of ours Ray looks for no token itself; a cluster without tokens needs none
            self._client = compat.direct_client()(self.address, headers=headers() or {"Authorization": ""})
        except Exception as error:  # of Ray or of requests: RuntimeError, ConnectionError, AuthenticationError
            raise ClusterError(f"cannot submit to {self.address}: {first_line(error)}") from error

    def submit(self, name: str, words: Sequence[str], metadata: Mapping[str, str], parcel: Path | None) -> None:
        """Start ``remote.entry`` with ``words`` as the job ``name``; the files of ``parcel`` become its working directory.

        Raises:
            ClusterError: the cluster refuses.
        """
        environment = {} if parcel is None else {"working_dir": str(parcel)}
        command = shlex.join([PYTHON, "-P", "-m", "qdrun.runner.remote.entry", *words])
        end = time.monotonic() + AGENT_S
        while True:
            try:
                self._client.submit_job(
                    entrypoint=command, submission_id=name, runtime_env=environment, metadata=dict(metadata)
                )
                return
            except Exception as error:
                if NO_AGENT not in str(error) or time.monotonic() > end:
                    hint = f"\n  do: {ABOUT_AGENT}" if NO_AGENT in str(error) else ""
                    raise ClusterError(f"the cluster at {self.address} refuses the job: {first_line(error)}{hint}") from error
            time.sleep(AGENT_LOOK_S)

    def status(self, name: str) -> str:
        """Pending, running, succeeded, failed, stopped; in capital letters, as Ray says it. Empty where that is not known now."""
        try:
            return str(self._client.get_job_status(name).value)
        except Exception:  # the head may be busy, or be gone: the folder of the run says what happens
            return ""

    def log(self, name: str) -> str:
        """The output of the job."""
        try:
            return str(self._client.get_job_logs(name))
        except Exception as error:
            return f"its log cannot be read: {first_line(error)}"

    def stop(self, name: str) -> None:
        """End the job: asked first, three seconds later killed."""
        try:
            self._client.stop_job(name)
        except Exception as error:
            raise ClusterError(f"the cluster at {self.address} does not stop {name}: {first_line(error)}") from error


def headers() -> dict[str, str]:
    """The token of this user for HTTP, where there is one."""
    token = os.environ.get("RAY_AUTH_TOKEN", "").strip()
    path = token_file()
    if not token and path.is_file() and os.access(path, os.R_OK):
        token = path.read_text(encoding="utf-8").strip()
    return {"Authorization": f"Bearer {token}"} if token else {}


def check_dashboard(address: str) -> None:
    """Make sure that Ray's dashboard answers at an address, and takes the token.

    Raises:
        ClusterError: it does not.
    """
    head = f"cannot submit to {address}: "
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as error:
        raise ClusterError(f"{head}{error}\n  do: write for example http://head:8265") from error
    if not host:
        raise ClusterError(f"{head}it names no machine\n  do: write for example http://head:8265")
    try:
        socket.create_connection((host, port), timeout=CONNECT_S).close()
    except socket.gaierror as error:
        raise ClusterError(f"{head}no machine is called {host}\n  do: check the name") from error
    except OSError as error:
        raise ClusterError(
            f"{head}nothing answers on port {port} of {host} ({error.strerror or error})\n"
            "  do: a dashboard listens on 127.0.0.1 of its machine alone, unless Ray was started with --dashboard-host 0.0.0.0;\n"
            f"      `ssh -L 8265:127.0.0.1:8265 {host}`, then --address http://127.0.0.1:8265"
        ) from error
    try:
        version = ask(address, "/api/version")
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            raise ClusterError(f"{head}it wants a token\n  token: {about_token()}") from error
        raise ClusterError(f"{head}the server there is no dashboard of Ray (HTTP {error.code})") from error
    except (OSError, ValueError) as error:
        raise ClusterError(f"{head}the server there is no dashboard of Ray ({first_line(error)})") from error
    if "ray_version" not in version:
        raise ClusterError(f"{head}the server there is no dashboard of Ray")


class _Stays(urllib.request.HTTPRedirectHandler):
    """Follows no redirection: the token would be sent there."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        """None: the answer is an error."""


def ask(address: str, path: str) -> Any:
    """The JSON that a dashboard has at ``path``. It is sent the token: the address must be one of ``launches.trusted``.

    Raises:
        OSError, ValueError: it does not answer, or something else.
    """
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}), _Stays())  # a proxy would answer in its own name
    with direct.open(urllib.request.Request(address.rstrip("/") + path, headers=headers()), timeout=ASK_S) as answer:
        return json.loads(answer.read())


def first_line(error: BaseException) -> str:
    """An error of a library, in one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def known_dead(folder: RunFolder, owner: Owner, *addresses: str | None) -> bool:
    """Whether a dashboard says that the process of an owner of a run has ended, however it did. Never imports ray.

    Asks those that are given by the user, and those that this user's own record has of the run: no address that its folder names. The job
    must be the run's, and its process the owner's: what is not known for sure is not dead.
    """
    for place in trusted(folder, *addresses):
        try:
            jobs = ask(place, "/api/jobs/")
        except (OSError, ValueError):
            continue
        for job in jobs:
            driver, named = job.get("driver_info") or {}, job.get("metadata") or {}
            if named.get("run") == folder.name and str(driver.get("pid")) == str(owner.pid):
                return job.get("status") in OVER and job.get("error_type") != NO_SUPERVISOR
    return False


LAUNCH = "launch.json"


def note_launch(folder: RunFolder, **what: Any) -> None:
    """Record which process was started for a run: ``pid`` and ``host``, or ``address`` and ``job``.

    For display only: any user may have written it.
    """
    folder.files.put(LAUNCH, json.dumps(what).encode())


def launched(folder: RunFolder) -> dict[str, Any]:
    """The last record of ``note_launch``; empty for a run that was not detached."""
    try:
        return dict(json.loads(folder.files.read(LAUNCH)))
    except (FileNotFoundError, ValueError):
        return {}


__all__ = ["OVER", "Jobs", "ask", "check_dashboard", "headers", "is_dashboard", "known_dead", "launched", "note_launch"]
