"""Update rules against their closed formulas and against torch.optim; learning rates, clipping and bounds."""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qdrun.runner.optimize.update_rules import (
    RULES,
    RuleState,
    clipped_rows,
    exponential,
    free_part,
    options_of,
    projected,
    rate_at,
    row_norms,
    update,
)

RELAXED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # machines of tests are shared
STEPS = 12
NUMBERS = st.floats(-100, 100).map(lambda x: round(x, 6))


def global_norm(arrays):
    """Of one trial."""
    return row_norms({name: value[None] for name, value in arrays.items()})[0]


def clipped(arrays, most):
    """Of one trial."""
    return {name: value[0] for name, value in clipped_rows({name: value[None] for name, value in arrays.items()}, most).items()}


def gradient(x):
    """Of sum((x - 1)^2 * (1, 2, 3, ..)) + the sine of the first: neither constant nor symmetric."""
    weights = np.arange(1, x.size + 1, dtype=np.float64).reshape(x.shape)
    return 2 * weights * (x - 1) + np.cos(x)


def path(rule, options, rate, start, steps=STEPS):
    """The points of a descent of two parameters."""
    x, state, points = dict(start), RuleState(), []
    for _ in range(steps):
        g = {name: gradient(value) for name, value in x.items()}
        x, state = update(rule, options_of(rule) | options, state, x, g, rate)
        points.append(x)
    return points


START = {"a": np.array([0.3, -2.0, 5.0]), "b": np.array(0.7)}
TORCH = {
    "sgd": ("SGD", {}, {}),
    "momentum": ("SGD", {"momentum": 0.8}, {"momentum": 0.8}),
    "nesterov": ("SGD", {"momentum": 0.8}, {"momentum": 0.8, "nesterov": True}),
    "adam": ("Adam", {"b1": 0.8, "b2": 0.95, "eps": 1e-6}, {"betas": (0.8, 0.95), "eps": 1e-6}),
    "adamw": ("AdamW", {"weight_decay": 0.1}, {"weight_decay": 0.1}),
    "rmsprop": ("RMSprop", {"decay": 0.9, "eps": 1e-6}, {"alpha": 0.9, "eps": 1e-6}),
    "adagrad": ("Adagrad", {"eps": 1e-6}, {"eps": 1e-6}),
}


@pytest.mark.parametrize("defaults", [True, False], ids=["defaults", "options"])
@pytest.mark.parametrize("rule", TORCH)
def test_a_rule_takes_the_steps_of_torch(rule, defaults):
    torch = pytest.importorskip("torch")
    name, ours, theirs = TORCH[rule]
    if defaults and rule not in ("momentum", "nesterov"):  # torch has no momentum unless it is given
        ours, theirs = {}, {}
    rate = 0.02
    tensors = {key: torch.tensor(value, dtype=torch.float64, requires_grad=True) for key, value in START.items()}
    optimizer = getattr(torch.optim, name)(tensors.values(), lr=rate, **theirs)
    for point in path(rule, ours, rate, START):
        for tensor in tensors.values():
            tensor.grad = torch.tensor(gradient(tensor.detach().numpy()), dtype=torch.float64)
        optimizer.step()
        for key, tensor in tensors.items():
            np.testing.assert_allclose(point[key], tensor.detach().numpy(), rtol=1e-12, atol=1e-14)


def constant(rule, steps, **options):
    """Where a parameter is after some steps of rate 0.1 along a gradient that is always 2, from 5."""
    x, state = {"x": np.array(5.0)}, RuleState()
    for _ in range(steps):
        x, state = update(rule, options_of(rule) | options, state, x, {"x": np.array(2.0)}, 0.1)
    return float(x["x"])


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_a_constant_gradient_gives_the_closed_formulas(steps):
    n = range(1, steps + 1)
    assert constant("sgd", steps) == pytest.approx(5 - 0.1 * 2 * steps, rel=1e-14)
    balls = [2 * (1 - 0.9**k) / 0.1 for k in n]
    assert constant("momentum", steps) == pytest.approx(5 - 0.1 * sum(balls), rel=1e-13)
    assert constant("nesterov", steps) == pytest.approx(5 - 0.1 * sum(2 + 0.9 * v for v in balls), rel=1e-13)
    assert constant("adam", steps, eps=0.0) == pytest.approx(5 - 0.1 * steps, rel=1e-13)
    assert constant("rmsprop", steps, eps=0.0) == pytest.approx(5 - sum(0.1 / math.sqrt(1 - 0.99**k) for k in n), rel=1e-12)
    assert constant("adagrad", steps, eps=0.0) == pytest.approx(5 - sum(0.1 / math.sqrt(k) for k in n), rel=1e-13)
    assert constant("lion", steps) == pytest.approx(5 - 0.1 * steps, rel=1e-13)
    shrinks = 5.0
    for _ in n:
        shrinks = shrinks - 0.1 * (1 + 0.01 * shrinks)
    assert constant("adamw", steps, eps=0.0) == pytest.approx(shrinks, rel=1e-13)
    assert constant("lion", steps, weight_decay=0.01) == pytest.approx(shrinks, rel=1e-13)


def test_lion_interpolates_with_one_factor_and_keeps_with_the_other():
    gradients = [3.0, -0.1, -1.0, 4.0]
    x, state, m, y = {"x": np.array(1.0)}, RuleState(), 0.0, 1.0
    for g in gradients:
        x, state = update("lion", options_of("lion"), state, x, {"x": np.array(g)}, 0.1)
        y -= 0.1 * np.sign(0.9 * m + 0.1 * g)
        m = 0.99 * m + 0.01 * g
        assert float(x["x"]) == pytest.approx(y, rel=1e-14)
    assert float(x["x"]) == pytest.approx(0.8, rel=1e-14)  # the signs of the gradients alone would lead to 1.0


