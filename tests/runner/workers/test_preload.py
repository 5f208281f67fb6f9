"""Code of all shapes of a run is loaded before the first trial: later none makes the other lanes wait."""

import sys
import threading

import pytest
from lane_helpers import at_once, record

from qdrun.compiler.runtime import cache
from qdrun.compiler.runtime.gpu.memory import deferred_release
from qdrun.runner.workers import BatchColumns, BatchSpec
from qdrun.runner.workers.preload import preload
from qdrun.tests.devices.processor.machine import emulated_machine

ROBOT = "qdrun.jobs.mass_spring"
SIZES = (3, 4, 5)


def shape(name, nbytes):
    return BatchSpec("", (name,), (1,), BatchColumns({}, {}, [0]), nbytes)


def loaded(shapes, claimed, then=lambda: None, **limit):
    out = []

    def load(one):
        out.append(one.trials[0])
        then()

    preload(shapes, claimed, load, **limit)
    return out


def test_a_shape_larger_than_what_all_who_wait_have_claimed_is_left_to_its_trial():
    assert loaded([shape("a", 10), shape("c", 31), shape("b", 30)], 30) == ["a", "b"]


def test_a_shape_that_fails_holds_nobody_up():
    assert loaded([shape("a", 10), shape("b", 10)], 10, lambda: sys.exit("no")) == ["a", "b"]


def test_a_build_that_hangs_holds_trials_up_for_a_limited_time():
    hang = threading.Event()
    out = loaded([shape("a", 10), shape("b", 10)], 10, lambda: hang.wait(30), limit_s=0.05)
    hang.set()
    [thread.join(30) for thread in threading.enumerate() if thread.name == "preload"]
    assert out == ["a"], "trials run by now"


@pytest.fixture
def machine(monkeypatch):
    """With nothing loaded by other tests."""
    monkeypatch.setattr(deferred_release, "_devices", {})
    monkeypatch.setattr(cache, "LOADED", cache.CodeTable())
    made = emulated_machine()
    before = made.waits.copy()
    made.waits.clear()
    yield made
    made.waits.clear()
    made.waits.update(before)


def trial(name, columns, claim=1 << 24):
    params = {"columns": columns, "steps": 4, "actuation": [0.1] * columns}
    return BatchSpec(f"lease of {name}", (name,), (1,), BatchColumns(params, {}, [0]), claim)


@pytest.mark.slow
def test_trials_of_all_shapes_load_nothing_once_the_first_has_begun(bench, machine):
    shapes = tuple(trial(f"s{n}", n, 1 << 20) for n in SIZES)
    options = {"target": ROBOT, "gradients": ["stiffness"], "backend": "cuda", "which": "emulated"}
    worker = bench.worker("MassSpring", 2, shapes=shapes, **options)
    worker.hello()
    worker.preload(1 << 24)
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
