"""Levenberg-Marquardt: the Jacobian in both modes, fits beside scipy where that is installed, bounds, resuming, memory, refusals."""

import random

import numpy as np
import pytest
from fakes import Quadratic, QuadraticParams
from jobs_with_residuals import Chain, ChainParams, Decay, DecayParams
from runner_helpers import write_config
from test_descent_kept import Killed, Memory, assert_equal_bits

import qdrun as qd
from qdrun.jobs.base import BatchSession, Job, JobParams, Session, check_gradients, execute, why_not_batched
from qdrun.runner.config.optimize_section import OptimizeSection
from qdrun.runner.optimize import kept as kept_module
from qdrun.runner.optimize import least_squares
from qdrun.runner.optimize.descent import body_of, descend
from qdrun.runner.optimize.jacobian import Jacobian, JacobianMode, NoResiduals, choose
from qdrun.runner.optimize.results import STOPPED
from qdrun.runner.study.batches import why_not
from qdrun.runner.study.plan import plan_all
from qdrun.runner.study.prepare import prepare

HOW = {"backend": "cpu", "threads": 1}
CASES = {"decay": (Decay, DecayParams), "chain": (Chain, ChainParams)}


def drawn(name):
    rng = np.random.default_rng()
    if name == "decay":
        height, rate, offset = rng.uniform(1.0, 3.0), rng.uniform(0.2, 0.8), rng.uniform(-1.0, 1.0)
        data = offset + height * np.exp(-rate * np.arange(15)) + 0.01 * rng.normal(size=15)
        return DecayParams(height=2.0, rate=0.4, offset=0.1, data=data.tolist())
    return ChainParams(push=rng.normal(size=9).tolist(), target=rng.normal(size=2).tolist())


def residuals(job, params):
    with job(params).opened(threads=1) as made:
        made.run()
        return made.declared.residuals.to_numpy()


def moved(params, names, x):
    values, at = {}, 0
    for name in names:
        old = np.asarray(getattr(params, name))
        values[name], at = x[at : at + old.size].reshape(old.shape).tolist(), at + old.size
    return params.model_copy(update=values)


def flat(params, names):
    return np.concatenate([np.ravel(getattr(params, name)) for name in names])


