"""Every operation on every type computes what ``ir.meaning`` says, at every pair of special values: in machine code with one lane or eight,
on the emulated device, in the interpreter, and where either folder computes it.
"""

from __future__ import annotations

import warnings
from functools import cache

import numpy as np
import pytest
from codegen_harness import Compiled, field, parallel
from grid_harness import GridCompiled

from qdrun.compiler.frontend.values.fold import fold as fold_literals
from qdrun.compiler.ir.builder import convert
from qdrun.compiler.ir.meaning import evaluate, limits, scalar
from qdrun.compiler.ir.nodes import Const, Kernel, Op
from qdrun.compiler.ir.ops import COMPARE, TABLE, is_function
from qdrun.compiler.ir.types import ALL, DType, f64, i32, u1
from qdrun.compiler.passes.simplify.fold import fold_op
from qdrun.compiler.runtime.python.interpret import Memory, run_kernel

HOW = ["one", "eight", pytest.param("grid", marks=pytest.mark.slow), pytest.param("interpreter", marks=pytest.mark.slow)]
N = 420
KINDS = {"any": "fiub", "number": "fiu", "real": "f", "int": "iub", "bool": "b"}
PURE = [c for c, info in TABLE.items() if info.pure and info.arity > 0 and c not in ("cast", "bitcast")]
INEXACT = frozenset(filter(is_function, TABLE))
CASES = [(c, d) for d in ALL.values() for c in PURE if d.kind in KINDS[TABLE[c].domain]]
CASTS = [(a, b) for a in ALL.values() for b in ALL.values()]


def special(dtype: DType) -> list[float | int | bool]:
    """The awkward values of a type."""
    if dtype is u1:
        return [False, True]
    if dtype.is_real:
        info = np.finfo(dtype.numpy)
        positive = [0.0, float(info.smallest_subnormal), 0.5, 1.0, 1.5, 2.5, 3.0, float(info.max), np.inf]
        return [np.nan, *positive, *(-x for x in positive)]
    low, high = limits(dtype)
    small = [-9, -3, -2, -1] if low else []
    return [low, low + 1, *small, 0, 1, 2, 3, 5, 7, dtype.bits - 1, dtype.bits, dtype.bits + 1, 64, high - 1, high]


@cache
def operands(dtype: DType, position: int) -> np.ndarray:
    """The operand at a position of ``N`` calls: every pair of special values, then random ones."""
    rng = np.random.default_rng(position)
    edges = np.array(special(dtype), dtype.numpy)
    pairs = np.repeat(edges, len(edges)) if position == 0 else np.tile(edges, len(edges))
    pairs = np.roll(pairs, 7 * (position == 2))
    n = N - len(pairs)
    if dtype is u1:
        more = rng.integers(0, 2, n).astype(bool)
    elif dtype.is_real:
        more = rng.uniform(-4, 4, n).astype(dtype.numpy)
        more[:16] = np.outer(
            [1, -1],
            [300, 3e4, 1e-7] + [1e4] * 5 * (dtype.bits == 16) + [2.0**31, 2.0**32, 2.0**63, 2.0**64, 1e20] * (dtype.bits > 16),
        ).ravel()
    else:
        low, high = limits(dtype)
        more = np.where(
            rng.random(n) < 0.5,
            rng.integers(low, high, n, dtype.numpy, endpoint=True),
            rng.integers(max(low, -9), 10, n).astype(dtype.numpy),
        )
    return np.concatenate([pairs, more])


def run(kernel: Kernel, arrays: dict, how: str) -> None:
    """Run a kernel on arrays by buffer."""
    if how == "grid":
        GridCompiled(kernel)(fields=arrays)
    elif how == "interpreter":
        memory = Memory()
        for buffer, array in arrays.items():
            memory.bind(buffer, array.view(np.uint8))
        run_kernel(kernel, memory)
    else:
        Compiled(kernel, 8 if how == "eight" else 1)(fields=arrays)


def same(got: np.ndarray, expect: np.ndarray) -> np.ndarray:
    """Where the bits are equal, all NaN counted as one."""
    nan = isnan(got) & isnan(expect)
    return nan | ((got == expect) & (np.signbit(got) == np.signbit(expect) if got.dtype.kind == "f" else True))


