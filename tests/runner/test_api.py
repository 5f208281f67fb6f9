"""Sweeps from Python: submit, load, tables, gradients that are mapped when they are asked for."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from runner_helpers import write_config

from qdrun.runner import Results, load, submit
from qdrun.runner.api import PandasMissing
from qdrun.runner.observe import arrays
from qdrun.runner.store import status
from qdrun.runner.store.attempts import Attempt, ResultMissing, ended, pack, started
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.layout import RunFolder, RunNotFound, write_run
from qdrun.runner.study.trials import Trial, trial_id

RNG = np.random.default_rng(3)
LARGE = {"big": RNG.normal(size=(100, 300)), "ids": np.arange(20_000, dtype=np.int32)}


A1, B2 = (trial_id({"x": i}, 0) for i in range(2))


def by_hand(where, gradients):
    """A run of two trials, of which the first is done with these gradients."""
    ids = (A1, B2)
    trials = [Trial(id=name, index=i, replicate=0, seed=i, swept={"x": i}, params={"x": i}) for i, name in enumerate(ids)]
    folder = write_run(where, "hand", "", {"gradients": sorted(gradients)}, trials, {})
    with Journal(folder) as journal:
        attempt = Attempt(A1, 1)
        started(journal, [(attempt, {"device": "cpu"})])
        record = {"status": "done", "loss": 0.5, "gradients": gradients, "outputs": {"reach": np.float64(2.0)}}
        ended(journal, [(attempt, pack(folder, attempt, record))])
        journal.write("finished", state="failed")
    return folder


@pytest.mark.parametrize("where", ["local", "memory://api-runs"])
def test_gradients_by_trial_large_and_small_wherever_the_run_lies(where, tmp_path):
    folder = by_hand(tmp_path if where == "local" else where, LARGE | {"small": np.array([1.0, 2.0])})
    run = load(folder.uri)
    assert list(run.gradients) == [A1], "only trials with a row have gradients"
    assert len(run.gradients) == 1 and A1 in run.gradients and B2 not in run.gradients and "C" not in run.gradients
    assert run.gradients is run.gradients and run.outputs is run.outputs, "a loop over trials reads each line once"
    found = run.gradients[A1]
    assert set(found) == {"big", "ids", "small"}
    for name, value in LARGE.items():
        np.testing.assert_array_equal(found[name], value)
    assert found["small"].tolist() == [1.0, 2.0] and float(run.outputs[A1]["reach"]) == 2.0
    assert found["big"].dtype == np.float64 and found["ids"].dtype == np.int32
    with pytest.raises(KeyError):
        run.gradients[B2]


def test_large_gradients_are_mapped_read_only_and_not_before_they_are_asked_for(tmp_path, monkeypatch):
    folder = by_hand(tmp_path, LARGE)
    opened = []
    real = arrays.mapped_file
    monkeypatch.setattr(arrays, "mapped_file", lambda folder, path, record: opened.append(path) or real(folder, path, record))
    run = load(folder.uri)
    gradients = run.gradients
    assert len(gradients) == 1 and A1 in gradients and len(run.rows) == 2 and opened == []
    big = gradients[A1]["big"]
    assert opened == [f"trials/{A1}/a1/gradients.safetensors"], "one file, mapped once"
    assert isinstance(big, np.memmap) and not big.flags.writeable and not big.flags.owndata


@pytest.mark.parametrize("damage", ["gone", "short", "header", "no json", "a bit"])
def test_a_file_that_is_damaged_says_so(damage, tmp_path):
    folder = by_hand(tmp_path, LARGE)
    path = folder.path / f"trials/{A1}/a1/gradients.safetensors"
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        cut = {"short": data[:-1000], "header": b"\xff" * 8 + data[8:], "no json": data[:8] + b"x" * (len(data) - 8)}
        cut["a bit"] = data[:-5] + bytes((data[-5] ^ 4,)) + data[-4:]
        path.write_bytes(cut[damage])
    with pytest.raises(ResultMissing, match=r"gradients\.safetensors cannot be read: .*\n  do: remove the file"):
        load(folder.uri).gradients[A1]


def test_a_run_folder_names_no_file_outside_of_itself(tmp_path):
    folder = by_hand(tmp_path, LARGE)
    for path in ("../x.safetensors", "/etc/passwd"):
        with pytest.raises(ResultMissing, match="a file outside of itself"):
            arrays.mapped_file(folder, path, {})


def test_a_run_is_a_table_a_config_and_a_state(tmp_path):
    folder = by_hand(tmp_path / "runs", {"small": np.array([1.0, 2.0])})
    run = load(folder.name, runs=tmp_path / "runs")
    assert (run.id, run.state, len(run), run.config) == (folder.name, "failed", 2, {"gradients": ["small"]})
    assert run.status["counts"] == {"done": 1, "cancelled": 1}
    assert run.arrow.column("loss").to_pylist() == [0.5, None]
    assert run.pandas["grad.small"][0].tolist() == [1.0, 2.0]
    assert run.best()["trial"] == A1 and run.best("max:out.reach")["out.reach"] == 2.0
    assert "1 done, 1 waiting" in repr(run)
    assert os.path.join(run.folder, "config.yaml") == str(folder.path / "config.yaml") and load(run.folder).id == run.id
    with pytest.raises(RunNotFound):
        load("nothing", runs=tmp_path / "runs")


def test_without_pandas_the_error_says_what_to_do(tmp_path, monkeypatch):
    folder = by_hand(tmp_path / "runs", {"small": np.array([1.0, 2.0])})
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(
        PandasMissing, match=r"pandas, which is not installed\n  do: pip install pandas, or use run.rows or run.arrow"
    ):
        _ = load(folder.uri).pandas


def test_a_run_that_is_not_local_is_no_path():
    with pytest.raises(ValueError, match="is not a folder of this machine"):
        os.fspath(RunFolder("memory://nowhere/run"))


@pytest.mark.slow
def test_submit_gives_the_run_back(one_worker, tmp_path):
    run = submit(write_config(tmp_path), overrides=["name=own"], output=tmp_path / "else")
    assert isinstance(run, Results) and run.state == "done"
    assert run.folder.path.parent == tmp_path / "else" and "own" in run.id
    assert [row["loss"] for row in run.rows] == [1.0, 1.0, 5.0]
    assert [float(run.gradients[row["trial"]]["x"]) for row in run.rows] == [-2.0, 2.0, 6.0]
    assert one_worker.is_initialized(), "a Ray that was open stays open"


def test_the_names_are_seen_before_they_are_loaded():
    code = (
        "import sys, qdrun.runner as r; print({'submit', 'load', 'Results'} <= set(dir(r)), 'qdrun.runner.api' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True False\n"


def test_the_names_are_functions_whatever_was_imported_before():
    code = """