@RELAXED
@given(st.sampled_from(sorted(RULES)), st.lists(NUMBERS, min_size=1, max_size=4), st.integers(1, 4))
def test_a_rule_works_element_by_element_and_changes_no_array_that_it_is_given(rule, values, steps):
    whole = {"x": np.array(values)}
    before = whole["x"].copy()
    together = path(rule, {}, 0.01, whole, steps)[-1]["x"]
    one = [path(rule, {}, 0.01, {"x": np.array(v)}, steps)[-1]["x"] for v in values[:1]]
    assert together[0] == one[0]
    assert np.array_equal(whole["x"], before)
    assert np.array_equal(together, path(rule, {}, 0.01, whole, steps)[-1]["x"])


@RELAXED
@given(st.lists(NUMBERS, min_size=1, max_size=6), st.floats(0.01, 50))
def test_clipping_keeps_the_direction_and_bounds_the_norm(values, most):
    g = {"a": np.array(values[:1]), "b": np.array(values[1:])}
    out = clipped(g, most)
    assert global_norm(out) <= most * (1 + 1e-12) or np.array_equal(out["a"], g["a"])
    norm = math.sqrt(sum(v * v for v in values))
    factor = min(1.0, most / norm) if norm else 1.0
    np.testing.assert_allclose(np.concatenate([out["a"], out["b"]]), factor * np.array(values), rtol=1e-12, atol=1e-300)
    if norm < most * (1 - 1e-12):
        assert np.array_equal(out["b"], g["b"])


def test_clipping_is_that_of_torch():
    torch = pytest.importorskip("torch")
    parameters = [torch.zeros(3, dtype=torch.float64), torch.zeros((), dtype=torch.float64)]
    g = {"a": np.array([3.0, -4.0, 12.0]), "b": np.array(84.0)}
    for parameter, value in zip(parameters, g.values()):
        parameter.grad = torch.tensor(value)
    torch.nn.utils.clip_grad_norm_(parameters, 17.0)
    for parameter, value in zip(parameters, clipped(g, 17.0).values()):
        np.testing.assert_allclose(value, parameter.grad.numpy(), rtol=1e-7)  # torch adds 1e-6 to the norm
    assert global_norm(g) == 85.0


def test_the_norm_neither_overflows_nor_hides_what_is_not_finite():
    assert global_norm({"a": np.array([3e200, 4e200])}) == pytest.approx(5e200, rel=1e-15)
    assert global_norm({"a": np.zeros(3)}) == 0.0
    assert not math.isfinite(global_norm({"a": np.array([1.0, math.inf])}))
    assert math.isnan(global_norm({"a": np.array([math.nan, 1.0])}))


def test_projection_and_what_a_bound_holds_back():
    bounds = {"a": (-1.0, 2.0)}
    x = projected({"a": np.array([-3.0, 0.5, 7.0]), "b": np.array(9.0)}, bounds)
    assert x["a"].tolist() == [-1.0, 0.5, 2.0] and x["b"] == 9.0
    g = {"a": np.array([4.0, 4.0, -4.0]), "b": np.array(1.0)}
    assert free_part(x, g, bounds)["a"].tolist() == [0.0, 4.0, 0.0]
    inwards = {"a": np.array([-4.0, 4.0, 4.0]), "b": np.array(1.0)}
    assert free_part(x, inwards, bounds)["a"].tolist() == [-4.0, 4.0, 4.0]


def test_learning_rates_follow_their_formulas():
    assert [rate_at(k, 0.3, 10) for k in (0, 9)] == [0.3, 0.3]
    falls = {"exponential": {"start": 0.8, "factor": 0.5, "every": 2, "end": 0.1}}
    assert [rate_at(k, falls, 10) for k in (0, 2, 4, 6, 9)] == pytest.approx([0.8, 0.4, 0.2, 0.1, 0.1])
    assert exponential(1, start=0.8, factor=0.5, every=2) == pytest.approx(0.8 * math.sqrt(0.5))
    cosine = {"cosine": {"start": 1.0, "end": 0.2}}
    assert [rate_at(k, cosine, 8) for k in (0, 4, 8, 99)] == pytest.approx([1.0, 0.6, 0.2, 0.2])
    assert rate_at(2, cosine, 8) == pytest.approx(0.2 + 0.4 * (1 + math.cos(math.pi / 4)))
    warm = {"warmup": {"peak": 1.0, "warmup_steps": 4, "start": 0.2, "end": 0.1}}
    assert [rate_at(k, warm, 12) for k in (0, 2, 4, 8, 12, 50)] == pytest.approx([0.2, 0.6, 1.0, 0.55, 0.1, 0.1])


@pytest.mark.parametrize(
    ("ours", "theirs", "arguments"), [("exponential", "ExponentialLR", {"gamma": 0.9}), ("cosine", "", {})]
)
def test_learning_rates_are_those_of_torch(ours, theirs, arguments):
    torch = pytest.importorskip("torch")
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    if theirs:
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, **arguments)
        numbers = {"start": 0.5, "factor": 0.9}
    else:
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=9, eta_min=0.05)
        numbers = {"start": 0.5, "end": 0.05}
    for step in range(9):
        assert rate_at(step, {ours: numbers}, 9) == pytest.approx(schedule.get_last_lr()[0], rel=1e-12)
        optimizer.step()
        schedule.step()
