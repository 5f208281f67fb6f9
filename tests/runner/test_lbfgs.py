"""L-BFGS: minima with and without bounds, beside scipy where that is installed, rows as alone, and points that are of no use."""

import numpy as np
import pytest
from fakes import Quadratic, QuadraticParams
from test_descent_of_batch import Bowl, BowlParams, drawn

from benchmarks.standard_problems import PROBLEMS
from qdrun.jobs.base import BatchSession, Job, JobParams, Outcome, Session
from qdrun.runner.config.optimize_section import OptimizeSection
from qdrun.runner.optimize import lbfgs
from qdrun.runner.optimize.descent import descend, descend_batch
from qdrun.runner.optimize.results import STOPPED

FREE = (-np.inf, np.inf)


def rosenbrock(x):
    a, b = x[:-1], x[1:]
    g = np.zeros_like(x)
    g[:-1] += -400.0 * a * (b - a * a) - 2.0 * (1.0 - a)
    g[1:] += 200.0 * (b - a * a)
    return float(np.sum(100.0 * (b - a * a) ** 2 + (1.0 - a) ** 2)), g


def quadratic(size, condition=1e4):
    rng = np.random.default_rng()
    basis, _ = np.linalg.qr(rng.normal(size=(size, size)))
    hessian, b = basis * np.logspace(0, np.log10(condition), size) @ basis.T, rng.normal(size=size)
    return lambda x: (float(0.5 * x @ hessian @ x - b @ x), hessian @ x - b)


def minimum(fun, start, bounds=FREE, tolerance=1e-8, most=3000):
    """Evaluations, the loss and the point, where no bound-free gradient is left."""
    low, high = (np.full(start.size, end) for end in bounds)
    x, memory = np.clip(start, low, high)[None], lbfgs.begin(start[None], 10)
    for count in range(1, most):
        f, g = fun(x[0])
        free = np.where(((x[0] <= low) & (g > 0.0)) | ((x[0] >= high) & (g < 0.0)), 0.0, g)
        if np.linalg.norm(free) <= tolerance:
            return count, f, x[0]
        x, memory = lbfgs.advance(memory, x, np.array([f]), g[None], low, high, 1.0)
        assert ((x >= low) & (x <= high)).all() and not memory["done"][0]
    raise AssertionError("no minimum")


CASES = [
    *((rosenbrock, n, bounds) for n in (2, 10) for bounds in (FREE, (-0.5, 0.8))),
    *((quadratic(30), 30, bounds) for bounds in (FREE, (-0.1, 0.1))),
]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_minima_are_found_in_about_as_many_evaluations_as_scipy_takes(case):
    optimize = pytest.importorskip("scipy.optimize")
    fun, size, bounds = CASES[case]
    start = np.random.default_rng().normal(size=size)
    count, loss, _ = minimum(fun, start, bounds)
    options = {"maxcor": 10, "ftol": 0.0, "gtol": 1e-9, "maxfun": 9000, "maxiter": 9000}
    pairs = None if bounds == FREE else [bounds] * size
    theirs = optimize.minimize(fun, np.clip(start, *bounds), jac=True, method="L-BFGS-B", bounds=pairs, options=options)
    assert loss <= theirs.fun + 1e-9 * max(1.0, abs(theirs.fun)) or case in (0, 2), "Rosenbrock's function has several minima"
    assert count <= 2 * theirs.nfev + 40


@pytest.mark.parametrize("case", range(len(CASES)))
def test_a_minimum_within_bounds_is_one(case):
    """The conditions of a minimum hold, see ``minimum``; of the quadratic it is the point that projected gradients find."""
    fun, size, bounds = CASES[case]
    start = np.random.default_rng().normal(size=size)
    _, loss, x = minimum(fun, start, bounds)
    for _ in range(20):
        near = np.clip(x + 1e-4 * np.random.default_rng().normal(size=size), *bounds)
        assert fun(near)[0] >= loss - 1e-12 * max(1.0, abs(loss))


def descended(fun, start, low, high, most=3000, tolerance=1e-6):
    """The lowest loss and its point, where the run ends by itself or by a small projected gradient."""
    x, memory, best = np.clip(start, low, high)[None], lbfgs.begin(start[None], 10), (np.inf, start, start)
    for _ in range(most):
        f, g = fun(x[0])
        if f < best[0]:
            best = f, x[0].copy(), np.where(((x[0] <= low) & (g > 0.0)) | ((x[0] >= high) & (g < 0.0)), 0.0, g)
            if np.abs(best[2]).max() <= tolerance:
                return best
        x, memory = lbfgs.advance(memory, x, np.array([f]), g[None], low, high, 1.0)
        assert ((x >= low) & (x <= high)).all()
        if memory["done"][0]:
            return best
    raise AssertionError("no end")


@pytest.mark.slow
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
def test_standard_problems_end_at_a_minimum_of_the_literature(problem):
    start = np.array(problem.start)
    loss, _, _ = descended(problem, start, np.full(start.size, -np.inf), np.full(start.size, np.inf))
    assert min(abs(loss - known) / max(known, 1e-2) for known in problem.minima) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
def test_within_bounds_no_feasible_point_nearby_is_lower(problem):
    low, high = problem.bounds()
    loss, x, slope = descended(problem, np.array(problem.start), low, high)
    first = np.abs(problem(np.clip(problem.start, low, high))[1]).max()
    assert np.abs(slope).max() <= 1e-6 * max(1.0, first)
    rng = np.random.default_rng()
    for size in (1e-2, 1e-4):
        for _ in range(10):
            near = np.clip(x + size * (high - low) * rng.normal(size=x.size), low, high)
            assert problem(near)[0] >= loss - 1e-9 * max(1.0, loss)


