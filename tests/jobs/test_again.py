"""A program that runs one trial after the other, or one batch after the other, gives what each trial gives alone, whatever a run leaves."""

import os

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.runtime import mirror
from qdrun.compiler.runtime.gpu.memory import rows
from qdrun.jobs.base import Job, JobParams, Session, execute
from qdrun.jobs.core.batch import BatchSession

ON_HOST = os.environ["QDRUN_TEST_ARCH"] == "cpu"
HOW = {"backend": "cpu", "threads": 1, "memory_limit_bytes": None}


class MixParams(JobParams):
    scale: float = 1.0
    slopes: list[float] = [0.5, -0.25, 2.0]  # noqa: RUF012
    plan: int = 0
    steps: int = 4


PARTS = ("sum", "in_place", "seeded", "input", "table", "array", "random", "twice", "output", "shape")


class Mix(Job[MixParams]):
    """Launches, drawn by ``plan``, that leave something behind which the next run must not find."""

    gradients = ("scale", "slopes")

    def build(self):
        r = np.random.default_rng(self.params.plan)
        self.parts = [PARTS[k] for k in r.permutation(len(PARTS))[: r.integers(3, len(PARTS) + 1)]]
        self.scale, self.slopes, self.loss = self.input("scale"), self.input("slopes"), self.objective()
        self.total, self.state, self.seeded = (qd.field(qd.f64, n, needs_grad=True) for n in ((), 5, 5))
        self.drawn, self.seen = qd.field(qd.f64, 5), self.output("seen", 3)
        self.table = qd.field(qd.f64, 3, per_trial=False)
        self.array, self.vectors = qd.ndarray(qd.f64, 4), qd.Vector.field(2, qd.f64, 5)
        self.seeded.from_numpy(r.normal(size=5))
        self.drawn.fill(float(r.normal()))
        self.table.from_numpy(r.normal(size=3))
        self.array.from_numpy(r.normal(size=4))
        self.vectors[3] = [0.0, float(r.normal())]
        self.kernels()

    def kernels(self):
        scale, slopes, loss, total, state = self.scale, self.slopes, self.loss, self.total, self.state
        seeded, drawn, seen, table, vectors = self.seeded, self.drawn, self.seen, self.table, self.vectors

        @qd.kernel
        def k_sum(t: qd.i32):
            for i in range(3):
                total[None] += slopes[i] * scale[None] * (t + 1)

        @qd.kernel
        def k_in_place(t: qd.i32):
            for i in state:
                state[i] += scale[None] * (i + t)

        @qd.kernel
        def k_seeded(t: qd.i32):
            for i in seeded:
                seeded[i] += 0.25 * slopes[i % 3]

        @qd.kernel
        def k_input(t: qd.i32):
            for i in range(3):
                drawn[i] = drawn[i] * 0.5 + t
            for i in range(2):
                vectors[i + 2][0] += 1.0

        @qd.kernel
        def k_table(t: qd.i32):
            for i in range(3):
                loss[None] += table[i] * slopes[i] ** 2

        @qd.kernel
        def k_array(a: qd.types.ndarray(dtype=qd.f64, ndim=1), t: qd.i32):
            for i in range(4):
                a[i] = a[i] * 0.5 + i
            loss[None] += 0.0 * t

        @qd.kernel
        def k_random(t: qd.i32):
            for i in range(2):
                drawn[i] += qd.random(qd.f64)

        @qd.kernel
        def k_output(t: qd.i32):
            for i in range(3):
                qd.atomic_max(seen[i], slopes[i] * (t + 1) + scale[None])
                seen[i] += drawn[i] + vectors[3][0] + vectors[3][1]

        @qd.kernel
        def gather():
            for i in range(5):
                loss[None] += seeded[i] * state[i] + 0.125 * drawn[i]
            loss[None] += total[None] ** 2

        @qd.kernel
        def gather_array(a: qd.types.ndarray(dtype=qd.f64, ndim=1)):
            for i in range(4):
                loss[None] += a[i]

        self.by_name = {"sum": k_sum, "in_place": k_in_place, "seeded": k_seeded, "input": k_input, "table": k_table}
        self.by_name |= {"random": k_random, "output": k_output, "twice": k_sum, "shape": k_in_place}
        self.k_array, self.gather, self.gather_array = k_array, gather, gather_array

    def simulate(self):
        for t in range(self.params.steps):
            for part in self.parts:
                if part == "array":
                    self.k_array(self.array, t)
                else:
                    self.by_name[part](t)
        self.gather()
        self.gather_array(self.array)


def numbers(outcome):
    return {"loss": outcome.loss, **outcome.gradients, **outcome.outputs}


def drawn(r, plan):
    return MixParams(scale=float(r.normal()), slopes=r.normal(size=3).tolist(), plan=plan)


@pytest.mark.parametrize("plan", range(24))
def test_runs_in_one_program_give_the_bits_of_runs_alone(plan):
    r = np.random.default_rng(100 + plan)
    with Session(Mix(drawn(r, plan), wanted=(None, ())[plan % 6 == 5]), backend="cpu", threads=1) as session:
        for number in range(4):
            params = drawn(r, plan)
            found = numbers(session.run(params))
            want = numbers(execute(Mix(params, wanted=session.job.wanted), **HOW).outcome)
            assert found.keys() == want.keys()
            for name, value in want.items():
                where = (number, name, session.job.parts)
                if ON_HOST:
                    assert np.asarray(found[name]).tobytes() == np.asarray(value).tobytes(), where
                else:  # threads of a GPU add in any order
                    np.testing.assert_allclose(found[name], value, rtol=1e-12, atol=1e-12, err_msg=str(where))
        (why,) = [one.why for one in session.job._recorded.values()]
        assert session.builds == 1
        assert "draws random numbers" in why if not ON_HOST and "random" in session.job.parts else why == ""
        assert session.job.plan().bytes == session.job.peak_bytes()


ON_CPU = [(plan, {"threads": 2}) for plan in range(24)]
ON_GPU = [pytest.param(plan, {"backend": "cuda", "device": "emulated"}, marks=pytest.mark.slow) for plan in range(2, 8)]
ON_GPU[:1] = [(1, {"backend": "cuda", "device": "emulated"})]


@pytest.mark.parametrize(("plan", "how"), [*ON_CPU, *ON_GPU])
def test_batches_in_one_program_give_what_their_trials_give_alone(plan, how, monkeypatch):
    monkeypatch.setattr(mirror, "SMALL", 256)  # columns are copied as rows
    monkeypatch.setattr(rows, "CHUNK", 500)
    r = np.random.default_rng(200 + plan)
    count = (1, 3, 8, 13)[plan % 4]
    with BatchSession.open(Mix, drawn(r, plan), count, **how) as batch:
        for number in range(3):
            params = [drawn(r, plan) for _ in range(count if number != 1 else max(1, count - 2))]
            outcome = batch.run(params)
            assert not outcome.errors
            alike = 1 if "random" in batch.job.parts else count  # other trials than the first draw other numbers than alone
            for row, one in enumerate(params[:alike]):
                want, found = numbers(execute(Mix(one), **HOW).outcome), numbers(outcome.row(row))
                for name, value in want.items():
                    np.testing.assert_allclose(found[name], value, rtol=1e-11, atol=1e-11, err_msg=f"{number} {row} {name}")
        (recorded,) = batch.job._recorded.values()
        assert recorded.why == "" and recorded._graph is not None
