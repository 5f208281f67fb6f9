"""Atomics of a warp as one: which are, what each lane gets, whatever lanes are there at the same time, and the PTX."""

from __future__ import annotations

import numpy as np
import pytest
from codegen_harness import array, field, parallel
from grid_harness import GridCompiled
from warp_harness import warp_of

from qdrun.compiler.codegen.gpu.uniform import Uniform
from qdrun.compiler.ir.builder import const_i32
from qdrun.compiler.ir.nodes import ArgDecl, Const, Kernel
from qdrun.compiler.ir.types import f16, f32, f64, i16, i32, i64, u32, u64

N = 90
INTS, ALL = (i32, u32, i64, u64), (i32, u32, i64, u64, f32, f64)


def one(d, value):
    return Const(float(value) if d.is_real else value, d)


def compaction(d, code="add", step=1):
    """out[k] = i for the i that are picked, and -1 - i at the end of ``out`` for the others: two counters, in the arms of one branch"""
    x, out, counts = field("x", i32, N), field("out", i32, 2, N), field("counts", d, 2)
    task, i, b = parallel(N)
    with b.if_(b.op("gt", b.gload(x, (i,)), const_i32(0))) as s:
        old = b.op("atomic", const_i32(0), Const(step, d), dtype=d, attr=(counts, code))
        b.gstore(out, (const_i32(0), b.op("cast", old, dtype=i32)), i)
    with b.into(s.orelse):
        old = b.op("atomic", const_i32(1), Const(step, d), dtype=d, attr=(counts, code))
        b.gstore(out, (const_i32(1), b.op("cast", old, dtype=i32)), i)
    return Kernel("k", [], [task]), x, out, counts


WAVES = [32, 64]


@pytest.mark.parametrize("wave", WAVES)
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("d", INTS)
def test_each_thread_gets_a_number_of_its_own(d, whole, wave):
    kernel, x, out, counts = compaction(d)
    rng = np.random.default_rng(d.bits + whole)
    for seed in range(2):
        picked = (rng.random(N) < rng.random()).astype(np.int32)
        compiled = warp_of(kernel, seed, whole, wave)
        found, held = np.full((2, N), -1, np.int32), np.zeros(2, d.numpy)
        compiled(fields={x.buffer: picked, out.buffer: found, counts.buffer: held})
        for k, want in enumerate((np.flatnonzero(picked), np.flatnonzero(picked == 0))):
            assert held[k] == len(want)
            assert sorted(found[k, : len(want)]) == want.tolist() and (found[k, len(want) :] == -1).all()
        sizes = [mask.bit_count() for mask in compiled.driver.masks]
        assert sum(sizes) == N and (max(sizes) > wave / 4 if whole else len(sizes) > N / wave)


def test_subtraction_counts_down_by_steps_and_wraps():
    counts, out = field("counts", u32), field("out", u32, N)
    step = ArgDecl("step", "scalar", u32)
    task, i, b = parallel(N)
    b.gstore(out, (i,), b.op("atomic", b.op("arg", dtype=u32, attr=step), dtype=u32, attr=(counts, "sub")))
    compiled = warp_of(Kernel("k", [step], [task]), 5)
    held, found = np.array(7, np.uint32), np.zeros(N, np.uint32)
    compiled(3, fields={counts.buffer: held, out.buffer: found})
    taken = (7 - 3 * np.arange(N + 1)).astype(np.uint32)
    assert held == taken[N] and sorted(found) == sorted(taken[:N])


FOLDS = {"add": np.add, "sub": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}
BITS = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


def folding(d, code):
    """y[k, 1] is updated in every third step of a loop whose length is the iteration's, where some of them do"""
    (decl, y), k = array("y", d, 2, 0), ArgDecl("k", "scalar", i32, index=1)
    x = field("x", d, N)
    task, i, b = parallel(N)
    at = (b.op("arg", dtype=i32, attr=k), const_i32(1))
    value = b.gload(x, (i,))
    with b.loop(const_i32(0), b.op("mod", i, const_i32(5))) as s:
        with b.if_(b.op("ne", b.op("mod", b.op("add", s.index, i), const_i32(3)), const_i32(0))):
            b.op("atomic", *at, value, dtype=d, attr=(y, code))
    return Kernel("k", [decl, k], [task]), x