@cache
def all_results(dtype: DType, how: str) -> dict[str, np.ndarray]:
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
    run(Kernel("all", [], [task]), arrays, how)
    return {code: arrays[p.buffer] for code, p in places.items()}


@cache
def expected(code: str, dtype: DType) -> np.ndarray:
    """What ``ir.meaning`` says."""
    args = arguments(code, dtype)
    result = result_type(code, dtype)
    found = np.array([evaluate(code, row, result) for row in zip(*args)], result.numpy)
    if code not in INEXACT:  # whose values numpy computes otherwise in an array
        assert evaluate(code, args, result).tobytes() == found.tobytes(), "of arrays as of scalars"
    return found


def arguments(code: str, dtype: DType) -> list[np.ndarray]:
    xs = [operands(dtype, k) for k in range(3)]
    return [operands(u1, 9), xs[1], xs[2]] if code == "select" else xs[: TABLE[code].arity]


def result_type(code: str, dtype: DType) -> DType:
    return u1 if code in COMPARE or TABLE[code].result == "bool" else i32 if code in ("popcnt", "clz") else dtype


def agree(got: np.ndarray, expect: np.ndarray, args: list[np.ndarray]) -> None:
    bad = np.flatnonzero(~same(got, expect))
    assert not len(bad), [(*(a[k] for a in args), "gives", got[k], "instead of", expect[k]) for k in bad[:5]]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(("code", "dtype"), CASES, ids=[f"{c}-{d}" for c, d in CASES])
def test_an_operation_computes_what_the_table_says(code, dtype, how):
    got, expect = all_results(dtype, how)[code], expected(code, dtype)
    if code in INEXACT and dtype.is_real:
        close(got, expect, dtype, code)
    else:
        agree(got, expect, arguments(code, dtype))


def isnan(x):
    return np.isnan(x) if x.dtype.kind == "f" else np.zeros(x.shape, bool)


def close(got, expect, dtype, code):
    special = ~np.isfinite(expect) | (expect == 0)
    agree(got[special], expect[special], [a[special] for a in arguments(code, dtype)])
    ulp = np.spacing(np.abs(expect[~special])).astype(np.float64)
    error = np.abs(got[~special].astype(np.float64) - expect[~special].astype(np.float64)) / ulp
    assert error.max() <= 4, (code, error.max(), got[~special][error.argmax()], expect[~special][error.argmax()])


@cache
def cast_results(how: str) -> dict[tuple[DType, DType], np.ndarray]:
    task, i, b = parallel(N)
    arrays, places = {}, {}
    for src in ALL.values():
        x = field("x", src, N)
        arrays[x.buffer] = operands(src, 0).copy()
        value = b.gload(x, (i,))
        for dst in ALL.values():
            places[src, dst] = field("y", dst, N)
            b.gstore(places[src, dst], (i,), b.cast(value, dst))
    arrays |= {p.buffer: np.zeros(N, p.dtype.numpy) for p in places.values()}
    run(Kernel("casts", [], [task]), arrays, how)
    return {key: arrays[p.buffer] for key, p in places.items()}


def cast_expected(src: DType, dst: DType) -> np.ndarray:
    return np.array([evaluate("cast", [v], dst) for v in operands(src, 0)], dst.numpy)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(("src", "dst"), CASTS, ids=[f"{a}-{b}" for a, b in CASTS])
def test_a_cast_wraps_integers_and_saturates_floats(src, dst, how):
    agree(cast_results(how)[src, dst], cast_expected(src, dst), [operands(src, 0)])


def literals(code: str, dtype: DType) -> list[list[Const]]:
    """The operands of each pair of special values as literals."""
    types = [u1, dtype, dtype] if code == "select" else [dtype] * 3
    rows = zip(*(a[: len(special(dtype)) ** 2] for a in arguments(code, dtype)))
    return [[Const(x.item(), t) for x, t in zip(row, types)] for row in rows]


