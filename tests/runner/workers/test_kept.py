"""A lane that keeps its program from trial to trial: rows as those of trials alone, to the bit, with as few builds as there can be."""

import gc
import random
import re
import threading
from pathlib import Path

import pytest
from jobs_for_keeping import MOODS
from lane_helpers import HERE, at_once, record, wait_for

from qdrun.compiler.program.program import _programs
from qdrun.jobs.base import Session
from qdrun.runner.store.attempts import Attempt
from qdrun.runner.study.target import load, resolve
from qdrun.runner.workers import BatchSpec, TrialSpec

SAME = ("status", "loss", "gradients", "gradient_norm", "outputs", "planned", "planned_bytes", "used", "used_bytes", "failure")
BACKENDS = [("cpu", None), pytest.param("cuda", "emulated", marks=pytest.mark.slow)]
ROBOT, BLOCK, CHANCE = "qdrun.jobs.mass_spring", "qdrun.jobs.mpm88", "jobs_for_keeping.py"
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


def batch(name, params, seed=0, lease="lease", **spec):
    more = {key: spec.pop(key) for key in ("budget_bytes", "claim_bytes", "strict", "keep", "follows") if key in spec}
    return BatchSpec(lease, (TrialSpec(name, 1, {"params": params, "seed": seed} | spec),), **more)


TRIAL = re.compile(r"trial (?:kept|alone)\d+-\d+")


def numbers(found):
    message = (found.get("error") or {}).get("message")
    shown = {name: found.get(name) for name in SAME} | {"error": message and TRIAL.sub("trial ..", message)}
    return {name: repr(value) for name, value in shown.items()}  # every bit of a float, and NaN is NaN


def printed(bench, name):
    folder = bench.folder.path / Attempt(name, 1, bench.owner.number).folder
    return [path.read_text() if (path := folder / f"{stream}.log").exists() else "" for stream in ("stdout", "stderr")]


def lease(worker, batches):
    return [record(end) for news in worker.run_all(batches) for end in news]


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
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_random_trials_in_one_lease_give_the_rows_of_trials_alone(bench, builds, backend, which, seed):
    """Every order of shapes, moods, seeds, live values, data-dependent loops, optimisations, budgets and claims, on two lanes."""
    rng = random.Random(seed)
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
    assert len(builds) < 2 * 28, "some trials ran in the program of the one before"
    assert not worker.progress().retire


def sweep(key, values, **params):
    return [((params | {key: value}, k), {}) for k, value in enumerate(values)]


