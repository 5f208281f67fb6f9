"""Accesses of 16 bytes of a thread: where they are made, and that whatever the launch brings the results are right."""

from __future__ import annotations

import re

import numpy as np
import pytest
from codegen_harness import array, field, parallel
from grid_harness import GridCompiled

from qdrun.compiler.codegen.cuda.hardware import cuda_target
from qdrun.compiler.codegen.gpu import side_by_side
from qdrun.compiler.codegen.gpu.grid.kernel import emit_grid
from qdrun.compiler.ir.builder import StatementBuilder, const_i32
from qdrun.compiler.ir.nodes import ArgDecl, Axis, Buffer, Const, Kernel, Op, Place, Reduction, Task
from qdrun.compiler.ir.types import f16, f32, f64, i8, i32, i64, u1, u16

rng = np.random.default_rng(11)
COUNTS = [0, 1, 3, 23, 24, 25, 49, 96, 97, 1000]


def aligned(n, dtype, skip=0):
    """Numbers whose memory begins ``skip`` elements after a multiple of 64 bytes."""
    size = np.dtype(dtype).itemsize
    raw = np.zeros(n * size + 128, np.uint8)
    at = -raw.ctypes.data % 64 + skip * size
    out = raw[at : at + n * size].view(dtype)
    out[:] = rng.integers(0, 2 if dtype == np.bool_ else 40, n)
    return out


def widths(run):
    """Elements and bytes of alignment of every vector access in the text."""
    found = re.findall(r"(?:load|store) <(\d+) x \w+>.*align (\d+)", run.code.device)
    return {(int(n), int(align)) for n, align in found}


@pytest.mark.parametrize("d, wide", [(f32, 4), (f64, 2), (i8, 16), (f16, 8), (i64, 2), (u16, 8), (u1, 16)])
@pytest.mark.parametrize("n", COUNTS)
def test_every_type(d, wide, n):
    x, y = field("x", d, 1000), field("y", d, 1000)
    task, i, b = parallel(n)
    value = b.gload(x, (i,))
    b.gstore(y, (i,), b.op("xor", value, b.gload(y, (i,))) if d is u1 else b.op("add", value, b.gload(y, (i,))))
    run = GridCompiled(Kernel("k", [], [task]))
    size = wide * d.size
    assert size == 16 and widths(run) == {(wide, size)}
    xs, ys = aligned(1000, d.numpy), aligned(1000, d.numpy)
    want = ys.copy()
    want[:n] = want[:n] ^ xs[:n] if d is u1 else want[:n] + xs[:n]
    run(fields={x.buffer: xs, y.buffer: ys})
    assert np.array_equal(ys, want)


@pytest.mark.parametrize(
    "begin, shift, wide", [(0, 0, 4), (4, 0, 4), (2, 0, 2), (1, 0, 0), (0, 8, 4), (0, 1, 0), (3, 1, 4), (6, -4, 2)]
)
@pytest.mark.parametrize("n", [5, 60, 61, 400])
def test_where_ranges_and_indices_begin(begin, shift, wide, n):
    x, y = field("x", f32, 512), field("y", f32, 512)
    task = Task("t", [])
    task.axes.append(Axis(Op("index", (), i32), const_i32(begin), const_i32(begin + n)))
    i, b = task.axes[0].index, StatementBuilder(task.body)
    at = b.op("add", i, const_i32(shift)) if shift else i
    b.gstore(y, (at,), b.op("mul", b.gload(x, (at,)), Const(2.0, f32)))
    run = GridCompiled(Kernel("k", [], [task]))
    assert widths(run) == ({(wide, 4 * wide)} if wide else set())
    xs, ys = aligned(512, "f4"), aligned(512, "f4")
    want, part = ys.copy(), slice(begin + shift, begin + shift + n)
    want[part] = 2 * xs[part]
    run(fields={x.buffer: xs, y.buffer: ys})
    assert np.array_equal(ys, want)


