"""Scatter to gather on IR: random loops give the bits of the serial scatter, and what is not understood stays as it is."""

from __future__ import annotations

import random

import numpy as np
import pytest
from irtools import axis, f, field, kernel, ndarray
from random_scatters import random_scatter

from qdrun.compiler.codegen.llvm.cost import block_cost
from qdrun.compiler.ir.builder import const_i32
from qdrun.compiler.ir.nodes import Const, Kernel, Op
from qdrun.compiler.ir.printer import print_kernel
from qdrun.compiler.ir.types import i32, u32
from qdrun.compiler.ir.walk import walk
from qdrun.compiler.passes.gather import gather
from qdrun.compiler.passes.gather.gather import gather_kernel
from qdrun.compiler.passes.simplify.simplify import simplify

x, y, m = field("x", (40,)), field("y", (40,)), field("m", (40, 40))


@pytest.fixture
def always(monkeypatch):
    monkeypatch.setattr(gather, "_pays", lambda *_: True)


def gathered(k: Kernel) -> Kernel:
    return gather_kernel(k, block_cost, lambda task: False)


def stays(build, *axes) -> bool:
    k = simplify(kernel(build, *(axes or (axis(30),))))
    return gathered(k) is k


def plus(b, i, n: int):
    return b.op("add", i, const_i32(n))


def to_neighbours(b, i, value=None):
    value = f(1.0) if value is None else value
    b.atomic("add", x, (plus(b, i, 1),), value)
    b.atomic("add", x, (plus(b, i, 2),), value)


def test_random_loops_have_the_bits_of_the_scatter(always):
    taken, first = 0, random.randrange(1 << 30)
    for seed in range(first, first + 60):
        case = random_scatter(seed)
        k = simplify(case.kernel)
        out = gathered(k)
        if out is k:
            continue
        taken += 1
        exact = len(case.scalars) < 2 or min(case.extents) > 3  # a short loop of unknown length may add in another order
        for a, b in zip(case.run(k), case.run(out)):
            assert np.array_equal(a, b) if exact else np.allclose(a, b), f"seed {seed}"
    assert taken > 20


def test_the_interior_has_no_condition_remainder_or_clamp():
    def build(b, i, j):
        value = b.gload(m, (i, j))
        for index in (b.op("mod", plus(b, i, 1), const_i32(30)), b.op("max", plus(b, i, -1), const_i32(0)), i):
            b.atomic("add", field_y, (index, b.op("min", plus(b, j, 1), const_i32(29))), value)

    field_y = field("field_y", (40, 40))
    out = gathered(simplify(kernel(build, axis(30), axis(30))))
    interior = out.tasks[0]
    assert [t.name for t in out.tasks] == ["t_interior", "t_rim_0", "t_rim_1"]
    assert [(a.begin.value, a.end.value) for a in interior.axes] == [(1, 29), (1, 29)]  # type: ignore[union-attr]
    codes = {s.op for s in walk(interior.body) if isinstance(s, Op)}
    assert codes == {"gload", "add"}, print_kernel(out)


def test_adds_to_neighbours_are_gathered():
    assert not stays(to_neighbours)
    assert not stays(lambda b, i: to_neighbours(b, i, b.gload(y, (i,))))


def test_what_another_access_may_meet_stays():
    assert stays(lambda b, i: to_neighbours(b, i, b.gload(x, (i,))))
    assert stays(lambda b, i: (to_neighbours(b, i), b.gstore(x, (i,), f(0.0))))
    assert stays(lambda b, i: (to_neighbours(b, i), b.atomic("add", x, (const_i32(3),), f(1.0))))
    assert stays(lambda b, i: (to_neighbours(b, i), b.atomic("mul", x, (i,), f(2.0))))


def test_a_value_that_the_loop_overwrites_is_read_before():
    def early(b, i):
        value = b.gload(y, (i,))
        b.gstore(y, (i,), f(0.0))
        to_neighbours(b, i, value)

    def by_others(b, i):
        to_neighbours(b, i, b.gload(y, (plus(b, i, 1),)))
        b.gstore(y, (i,), f(0.0))

    assert not stays(early)
    assert stays(by_others)


def test_an_old_value_that_is_used_stays():
    def build(b, i):
        old = b.atomic("add", x, (plus(b, i, 1),), f(1.0))
        b.gstore(y, (i,), old)
        b.atomic("add", x, (plus(b, i, 2),), f(1.0))

    assert stays(build)


def test_an_axis_that_the_index_lacks_stays():
    assert stays(lambda b, i, j: to_neighbours(b, i), axis(30), axis(30))
    assert stays(lambda b, i: b.atomic("add", m, (plus(b, i, 1), i), f(1.0)))
    assert stays(lambda b, i: to_neighbours(b, b.op("mul", i, const_i32(2))), axis(10))


def test_adds_in_inner_loops_stay():
    def build(b, i):
        with b.loop(const_i32(0), const_i32(3)):
            to_neighbours(b, i)

    assert stays(build)


def test_unsigned_indices_which_wrap_stay():
    def build(b, i):
        index = b.op("sub", b.cast(i, u32), Const(1, u32))
        with b.if_(b.op("lt", index, Const(20, u32))):
            b.atomic("add", x, (index,), f(1.0))
            b.atomic("add", x, (b.cast(i, i32),), f(1.0))

    assert stays(build)


def test_two_arguments_may_be_the_same_array():
    a, c = ndarray("a"), ndarray("c")

    def build(b, i):
        b.atomic("add", a, (i,), b.gload(c, (i,)))
        b.atomic("add", a, (plus(b, i, 1),), f(1.0))

    assert stays(build)


def test_dear_values_stay():
    def build(b, i):
        value = b.gload(y, (i,))
        for _ in range(3):
            value = b.op("sin", value)
        for n in range(5):
            b.atomic("add", x, (plus(b, i, n),), value)

    assert stays(build)


def test_boxes_that_are_mostly_rim_stay():
    cube = field("cube", (40, 40, 40))

    def build(b, i, j, k):
        value = b.gload(field("by", (40, 40, 40)), (i, j, k))
        for index in ((plus(b, i, 1), j, k), (i, plus(b, j, 1), k), (i, j, plus(b, k, 1)), (plus(b, i, -1), j, k), (i, j, k)):
            b.atomic("add", cube, index, value)

    assert stays(build, *(axis(4) for _ in range(3)))
    assert not stays(build, *(axis(30) for _ in range(3)))


def test_serial_loops_and_kernels_with_launch_parameters_stay():
    k = simplify(kernel(to_neighbours, axis(30)))
    k.tasks[0].serialize = True
    assert gathered(k) is k
    k.tasks[0].serialize = False
    k.tasks[0].params = ["rows"]
    assert gathered(k) is k
