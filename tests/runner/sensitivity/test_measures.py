"""Measures of a sweep beside closed forms: power laws, sums, products, Ishigami's function; and what the text says of them."""

import itertools
import math

import numpy as np
import pytest

from qdrun.runner.sensitivity.measures import interactions, measures
from qdrun.runner.sensitivity.points import NothingToSee, samples_of
from qdrun.runner.sensitivity.study import SensitivityStudy

RNG = np.random.default_rng()


def row(number, params, loss, slopes, **more):
    out = {"trial": f"t{number}", "status": "done", "loss": loss, "replicate": 0}
    out |= {f"param.{name}": value for name, value in params.items()}
    return out | {f"grad.{name}": value for name, value in slopes.items()} | more


def swept(function, slopes, axes, repeats=1, noise=0.0):
    """Rows of a grid; ``slopes``: the derivative by each parameter."""
    points = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()) for _ in range(repeats)]
    draw = lambda: noise * RNG.normal()
    return [
        row(k, p, function(**p) + draw(), {name: slope(**p) + draw() for name, slope in slopes.items()})
        for k, p in enumerate(points)
    ]


def whole(rows):
    return SensitivityStudy.of("run", samples_of(rows, "run"))


def test_a_power_law_has_its_exponents_as_elasticities_everywhere():
    p, q, c = RNG.uniform(-3, 3, 3)
    rows = swept(
        lambda a, b: c * a**p * b**q,
        {"a": lambda a, b: c * p * a ** (p - 1) * b**q, "b": lambda a, b: c * q * a**p * b ** (q - 1)},
        {"a": RNG.uniform(0.5, 2.0, 4).tolist(), "b": RNG.uniform(0.5, 2.0, 3).tolist()},
    )
    found = {m.name: m for m in measures(samples_of(rows, "run"))}
    for name, exponent in (("a", p), ("b", q)):
        assert found[name].elasticity == pytest.approx(exponent, rel=1e-9)
        assert found[name].elasticity_spread == pytest.approx(0.0, abs=1e-9)
        assert found[name].elasticity_error is None and found[name].effect_error is None


def test_an_array_of_numbers_has_the_elasticity_of_their_common_factor():
    x = RNG.uniform(0.5, 2.0, (5, 7))
    rows = [row(k, {"x": v.tolist()}, float((v**3).sum()), {"x": (3 * v**2).tolist()}) for k, v in enumerate(x)]
    (found,) = measures(samples_of(rows, "run"))
    assert found.numbers == 7 and found.width is None and found.total_bound is None
    assert found.elasticity == pytest.approx(3.0, rel=1e-12)
    assert found.effect == pytest.approx(np.mean([np.linalg.norm(3 * v**3) for v in x]), rel=1e-12)


def test_a_sum_has_no_interactions_and_a_product_has_its_own():
    axes = {"a": [0.0, 0.3, 1.0], "b": [0.0, 0.5, 2.0], "c": [1.0, 2.0]}
    parts = {"a": lambda a, b, c: 2 * a, "b": lambda a, b, c: math.cos(b), "c": lambda a, b, c: 3.0}
    for x in interactions(samples_of(swept(lambda a, b, c: a * a + math.sin(b) + 3 * c, parts, axes), "run")):
        assert x.strength == pytest.approx(0.0, abs=1e-12) and x.pairs > 0
    parts = {"a": lambda a, b, c: b, "b": lambda a, b, c: a, "c": lambda a, b, c: 3.0}
    first, *others = interactions(samples_of(swept(lambda a, b, c: a * b + 3 * c, parts, axes), "run"))
    assert (first.one, first.other) == ("a", "b")
    assert first.strength == pytest.approx(1.0 * 2.0 / (2.0 + 3.0), rel=1e-12), "the mixed derivative is 1"
    assert all(x.strength == pytest.approx(0.0, abs=1e-12) for x in others)


def test_without_lines_the_mixed_derivative_is_that_of_a_fit():
    points = RNG.uniform(0, 1, (20, 2))
    rows = [row(k, {"a": a, "b": b}, 4 * a * b, {"a": 4 * b, "b": 4 * a}) for k, (a, b) in enumerate(points.tolist())]
    (found,) = interactions(samples_of(rows, "run"))
    spread, widths = np.ptp(4 * points[:, 0] * points[:, 1]), np.ptp(points, axis=0)
    assert found.pairs == 0 and found.strength == pytest.approx(4 * widths.prod() / spread, rel=1e-9)


def test_ishigami_s_function_has_the_bounds_of_its_total_indices():
    """sin(x) + 7 sin(y)^2 + 0.1 z^4 sin(x): variance a^2/8 + b pi^4/5 + b^2 pi^8/18 + 1/2, means of squared derivatives by integration."""
    a, b = 7.0, 0.1
    n = 24  # midpoints of equal parts: exact for the trigonometric parts
    axis = (-math.pi + 2 * math.pi * (np.arange(n) + 0.5) / n).tolist()
    rows = swept(
        lambda x, y, z: math.sin(x) + a * math.sin(y) ** 2 + b * z**4 * math.sin(x),
        {
            "x": lambda x, y, z: (1 + b * z**4) * math.cos(x),
            "y": lambda x, y, z: 2 * a * math.sin(y) * math.cos(y),
            "z": lambda x, y, z: 4 * b * z**3 * math.sin(x),
        },
        dict.fromkeys("xyz", axis),
    )
    found = {m.name: m for m in measures(samples_of(rows, "run"))}
    variance = a * a / 8 + b * math.pi**4 / 5 + b * b * math.pi**8 / 18 + 0.5
    square = {
        "x": 0.5 * (1 + 2 * b * math.pi**4 / 5 + b * b * math.pi**8 / 9),
        "y": a * a / 2,
        "z": 0.5 * 16 * b * b * math.pi**6 / 7,
    }
    for name, mean in square.items():
        width = axis[-1] - axis[0]
        assert found[name].total_bound == pytest.approx(width**2 / math.pi**2 * mean / variance, rel=0.02)
    assert next(m.name for m in measures(samples_of(rows, "run"))) == "y"