def test_a_stencil_keeps_its_elements_apart_but_rows_of_another_axis_do_not():
    n, m = 24, 40
    x, y = field("x", f32, n, m), field("y", f32, n, m)

    def stencil(rows):
        task = Task("t", [])
        task.axes = [
            Axis(Op("index", (), i32), const_i32(lo), const_i32(hi)) for lo, hi in ((1, n - 1), (0, m) if rows else (4, 36))
        ]
        b, (i, j) = StatementBuilder(task.body), [a.index for a in task.axes]
        near = [(b.op(op, i, const_i32(1)), j) if rows else (i, b.op(op, j, const_i32(1))) for op in ("add", "sub")]
        b.gstore(y, (i, j), b.op("add", *[b.gload(x, at) for at in near]))
        return GridCompiled(Kernel("k", [], [task]))

    xs = aligned(n * m, "f4")
    a = xs.reshape(n, m)
    for rows in (True, False):
        run, ys = stencil(rows), aligned(n * m, "f4")
        want = ys.reshape(n, m).copy()
        if rows:
            want[1:-1] = a[2:] + a[:-2]
        else:
            want[1:-1, 4:36] = a[1:-1, 5:37] + a[1:-1, 3:35]
        assert widths(run) == ({(4, 16)} if rows else set())
        run(fields={x.buffer: xs, y.buffer: ys})
        assert np.array_equal(ys.reshape(n, m), want)


@pytest.mark.parametrize("m, wide", [(12, 4), (6, 2), (7, 0)])
def test_a_row_that_no_group_of_iterations_fills_is_not_left(m, wide):
    x, y = field("x", f32, 40, 32), field("y", f32, 40, 32)
    task = Task("t", [])
    task.axes = [Axis(Op("index", (), i32), const_i32(0), const_i32(k)) for k in (40, m)]
    b, at = StatementBuilder(task.body), tuple(a.index for a in task.axes)
    b.gstore(y, at, b.gload(x, at))
    run = GridCompiled(Kernel("k", [], [task]))
    assert widths(run) == ({(wide, 4 * wide)} if wide else set())
    xs, ys = aligned(40 * 32, "f4"), np.zeros(40 * 32, "f4")
    run(fields={x.buffer: xs, y.buffer: ys})
    assert np.array_equal(ys.reshape(40, 32)[:, :m], xs.reshape(40, 32)[:, :m]) and not ys.reshape(40, 32)[:, m:].any()


