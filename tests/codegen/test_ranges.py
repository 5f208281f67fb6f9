"""Indices whose computation cannot overflow are computed as i64, and neighbours of an index are found by their distance."""

import numpy as np
import pytest

from qdrun.compiler.codegen.llvm.cost import gains_by_packing
from qdrun.compiler.codegen.llvm.function import UNPACKED
from qdrun.compiler.codegen.ranges import ranges_of
from qdrun.compiler.ir.builder import StatementBuilder, const_i32
from qdrun.compiler.ir.nodes import Axis, Const, Kernel, Op, Task
from qdrun.compiler.ir.types import f64, i32, i64

from .codegen_harness import Compiled, field, parallel


def wrapped(x):
    """An integer as i32."""
    return (x + 2**31) % 2**32 - 2**31


def random_index(rng, b, leaves, depth):
    """A random expression, and a function of the values of the leaves that gives the exact value, without overflow."""
    kind = rng.choice(["leaf", "add", "sub", "mul", "mod", "literal"]) if depth else rng.choice(["leaf", "literal"])
    if kind == "leaf":
        k = rng.integers(len(leaves))
        return leaves[k], lambda values: int(values[k])
    if kind == "literal":
        n = int(rng.choice([0, 1, -1, 3, 7, 1000, 2**16, 2**31 - 1, -(2**31)]))
        return const_i32(n), lambda values: n
    left, of_left = random_index(rng, b, leaves, depth - 1)
    if kind == "mod":
        n = int(rng.choice([1, 2, 7, 2**20]))
        return b.op("mod", left, const_i32(n)), lambda values: wrapped(of_left(values)) % n
    right, of_right = random_index(rng, b, leaves, depth - 1)
    exact = {"add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y}[kind]
    return b.op(kind, left, right), lambda values: exact(of_left(values), of_right(values))


@pytest.mark.parametrize("lanes", [1, 4])
def test_random_indices(lanes):
    rng = np.random.default_rng()
    bounded = 0
    for _ in range(40):
        low, high = sorted(rng.choice([-5, 0, 3, 2**31 - 9, -(2**31)], 2, replace=False).tolist())
        first = range(low, min(low + int(rng.integers(1, 9)), high))
        task = Task("t", [])
        task.axes.append(Axis(Op("index", (), i32), const_i32(first.start), const_i32(first.stop)))
        task.axes.append(Axis(Op("index", (), i32), const_i32(2), const_i32(5)))
        b, index = StatementBuilder(task.body), [axis.index for axis in task.axes]
        out, hits = field("out", i32, len(first), 3, 4), field("hits", f64, 64)
        step = int(rng.choice([1, 2, -1]))
        inner = range(-2, 6)[::step]
        with b.loop(const_i32(inner[0]), const_i32(inner[-1] + step), step) as loop:
            x, exact = random_index(rng, b, [*index, loop.index], 3)
            place = (b.op("sub", index[0], const_i32(first.start)), b.op("sub", index[1], const_i32(2)))
            b.gstore(out, (*place, const_i32(0)), x)
            near = b.op("add", b.op("mod", index[0], const_i32(8)), const_i32(9))  # ranges that are known
            at = b.op("sub", b.op("add", near, b.op("mul", loop.index, const_i32(3))), const_i32(1))
            b.atomic("add", hits, (b.op("add", at, const_i32(4)),), Const(1.0, f64))
            b.atomic("add", hits, (b.op("sub", at, const_i32(2)),), Const(0.5, f64))
        kernel = Kernel("k", [], [task])
        known = ranges_of(task)
        run = Compiled(kernel, lanes, optimise=bool(rng.integers(2)))
        got, counts = np.zeros((len(first), 3, 4), np.int32), np.zeros(64)
        run(fields={out.buffer: got, hits.buffer: counts})
        want, sums = np.zeros_like(got), np.zeros(64)
        for i in first:
            for j in range(2, 5):
                for k in inner:
                    value = exact((i, j, k))
                    want[i - first.start, j - 2, 0] = wrapped(value)
                    sums[i % 8 + 8 + 3 * k + 4] += 1.0
                    sums[i % 8 + 8 + 3 * k - 2] += 0.5
                    if x in known:
                        bounded += 1
                        assert known[x][0] <= value <= known[x][1]
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(counts, sums)
    assert bounded


def test_a_sum_that_wraps_has_no_range():
    task, i, b = parallel(2**31 - 1)
    assert b.op("add", i, const_i32(1)) in ranges_of(task)
    assert b.op("add", i, const_i32(2)) not in ranges_of(task)
    assert b.op("mul", i, const_i32(3)) not in ranges_of(task)
    assert b.op("add", b.cast(i, i64), Const(1, i64)) not in ranges_of(task)


def test_neighbours_have_a_literal_distance():
    n = 32
    task, i, b = parallel(n)
    x, y = field("x", f64, n + 2), field("y", f64, n)
    here = b.op("add", i, const_i32(1))
    left, right = (b.gload(x, (b.op(code, here, const_i32(1)),)) for code in ("sub", "add"))
    b.gstore(y, (i,), b.op("sub", right, left))
    run = Compiled(Kernel("k", [], [task]))
    assert f"i64 {2 * 8}" in run.text and run.text.count("sext i32") == Compiled(Kernel("k", [], [parallel(n)[0]])).text.count(
        "sext i32"
    )
    values, out = np.random.default_rng().random(n + 2), np.zeros(n)
    run(fields={x.buffer: values, y.buffer: out})
    np.testing.assert_array_equal(out, values[2:] - values[:-2])


def test_where_straight_line_code_becomes_vectors():
    n = 16
    x, to = field("x", f64, n + 2), field("to", i32, n, 2)
    plain, i, b = parallel(n)
    b.gstore(x, (i,), b.op("mul", b.gload(x, (i,)), Const(2.0, f64)))
    scattered, i, b = parallel(n)
    for k in range(2):
        b.atomic("add", x, (b.gload(to, (i, const_i32(k))),), Const(1.0, f64))
    serial, i, b = parallel(n)
    with b.loop(const_i32(0), const_i32(3)) as loop:
        b.atomic("add", x, (i,), Const(1.0, f64))
    stencil, i, b = parallel(n)
    with b.loop(const_i32(0), const_i32(3)) as loop:
        for k in range(2):
            b.atomic("add", x, (b.op("add", b.op("sub", i, loop.index), const_i32(k + 2)),), Const(1.0, f64))
    assert [gains_by_packing([task]) for task in (plain, scattered, serial, stencil)] == [False, True, True, False]
    assert gains_by_packing([plain, serial]) and not gains_by_packing([serial, stencil])
    heads = [Compiled(Kernel("k", [], [task])).text.partition("\n")[0] for task in (plain, serial)]
    assert [head.endswith(UNPACKED) for head in heads] == [True, False]
