"""Control flow, tasks, memory, atomics, reductions, failures and adstacks, one lane and several."""

from __future__ import annotations

import re

import numpy as np
import pytest
from codegen_harness import Compiled, array, field, parallel, pool

from qdrun.compiler.codegen import abi
from qdrun.compiler.codegen.llvm.kernel import emit_kernel
from qdrun.compiler.codegen.llvm.report import prints
from qdrun.compiler.codegen.llvm.target import Target
from qdrun.compiler.ir.builder import StatementBuilder, const_i32, const_i64
from qdrun.compiler.ir.nodes import (
    ArgDecl,
    Assert,
    Axis,
    Buffer,
    ClaimRow,
    Const,
    Kernel,
    Op,
    Overflow,
    Place,
    Print,
    Reduction,
    Stack,
    StackPut,
    Task,
)
from qdrun.compiler.ir.types import f16, f32, f64, i8, i32, i64, u1, u8, u32, u64

LANES = [1, 8, 16]
TURNS = [(1, 1), (8, 8), (16, 16), (8, 1), (16, 4), (32, 2)]  # lanes, and how many of them have rows at a time
SOME_LANES = [1, pytest.param(8, marks=pytest.mark.slow), 16]  # of tests with hundreds of kernels
rng = np.random.default_rng(0)


def kernel(*tasks, args=(), returns=()):
    return Kernel("k", list(args), list(tasks), list(returns))


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("optimise", [False, True])
def test_nested_loops_leave_through_exit_locals(lanes, optimise):
    n = 137
    x, y = field("x", i32, n), field("y", i32, n)
    task, i, b = parallel(n)
    limit, total = b.gload(x, (i,)), b.local(const_i32(0))
    outer_exit = b.local(const_i32(0))
    with b.loop(const_i32(0), const_i32(9)) as outer:
        outer.exit = outer_exit
        b.store(outer_exit, const_i32(0))
        inner_exit = b.local(const_i32(0))
        with b.loop(const_i32(0), None) as inner:
            inner.exit = inner_exit
            b.store(inner_exit, const_i32(0))
            b.store(total, b.op("add", b.load(total), b.op("mul", outer.index, inner.index)))
            with b.if_(b.op("gt", inner.index, limit)) as s:
                b.store(inner_exit, const_i32(1))
            with b.into(s.orelse):
                b.store(total, b.op("add", b.load(total), const_i32(1)))
        with b.if_(b.op("gt", b.load(total), const_i32(100))):
            b.store(outer_exit, const_i32(2))
    b.gstore(y, (i,), b.load(total))
    data = {x.buffer: rng.integers(0, 12, n).astype("i4"), y.buffer: np.zeros(n, "i4")}
    Compiled(kernel(task), lanes, optimise=optimise)(fields=data)
    for k in range(n):
        want = 0
        for a in range(9):
            c = 0
            while True:
                want += a * c
                if c > data[x.buffer][k]:
                    break
                want += 1
                c += 1
            if want > 100:
                break
        assert data[y.buffer][k] == want


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("step", [1, -1, 3, -2, 7])
@pytest.mark.parametrize("dtype", [i32, i8, u8, i64])
def test_a_loop_visits_what_range_does(lanes, step, dtype):
    n = 64
    lo, hi, y = field("lo", dtype, n), field("hi", dtype, n), field("y", i64, n)
    task, i, b = parallel(n)
    total = b.local(const_i64(0))
    with b.loop(b.gload(lo, (i,)), b.gload(hi, (i,)), step) as lp:
        value = b.cast(lp.index, i64)
        b.store(total, b.op("add", b.op("mul", b.load(total), const_i64(3)), value))
    b.gstore(y, (i,), b.load(total))
    info = np.iinfo(dtype.numpy)
    low, high = (info.min, info.max) if dtype.bits == 8 else (-100, 100)
    data = {
        lo.buffer: rng.integers(low, high, n).astype(dtype.numpy),
        hi.buffer: rng.integers(low, high, n).astype(dtype.numpy),
    }
    data[hi.buffer][:3], data[y_buffer := y.buffer] = high, np.zeros(n, "i8")
    Compiled(kernel(task), lanes)(fields=data)
    for k in range(n):
        want = np.int64(0)
        with np.errstate(over="ignore"):
            for v in range(int(data[lo.buffer][k]), int(data[hi.buffer][k]), step):
                want = want * np.int64(3) + np.int64(v)
        assert data[y_buffer][k] == want


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("shape", [(5, 7, 3), (1, 40, 2), (33, 1, 1), (4, 100), (300, 3), (0, 5)])
def test_several_axes_visit_every_index_once(lanes, shape):
    y = field("y", i32, *shape)
    task = Task("t", [])
    task.axes = [Axis(Op("index", (), i32), const_i32(2 * k), const_i32(2 * k + n)) for k, n in enumerate(shape)]
    b = StatementBuilder(task.body)
    idx = [b.op("sub", a.index, const_i32(2 * k)) for k, a in enumerate(task.axes)]
    flat = b.op("iter", dtype=i64)
    old = b.gload(y, tuple(idx))
    b.gstore(y, tuple(idx), b.op("add", old, b.cast(b.op("add", flat, const_i64(1)), i32)))
    data = {y.buffer: np.zeros(shape, "i4")}
    Compiled(kernel(task), lanes)(fields=data)
    assert np.array_equal(data[y.buffer].ravel(), np.arange(1, np.prod(shape) + 1))


