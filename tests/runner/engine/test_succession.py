"""Programs that stay open from lease to lease, through the whole loop: fewer are built, and nothing else changes."""

import time

import pytest

from qdrun.runner.engine import start
from qdrun.runner.ledger import Ledger
from qdrun.runner.observe.table import rows
from qdrun.runner.workers import Worker

from .local import ThreadWorkers, run_config
from .test_elastic import config_of, cpu, launches, planned

LANES = 2


@pytest.fixture(autouse=True)
def one_trial_a_lease(monkeypatch):
    """As for long trials."""
    monkeypatch.setattr(Ledger, "_more", lambda self, *request: 0)


@pytest.fixture
def threads(monkeypatch):
    """Workers in threads of this process."""
    monkeypatch.setattr(start, "RayWorkers", ThreadWorkers)


@pytest.fixture(params=["threads", pytest.param("local_ray", marks=pytest.mark.slow)])
def workers(request):
    """Workers in threads, and as processes of Ray."""
    request.getfixturevalue(request.param)


def run(tmp_path, name, sweep, *, found=None, log=True):
    """The rows of a run by the trials' parameters, its folder, and the programs that lanes have built."""
    folder = tmp_path / name
    folder.mkdir()
    built = folder / "built"
    params = {"inner": 2000, **({"log": str(built)} if log else {})}
    config = config_of(folder, job="Live", params=params, sweep=sweep)
    state, run_folder, _ = run_config(config, found=[found or cpu(1 << 30, lanes=LANES)])
    assert state == "done"
    out = {
        (row["param.cells"], row["param.start"]): (row["loss"], row["grad.start"], row["used_bytes"])
        for row in rows(run_folder)
    }
    lines = built.read_text().splitlines() if log else []
    return out, run_folder, [line for line in lines if " lane " in line]


def test_each_lane_builds_one_program_for_all_trials_of_one_shape(workers, tmp_path, monkeypatch):
    sweep = {"cells": [4], "start": {"linspace": [0.1, 0.9, 12]}}
    kept, _, built = run(tmp_path, "kept", sweep)
    assert len(kept) == 12 and len(built) <= LANES + 1  # the first may have found no other that waits
    monkeypatch.setattr(start, "keeps_programs", lambda prepared: False)
    alone, _, built = run(tmp_path, "alone", sweep)
    assert len(built) == 12 and alone == kept


def test_a_kept_program_goes_before_its_bytes_are_given_to_another_shape(threads, tmp_path, monkeypatch):
    """Two shapes on a host of two lanes that has room for one trial: what is kept of the one is let go first."""
    seen, most = {}, []
    sweep = {"cells": [4, 4000], "start": {"linspace": [0.1, 0.9, 5]}}
    config = config_of(tmp_path, job="Live", params={"inner": 2000}, sweep=sweep)
    _, groups = planned(config)
    room = max(group.plan.bytes for group, _ in groups) + 1000
    take = Worker._attempt

    def attempt(self, lane, batch, trial):
        seen[id(self)] = self._lanes.all
        others = [one for lanes in seen.values() for one in lanes if one is not lane]
        most.append(batch.claim_bytes + sum(sum(one.held().values()) for one in others))
        return take(self, lane, batch, trial)

    def let_go(self, lease):
        time.sleep(0.3)  # somebody who does not wait for it has begun by then
        go(self, lease)

    go = Worker.let_go
    monkeypatch.setattr(Worker, "_attempt", attempt)
    monkeypatch.setattr(Worker, "let_go", let_go)
    out, folder, built = run(tmp_path, "mixed", sweep, found=cpu(room, lanes=LANES))
    assert len(out) == len(most) == 10 and len(built) < 10
    assert max(most) <= room and max(launches(folder)[1].values()) <= room