def test_repeats_give_error_bars_of_the_mean():
    noise, repeats = 0.3, 400
    rows = swept(lambda a: 10.0 + 2 * a, {"a": lambda a: 2.0}, {"a": [1.0, 2.0, 3.0]}, repeats, noise)
    s = samples_of(rows, "run")
    (found,) = measures(s)
    assert s.points == 3 and (s.repeats == repeats).all()
    assert found.effect_error == pytest.approx(2.0 * noise / math.sqrt(3 * repeats), rel=0.15)
    assert abs(found.effect - 4.0) < 5 * found.effect_error
    assert "±" in whole(rows).text and "no point has repeats" not in whole(rows).text


@pytest.mark.parametrize("count", (3, 7))
def test_importance_is_one_line_with_the_shares_of_the_effects_largest_first(count):
    factors = dict(zip("abcdefg"[:count], range(1, count + 1), strict=True))
    slopes = {name: lambda k=float(k), **_: k for name, k in factors.items()}
    rows = swept(lambda **p: sum(factors[name] * p[name] for name in p), slopes, {key: [0.0, 1.0] for key in factors})
    (line,) = [line for line in whole(rows).text.splitlines() if line.startswith("importance")]
    shares = [f"{name} {100 * k / sum(factors.values()):.3g} %" for name, k in reversed(factors.items())]
    rest = ", and 2 more" if count == 7 else ""
    assert line == f"importance (share of the effects): {', '.join(shares[:5])}{rest}"


def test_a_wrong_gradient_contradicts_its_losses_and_a_right_one_does_not():
    axis = np.linspace(0.1, 2.0, 12).tolist()
    right = swept(lambda a: math.sin(2 * a), {"a": lambda a: 2 * math.cos(2 * a)}, {"a": axis})
    found = whole(right)
    assert found.contradictions == [] and found.compared == 11
    assert "losses and gradients agree between all of 11 pairs" in found.text
    wrong = swept(lambda a: math.sin(2 * a), {"a": lambda a: -2 * math.cos(2 * a)}, {"a": axis})
    found = whole(wrong)
    assert len(found.contradictions) >= 6 and "warning: losses contradict gradients" in found.text
    assert "`qdrun check` compares a gradient with differences" in found.text


def test_noise_of_repeats_is_no_contradiction():
    rows = swept(lambda a: 5 * a, {"a": lambda a: 5.0}, {"a": np.linspace(0, 1, 8).tolist()}, 20, 0.5)
    assert len(whole(rows).contradictions) <= 1, "three standard errors of 7 pairs"


def test_bad_gradients_are_named():
    rows = swept(lambda a: a, {"a": lambda a: 1.0}, {"a": [1.0, 2.0, 3.0, 4.0, 5.0]})
    rows[1]["grad.a"], rows[2]["grad.a"], rows[3]["grad.a"] = float("nan"), 0.0, 1e9
    found = whole(rows)
    faults = {h.trial: h.fault for h in found.health}
    assert faults == {"t0": "", "t1": "not finite", "t2": "zero", "t3": "1.0e+09 times the median", "t4": ""}
    assert "t1: not finite" in found.text
    chaotic = swept(lambda a, steps: a, {"a": lambda a, steps: 2.0**steps}, {"a": [1.0, 2.0], "steps": [100]})
    assert {h.fault for h in whole(chaotic).health} == {"grows 2.000 times with each time step"}


def test_a_rough_loss_is_a_warning():
    axis = np.linspace(0, 10, 21).tolist()
    rows = swept(lambda a: 1 + 0.01 * math.sin(900 * a), {"a": lambda a: 9 * math.cos(900 * a)}, {"a": axis})
    assert "the loss is rough (waves, jumps, chaos)" in whole(rows).text


def test_what_a_run_lacks_is_said():
    rows = swept(lambda a: a, {"a": lambda a: 1.0}, {"a": [1.0, 2.0]})
    rows.append({"trial": "t9", "status": "failed", "loss": None, "param.a": 3.0})
    found = whole(rows)
    assert found.samples.skipped == 1 and "1 more have no loss or no gradient" in found.text
    assert "no line of the sweep has three points" in found.text
    with pytest.raises(
        NothingToSee, match="run has no finished trial with a loss and a gradient of a parameter\n  do: name parameters"
    ):
        whole([{"trial": "t0", "status": "done", "loss": 1.0, "param.a": 1.0}])


def test_an_optimised_trial_counts_where_it_has_ended():
    rows = [
        row(k, {"x": 9.0, "y": float(k)}, x**3, {"x": 3 * x**2}, **{"out.opt.x": x})
        for k, x in enumerate(RNG.uniform(1, 2, 5).tolist())
    ]
    (found,) = measures(samples_of(rows, "run"))
    assert found.elasticity == pytest.approx(3.0, rel=1e-12)
