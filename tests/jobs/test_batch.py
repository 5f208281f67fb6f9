"""Batches: each row is what the trial gives alone, for all shipped jobs; groups; what cannot run in a batch, and why."""

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.errors import QdrunError
from qdrun.jobs.base import Job, JobParams, Outcome, execute
from qdrun.jobs.billiards import Billiards, BilliardsParams
from qdrun.jobs.core.batch import BatchSession, group_key, why_not_batched
from qdrun.jobs.core.session import Session
from qdrun.jobs.mass_spring import MassSpring, MassSpringParams
from qdrun.jobs.mpm88 import Mpm88, Mpm88Params

HOW = {"backend": "cpu", "threads": 1, "memory_limit_bytes": None}


def robots(r):
    numbers = {
        name: float(r.uniform(*ends))
        for name, ends in {"stiffness": (500, 1500), "damping": (5, 20), "omega": (15, 25)}.items()
    }
    return MassSpringParams(steps=60, actuation=r.uniform(0.1, 0.35, 4).tolist(), **numbers)


def blocks(r):
    velocity = [float(r.uniform(2.5, 3.5)), float(r.uniform(-2, 0))]
    return Mpm88Params(particles=36, steps=45, stiffness=float(r.uniform(20, 60)), velocity=velocity)


def shots(r):
    return BilliardsParams(steps=200, velocity=[float(r.uniform(1.5, 2)), float(r.uniform(-0.1, 0.1))])


def numbers(outcome):
    return {"loss": outcome.loss, **outcome.gradients, **outcome.outputs}


def alone(job, params, wanted=None):
    return execute(job(params, wanted=wanted), **HOW).outcome


