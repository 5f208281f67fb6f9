"""Trials get their ids, their seeds and their lines in blocks, while the first ones run already."""

import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from runner_helpers import write_config

from qdrun.runner import submit
from qdrun.runner.engine.resume import resume
from qdrun.runner.observe.listing import table_of
from qdrun.runner.observe.report.document import write_report
from qdrun.runner.store.files import StorageFull
from qdrun.runner.store.follower import read
from qdrun.runner.store.layout import RunFolder, create
from qdrun.runner.store.replay import Replayer
from qdrun.runner.store.status import status
from qdrun.runner.study import trial_list
from qdrun.runner.study.prepare import prepare
from qdrun.runner.study.trial_list import SameId, TrialNames
from qdrun.runner.study.trials import trial_id, trial_seed

RANDOM = """version: 1
name: blocks
job: {target: "qdrun.jobs.mass_spring:MassSpring", params: {steps: 6}}
gradients: [stiffness]
device: {backend: cpu}
sweep: {method: random, samples: 29, seed: 5, params: {stiffness: {uniform: [300, 900]}}}
"""
SHAPES = RANDOM.replace("samples: 29, seed: 5,", "samples: 13, seed: 5, repeat: 2,").replace(
    "params: {stiffness", "params: {steps: [4, 5, 6], stiffness"
)
TABLE = RANDOM.replace(
    "{method: random, samples: 29, seed: 5, params: {stiffness: {uniform: [300, 900]}}}", "{table: {file: t.csv}, method: list}"
)
FACTS = ("trial", "index", "replicate", "seed", "status", "param.stiffness", "param.steps", "loss", "attempts")


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(trial_list, "BLOCK", 4)


def made(tmp_path, text=RANDOM):
    """A prepared sweep, and the folder of a run of which the first block is written."""
    prepared, _ = prepare(write_config(tmp_path, text=text + f"storage: {tmp_path}/runs\n"))
    prepared.trials.names.later = prepared.may_list_later
    return prepared, create(prepared, tmp_path / "runs")


