"""Conditions on rows: what they mean, what is missing, and what is refused."""

import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_runs import Made
from typer.testing import CliRunner

from qdrun.runner.cli.app import app
from qdrun.runner.observe.table import write_table
from qdrun.runner.query.picking import NotFound, column_of
from qdrun.runner.query.run_table import Large, RunTable
from qdrun.runner.query.table_file import current_file
from qdrun.runner.query.where import FUNCTIONS, Condition, WhereError

COLUMNS = ["trial", "status", "loss", "param.mass", "param.k", "param.layers.0", "out.reach", "grad.x", "error"]
ROW = {
    **{"trial": "a1", "status": "done", "loss": 0.5, "param.mass": 0.3, "param.k": 4, "param.layers.0": 7},
    **{"out.reach": float("nan"), "grad.x": [1.0, 2.0, 3.0], "error": None},
}


def holds(text, row=ROW):
    return Condition(text, lambda name: column_of(name, COLUMNS)).places(RunTable.of([row])).tolist() == [0]


@pytest.mark.parametrize(
    "text",
    [
        *("mass > 0.2 and loss < 1", "param.mass == 0.3", "0.2 < mass <= 0.3", "not (loss > 1 or mass < 0)", "k in (3, 4)"),
        *("status == 'done'", "'on' in status", "status not in ['failed', 'lost']", "error is None", "loss is not None"),
        *("k ** 2 - 2 * k == 8", "-mass < 0", "k % 3 == 1 and k // 3 == 1", "abs(-k) == 4", "sqrt(k) == 2", "log10(100) == 2"),
        *(
            "isnan(reach)",
            "len(grad.x) == 3",
            'col("param.layers.0") == 7',
            "len(status) == 4",
            "True",
            "mass > 0.2 or 1 / 0 > 1",
        ),
    ],
)
def test_conditions_that_hold(text):
    assert holds(text) is True


@pytest.mark.parametrize(
    "text",
    [
        "error == 'x'",
        "error != 'x'",
        "not True",
        "error",
        "1 / 0 > 1",
        "sqrt(-k) > 0",
        "log(k - 4) < 0",
        "reach > 0",
        "10.0 ** 999 > 0",
    ],
)
def test_conditions_that_do_not_hold_as_a_value_is_missing_or_no_number(text):
    assert holds(text) is False


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("mass >", "invalid syntax, at character "),
        ("__import__('os').system('x')", r"`__import__\('os'\).system\('x'\)` is not allowed"),
        ("(lambda: 1)() > 0", "is not allowed"),
        ("[x for x in (1,)] == 1", "is not allowed"),
        ("mass > 0 if k else 1", "is not allowed"),
        ("abs(k, 2) > 1", r"`abs\(k, 2\)` is not allowed"),
        ("k & 1", "is not allowed"),
        ("b'x' == status", "is not allowed"),
        ("k", "it gives 4, which is neither true nor false"),
        ("k and True", "it does not fit trial a1: 4 is neither true nor false"),
        ("status < 3", "it does not fit trial a1: '<' not supported between instances of 'str' and 'int'"),
        ("grad.x > 3", r"it does not fit trial a1: `grad.x` is an array, of which only len\(grad.x\) is a number"),
        ("1 < " + " + ".join(["1"] * 300), "it has more than 500 parts"),
        ("(" * 300 + "1" + ")" * 300, "too many nested parentheses"),
    ],
)
def test_what_is_no_condition_is_refused_with_what_to_write(text, what):
    with pytest.raises(WhereError, match=rf"(?s)^--where .*{what}.*\n  do: write comparisons of columns"):
        holds(text)


def test_a_name_that_is_no_column_is_refused_like_one_of_columns():
    with pytest.raises(NotFound, match="did you mean `loss`"):
        holds("los < 1")


def test_a_large_array_has_its_length_too():
    assert holds("len(grad.x) == 100000", ROW | {"grad.x": Large((100_000, 3))})


@given(st.text(max_size=40))
def test_no_text_is_run_or_raises_anything_else(text):
    try:
        holds(text)
    except (WhereError, NotFound):
        pass


@pytest.fixture
def run(tmp_path, monkeypatch):
    made = Made(tmp_path / "runs", [{"x": float(k), "mode": "ab"[k % 2]} for k in range(6)])
    for k in range(5):
        more = {"status": "done", "loss": (k - 2.0) ** 2, "gradients": {"x": [float(k)]}, "outputs": {"a": 1.0 * k, "b": 2.0}}
        made.at(monkeypatch, 1.0 + k, "ended", k, attempt=1, **more)
    return made.folder


def call(*words):
    return CliRunner().invoke(app, ["results", *map(str, words)])


def test_results_keep_the_rows_and_columns_that_were_asked_for_in_every_format(run, tmp_path):
    asked = [run.path, "--where", "loss < 3 and mode == 'a'", "--sort", "max:loss", "--columns", "x,out.*,loss"]
    data = json.loads(call(*asked, "--json").stdout)
    names = ["param.x", "out.a", "out.b", "loss"]
    assert data["columns"] == names and [row["param.x"] for row in data["rows"]] == [2.0]
    assert call(run.path, "--where", "x > 3", "--columns", "x", "--format", "csv").stdout == "param.x\n4.0\n5.0\n"
    wide = ["--where", "loss >= 1", "--sort", "x", "--columns", "x,grad.x,loss"]
    for form, read in (("parquet", pq.read_table), ("arrow", lambda path: pa.ipc.open_file(path).read_all())):
        out = tmp_path / f"some.{form}"
        assert call(run.path, *wide, "--format", form, "--out", out).stdout == f"{out}\n"
        table = read(str(out))
        assert table.column_names == ["param.x", "grad.x", "loss"] and table["param.x"].to_pylist() == [0.0, 1.0, 3.0, 4.0]
        assert table["grad.x"].to_pylist() == [[0.0], [1.0], [3.0], [4.0]] and table["loss"].to_pylist() == [4.0, 1.0, 1.0, 4.0]
    assert not (run.path / "results.parquet").exists(), "the table of the whole run is not touched"
    assert (
        call(run.path, "--columns", "zz.*").exit_code == 2
        and "no column fits `zz.*`" in call(run.path, "--columns", "zz.*").stderr
    )
    wrong = call(run.path, "--where", "loss <")
    assert wrong.exit_code == 2 and "at character" in wrong.stderr and "  do: write comparisons" in wrong.stderr


