"""The optimiser in the program of a batch: its rules in closed form, what crosses the bus, and its bytes in the plan."""

from collections import Counter

import numpy as np
import pytest
from pydantic import Field, model_validator

import qdrun as qd
from qdrun.jobs.base import Job, JobParams, Session
from qdrun.jobs.core.batch import BatchSession, batch_plan
from qdrun.runner.config.optimize_section import OptimizeSection
from qdrun.runner.optimize.descent import descend, descend_columns
from qdrun.runner.optimize.evaluate import DescentError, Starts
from qdrun.runner.optimize.points import optimizer_of
from qdrun.runner.optimize.update_rules import RULES, memory_of

ROWS = 5
EMULATED = {"backend": "cuda", "device": "emulated"}


@pytest.fixture
def rng():
    return np.random.default_rng()


class ValleyParams(JobParams):
    a: float = Field(0.5, gt=-3.0)
    b: list[list[float]] = Field([[1.0, -2.0, 0.5], [0.2, 0.1, -0.4]])
    c: tuple[float, ...] = (0.3,) * 4


class Valley(Job[ValleyParams]):
    """sum w (p - 1)^2 + sin(p) over all numbers p, with weights w = 1, 2, 3, ..; the gradient of ``c`` is wanted, and it is not moved."""

    gradients = ("a", "b", "c")

    def build(self):
        a, b, c, loss, half = self.input("a"), self.input("b"), self.input("c"), self.objective(), self.output("half", 2)

        @qd.kernel
        def valley():
            loss[None] += (a[None] - 1.0) ** 2 + qd.sin(a[None])
            for i in range(2):
                for j in range(3):
                    loss[None] += (2 + 3 * i + j) * (b[i, j] - 1.0) ** 2 + qd.sin(b[i, j])
                half[i] = 0.5 * b[i, 0]
            for i in range(4):
                loss[None] += c[i] ** 2

        self.valley = valley

    def simulate(self):
        self.valley()


class Single(Valley):
    precision = "f32"


WEIGHTS = np.arange(1.0, 8.0)


def gradient(x):
    """(R, 7)."""
    return 2.0 * WEIGHTS * (x - 1.0) + np.cos(x)


def norm(g):
    return np.sqrt((g**2).sum(axis=1))


def closed_form(rule, o, x, rate, steps, scale, low, high, clip):
    """The points (steps + 1, R, 7) of descents, written after the papers and not after the rules: sums over all earlier gradients."""
    y, points, seen = x / scale, [x], []
    for step in range(1, steps + 1):
        g = scale * gradient(points[-1])
        if clip is not None:
            g = g * np.minimum(1.0, clip / norm(g))[:, None]
        seen.append(g)

        def mean(decay, of, seen=seen):
            """Of an exponential average, its sum so far."""
            return sum(decay ** (len(seen) - 1 - k) * of(one) for k, one in enumerate(seen))

        match rule:
            case "sgd":
                move = g
            case "momentum":
                move = mean(o.get("momentum", 0.9), lambda g: g)
            case "nesterov":
                move = g + o.get("momentum", 0.9) * mean(o.get("momentum", 0.9), lambda g: g)
            case "adam" | "adamw":
                b1, b2 = o.get("b1", 0.9), o.get("b2", 0.999)
                m, v = (mean(b, lambda g, b=b, n=n: (1 - b) * g**n) / (1 - b**step) for n, b in ((1, b1), (2, b2)))
                move = m / (v**0.5 + o.get("eps", 1e-8)) + (o.get("weight_decay", 0.01) * y if rule == "adamw" else 0.0)
            case "rmsprop":
                move = g / (mean(o.get("decay", 0.99), lambda g: (1 - o.get("decay", 0.99)) * g**2) ** 0.5 + 1e-8)
            case "adagrad":
                move = g / (sum(g**2 for g in seen) ** 0.5 + 1e-10)
            case "lion":
                b1, b2 = o.get("b1", 0.9), o.get("b2", 0.99)
                before = sum(b2 ** (len(seen) - 2 - k) * (1 - b2) * one for k, one in enumerate(seen[:-1]))
                move = np.sign(b1 * before + (1 - b1) * g) + o.get("weight_decay", 0.0) * y
        y = np.clip(y - rate * move, low / scale, high / scale)
        points.append(np.clip(scale * y, low, high))
    return np.array(points)