import sys
from pathlib import Path
from types import SimpleNamespace
import qdrun.runner.engine.session, qdrun.runner.api
from qdrun.runner import load, submit
print(submit.__module__, load.__module__, "ray" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["qdrun.runner.api", "qdrun.runner.api", "False"]
    assert json.dumps(sorted(__import__("qdrun.runner", fromlist=["x"]).__all__)) == '["Results", "load", "plan", "submit"]'


@pytest.mark.slow
def test_the_script_of_the_docs_runs(one_worker, tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[2] / "docs" / "running-sweeps.md").read_text(encoding="utf-8")
    for name in ("sweep.py", "throws.yaml"):
        (tmp_path / name).write_text(re.search(rf"^```\w+ file={name}\n(.*?)^```", page, re.S | re.M)[1])
    monkeypatch.chdir(tmp_path)
    exec(compile((tmp_path / "sweep.py").read_text(), "sweep.py", "exec"), {"__name__": "page"})
    assert capsys.readouterr().out.splitlines() == ["100.0 done ()", "1000.0 done ()"]


def test_waiting_looks_at_a_large_journal_less_often(monkeypatch):
    """It would read, and parse, all the time; a tenth of it is enough."""
    clock, states, sleeps = [0.0], iter(["running", "running", "running", "done"]), []
    costs = iter([0.0, 0.0625, 2.0, 2.0])

    class Reader:
        def __init__(self, folder): ...

        def look(self):
            clock[0] += next(costs)

    monkeypatch.setattr(status, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(status, "Replayer", Reader)
    monkeypatch.setattr(status, "run_state", lambda folder, found: next(states))
    status.wait(None, 1.0, sleeps.append)
    assert sleeps == [1.0, 1.0, 20.0]