@pytest.mark.parametrize("text", [RANDOM, SHAPES])
def test_ids_and_seeds_of_blocks_are_those_of_each_trial_whoever_asks_first(tmp_path, small, text):
    trials = prepare(write_config(tmp_path, text=text))[0].trials
    threads = [threading.Thread(target=trials.ids.__getitem__, args=(place,)) for place in (17, 3, 25, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(trials.names.made_ids) == 28 < len(trials) or len(trials) == 26
    assert list(trials.ids) == [trial_id(trial.params, trial.replicate) for trial in trials] == trials.ids[:]
    assert list(trials.seeds) == [trial_seed(5, name) for name in trials.ids] and trials.ids[-1] == trials[-1].id
    assert trials.ids == list(trials.ids) and trials.ids != [] and trials.ids_at(range(2, 5)) == trials.ids_at((2, 3, 4))


def test_two_trials_with_one_id_are_refused():
    names = TrialNames(4, lambda start, stop: (["a", "b", "a", "c"][start:stop], [1, 2, 3, 4][start:stop]))
    with pytest.raises(SameId, match=r"trials 0 and 2 of the sweep have the same id, a,"):
        names.before(1)


def test_who_asks_for_an_id_does_not_wait_for_a_store_that_stalls(small):
    names = TrialNames(10, lambda start, stop: ([f"id{k}" for k in range(start, stop)], range(start, stop)))
    stalls, goes_on, written = threading.Event(), threading.Event(), list[int]()

    def write():
        stalls.set()
        goes_on.wait(60)
        written.append(len(names.made_ids))
        return True

    names.write = write
    names.begin()
    assert stalls.wait(60)
    asked = threading.Thread(target=names.ids.__getitem__, args=(9,), daemon=True)
    asked.start()
    asked.join(30)
    assert not asked.is_alive() and names.ids[9] == "id9" and not written
    goes_on.set()
    assert names.finish() and written[-1] == 10


def test_while_blocks_are_to_come_all_trials_are_counted_and_nothing_is_damaged(tmp_path, small):
    prepared, folder = made(tmp_path)
    reader = Replayer(folder)
    assert folder.files.read("trials.jsonl").count(b"\n") == 1
    state = reader.look()
    assert state.counts() == {"waiting": 29} and not state.wrong and state.ids[4:6] == ["line-5", "line-6"]
    assert status(folder)["trials"] == 29 and status(folder)["counts"]["waiting"] == 29
    table = table_of(folder)
    assert table.total == 29 and not table.problems
    assert [row["status"] for part in table.parts() for row in part] == ["waiting"] * 29
    assert "0 of 29" in Path(write_report(folder, tmp_path / "report.html")).read_text()
    assert [trial.id for trial in folder.trials()][:4] == list(prepared.trials.ids[:4])
    assert prepared.trials.listed()
    assert reader.look().ids == list(prepared.trials.ids) and folder.trials() == prepared.trials
    assert folder.trial_ids() == list(prepared.trials.ids) and not table_of(folder).problems


def test_a_block_that_finds_no_room_is_written_with_a_later_one(tmp_path, small, monkeypatch):
    prepared, folder = made(tmp_path)
    full, append = [True], type(folder.files.grow("probe")).append

    def no_room(self, data):
        if full[0] and b'"ids"' in data:
            raise StorageFull("no room left")
        append(self, data)

    monkeypatch.setattr(type(folder.files.grow("other")), "append", no_room)
    assert not prepared.trials.listed() and len(prepared.trials.names.made_ids) == 29
    assert folder.files.read("trials.jsonl").count(b"\n") == 1
    full[0] = False
    assert prepared.trials.listed() and folder.trials() == prepared.trials


@pytest.mark.parametrize("what", ["batch: 2", "batch: auto", "shapes", "table", "off"])
def test_rows_of_many_blocks_are_those_of_one(local_ray, tmp_path, monkeypatch, what):
    text = {"shapes": SHAPES, "table": TABLE}.get(what, RANDOM) + f"storage: {tmp_path}/runs\n"
    text += f"{what}\n" if what.startswith("batch") else "batch: off\n" if what == "off" else ""
    (tmp_path / "t.csv").write_text("stiffness\n" + "".join(f"{300.5 + k}\n" for k in range(17)))
    found = []
    for block in (1 << 15, 3):
        monkeypatch.setattr(trial_list, "BLOCK", block)
        run = submit(write_config(tmp_path, text=text))
        assert run.state == "done" and run.folder.trials() == prepare(write_config(tmp_path, text=text))[0].trials
        found.append([{name: row[name] for name in FACTS} for row in run.rows])
    assert found[0] == found[1] and len(found[0]) in (29, 26, 17)


KILLED = """
import os, signal, sys, time
from pathlib import Path
from qdrun.runner import submit
from qdrun.runner.study import trial_list

trial_list.BLOCK = 4

def two_blocks(self):
    self.before(8)
    self.write()
    while not any(b'"event":"rows"' in path.read_bytes() for path in Path("runs").glob("*/events/*")):
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)

trial_list.TrialNames.finish = two_blocks
submit(sys.argv[1])
"""


@pytest.mark.slow
def test_a_run_that_was_killed_between_two_blocks_is_resumed_and_each_trial_ran_once(local_ray, tmp_path):
    config = write_config(tmp_path, text=RANDOM + "batch: 2\nstorage: runs\n")
    environment = os.environ | {"QDRUN_MACHINE_DIR": str(tmp_path / "machine")}
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(config)], cwd=tmp_path, env=environment, check=False, timeout=300
    )
    assert killed.returncode == -9
    (path,) = (tmp_path / "runs").iterdir()
    folder, trials = RunFolder(path), prepare(config)[0].trials
    listed = 4 * folder.files.read("trials.jsonl").count(b"\n")
    assert 8 <= listed < 29
    assert status(folder)["trials"] == 29 and table_of(folder).total == 29
    (problem,) = table_of(folder).problems
    assert f"trials.jsonl: it ends after trial {listed} of 29" in problem and "qdrun resume" in problem
    assert resume(folder, quiet=True).state == "done"
    assert folder.trials() == trials
    rows = Counter(event["trial"] for event in read(folder).events if event["event"] == "ended")
    assert rows == dict.fromkeys(trials.ids, 1)
    assert [(row["trial"], row["status"]) for part in table_of(folder).parts() for row in part] == [
        (name, "done") for name in trials.ids
    ]