OPTIONS = {
    "momentum": {"momentum": 0.7},
    "nesterov": {"momentum": 0.6},
    "adam": {"b1": 0.8, "b2": 0.95, "eps": 1e-6},
    "adamw": {"weight_decay": 0.2},
    "rmsprop": {"decay": 0.9},
    "lion": {"b1": 0.8, "b2": 0.9, "weight_decay": 0.1},
}


def starts(rng, rows=ROWS):
    columns = {"a": rng.uniform(-1, 2, rows), "b": rng.normal(size=(rows, 2, 3)), "c": rng.normal(size=(rows, 4))}
    return Starts(ValleyParams(), columns, rows), np.concatenate([columns["a"][:, None], columns["b"].reshape(rows, 6)], axis=1)


def section(**keys):
    return OptimizeSection.model_validate({"params": ["a", "b"], "steps": 6, "learning_rate": 0.03} | keys)


def opened(given, job=Valley, rows=ROWS, **how):
    return BatchSession.open(job, ValleyParams(), rows, optimizer=optimizer_of(given, ValleyParams()), **how)


FAST = [(rule, False, {}) for rule in RULES] + [("adam", False, EMULATED)]
CASES = FAST + [
    pytest.param(rule, plain, how, marks=pytest.mark.slow)
    for rule in RULES
    for plain in (True, False)
    for how in ({}, EMULATED)
    if (rule, plain, how) not in FAST
]


