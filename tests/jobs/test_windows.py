"""Jobs under a memory budget: a window of time steps and snapshots; the results are those without a budget, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import Field

import qdrun as qd
from qdrun.jobs.base import Job, JobParams, Outcome, execute
from qdrun.jobs.mass_spring import MassSpring, MassSpringParams
from qdrun.jobs.mpm88 import Mpm88, Mpm88Params

JOBS = {
    "mass_spring": MassSpring(MassSpringParams(steps=80, substeps=40)),
    "mpm88": Mpm88(Mpm88Params(particles=36, steps=40)),
}


def run(job, budget=None, wanted=None, threads=1):
    again = type(job)(job.params, wanted=wanted)
    return again, execute(again, backend="cpu", threads=threads, memory_limit_bytes=None, memory_budget_bytes=budget)


def same(done, full):
    """The same bits, but on a GPU, where threads add in any order."""
    found, expected = ({"loss": x.outcome.loss, **x.outcome.gradients, **x.outcome.outputs} for x in (done, full))
    tolerance = 0.0 if full.device.startswith(("cpu", "emulated")) else 1e-11
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=tolerance, atol=tolerance * np.max(np.abs(value)), err_msg=name)


@pytest.mark.parametrize("percent", [100, 50, *(pytest.param(p, marks=pytest.mark.slow) for p in (25, 10))])
@pytest.mark.parametrize("name", JOBS)
def test_a_part_of_the_memory_gives_the_same_bits(name, percent):
    _, full = run(JOBS[name])
    budget = full.peak_bytes * percent // 100
    job, done = run(JOBS[name], budget)
    assert done.peak_bytes <= budget
    assert done.plan.bytes == done.peak_bytes
    assert done.plan.of_program() == done.used
    same(done, full)
    assert (job.window == job.time_steps()) == (percent == 100)
    assert ("snapshots" in done.used) == (percent < 100)


@pytest.mark.parametrize("name", JOBS)
def test_the_smallest_budget_works_and_less_is_refused(name):
    with pytest.raises(qd.OutOfMemory, match="time steps do not fit a budget of 1,000 bytes") as error:
        run(JOBS[name], 1000)
    smallest = error.value.smallest
    assert smallest is not None and f"do: memory_budget: {smallest}, fewer steps" in str(error.value)
    job, done = run(JOBS[name], smallest)
    assert done.peak_bytes <= smallest and job.window == 1
    same(done, run(JOBS[name])[1])
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


@pytest.mark.parametrize("steps", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_few_steps(steps):
    job = Mpm88(Mpm88Params(particles=9, grid=10, steps=steps))
    _, full = run(job)
    _, done = run(job, max(full.peak_bytes * 2 // 3, 40_000))
    same(done, full)


@pytest.mark.slow
def test_a_job_plans_again_for_each_budget_and_shape():
    _, full = run(JOBS["mpm88"])
    windows = [run(JOBS["mpm88"], full.peak_bytes * percent // 100)[0].window for percent in (60, 30, 60)]
    assert windows[0] == windows[2] > windows[1]
    job = Mpm88(Mpm88Params(particles=36, steps=80))
    assert run(job, full.peak_bytes)[0].window < 80


class DriftParams(JobParams):
    steps: int = Field(50, ge=1, description="time steps")
    pull: float = Field(0.4, description="pull to zero")


class Drift(Job[DriftParams]):
    """Steps that write a loss and a log beside their state."""

    gradients = ("pull",)

    def build(self) -> None:
        self.x = qd.field(qd.f64, shape=(self.window + 1, 4), needs_grad=True)
        self.pull = qd.field(qd.f64, shape=(), needs_grad=True)
        self.loss = qd.field(qd.f64, shape=(), needs_grad=True)
        self.log = qd.field(qd.f32, shape=self.params.steps)
        self.pull[None] = self.params.pull
        x, pull, loss, log = self.x, self.pull, self.loss, self.log

        @qd.kernel
        def move(t: qd.i32, k: qd.i32):
            for i in range(4):
                x[k + 1, i] = x[k, i] + 0.1 * qd.cos(t + i) - pull[None] * qd.sin(x[k, i])
                loss[None] += x[k + 1, i] ** 2
            log[t] = qd.cast(x[k + 1, 0], qd.f32)

        self.move = move

    def time_steps(self):
        return self.params.steps

    def state(self):
        return [self.x]

    def logs(self):
        return [self.loss, self.log]

    def launches(self):
        return [(self.move, (0, 0))]

    def run(self) -> Outcome:
        with qd.ad.Tape(loss=self.loss):
            qd.ad.checkpointed_steps(self.move, self.params.steps, self.state(), budget=self.snapshot_bytes)
        return Outcome(self.loss[None], {"pull": float(self.pull.grad[None])}, {"log": self.log.to_numpy()})


@pytest.mark.parametrize("percent", [100, 70, 50])
def test_copies_of_what_the_steps_write_elsewhere_are_planned(percent):
    _, full = run(Drift(DriftParams()))
    _, done = run(Drift(DriftParams()), full.peak_bytes * percent // 100)
    assert done.plan.bytes == done.peak_bytes <= full.peak_bytes * percent // 100
    assert done.plan.of_program() == done.used
    same(done, full)
    copies = [entry.bytes for entry in done.plan.entries if entry.source == "logs()"]
    assert copies == ([] if percent == 100 else [8 + 50 * 4])


def test_the_smallest_budget_counts_these_copies():
    with pytest.raises(qd.OutOfMemory) as error:
        run(Drift(DriftParams()), 500)
    assert error.value.smallest is not None
    _, done = run(Drift(DriftParams()), error.value.smallest)
    assert done.plan.bytes == done.peak_bytes <= error.value.smallest
