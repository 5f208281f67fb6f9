"""The command that draws a run: ``qdrun report``. It never imports ray."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ..fields import about
from .base import Json, Run, Runs, complete_runs, print_document, reported


@dataclass(frozen=True)
class ReportDocument:
    """The report that was written."""

    run: Annotated[str, about("id of the run")]
    path: Annotated[str, about("path of the HTML file")]


def report(
    run: Run,
    other: Annotated[str | None, typer.Argument(help="A second run, in the same page.", autocompletion=complete_runs)] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write to this file instead of report.html in the run's folder.")
    ] = None,
    runs: Runs = "runs",
    as_json: Json = False,
) -> None:
    """Write the report of a run, which need not be finished: one interactive HTML file with charts, trials, failures. Print its path.

    With OTHER, it is the report of two runs: their trials in the same charts, and how they differ.
    """
    if other is not None and out is None:
        raise typer.BadParameter("the report of two runs is in no folder of a run: name its file, --out FILE")
    with reported(as_json):
        from ..store.layout import find

        folder = find(run, runs)
        if other is None:
            from ..observe.report.document import write_report

            path = write_report(folder, out)
        else:
            from ..compare.page import write_page
            from ..compare.runs import pair_of

            path = write_page(pair_of(folder, find(other, runs)), str(out))
        if as_json:
            print_document("report", ReportDocument(folder.name, path))
        else:
            print(path)
