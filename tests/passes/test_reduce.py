import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from irtools import axis, body, f, field, kernel, ndarray

from qdrun.compiler.ir.builder import const_i32
from qdrun.compiler.ir.nodes import ArgDecl, Assert, Buffer, Const, Place
from qdrun.compiler.ir.printer import print_kernel
from qdrun.compiler.ir.types import f32, i32, u1
from qdrun.compiler.ir.verify import verify_kernel
from qdrun.compiler.passes.parallel.reduce import reduce_kernel
from qdrun.compiler.runtime.python.interpret import Memory, run_kernel

loss, x, n = field("loss", ()), field("x"), field("n", dtype=i32)
ZERO = (const_i32(0),)


def reductions(build, *axes):
    """How many reductions a kernel gets."""
    out = reduce_kernel(kernel(build, *(axes or (axis(),))))
    verify_kernel(out)
    return len(out.tasks[0].reductions)


def test_a_sum_goes_through_a_local():
    k = kernel(lambda b, i: b.atomic("add", loss, (), b.gload(x, (i,))), axis())
    out = reduce_kernel(k)
    assert body(out) == [
        "%1 = gload @x.0[%0] : f32",
        "%2 = load $loss.0 : f32",
        "%3 = add %2, %1 : f32",
        "$loss.0 = %3",
    ]
    assert "reduce add $loss.0 into @loss.0[]" in print_kernel(out)
    assert not k.tasks[0].reductions and "atomic" in "\n".join(body(k))  # the original is left as it is


def test_a_difference_adds_the_negated_value_and_shares_the_local():
    def build(b, i):
        b.atomic("add", loss, (), f(1.0))
        with b.loop(const_i32(0), const_i32(2)), b.if_(Const(True, u1)):
            b.atomic("sub", loss, (), f(2.0))

    out = reduce_kernel(kernel(build, axis()))
    assert len(out.tasks[0].reductions) == 1
    assert [line.strip() for line in body(out) if "neg" in line or "atomic" in line] == ["%3 = neg 2.0:f32 : f32"]


@pytest.mark.parametrize(("code", "many"), [("add", 1), ("sub", 1), ("min", 1), ("max", 1), ("mul", 0), ("xchg", 0)])
def test_sums_and_extremes_are_reduced_and_nothing_else(code, many):
    assert reductions(lambda b, i: b.atomic(code, loss, (), f(1.0))) == many


def test_an_atomic_stays_when_its_result_is_used():
    assert reductions(lambda b, i: b.gstore(x, (i,), b.atomic("add", loss, (), f(1.0)))) == 0


def test_an_atomic_stays_when_the_place_is_touched_in_another_way():
    def other(touch):
        def build(b, i):
            b.atomic("add", x, ZERO, f(1.0))
            touch(b, i)

        return reductions(build)

    assert other(lambda b, i: b.gload(x, (i,))) == 0
    assert other(lambda b, i: b.gstore(x, (i,), f(1.0))) == 0
    assert other(lambda b, i: b.atomic("add", x, (i,), f(1.0))) == 0
    assert other(lambda b, i: b.atomic("max", x, ZERO, f(1.0))) == 0
    assert other(lambda b, i: b.atomic("add", x, (const_i32(1),), f(1.0))) == 2
    assert other(lambda b, i: b.gload(field("y"), (i,))) == 1


def test_an_atomic_stays_when_its_element_depends_on_the_iteration():
    assert reductions(lambda b, i: b.atomic("add", x, (i,), f(1.0))) == 0
    assert reductions(lambda b, i: b.atomic("add", x, (b.gload(n, (i,)),), f(1.0))) == 0


