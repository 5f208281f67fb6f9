"""The commands about machines: ``qdrun devices | dashboard``."""

from __future__ import annotations

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
    runs: Runs = "runs",
    as_json: Json = False,
) -> None:
    """Print the address of Ray's dashboard, how to get its token, and what its pages show. Exit code 4 if it does not answer."""
    with reported(as_json):
        from ..remote.dashboard import found, text

        where = found(run, runs, address)
        if as_json:
            print_document("dashboard", where.data())
        else:
            print(text(where))
        if not where.answers:
            raise typer.Exit(4)
