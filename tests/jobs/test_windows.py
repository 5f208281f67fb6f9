"""Jobs under a memory budget: a window of time steps and snapshots; the results are those without a budget, to the bit."""

from __future__ import annotations

import numpy as np
import pytest

import qdrun as qd
from qdrun.jobs.base import execute
from qdrun.jobs.mass_spring import MassSpring, MassSpringParams
from qdrun.jobs.mpm88 import Mpm88, Mpm88Params

JOBS = {
    "mass_spring": MassSpring(MassSpringParams(steps=60, substeps=40)),
    "mpm88": Mpm88(Mpm88Params(particles=36, steps=40)),
}


def run(job, budget=None, wanted=None, threads=1):
    again = type(job)(job.params, wanted=wanted)
    return again, execute(again, backend="cpu", threads=threads, memory_limit_bytes=None, memory_budget_bytes=budget)


def numbers(done):
    parts = {"loss": done.outcome.loss, **done.outcome.gradients, **done.outcome.outputs}
    return {name: np.asarray(value).tobytes() for name, value in parts.items()}


@pytest.mark.parametrize("percent", [100, 50, 25, 10])
@pytest.mark.parametrize("name", JOBS)
def test_a_part_of_the_memory_gives_the_same_bits(name, percent):
    _, full = run(JOBS[name])
    budget = full.peak_bytes * percent // 100
    job, done = run(JOBS[name], budget)
    assert done.peak_bytes <= budget
    assert done.plan.bytes == done.peak_bytes
    assert {k: n for k, n in done.plan.by_kind().items() if n} == done.used
    assert numbers(done) == numbers(full)
    assert (job.window == job.time_steps()) == (percent == 100)
    assert ("snapshots" in done.used) == (percent < 100)


@pytest.mark.parametrize("name", JOBS)
def test_the_smallest_budget_works_and_less_is_refused(name):
    with pytest.raises(qd.OutOfMemory, match="time steps do not fit a budget of 1,000 bytes") as error:
        run(JOBS[name], 1000)
    smallest = error.value.smallest
    assert smallest is not None
    job, done = run(JOBS[name], smallest)
    assert done.peak_bytes <= smallest and job.window == 1
    assert numbers(done) == numbers(run(JOBS[name])[1])
    with pytest.raises(qd.OutOfMemory):
        run(JOBS[name], smallest - 1)


@pytest.mark.parametrize("name", JOBS)
def test_forward_only_needs_no_snapshots(name):
    _, full = run(JOBS[name], wanted=())
    job, done = run(JOBS[name], full.peak_bytes // 4, wanted=())
    assert done.peak_bytes <= full.peak_bytes // 4
    assert done.outcome.loss == full.outcome.loss
    assert 1 < job.window < job.time_steps() and "snapshots" not in done.used


def test_two_threads_fit_and_agree():
    _, full = run(JOBS["mpm88"], threads=2)
    _, done = run(JOBS["mpm88"], full.peak_bytes // 5, threads=2)
    assert done.peak_bytes <= full.peak_bytes // 5
    np.testing.assert_allclose(done.outcome.gradients["velocity"], full.outcome.gradients["velocity"], rtol=1e-9)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_few_steps(steps):
    job = Mpm88(Mpm88Params(particles=9, grid=10, steps=steps))
    _, full = run(job)
    _, done = run(job, max(full.peak_bytes * 2 // 3, 40_000))
    assert numbers(done) == numbers(full)


def test_a_job_plans_again_for_each_budget_and_shape():
    _, full = run(JOBS["mpm88"])
    windows = [run(JOBS["mpm88"], full.peak_bytes * percent // 100)[0].window for percent in (60, 30, 60)]
    assert windows[0] == windows[2] > windows[1]
    job = Mpm88(Mpm88Params(particles=36, steps=80))
    assert run(job, full.peak_bytes)[0].window < 80