def test_an_element_that_may_not_exist_is_touched_by_those_alone_that_update_it():
    decl = ArgDecl("k", "scalar", i32)

    def build(b, i):
        k = b.op("arg", dtype=i32, attr=decl)
        with b.if_(b.op("ge", k, const_i32(0))):
            b.atomic("add", x, (k,), f(1.0))

    def checked(b, i):
        k = b.op("arg", dtype=i32, attr=decl)
        b.put(Assert(b.op("ge", k, const_i32(0)), "k is negative"))
        b.atomic("add", x, (k,), f(1.0))

    def both(b, i):
        k = b.op("arg", dtype=i32, attr=decl)
        with b.if_(b.op("ge", k, const_i32(0))):
            b.atomic("add", x, (k,), f(1.0))
        b.atomic("add", x, (k,), f(1.0))

    for make, sure in ((build, False), (checked, False), (both, True)):
        out = reduce_kernel(kernel(make, axis()))
        verify_kernel(out)
        assert [r.sure for r in out.tasks[0].reductions] == [sure]
    for k, want in ((3, 4.0), (-1, 0.0)):
        memory = Memory.of({})
        run_kernel(reduce_kernel(kernel(build, axis())), memory, {decl: k})
        assert memory.array(x).sum() == want and memory.array(x)[3] == want
    assert reductions(lambda b, i: b.atomic("add", x, (const_i32(99),), f(1.0))) == 1  # every iteration does it anyway
    with_length = ndarray("a")
    assert reductions(lambda b, i: b.atomic("add", with_length, ZERO, f(1.0))) == 1


def test_an_index_from_arguments_and_read_only_memory_is_computed_in_the_prologue():
    decl = ArgDecl("k", "scalar", i32)

    def build(b, i):
        k = b.op("add", b.op("arg", dtype=i32, attr=decl), b.gload(n, ZERO))
        b.atomic("add", x, (k,), f(1.0))

    out = reduce_kernel(kernel(build, axis()))
    verify_kernel(out)
    task = out.tasks[0]
    assert [s.op for s in task.prologue] == ["arg", "gload", "add"] and task.reductions[0].index == (task.prologue[2],)
    memory = Memory.of({n: np.array([2] + [0] * 7, np.int32)})
    run_kernel(out, memory, {decl: 3})
    assert memory.array(x).tolist() == [0, 0, 0, 0, 0, 4, 0, 0]

    def written(b, i):
        build(b, i)
        b.gstore(n, (i,), i)

    assert reductions(written) == 0


def test_a_serial_task_keeps_its_atomics():
    k = kernel(lambda b: b.atomic("add", loss, (), f(1.0)))
    assert body(reduce_kernel(k)) == body(k)


def test_components_of_one_buffer_reduce_apart():
    buffer = Buffer("field")
    parts = [Place(f"v{c}", f32, buffer, 0, (), (), offset=4 * c) for c in range(3)]

    def build(b, i):
        for p in parts:
            b.atomic("add", p, (), f(1.0))

    assert reductions(build) == 3


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 7))
def test_the_result_is_that_of_the_atomics_for_every_chunk(seed, chunk):
    rng = random.Random(seed)
    ints, totals = field("t", (2,), i32), field("s", (2,), f32)

    def build(b, i):
        for place in (ints, totals):
            codes = rng.choice((("add", "sub"), ("min",), ("max",)))
            for _ in range(rng.randrange(1, 4)):
                value = b.op("mul", b.cast(i, place.dtype), Const(rng.randrange(-3, 4), place.dtype))
                target = (const_i32(rng.randrange(2)),)
                if rng.random() < 0.5:
                    with b.if_(b.op("eq", b.op("mod", i, const_i32(2)), const_i32(rng.randrange(2)))):
                        b.atomic(rng.choice(codes), place, target, value)
                else:
                    b.atomic(rng.choice(codes), place, target, value)

    k = kernel(build, axis(6))
    out = reduce_kernel(k)
    verify_kernel(out)
    assert out.tasks[0].reductions
    results = []
    for version in (k, out):
        memory = Memory.of({ints: np.array([5, -5], np.int32), totals: np.array([1.5, -7], np.float32)})
        run_kernel(version, memory, chunk=chunk)
        results.append((memory.array(ints).tolist(), memory.array(totals).tolist()))
    assert results[0] == results[1]
