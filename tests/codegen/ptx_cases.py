"""Kernels whose PTX the tests look at. Run as a program, it writes the PTX of all of them as JSON: LLVM may end the process."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from codegen_harness import array, field, parallel
from irgen import generate

from qdrun.compiler.codegen.cuda.hardware import cuda_target
from qdrun.compiler.codegen.gpu.grid.kernel import emit_grid
from qdrun.compiler.ir.builder import StatementBuilder, const_i32
from qdrun.compiler.ir.nodes import ArgDecl, Assert, Axis, Buffer, Const, Kernel, Op, Place, Print, Reduction, Task
from qdrun.compiler.ir.types import DType, f16, f32, f64, i8, i16, i32, i64, u1, u8, u32, u64
from qdrun.compiler.runtime.cuda.ptx import compile_ptx

TYPES = [f16, f32, f64, i8, u8, i16, i32, u32, i64, u64, u1]
N = 1 << 20


def _kernel(*tasks: Task, args=()) -> Kernel:
    return Kernel("k", list(args), list(tasks))


def _zero(d: DType) -> Const:
    return Const(0.0 if d.is_real else False if d is u1 else 0, d)


def stream() -> Kernel:
    """y[i, j] = x[i, j] ** 2 over literal extents"""
    x, y = field("x", f32, 1 << 12, 300), field("y", f32, 1 << 12, 300)
    task = Task("t", [])
    task.axes = [Axis(Op("index", (), i32), const_i32(0), const_i32(n)) for n in (1 << 12, 300)]
    b = StatementBuilder(task.body)
    at = tuple(a.index for a in task.axes)
    value = b.gload(x, at)
    b.gstore(y, at, b.op("mul", value, value))
    return _kernel(task)


def arrays() -> Kernel:
    """The same for arrays of any size"""
    (dx, x), (dy, y) = array("x", f32, 2, 0), array("y", f32, 2, 1)
    task = Task("t", [])
    pb = StatementBuilder(task.prologue)
    task.axes = [Axis(Op("index", (), i32), const_i32(0), pb.op("shape", dtype=i32, attr=(dx, k))) for k in (0, 1)]
    b = StatementBuilder(task.body)
    at = tuple(a.index for a in task.axes)
    value = b.gload(x, at)
    b.gstore(y, at, b.op("mul", value, value))
    return _kernel(task, args=[dx, dy])


def saxpy(d: DType, arrays: bool = False) -> Kernel:
    """y[i] = 3 * x[i] + y[i] of fields or of arrays"""
    (dx, ax), (dy, ay) = array("x", d, 1, 0), array("y", d, 1, 1)
    x, y = (ax, ay) if arrays else (field("x", d, N), field("y", d, N))
    task, i, b = parallel(N)
    value = b.op("mul", b.gload(x, (i,)), Const(3.0 if d.is_real else 3, d))
    b.gstore(y, (i,), b.op("add", value, b.gload(y, (i,))))
    return _kernel(task, args=[dx, dy] if arrays else [])


def loop() -> Kernel:
    """A loop over a local, with a condition inside"""
    x, y = field("x", f32, N), field("y", f32, N)
    task, i, b = parallel(N)
    u = b.local(b.gload(x, (i,)))
    with b.loop(const_i32(0), const_i32(1000)) as s:
        with b.if_(b.op("gt", b.load(u), Const(1.0, f32))):
            b.store(u, b.op("sub", b.load(u), Const(1.0, f32)))
        b.store(u, b.op("add", b.op("mul", b.load(u), b.load(u)), b.op("cast", s.index, dtype=f32)))
    b.gstore(y, (i,), b.load(u))
    return _kernel(task)


def atomics(d: DType) -> Kernel:
    """Every atomic of a type"""
    x, y = field("x", d, N), field("y", d, 64)
    task, i, b = parallel(N)
    at = (b.op("mod", i, const_i32(64)),)
    value = b.gload(x, (i,))
    codes = ["add", "sub", "mul", "min", "max", "xchg"] + ([] if d.is_real else ["and", "or", "xor", "cas"])
    for code in codes:
        values = (_zero(d), value) if code == "cas" else (value,)
        b.gstore(x, (i,), b.op("atomic", *at, *values, dtype=d, attr=(y, code)))
    return _kernel(task)


def unchanged(d: DType) -> Kernel:
    """Atomic products with a number that only LLVM finds to be 1"""
    x = field("x", d, 4)
    task, i, b = parallel(N)
    one = b.op("cast", b.op("popcnt", const_i32(4), dtype=i32), dtype=d)
    b.op("atomic", b.op("mod", i, const_i32(4)), one, dtype=d, attr=(x, "mul"))
    return _kernel(task)


def reductions(d: DType) -> Kernel:
    """Sum, least and greatest of a type in one task"""
    x, total = field("x", d, N), field("total", d, 3)
    task, i, b = parallel(N)
    for k, code in enumerate(("add", "min", "max")):
        r = b.local(_zero(d), "r")
        task.body.pop()
        b.store(r, b.op(code, b.load(r), b.gload(x, (i,))))
        task.reductions.append(Reduction(r, total, (const_i32(k),), code))
    return _kernel(task)


def total() -> Kernel:
    """A sum into a temporary: no field is written"""
    x, out = field("x", f32, N), field("out", f32, kind="tmp")
    task, i, b = parallel(N)
    r = b.local(_zero(f32), "r")
    task.body.pop()
    b.store(r, b.op("add", b.load(r), b.gload(x, (i,))))
    task.reductions.append(Reduction(r, out, (), "add"))
    return _kernel(task)


def counter(d: DType) -> Kernel:
    """Numbers for the elements that a condition picks, and others for those that it does not: a counter for each"""
    x, out, counts = field("x", f32, N), field("out", d, N), field("counts", d, 4)
    task, i, b = parallel(N)
    with b.if_(b.op("gt", b.gload(x, (i,)), Const(0.5, f32))) as s:
        b.gstore(out, (i,), b.op("atomic", const_i32(1), Const(1, d), dtype=d, attr=(counts, "add")))
    with b.into(s.orelse):
        b.gstore(out, (i,), b.op("atomic", const_i32(1), Const(1, d), dtype=d, attr=(counts, "add")))
    return _kernel(task)


def bins(d: DType, code: str) -> Kernel:
    """Values that threads add to one element of an array, while others read it"""
    decl, k = array("bins", d, 1, 0)
    scalar = ArgDecl("k", "scalar", i32, index=1)
    x, y = field("x", d, N), field("y", d, N)
    task, i, b = parallel(N)
    at = b.op("arg", dtype=i32, attr=scalar)
    value = b.gload(x, (i,))
    with b.loop(const_i32(0), i):
        with b.if_(b.op("ne", value, _zero(d))):
            b.op("atomic", at, value, dtype=d, attr=(k, code))
    b.gstore(y, (i,), b.gload(k, (at,)))
    return _kernel(task, args=[decl, scalar])


def failures() -> Kernel:
    """An assertion, then a task that looks whether it failed and prints"""
    x, total = field("x", f32, N), field("total", f32)
    first, i, b = parallel(N)
    value = b.gload(x, (i,))
    b.put(Assert(b.op("lt", value, Const(1.0, f32)), "{} at {}", (value, i)))
    second, i, b = parallel(N, "second")
    r = b.local(_zero(f32), "r")
    second.body.pop()
    b.put(Print(("x = ", b.gload(x, (i,)))))
    b.store(r, b.op("add", b.load(r), b.gload(x, (i,))))
    second.reductions.append(Reduction(r, total, (), "add"))
    return _kernel(first, second)


def meeting(d: DType) -> Kernel:
    """Threads of a block exchange what they have, twice; the last block is not full"""
    x, y = field("x", d, 1000), field("y", d, 1000)
    tile = Place("tile", d, Buffer("block"), 1, (64,), (d.size,))
    task, i, b = parallel(1000)
    task.block = 64
    mine = b.op("and", i, const_i32(63))
    b.gstore(tile, (mine,), b.gload(x, (i,)))
    b.op("barrier", dtype=i32)
    with b.loop(const_i32(0), const_i32(40)) as loop:
        b.op("atomic", b.op("and", loop.index, const_i32(63)), Const(1, d), dtype=d, attr=(tile, "add"))
        b.op("barrier", dtype=i32)
    b.gstore(y, (i,), b.gload(tile, (b.op("xor", mine, const_i32(63)),)))
    return _kernel(task)


def lanes(d: DType) -> Kernel:
    """Threads of a warp exchange values and votes; the last block is not full"""
    x, sets = field("x", d, 1000), field("sets", u64, 1000)
    task, i, b = parallel(1000)
    task.block = 64
    value, lane = b.gload(x, (i,)), b.op("xor", i, const_i32(5))
    b.op("barrier", dtype=i32, attr="wave")
    b.gstore(sets, (i,), b.op("ballot", b.op("ne", value, Const(0, d)), dtype=u64))
    b.op("fence", dtype=i32, attr="block")
    b.gstore(x, (i,), b.op("shuffle", value, b.op("and", lane, const_i32(31)), dtype=d))
    b.op("fence", dtype=i32, attr="grid")
    return _kernel(task)


def many(n: int = 1200) -> Kernel:
    """More than 4 KB of parameters"""
    task = Task("t", [])
    b = StatementBuilder(task.body)
    for k in range(n):
        b.gstore(field(f"x{k}", f32), (), Const(1.0, f32))
    return _kernel(task)


def random(seed: int) -> Kernel:
    """A random structured program"""
    kernel = generate(seed, 60).kernel
    for number, decl in enumerate(kernel.args):
        decl.index = number
    return kernel


CASES: dict[str, Callable[[], Kernel]] = {
    "stream": stream,
    "arrays": arrays,
    "loop": loop,
    "sum": total,
    "failures": failures,
    "many": many,
}
CASES |= {f"atomics {d}": lambda d=d: atomics(d) for d in TYPES}
CASES |= {f"unchanged {d}": lambda d=d: unchanged(d) for d in TYPES}
CASES |= {f"saxpy {d}": lambda d=d: saxpy(d) for d in TYPES if d is not u1}
CASES |= {f"block {d}": lambda d=d: meeting(d) for d in TYPES if d is not u1}
CASES |= {f"lanes {d}": lambda d=d: lanes(d) for d in TYPES}
CASES["saxpy of arrays"] = lambda: saxpy(f32, True)
CASES |= {f"reductions {d}": lambda d=d: reductions(d) for d in TYPES if d is not u1}
CASES |= {f"counter {d}": lambda d=d: counter(d) for d in (i32, u32, i64, u64)}
CASES |= {f"bins {d} {c}": lambda d=d, c=c: bins(d, c) for d in (f32, f64, i32, u64) for c in ("add", "sub", "max")}
CASES |= {f"random {seed}": lambda seed=seed: random(seed) for seed in range(20)}


def main() -> None:
    """Write the PTX of all cases."""
    out: dict[str, str] = {}
    for name, make in CASES.items():
        code = emit_grid(make(), cuda_target())
        out[name] = compile_ptx(code.device, name, "sm_90", code.features)
    json.dump(out, sys.stdout)


if __name__ == "__main__":
    main()
