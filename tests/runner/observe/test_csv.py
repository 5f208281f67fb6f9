"""CSV: every string comes back from a reader, and formulas are escaped where that is asked for."""

import csv
import io

import pytest
from test_documents import finished  # noqa: F401 - a fixture
from test_looking import text
from typer.testing import CliRunner

from qdrun.runner.cli.app import app
from qdrun.runner.query.formats import csv_lines
from qdrun.runner.query.run_table import RunTable

STRINGS = [
    "x\rY",
    "x\r\ny",
    "x\ny",
    "\r",
    'a"b,c\nd',
    ",",
    '"',
    "",
    " padded ",
    "\u2028",
    "\x0b",
    "\x85",
    "=1+1",
    "'=1",
    "\t=1",
]


@pytest.mark.parametrize("escaped", (False, True))
def test_every_string_and_name_of_a_column_comes_back(escaped):
    names = [f"param.{string}" for string in STRINGS]
    rows = [dict(zip(names, STRINGS, strict=True)), {names[0]: [1.0, None], names[1]: -1.5, names[2]: None}]
    lines = list(csv_lines([RunTable.of(rows)], names, escaped))
    assert len(lines) == 3 and all(line.endswith("\n") for line in lines)
    head, first, second = csv.reader(io.StringIO("".join(lines), newline=""))
    assert head == names and second[:3] == ["[1.0, null]", "-1.5", ""]
    formulas = ("=", "\t", "\r")
    assert first == [f"'{string}" if escaped and string.startswith(formulas) else string for string in STRINGS]


def test_lines_with_carriage_returns_are_quoted_by_any_version_of_python():
    (line,) = list(csv_lines([RunTable.of([{"v": "x\rY"}])], ["v"]))[1:]
    assert line == '"x\rY"\n'


@pytest.mark.parametrize("start", "=+-@\t\r\n")
def test_formulas_are_escaped_where_that_is_asked_for_and_numbers_are_not(start):
    rows = [{"v": f"{start}SUM(1)", "n": -2.0}]
    cells = lambda escape: next(
        csv.reader(io.StringIO(list(csv_lines([RunTable.of(rows)], ["v", "n"], escape))[1], newline=""))
    )
    assert cells(False) == [f"{start}SUM(1)", "-2.0"] and cells(True) == [f"'{start}SUM(1)", "-2.0"]


def test_other_formats_refuse_the_option(finished):  # noqa: F811
    found = CliRunner().invoke(app, ["results", str(finished.path), "--escape-formulas"])
    assert found.exit_code == 2 and "--escape-formulas needs --format csv" in found.output
    plain = text("results", finished.path, "--format", "csv")
    assert text("results", finished.path, "--format", "csv", "--escape-formulas") == plain, "no string is a formula"