@pytest.mark.parametrize("budget", [None, 3], ids=["whole", "windows"])
@pytest.mark.parametrize(
    ("job", "module", "params", "key", "values"),
    [
        ("MassSpring", ROBOT, {"steps": 24}, "stiffness", [900.0, 500.0, 900.0, 1200.0]),
        pytest.param(
            "Mpm88",
            BLOCK,
            {"steps": 12, "particles": 16},
            "velocity",
            [[3.0, -1.0], [2.0, 0.0], [2.0, -0.0], [3.0, -1.0]],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["mass_spring", "mpm88"],
)
def test_a_sweep_over_live_parameters_builds_once_a_lease(bench, builds, job, module, params, key, values, budget):
    worker = bench.worker(job, target=module, gradients=["stiffness", key][: 2 - (key == "stiffness")], lanes=1)
    given = sweep(key, values, **params)
    if budget:
        whole = record(worker.run(batch("whole", *given[0][0])))["planned_bytes"]
        given = [(args, {"budget_bytes": whole // budget}) for args, _ in given]
    builds.clear()
    kept, alone = both(bench, worker, given)
    the_same(kept, alone, given)
    assert all(found["status"] == "done" for found in kept)
    assert len(builds) == 1 + len(values)
    if budget:
        assert builds[0].window < params["steps"]


@pytest.mark.filterwarnings("ignore::qdrun.compiler.errors.GradientWarning")
@pytest.mark.parametrize(
    ("made", "trials"),
    [
        (1, [({"k": 1.0}, 0), ({"k": 2.0}, 1), ({"k": 2.0}, 2), ({"k": 2.0, "turns": 30.0}, 3)]),
        (1, [({"mood": "print"}, 0), ({"mood": "print", "k": 3.0}, 1)]),
        (1, [({"mood": "change the context"}, seed) for seed in range(3)]),
        (1, [({"mood": "borrow in build"}, 0), ({"mood": "borrow in build"}, 0)]),
        (2, [({"n": 4}, 0), ({"n": 5}, 0)]),
        (2, [({"tilt": 0.0}, 0), ({"tilt": -0.0}, 0)]),
        (1, [({"mood": "seed in build"}, 3), ({"mood": "seed in build", "k": 2.0}, 3)]),
        (2, [({"mood": "seed in build"}, 3), ({"mood": "seed in build"}, 4)]),
        (2, [({"mood": "print in build"}, 0), ({"mood": "print in build"}, 0)]),
        (2, [({"mood": "leave an array"}, 0), ({"mood": "leave an array"}, 0)]),
        (2, [({"mood": "launch more"}, 0), ({"mood": "launch more"}, 0)]),
        (3, [({"mood": "launch more where k is large", "k": k}, 0) for k in (1.0, 2.0, 2.5, 0.5)]),
        (2, [({"mood": "lose a gradient"}, 0), ({"mood": "lose a gradient"}, 0)]),
        (2, [({"mood": "raise"}, 0), ({"mood": "raise"}, 0)]),
        (2, [({"mood": "nan"}, 0), ({"mood": "nan"}, 0)]),
    ],
    ids=lambda value: (
        None if isinstance(value, int) else " ".join(str(value[0][0].get("mood", sorted(value[0][0])[0])).split())
    ),
)
def test_what_lets_a_program_be_kept_and_what_does_not(bench, builds, made, trials):
    worker = bench.worker("Chance", target=CHANCE, gradients=["k", "x"], lanes=1)
    given = [(args, {}) for args in trials]
    kept, alone = both(bench, worker, given)
    the_same(kept, alone, given)
    assert len(builds) == made + len(trials)


def test_a_job_with_an_init_of_its_own_is_built_for_every_trial(bench, builds):
    worker = bench.worker("Wrapped", target=CHANCE, gradients=["k", "x"], lanes=1)
    given = sweep("k", [1.0, 2.0, 3.0])
    the_same(*both(bench, worker, given), given)
    assert len(builds) == 6


def test_a_trial_of_other_options_limits_or_gradients_gets_a_program_of_its_own(bench, builds):
    worker = bench.worker("Chance", target=CHANCE, gradients=["k"], lanes=1)
    ways = [
        {},
        {"claim_bytes": 1 << 20},
        {"budget_bytes": 1 << 18},
        {"threads": 2},
        {"memory_limit_bytes": 1 << 19},
        {"gradients": ["x"]},
    ]
    kept = lease(worker, [batch(f"t{k}-{n}", {"k": 1.0 + n}, **way) for k, way in enumerate(ways) for n in range(2)])
    assert [found["status"] for found in kept] == ["done"] * 12
    assert len(builds) == len(ways)
    assert list(kept[-1]["gradients"]) == ["x"]


def test_random_numbers_begin_again_with_each_trial(bench, builds):
    worker = bench.worker("Chance", target=CHANCE, gradients=["k"], lanes=1)
    first, second, other = lease(worker, [batch(f"t{k}", {}, seed) for k, seed in enumerate((5, 5, 6))])
    assert numbers(first) == numbers(second) != numbers(other)
    assert len(builds) == 1


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


# ---- from one lease to the next


def one(worker, *args, **more):
    """The end of a call of one batch."""
    ends = [end for news in worker.run_all([batch(*args, **more)]) for end in news]
    assert len(ends) == 1
    return ends[0]


def open_programs():
    gc.collect()
    return sum(not program.closed for program in _programs)


def chance(bench, **options):
    return bench.worker("Chance", target=CHANCE, gradients=["k"], **options)


def test_a_lane_keeps_its_program_for_the_lease_that_follows(bench, builds):
    worker, before = chance(bench, lanes=2), open_programs()
    first = one(worker, "a", {"k": 1.0}, lease="l1", keep=True)
    assert first.kept and open_programs() == before + 1
    (state,) = [s for s in worker.progress().lanes if s.phase == "kept"]
    assert (state.lease, state.trial) == ("l1", None) and sum(state.bytes.values()) > 0
    beside = one(worker, "b", {"k": 1.0}, lease="l2")
    assert not beside.kept and record(beside)["lane"] != record(first)["lane"]
    second = one(worker, "c", {"k": 2.0}, 7, lease="l3", follows="l1")
    assert record(second)["lane"] == record(first)["lane"] and not second.kept
    assert len(builds) == 2 and open_programs() == before
    assert {s.phase for s in worker.progress().lanes} == {"idle"}
    assert numbers(record(second)) == numbers(record(one(worker, "d", {"k": 2.0}, 7)))


def test_let_go_closes_the_program_and_frees_the_lane(bench):
    worker, before = chance(bench, lanes=1), open_programs()
    assert one(worker, "a", {}, lease="l1", keep=True).kept
    worker.let_go("another")
    assert open_programs() == before + 1
    worker.let_go("l1")
    assert open_programs() == before and worker._lanes.held() == 0
    worker.let_go("l1")
    assert record(one(worker, "b", {}, lease="l2", follows="l1"))["status"] == "done"  # as any batch: the lane is free


@pytest.mark.slow
def test_many_who_let_go_at_once_all_come_back_when_the_bytes_are_free(bench):
    worker, before = chance(bench, lanes=1), open_programs()
    for _ in range(5):
        assert one(worker, "a", {}, lease="l1", keep=True).kept
        at_once(*[lambda: (worker.let_go("l1"), open_programs() == before or pytest.fail("still open"))] * 4)
        assert record(one(worker, "b", {}, lease="l2"))["status"] == "done"


def test_a_follower_of_another_shape_finds_the_old_program_closed_before_its_own_is_built(bench, builds, monkeypatch):
    worker, before = chance(bench, lanes=1), open_programs()
    assert one(worker, "a", {"n": 3}, lease="l1", keep=True).kept
    found, original = [], Session._build

    def build(session):
        found.append(open_programs())
        original(session)

    monkeypatch.setattr(Session, "_build", build)
    end = one(worker, "b", {"n": 4}, lease="l2", follows="l1", keep=True)
    assert end.kept and found == [before]
    worker.let_go("l2")
    assert open_programs() == before


@pytest.mark.parametrize("mood", ["raise", "nan", "leave an array", "print in build"])
def test_what_cannot_be_kept_is_closed_before_the_end_is_given_out(bench, mood):
    worker, before = chance(bench, lanes=1), open_programs()
    end = one(worker, "a", {"mood": mood}, lease="l1", keep=True)
    assert not end.kept and open_programs() == before
    assert record(one(worker, "b", {}))["status"] == "done"


@pytest.mark.slow
def test_a_lease_that_is_cut_short_keeps_nothing(bench):
    worker, before = chance(bench, lanes=1), open_programs()
    worker.drop([2])
    batches = [batch(name, {})._replace(launch=k, keep=True) for k, name in ((1, "a"), (2, "b"))]
    ends = [end for news in worker.run_all(batches) for end in news]
    assert [(end.begun, end.kept) for end in ends] == [(True, False), (False, False)] and open_programs() == before


def test_a_stop_of_the_last_trial_that_comes_late_does_not_stop_the_next(bench):
    worker = chance(bench, lanes=1)
    assert one(worker, "a", {}, lease="l1", keep=True).kept
    assert not worker.stop("a")
    assert record(one(worker, "b", {}, lease="l2", follows="l1"))["status"] == "done"


@pytest.mark.slow
def test_a_worker_that_is_lost_or_to_be_replaced_closes_what_it_keeps(bench):
    before = open_programs()
    worker = chance(bench, lanes=2)
    assert one(worker, "a", {}, lease="l1", keep=True).kept
    worker._lose("its device is gone")
    wait_for(lambda: open_programs() == before)
    worker.let_go("l1")
    worn = chance(bench, lanes=2, recycle_after=2, recycle_s=0.0)
    assert one(worn, "b", {}, lease="l1", keep=True).kept
    end = one(worn, "c", {}, lease="l2", keep=True)
    assert end.retire and not end.kept
    wait_for(lambda: open_programs() == before)


@pytest.mark.slow
def test_close_ends_a_lane_that_keeps_a_program(bench):
    worker, before = chance(bench, lanes=2), open_programs()
    assert one(worker, "a", {}, lease="l1", keep=True).kept
    assert worker.close(30.0) and open_programs() == before
    worker.let_go("l1")
    assert not [t for t in threading.enumerate() if t.name.startswith("qdrun/") and "lane" in t.name]