@pytest.mark.parametrize("name", CASES)
def test_the_loss_of_residuals_is_half_the_sum_of_their_squares_with_its_gradients(name):
    job, params = CASES[name][0], drawn(name)
    with job(params).opened(threads=1) as made:
        loss = made.run().loss
    assert loss == pytest.approx(0.5 * np.sum(residuals(job, params) ** 2), rel=1e-12)
    assert all(row.relative_error < 1e-6 for row in check_gradients(job, params))
    with BatchSession.open(job, params, 2) as batch:
        assert batch.run([params, params]).losses == pytest.approx([loss, loss], rel=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_both_modes_give_the_jacobian_whole_and_in_parts(name):
    job, params = CASES[name][0], drawn(name)
    names = list(job.gradients)
    x = flat(params, names)
    slopes = [
        (residuals(job, moved(params, names, x + h)) - residuals(job, moved(params, names, x - h))) / 2e-6
        for h in 1e-6 * np.eye(x.size)
    ]
    with Session(job(params), **HOW) as session:
        session.run()
        rows = session.job.declared.residuals.shape[0]
        for mode, count in (("reverse", rows), ("forward", x.size)):
            for at_once in sorted({1, min(2, count), count}):
                jacobian = Jacobian(session.job, names, JacobianMode(mode, at_once, count))
                found = jacobian.at(params)
                np.testing.assert_allclose(found, np.stack(slopes, axis=1), rtol=1e-6, atol=1e-7)
                other = moved(params, names, x + 0.1)
                jacobian.at(other)
                assert np.array_equal(jacobian.at(params), found), "nothing is left of the point before"
                assert jacobian.entry.bytes == jacobian.peak_bytes
                jacobian.close()
        assert session.run(params).loss == session.run(params).loss


def test_the_mode_is_the_one_that_the_plan_says_is_cheaper():
    for name, mode in (("decay", "forward"), ("chain", "reverse")):
        job, params = CASES[name][0], drawn(name)
        with Session(job(params), **HOW) as session:
            found = choose(session.job, session.plan(), list(job.gradients))
        assert found.mode == mode and found.count == (3 if name == "decay" else 2)


def section(**keys):
    return OptimizeSection.model_validate({"rule": "levenberg_marquardt", "steps": 60} | keys)


@pytest.mark.parametrize("bounds", [None, (0.45, 0.5)])
def test_a_fit_is_that_of_scipy_in_about_as_many_steps(bounds):
    optimize = pytest.importorskip("scipy.optimize")
    params, names = drawn("decay"), list(Decay.gradients)
    given = {} if bounds is None else {"bounds": {"rate": list(bounds)}}
    start = params.model_copy(update={"rate": 0.47})
    with Session(Decay(start), **HOW) as session:
        found = descend(session, section(params=names, stop={"gradient_norm": 1e-9}, **given))
    low, high = np.full(3, -np.inf), np.full(3, np.inf)
    low[1], high[1] = bounds or (-np.inf, np.inf)
    t = np.arange(len(params.data))
    theirs = optimize.least_squares(
        lambda x: x[2] + x[0] * np.exp(-x[1] * t) - np.array(params.data),
        flat(start, names),
        bounds=(low, high),
        xtol=1e-14,
        ftol=1e-14,
        gtol=1e-12,
    )
    np.testing.assert_allclose([found.outputs[f"opt.{name}"] for name in names], theirs.x, rtol=1e-5, atol=1e-5)
    assert found.loss <= theirs.cost * (1 + 1e-7) and found.outputs["opt.steps"] <= 2 * theirs.nfev + 5


def test_gauss_newton_solves_a_linear_problem_in_one_step_and_damping_saves_it_elsewhere():
    rng = np.random.default_rng()
    matrix, b = rng.normal(size=(6, 3)), rng.normal(size=6)
    memory, x = least_squares.begin(np.zeros((1, 3)), 0.0), np.zeros((1, 3))
    low, high = np.full(3, -np.inf), np.full(3, np.inf)
    for _ in range(2):
        r = matrix @ x[0] - b
        x, memory = least_squares.advance(memory, x, np.array([0.5 * r @ r]), (matrix.T @ r)[None], low, high, lambda: matrix)
    np.testing.assert_allclose(memory["x0"][0], np.linalg.lstsq(matrix, b, rcond=None)[0], rtol=1e-9)

    memory, x, seen = least_squares.begin(np.zeros((1, 1)), 0.0), np.array([[3.0]]), []
    for _ in range(60):  # arctan: Gauss-Newton's steps grow without end from here
        r = np.arctan(x[0])
        slope = 1.0 / (1.0 + x[0] ** 2)
        seen.append(abs(float(x[0, 0])))
        if seen[-1] < 1e-9:
            break
        x, memory = least_squares.advance(
            memory, x, 0.5 * r * r, (slope * r)[None], low[:1], high[:1], lambda slope=slope: slope[None]
        )
    assert seen[-1] < 1e-9 and max(seen) > 3.0, "a step that was too long was taken back"


def test_it_goes_on_after_a_kill_with_the_same_bits(monkeypatch):
    monkeypatch.setattr(kept_module, "EVERY_S", 0.0)
    monkeypatch.setattr(kept_module, "SHARE", 1e9)
    params, given, kept = drawn("decay"), section(params=list(Decay.gradients), stop={"gradient_norm": 1e-12}), Memory()

    def run(memory, kill_at=None):
        with Session(Decay(params), **HOW) as session:
            inner = session.run

            def counted(point=None):
                if session.job.watch.runs == kill_at:
                    raise Killed
                return inner(point)

            session.run = counted
            return descend(session, given, memory, "t")

    whole = run(None)
    with pytest.raises(Killed):
        run(kept, random.randrange(2, int(whole.outputs["opt.steps"])))
    assert kept.saved
    assert_equal_bits(run(kept), whole, "opt.height", "opt.rate", "opt.offset")


def test_scale_and_bounds_change_the_way_and_not_the_minimum():
    params, names = drawn("decay"), list(Decay.gradients)
    ends = []
    for keys in ({}, {"scale": {"height": 100.0, "rate": 0.01}}, {"bounds": {"height": [-50, 50], "offset": [None, 9]}}):
        body = body_of(section(params=names, stop={"gradient_norm": 1e-8}, **keys).model_dump(mode="json", exclude_unset=True))
        done = execute(Decay(params), **HOW, memory_limit_bytes=None, body=body)
        assert done.plan.by_kind()["jacobian"] == done.used["jacobian"] > 0 and done.peak_bytes == done.plan.bytes
        ends.append([done.outcome.outputs[f"opt.{name}"] for name in names])
    np.testing.assert_allclose(ends[1:], [ends[0]] * 2, rtol=1e-6)


def test_at_a_minimum_the_search_ends():
    params = drawn("decay")
    with Session(Decay(params), **HOW) as session:
        found = descend(session, section(params=list(Decay.gradients), steps=200))
    assert STOPPED[int(found.outputs["opt.stopped"])] == "no_descent" and found.outputs["opt.gradient_norm"] < 1e-6


def test_a_sweep_plans_the_program_of_the_jacobian_and_runs_its_trials_one_by_one(tmp_path):
    job = __file__.replace("test_least_squares", "jobs_with_residuals")
    given = {"target": f"{job}:Decay", "sweep": {"rate": [0.3, 0.4]}, "optimize": {"rule": "levenberg_marquardt", "steps": 9}}
    config = write_config(tmp_path, **given)
    config.write_text(config.read_text().replace("gradients: [x, target]\n", ""))
    prepared, made = prepare(config)
    ((group, _),) = plan_all(prepared, made)
    (entry,) = [entry for entry in group.plan.entries if entry.kind == "jacobian"]
    assert entry.formula == "forward mode, 3 of 3 columns at once"
    body = body_of(section(params=list(Decay.gradients), steps=9).model_dump(mode="json", exclude_unset=True))
    done = execute(Decay(DecayParams(rate=0.3)), **HOW, memory_limit_bytes=None, body=body)
    assert done.used["jacobian"] == entry.bytes, "planned without compiling, and used"
    assert (
        why_not(prepared, made, group, prepared.trials[0])
        == "`levenberg_marquardt` runs a batch for the Jacobian of each trial"
    )


def test_a_job_without_residuals_is_refused_with_what_to_do(tmp_path):
    class Plain(Job[JobParams]):
        gradients = ()

        def build(self):
            self.objective()

        def simulate(self): ...

    with Session(Plain(JobParams()), **HOW) as session, pytest.raises(NoResiduals) as caught:
        choose(session.job, session.plan(), [])
    assert str(caught.value) == (
        "`levenberg_marquardt` needs residuals, and Plain declares an objective\n"
        "  do: write self.residuals(count) in build instead of self.objective(), if its loss is a sum of squares; else use rule: lbfgs"
    )
    with (
        Session(Quadratic(QuadraticParams(), wanted=["x"])) as session,
        pytest.raises(NoResiduals, match="needs residuals, and Quadratic"),
    ):
        descend(session, section(params=["x"]))

    class Both(Decay):
        def build(self):
            self.objective()
            super().build()

    with pytest.raises(ValueError, match="Both declares residuals beside an objective"), Both(DecayParams()).opened():
        pass

    class Filled(Decay):
        def fill(self): ...

    with (
        Session(Filled(DecayParams()), **HOW) as session,
        pytest.raises(NoResiduals, match=r"cannot be computed in a batch: it overrides fill\(\)"),
    ):
        choose(session.job, session.plan(), ["rate"])


@pytest.mark.parametrize("steps", [1, 2, 3, 60])
def test_a_job_that_saves_leaves_the_files_of_the_point_that_is_kept(steps):
    class Left(Decay):
        def save(self):
            left.append(self.declared.residuals.to_numpy())

    left, params = [], drawn("decay")
    options = section(params=list(Decay.gradients), steps=steps).model_dump(mode="json", exclude_unset=True)
    outcome = execute(Left(params), **HOW, memory_limit_bytes=None, body=body_of(options)).outcome
    assert why_not_batched(Left, params) == "it overrides save()" and len(left) == 1
    assert 0.5 * np.sum(left[0] ** 2) == pytest.approx(outcome.loss, rel=1e-12, abs=1e-20)
    assert outcome.loss == min(outcome.outputs["opt.history"])


class WeightedParams(JobParams):
    a: float = 1.0


class Weighted(Job[WeightedParams]):
    """A job whose ``build`` fills a constant: its fields have memory before it ends."""

    gradients = ("a",)

    def build(self):
        a, r = self.input("a"), self.residuals(3)
        weights = qd.field(qd.f64, shape=3)
        weights.from_numpy(np.arange(3.0))

        @qd.kernel
        def weigh():
            for i in weights:
                r[i] += a[None] ** 2 * weights[i] - 1.0

        self.weigh = weigh

    def simulate(self):
        self.weigh()


def test_a_job_whose_build_fills_a_constant_has_a_jacobian_in_forward_mode():
    params = WeightedParams(a=float(np.random.default_rng().uniform(1, 2)))
    with Weighted(params).opened(threads=1) as made:
        made.run()
        forward = Jacobian(made, ["a"], JacobianMode("forward", 1, 1))
        try:
            np.testing.assert_allclose(forward.at(params)[:, 0], 2 * params.a * np.arange(3.0), rtol=1e-12)
        finally:
            forward.close()
