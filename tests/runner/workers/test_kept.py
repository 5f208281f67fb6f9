"""Trials in one lease: rows as those of trials alone, to the bit; of a job that declares its inputs in one program."""

import gc
import random
import re
from pathlib import Path

import pytest
from jobs_for_keeping import MOODS
from lane_helpers import HERE, at_once, record

from qdrun.compiler.program.program import _programs
from qdrun.jobs.base import Session
from qdrun.runner.store.attempts import Attempt
from qdrun.runner.study.target import load, resolve
from qdrun.runner.workers import BatchColumns, BatchSpec

SAME = ("status", "loss", "gradients", "gradient_norm", "outputs", "planned", "planned_bytes", "used", "used_bytes", "failure")
BACKENDS = [("cpu", None), pytest.param("cuda", "emulated", marks=pytest.mark.slow)]
ROBOT, CHANCE = "qdrun.jobs.mass_spring", "jobs_for_keeping.py"
DESCENT = {"rule": "adam", "steps": 3, "learning_rate": 0.05, "params": ["k"]}


@pytest.fixture
def builds(monkeypatch):
    """How often a job was built so far, in whatever lane."""
    made, original = [], Session._build

    def build(session):
        made.append(session.job)
        original(session)

    monkeypatch.setattr(Session, "_build", build)
    return made


def batch(name, params, seed=0, lease="lease", optimize=None, **more):
    return BatchSpec(lease, (name,), (1,), BatchColumns(params, {}, [seed], optimize), **more)


TRIAL = re.compile(r"trial (?:kept|alone)\d+-\d+")


def numbers(found):
    message = (found.get("error") or {}).get("message")
    shown = {name: found.get(name) for name in SAME} | {"error": message and TRIAL.sub("trial ..", message)}
    return {name: repr(value) for name, value in shown.items()}  # every bit of a float, and NaN is NaN


def printed(bench, name):
    folder = bench.folder.path / Attempt(name, 1, bench.owner.number).folder
    return [path.read_text() if (path := folder / f"{stream}.log").exists() else "" for stream in ("stdout", "stderr")]


def open_programs():
    gc.collect()
    return sum(not program.closed for program in _programs)


def lease(worker, batches):
    return [record(end) for news in worker.run_all(batches) for end in news.ends]


def both(bench, worker, given):
    """Records of trials in one lease, and of the same trials each in a call of its own; what they print is compared here."""
    kept = lease(worker, [batch(f"kept{id(given)}-{k}", *args, **more) for k, (args, more) in enumerate(given)])
    alone = [record(worker.run(batch(f"alone{id(given)}-{k}", *args, **more))) for k, (args, more) in enumerate(given)]
    for k in range(len(given)):
        assert printed(bench, f"kept{id(given)}-{k}") == printed(bench, f"alone{id(given)}-{k}"), given[k]
    return kept, alone


def the_same(kept, alone, given):
    for k, (one, other) in enumerate(zip(kept, alone, strict=True)):
        assert numbers(one) == numbers(other), (k, given[k])


@pytest.mark.filterwarnings("ignore::qdrun.compiler.errors.GradientWarning")
@pytest.mark.parametrize(("backend", "which"), BACKENDS)
def test_random_trials_in_one_lease_give_the_rows_of_trials_alone(bench, backend, which):
    """Every order of shapes, moods, seeds, live values, data-dependent loops, optimisations, budgets and claims, on two lanes."""
    rng = random.Random(0)
    worker = bench.worker("Chance", target=CHANCE, gradients=["k", "x"], lanes=2, backend=backend, which=which)
    moods = [m for m in MOODS if which is None or m != "change the context"]

    def trials(count):
        shape, out = {}, []
        for _ in range(count):
            if not shape or rng.random() < 0.25:
                shape = {"n": rng.choice([3, 6]), "tilt": rng.choice([0.0, -0.0, 0.5]), "mood": rng.choice(moods)}
                more = rng.choice([{}, {}, {"budget_bytes": 1 << 16}, {"claim_bytes": 1 << 20}])
            params = shape | {"k": rng.choice([0.5, 1.0, 1.5]), "turns": rng.choice([2.0, 9.0, 40.0])}
            descent = {"optimize": DESCENT} if rng.random() < 0.3 else {}
            out.append(((params, rng.randrange(5)), more | descent))
        return out

    mine = trials(14), trials(14)
    for given, (kept, alone) in zip(mine, at_once(*(lambda g=g: both(bench, worker, g) for g in mine)), strict=True):
        the_same(kept, alone, given)
    assert not worker.progress().retire