@pytest.mark.parametrize("offset, stride, wide", [(256, 4, True), (8, 4, False), (4, 8, False)])
def test_two_fields_in_one_buffer(offset, stride, wide):
    buffer = Buffer("field")
    x, y = (Place(name, f32, buffer, 1, (64,), (stride,), at) for name, at in (("x", 0), ("y", offset)))
    task, i, b = parallel(50)
    b.gstore(y, (i,), b.op("add", b.gload(x, (i,)), Const(1.0, f32)))
    run = GridCompiled(Kernel("k", [], [task]))
    assert ((4, 16) in widths(run)) is wide
    data = aligned(400, "f4")
    before, step = data.copy(), stride // 4
    run(fields={buffer: data})
    if offset != 8:  # there the iterations write what others read
        want = before.copy()
        want[offset // 4 :: step][:50] = before[::step][:50] + 1
        assert np.array_equal(data, want)


@pytest.mark.parametrize("skips", [(0, 0), (0, 1), (3, 0), (2, 2)])
@pytest.mark.parametrize("begin", [0, 1, 4])
def test_arrays_may_begin_anywhere(skips, begin):
    (dx, x), (dy, y) = array("x", f32, 1, 0), array("y", f32, 1, 1)
    lo = ArgDecl("lo", "scalar", i32, index=2)
    task = Task("t", [])
    pb = StatementBuilder(task.prologue)
    task.axes.append(Axis(Op("index", (), i32), pb.op("arg", dtype=i32, attr=lo), pb.op("shape", dtype=i32, attr=(dx, 0))))
    i, b = task.axes[0].index, StatementBuilder(task.body)
    old = b.gload(y, (i,))
    b.gstore(y, (i,), b.op("add", old, b.gload(x, (i,))))
    run = GridCompiled(Kernel("k", [dx, dy, lo], [task]))
    assert widths(run) == {(4, 16)}
    xs, ys = (aligned(203, "f4", skip) for skip in skips)
    want = ys.copy()
    want[begin:] += xs[begin:]
    run(xs, ys, begin)
    assert np.array_equal(ys, want)


@pytest.mark.parametrize("shape", [(9, 16), (16, 9), (7, 6), (1, 200)])
def test_arrays_may_have_rows_of_any_length(shape):
    (dx, x), (dy, y) = array("x", f32, 2, 0), array("y", f32, 2, 1)
    task = Task("t", [])
    pb = StatementBuilder(task.prologue)
    task.axes = [Axis(Op("index", (), i32), const_i32(0), pb.op("shape", dtype=i32, attr=(dx, k))) for k in (0, 1)]
    b, at = StatementBuilder(task.body), tuple(a.index for a in task.axes)
    b.gstore(y, at, b.gload(x, at))
    run = GridCompiled(Kernel("k", [dx, dy], [task]))
    assert widths(run) == {(4, 16)}
    xs, ys = (aligned(shape[0] * shape[1], "f4").reshape(shape) for _ in range(2))
    run(xs, ys)
    assert np.array_equal(xs, ys)


def test_sums_of_one_thread_and_of_all():
    x, y, total = field("x", f64, 1000), field("y", f64, 1000), field("total", f64)
    task, i, b = parallel(997)
    r = b.local(Const(0.0, f64), "r")
    task.body.clear()
    value = b.gload(x, (i,))
    change = b.atomic("add", y, (i,), value)
    b.store(r, b.op("add", b.load(r), b.op("mul", value, change)))
    task.reductions.append(Reduction(r, total, (), "add"))
    run = GridCompiled(Kernel("k", [], [task]), plain=frozenset([change]))
    assert widths(run) == {(2, 16)}
    xs, ys, s = aligned(1000, "f8"), aligned(1000, "f8"), np.zeros(1)
    want, sum_ = ys.copy(), (xs * ys)[:997].sum()
    want[:997] += xs[:997]
    run(fields={x.buffer: xs, y.buffer: ys, total.buffer: s})
    assert np.array_equal(ys, want) and s[0] == sum_


def test_what_is_read_elsewhere_or_in_a_branch_keeps_all_apart():
    x, y, at = field("x", f32, 64), field("y", f32, 64), field("at", i32, 64)
    gather, i, b = parallel(64)
    b.gstore(y, (i,), b.gload(x, (b.gload(at, (i,)),)))
    branch, i, b = parallel(64)
    with b.if_(b.op("gt", b.gload(x, (i,)), Const(1.0, f32))):
        b.gstore(y, (i,), Const(1.0, f32))
    same, i, b = parallel(64)
    b.gstore(y, (i,), b.op("mul", b.gload(x, (i,)), b.gload(x, (const_i32(3),))))
    assert [side_by_side.copies_of(t, frozenset())[1] is not None for t in (gather, branch, same)] == [False, False, True]


@pytest.mark.parametrize("n, blocks", [(100, 1), (540_672, 2112), (2_000_000, 3906), (1 << 28, 33_792)])
def test_more_blocks_than_the_device_holds_where_each_thread_has_enough_to_do(n, blocks):
    x, y = field("x", f32, 1 << 28), field("y", f32, 1 << 28)
    task, i, b = parallel(n)
    b.gstore(y, (i,), b.gload(x, (i,)))
    run = GridCompiled(Kernel("k", [], [task]), processors=132, resident=2048, target=cuda_target())
    run(fields={x.buffer: np.zeros(1, "f4"), y.buffer: np.zeros(1, "f4")})
    assert [launch[:2] for launch in run.driver.launches] == [(blocks, 128)]


def test_the_text_for_the_gpu_says_so_too():
    x, y = field("x", f32, 1 << 20), field("y", f32, 1 << 20)
    task, i, b = parallel(1 << 20)
    b.gstore(y, (i,), b.gload(x, (i,)))
    assert "load <4 x float>" in emit_grid(Kernel("k", [], [task]), cuda_target()).device


def test_the_same_kernel_has_the_same_text_each_time():
    """Its key in the cache is made of the text: parameters come in program order, not in that of a set."""

    def text():
        fields = [field(f"x{k}", f32, 1 << 12) for k in range(6)]
        task, i, b = parallel(1 << 12)
        total = Const(0.0, f32)
        for x in fields[1:]:
            total = b.op("add", total, b.gload(x, (i,)))
        b.gstore(fields[0], (i,), total)
        return emit_grid(Kernel("k", [], [task]), cuda_target()).device

    kept = [text() for _ in range(8)]
    assert "load <4 x float>" in kept[0] and len(set(kept)) == 1
