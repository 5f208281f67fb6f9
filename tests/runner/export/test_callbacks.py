"""Callbacks: what they are told of a run, when, and what one that fails costs."""

import json
import resource
import sys

import numpy as np
import pytest

from qdrun.runner.config.callbacks_section import CallbacksSection
from qdrun.runner.export import callbacks
from qdrun.runner.export.callbacks import CallbackMissing, Calls, calling, commands_of, run
from qdrun.runner.observe.table import rows as table_rows
from qdrun.runner.store.columns import made as rows_made

SAYS = """
import json
def row(document):
    with open({said!r}, "a") as stream:
        stream.write(json.dumps(document) + "\\n")
    if document.get("status") == "failed":
        raise ValueError("not this one")
"""


@pytest.fixture
def said(tmp_path):
    (tmp_path / "hooks.py").write_text(SAYS.format(said=str(tmp_path / "said")))
    path = tmp_path / "said"
    return lambda: [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def section(**keys):
    return CallbacksSection.model_validate(keys)


def end(one, monkeypatch, t, k, **fields):
    one.start(monkeypatch, t, k, device="cpu", bytes=1)
    one.end(monkeypatch, t, k, **fields)


def test_a_callback_gets_the_row_of_each_trial_once_and_then_the_end_of_the_run(made, monkeypatch, tmp_path, said):
    one, notes = made([{"x": i} for i in range(5)]), []
    end(one, monkeypatch, 1, 0, loss=0.5, outputs={"height": float("nan")})
    calls = Calls(one.folder, section(trial_end="hooks.py:row", run_end="hooks.py:row"), tmp_path, notes.append)
    calls.look()
    assert said() == [], "an earlier process of the run has told that row"
    end(one, monkeypatch, 2, 1, loss=0.25, outputs={"height": float("nan"), "path": [1.0, 2.0]})
    names = (one.trials[2].id, one.trials[3].id)
    (event,) = rows_made(names, (1, 1), {"status": "done"}, np.array([5.0, 6.0]), None, {}, {"height": np.array([7.0, 8.0])})
    one.at(monkeypatch, 3, "rows", **event.event())
    calls.look()
    calls.look()
    assert [(line["event"], line["trial"], line["loss"]) for line in said()] == [
        ("trial_end", one.trials[k].id, loss) for k, loss in ((1, 0.25), (2, 5.0), (3, 6.0))
    ]
    row = next(row for row in table_rows(one.folder) if row["index"] == 1)
    known = {name: value for name, value in row.items() if name not in ("device", "planned_bytes", "out.height")}
    assert {name: said()[0][name] for name in known} == known and said()[0]["out.height"] == "NaN", (
        "the row that `qdrun results` shows"
    )
    error = {"type": "Bad", "message": "no", "traceback": ""}
    end(one, monkeypatch, 4, 4, status="failed", failure="user_error", loss=None, error=error)
    one.finish(monkeypatch, 5, "failed")
    calls.close()
    assert said()[-1]["event"] == "run_end" and said()[-1]["state"] == "failed"
    assert said()[-1]["counts"] == {"done": 4, "failed": 1} and said()[-1]["run"] == one.folder.name
    assert notes == [f"callbacks.trial_end has failed for {one.trials[4].id}: exit code 3: ValueError: not this one"]


def test_a_command_is_called_for_each_row_and_its_failures_are_counted(made, monkeypatch, tmp_path):
    one, notes = made([{"x": i} for i in range(7)]), []
    code = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read()); print('bad luck'); sys.exit(2)"
    with calling(one.folder, section(trial_end=[sys.executable, "-c", code, str(tmp_path / "said")]), tmp_path, notes.append):
        for k in range(7):
            end(one, monkeypatch, 1 + k, k, loss=float(k))
    told = [json.loads(line)["index"] for line in (tmp_path / "said").read_text().splitlines()]
    assert told == list(range(7)), "calls that are left when the run ends are made"
    assert len(notes) == callbacks.SHOWN + 1 and notes[-1] == "7 calls of callbacks have failed"
    assert notes[0] == f"callbacks.trial_end has failed for {one.trials[0].id}: exit code 2: bad luck"


def test_a_call_that_takes_too_long_is_killed():
    assert run([sys.executable, "-c", "import time; time.sleep(60)"], "{}\n", 0.3) == "not over after 0.3 s; killed"


def test_a_callback_that_is_not_there_is_refused_before_the_run(tmp_path):
    with pytest.raises(
        CallbackMissing, match=r"callbacks.run_end: there is no program `no-such-program`\n  do: write its path"
    ):
        commands_of(section(run_end="no-such-program --now"), tmp_path)
    with pytest.raises(CallbackMissing, match=r"callbacks.trial_end: cannot read the function's file .*nothing.py"):
        commands_of(section(trial_end="nothing.py:row"), tmp_path)
    assert commands_of(None, tmp_path) == {}


@pytest.mark.parametrize("code", ["while True: print('y' * 4000)", "import os\nwhile True: os.write(1, b'y' * 65536)"])
def test_a_callback_that_prints_without_end_is_bounded_in_memory_and_time(code):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert run([sys.executable, "-c", code], "{}\n", 1.0) == "not over after 1 s; killed"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def test_the_last_line_of_a_talkative_callback_says_why_it_failed():
    code = "import sys; print('x\\n' * 1_000_000); print('the reason'); sys.exit(4)"
    assert run([sys.executable, "-c", code], "", 60.0) == "exit code 4: the reason"


def test_a_callback_that_does_not_read_and_one_that_leaves_a_process_behind_do_not_hold_the_run_up():
    assert run([sys.executable, "-c", "pass"], "x" * (4 << 20), 60.0) == ""
    assert run(["sh", "-c", "sleep 30 & exit 0"], "", 20.0) == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def other(): ...", "has no attribute 'row'"),
        ("import nothing_like_this", "nothing_like_this"),
        ("def row(:", "SyntaxError"),
    ],
)
def test_a_function_that_cannot_be_called_is_refused_before_the_start(tmp_path, text, said):
    (tmp_path / "hooks.py").write_text(text)
    with pytest.raises(CallbackMissing, match=r"^callbacks\.trial_end: `hooks\.py:row` cannot be called: ") as error:
        commands_of(section(trial_end="hooks.py:row"), tmp_path)
    assert said in str(error.value) and "\n  do: " in str(error.value)
