"""Every operation on every type it takes computes what ``ir.meaning`` says, one lane or eight."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from codegen_harness import Compiled, field, parallel

from qdrun.compiler.ir.meaning import evaluate
from qdrun.compiler.ir.nodes import Kernel
from qdrun.compiler.ir.ops import COMPARE, TABLE
from qdrun.compiler.ir.types import ALL, DType, i32, u1

N = 300
KINDS = {"any": "fiub", "number": "fiu", "real": "f", "int": "iub", "bool": "b"}
PURE = [c for c, info in TABLE.items() if info.pure and info.arity > 0 and c not in ("cast", "bitcast")]
INEXACT = {"sin", "cos", "tan", "asin", "acos", "tanh", "exp", "log", "atan2", "pow"}
CASES = [(c, d) for d in ALL.values() for c in PURE if d.kind in KINDS[TABLE[c].domain]]
CASTS = [(a, b) for a in ALL.values() for b in ALL.values()]


def operands(dtype: DType, seed: int) -> np.ndarray:
    """Random values with every awkward one among them; each seed puts them in another order."""
    rng = np.random.default_rng(seed)
    if dtype is u1:
        return rng.integers(0, 2, N).astype(bool)
    if dtype.is_real:
        info = np.finfo(dtype.numpy)
        edges = [
            0.0,
            -0.0,
            np.inf,
            -np.inf,
            np.nan,
            1,
            -1,
            0.5,
            1.5,
            2.5,
            -0.5,
            info.max,
            info.tiny,
            info.smallest_subnormal,
            3e9,
            1e20,
        ]
        with np.errstate(over="ignore"):
            out = np.concatenate([rng.uniform(-4, 4, N - 64), np.repeat(edges, 4)]).astype(dtype.numpy)
    else:
        low, high = (-(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1) if dtype.kind == "i" else (0, (1 << dtype.bits) - 1)
        edges = [
            low,
            low + 1,
            high,
            high - 1,
            0,
            1,
            2,
            3,
            7,
            64,
            -1 % (1 << dtype.bits) if low == 0 else -1,
            dtype.bits,
            5,
            4,
            3,
            2,
        ]
        wide = rng.integers(low, high, N - 164, dtype.numpy, endpoint=True)
        small = rng.integers(max(low, -9), 10, 100).astype(dtype.numpy)
        out = np.concatenate([wide, small, np.repeat(np.array(edges, dtype.numpy), 4)])
    rng.shuffle(out)
    return out


@cache
def all_results(dtype: DType, lanes: int) -> dict[str, np.ndarray]:
    """One kernel with every operation on a type, run once."""
    codes = [c for c, d in CASES if d is dtype]
    inputs = [field(f"x{k}", dtype, N) for k in range(3)]
    cond = field("c", u1, N)
    task, i, b = parallel(N)
    xs, c = [b.gload(x, (i,)) for x in inputs], b.gload(cond, (i,))
    places = {}
    for code in codes:
        given = i32 if code in ("popcnt", "clz") else None
        args = (c, *xs[1:]) if code == "select" else xs[: TABLE[code].arity]
        out = b.op(code, *args, dtype=given)
        places[code] = field(code, out.dtype, N)
        b.gstore(places[code], (i,), out)
    arrays = {p.buffer: np.zeros(N, p.dtype.numpy) for p in places.values()}
    arrays |= {x.buffer: operands(dtype, k) for k, x in enumerate(inputs)} | {cond.buffer: operands(u1, 9)}
    Compiled(Kernel("all", [], [task]), lanes)(fields=arrays)
    return {code: arrays[p.buffer] for code, p in places.items()}


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize(("code", "dtype"), CASES, ids=[f"{c}-{d}" for c, d in CASES])
def test_an_operation_computes_what_the_table_says(code, dtype, lanes):
    got = all_results(dtype, lanes)[code]
    xs = [operands(dtype, k) for k in range(3)]
    args = [operands(u1, 9), xs[1], xs[2]] if code == "select" else xs[: TABLE[code].arity]
    result = u1 if code in COMPARE or TABLE[code].result == "bool" else i32 if code in ("popcnt", "clz") else dtype
    expect = np.array([evaluate(code, [a[k] for a in args], result) for k in range(N)], result.numpy)
    if code in INEXACT and dtype.is_real:
        close(got, expect, dtype, code)
    else:
        same = (got == expect) | (isnan(got) & isnan(expect))
        assert same.all(), [(*(a[k] for a in args), got[k], expect[k]) for k in np.flatnonzero(~same)[:5]]


def isnan(x):
    return np.isnan(x) if x.dtype.kind == "f" else np.zeros(x.shape, bool)


def close(got, expect, dtype, code):
    special = ~np.isfinite(expect)
    assert np.array_equal(got[special], expect[special], equal_nan=True), code
    ulp = np.spacing(np.abs(expect[~special])).astype(np.float64)
    error = np.abs(got[~special].astype(np.float64) - expect[~special].astype(np.float64)) / ulp
    assert error.max() <= 4, (code, error.max(), got[~special][error.argmax()], expect[~special][error.argmax()])


@cache
def cast_results(lanes: int) -> dict[tuple[DType, DType], np.ndarray]:
    task, i, b = parallel(N)
    arrays, places = {}, {}
    for src in ALL.values():
        x = field("x", src, N)
        arrays[x.buffer] = operands(src, 5)
        value = b.gload(x, (i,))
        for dst in ALL.values():
            places[src, dst] = field("y", dst, N)
            b.gstore(places[src, dst], (i,), b.cast(value, dst))
    arrays |= {p.buffer: np.zeros(N, p.dtype.numpy) for p in places.values()}
    Compiled(Kernel("casts", [], [task]), lanes)(fields=arrays)
    return {key: arrays[p.buffer] for key, p in places.items()}


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize(("src", "dst"), CASTS, ids=[f"{a}-{b}" for a, b in CASTS])
def test_a_cast_wraps_integers_and_saturates_floats(src, dst, lanes):
    got, x = cast_results(lanes)[src, dst], operands(src, 5)
    expect = np.array([evaluate("cast", [v], dst) for v in x], dst.numpy)
    same = (got == expect) | (isnan(got) & isnan(expect))
    assert same.all(), [(x[k], got[k], expect[k]) for k in np.flatnonzero(~same)[:5]]


@pytest.mark.parametrize("lanes", [1, 8])
def test_a_bitcast_keeps_the_bits(lanes):
    pairs = [(a, b) for a, b in CASTS if a.bits == b.bits and a is not b]
    task, i, b = parallel(N)
    arrays, checks = {}, []
    for src, dst in pairs:
        x, y = field("x", src, N), field("y", dst, N)
        arrays[x.buffer], arrays[y.buffer] = operands(src, 1), np.zeros(N, dst.numpy)
        b.gstore(y, (i,), b.op("bitcast", b.gload(x, (i,)), dtype=dst))
        checks.append((x.buffer, y.buffer))
    Compiled(Kernel("bits", [], [task]), lanes)(fields=arrays)
    for x, y in checks:
        assert arrays[x].tobytes() == arrays[y].tobytes()
