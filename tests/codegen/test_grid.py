"""Kernels for a GPU: the device code, made for the processor, and the host's entry, against numpy and the interpreter; PTX of the same."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from codegen_harness import array, field, parallel
from grid_harness import SCRATCH_WORDS, GridCompiled

from qdrun.compiler.codegen import abi
from qdrun.compiler.codegen.cuda.hardware import cuda_target
from qdrun.compiler.codegen.gpu import side_by_side
from qdrun.compiler.codegen.gpu.grid.kernel import emit_grid
from qdrun.compiler.codegen.gpu.hardware import ParamWord
from qdrun.compiler.codegen.llvm.target import Unsupported
from qdrun.compiler.errors import QdrunError
from qdrun.compiler.ir.builder import StatementBuilder, const_i32
from qdrun.compiler.ir.nodes import ArgDecl, Assert, Axis, Const, Kernel, Op, Print, Reduction, Task
from qdrun.compiler.ir.types import f16, f32, f64, i8, i16, i32, i64, u1, u8, u32, u64
from qdrun.compiler.runtime.python.interpret import run_kernel

sys.path.insert(0, str(Path(__file__).parents[1]))
from irgen import generate

rng = np.random.default_rng(5)


def kernel(*tasks, args=(), returns=()):
    return Kernel("k", list(args), list(tasks), list(returns))


def axis(n, begin=0, dtype=i32):
    """An axis over range(begin, n); both an int or an operand."""
    bounds = [Const(x, dtype) if isinstance(x, int) else x for x in (begin, n)]
    return Axis(Op("index", (), dtype), *bounds)


def run_like_the_interpreter(program, run, zeros=False):
    """Both leave the same bytes, or both fail. ``zeros``: the sign of a zero may differ."""
    want, have, failed = program.memory(), program.memory(), False
    try:
        run_kernel(program.kernel, want, {program.scalar: 3})
    except QdrunError:
        failed = True
    args = []
    for decl in program.kernel.args:
        place = next((p for p in program.places if p.buffer.owner is decl), None)
        known = place is not None and place in program._used()
        args.append(3 if decl.kind == "scalar" else have.array(place) if known else np.zeros(4, decl.dtype.numpy))
    status = run(*args, fields={b: have.bytes(b) for b in run.layout.buffers})
    assert bool(status[0]) == failed
    if failed:
        return
    for p in program._used():
        a, b = have.array(p), want.array(p)
        same = a.view(f"u{p.dtype.size}") == b.view(f"u{p.dtype.size}")
        if zeros:
            same |= (a == 0) & (b == 0)
        assert (same | (np.isnan(a) & np.isnan(b) if p.dtype is f32 else False)).all(), (p.name, a, b)


@pytest.mark.parametrize("seed", range(1000, 1060))
def test_one_thread_agrees_with_the_interpreter(seed):
    program = generate(seed, 60)
    for number, decl in enumerate(program.kernel.args):
        decl.index = number
    run_like_the_interpreter(program, GridCompiled(program.kernel, processors=1, resident=1))


@pytest.mark.parametrize("n", [0, 1, 5, 6, 7, 137])
def test_every_iteration_runs_once_on_any_number_of_threads(n):
    x = field("x", i32, 200)
    task, i, b = parallel(n)
    b.atomic("add", x, (i,), b.op("add", i, const_i32(1)))
    run = GridCompiled(kernel(task))
    data = {x.buffer: np.zeros(200, "i4")}
    assert not run(fields=data).any()
    want = np.where(np.arange(200) < n, np.arange(200) + 1, 0)
    assert np.array_equal(data[x.buffer], want)
    assert [blocks for blocks, _, _ in run.driver.launches] == ([min(n, 6)] if n else [])  # 3 processors of 2 threads


@pytest.mark.parametrize("where", ["literal", "host"])
def test_indices_of_several_axes(where):
    shape, begins = (3, 5, 4), (-2, 1, 0)
    y = field("y", i32, *(b + n + 4 for b, n in zip(begins, shape)), offset=0)
    decls = [ArgDecl(f"n{k}", "scalar", i32, index=k) for k in range(3)]
    task = Task("t", [])
    pb = StatementBuilder(task.prologue)
    for k in range(3):
        end = begins[k] + shape[k] if where == "literal" else pb.op("arg", dtype=i32, attr=decls[k])
        task.axes.append(axis(end, begins[k]))
    b = StatementBuilder(task.body)
    i, j, k = (a.index for a in task.axes)
    number = b.op("cast", b.op("iter", dtype=i64), dtype=i32)
    b.atomic("add", y, (b.op("add", i, const_i32(2)), j, k), number)
    run = GridCompiled(kernel(task, args=decls))
    out = np.zeros(y.shape, "i4")
    run(*(b + n for b, n in zip(begins, shape)), fields={y.buffer: out})
    want = np.zeros_like(out)
    want[0:3, 1:6, 0:4] = np.arange(60).reshape(shape)
    assert np.array_equal(out, want)
    assert any(w.kind == "size" for w in words_of(run.kernel)) == (where == "host")


def words_of(k: Kernel) -> list[ParamWord]:
    """The words of the last device function, by the names that its host stores them under."""
    import qdrun.compiler.codegen.gpu.grid.kernel as grid_kernel

    seen: list[list[ParamWord]] = []
    define = grid_kernel.emit_task

    def spy(e, name):
        f = define(e, name)
        seen.append(f.words)
        return f

    grid_kernel.emit_task, saved = spy, define
    try:
        emit_grid(k, cuda_target())
    finally:
        grid_kernel.emit_task = saved
    return seen[-1]


@pytest.mark.parametrize("writes", [False, True])
def test_bounds_that_only_the_device_can_read(writes):
    count, y = field("count", i32), field("y", i32, 40)
    task = Task("t", [])
    end = StatementBuilder(task.prologue).gload(count, ())
    task.axes.append(axis(end))
    b = StatementBuilder(task.body)
    i = task.axes[0].index
    b.gstore(y, (i,), b.op("add", i, const_i32(7)))
    if writes:
        b.gstore(count, (), const_i32(1))
    run = GridCompiled(kernel(task))
    data = {count.buffer: np.array([23], "i4"), y.buffer: np.zeros(40, "i4")}
    assert not run(fields=data).any()
    assert np.array_equal(data[y.buffer], np.where(np.arange(40) < 23, np.arange(40) + 7, 0))
    # one thread reads the bound first where the body changes it; the grid is as large as the device
    assert [blocks for blocks, _, _ in run.driver.launches] == ([1, 6] if writes else [6])
    data[count.buffer][:] = 0
    data[y.buffer][:] = 0
    run(fields=data)
    assert not data[y.buffer].any()


@pytest.mark.parametrize(
    "first, second", [("arg", "arg"), ("arg", "field"), ("field", "arg"), ("tmp", "arg"), ("field", "field")]
)
def test_bounds_are_read_before_whatever_may_be_the_same_memory_is_written(first, second):
    decls, places = [], []
    for number, kind in enumerate((first, second)):
        if kind == "arg":
            decl, place = array(f"a{number}", i32, 1, len(decls))
            decls.append(decl)
        else:
            place = field(f"f{number}", i32, 1, kind=kind)
        places.append(place)
    task = Task("t", [])
    task.axes.append(axis(StatementBuilder(task.prologue).gload(places[0], (const_i32(0),))))
    StatementBuilder(task.body).gstore(places[1], (const_i32(0),), const_i32(1))
    names = emit_grid(kernel(task, args=decls), cuda_target()).functions
    apart = "tmp" in (first, second) or (first, second) == ("field", "field")
    assert names == (["qd_k_0"] if apart else ["qd_k_0_before", "qd_k_0"])


SUM = {"add": np.sum, "min": np.min, "max": np.max}


@pytest.mark.parametrize("code", ["add", "min", "max"])
@pytest.mark.parametrize("dtype", [f16, f32, f64, i8, i32, u32, i64, u64])
def test_reductions(code, dtype):
    n = 137
    x, total = field("x", dtype, n), field("total", dtype, 3)
    task, i, b = parallel(n)
    r = b.local(Const(0.0 if dtype.is_real else 0, dtype), "r")
    task.body.clear()
    value = b.gload(x, (i,))
    b.store(r, b.op("add", b.load(r), value) if code == "add" else b.op(code, b.load(r), value))
    task.reductions.append(Reduction(r, total, (const_i32(1),), code))
    run = GridCompiled(kernel(task))
    data = rng.integers(0, 3, n).astype(dtype.numpy) if dtype.size < 4 else rng.integers(0, 1000, n).astype(dtype.numpy)
    out = np.array([5, 7, 9], dtype.numpy)
    run(fields={x.buffer: data, total.buffer: out})
    with np.errstate(over="ignore"):
        want = data.sum(dtype=dtype.numpy) + dtype.numpy.type(7) if code == "add" else SUM[code]([SUM[code](data), 7])
    assert out.tolist() == [5, dtype.numpy.type(want), 9]


def test_two_reductions_have_the_same_bits_whatever_the_order_of_blocks():
    n = 1000
    x, total = field("x", f32, n), field("total", f32, 2)
    task, i, b = parallel(n)
    locals_ = [b.local(Const(0.0, f32), "r") for _ in range(2)]
    task.body.clear()
    for k, r in enumerate(locals_):
        b.store(r, b.op("add", b.load(r), b.op("mul", b.gload(x, (i,)), Const(1.0 + k, f32))))
        task.reductions.append(Reduction(r, total, (const_i32(k),), "add"))
    run = GridCompiled(kernel(task), processors=7)
    data, seen = rng.standard_normal(n).astype("f4"), set()
    for _ in range(5):
        out = np.zeros(2, "f4")
        run(fields={x.buffer: data, total.buffer: out})
        seen.add(out.tobytes())
    assert len(seen) == 1
    assert np.allclose(out, [data.sum(dtype="f8"), 2 * data.sum(dtype="f8")], rtol=1e-4)


def test_the_grid_has_room_for_its_partial_results():
    n = 10_000
    x, total = field("x", f64, n), field("total", f64)
    task, i, b = parallel(n)
    r = b.local(Const(0.0, f64), "r")
    task.body.clear()
    b.store(r, b.op("add", b.load(r), b.gload(x, (i,))))
    task.reductions.append(Reduction(r, total, (), "add"))
    run = GridCompiled(kernel(task), processors=1000, resident=8)
    data, out = rng.integers(0, 9, n).astype("f8"), np.zeros(1)
    run(fields={x.buffer: data, total.buffer: out})
    assert out[0] == data.sum()
    assert run.driver.launches[0][0] == SCRATCH_WORDS - abi.SCRATCH_PARTIALS


def test_a_reduction_over_no_iterations_leaves_its_place_alone():
    count, total = field("count", i32), field("total", f32)
    task = Task("t", [])
    task.axes.append(axis(StatementBuilder(task.prologue).gload(count, ())))
    b = StatementBuilder(task.body)
    r = b.local(Const(0.0, f32), "r")
    task.body.clear()
    b.store(r, b.op("min", b.load(r), Const(1.0, f32)))
    task.reductions.append(Reduction(r, total, (), "min"))
    out = np.array([np.nan], "f4")
    GridCompiled(kernel(task))(fields={count.buffer: np.zeros(1, "i4"), total.buffer: out})
    assert np.isnan(out[0])


ORDERLESS = {
    "add": np.add,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "min": np.minimum,
    "max": np.maximum,
}


@pytest.mark.parametrize(
    "code, dtype",
    [
        (code, dtype)
        for code in (*ORDERLESS, "mul", "sub")
        for dtype in (f16, f32, f64, i8, u8, i16, i32, u32, i64, u64)
        if not (dtype.is_real and code in ("and", "or", "xor"))
    ],
)
def test_atomics_of_neighbours_do_not_disturb_each_other(code, dtype):
    n, cells = 96, 5
    x, y = field("x", dtype, n), field("y", dtype, cells)
    task, i, b = parallel(n)
    b.atomic(code, y, (b.op("mod", i, const_i32(cells)),), b.gload(x, (i,)))
    run = GridCompiled(kernel(task))
    data = rng.integers(1, 3, n).astype(dtype.numpy)
    out = rng.integers(1, 3, cells).astype(dtype.numpy)
    want = out.copy()
    for k in range(n):
        op = np.multiply if code == "mul" else np.subtract if code == "sub" else ORDERLESS[code]
        with np.errstate(over="ignore"):
            want[k % cells] = op(want[k % cells], data[k])
    run(fields={x.buffer: data, y.buffer: out})
    assert np.array_equal(out, want)


def test_a_failed_iteration_stops_later_tasks_of_its_launch_but_not_the_next_launch():
    x, y, total = field("x", i32, 8), field("y", i32, 8), field("total", i32)
    first, i, b = parallel(8)
    r = b.local(const_i32(0), "r")
    first.body.clear()
    value = b.gload(x, (i,))
    b.put(Assert(b.op("lt", value, const_i32(5)), "no: {} at {}", (value, i)))
    b.store(r, b.op("add", b.load(r), value))
    first.reductions.append(Reduction(r, total, (), "add"))
    second, i, b = parallel(8, "second")
    b.gstore(y, (i,), const_i32(1))
    run = GridCompiled(kernel(first, second))
    data = {x.buffer: np.arange(8, dtype="i4") - 2, y.buffer: np.zeros(8, "i4"), total.buffer: np.zeros(1, "i4")}
    data[x.buffer][6] = 9
    status = run(fields=data).tolist()
    assert [status[0], *status[3:5]] == [1, 9, 6]  # iteration 7 fails, too, and comes after it
    assert not data[y.buffer].any() and not data[total.buffer].any()
    data[x.buffer][:] = 3
    assert not run(fields=data).any()
    assert data[y.buffer].all() and data[total.buffer][0] == 24


def test_a_launch_that_the_driver_refuses_is_noted_and_ends_the_kernel():
    x = field("x", i32, 8)
    tasks = []
    for _ in range(2):
        task, i, b = parallel(8)
        b.gstore(x, (i,), const_i32(1))
        tasks.append(task)
    run = GridCompiled(kernel(*tasks))
    run.driver.refuse = 701
    assert run(fields={x.buffer: np.zeros(8, "i4")})[0] == -701
    assert run.table[abi.TABLE_LAUNCHES] == 1 and run.context[abi.CTX_LAUNCHES] == 1


def test_prints_fill_the_ring_and_those_that_find_no_room_are_counted():
    x = field("x", f32, 100)
    task, i, b = parallel(100)
    b.put(Print(("x[", i, "] = ", b.gload(x, (i,)))))
    run = GridCompiled(kernel(task))
    data = rng.standard_normal(100).astype("f4")
    run(fields={x.buffer: data})
    records = sorted((values for site, values in run.printed()), key=lambda v: v[0])
    assert [v[0] for v in records] == list(range(100))
    assert np.array_equal(np.array([v[1] for v in records]).view("f8"), data.astype("f8"))
    assert run.ring[abi.RING_LOST] == 0
    run.ring[:] = 0
    run.ring[abi.RING_SIZE] = 52  # ten records of five words
    run(fields={x.buffer: data})
    assert len(run.printed()) == 10 and run.ring[abi.RING_LOST] == 90
    assert not run.ring[abi.RING_RECORDS + 50 :].any()


def test_scalar_arguments_of_every_type_arrive():
    types = [f16, f32, f64, i8, u8, i16, i32, u32, i64, u64, u1]
    decls = [ArgDecl(f"a{k}", "scalar", d, index=k) for k, d in enumerate(types)]
    outs = [field(f"y{k}", d) for k, d in enumerate(types)]
    task = Task("t", [])
    b = StatementBuilder(task.body)
    for decl, out in zip(decls, outs):
        b.gstore(out, (), b.op("arg", dtype=decl.dtype, attr=decl))
    run = GridCompiled(kernel(task, args=decls))
    data = {out.buffer: np.zeros(1, d.numpy) for out, d in zip(outs, types)}
    values = [1.5, -2.25, 1e300, -7, 250, -3000, -(2**31), 2**32 - 1, -(2**63), 2**64 - 1, True]
    run(*values, fields=data)
    assert [data[out.buffer][0].item() for out in outs] == values
    assert run.driver.launches == [(1, 1, 8 * 22)]


def test_a_range_with_bounds_in_a_wide_or_unsigned_type():
    decl = ArgDecl("n", "scalar", u32, index=0)
    y = field("y", i64, 10)
    task = Task("t", [])
    end = StatementBuilder(task.prologue).op("arg", dtype=u32, attr=decl)
    task.axes.append(axis(end, 2**32 - 10, u32))
    b = StatementBuilder(task.body)
    i = task.axes[0].index
    b.gstore(y, (b.op("sub", i, Const(2**32 - 10, u32)),), b.op("cast", i, dtype=i64))
    out = np.zeros(10, "i8")
    GridCompiled(kernel(task, args=[decl]))(2**32 - 2, fields={y.buffer: out})
    assert out.tolist() == [*range(2**32 - 10, 2**32 - 2), 0, 0]


def many_fields(n):
    y = field("y", f32)
    task = Task("t", [])
    b = StatementBuilder(task.body)
    for k in range(n):
        b.gstore(field(f"x{k}", f32), (), Const(float(k), f32))
    b.gstore(y, (), Const(1.0, f32))
    return kernel(task)


def test_kernels_with_many_parameters():
    k = many_fields(700)  # 512 words fit without the long lists of PTX 8.1
    code = emit_grid(k, cuda_target())
    assert code.features == "+ptx81" and emit_grid(many_fields(400), cuda_target()).features == "+ptx80"
    run = GridCompiled(k)
    fields = {b: np.zeros(1, "f4") for b in run.layout.buffers}
    run(fields=fields)
    assert [int(a[0]) for a in list(fields.values())[:700]] == list(range(700))
    with pytest.raises(Unsupported, match="a task that uses 4301 fields and arguments; a GPU takes 4095"):
        emit_grid(many_fields(4300), cuda_target())


@pytest.mark.parametrize(
    "n, grid",
    [
        (1, (1, 32)),
        (8191, (256, 32)),
        (8447, (264, 32)),
        (8448, (132, 64)),
        (16895, (264, 64)),
        (16896, (132, 128)),
        (1 << 30, (2112, 128)),
    ],
)
def test_blocks_are_small_where_there_would_be_too_few_of_them(n, grid):
    decl = ArgDecl("n", "scalar", i64, index=0)
    x = field("x", i64)
    task = Task("t", [])
    task.axes.append(axis(StatementBuilder(task.prologue).op("arg", dtype=i64, attr=decl), dtype=i64))
    StatementBuilder(task.body).atomic("add", x, (), task.axes[0].index)
    run = GridCompiled(kernel(task, args=[decl]), processors=132, resident=2048, target=cuda_target())
    run(n, fields={x.buffer: np.zeros(1, "i8")})
    assert [launch[:2] for launch in run.driver.launches] == [grid]


def test_blocks_that_fold_or_run_short_bodies_have_all_their_threads():
    x, total = field("x", f32, 1 << 20), field("total", f32)
    fold, i, b = parallel(100)
    r = b.local(Const(0.0, f32), "r")
    fold.body.clear()
    b.store(r, b.op("add", b.load(r), b.gload(x, (i,))))
    fold.reductions.append(Reduction(r, total, (), "add"))
    short, i, b = parallel(100, "short")
    b.gstore(x, (i,), b.gload(x, (i,)))
    run = GridCompiled(kernel(fold, short), processors=132, resident=2048, target=cuda_target())
    run(fields={x.buffer: np.zeros(1, "f4"), total.buffer: np.zeros(1, "f4")})
    assert [launch[:2] for launch in run.driver.launches] == [(1, 128), (1, 128)]


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("n", [1, 5, 23, 24, 25, 47, 48, 49, 1000])
def test_iterations_side_by_side_leave_none_out(n, tiled, monkeypatch):
    monkeypatch.setattr(side_by_side, "TILED", tiled)
    x, y, total = field("x", i32, 1000), field("y", i32, 1000), field("total", i32)
    task, i, b = parallel(n)
    u = b.local(const_i32(0), "u")
    r = b.local(const_i32(0), "r")
    del task.body[1]
    with b.if_(b.op("gt", b.gload(x, (i,)), const_i32(50))):
        b.store(u, i)
    b.store(r, b.op("add", b.load(r), b.load(u)))
    b.gstore(y, (i,), b.op("add", b.gload(y, (i,)), b.op("add", b.load(u), const_i32(1))))
    task.reductions.append(Reduction(r, total, (), "add"))
    assert side_by_side.copies_of(task, frozenset())[0] == 4
    data = rng.integers(0, 100, 1000).astype("i4")
    out, s = np.full(1000, 7, "i4"), np.zeros(1, "i4")
    GridCompiled(kernel(task))(fields={x.buffer: data, y.buffer: out, total.buffer: s})
    want = np.where(data > 50, np.arange(1000), 0)
    assert np.array_equal(out[:n], want[:n] + 8) and (out[n:] == 7).all()
    assert s[0] == want[:n].sum()
