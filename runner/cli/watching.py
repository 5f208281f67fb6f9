"""The command that draws a run: ``qdrun report``. It never imports ray."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ..fields import about
from .base import Json, Run, Runs, print_document, reported


@dataclass(frozen=True)
class ReportDocument:
    """The report that was written."""

    run: Annotated[str, about("id of the run")]
    path: Annotated[str, about("path of the HTML file")]


def report(
    run: Run,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write to this file instead of report.html in the run's folder.")
    ] = None,
    runs: Runs = "runs",
    as_json: Json = False,
) -> None:
    """Write the report of a run, which need not be finished: one interactive HTML file with charts, trials, failures. Print its path."""
    with reported(as_json):
        from ..observe.report.document import write_report
        from ..store.layout import find

        folder = find(run, runs)
        path = write_report(folder, out)
        if as_json:
            print_document("report", ReportDocument(folder.name, path))
        else:
            print(path)
