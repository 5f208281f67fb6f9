"""The command ``qdrun compare``."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from ..base import Json, Run, Runs, complete_runs, print_document, reported


def compare(
    run: Run,
    other: Annotated[str, typer.Argument(help="The run to compare with, named in the same way.", autocompletion=complete_runs)],
    tolerance: Annotated[
        float, typer.Option(metavar="X", min=0.0, help="Largest relative difference of numbers that count as equal.")
    ] = 0.0,
    html: Annotated[
        str | None,
        typer.Option("--html", metavar="FILE", help="Also write both runs side by side, with plots, to this file or URI."),
    ] = None,
    runs: Runs = "runs",
    as_json: Json = False,
) -> None:
    """Compare two runs: configs, code, versions, devices, ends, and the numbers of the trials that both have."""
    with reported(as_json):
        from ...compare.runs import pair_of
        from ...store.layout import find

        found = pair_of(find(run, runs), find(other, runs), tolerance)
        if html is not None:
            from ...compare.page import write_page

            found = replace(found, html=write_page(found, html))
        if as_json:
            print_document("compare", found)
        else:
            print(found.text if found.html is None else f"{found.text}\n\nside by side: {found.html}")
