"""The command ``qdrun results``. It never imports ray."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from ...fields import Data, about
from ...visible import visible
from ..base import Json, Run, Runs, complete_columns, print_document, print_rows, reported

if TYPE_CHECKING:
    from ...observe.listing import Table

SHOWN_ROWS = 1000
"""Rows of a table for people, where no limit is given."""


class Format(StrEnum):
    """The formats of ``results``."""

    table = "table"
    csv = "csv"
    json = "json"
    parquet = "parquet"
    arrow = "arrow"


Where = Annotated[
    str | None,
    typer.Option(
        metavar="CONDITION",
        help="Show only rows for which this holds, as in `mass > 0.2 and loss < 1`: comparisons, and, or, not, arithmetic.",
    ),
]
Best = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="Show only the finished trial with the smallest value; `max:loss`: with the largest.",
        autocompletion=complete_columns,
    ),
]
Sort = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="Sort by this column, smallest first; `max:loss`: largest first.",
        autocompletion=complete_columns,
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,..",
        help="Show only these columns, as in `trial,E,loss` or `trial,out.*`.",
        autocompletion=complete_columns,
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(
        "--limit",
        "-n",
        metavar="N",
        min=0,
        help=f"Show at most N rows; 0: all. Default: {SHOWN_ROWS} in a table, all in other formats.",
    ),
]


@dataclass(frozen=True)
class ResultsDocument:
    """The table of a run; with `--format parquet` only its path."""

    run: Annotated[str, about("its id")]
    state: Annotated[str, about("as in status")]
    complete: Annotated[bool, about("whether every trial has its row")]
    columns: Annotated[list[str], about("names of the columns, in order")]
    problems: Annotated[list[str], about("damage of the run folder: file and line, what is lost, what to do")]
    rows: Annotated[list[Data], about("one row per trial; running-sweeps.md lists the columns")]
    path: Annotated[str | None, about("the Parquet file that was written")] = None
    report: Annotated[str | None, about("the HTML file that --plot wrote")] = None


def results(
    run: Run,
    where: Where = None,
    form: Annotated[Format, typer.Option("--format", "-f", help="Format of the table.")] = Format.table,
    out: Annotated[str | None, typer.Option("--out", "-o", help="Write to this file or URI instead of stdout.")] = None,
    best: Best = None,
    sort: Sort = None,
    columns: Columns = None,
    limit: Limit = None,
    plot: Annotated[
        bool, typer.Option("--plot", help="Also write the report.html of the run, and print its path on stderr.")
    ] = False,
    escape_formulas: Annotated[
        bool,
        typer.Option("--escape-formulas", help="In CSV, put ' before strings that a spreadsheet would run as formulas."),
    ] = False,
    runs: Runs = "runs",
    as_json: Json = False,
) -> None:
    """Show the table of a run, which need not be finished.

    `parquet` rewrites the file in the run folder, or writes --out, and prints the path; so does `arrow`, which needs --out.
    """
    some = any(option is not None for option in (where, best, sort, columns, limit))
    if out is None and (form is Format.arrow or (form is Format.parquet and some)):
        raise typer.BadParameter(
            f"--format {form.value} of {'some rows or columns' if some else 'a run'} is a file: name it, --out FILE"
        )
    if escape_formulas and (form is not Format.csv or as_json):
        raise typer.BadParameter("--escape-formulas needs --format csv: other formats hold typed values")
    with reported(as_json):
        from ...observe import table
        from ...observe.listing import table_of
        from ...observe.remarks import remarks_of
        from ...query.formats import json_rows
        from ...store.layout import find

        shown = form is Format.table and not as_json
        most = (SHOWN_ROWS if shown and limit is None else limit) or None
        which = {"where": where, "best": best, "sort": sort, "columns": columns and columns.split(",")}
        if (
            form is Format.csv and columns is None and not as_json
        ):  # its columns are read from the table of a run that has ended
            which["columns"] = ["*"]
        found = table_of(find(run, runs), **which, limit=most, shown=shown)
        for problem in found.problems:
            print(visible(problem), file=sys.stderr)
        for text in () if as_json else remarks_of(found.folder):
            print(f"warning: {visible(text)}", file=sys.stderr)
        head = found.head()
        if plot:
            from ...observe.report.document import write_report

            head["report"] = write_report(found.folder)
            print(f"report: {head['report']}", file=sys.stderr)
        if form in (Format.parquet, Format.arrow):
            path = out
            if some or form is Format.arrow:
                found.write(form.value, str(out))
            else:
                path = table.write_parquet(found.folder, out)
            if as_json:
                print_document("results", head | {"rows": [], "path": str(path)})
            else:
                print(path)
        elif as_json:
            print_rows("results", head, json_rows(found.parts(), 2))
        elif out is None:
            sys.stdout.writelines(found.lines(form.value, escape_formulas))
        else:
            found.write(form.value, out, escape_formulas)
        if limit is None:
            _say_cut(found)


def _say_cut(found: Table) -> None:
    """Say that rows were left out, and how to see them."""
    if len(found.rows) < found.total:
        print(
            f"the first {len(found.rows):,} of {found.total:,} rows are shown\n"
            "  do: choose rows with --where, --sort, --best; `--limit 0` shows all, `--format csv` and `parquet` give all",
            file=sys.stderr,
        )
