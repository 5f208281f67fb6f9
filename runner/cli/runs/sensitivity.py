"""The command ``qdrun sensitivity``."""

from __future__ import annotations

from typing import Annotated

import typer

from ..base import Json, Run, Runs, print_document, reported


def sensitivity(
    run: Run,
    check: Annotated[
        int,
        typer.Option("--check", metavar="N", min=0, help="Also run N trials again, and compare with differences of the loss."),
    ] = 0,
    runs: Runs = "runs",
    as_json: Json = False,
) -> None:
    """Show what the gradients of a sweep say about its parameters: effects, elasticities, interactions; and whether its losses agree."""
    with reported(as_json):
        from ...sensitivity.study import sensitivity as sensitivity_of
        from ...store.layout import find

        found = sensitivity_of(find(run, runs), check)
        if as_json:
            print_document("sensitivity", found)
        else:
            print(found.text)
