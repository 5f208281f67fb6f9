"""The functions of one value on machines without C's library, run here: the GPU's own arithmetic rounds the same way."""

from __future__ import annotations

import numpy as np
import pytest
from test_math import EDGES, NAMES, RANGES, REFERENCE, ULP, N, compiled, exact, worst

from qdrun.compiler.codegen.math import reduction
from qdrun.compiler.ir.ops import TABLE
from qdrun.compiler.ir.types import f32, f64

BOUND = ULP | {"sin": 1.8, "cos": 1.8, "tan": 3.3}
WIDE = {"sin", "cos", "tan"}
TWO = frozenset(code for code, info in TABLE.items() if info.arity == 2)


POOR = {"i128": False, "missing": frozenset([f64])}
"""A device without f64 and integers of 128 bits."""


def alone(name, dtype, **target):
    return compiled(name, dtype, 1, libm=False, **target)


def bits_of_everything(rng, dtype):
    """Finite values of every exponent and sign."""
    x = rng.integers(0, 1 << (8 * dtype.size), N, dtype=f"u{dtype.size}").view(dtype.numpy)
    return np.where(np.isfinite(x), x, dtype.numpy.type(1))


@exact
@pytest.mark.parametrize("dtype", [f32, f64])
@pytest.mark.parametrize("name", NAMES)
def test_a_function_is_accurate_to_a_few_units_of_the_last_place(name, dtype):
    rng = np.random.default_rng(11)
    run = alone(name, dtype)
    inputs = [
        [rng.uniform(low, high, N).astype(dtype.numpy) for _ in range(2)]
        for low, high in RANGES[name]
        if high < 1e35 or dtype is f64
    ]
    for low, _ in [r for r in RANGES[name] if name == "pow" and r[0] < 0]:
        inputs.append([rng.uniform(low, 3, N).astype(dtype.numpy), rng.integers(-15, 15, N).astype(dtype.numpy)])
    if name != "pow":  # long double is no reference for powers of any size
        inputs.append([bits_of_everything(rng, dtype), bits_of_everything(rng, dtype)])
    for xs in inputs:
        xs = xs[: 2 if name in TWO else 1]
        with np.errstate(all="ignore"):
            want = REFERENCE[name](*(x.astype(np.longdouble) for x in xs))
            error = worst(run(*xs), want, dtype)
        assert error <= BOUND[name], (name, error)


@exact
def test_powers_of_f32_without_f64_are_accurate_whatever_the_size_of_the_base():
    rng, run = np.random.default_rng(), alone("pow", f32, **POOR)
    x = np.abs(bits_of_everything(rng, f32))
    x = np.where(x > 0, x, np.float32(1))
    with np.errstate(all="ignore"):
        y = (rng.uniform(-150, 128, N) / np.log2(x.astype("f8"))).astype("f4")
        y = np.where(np.isfinite(y), y, np.float32(0))
        want = np.power(x.astype(np.longdouble), y.astype(np.longdouble))
    assert 0.5 < worst(run(x, y), want, f32) < 0.8


@pytest.mark.parametrize("name", NAMES)
def test_f32_has_the_same_bits_without_f64(name):
    rng = np.random.default_rng()
    with_f64, without = alone(name, f32), alone(name, f32, **POOR)
    assert "double" not in without.text
    if name == "pow":  # in pairs of f32
        return
    xs = [bits_of_everything(rng, f32) for _ in range(2 if name in TWO else 1)]
    with np.errstate(all="ignore"):
        a, b = with_f64(*xs), without(*xs)
    assert np.array_equal(a, b, equal_nan=True)


@pytest.mark.parametrize("name", sorted(WIDE))
def test_the_long_reduction_has_the_same_bits_without_integers_of_128_bits(name):
    x = bits_of_everything(np.random.default_rng(), f64)
    with_them, without = alone(name, f64), alone(name, f64, i128=False)
    assert "i128" in with_them.text and "i128" not in without.text
    assert with_them(x).tobytes() == without(x).tobytes()


