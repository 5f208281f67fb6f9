"""The descents of a batch: each trial takes the steps that it takes alone, stops where it stops alone, and fails alone."""

import numpy as np
import pytest
from pydantic import Field

import qdrun as qd
from qdrun.jobs.base import Job, JobParams, Outcome, Session, Stopped
from qdrun.jobs.core.batch import BatchSession
from qdrun.jobs.mass_spring import MassSpring, MassSpringParams
from qdrun.runner.config.optimize_section import OptimizeSection
from qdrun.runner.optimize.descent import DescentError, descend, descend_batch
from qdrun.runner.optimize.points import optimizer_of
from qdrun.runner.optimize.results import STOPPED
from qdrun.runner.optimize.update_rules import RULES, clipped_rows, row_norms


class BowlParams(JobParams):
    x: float = Field(5.0, lt=50.0)
    y: list[float] = Field([1.0, -2.0])
    target: float = 1.0
    steep: float = 1.0


class Bowl(Job[BowlParams]):
    """steep (x - target)^2 + sum of y^4; its square root of x + 10 fails for x < -10."""

    gradients = ("x", "y")

    def build(self):
        x, y, target, steep = (self.input(name) for name in ("x", "y", "target", "steep"))
        loss, root = self.objective(), self.output("root")

        @qd.kernel
        def fall():
            assert x[None] > -10.0, "too far left"
            root[None] = qd.sqrt(x[None] + 10.0)
            loss[None] += steep[None] * (x[None] - target[None]) ** 2
            for i in range(2):
                loss[None] += y[i] ** 4

        self.fall = fall

    def simulate(self):
        self.fall()


def drawn(count, seed=0):
    r = np.random.default_rng(seed)
    return [
        BowlParams(
            x=float(r.uniform(-5, 5)), y=r.normal(size=2).tolist(), target=float(r.normal()), steep=float(r.uniform(0.5, 2))
        )
        for _ in range(count)
    ]


def section(**keys):
    return OptimizeSection.model_validate({"learning_rate": 0.05, "params": ["x", "y"], "steps": 12} | keys)


def both(params, how, job=Bowl, wanted=("x", "y"), **options):
    """The rows of a batch whose points are on its device, and the trials alone: an outcome or an error each."""
    on_device = optimizer_of(how, params[0], debug="debug" in options)
    with BatchSession.open(job, params[0], len(params), wanted=wanted, optimizer=on_device, **options) as batch:
        rows = descend_batch(batch, params, how)
    with BatchSession.open(job, params[0], len(params), wanted=wanted, **options) as batch:
        check_equal(rows, descend_batch(batch, params, how))
    alone = []
    for one in params:
        try:
            with Session(job(one, wanted=wanted), **options) as session:
                alone.append(descend(session, how))
        except Exception as error:
            alone.append(error)
    return rows, alone


def check_equal(rows, alone, rtol=1e-10):
    for row, one in zip(rows, alone, strict=True):
        if isinstance(one, Exception) or isinstance(row, Exception):
            assert (type(row), str(row)) == (type(one), str(one))
            continue
        assert isinstance(row, Outcome), row
        want, found = ({"loss": x.loss, **x.outputs, **{f"d {k}": v for k, v in x.gradients.items()}} for x in (one, row))
        assert found.keys() == want.keys()
        for name, value in want.items():
            assert np.shape(found[name]) == np.shape(value), name
            np.testing.assert_allclose(found[name], value, rtol=rtol, atol=1e-13, err_msg=name)


@pytest.mark.parametrize("rule", sorted(RULES))
def test_every_rule_takes_the_steps_that_it_takes_alone(rule):
    rows, alone = both(drawn(5), section(rule=rule, scale={"x": 3.0}, bounds={"x": [-3, 4], "y": [-1, 1]}, clip=2.0))
    check_equal(rows, alone)
    assert all(row.loss < row.outputs["opt.history"][0] for row in rows)


@pytest.mark.parametrize(
    "stop",
    [{"gradient_norm": 0.5}, {"loss": 0.3}, {"patience": 2, "progress": 0.2}, {"patience": 1, "progress": 1.0, "loss": 0.01}],
)
def test_each_trial_stops_where_it_stops_alone(stop):
    rows, alone = both(drawn(9, seed=3), section(rule="sgd", steps=25, stop=stop))
    check_equal(rows, alone)
    assert len({len(row.outputs["opt.history"]) for row in rows}) > 2, "they stop at different steps"


