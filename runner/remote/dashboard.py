"""Finds Ray's dashboard: its address, whether it answers, and its token. Never imports ray."""

from __future__ import annotations

import os
import stat
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import computed_field

from ...compiler.errors import QdrunError
from ..fields import about
from ..store.follower import Follower
from ..store.layout import RunFolder, all_runs, find

TIMEOUT_S = 3.0
PAGES = """pages
  Jobs      one row for each run: its id, state, command, and trials by state; its page: the log, the batches, a timeline
  Actors    one row for each worker, named qdrun/<run>/<device>/w<k>; its page: its batches with their planned bytes, its log with the used
  Cluster   nodes with their CPU and memory, and on GPU nodes the cards
  Logs      the output of Ray's own processes; for that of trials: `qdrun logs RUN`
  Metrics   only with Prometheus and Grafana; `qdrun watch RUN` needs neither"""


class AddressError(QdrunError, ValueError):
    """An address is no address of a dashboard."""


@dataclass(frozen=True)
class DashboardAddress:
    """The address of Ray's dashboard."""

    url: Annotated[str, about("its address; empty if there is none")]
    answers: Annotated[bool, about("whether it answers now")]
    needs_token: Annotated[bool | None, about("whether it requires the token; null if it does not answer")]
    token_file: Annotated[Path, about("file of the token; the token is not printed")]
    run: Annotated[str | None, about("the run of the request")]

    @computed_field(description="permissions of that file; null if there is none")
    @property
    def token_file_mode(self) -> str | None:
        """As in ``0600``."""
        return f"{stat.S_IMODE(self.token_file.stat().st_mode):04o}" if self.token_file.is_file() else None


def found(run: str | None, runs: str, address: str | None) -> DashboardAddress:
    """The dashboard at an address, else of a run, else of the latest run that has one, else of `qdrun up`.

    Raises:
        RunNotFound: there is no such run.
        AddressError: the address is not http.
    """
    from ..ray_adapter.cluster import token_file
    from ..ray_adapter.jobs_api import launched
    from ..ray_adapter.standing import standing

    name, url = None, address or ""
    if address is not None and not address.startswith(("http://", "https://")):
        raise AddressError(f"--address {address}: a dashboard has an address such as http://head:8265\n  do: write that one")
    if address is None:
        folders = [find(run, runs)] if run is not None else reversed(all_runs(runs))
        for folder in folders:
            name, url = folder.name, str(launched(folder).get("address") or "") or url_of(folder)
            if url or run is not None:
                break
        if run is None and not asks(url)[0] and (up := standing()) is not None and up.dashboard:
            name, url = None, f"http://{up.dashboard}"
    answers, needs = asks(url)
    return DashboardAddress(url, answers, needs, token_file(), name if url or run is not None else None)


def url_of(folder: RunFolder) -> str:
    """The dashboard that a run's journal names; empty when it had none."""
    events = [entry.event for entry in Follower(folder).look().entries]
    url = next((str(event.get("dashboard") or "") for event in reversed(events) if event["event"] == "ray_ready"), "")
    return url if not url or "://" in url else f"http://{url}"


def asks(url: str, headers: Mapping[str, str] | None = None) -> tuple[bool, bool | None]:
    """Whether something answers, and whether it wants a token, or another one than the ``headers`` have."""
    if not url:
        return False, None
    try:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy would answer in its own name
        request = urllib.request.Request(f"{url.rstrip('/')}/api/version", headers=dict(headers or {}))
        with direct.open(request, timeout=TIMEOUT_S):
            return True, False
    except urllib.error.HTTPError as error:
        with error:  # the end of a dashboard waits for open connections
            return True, error.code in (401, 403)
    except (OSError, ValueError):
        return False, None


def opened(where: DashboardAddress, say: Callable[[str], None]) -> bool:
    """Open the page in a browser, with the token of this user where it wants one. Whether it was opened.

    Raises:
        NotOpened: the page cannot be given the token, or refuses it.
    """
    import webbrowser

    from ..ray_adapter.jobs_api import headers
    from .dashboard_login import NotOpened, check_target, open_page

    if not where.needs_token:
        return webbrowser.open(where.url)
    check_target(where.url)  # before the token is sent there
    token = headers()
    if not token or not asks(where.url, token) == (True, False):
        raise NotOpened(
            f"{where.url} {'refuses your token' if token else 'wants a token, and you have none'}\n"
            f"  do: put the token of that cluster (there: `ray get-auth-token`) into {where.token_file}, with permissions 0600"
        )
    return open_page(where.url, token["Authorization"].removeprefix("Bearer "), say)


def has_screen() -> bool:
    """Whether a browser can be expected to start here."""
    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"))


def text(where: DashboardAddress) -> str:
    """For people: where, whether it answers, the token, the pages."""
    if not where.url:
        run = f"run {where.run} has no dashboard" if where.run else "no run here has a dashboard"
        return (
            f"{run}\n  do: `qdrun submit CONFIG --dashboard` starts one, on 127.0.0.1, for as long as the run takes;\n"
            "      of a cluster: `qdrun dashboard --address http://head:8265`"
        )
    lines = [where.url + (f"  (run {where.run})" if where.run else "")]
    if not where.answers:
        lines.append("  nothing answers there: its Ray has ended, or it listens on another machine's 127.0.0.1")
        lines.append("  do: for that, `ssh -L 8265:127.0.0.1:8265 head`, then open http://127.0.0.1:8265")
        return "\n".join(lines)
    if where.needs_token is not False:
        mode = where.token_file_mode
        kept = f"in {where.token_file}" + (f" (permissions {mode})" if mode else ", which is not there")
        if "RAY_AUTH_TOKEN" in os.environ:
            kept = "in the variable RAY_AUTH_TOKEN"
        lines += ["token", "  `qdrun dashboard --open` opens the page with it. Elsewhere the page asks for it:"]
        lines += [f"  it is {kept}: `ray get-auth-token` prints it"]
        if mode is not None and int(mode, 8) & 0o077:
            lines.append(f"  others can read it\n  do: chmod 600 {where.token_file}")
    else:
        lines += ["token", "  it asks for none: anybody who can reach it can run code as you"]
    return "\n".join([*lines, PAGES])