@exact
@pytest.mark.parametrize("dtype, target", [(f32, {}), (f64, {}), (f32, POOR)], ids=["f32", "f64", "f32 without f64"])
@pytest.mark.parametrize("name", NAMES)
def test_special_values_follow_the_rules_of_c(name, dtype, target):
    with np.errstate(all="ignore"):
        xs = [np.array(EDGES, np.float64).astype(dtype.numpy)]
        if name in TWO:
            xs = [np.repeat(xs[0], len(EDGES)), np.tile(xs[0], len(EDGES))]
        want = REFERENCE[name](*(x.astype(np.longdouble) for x in xs))
        got = alone(name, dtype, **target)(*xs)
        near = want.astype(dtype.numpy)
        error = np.abs(got.astype(np.longdouble) - want) / np.spacing(np.abs(near)).astype(np.longdouble)
    special = ~np.isfinite(near) | (near == 0)
    same = (got.view(f"i{dtype.size}") == near.view(f"i{dtype.size}")) | (np.isnan(got) & np.isnan(near))
    bad = np.where(special, ~same, ~(error <= 4))
    assert not bad.any(), [(*(x[k] for x in xs), got[k], near[k]) for k in np.flatnonzero(bad)[:6]]


def test_the_table_is_two_over_pi():
    one = 1 << 1300  # pi = 16 atan(1/5) - 4 atan(1/239)

    def arctan_of_inverse(n):
        total, term, k = 0, one // n, 0
        while term:
            total += (-1) ** k * (term // (2 * k + 1))
            term, k = term // (n * n), k + 1
        return total

    pi = 16 * arctan_of_inverse(5) - 4 * arctan_of_inverse(239)
    bits = 4 * len(reduction.TWO_OVER_PI)
    assert bits >= 1213  # the first bit of the largest f64's window, and 192 more
    assert (2 * one << bits) // pi == int(reduction.TWO_OVER_PI, 16)


def test_an_argument_almost_a_multiple_of_half_pi_keeps_all_its_digits():
    """The f64 nearest to one (Kahan), and an f32 of the kind."""
    x = np.ldexp(6381956970095103.0, 797)
    assert alone("cos", f64)(np.array([x, -x])).tolist() == pytest.approx([-4.68716592425462761112e-19] * 2, rel=3e-16, abs=0)
    y = np.float32(np.ldexp(16367173.0, 72))
    assert alone("cos", f32)(np.array([y, -y])).tolist() == pytest.approx([-1.6147697982476211883e-9] * 2, rel=2e-7, abs=0)


@pytest.mark.parametrize("dtype", [f32, f64])
@pytest.mark.parametrize("name", sorted(WIDE))
def test_the_two_reductions_meet(name, dtype):
    """Around the greatest argument of the short one nothing jumps; both sides of it and both signs agree with numpy's f64."""
    limit = dtype.numpy.type(1e5 if dtype is f32 else 1e9)
    steps = np.arange(-2000, 2000)
    x = (limit.view(f"i{dtype.size}") + steps).astype(f"i{dtype.size}").view(dtype.numpy)
    x = np.concatenate([x, -x])
    want = REFERENCE[name](x.astype(np.float64))
    assert np.allclose(alone(name, dtype)(x), want, rtol=1e-6 if dtype is f32 else 2e-15, atol=0)


@pytest.mark.parametrize("dtype", [f32, f64])
def test_the_same_argument_gives_the_same_bits_in_any_company(dtype):
    """What a replay relies on: alone, or among others in a loop that LLVM may unroll."""
    rng = np.random.default_rng(2)
    x = rng.uniform(-300, 300, 4099).astype(dtype.numpy)
    for name in NAMES:
        run = alone(name, dtype)
        together = run(x, x[::-1].copy()) if name in TWO else run(x)
        one_by_one = [
            run(x[k : k + 1], x[::-1][k : k + 1].copy()) if name in TWO else run(x[k : k + 1]) for k in range(0, 4099, 41)
        ]
        assert np.concatenate(one_by_one).tobytes() == together[::41].tobytes()
