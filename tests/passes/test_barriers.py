"""What passes may keep over a barrier (nothing of memory, all values), and that two shared arrays are two."""

import pytest
from irtools import axis, body, f, field, on_copy

from qdrun.compiler.ir.alias import may_alias, same_array
from qdrun.compiler.ir.builder import StatementBuilder, const_i32
from qdrun.compiler.ir.nodes import Buffer, Kernel, Place, Task
from qdrun.compiler.ir.types import f32, i32, u64
from qdrun.compiler.ir.verify import verify_kernel
from qdrun.compiler.passes.clone import clone_kernel
from qdrun.compiler.passes.parallel.reduce import reduce_kernel
from qdrun.compiler.passes.simplify.cse import cse_in_place
from qdrun.compiler.passes.simplify.dce import dce_in_place
from qdrun.compiler.passes.simplify.forwarding import forward_in_place
from qdrun.compiler.passes.simplify.simplify import simplify

cse = on_copy(cse_in_place)
dce = on_copy(dce_in_place)
forward = on_copy(forward_in_place)
x, y = field("x"), field("y")


def shared(name="s"):
    return Place(name, f32, Buffer("block"), 1, (8,), (4,))


def meeting(build):
    """A kernel of one loop in blocks of 4 threads."""
    task = Task("t", [], [axis()], block=4)
    build(StatementBuilder(task.body), task.axes[0].index)
    out = Kernel("k", [], [task])
    verify_kernel(out)
    return out


def count(kernel, what):
    return sum(what in line for line in body(kernel))


def wait(b, how="barrier"):
    b.op(how, dtype=i32, attr="grid" if how == "fence" else None)


@pytest.mark.parametrize("place", [x, shared()], ids=["field", "block"])
@pytest.mark.parametrize("there", ["barrier", "fence", ""])
def test_what_was_stored_is_not_what_is_read_after_a_barrier(place, there):
    def build(b, i):
        b.gstore(place, (i,), f(1.0))
        if there:
            wait(b, there)
        b.gstore(y, (i,), b.gload(place, (i,)))

    assert count(forward(meeting(build)), "gload") == bool(there)


@pytest.mark.parametrize("there", [True, False])
def test_a_load_before_a_barrier_is_not_the_one_after_it(there):
    def build(b, i):
        first = b.gload(x, (i,))
        if there:
            wait(b)
        b.gstore(y, (i,), b.op("sub", b.gload(x, (i,)), first))

    assert count(cse(meeting(build)), "gload") == 1 + there


@pytest.mark.parametrize("run", [cse, forward])
def test_a_barrier_in_a_loop_counts_in_it_and_after_it(run):
    s = shared()

    def build(b, i):
        b.gstore(s, (i,), f(1.0))
        total = b.local(b.gload(x, (i,)))
        with b.loop(i, i) as _:
            b.store(total, b.op("add", b.load(total), b.op("add", b.gload(s, (i,)), b.gload(x, (i,)))))
            wait(b)
        b.gstore(y, (i,), b.op("add", b.load(total), b.op("add", b.gload(s, (i,)), b.gload(x, (i,)))))

    assert count(run(meeting(build)), "gload") == 5


def test_values_and_variables_are_kept_over_a_barrier():
    def build(b, i):
        v = b.gload(x, (i,))
        b.gstore(y, (i,), b.op("neg", v))
        wait(b)
        b.gstore(y, (i,), b.op("neg", v))

    assert count(simplify(meeting(build)), "neg") == 1


def test_a_barrier_stays():
    assert count(dce(meeting(lambda b, i: wait(b))), "barrier") == 1


def test_the_size_of_blocks_is_copied():
    assert clone_kernel(meeting(lambda b, i: wait(b))).tasks[0].block == 4


def test_two_shared_arrays_are_two():
    a, b = shared("a"), shared("b")
    assert not may_alias(a, b) and not same_array(a, b) and may_alias(a, a)


def test_sums_stay_atomic_where_threads_meet():
    total = field("total", ())

    def build(b, i):
        wait(b)
        b.op("atomic", f(1.0), dtype=f32, attr=(total, "add"))

    assert not reduce_kernel(meeting(build)).tasks[0].reductions


def test_equal_exchanges_of_lanes_stay_apart_and_unused_ones_go():
    """Other lanes may give something else the second time, and every lane drops what none uses."""

    def build(b, i):
        value = b.gload(x, (i,))
        lane = const_i32(3)
        b.op("shuffle", value, lane, dtype=f32)
        first, second = (b.op("shuffle", value, lane, dtype=f32) for _ in range(2))
        flag = b.op("gt", first, second)
        b.op("ballot", flag, dtype=u64)
        b.gstore(y, (i,), b.op("add", first, second))
        wait(b, "fence")

    found = simplify(meeting(build))
    assert count(found, "shuffle") == 2 and count(found, "ballot") == 0 and count(found, "fence") == 1
    assert count(cse(meeting(build)), "shuffle") == 3