@pytest.mark.parametrize(
    "asked",
    [
        ["--where", "loss < 3 and mode == 'a'", "--sort", "max:loss", "--columns", "trial,x,out.*,loss,error"],
        ["--best", "max:a", "--columns", "mode,grad.*"],
        ["--where", "len(grad.x) == 1 or loss is None", "--columns", "*"],
        ["--where", "kind == 'b'", "--columns", "kind,x"],
        ["--sort", "loss", "--columns", "digits,loss"],
        ["--where", "zz > 1", "--columns", "x"],
        ["--where", "False", "--columns", "x"],
        ["--where", "True", "--columns", "x"],
        ["--columns", "los"],
    ],
)
def test_a_run_that_has_ended_is_read_from_its_table_with_the_same_answers(run, asked, monkeypatch):
    other = Made(
        run.path.parent,
        [{"x": float(k), "mode": "ab"[k % 2], "kind": ["b", 2, None][k % 3], "digits": "12"[k % 2]} for k in range(4)],
    )
    for k in range(4):
        more = {"status": "done", "loss": (k - 2.0) ** 2, "gradients": {"x": [float(k)]}, "outputs": {"a": 1.0 * k, "b": 2.0}}
        end = {"status": "failed", "error": {"type": "E", "message": "no"}, "failure": "user_error"} if k == 3 else more
        other.at(monkeypatch, 1.0 + k, "ended", k, attempt=1, **end)
    other.at(monkeypatch, 9.0, "finished", state="failed")
    other.journal.close()
    write_table(other.folder)
    assert current_file(other.folder) is not None and current_file(run) is None, "the first run has not ended"
    fast = call(other.folder.path, *asked, "--json")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qdrun.runner.observe.listing.current_file", lambda folder: None)
        slow = call(other.folder.path, *asked, "--json")
    assert (fast.exit_code, fast.stdout) == (slow.exit_code, slow.stdout)


def test_a_table_that_is_not_that_of_the_journal_is_not_read(run, monkeypatch):
    other = Made(run.path.parent, [{"x": 1.0}])
    other.at(monkeypatch, 1.0, "ended", 0, attempt=1, status="done", loss=1.0)
    other.at(monkeypatch, 2.0, "finished", state="done")
    other.journal.close()
    write_table(other.folder)
    table = other.folder.path / "results.parquet"
    data = table.read_bytes()
    table.write_bytes(data[:100])
    assert current_file(other.folder) is None
    table.write_bytes(data)
    other.folder.files.put("events/000002-000001.jsonl", b"")
    assert current_file(other.folder) is None
    assert json.loads(call(other.folder.path, "--columns", "loss", "--json").stdout)["rows"] == [{"loss": 1.0}]


TEXTS = [
    *(
        "a % 0.7 < b",
        "a // b >= 1 or k in (1, 3)",
        "(a - b) * k > -1",
        "abs(a) ** b > 1 and b != 0",
        "sqrt(a) + log(abs(b)) < 1",
    ),
    *(
        "big * big > big",
        "big // 3 == 100",
        "-k < a < 2 * k",
        "mixed == 'x' or mixed == 2",
        "mixed != 2",
        "word in ('x', 'yy')",
    ),
    *("not (a > b)", "flag and k > 1", "flag + k > 2", "len(word) == 2", "exp(1000 * a) > 0", "a / b > 1 or isnan(a)"),
]


@pytest.mark.parametrize("text", TEXTS)
def test_all_rows_at_once_are_what_python_says_of_each(text):
    """Against Python's own evaluation, of values that are missing, mixed, not finite, or too long for 64 bits."""
    random = np.random.default_rng()
    functions = {name: scalar for name, (scalar, _) in FUNCTIONS.items()} | {"len": len}
    choices = {
        **{"a": [*random.normal(size=5).tolist(), 0.0, math.nan, math.inf], "b": [*random.normal(size=5).tolist(), 0.0]},
        **{"k": [1, 2, 3, -4], "big": [2**62, 300, -(2**40)], "mixed": [2, 2.5, "x", True], "word": ["x", "yy", "äöü"]},
        "flag": [True, False],
    }
    rows = [{name: of[random.integers(len(of))] for name, of in choices.items()} for _ in range(60)]
    expected = []
    for row in rows:
        try:
            expected.append(bool(eval(text, {"__builtins__": {}}, functions | row)))
        except (ArithmeticError, ValueError):
            expected.append(None)  # a part of it cannot be computed, which another part may outweigh
    table = RunTable.of([{"trial": str(k), **row} for k, row in enumerate(rows)])
    found = {*Condition(text, lambda name: name).places(table).tolist()}
    wrong = [rows[k] for k, holds in enumerate(expected) if holds is not None and holds != (k in found)]
    assert not wrong
    for k, row in enumerate(rows):
        missing = Condition(text, lambda name: name).places(RunTable.of([{**row, "trial": "t"}])).tolist() == [0]
        assert missing == (k in found), row
