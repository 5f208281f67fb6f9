"""Our mathematical functions against long double: random points of every size, and every special value C's rules name."""

from __future__ import annotations

import ctypes as C
import subprocess
import sys

import numpy as np
import pytest
from codegen_harness import compile_text

from qdrun.compiler.codegen.llvm.function import Fn, LlvmModule
from qdrun.compiler.codegen.llvm.target import Target
from qdrun.compiler.codegen.math import library
from qdrun.compiler.ir.ops import TABLE
from qdrun.compiler.ir.types import f32, f64

N = 1 << 15


def of_c(name):
    """A function of C's library on long doubles."""
    libm = C.CDLL(None)
    f = getattr(libm, name)
    f.restype, f.argtypes = C.c_longdouble, [C.c_longdouble]
    return np.vectorize(f, otypes=[np.longdouble])


REFERENCE = {
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan2": np.arctan2,
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "pow": np.power,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "expm1": np.expm1,
    "log1p": np.log1p,
    "erf": of_c("erfl"),
    "erfc": of_c("erfcl"),
    "crem": np.fmod,
    "mod": np.remainder,
}
# the largest error allowed, in units of the last place, for f32 and f64
ULP = {"sin": 1.6, "cos": 1.6, "tan": 3, "asin": 2.7, "acos": 2.7, "atan2": 2, "exp": 1.2, "log": 1.6, "tanh": 1.6, "pow": 1.2}
ULP |= {"sinh": 2, "cosh": 2, "expm1": 2, "log1p": 2, "erf": 1.5, "erfc": 4, "crem": 0.5, "mod": 0.51}
RANGES = {
    "sin": [(-10, 10), (-1e5, 1e5), (-1e7, 1e7), (-1e15, 1e15)],
    "cos": [(-10, 10), (-1e5, 1e5), (-1e7, 1e7), (-1e15, 1e15)],
    "tan": [(-10, 10), (-1e5, 1e5), (-1e7, 1e7), (-1e15, 1e15)],
    "asin": [(-1, 1), (-1e-3, 1e-3), (0.999, 1)],
    "acos": [(-1, 1), (-1e-3, 1e-3), (0.999, 1)],
    "atan2": [(-5, 5), (-1e-3, 1e-3), (-1e30, 1e30)],
    "exp": [(-80, 80), (-1e-3, 1e-3), (-104, 89), (-745, 710)],
    "log": [(1e-3, 1e3), (0.99, 1.01), (0, 1e30), (0, 1e-37)],
    "tanh": [(-6, 6), (-1e-3, 1e-3), (-100, 100)],
    "sinh": [(-3, 3), (-1e-3, 1e-3), (-90, 90), (-711, 711)],
    "cosh": [(-3, 3), (-1e-3, 1e-3), (-90, 90), (-711, 711)],
    "expm1": [(-3, 3), (-1e-3, 1e-3), (-50, 89), (-745, 710)],
    "log1p": [(-1, 3), (-1e-3, 1e-3), (-1, 1e30), (-1e-9, 1e-9)],
    "erf": [(-3, 3), (-1e-3, 1e-3), (-7, 7), (-1e-300, 1e-300)],
    "erfc": [(-3, 3), (-1e-3, 1e-3), (-7, 12), (5, 28)],
    "crem": [(-5, 5), (-1e-3, 1e-3), (-1e30, 1e30)],
    "mod": [(-5, 5), (-1e-3, 1e-3), (-1e30, 1e30)],
    "pow": [(0, 5), (0.9, 1.1), (0, 40), (-3, 3), (0, 300)],
}
EDGES = [
    0.0,
    -0.0,
    1,
    -1,
    2,
    -2,
    3,
    -3,
    0.5,
    -0.5,
    1.5,
    -1.5,
    np.inf,
    -np.inf,
    np.nan,
    1e-40,
    -1e-40,
    5e-324,
    1e30,
    -1e30,
    3.4e38,
    1e300,
]
EDGES += [-1e300, 88.8, 89.5, -87.5, -103.5, -105, 709.7, 710.2, -745, -746, 16777217, 4503599627370497, 9007199254740993, 1e17]
NAMES = list(REFERENCE)
exact = pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="no long double to compare with")


def compiled(name, dtype, lanes, libm=True, **target):
    """``void f(ptr out, ptr a, ptr b, i64 n)`` over whole vectors."""
    module = LlvmModule(Target(lanes=lanes, libm=libm, **target))
    f = Fn(module, lanes)
    v, ty = lanes > 1, f.ty(dtype, lanes > 1)
    args = [
        f.t(f"load {ty}, ptr {f.t(f'getelementptr {f.ty(dtype, False)}, ptr {p}, i64 %i')}, align {dtype.size}")
        for p in ("%a", "%b")
    ]
    out = library.call(f, name, dtype, v, args[: 2 if TABLE[name].arity == 2 else 1])
    f.put(f"store {ty} {out}, ptr {f.t(f'getelementptr {f.ty(dtype, False)}, ptr %o, i64 %i')}, align {dtype.size}")
    body = "\n".join(f.lines)
    module.functions.append(
        f"define void @f(ptr %o, ptr %a, ptr %b, i64 %n) {{\nentry:\n  br label %l\nl:\n  %i = phi i64 [ 0, %entry ], [ %i1, %l ]\n{body}\n"
        f"  %i1 = add i64 %i, {lanes}\n  %c = icmp slt i64 %i1, %n\n  br i1 %c, label %l, label %x\nx:\n  ret void\n}}"
    )
    engine = compile_text(module.text(""))
    call = C.CFUNCTYPE(None, C.c_void_p, C.c_void_p, C.c_void_p, C.c_int64)(engine.address("f"))

    def run(*xs):
        xs = [np.ascontiguousarray(x, dtype.numpy) for x in xs]
        out = np.empty_like(xs[0])
        call(out.ctypes.data, xs[0].ctypes.data, xs[-1].ctypes.data, len(out))
        return out

    run.engine, run.text = engine, module.text("")
    return run


