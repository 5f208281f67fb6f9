"""The commands about machines: ``qdrun up | down | devices | dashboard``."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

import typer

from ..fields import about
from .base import Json, Runs, complete_runs, print_document, reported


@dataclass(frozen=True)
class KeptRay:
    """The Ray that is kept on this machine."""

    pid: Annotated[int, about("the process that holds it")]
    address: Annotated[str, about("host:port of its control plane")]
    dashboard: Annotated[str, about("address of its dashboard; empty without one")]
    begun: Annotated[bool, about("whether it was started now; otherwise it was up already")]
    cores: Annotated[int, about("number of cores that it hands out")]
    gpus: Annotated[int, about("number of GPUs that it hands out")]


@dataclass(frozen=True)
class EndedRay:
    """The Ray that was kept on this machine."""

    pid: Annotated[int | None, about("the process that held it; null where there was none")]


def devices(as_json: Json = False) -> None:
    """Show the devices of this machine with their memory, and why other backends have none."""
    with reported(as_json):
        from ..ledger.inventory import local
        from ..observe import show

        rows = [show.DeviceRow.of(found) for found in local()]
        if as_json:
            print_document("devices", show.DeviceList(rows))
        else:
            print(show.devices_text(rows))


def dashboard(
    run: Annotated[
        str | None,
        typer.Argument(help="Folder or id of a run. Default: the latest run with a dashboard.", autocompletion=complete_runs),
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Address of the dashboard of a cluster, as in `http://head:8265`.")
    ] = None,
    opens: Annotated[
        bool | None,
        typer.Option(
            "--open/--no-open", help="Open it in a browser, logged in. Default: on a terminal, where a browser can be expected."
        ),
    ] = None,
    runs: Runs = "runs",
    as_json: Json = False,
) -> None:
    """Open Ray's dashboard in a browser, logged in; print its address and what its pages show. Exit code 4 if it does not answer."""
    with reported(as_json):
        from ..remote.dashboard import found, has_screen, opened, text

        where = found(run, runs, address)
        if as_json:
            print_document("dashboard", where)
        else:
            print(text(where), flush=True)
        wanted = opens if opens is not None else not as_json and sys.stdout.isatty() and has_screen()
        if not where.answers or (wanted and not opened(where, lambda text: print(text, file=sys.stderr, flush=True))):
            raise typer.Exit(4)


def up(
    dashboard: Annotated[
        bool, typer.Option("--dashboard/--no-dashboard", help="With Ray's dashboard, on 127.0.0.1 only.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Keep a Ray on this machine until `qdrun down`. Commands without --address use it, and begin their first trial sooner."""
    with reported(as_json):
        from ..remote.keeper import start

        found, begun = start(dashboard=dashboard)
        url = f"http://{found.dashboard}" if found.dashboard else ""
        if as_json:
            print_document("up", KeptRay(found.pid, found.address, url, begun, found.cores, found.gpus))
            return
        print(f"Ray {'is up' if begun else 'was up already'}: process {found.pid}, {found.cores} cores, {found.gpus} GPUs")
        if url:
            print(f"  dashboard: {url} (`qdrun dashboard` opens it, logged in)")
        print("  `qdrun submit` and `qdrun resume` use it; `qdrun down` ends it")


def down(
    force: Annotated[bool, typer.Option("--force", help="Also while runs use it; `qdrun resume` continues them.")] = False,
    as_json: Json = False,
) -> None:
    """End the Ray that `qdrun up` keeps, and no other."""
    with reported(as_json):
        from ..remote.keeper import stop

        found = stop(force=force)
        if as_json:
            print_document("down", EndedRay(found))
        else:
            print(
                "nothing to end: `qdrun up` keeps no Ray here" if found is None else f"Ray is down: process {found} has ended"
            )
