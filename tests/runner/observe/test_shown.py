"""The table for people: equal from the file and from the journal, cut where it is long, and legible on narrow terminals."""

import json
import math
import re
from types import SimpleNamespace

import pyarrow as pa
import pytest
from made_runs import Made
from typer.testing import CliRunner

from qdrun.runner.cli.app import app
from qdrun.runner.cli.base import complete_columns
from qdrun.runner.cli.runs.results import SHOWN_ROWS
from qdrun.runner.observe.show import results_text, varied
from qdrun.runner.observe.table import rows, write_table
from qdrun.runner.query.run_table import RunTable
from qdrun.runner.text_grid import grid


def call(*words):
    return CliRunner().invoke(app, ["results", *map(str, words)])


def ended(where, monkeypatch, count, mixed=False):
    """A run that has ended, with failures, matrices, and outputs that some trials lack."""
    made = Made(
        where,
        [{"mass": k % 7 + 0.5, "kind": "ab"[k % 2], **({"size": ["b", 2][k % 2]} if mixed else {})} for k in range(count)],
    )
    for k in range(count):
        end = {
            "loss": (k - 3.0) ** 2,
            "gradients": {"mass": [[1.0 * k] * 3] * 5},
            "outputs": {"reach": 2.0 * k} if k % 3 else {},
        }
        if k % 5 == 4:
            end = {"status": "failed", "loss": None, "error": {"type": "E", "message": "broke\nhere"}, "failure": "user_error"}
        made.end(monkeypatch, 1.0, k, **end)
    folder = made.finish(monkeypatch, 2.0, "failed")
    write_table(folder)
    return folder


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize(
    "asked",
    [
        [],
        ["--sort", "max:loss"],
        ["--where", "status == 'failed'"],
        ["--where", "mass > 1e9"],
        ["--best", "loss"],
        ["--limit", 2],
        ["--format", "csv"],
    ],
)
def test_the_table_of_the_file_is_that_of_the_journal(asked, mixed, tmp_path, monkeypatch):
    folder = ended(tmp_path, monkeypatch, 12, mixed)
    fast = call(folder.path, *asked)
    monkeypatch.setattr("qdrun.runner.observe.listing.current_file", lambda folder: None)
    slow = call(folder.path, *asked)
    assert (fast.exit_code, fast.stdout) == (slow.exit_code, slow.stdout) == (0, slow.stdout)
    assert ("[5x3]" in slow.stdout) == (asked[:1] not in (["--where"], ["--format"])), "failed trials have no gradients"


def test_rows_of_one_row_group_are_read_without_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr("qdrun.runner.observe.table.GROUP_ROWS", 3)
    folder = ended(tmp_path, monkeypatch, 11)
    wanted = json.loads(call(folder.path, "--json", "--sort", "max:loss", "--columns", "trial,grad.mass").stdout)["rows"]
    for limit in (1, 4, 9):
        found = json.loads(
            call(folder.path, "--json", "--sort", "max:loss", "--columns", "trial,grad.mass", "--limit", limit).stdout
        )
        assert found["rows"] == wanted[:limit]


def test_a_long_table_is_cut_and_says_so(tmp_path, monkeypatch):
    made = Made(tmp_path, [{"mass": float(k)} for k in range(SHOWN_ROWS + 5)])
    cut, whole, few = call(made.folder.path), call(made.folder.path, "--limit", 0), call(made.folder.path, "--limit", 3)
    assert len(cut.stdout.splitlines()) == SHOWN_ROWS + 2 and len(whole.stdout.splitlines()) == SHOWN_ROWS + 7
    assert cut.stderr.startswith(
        "the first 1,000 of 1,005 rows are shown\n  do: choose rows with --where, --sort, --best; `--limit 0`"
    )
    assert whole.stderr == few.stderr == "" and len(few.stdout.splitlines()) == 5
    assert len(call(made.folder.path, "--format", "csv").stdout.splitlines()) == SHOWN_ROWS + 6, "other formats have all rows"
    assert len(call(made.folder.path, "--format", "csv", "--limit", 2).stdout.splitlines()) == 3


def table_for_people(tmp_path, monkeypatch, room):
    monkeypatch.setattr("qdrun.runner.text_grid._terminal", lambda: room)
    return results_text(rows(ended(tmp_path, monkeypatch, 12)))


@pytest.mark.parametrize("room", [40, 80, 100])
def test_no_word_is_broken_and_no_line_is_too_wide(room, tmp_path, monkeypatch):
    shown = table_for_people(tmp_path, monkeypatch, room)
    words = set(table_for_people(tmp_path, monkeypatch, 0).split())
    assert max(map(len, shown.splitlines())) <= room
    assert {word for word in shown.split() if not re.fullmatch("-+", word)} <= words


def test_a_word_that_fits_beside_the_first_column_is_whole():
    uri = "s3://a-bucket-with-a-long-name.example.org:9000"
    shown = grid(
        ["trial", "loss", "note", "where"], [["27f20b7807f8", "0.25", "said in several words", uri + "-" * 12]], room=80
    )
    assert max(map(len, shown.splitlines())) <= 80 and uri.partition("//")[2] + "-" * 12 in shown


def test_what_a_descent_has_found_is_shown_however_large_it_is(tmp_path, monkeypatch):
    made = Made(tmp_path, [{"mass": 1.0}])
    outputs = {"opt.v": [0.5, *[2.0] * 998, 7.25], "field": [1.0] * 1000}
    made.end(monkeypatch, 1.0, 0, outputs=outputs)
    for words in ((), ("--columns", "out.opt.v,out.field")):
        shown = call(made.folder.path, *words).stdout
        assert "[0.5, 2, .. 7.25] of 1000" in shown and "[1000]" in shown


def test_columns_are_completed_from_the_table_of_a_run_that_has_ended(tmp_path, monkeypatch):
    folder = ended(tmp_path, monkeypatch, 3)
    context = SimpleNamespace(params={"run": str(folder.path)}, args=[])
    slow = complete_columns(context, "trial,max:out.")
    monkeypatch.setattr("qdrun.runner.store.replay.replay", None)
    assert complete_columns(context, "trial,max:out.") == slow == ["trial,max:out.reach"]


def test_a_long_word_is_broken_rather_than_the_table():
    shown = grid(["trial", "error"], [["a1", "x" * 90]], room=80)
    assert max(map(len, shown.splitlines())) <= 80 and shown.replace("\n", "").count("x") == 90


@pytest.mark.parametrize(
    "values", [[[0.5, 1.0]] * 4, [0.5] * 4, ["a"] * 3, [None] * 3, [2, 2, 3], [[1.0], [2.0]], [math.nan] * 3, [7], []]
)
def test_a_parameter_is_said_to_vary_in_columns_as_in_rows(values):
    rows = [{"trial": str(k), "param.p": value} for k, value in enumerate(values)]
    columns = {"trial": pa.array([str(k) for k in range(len(values))]), "param.p": pa.array(values)}
    table = RunTable(pa.record_batch(columns))
    differ = len({str(value) for value in values}) > 1
    assert varied(table) == (["param.p"] if differ else [])
    assert not rows or varied(rows) == varied(table)