@pytest.mark.parametrize("wave", WAVES)
@pytest.mark.parametrize(("d", "code"), [(d, c) for d in ALL for c in [*FOLDS, *(BITS if d.is_int else ())]])
def test_values_of_any_lanes_are_folded(d, code, wave):
    kernel, x = folding(d, code)
    rng = np.random.default_rng(ord(code[0]) + d.bits)
    values = rng.integers(1, 4, N) if code == "mul" or d.is_int else rng.normal(size=N)
    values = values.astype(d.numpy)
    y = np.full((3, 2), 12345 if d.is_int else 1.25, d.numpy)
    want, before = y.copy(), y.copy()
    steps = [values[i] for i in range(N) for s in range(i % 5) if (s + i) % 3]
    start = before[2, 1]
    for v in steps:
        with np.errstate(over="ignore"):
            start = (start - v) if code == "sub" else (FOLDS | BITS)[code](start, v)
    want[2, 1] = start
    compiled = warp_of(kernel, 3, wave=wave)
    compiled(y, 2, fields={x.buffer: values})
    assert sum(mask.bit_count() for mask in compiled.driver.masks) == len(steps)
    assert len(compiled.driver.masks) < len(steps)
    np.testing.assert_allclose(y, want, rtol=0 if d.is_int else 1e-4 if d is f32 else 1e-12)


@pytest.mark.parametrize("d", INTS)
def test_a_device_with_one_thread_a_warp_does_the_same(d):
    kernel, x, out, counts = compaction(d)
    picked = (np.random.default_rng(3).random(N) < 0.4).astype(np.int32)
    found, held = np.full((2, N), -1, np.int32), np.zeros(2, d.numpy)
    GridCompiled(kernel)(fields={x.buffer: picked, out.buffer: found, counts.buffer: held})
    assert held.tolist() == [picked.sum(), N - picked.sum()]
    assert sorted(found[0, : held[0]]) == np.flatnonzero(picked).tolist()


def way(build, d=i32):
    """How the atomic that ``build`` makes is done; ``build(b, i, x)`` gives its index, value and whether its result is used."""
    x, y = field("x", d, N), field("y", d, N)
    task, i, b = parallel(N)
    index, value, code, wanted = build(b, i, x)
    s = b.op("atomic", index, value, dtype=d, attr=(y, code))
    if wanted:
        b.gstore(x, (i,), s)
    return Uniform(task).way(s)


def test_which_atomics_a_warp_does_as_one():
    zero, k = const_i32(0), ArgDecl("k", "scalar", i32)
    assert way(lambda b, i, x: (zero, zero, "add", True)) == "count"
    assert way(lambda b, i, x: (zero, b.op("arg", dtype=i32, attr=k), "sub", True)) == "count"
    assert way(lambda b, i, x: (zero, i, "add", False)) == "fold"
    assert way(lambda b, i, x: (b.op("arg", dtype=i32, attr=k), i, "max", False)) == "fold"
    assert way(lambda b, i, x: (b.gload(field("n", i32, 4), (zero,)), i, "add", False)) == "fold"
    assert way(lambda b, i, x: (zero, one(f32, 1), "add", False), f32) == "fold"


def test_which_atomics_each_thread_does_itself():
    zero = const_i32(0)
    assert way(lambda b, i, x: (i, zero, "add", False)) == ""  # another element for each
    assert way(lambda b, i, x: (zero, i, "add", True)) == ""  # what others have added is wanted
    assert way(lambda b, i, x: (zero, one(f32, 1), "add", True), f32) == ""
    assert way(lambda b, i, x: (zero, zero, "max", True)) == ""
    assert way(lambda b, i, x: (zero, zero, "xchg", False)) == ""
    assert way(lambda b, i, x: (zero, one(f16, 1), "add", False), f16) == ""
    assert way(lambda b, i, x: (zero, one(i16, 1), "add", False), i16) == ""
    assert way(lambda b, i, x: (b.load(b.local(zero)), zero, "add", True)) == ""

    def written(b, i, x):
        b.gstore(x, (i,), i)
        return b.gload(x, (zero,)), zero, "add", False  # threads may find different numbers there

    assert way(written) == ""