def worst(got, want, dtype):
    rounded = want.astype(dtype.numpy)
    odd = ~np.isfinite(rounded) | (rounded == 0)
    assert np.array_equal(got[odd], rounded[odd], equal_nan=True)
    got, want, rounded = got[~odd], want[~odd], rounded[~odd]
    return float(
        np.max(np.abs(got.astype(np.longdouble) - want) / np.spacing(np.abs(rounded)).astype(np.longdouble), initial=0)
    )


@exact
@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("dtype", [f32, f64])
@pytest.mark.parametrize("name", NAMES)
def test_a_function_is_accurate_to_a_few_units_of_the_last_place(name, dtype, lanes):
    rng = np.random.default_rng(1)
    run = compiled(name, dtype, lanes)
    for low, high in RANGES[name]:
        if dtype is f32 and high > 1e35:
            continue
        xs = [rng.uniform(low, high, N).astype(dtype.numpy) for _ in range(2)]
        if name == "pow" and low < 0:
            xs[1] = np.rint(xs[1] * 5).astype(dtype.numpy)
        xs = xs[: 2 if TABLE[name].arity == 2 else 1]
        with np.errstate(all="ignore"):
            want = REFERENCE[name](*(x.astype(np.longdouble) for x in xs))
        error = worst(run(*xs), want, dtype)
        print(f"{name} {dtype} lanes={lanes} [{low}, {high}]: {error:.2f} ulp")
        assert error <= ULP[name]


@exact
@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("dtype", [f32, f64])
@pytest.mark.parametrize("name", NAMES)
def test_special_values_follow_the_rules_of_c(name, dtype, lanes):
    with np.errstate(all="ignore"):
        edges = np.array(EDGES, np.float64).astype(dtype.numpy)
        xs = [edges]
        if TABLE[name].arity == 2:
            xs = [np.repeat(edges, len(edges)), np.tile(edges, len(edges))]
        pad = -len(xs[0]) % 8
        xs = [np.concatenate([x, x[:pad]]) for x in xs]
        want = REFERENCE[name](*(x.astype(np.longdouble) for x in xs))
        got = compiled(name, dtype, lanes)(*xs)
        near = want.astype(dtype.numpy)
        error = np.abs(got.astype(np.longdouble) - want) / np.spacing(np.abs(near)).astype(np.longdouble)
    special = ~np.isfinite(near) | (near == 0)
    bad = np.where(
        special, (got.view(f"i{dtype.size}") != near.view(f"i{dtype.size}")) & ~(np.isnan(got) & np.isnan(near)), ~(error <= 4)
    )
    assert not bad.any(), [(*(x[k] for x in xs), got[k], near[k]) for k in np.flatnonzero(bad)[:6]]


@pytest.mark.parametrize("dtype", [f32, f64])
@pytest.mark.parametrize("name", NAMES)
def test_one_lane_and_eight_give_the_same_bits(name, dtype):
    rng = np.random.default_rng(3)
    xs = [rng.uniform(-1, 1, N).astype(dtype.numpy), rng.uniform(0, 20, N).astype(dtype.numpy)]
    assert compiled(name, dtype, 1)(*xs).tobytes() == compiled(name, dtype, 8)(*xs).tobytes()


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_without_a_c_library_a_huge_argument_is_nan_and_not_wrong(name):
    out = compiled(name, f32, 8, libm=False)(np.array([1, 2, 3, 1e9, 1e20, 4, 5, 6]))
    assert np.array_equal(np.isnan(out), [False, False, False, True, True, False, False, False])


NO_REMAINDER = """
import sys
import numpy as np
import qdrun as qd
from qdrun.compiler.codegen.math.lanes import Lanes

div = Lanes.div

def divide(self, a, b):  # as NVIDIA's GPUs: all bits of a NaN are set
    found = div(self, a, b)
    return self.select(self.cmp("uno", found, found), self.from_bits(self.ci(2**31 - 1)), found) if self.single else found

Lanes.div = divide
qd.init(arch=qd.cpu, offline_cache=False, cpu_lanes=int(sys.argv[1]))
given = [(0.0, 0.0), (-0.0, 0.0), (5.0, 0.0), (np.inf, 0.0), (np.inf, 2.0), (np.nan, 0.0), (0.0, np.nan), (7.0, 3.0), (0.0, -3.0)]
x, y = np.array(given * 8, np.float32).T.copy()
out = np.zeros((2, len(x)), np.float32)

@qd.kernel
def work(x: qd.types.ndarray(), y: qd.types.ndarray(), out: qd.types.ndarray()):
    for i in x:
        out[0, i] = x[i] % y[i]
        out[1, i] = qd.math.mod(x[i], y[i]) + qd.f32(qd.f16(x[i]) % qd.f16(y[i]))

work(x, y, out)
with np.errstate(all="ignore"):
    np.testing.assert_array_equal(out[0], np.remainder(x, y))
print("all end")
"""


@pytest.mark.parametrize("lanes", [1, 8])
def test_a_remainder_by_zero_ends_whatever_the_bits_of_a_nan(lanes, tmp_path):
    (tmp_path / "program.py").write_text(NO_REMAINDER)
    command = [sys.executable, str(tmp_path / "program.py"), str(lanes)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.stdout.strip() == "all end", done.stderr
