"""Jobs whose time steps solve linear systems and fixed points, and jobs with ``no_grad`` kernels: planned bytes, gradients, batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import Field

import qdrun as qd
from qdrun.jobs.base import Job, JobParams, execute
from qdrun.jobs.core.batch import BatchSession, why_not_batched
from qdrun.jobs.core.session import Session
from qdrun.jobs.planning.batch_plan import batch_plan

N = 6


class ImplicitParams(JobParams):
    steps: int = 12
    k: list[float] = Field(default=[0.3, 0.9, 0.5, 0.7, 0.4, 0.6])
    start: float = 1.0


class Heat(Job[ImplicitParams]):
    """Backward Euler of a ring: ``(1 + k) u - 0.05 (neighbours) = x + 0.3 sin x``, by conjugate gradients."""

    gradients = ("k", "start")

    def time_steps(self) -> int:
        return self.params.steps

    def build(self) -> None:
        steps = self.window
        self.x = qd.field(qd.f64, (steps + 1, N), needs_grad=True)
        self.b, self.u = (qd.field(qd.f64, N, needs_grad=True) for _ in range(2))
        k, start, loss, x, b, u = self.input("k"), self.input("start"), self.objective(), self.x, self.b, self.u

        @qd.kernel
        def begin():
            for i in range(N):
                x[0, i] = start[None] * (i - 2.5)

        @qd.kernel
        def product(v: qd.template(), out: qd.template()):
            for i in v:
                out[i] = (1 + k[i]) * v[i] - 0.05 * (v[(i + 1) % N] + v[(i + N - 1) % N])

        @qd.kernel
        def take(s: qd.i32):
            for i in range(N):
                b[i] = x[s, i] + 0.3 * qd.sin(x[s, i])

        @qd.kernel
        def give(s: qd.i32):
            for i in range(N):
                x[s + 1, i] = u[i]

        @qd.kernel
        def measure(s: qd.i32):
            for i in range(N):
                loss[None] += (i + 1) * x[s, i] ** 2

        self.begin, self.take, self.give, self.measure = begin, take, give, measure
        self.operator = qd.linalg.LinearOperator(product)

    def state(self) -> list[Any]:
        return [self.x]

    def temporaries(self) -> list[Any]:
        return [self.b, self.u]

    def step(self, t: int, s: int) -> None:
        self.take(s)
        self.solve(s)
        self.give(s)

    def solve(self, s: int) -> None:
        qd.linalg.MatrixFreeCG(self.operator, self.b, self.u, tol=1e-13)

    def simulate(self) -> None:
        self.begin()
        self.time_loop(self.step)
        self.measure(min(self.window, self.params.steps))


class Relaxed(Heat):
    """The same by a fixed point, Jacobi's iteration, with an array that only its step uses."""

    def build(self) -> None:
        super().build()
        self.new, self.near = (qd.field(qd.f64, N, needs_grad=True) for _ in range(2))
        k, b, u, new, near = self.declared.inputs["k"], self.b, self.u, self.new, self.near

        @qd.kernel
        def neighbours():
            for i in range(N):
                near[i] = 0.05 * (u[(i + 1) % N] + u[(i + N - 1) % N])

        @qd.kernel
        def relax():
            for i in range(N):
                new[i] = (b[i] + near[i]) / (1 + k[i])

        self.neighbours, self.relax = neighbours, relax

    def temporaries(self) -> list[Any]:
        return [self.b, self.u, self.new, self.near]

    def solve(self, s: int) -> None:
        def iterate() -> None:
            self.neighbours()
            self.relax()

        qd.ad.fixed_point(iterate, self.u, self.new, rtol=1e-14)


def closed(p: ImplicitParams) -> float:
    ring = np.roll(np.eye(N), 1, 0)
    inverse = np.linalg.inv(np.diag(1 + np.array(p.k)) - 0.05 * (ring + ring.T))
    x = p.start * (np.arange(N) - 2.5)
    for _ in range(p.steps):
        x = inverse @ (x + 0.3 * np.sin(x))
    return float((np.arange(1, N + 1) * x**2).sum())


def differences(p: ImplicitParams) -> dict[str, Any]:
    h = 1e-6
    moved = [[p.model_copy(update={"k": [v + s * h * (i == j) for j, v in enumerate(p.k)]}) for s in (1, -1)] for i in range(N)]
    start = [p.model_copy(update={"start": p.start + s * h}) for s in (1, -1)]
    at = [(closed(up) - closed(down)) / (2 * h) for up, down in [*moved, start]]
    return {"k": at[:N], "start": at[N]}


