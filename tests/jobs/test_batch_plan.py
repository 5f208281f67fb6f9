"""The memory of batches: planned bytes are used bytes for every number of trials, and the most trials are their inverse."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

import qdrun as qd
from qdrun.jobs.base import Job, JobParams, Outcome
from qdrun.jobs.billiards import Billiards, BilliardsParams
from qdrun.jobs.core.batch import BatchPlan, BatchSession, batch_plan
from qdrun.jobs.mass_spring import MassSpring, MassSpringParams
from qdrun.jobs.mpm88 import Mpm88, Mpm88Params
from qdrun.jobs.planning.batch_plan import HeapPiece, pieces_of
from qdrun.jobs.planning.memory_plan import MemoryPlan

sys.path.insert(0, str(Path(__file__).parents[1] / "gradients"))
from trial_programs import TrialCase, trial_program


class DeepParams(JobParams):
    a: float = 0.3
    rounds: int = 40


class Deep(Job[DeepParams]):
    """Two kernels whose gradients keep states, random numbers, and a field that trials share."""

    gradients = ("a",)

    def build(self):
        a, loss, n = self.input("a"), self.objective(), self.params.rounds
        table = qd.field(qd.f64, shape=100, per_trial=False)
        table.from_numpy(np.linspace(0.0, 1.0, 100))

        @qd.kernel
        def wide():
            for i in range(100):
                x = table[i]
                for _ in range(n):
                    x = qd.sin(x * a[None])
                loss[None] += x

        @qd.kernel
        def deep():
            for _ in range(1):
                x = 0.1
                for _ in range(3 * n):
                    x = qd.sin(x * a[None]) + qd.random(qd.f64)
                loss[None] += x

        self.wide, self.deep = wide, deep

    def simulate(self):
        self.wide()
        self.deep()


SEED, PARTS = int(os.environ.get("QDRUN_SEED", "0")), int(os.environ.get("QDRUN_RANDOM_BATCH_PLANS", "16")) // 8
ON_HOST = os.environ.get("QDRUN_TEST_ARCH", "cpu") == "cpu"
CASES = [
    (Deep, DeepParams()),
    (MassSpring, MassSpringParams(steps=12)),
    (Mpm88, Mpm88Params(particles=16, steps=2)),
    (Billiards, BilliardsParams(steps=6)),
]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("job", "params"), CASES, ids=[job.__name__ for job, _ in CASES])
def test_what_is_planned_is_what_is_used_for_every_number_of_trials(job, params, threads):
    plan = batch_plan(job, params, threads=threads)
    for trials in (1, 2, 3, 4, 5, 17, 1000):
        with BatchSession.open(job, params, trials, threads=threads) as batch:
            batch.run([params] * trials)
        assert batch.peak_bytes == plan.bytes(trials), trials
        full, fewer = -(-trials // plan.width) * plan.width, (trials - 1) // plan.width * plan.width
        if trials <= plan.width // 2 and ON_HOST:
            full = 1 << (trials - 1).bit_length()
        if not fewer and ON_HOST:
            fewer = full // 2
        most = plan.max_batch(plan.bytes(trials))
        assert plan.bytes(most) <= plan.bytes(trials) < plan.bytes(most + 1)
        if ON_HOST:  # on a GPU more trials may take fewer bytes: their heap is planned with more levels
            assert most == full and plan.max_batch(plan.bytes(trials) - 1) == fewer


def check_largest(job, params, plan, limit, threads):
    """The most trials that fit a limit use what is planned; one more is refused."""
    most = plan.max_batch(limit)
    with BatchSession.open(job, params, most, threads=threads, memory_limit_bytes=limit) as batch:
        batch.run([params] * most)
    assert batch.peak_bytes == plan.bytes(most) <= limit
    with (
        pytest.raises(qd.OutOfMemory),
        BatchSession.open(job, params, most + 1, threads=threads, memory_limit_bytes=limit) as batch,
    ):
        batch.run([params] * (most + 1))


@pytest.mark.parametrize(("job", "params"), CASES, ids=[job.__name__ for job, _ in CASES])
def test_the_largest_batch_that_fits_fits_and_one_more_does_not(job, params):
    plan = batch_plan(job, params, threads=2)
    for trials in (20, 400):
        check_largest(job, params, plan, plan.bytes(trials) + plan.per_trial // 2, 2)


@pytest.mark.parametrize("seed", range(20))
def test_max_batch_is_the_exact_inverse_of_bytes_whatever_the_heap(seed):
    r = np.random.default_rng(seed)
    heaps, now = {1: int(r.integers(0, 500))}, 1
    for _ in range(int(r.integers(1, 5))):  # lines and steps, down too
        more, length = int(r.integers(0, 60)), int(r.integers(1, 12))
        for k in range(1, length + 1):
            heaps[now + k] = heaps[now] + k * more
        now += length
        heaps[now + 1] = int(r.integers(0, 900))
        now += 1
    pieces = pieces_of(lambda groups: heaps[groups], now)
    plan = BatchPlan(4, int(r.integers(8, 40)), int(r.integers(0, 300)), pieces, MemoryPlan(), most=4 * now + 37)
    every = [plan.bytes(trials) for trials in range(1, plan.most + 1)]
    for trials, found in enumerate(every, 1):
        groups = -(-trials // 4)
        assert found == plan.fixed + groups * 4 * plan.per_trial + heaps[min(groups, now)]
    for limit in [*every, *(x - 1 for x in every), 0, 10**9]:
        assert plan.max_batch(limit) == max((t for t, x in enumerate(every, 1) if x <= limit), default=0)


def test_few_trials_of_a_cpu_are_one_small_group(threads=2):
    """The bytes of one, two and four trials are in proportion, and the values are those of a batch of eight, to the last bit."""
    plan, found = batch_plan(Deep, DeepParams(), threads=threads), {}
    if not plan.narrow:
        pytest.skip("groups of a GPU have one width")
    for trials in (1, 2, 3, 4, 8):
        with BatchSession.open(Deep, DeepParams(), trials, threads=threads) as batch:
            found[trials] = batch.run([DeepParams(a=0.3 + 0.1 * k) for k in range(trials)])
            padded = min(plan.width, 1 << (trials - 1).bit_length())
            assert batch.job.program.trials.width == padded
        beside_heap = batch.peak_bytes - batch.used.get("adstack", 0)
        assert beside_heap == plan.fixed + -(-trials // padded) * padded * plan.per_trial
    for trials, outcome in found.items():
        np.testing.assert_array_equal(outcome.losses, found[8].losses[:trials])
        np.testing.assert_array_equal(outcome.gradients["a"], found[8].gradients["a"][:trials])


def test_a_heap_in_lines_is_a_piece_for_each():
    assert pieces_of(lambda groups: 0, 64) == (HeapPiece(1, 0, 0),)
    assert pieces_of(lambda groups: 10 * min(groups, 5), 64)[-1] == HeapPiece(5, 50, 0)
    assert len(pieces_of(lambda groups: 10 * min(groups, 30_000), 65_536)) == 2


def test_other_backends_are_planned_without_a_device():
    plan = batch_plan(Deep, DeepParams(), arch="cuda")
    assert plan.bytes(1000) > plan.bytes(100)
    for trials in (8, 1000, 100_000):  # more trials may take fewer bytes: their heap is planned with more levels
        most = plan.max_batch(plan.bytes(trials))
        assert most >= trials and plan.bytes(most) <= plan.bytes(trials) < plan.bytes(most + 1)


def test_what_cannot_be_planned_says_so():
    plan = batch_plan(Deep, DeepParams())
    with pytest.raises(ValueError, match="a batch of 0 trials"):
        plan.bytes(0)
    job = type("Alone", (Deep,), {"run": lambda self: Outcome(0.0)})
    with pytest.raises(ValueError, match=r"Alone cannot run in batches: it overrides run\(\)"):
        batch_plan(job, DeepParams())


class DrawnParams(JobParams):
    scale: float = 0.5


def drawn_job(number):
    """A job of a random program, whose trials are equal but for one number."""
    source = trial_program(0, number)[1]

    class Drawn(Job[DrawnParams]):
        gradients = ("scale",)

        def build(self):
            case = TrialCase.__new__(TrialCase)
            case.make(source, number, qd.f64)
            r = np.random.default_rng(number)
            own = self.program.options.batch is not None
            for t in (*case.inputs, *case.ints):
                shape = t.to_numpy().shape[own:]
                t.from_numpy(r.integers(0, 5, shape) if t.dtype.is_int else r.uniform(-1.2, 1.2, shape))
            n, s0, k, x, y = int(r.integers(0, 6)), float(r.uniform(-1, 1)), case.k, case.x, case.y
            scale, loss = self.input("scale"), self.objective()

            @qd.kernel
            def feed():
                for i in range(8):
                    x[i] += scale[None] * i

            @qd.kernel
            def score():
                for i in range(3):
                    loss[None] += y[i] * y[i]

            self.launch = lambda: (feed(), k(n, case.c, case.cv, s0), score())

        def simulate(self):
            self.launch()

    return Drawn


def check_drawn(number):
    """Used bytes are planned bytes for several numbers of trials, the largest that fits a limit among them; one group more is refused."""
    job, params = drawn_job(number), DrawnParams()
    try:
        plan = batch_plan(job, params, threads=2)
    except qd.DifferentiationError:
        return False
    for trials in (1, 2, 3, 4, 5, 17, 1000):
        with BatchSession.open(job, params, trials, threads=2) as batch:
            batch.run([params] * trials)
        assert batch.peak_bytes == plan.bytes(trials), (number, trials)
    check_largest(job, params, plan, plan.bytes(500) + plan.per_trial // 2, threads=2)
    return True


def test_random_programs_use_what_is_planned_for_every_number_of_trials():
    assert sum(check_drawn(number) for number in (1, 8)) == 2


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_many_random_programs_use_what_is_planned(part):
    first = 100 + (SEED * PARTS + part) * 8
    planned = sum(check_drawn(number) for number in range(first, first + 8))
    assert SEED or planned >= 6