@pytest.mark.parametrize("trials", [1, 3, 17])
@pytest.mark.parametrize(("job", "draw"), [(MassSpring, robots), (Mpm88, blocks), (Billiards, shots)])
def test_rows_of_a_batch_equal_trials_run_alone(job, draw, trials):
    r = np.random.default_rng(trials)
    params = [draw(r) for _ in range(trials)]
    with BatchSession.open(job, params[0], trials, threads=2) as batch:
        outcome = batch.run(params)
    assert not outcome.errors and len(outcome) == trials
    for row, one in list(enumerate(params))[:: max(1, trials // 4)]:
        want, found = numbers(alone(job, one)), numbers(outcome.row(row))
        assert found.keys() == want.keys()
        for name, value in want.items():
            assert np.shape(found[name]) == np.shape(value)
            np.testing.assert_allclose(found[name], value, rtol=1e-11, atol=1e-11 * np.max(np.abs(value)), err_msg=name)


@pytest.mark.parametrize("wanted", [(), ("stiffness",)])
def test_a_session_runs_batch_after_batch_and_smaller_ones(wanted):
    r = np.random.default_rng(5)
    first, second = [robots(r) for _ in range(10)], [robots(r) for _ in range(3)]
    with BatchSession.open(MassSpring, first[0], 10, wanted=wanted, threads=1) as batch:
        runs = [batch.run(params) for params in (first, second, first)]
        assert batch.job.plan().bytes == batch.job.peak_bytes(), "batches after the first take nothing more"
    np.testing.assert_allclose(runs[0].losses, runs[2].losses, rtol=1e-13, atol=1e-13)  # a GPU adds in any order
    assert len(runs[1]) == 3
    assert runs[0].gradients.keys() == set(wanted)
    for row, params in enumerate(second):
        assert runs[1].losses[row] == pytest.approx(alone(MassSpring, params, wanted).loss, rel=1e-12)


@pytest.mark.parametrize("how", [{"threads": 1}, {"backend": "cuda", "device": "emulated"}])
def test_columns_that_are_missing_have_the_values_of_their_own_batch(how):
    """Numbers and lists; from the second run on launches are recorded, and from the third replayed."""
    r = np.random.default_rng()
    with BatchSession.open(MassSpring, robots(r), 3, **how) as batch:
        for _ in range(4):
            one, damping = robots(r), r.uniform(5, 20, 3)
            found = batch.run_columns({"damping": damping}, params=one)
            for row in range(3):
                want = alone(MassSpring, one.model_copy(update={"damping": float(damping[row])}))
                assert found.losses[row] == pytest.approx(want.loss, rel=1e-10)
                assert found.gradients["actuation"][row] == pytest.approx(want.gradients["actuation"], rel=1e-8)


def test_columns_that_are_missing_have_the_values_of_open():
    start = robots(np.random.default_rng(6))
    stiffness = np.linspace(500.0, 900.0, 4)
    with BatchSession.open(MassSpring, start, 4, wanted=()) as batch:
        losses = batch.run_columns({"stiffness": stiffness}).losses
    for value, loss in zip(stiffness, losses, strict=True):
        changed = start.model_copy(update={"stiffness": float(value)})
        assert loss == pytest.approx(alone(MassSpring, changed, ()).loss, rel=1e-12)


class RootParams(JobParams):
    value: float = 4.0
    weights: list[float] = [1.0, 2.0]  # noqa: RUF012
    count: int = 2
    scale: float = 1.0


class Root(Job[RootParams]):
    """count * scale * sqrt(value) * sum(weights); it asserts that the value is positive."""

    gradients = ("value", "weights")

    def build(self):
        value, weights, count = self.input("value"), self.input("weights"), self.input("count")
        loss, n, scale = self.objective(), len(self.params.weights), self.params.scale

        @qd.kernel
        def add():
            for i in range(n):
                assert value[None] > 0.0, "no root"
                for _ in range(count[None]):
                    loss[None] += scale * qd.sqrt(value[None]) * weights[i]

        self.add = add

    def simulate(self):
        self.add()


def test_a_trial_that_fails_is_its_own_row():
    params = [RootParams(value=v) for v in (4.0, -1.0, 9.0, 16.0, -2.0)]
    with BatchSession.open(Root, params[0], 5, debug={"asserts": True}) as batch:
        outcome = batch.run(params)
        assert sorted(outcome.errors) == [1, 4]
        again = batch.run([RootParams(value=25.0)] * 5)
    assert np.array_equal(outcome.losses[[0, 2, 3]], [12.0, 18.0, 24.0])
    np.testing.assert_allclose(outcome.gradients["value"][[0, 2, 3]], [1.5, 1.0, 0.75], rtol=1e-12)
    with pytest.raises(QdrunError, match="no root"):
        outcome.row(1)
    assert not again.errors and np.array_equal(again.losses, [30.0] * 5), "failures are forgotten"


def test_trials_that_differ_in_inputs_alone_are_one_group():
    same = [RootParams(value=v, weights=w) for v, w in ((1.0, [1.0, 2.0]), (-0.0, [3.0, 4.0]), (2.5, [0.0, 0.0]))]
    assert len({group_key(Root, one) for one in same}) == 1
    others = [
        RootParams(scale=2.0),  # no input
        RootParams(weights=[1.0, 2.0, 3.0]),  # another shape
        RootParams(count=3),  # a whole number may bound a loop
    ]
    assert len({group_key(Root, one) for one in (*same, *others)}) == 4
    assert group_key(Root, same[0], wanted=()) != group_key(Root, same[0])
    with BatchSession.open(Root, same[0], 2) as batch, pytest.raises(ValueError, match="trial 1 belongs to another batch"):
        batch.run([same[1], others[0]])


def _changed(**body):
    return type("Changed", (Root,), body)


def _reads_seed(self):
    self.number = self.seed
    Root.build(self)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({}, ""),
        ({"run": lambda self: Outcome(0.0)}, "it overrides run()"),
        ({"fill": lambda self: None}, "it overrides fill()"),
        ({"needs_compiler": False}, "it uses no kernels"),
        ({"build": _reads_seed}, "it reads its seed"),
        ({"simulate": lambda self: (self.add(), self.artifacts)}, "it uses its artifacts"),
        (
            {"simulate": lambda self: self.add() if self.declared.loss[None] == 0.0 else None},
            "Python reads `objective` in Changed.simulate",
        ),
    ],
)
def test_why_a_job_is_not_batched_is_said_in_a_phrase(body, why):
    job = _changed(**body)
    found = why_not_batched(job, RootParams())
    assert found.startswith(why) and bool(found) == bool(why)
    if why:
        with pytest.raises(ValueError, match="Changed cannot run in batches: "):
            BatchSession.open(job, RootParams(), 2)