@pytest.mark.parametrize(("rule", "plain", "how"), CASES)
def test_a_rule_on_the_device_takes_the_steps_of_its_closed_form(rule, plain, how, rng):
    options = {} if plain else OPTIONS.get(rule, {})
    scale = np.ones(7)
    low, high, clip = np.full(7, -np.inf), np.full(7, np.inf), None
    keys = {"rule": rule, "options": options, "keep": "last", "stop": {}}
    if not plain:
        scale[0], low[1:], high[1:], clip = 3.0, -0.9, 1.1, 2.0
        keys |= {"scale": {"a": 3.0}, "bounds": {"b": [-0.9, 1.1]}, "clip": clip}
    given, (start, x) = section(**keys), starts(rng)
    points = closed_form(rule, options, x, 0.03, given.steps, scale, low, high, clip)
    with opened(given, **how) as batch:
        ends = descend_columns(batch, start, given)
        assert batch.optimizer is not None and tuple(batch.optimizer.memory) == memory_of(rule)
    found = np.concatenate([ends.outputs["opt.a"][:, None], ends.outputs["opt.b"].reshape(ROWS, 6)], axis=1)
    np.testing.assert_allclose(found, points[-1], rtol=1e-11, atol=1e-12)
    losses = (WEIGHTS * (points - 1.0) ** 2 + np.sin(points)).sum(axis=2) + (start.inputs["c"] ** 2).sum(axis=1)
    np.testing.assert_allclose(ends.history, losses.T, rtol=1e-11)
    last, pull = points[-1], gradient(points[-1])
    np.testing.assert_allclose(ends.gradients["b"].reshape(ROWS, 6), pull[:, 1:], rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(ends.gradients["c"], 2.0 * start.inputs["c"], rtol=1e-12)
    np.testing.assert_allclose(ends.outputs["half"], 0.5 * last[:, [1, 4]], rtol=1e-11)
    free = np.where(((last <= low) & (pull > 0)) | ((last >= high) & (pull < 0)), 0.0, scale * pull)
    np.testing.assert_allclose(ends.outputs["opt.gradient_norm"], norm(free), rtol=1e-9)


def test_the_best_step_of_each_trial_is_kept_with_its_gradient_and_outputs(rng):
    given, (start, x) = section(rule="sgd", learning_rate=0.16), starts(rng)
    points = closed_form("sgd", {}, x, 0.16, given.steps, np.ones(7), np.full(7, -np.inf), np.full(7, np.inf), None)
    with opened(given) as batch:
        ends = descend_columns(batch, start, given)
    best = ends.history.argmin(axis=1)
    assert np.array_equal(ends.outputs["opt.kept"], best) and set(best) & set(range(given.steps))
    kept = points[best, np.arange(ROWS)]
    np.testing.assert_allclose(ends.outputs["opt.a"], kept[:, 0], rtol=1e-12)
    np.testing.assert_allclose(ends.gradients["b"].reshape(ROWS, 6), gradient(kept)[:, 1:], rtol=1e-9)
    np.testing.assert_allclose(ends.outputs["half"], 0.5 * kept[:, [1, 4]], rtol=1e-12)


class Counting(Valley):
    """A job that is built for each run."""

    def build(self):
        self.calls = 0
        super().build()

    def simulate(self):
        self.calls += 1
        super().simulate()


class Wearing(Valley):
    """A job whose runs overwrite an input."""

    def build(self):
        super().build()
        c = self.declared.inputs["c"]

        @qd.kernel
        def wear():
            for i in range(4):
                c[i] *= 0.5

        self.wear = wear

    def simulate(self):
        self.wear()
        super().simulate()


def test_inputs_that_runs_overwrite_are_written_before_each_step(rng):
    given, start = section(rule="adam", params=["a", "b"]), starts(rng)[0]
    with opened(given, Wearing, wanted=("a", "b")) as batch:
        ends = descend_columns(batch, start, given)
        assert batch.job.optimizer is not None and batch.optimizer is None
    halved = Starts(start.params, {**start.inputs, "c": 0.5 * start.inputs["c"]}, start.count)
    with opened(given, Valley, wanted=("a", "b")) as batch:
        want = descend_columns(batch, halved, given)
    np.testing.assert_allclose(ends.history, want.history, rtol=1e-12)


def test_a_job_that_is_built_for_each_run_takes_its_steps_on_the_host(rng):
    given, start = section(rule="adam", clip=3.0), starts(rng)[0]
    ends = []
    for job in (Valley, Counting):
        with opened(given, job) as batch:
            ends.append(descend_columns(batch, start, given))
            assert ("attribute" in batch.job.launched()) == (job is Counting)
    np.testing.assert_allclose(ends[0].history, ends[1].history, rtol=1e-13)
    np.testing.assert_allclose(ends[0].outputs["opt.b"], ends[1].outputs["opt.b"], rtol=1e-12)


def test_points_of_f32_are_kept_in_f64(rng):
    """A step of less than half a unit in the last place of f32 would be lost in it."""
    given, (start, x) = section(rule="sgd", learning_rate=1e-9, steps=3, keep="last"), starts(rng)
    with opened(given, Single) as batch:
        ends = descend_columns(batch, start, given)
    moved = ends.outputs["opt.a"] - x[:, 0]
    np.testing.assert_allclose(moved, -3e-9 * gradient(x)[:, 0], rtol=1e-4)


class LongParams(JobParams):
    x: list[float] = [0.1] * 128


class Long(Job[LongParams]):
    """sum x^2 of many numbers: what lies between the small fields of two trials is not worth a copy."""

    gradients = ("x",)

    def build(self):
        x, loss = self.input("x"), self.objective()

        @qd.kernel
        def total():
            for i in range(128):
                loss[None] += x[i] ** 2

        self.total = total

    def simulate(self):
        self.total()


@pytest.mark.parametrize("clip", [None, pytest.param(1.0, marks=pytest.mark.slow)])
def test_no_column_of_parameters_or_gradients_crosses_the_bus_between_steps(clip, rng, monkeypatch):
    """A step sends one number of each trial and reads two; one more each with ``clip``."""
    rows, bytes_of, times, params = 40, dict[int, int](), dict[int, int](), LongParams()
    start = Starts(params, {"x": rng.normal(size=(rows, 128))}, rows)
    for steps in (4, 6):
        given = section(steps=steps, rule="adam", clip=clip, params=["x"])
        with BatchSession.open(Long, params, rows, optimizer=optimizer_of(given, params), **EMULATED) as batch:
            batch.run_columns(start.inputs)
            driver, count = batch.job.program.device.driver, Counter()
            with monkeypatch.context() as patch:
                for name in ("upload", "download"):
                    patch.setattr(driver, name, counted(getattr(driver, name), name, count))
                descend_columns(batch, start, given)
            bytes_of[steps], times[steps] = count["bytes"], count["upload"] + count["download"]
    assert bytes_of[6] - bytes_of[4] == 2 * rows * (4 + 2 * 8 + 2 * 8 * (clip is not None))
    assert times[6] - times[4] == 2 * (2 + (clip is not None))


def counted(copy, name, count):
    def run(to, source, nbytes, stream):
        count[name] += 1
        count["bytes"] += nbytes
        return copy(to, source, nbytes, stream)

    return run


@pytest.mark.parametrize("how", [{}, pytest.param(EMULATED, marks=pytest.mark.slow)], ids=["cpu", "emulated"])
@pytest.mark.parametrize("rule", ["adam", "sgd"])
def test_the_plan_of_a_batch_has_the_bytes_of_its_optimizer(rule, how, rng):
    given, rows = section(rule=rule, clip=1.0), 19
    built = {"backend": "cpu"} | ({"arch": "cuda"} if how else {})
    plan, bare = (
        batch_plan(Valley, ValleyParams(), threads=1, optimizer=spec, **built)
        for spec in (optimizer_of(given, ValleyParams()), None)
    )
    with opened(given, rows=rows, threads=1, **how) as batch:
        descend_columns(batch, starts(rng, rows)[0], given)
    assert batch.peak_bytes == plan.bytes(rows)
    numbers = 7 * (2 + len(memory_of(rule))) + 11 + 2  # points and memory; best gradients; best outputs
    assert plan.per_trial - bare.per_trial >= 8 * numbers


# ---- what a job allows


def ordered(params):
    if params.x[0] > params.x[1]:
        raise ValueError("x[0] is above x[1]")
    return params


class PairParams(JobParams):
    x: tuple[float, float] = (0.0, 1.0)
    to: float = 0.0

    _ordered = model_validator(mode="after")(ordered)


class Pair(Job[PairParams]):
    """(x0 - 2)^2 + 0.1 (x1 - to)^2, of an ordered pair."""

    gradients = ("x",)

    def build(self):
        x, to, loss = self.input("x"), self.input("to"), self.objective()

        @qd.kernel
        def pair():
            loss[None] += (x[0] - 2.0) ** 2 + 0.1 * (x[1] - to[None]) ** 2

        self.pair = pair

    def simulate(self):
        self.pair()


def pairs(given, job=Pair, model=PairParams, **how):
    """The ends of three descents on the device, on the host, and alone."""
    columns = {"x": np.array([[0.0, 1.0], [-1.0, 0.5], [0.1, 3.0]]), "to": np.array([5.0, 0.0, 5.0])}
    params, found = [model(x=tuple(x), to=to) for x, to in zip(columns["x"], columns["to"], strict=True)], []
    for spec in (optimizer_of(given, params[0]), None):
        with BatchSession.open(job, params[0], 3, optimizer=spec, **how) as batch:
            found.append(list(descend_columns(batch, Starts(params[0], columns, 3), given)))
    alone = []
    for one in params:
        with Session(job(one)) as session:
            try:
                alone.append(descend(session, given))
            except DescentError as error:
                alone.append(error)
    return [*found, alone]


def test_a_validator_of_the_job_is_asked_about_the_kept_point_alone():
    """The first two trials pass through points that it refuses; the best point of the second is one."""
    given = OptimizeSection.model_validate({"params": ["x"], "rule": "sgd", "learning_rate": 0.2, "steps": 30})
    for ends in pairs(given):
        assert [type(end).__name__ for end in ends] == ["Outcome", "DescentError", "Outcome"]
        assert "step 30 sets" in str(ends[1]) and "x[0] is above x[1]" in str(ends[1])
        last = np.array([2.0 - 2.0 * 0.6**30, 5.0 - 4.0 * 0.96**30])
        np.testing.assert_allclose(ends[0].outputs["opt.x"], last, rtol=1e-12)


@pytest.mark.parametrize("how", [{}, pytest.param(EMULATED, marks=pytest.mark.slow)], ids=["cpu", "emulated"])
def test_a_trial_that_leaves_its_limits_fails_at_that_step_and_no_other_does(how):
    columns = {"a": np.array([-2.9, 0.0, 1.0]), "b": np.zeros((3, 2, 3)), "c": np.zeros((3, 4))}
    given, ends = section(rule="sgd", learning_rate=0.078, steps=3, scale={"a": 4.0}, params=["a"]), []
    for spec in (optimizer_of(given, ValleyParams()), None):
        with BatchSession.open(Valley, ValleyParams(), 3, optimizer=spec, **how) as batch:
            ends.append(descend_columns(batch, Starts(ValleyParams(), columns, 3), given))
            assert (batch.optimizer is None) == (spec is None)
    device, host = ends
    assert set(device.errors) == set(host.errors) == {0}
    assert (
        isinstance(device[0], DescentError)
        and str(device[0]).startswith("step 2 sets a to -")
        and str(device[0]) == str(host[0])
    )
    for row in (1, 2):
        assert device[row].outputs["opt.steps"] == 3.0 and device[row].loss == pytest.approx(host[row].loss, rel=1e-12)