@pytest.mark.parametrize("lanes", SOME_LANES)
@pytest.mark.parametrize("n", [1, 7, 8, 1000, 300_000])
@pytest.mark.parametrize("dtype", [f32, f64, i32, f16])
@pytest.mark.parametrize("code", ["add", "min", "max"])
def test_a_reduction_has_the_same_bits_in_any_order_of_chunks(lanes, n, dtype, code):
    x, y = field("x", dtype, n), field("y", dtype)
    task, i, b = parallel(n)
    local = b.local(Const(0, dtype), "acc")
    task.body.clear()
    task.reductions = [Reduction(local, y, (), code)]
    value = b.gload(x, (i,))
    b.store(local, b.op(code, b.load(local), value))
    data = rng.uniform(-1, 1, n).astype(dtype.numpy) if dtype.is_real else rng.integers(-100, 100, n).astype("i4")
    run, out = Compiled(kernel(task), lanes), []
    for backwards in (False, True):
        arrays = {x.buffer: data, y.buffer: np.zeros((), dtype.numpy)}
        run(fields=arrays, backwards=backwards)
        out.append(arrays[y.buffer])
    assert out[0].tobytes() == out[1].tobytes()
    want = {"add": np.sum, "min": np.min, "max": np.max}[code](data.astype("f8") if dtype.is_real else data.astype("i8"))
    want = min(0, want) if code == "min" else max(0, want) if code == "max" else want
    if dtype is not f16 or code != "add" or n <= 1000:
        assert np.allclose(out[0].astype("f8"), float(want), rtol=1e-3, atol={f16: 0.5}.get(dtype, 1e-2))


ATOMIC_TYPES = [f32, f64, f16, i32, u32, i64, u8, u1]
BITS = ("and", "or", "xor", "cas")  # not of reals
ATOMIC = ["add", "sub", "mul", "min", "max", "and", "or", "xor", "xchg", "cas"]