def test_time_steps_in_windows_are_not_batched():
    params = MassSpringParams(steps=100)
    assert why_not_batched(MassSpring, params, memory_budget_bytes=10_000_000) == ""
    found = why_not_batched(MassSpring, params, memory_budget_bytes=40_000)
    assert found.startswith("a memory budget of 40,000 bytes: its time steps run in windows of") and found.endswith("of 100")


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"height": np.zeros(2)}, "`height` is no input of Root\n  do: name one of: value, weights, count"),
        ({"weights": np.zeros((2, 3))}, r"the column `weights` has shape \(2, 3\), its input \(2,\)"),
        ({"value": np.ones(3)}, "columns of {'value': 3} rows for a batch of 2 trials"),
        ({"value": np.ones(1), "weights": np.ones((2, 2))}, "columns of {'value': 1, 'weights': 2} rows"),
        ({"count": np.array([2**40, 1])}, "`count` is 1099511627776, which is too large for i32"),
    ],
)
def test_columns_that_do_not_fit_are_refused(inputs, message):
    with BatchSession.open(Root, RootParams(), 2) as batch, pytest.raises(ValueError, match=message):
        batch.run_columns(inputs)


class PickParams(JobParams):
    where: float = 0.0
    factor: float = 2.0


class Pick(Job[PickParams]):
    """factor times the number at ``where``; there are four."""

    gradients = ("factor",)

    def build(self):
        where, factor, loss = self.input("where"), self.input("factor"), self.objective()
        table = qd.field(qd.f64, shape=4, per_trial=False)
        table.from_numpy(np.array([1.0, 2.0, 3.0, 4.0]))

        @qd.kernel
        def pick():
            loss[None] += factor[None] * table[qd.cast(where[None], qd.i32)]

        self.pick = pick

    def simulate(self):
        self.pick()


@pytest.mark.parametrize("how", [{}, {"backend": "cuda", "device": "emulated"}])
def test_trials_fail_alone_in_recorded_launches_too(how):
    checks = {"bounds": True, "asserts": False, "nan": False}
    where = np.array([0.0, 5.0, 3.0, -1.0, 1.0])
    with BatchSession.open(Pick, PickParams(), 5, debug=checks, **how) as batch:
        for run in range(4):
            shifted = np.roll(where, run)
            outcome = batch.run_columns({"where": shifted})
            bad = [k for k in range(5) if not 0 <= shifted[k] < 4]
            assert sorted(outcome.errors) == bad
            assert all("out of range" in str(outcome.errors[k]) for k in bad)
            for k in sorted(set(range(5)) - set(bad)):
                assert outcome.losses[k] == 2.0 * (shifted[k] + 1) and outcome.gradients["factor"][k] == shifted[k] + 1
        assert not batch.run_columns({"where": np.zeros(5)}).errors, "failures of the run before are forgotten"
        assert batch.job._recorded[True].why == "" and batch.job._recorded[True]._graph is not None
        program = batch.job.program
        assert batch.job.launched().startswith("recorded: ")
        assert batch.job.launched().endswith(f"; trials of a group: {program.trials.width}")
        assert ("threads of a trial: " in batch.job.launched()) is not program.device.on_host