@pytest.mark.parametrize("job", [Heat, Relaxed])
@pytest.mark.parametrize("percent", [100, 60])
def test_implicit_steps_run_in_the_bytes_of_their_plan(job, percent):
    params = ImplicitParams(steps=40)
    full = execute(job(params), backend="cpu", threads=1, memory_limit_bytes=None)
    budget = None if percent == 100 else full.peak_bytes * percent // 100
    made = job(params)
    done = execute(made, backend="cpu", threads=1, memory_limit_bytes=None, memory_budget_bytes=budget)
    assert (made.window < params.steps) == (budget is not None) and (budget is None or done.peak_bytes <= budget)
    assert done.plan.of_program() == done.used and done.plan.bytes == done.peak_bytes
    assert any(e.kind == "snapshots" and e.source == "simulate()" for e in done.plan.entries)
    np.testing.assert_allclose(done.outcome.loss, closed(params), rtol=1e-10)
    for name, expected in differences(params).items():
        np.testing.assert_allclose(done.outcome.gradients[name], expected, rtol=1e-6, atol=1e-8)
    np.testing.assert_array_equal(done.outcome.gradients["k"], full.outcome.gradients["k"])


def test_a_run_again_and_a_batch_give_what_trials_give_alone():
    rng = np.random.default_rng(0)
    params = [ImplicitParams(k=rng.uniform(0.2, 1, N).tolist(), start=float(rng.uniform(0.5, 2))) for _ in range(3)]
    assert why_not_batched(Heat, params[0]) == ""
    with Session(Heat(params[0]), backend="cpu", threads=1) as session:
        again = [session.run(p) for p in params]
        assert session.builds == 1
        assert session.job.launched().startswith("one by one: ")  # how often a solver iterates is not known before
    with BatchSession.open(Heat, params[0], 3, threads=2) as batch:
        together = batch.run(params)
        batch.measure()
        assert batch_plan(Heat, params[0], threads=2).bytes(3) == batch.peak_bytes
    assert not together.errors
    for k, p in enumerate(params):
        for found in (again[k], together.row(k)):
            np.testing.assert_allclose(found.loss, closed(p), rtol=1e-10)
            for name, expected in differences(p).items():
                np.testing.assert_allclose(found.gradients[name], expected, rtol=1e-6, atol=1e-8)


class Sparse(Heat):
    """A solver that makes arrays."""

    def build(self) -> None:
        super().build()
        self.right = qd.ndarray(qd.f64, N, needs_grad=True)

    def solve(self, s: int) -> None:
        places = qd.ndarray(qd.i32, N)
        values = qd.ndarray(qd.f64, N)
        del places, values
        qd.linalg.SparseSolver(qd.f64).solve(self.right)


def test_a_solver_that_makes_arrays_is_refused_by_name():
    made = Sparse(ImplicitParams())
    match = r"SparseSolver\.solve in Sparse\.simulate: it makes arrays, and no plan would count their bytes(.|\n)*MatrixFreeCG"
    with made.opened(backend="cpu"), pytest.raises(qd.QdrunRuntimeError, match=match):
        made.plan()
    assert "SparseSolver.solve in Sparse.simulate" in why_not_batched(Sparse, ImplicitParams())


class Counted(Job[ImplicitParams]):
    """A kernel and a function that are hidden from the tape; the kernel also runs seen."""

    gradients = ("start",)

    def build(self) -> None:
        start, loss, count = self.input("start"), self.objective(), self.output("count")
        x = qd.field(qd.f64, (), needs_grad=True)
        y = qd.field(qd.f64, (), needs_grad=True)

        @qd.ad.no_grad
        @qd.kernel
        def frozen():
            for i in range(3):
                x[None] += start[None] * (i + 1)

        @qd.kernel
        def square(out: qd.template()):
            out[None] += start[None] ** 2

        @qd.kernel
        def add():
            count[None] += 1.0
            loss[None] += start[None] * x[None] * y[None]

        self.frozen, self.square, self.add, self.x, self.y = frozen, square, add, x, y
        self.hidden = qd.ad.no_grad(lambda: square(x))

    def simulate(self) -> None:
        self.frozen()
        self.hidden()
        self.square(self.y)
        self.add()


def test_no_grad_kernels_run_in_jobs_and_count_as_constants():
    for start in (0.7, 1.3):
        done = execute(Counted(ImplicitParams(start=start)), backend="cpu", threads=1, memory_limit_bytes=None)
        constant = 6 * start + start**2
        np.testing.assert_allclose(done.outcome.loss, start * constant * start**2, rtol=1e-13)
        np.testing.assert_allclose(done.outcome.gradients["start"], 3 * start**2 * constant, rtol=1e-13)
        assert done.plan.of_program() == done.used
    assert why_not_batched(Counted, ImplicitParams()) == ""
    with BatchSession.open(Counted, ImplicitParams(), 2, threads=1) as batch:
        rows = batch.run([ImplicitParams(start=0.7), ImplicitParams(start=1.3)])
    np.testing.assert_allclose(rows.row(1).gradients["start"], 3 * 1.3**2 * (6 * 1.3 + 1.3**2), rtol=1e-13)


def test_a_job_that_also_runs_without_gradients_runs_again():
    """A solver launches more where a gradient is wanted: the two are kept apart."""
    job = Heat(ImplicitParams())
    with job.opened(backend="cpu", threads=1):
        for wanted in (("k", "start"), (), ("k",)):
            job.wanted = wanted
            job.run()
            assert job.why_built_again() == ""
            assert bool(job.allocates()) == bool(wanted)