@pytest.mark.parametrize("lanes", SOME_LANES)
@pytest.mark.parametrize("how", ["atomic", "plain", "serialize"])
@pytest.mark.parametrize(("dtype", "code"), [(d, c) for d in ATOMIC_TYPES for c in ATOMIC if not d.is_real or c not in BITS])
def test_an_atomic_updates_memory_and_returns_the_old_content(lanes, how, dtype, code):
    n, m = 96, 96 if how == "plain" else 5
    from qdrun.compiler.ir.meaning import update

    x, y, old, idx = field("x", dtype, n), field("y", dtype, m), field("o", dtype, n), field("idx", i32, n)
    task, i, b = parallel(n)
    task.serialize = how == "serialize"
    expected = [Const(dtype.kind == "b" or 4, dtype)] if code == "cas" else []
    op = b.op("atomic", b.gload(idx, (i,)), *expected, b.gload(x, (i,)), dtype=dtype, attr=(y, code))
    b.gstore(old, (i,), op)
    if dtype is u1:
        xs, start = rng.integers(0, 2, n).astype(bool), rng.integers(0, 2, m).astype(bool)
    else:
        xs, start = rng.integers(0, 9, n).astype(dtype.numpy), rng.integers(0, 9, m).astype(dtype.numpy)
    where = rng.permutation(n).astype("i4") % m
    data = {x.buffer: xs, y.buffer: start.copy(), old.buffer: np.zeros(n, dtype.numpy), idx.buffer: where}
    Compiled(kernel(task), lanes, frozenset({op}) if how == "plain" else frozenset())(fields=data)
    want, olds = start.copy(), []
    for k in range(n):  # with one thread and lanes in turn the order is that of the iterations
        olds.append(want[where[k]])
        values = [*(e.value for e in expected), xs[k]]
        with np.errstate(all="ignore"):
            want[where[k]] = update(code, want[where[k]], *values)
    assert np.array_equal(data[y.buffer], want, equal_nan=dtype.is_real)
    assert np.array_equal(data[old.buffer], np.array(olds, dtype.numpy), equal_nan=dtype.is_real)


@pytest.mark.parametrize("lanes", LANES)
def test_a_failed_assert_stops_the_launch_and_stores_its_operands(lanes):
    n = 50
    y = field("y", i32, n)
    first, i, b = parallel(n)
    b.put(Assert(b.op("ne", i, const_i32(37)), "index {} scaled {}", (i, b.op("mul", b.cast(i, f32), Const(0.5, f32)))))
    second, j, b2 = parallel(n)
    b2.gstore(y, (j,), const_i32(1))
    data = {y.buffer: np.zeros(n, "i4")}
    status = Compiled(kernel(first, second), lanes)(fields=data)
    assert status[0] == 1 and status[3] == 37 and status[4:5].view("f8")[0] == 18.5
    assert not data[y.buffer].any()


@pytest.mark.parametrize("lanes", LANES)
def test_an_overflow_has_its_own_code(lanes):
    n = 20
    task, i, b = parallel(n)
    task.params.append("bound")
    with b.loop(const_i32(0), b.op("add", i, const_i32(1))) as lp:
        with b.if_(b.op("ge", b.cast(lp.index, i64), Op("param", (), i64, "bound"))):
            b.put(Overflow(lp, 7))
    run = Compiled(kernel(task), lanes)
    assert run(params={(0, "bound"): 20})[0] == 0
    assert run(params={(0, "bound"): 3})[0] == 1


@pytest.mark.parametrize(("lanes", "turn"), TURNS)
@pytest.mark.parametrize("varying_slot", [False, True])
def test_an_adstack_gives_back_what_was_put(lanes, turn, varying_slot):
    n, depth = 703, 6
    x, y = field("x", f32, n), field("y", f64, n)
    task, i, b = parallel(n)
    b.put(ClaimRow())
    locals_ = tuple(b.local(Const(0, d)) for d in (f32, i32, f16, f64, i8, u1, u64))
    xv = b.gload(x, (i,))
    with b.loop(const_i64(0), const_i64(depth)) as fwd:
        slot = b.op("add", fwd.index, b.cast(b.op("mul", i, const_i32(0)), i64)) if varying_slot else fwd.index
        v = b.op("add", xv, b.cast(fwd.index, f32))
        values = tuple(b.cast(v, q.dtype) for q in locals_)
        stack = Stack(fwd, "tape", locals_, "s0")
        b.put(StackPut(stack, slot, values))
    total = b.local(Const(0.0, f64))
    with b.loop(const_i64(depth - 1), const_i64(-1), -1) as bwd:
        for k, q in enumerate(locals_):
            got = b.op("stack_get", bwd.index, dtype=q.dtype, attr=(stack, k))
            b.store(total, b.op("add", b.op("mul", b.load(total), Const(1.25, f64)), b.cast(got, f64)))
    b.gstore(y, (i,), b.load(total))
    params = {name.format(p): 8 for p in abi.PLANES for name in ("s0.{}", "stride.{}")} | {
        "rows": 2,
        "threads": 2,
        "lanes": turn,
    }
    task.stacks, task.params = [stack], list(params)
    widths = {p: sum(abi.plane_of(q.dtype) == p for q in locals_) for p in abi.PLANES}
    rows = {p: w * depth + 8 for p, w in widths.items()}
    heap = {p: np.zeros(2 * rows[p] * turn, {"f4": "f4", "f8": "f8", "i4": "i4", "i8": "i8"}[p]) for p in abi.PLANES}
    data = {x.buffer: rng.uniform(0, 50, n).astype("f4"), y.buffer: np.zeros(n)}
    run = Compiled(kernel(task), lanes)
    params |= {f"stride.{p}": rows[p] for p in abi.PLANES}
    assert run(fields=data, params={(0, name): value for name, value in params.items()}, heap=heap)[0] == 0
    want = np.zeros(n)
    for d in range(depth - 1, -1, -1):
        v = data[x.buffer] + np.float32(d)
        for q in locals_:
            want = want * 1.25 + v.astype(q.dtype.numpy).astype("f8")
    assert np.array_equal(data[y.buffer], want)