class Prints(Pick):
    """A kernel prints: its launches cannot be recorded."""

    def build(self):
        super().build()
        loss = self.declared.loss

        @qd.kernel
        def say():
            if loss[None] < 0.0:
                print("negative", loss[None])

        self.say = say

    def simulate(self):
        self.pick()
        self.say()


def test_a_batch_says_why_its_launches_are_not_recorded():
    with BatchSession.open(Prints, PickParams(), 3) as batch:
        assert batch.job.launched() == ""
        said = []
        for _ in range(2):
            batch.run([PickParams(where=float(k)) for k in range(3)])
            said.append(batch.job.launched().partition(";")[0])
    assert said == ["one by one, as a first run is", "one by one: kernel `say` prints"]


class NoisyParams(JobParams):
    drift: float = 0.1
    steps: int = 4


class Noisy(Job[NoisyParams]):
    """A random walk of four walkers with a drift; its end squared. It reads no seed: the kernels draw."""

    gradients = ("drift",)

    def build(self):
        drift, loss, end = self.input("drift"), self.objective(), self.output("end", 4, needs_grad=True)
        steps = self.params.steps

        @qd.kernel
        def walk():
            for i in range(4):
                x = 0.0
                for _ in range(steps):
                    x += drift[None] + 0.3 * qd.randn(qd.f64)
                    x = qd.sin(x) + drift[None] * qd.random(qd.f64)
                end[i] = x

        @qd.kernel
        def score():
            for i in range(4):
                loss[None] += end[i] ** 2 * (1.0 + qd.random(qd.f64))

        self.walk, self.score = walk, score

    def simulate(self):
        self.walk()
        self.score()


def test_each_trial_draws_what_it_draws_alone_with_its_seed():
    r = np.random.default_rng(8)
    params = [NoisyParams(drift=float(d)) for d in r.uniform(-0.5, 0.5, 9)]
    seeds = r.integers(0, 2**62, 9)
    seeds[7] = seeds[2]
    rows = [execute(Noisy(one, seed=int(seed)), **HOW).outcome for one, seed in zip(params, seeds)]
    with BatchSession.open(Noisy, params[0], 9, threads=2) as batch:
        for _ in range(3):  # launched one by one, and recorded; again they draw the same
            outcome = batch.run(params, seeds)
            for row, want in enumerate(rows):
                for name, value in numbers(want).items():
                    np.testing.assert_allclose(numbers(outcome.row(row))[name], value, rtol=1e-11, atol=1e-13, err_msg=name)
        fewer = batch.run(params[3:5], [int(s) for s in seeds[3:5]])
        np.testing.assert_allclose(fewer.losses, outcome.losses[3:5], rtol=1e-12)
        before = seeds.copy()
        seeds[:] = seeds[::-1]  # the same array, which the session was given before
        turned = batch.run(params[::-1], seeds)
        np.testing.assert_allclose(turned.losses, outcome.losses[::-1], rtol=1e-12)
        np.testing.assert_allclose(batch.run(params, before).losses, outcome.losses, rtol=1e-12)
        same = batch.run([params[0]] * 9)
        assert len(set(same.losses.tolist())) == 9, "without seeds they are 0, 1, 2 .."
    assert same.losses[5] == pytest.approx(execute(Noisy(params[0], seed=5), **HOW).outcome.loss, rel=1e-12)
    assert why_not_batched(Noisy, params[0]) == ""


def test_an_open_job_draws_what_a_new_one_with_the_seed_draws():
    with Session(Noisy(NoisyParams(), seed=3), threads=1) as session:
        first = session.run().loss
        assert [session.run().loss for _ in range(3)] == [first] * 3
        for drift, seed in ((0.2, 4), (0.1, 3)):
            assert session.renew(NoisyParams(drift=drift), None, seed)
            assert session.run().loss == execute(Noisy(NoisyParams(drift=drift), seed=seed), **HOW).outcome.loss
        assert session.run().loss == first
