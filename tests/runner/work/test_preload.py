"""Code of all shapes of a run is loaded before the first trial: later none makes the other lanes wait."""

import threading

import pytest
from lane_helpers import at_once, record

from qdrun.compiler.runtime.cuda import code, shared
from qdrun.compiler.runtime.cuda.emulated_machine import emulated_machine
from qdrun.runner.work import BatchSpec, TrialSpec
from qdrun.runner.work.preload import Preload
from qdrun.runner.work.spec import Shape

ROBOT = "qdrun.jobs.mass_spring"
SIZES = (3, 4, 5)


def shape(name, nbytes):
    return Shape(TrialSpec(name, 1, {}), nbytes)


def test_shapes_are_loaded_once_and_the_smallest_first():
    loaded = []
    preload = Preload([shape("b", 20), shape("a", 10)], lambda one: loaded.append(one.trial.trial))
    preload.before(20)
    preload.before(20)
    assert loaded == ["a", "b"]


def test_a_shape_larger_than_what_all_who_wait_have_claimed_is_left_to_its_trial():
    loaded, first, go = [], threading.Event(), threading.Event()

    def load(one):
        loaded.append(one.trial.trial)
        first.set()
        assert go.wait(30)

    preload = Preload([shape("a", 10), shape("b", 25), shape("c", 31)], load)
    one = threading.Thread(target=preload.before, args=(10,))
    one.start()
    assert first.wait(30)
    other = threading.Thread(target=preload.before, args=(15,))  # 25 in all: b fits while both wait, c does not
    other.start()
    while preload.claimed < 25:
        pass
    assert one.is_alive() and other.is_alive(), "nobody begins before it is over"
    go.set()
    one.join(30)
    other.join(30)
    assert loaded == ["a", "b"]


def test_one_shape_and_one_that_fails_hold_nobody_up():
    def fail(one):
        raise SystemExit(one.trial.trial)

    Preload([shape("a", 10)], fail).before(10)
    Preload([shape("a", 10), shape("b", 10)], fail).before(10)


def test_a_build_that_hangs_holds_trials_up_for_a_limited_time():
    hang, loaded = threading.Event(), []

    def load(one):
        loaded.append(one.trial.trial)
        hang.wait(30)

    preload = Preload([shape("a", 10), shape("b", 10)], load, limit_s=0.05)
    preload.before(20)
    hang.set()
    assert loaded == ["a"]
    preload.before(20)
    assert loaded == ["a"], "trials run by now"


@pytest.fixture
def machine(monkeypatch):
    """With nothing loaded by other tests."""
    monkeypatch.setattr(shared, "_devices", {})
    monkeypatch.setattr(code, "_codes", code.Memo())
    made = emulated_machine()
    before = made.waits.copy()
    made.waits.clear()
    yield made
    made.waits.clear()
    made.waits.update(before)


def trial(name, columns, **more):
    spec = {"params": {"columns": columns, "steps": 4, "actuation": [0.1] * columns}, "seed": 0}
    return BatchSpec(f"lease of {name}", (TrialSpec(name, 1, spec | more),), 1 << 24)


@pytest.mark.slow
def test_trials_of_all_shapes_load_nothing_once_the_first_has_begun(bench, machine):
    shapes = tuple(Shape(trial(f"s{n}", n).trials[0], 1 << 20) for n in SIZES)
    options = {"target": ROBOT, "gradients": ["stiffness"], "backend": "cuda", "which": "emulated"}
    worker = bench.worker("MassSpring", 2, shapes=shapes, **options)
    first = record(worker.run(trial("first", SIZES[0])))
    loads = machine.waits["load_module"]
    assert loads > len(SIZES)
    rows = at_once(*[lambda k=k, n=n: record(worker.run(trial(f"t{k}", n))) for k, n in enumerate((*SIZES, *SIZES))])
    assert {row["status"] for row in (first, *rows)} == {"done"}
    assert machine.waits["load_module"] == loads
    # without it each new shape loads
    other = bench.worker("MassSpring", 2, **options)
    machine.waits.clear()
    assert record(other.run(trial("x", 6)))["status"] == "done"
    assert machine.waits["load_module"] > 0
