"""A job with state in place: what its tape keeps is planned to the byte, alone and in a batch, and its gradients are right."""

import numpy as np
import pytest

import qdrun as qd
from qdrun.jobs.base import Job, JobParams, check_gradients, execute

HOW = {"backend": "cpu", "threads": 1, "memory_limit_bytes": None}


class SwingParams(JobParams):
    start: float = 0.8
    stiffness: float = 1.3
    steps: int = 7
    loops: bool = False


class Swing(Job[SwingParams]):
    """A nonlinear spring, whose place and speed are overwritten in each step."""

    gradients = ("start", "stiffness")

    def build(self):
        start, stiffness, loss = self.input("start"), self.input("stiffness"), self.objective()
        x, v = (qd.field(qd.f64, shape=3, needs_grad=True) for _ in range(2))

        @qd.kernel
        def begin():
            for i in x:
                x[i] = start[None] * (i + 1)
                v[i] = 0.0

        @qd.kernel
        def step():
            for i in x:
                v[i] -= 0.1 * stiffness[None] * qd.sin(x[i])
                x[i] += 0.1 * v[i]

        @qd.kernel
        def step_in_loops():
            for i in v:
                v[i] -= 0.1 * stiffness[None] * qd.sin(x[i])
            most = 0.1
            for i in v:
                most += v[i] * v[i]
            for i in x:
                x[i] += 0.1 * v[i] * qd.sqrt(most)
            for i in v:
                v[i] *= 1.0 - 0.1 * x[i] * x[i]

        @qd.kernel
        def measure():
            for i in x:
                loss[None] += x[i] ** 2

        self.begin, self.step, self.measure = begin, step_in_loops if self.params.loops else step, measure

    def simulate(self):
        self.begin()
        for _ in range(self.params.steps):
            self.step()
        self.measure()


@pytest.mark.parametrize("loops", [False, True])
def test_a_job_with_state_in_place_is_planned_to_the_byte(loops):
    params = SwingParams(loops=loops)
    for row in check_gradients(Swing, params):
        assert row.relative_error < 1e-7, row
    done = execute(Swing(params), **HOW)
    planned = {kind: n for kind, n in done.plan.by_kind().items() if n}
    if loops:  # x and v within each step, the sum from one to the next, and all of them at the end
        assert planned["tape"] == 8 * (2 * 3 * 7 + 6 + 7)
        assert planned["parts"] == done.used["parts"] == 3 * 8
    else:
        assert planned["tape"] == 3 * 8 * (7 + 1)
    assert done.plan.bytes == done.peak_bytes
    assert planned["tape"] == done.used["tape"]


@pytest.mark.parametrize("loops", [False, True])
def test_its_budget_counts_what_the_tape_keeps(loops):
    params = SwingParams(loops=loops)
    free = execute(Swing(params), **HOW)
    with pytest.raises(qd.OutOfMemory, match=f"tape {free.used['tape']}") as error:
        execute(Swing(params), memory_budget_bytes=free.plan.bytes - 1, **HOW)
    assert error.value.smallest == free.plan.bytes
    done = execute(Swing(params), memory_budget_bytes=free.plan.bytes, **HOW)
    assert done.peak_bytes == free.plan.bytes and np.isclose(done.outcome.loss, free.outcome.loss)