@pytest.mark.parametrize("dtype", ALL.values(), ids=str)
def test_a_folder_computes_the_same(dtype):
    """The front end computes with reals of the source in f64 and rounds when the literal is stored; all other folding is in the type."""
    for code in [c for c, d in CASES if d is dtype]:
        result = result_type(code, dtype)
        for args, value in zip(literals(code, dtype), expected(code, dtype)):
            given = result if TABLE[code].result == "given" else None
            early = fold_literals(code, tuple(Const(a.value, a.dtype, True) for a in args), given)
            typed = fold_literals(code, tuple(args), given)
            for found in (early, typed, fold_op(Op(code, tuple(args), result))):
                if isinstance(found, Const):
                    assert found.dtype is result
                    with warnings.catch_warnings(action="ignore"):
                        got = scalar(found.value, result)
                    if repr(got) != repr(value):  # -0.0 is not 0.0, all NaN are one
                        assert result.is_real and np.isfinite(value) and value != 0, (code, args, got, value)
                        assert code in INEXACT or (found is early and dtype is not f64), (code, args, got, value)
                        ulp = float(np.spacing(np.abs(value)))
                        assert abs(float(got) - float(value)) <= 4 * ulp, (code, args, got, value)


def value_of(x, variable):
    """What an expression of one variable, the ``arg``, is at each of its values."""
    if isinstance(x, Const):
        return scalar(x.value, x.dtype)
    return variable if x.op == "arg" else evaluate(x.op, [value_of(a, variable) for a in x.args], x.dtype)


def agree_at(values, simple, plain):
    """Two expressions of one variable have the same type and bits at all values."""
    got, expect = (np.broadcast_to(value_of(x, values), values.shape) for x in (simple, plain))
    wrong = ~same(got, expect)
    assert got.dtype == expect.dtype and not wrong.any(), (plain.op, plain.args, simple, values[wrong][:5])


def simplified(make, variable_type):
    """An expression, and what the folder makes of its parts and of it."""
    x = Op("arg", (), variable_type)
    plain, s = make(x), make(x)
    s.args = tuple(fold_op(a) or a if isinstance(a, Op) and a.args else a for a in s.args)
    return plain, fold_op(s) or s


def uses(code: str, dtype: DType, consts: list[Const]):
    """An operation on a variable and a literal, on the variable twice, and on a part that is one of these."""
    result = result_type(code, dtype)
    yield lambda x: Op(code, (x, x), result)
    for c in consts:
        yield lambda x, c=c: Op(code, (x, c), result)
        yield lambda x, c=c: Op(code, (c, x), result)
        if result is dtype:
            yield lambda x, c=c: Op(code, (Op(code, (x, c), dtype), consts[1]), dtype)
        else:
            yield lambda x, c=c: Op("not", (Op(code, (x, c), u1),), u1)


@pytest.mark.parametrize("dtype", ALL.values(), ids=str)
def test_what_is_made_simpler_has_the_same_value(dtype):
    values = np.array([scalar(v, dtype) for v in special(dtype)[:: 2 if dtype.is_real else 1]], dtype.numpy)
    consts = [Const(v.item(), dtype) for v in values]
    for code in [c for c, d in CASES if d is dtype and TABLE[c].arity == 2]:
        for make in uses(code, dtype, consts):
            plain, simple = simplified(make, dtype)
            agree_at(values, simple, plain)


@pytest.mark.parametrize("src", ALL.values(), ids=str)
def test_casts_that_are_joined_give_the_same(src):
    for mid in ALL.values():
        for dst in ALL.values():
            plain, simple = simplified(lambda x, mid=mid, dst=dst: Op("cast", (Op("cast", (x,), mid),), dst), src)
            if isinstance(simple, Op) and simple.op == "cast" and simple.args[0].op == "cast":
                continue
            agree_at(operands(src, 0)[:: 1 if src is u1 else 19], simple, plain)


@pytest.mark.parametrize("src", ALL.values(), ids=str)
def test_a_literal_becomes_another_type_as_a_value_does(src):
    for dst in ALL.values():
        got = [scalar(convert(x.item(), dst), dst) for x in operands(src, 0)]
        agree(np.array(got, dst.numpy), cast_expected(src, dst), [operands(src, 0)])


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