@pytest.mark.parametrize(("lanes", "turn"), TURNS)
@pytest.mark.parametrize("gate", [False, True])
def test_a_row_is_claimed_once_by_each_worker_and_never_past_the_planned_ones(lanes, turn, gate):
    n, chunks = 4000, 2
    x, y = field("x", f32, n), field("y", f32, n)
    task, i, b = parallel(n)
    kept = b.local(Const(0.0, f32))

    def body():
        b.put(ClaimRow())
        with b.loop(const_i64(0), const_i64(3)) as forward:
            stack = Stack(forward, "tape", (kept,), "s0")
            b.put(StackPut(stack, forward.index, (b.op("add", b.gload(x, (i,)), b.cast(forward.index, f32)),)))
        with b.loop(const_i64(0), const_i64(300)):  # enough work for several chunks
            b.store(kept, b.op("add", b.load(kept), b.op("stack_get", const_i64(2), dtype=f32, attr=(stack, 0))))
        b.gstore(y, (i,), b.load(kept))
        return stack

    if gate:
        with b.if_(b.op("gt", b.gload(x, (i,)), Const(0.0, f32))):
            stack = body()
    else:
        stack = body()
    task.stacks, task.params = [stack], ["s0.f4", "stride.f4", "rows", "threads", "lanes"]
    run = Compiled(kernel(task), lanes)
    half = np.arange(n) < n // chunks
    for rows, passing in ((2, half | True), (1, half | True), (0, half | True), (0, half & False), (1, half & False)):
        heap = np.full(3 * 3 * turn, -7.0, np.float32)
        data = {x.buffer: np.where(passing, 1.5, -1.5).astype(np.float32), y.buffer: np.zeros(n, np.float32)}
        params = {(0, "s0.f4"): 0, (0, "stride.f4"): 3, (0, "rows"): rows, (0, "threads"): 2, (0, "lanes"): turn}
        status = run(fields=data, params=params, heap={"f4": heap})
        needed = 2 if passing.any() or not gate else 0
        assert bool(status[0] == 0) is (rows >= needed)
        assert (heap[rows * 3 * turn :] == -7.0).all(), "a row that was not planned was written"
        assert (heap[: min(rows, needed) * 3 * turn] != -7.0).all()
        if rows >= needed:
            assert np.array_equal(data[y.buffer] != 0, passing | (not gate))


@pytest.mark.parametrize("lanes", LANES)
def test_ndarray_arguments_scalars_and_shapes_arrive(lanes):
    decl, x = array("x", f32, 2)
    out_decl, y = array("y", f32, 2, index=1)
    scale = ArgDecl("s", "scalar", f32, index=2)
    flag = ArgDecl("flag", "scalar", u1, index=3)
    big = ArgDecl("big", "scalar", u64, index=4)
    task = Task("t", [])
    p = StatementBuilder(task.prologue)
    n, m = (p.op("shape", dtype=i32, attr=(decl, k)) for k in (0, 1))
    task.axes = [Axis(Op("index", (), i32), const_i32(0), n), Axis(Op("index", (), i32), const_i32(0), m)]
    i, j = (a.index for a in task.axes)
    b = StatementBuilder(task.body)
    v = b.op("mul", b.gload(x, (i, j)), b.op("arg", dtype=f32, attr=scale))
    v = b.op("select", b.op("arg", dtype=u1, attr=flag), v, Const(0.0, f32))
    b.gstore(y, (i, j), b.op("add", v, b.cast(b.op("arg", dtype=u64, attr=big), f32)))
    a, out = rng.uniform(0, 1, (13, 9)).astype("f4"), np.zeros((13, 9), "f4")
    Compiled(kernel(task, args=[decl, out_decl, scale, flag, big]), lanes)(a, out, 2.5, True, 2**63)
    assert np.array_equal(out, a * np.float32(2.5) + np.float32(2**63))