def sweep(key, values, **params):
    return [((params | {key: value}, k), {}) for k, value in enumerate(values)]


def test_trials_of_a_job_that_declares_its_inputs_run_in_one_program_within_a_lease(bench, builds):
    worker = bench.worker("MassSpring", target=ROBOT, gradients=["stiffness"], lanes=1)
    given = sweep("stiffness", [900.0, 500.0, 900.0, 1200.0], steps=24)
    kept, alone = both(bench, worker, given)
    the_same(kept, alone, given)
    assert all(found["status"] == "done" for found in kept)
    assert len(builds) == 1 + 4


@pytest.mark.filterwarnings("ignore::qdrun.compiler.errors.GradientWarning")
@pytest.mark.parametrize("mood", MOODS)
def test_a_job_with_a_run_of_its_own_is_built_for_every_trial(bench, builds, mood):
    worker = bench.worker("Chance", target=CHANCE, gradients=["k", "x"], lanes=1)
    given = [(({"mood": mood, "k": k}, seed), {}) for seed, k in ((3, 1.0), (3, 2.0), (4, 1.0))]
    kept, alone = both(bench, worker, given)
    the_same(kept, alone, given)
    assert len(builds) == 6


def test_random_numbers_begin_again_with_each_trial(bench):
    worker = bench.worker("Chance", target=CHANCE, gradients=["k"], lanes=1)
    first, second, other = lease(worker, [batch(f"t{k}", {}, seed) for k, seed in enumerate((5, 5, 6))])
    assert numbers(first) == numbers(second) != numbers(other)


def test_a_trial_of_other_options_limits_or_gradients_gets_a_program_of_its_own(bench, builds, monkeypatch):
    worker = bench.worker("MassSpring", target=ROBOT, gradients=["stiffness"], lanes=1)
    ways = [{}, {"claim_bytes": 1 << 22}, {"threads": 2}, {"memory_limit_bytes": 1 << 23}, {"gradients": ["actuation"]}]
    params = [{"steps": 8, "stiffness": 500.0 + n} for n in range(2)]
    batches = [batch(f"t{k}-{n}", one) for k in range(len(ways)) for n, one in enumerate(params)]
    spec_of = worker._spec_of
    claimed = lambda one, claim_bytes=None, **way: spec_of(one._replace(claim_bytes=claim_bytes)) | way
    monkeypatch.setattr(worker, "_spec_of", lambda one: claimed(one, **ways[int(one.trials[0][1])]))
    kept = lease(worker, batches)
    assert [found["status"] for found in kept] == ["done"] * 10
    assert len(builds) == len(ways)
    assert list(kept[-1]["gradients"]) == ["actuation"]


def test_a_program_is_closed_at_the_end_of_its_call_and_before_another_is_built(bench, monkeypatch):
    worker = bench.worker("MassSpring", target=ROBOT, gradients=["stiffness"], lanes=1)
    before, found, original = open_programs(), [], Session._build

    def build(session):
        found.append(open_programs())
        original(session)

    monkeypatch.setattr(Session, "_build", build)
    lease(worker, [batch(f"t{steps}", {"steps": steps}) for steps in (4, 5)])
    assert found == [before] * 2 and open_programs() == before and worker._lanes.held() == 0


@pytest.mark.parametrize("first", [True, False], ids=["before its first kernel", "later"])
def test_a_job_whose_file_is_edited_runs_with_what_was_loaded(tmp_path, first):
    text = Path(HERE, CHANCE).read_text()

    def jobs(name):
        (tmp_path / name).write_text(text)
        return load(resolve(f"{name}:Chance", tmp_path))

    def loss(job):
        with job(job.Params()).opened(threads=1) as made:
            return made.run().loss

    expected, job = loss(jobs("other.py")), jobs("edited.py")
    assert first or loss(job) == expected
    text = "import os\n" + text.replace("0.1 * qd.sin", "0.7 * qd.sin")
    (tmp_path / "edited.py").write_text(text)
    assert loss(job) == expected != loss(jobs("edited.py"))
    assert loss(job) == expected
