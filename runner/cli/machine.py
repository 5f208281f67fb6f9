"""The commands about machines: ``qdrun up | down | devices | dashboard``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from .base import Json, Runs, complete_runs, print_document, reported


def devices(as_json: Json = False) -> None:
    """Show the devices of this machine with their memory, and why other backends have none."""
    with reported(as_json):
        from ..ledger.inventory import local
        from ..observe import show

        rows = show.devices_data(local())
        if as_json:
            print_document("devices", {"devices": rows})
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
            print_document("dashboard", where.data())
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
            data = {"pid": found.pid, "address": found.address, "dashboard": url, "begun": begun}
            print_document("up", data | {"cores": found.cores, "gpus": found.gpus})
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
            print_document("down", {"pid": found})
        else:
            print(
                "nothing to end: `qdrun up` keeps no Ray here" if found is None else f"Ray is down: process {found} has ended"
            )