def test_a_serial_task_returns_and_hands_a_temporary_on():
    ret, tmp = Place("r", f64, Buffer("ret"), 0, (), (), 0, 8), Place("tmp", i32, Buffer("tmp"), 0, (), (), 64, 4)
    y = field("y", i32, 40)
    first = Task("a", [])
    b = StatementBuilder(first.body)
    b.gstore(tmp, (), const_i32(12))
    b.gstore(ret, (), b.op("sqrt", Const(2.0, f64)))
    second = Task("b", [])
    n = StatementBuilder(second.prologue).gload(tmp, ())
    second.axes.append(Axis(Op("index", (), i32), const_i32(0), n))
    StatementBuilder(second.body).gstore(y, (second.axes[0].index,), const_i32(5))
    data = {y.buffer: np.zeros(40, "i4")}
    run = Compiled(kernel(first, second, returns=[f64]))
    run(fields=data)
    assert run.returned.view("f8")[0] == np.sqrt(2.0)
    assert data[y.buffer].sum() == 60 and data[y.buffer][:12].all()


def test_a_local_that_no_path_stored_reads_zero_in_every_iteration():
    n = 30
    y = field("y", i32, n)
    task, i, b = parallel(n)
    with b.if_(b.op("eq", b.op("mod", i, const_i32(3)), const_i32(0))):
        local = b.local(i)
    b.gstore(y, (i,), b.load(local))
    for lanes in LANES:
        data = {y.buffer: np.full(n, -1, "i4")}
        Compiled(kernel(task), lanes)(fields=data)
        assert np.array_equal(data[y.buffer], [k if k % 3 == 0 else 0 for k in range(n)])


def test_prints_hand_their_values_over_in_order():
    import ctypes

    task = Task("t", [])
    b = StatementBuilder(task.body)
    b.put(Print(("a ", const_i32(-4), " b ", Const(1.5, f32))))
    b.put(Print(("only text",)))
    k = kernel(task)
    run = Compiled(k)
    words = np.ctypeslib.as_array((ctypes.c_int64 * 64).from_address(pool().address("qd_printed")))
    words[0] = 0
    run()
    assert [s.parts[0] for s in prints(k)] == ["a ", "only text"]
    assert list(words[:4]) == [4, 0, -4, np.float64(1.5).view("i8")] and words[4] == 1


def test_the_seed_reaches_the_kernel():
    y = field("y", u64)
    task = Task("t", [])
    b = StatementBuilder(task.body)
    b.gstore(y, (), b.op("seed", dtype=u64))
    data = {y.buffer: np.zeros((), "u8")}
    Compiled(kernel(task))(fields=data, seed=2**63 + 5)
    assert data[y.buffer] == 2**63 + 5


@pytest.mark.parametrize("lanes", LANES)
def test_emission_gives_the_same_text_twice(lanes):
    task, i, b = parallel(1000)
    x = field("x", f32, 1000)
    v = b.local(b.gload(x, (i,)))
    for _ in range(100):
        w = b.op("mul", b.load(v), Const(0.5, f32))
        b.store(v, b.op("add", w, Const(1.0, f32)))
        b.gstore(x, (i,), b.op("sin", b.load(v)))
    k = kernel(task)
    text = emit_kernel(k, Target(lanes=lanes))
    assert text == emit_kernel(k, Target(lanes=lanes))
    assert not re.search(r"\b(fast|contract|reassoc)\b", text)