def test_the_last_point_is_kept_where_that_is_asked_for():
    rows, alone = both(drawn(4, seed=4), section(rule="momentum", learning_rate=0.3, keep="last"))
    check_equal(rows, alone)


def test_robots_of_a_batch_learn_what_each_learns_alone():
    r = np.random.default_rng(1)
    params = [
        MassSpringParams(steps=40, stiffness=float(r.uniform(500, 1500)), actuation=r.uniform(0.1, 0.3, 4).tolist())
        for _ in range(3)
    ]
    how = section(
        rule="adam", params=["stiffness", "actuation"], scale={"stiffness": 1000}, bounds={"actuation": [0, 0.5]}, steps=5
    )
    rows, alone = both(params, how, MassSpring, ("stiffness", "actuation"), threads=1)
    check_equal(rows, alone, rtol=1e-7)


def test_a_trial_that_blows_up_or_fails_a_check_or_leaves_its_range_is_its_own_row():
    near = [0.1, 0.2]
    params = [
        BowlParams(x=2.0, y=near),
        BowlParams(x=3.0, y=near, steep=1e308),
        BowlParams(x=-9.5, y=near, target=-30.0),
        BowlParams(x=45.0, y=near, target=90.0),
    ]
    how = section(rule="sgd", learning_rate=0.3, steps=6)
    rows, alone = both(params, how, debug={"asserts": True, "nan": False})
    assert [type(row).__name__ for row in rows] == ["Outcome", "Outcome", "QdrunAssertionError", "DescentError"]
    check_equal([rows[3]], [alone[3]])
    assert np.array_equal(rows[0].outputs["opt.history"], alone[0].outputs["opt.history"])
    assert STOPPED[int(rows[1].outputs["opt.stopped"])] == "not_finite" and not np.isfinite(rows[1].outputs["opt.history"][-1])
    assert "too far left" in str(rows[2]) and isinstance(rows[3], DescentError)


def test_a_request_to_stop_ends_the_descents_that_run_with_the_best_of_each():
    params = [BowlParams(x=1.0, y=[0.0, 0.0]), *drawn(2)]
    how = section(rule="sgd", steps=50, stop={"gradient_norm": 1e-12})
    with BatchSession.open(Bowl, params[0], 3) as batch:
        run, steps = batch.run_columns, []

        def four_times(*columns):
            steps.append(columns)
            if len(steps) == 5:
                batch.job.watch.stop("enough")
            return run(*columns)

        batch.run_columns = four_times
        rows = descend_batch(batch, params, how)
        with pytest.raises(Stopped, match="enough"):
            descend_batch(batch, params, how)
    short = section(rule="sgd", steps=3, stop={"gradient_norm": 1e-12})
    with BatchSession.open(Bowl, params[0], 3) as batch:
        until = descend_batch(batch, params, short)
    assert isinstance(rows[0], Outcome) and rows[0].outputs["opt.steps"] == 0.0
    for row, one in zip(rows[1:], until[1:], strict=True):
        assert isinstance(row, Stopped) and str(row) == "enough"
        assert row.outcome.loss == one.loss and STOPPED[int(row.outcome.outputs["opt.stopped"])] == "interrupted"
        assert np.array_equal(row.outcome.outputs["opt.history"], one.outputs["opt.history"])


def test_norms_and_clips_of_rows_are_those_of_each_row():
    r = np.random.default_rng(2)
    g = {"a": r.normal(size=6) * 10.0 ** r.integers(-100, 100, 6), "b": r.normal(size=(6, 2, 3))}
    g["a"][1], g["b"][2], g["a"][2], g["b"][3, 0, 0] = np.inf, 0.0, 0.0, np.nan
    with np.errstate(all="ignore"):
        norms, cut = row_norms(g), clipped_rows(g, 0.5)
    for k in range(6):
        flat = np.concatenate([value[k].reshape(-1) for value in g.values()])
        np.testing.assert_allclose(norms[k], np.linalg.norm(flat), rtol=1e-14)
        if np.isfinite(norms[k]):
            factor = min(1.0, 0.5 / norms[k]) if norms[k] else 1.0
            np.testing.assert_allclose(np.concatenate([cut[n][k].reshape(-1) for n in g]), factor * flat, rtol=1e-14)