@pytest.mark.parametrize("stiffness", (1e2, 1e4, 1e6, 1e8))
@pytest.mark.parametrize("start", (1e-2, 1e-8))
def test_a_search_that_finds_no_flat_step_takes_its_lowest_point(stiffness, start):
    """The Wolfe conditions hold between 1 and 1 + 1 / stiffness alone, too narrow for the tries of one search."""

    def wall(x):
        beyond = max(0.0, x[0] - 1.0)
        return float(-(x[0] ** 2) + stiffness * beyond**2), np.array([-2.0 * x[0] + 2.0 * stiffness * beyond])

    exact = stiffness / (stiffness - 1.0)
    _, x, _ = descended(wall, np.array([start]), np.full(1, -np.inf), np.full(1, np.inf), most=600, tolerance=1e-9)
    assert x[0] == pytest.approx(exact, rel=1e-8)


def test_rows_are_what_each_is_alone():
    rng, count = np.random.default_rng(), 6
    starts, functions = rng.normal(size=(count, 4)), [quadratic(4, 10.0**k) for k in range(count)]
    low, high = np.full(4, -1.0), np.full(4, 1.5)

    def path(rows):
        x, memory, seen = np.clip(starts[rows], low, high), lbfgs.begin(starts[rows], 5), []
        for _ in range(25):
            found = [functions[row](x[k]) for k, row in enumerate(rows)]
            x, memory = lbfgs.advance(
                memory, x, np.array([f for f, _ in found]), np.array([g for _, g in found]), low, high, 1.0
            )
            seen.append(x)
        return np.stack(seen)

    together = path(list(range(count)))
    for row in range(count):
        np.testing.assert_allclose(together[:, row], path([row])[:, 0], rtol=1e-6, atol=1e-9)


def test_points_where_the_loss_is_not_finite_shorten_the_step():
    def wall(x):
        return (float(np.log(np.cosh(x)).sum()) if (x < 3.0).all() else np.nan), np.tanh(x)

    count, loss, x = minimum(wall, np.array([2.9, -50.0]), tolerance=1e-9)
    assert count < 60 and loss < 1e-15
    _, _, x = minimum(lambda x: (float(x @ x) if abs(x[0]) < 1.5 else np.inf, 2.0 * x), np.array([1.4]))
    assert abs(x[0]) < 1e-8


def test_at_a_kink_the_search_ends():
    x, memory = np.array([[0.7, -0.3]]), lbfgs.begin(np.zeros((1, 2)), 10)
    low, high = np.full(2, -np.inf), np.full(2, np.inf)
    for _ in range(500):
        f, g = np.abs(x[0]).sum(), np.sign(x[0])
        x, memory = lbfgs.advance(memory, x, np.array([f]), g[None], low, high, 1.0)
        if memory["done"][0]:
            break
    assert memory["done"][0] and np.abs(memory["x0"]).sum() < 1e-6


def section(**keys):
    return OptimizeSection.model_validate({"rule": "lbfgs", "steps": 100} | keys)


def test_a_descent_by_it_needs_no_learning_rate_and_says_why_it_was_over():
    params = QuadraticParams(x=5.0, target=[0.0, 2.0], scale=1000.0)
    with Session(Quadratic(params, wanted=["x"])) as session:
        found = descend(session, section(params=["x"], stop={"gradient_norm": 1e-9}))
    assert found.outputs["opt.x"] == pytest.approx(1.0, abs=1e-12) and found.outputs["opt.steps"] < 8
    assert STOPPED[int(found.outputs["opt.stopped"])] == "gradient_norm"
    with Session(Quadratic(params, wanted=["x"])) as session:
        found = descend(session, section(params=["x"], bounds={"x": [3.0, 9.0]}, scale={"x": 10.0}))
    assert found.outputs["opt.x"] == 3.0 and STOPPED[int(found.outputs["opt.stopped"])] == "no_descent"


def test_trials_of_a_batch_find_their_minima_in_their_own_time():
    params = drawn(5, seed=int(np.random.default_rng().integers(1000)))
    given = section(params=["x", "y"], stop={"gradient_norm": 1e-7})
    with BatchSession.open(Bowl, BowlParams(), 5) as batch:
        ends = descend_batch(batch, params, given)
    for one, end in zip(params, ends, strict=True):
        assert end.outputs["opt.x"] == pytest.approx(one.target, abs=1e-6) and np.abs(end.outputs["opt.y"]).max() < 0.01
        assert end.loss == end.outputs["opt.history"].min() and STOPPED[int(end.outputs["opt.stopped"])] == "gradient_norm"
    assert len({end.outputs["opt.steps"] for end in ends}) > 1


def test_a_loss_that_is_not_finite_at_the_start_is_the_end_and_a_probe_is_not():
    class CliffParams(JobParams):
        x: float = 1.0

    class Edge(Job[CliffParams]):
        gradients = ("x",)
        needs_compiler = False

        def build(self): ...

        def run(self):
            x = self.params.x
            return Outcome(float("nan") if x < -0.5 else (x + 0.25) ** 2 * 1e3, {"x": 2e3 * (x + 0.25)})

    with Session(Edge(CliffParams())) as session:
        found = descend(session, section(params=["x"], options={"first": 3.0}, stop={"gradient_norm": 1e-6}))
    assert np.isnan(found.outputs["opt.history"]).any() and found.outputs["opt.x"] == pytest.approx(-0.25)
    with Session(Edge(CliffParams(x=-1.0))) as session:
        found = descend(session, section(params=["x"]))
    assert STOPPED[int(found.outputs["opt.stopped"])] == "not_finite" and np.isnan(found.loss)
