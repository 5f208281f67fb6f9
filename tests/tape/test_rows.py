"""How many rows a task gets: arithmetic of workers, lanes, iterations and the gate's count."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdrun.compiler.ir.nodes import Buffer, Op, Place
from qdrun.compiler.ir.types import f32, i32, u1
from qdrun.compiler.tape.bounds.row_count import count_passing, extent_of
from qdrun.compiler.tape.bounds.row_predicates import Condition, RowPredicate
from qdrun.compiler.tape.bounds.sizeexpr import Bin, ElementRead, Index, Lit, Range
from qdrun.compiler.tape.machine import Machine
from qdrun.compiler.tape.rows import CHEAP_COUNT, SMALL_STAKE, TINY_STAKE, RowDemand, demand_of
from qdrun.compiler.tape.sizing import StackRegion, TaskSizing

COUNTS = st.none() | st.integers(0, 200)


@given(st.integers(1, 64), st.sampled_from([1, 4, 16]), COUNTS, COUNTS)
def test_rows_are_the_least_of_workers_iterations_and_passing_iterations(workers, lanes, iterations, passing):
    rows = RowDemand(True, iterations, passing).rows(Machine("cpu", workers, lanes))
    limits = [workers] + [x for x in (None if iterations is None else -(-iterations // lanes), passing) if x is not None]
    assert rows.count == min(limits) * lanes
    assert rows.workers == max(1, min([workers, *limits[1:2]])) or iterations is None
    assert rows.params(Machine("cpu", workers, lanes)) == {"rows": min(limits), "threads": rows.workers, "lanes": lanes}
    assert rows.params(Machine("cpu", workers, lanes))["rows"] <= rows.workers


@given(st.integers(1, 64), st.sampled_from([(16, 1), (16, 4), (16, 16)]), COUNTS)
def test_turns_of_fewer_lanes_take_fewer_rows_of_the_same_workers(workers, shape, iterations):
    width, lanes = shape
    machine, whole = (Machine("cpu", workers, n, width=width) for n in (lanes, width))
    some, all_ = (RowDemand(True, iterations).rows(m) for m in (machine, whole))
    assert (some.count * width, some.workers) == (all_.count * lanes, all_.workers)
    assert some.params(machine) == all_.params(whole) | {"lanes": lanes}


@given(st.integers(1, 63), st.sampled_from([1, 8]), COUNTS, COUNTS)
def test_more_workers_never_need_fewer_rows(workers, lanes, iterations, passing):
    demand = RowDemand(True, iterations, passing)
    few, many = (demand.rows(Machine("cpu", w, lanes)) for w in (workers, workers + 1))
    assert few.count <= many.count and few.workers <= many.workers


def test_a_serial_task_has_one_row_or_none():
    machine = Machine("cpu", 8, 4)
    assert [RowDemand(False, 1, n).rows(machine).count for n in (None, 0, 1)] == [1, 0, 1]
    assert RowDemand(False, 1).rows(machine).params(machine) == {"rows": 1, "threads": 1, "lanes": 4}


class Data:
    """A launch with one f32 array; counts how often it is read."""

    def __init__(self, array: np.ndarray) -> None:
        self.content, self.reads = array, 0

    def scalar(self, arg):
        raise AssertionError

    def extent(self, arg, axis):
        raise AssertionError

    def array(self, place):
        self.reads += 1
        return self.content


def gated(shape: tuple[int, ...], used: tuple[int, ...]) -> TaskSizing:
    """A task over ``shape`` whose gate is ``m[used axes] > 0.5``."""
    axes = tuple(Range(Op("index", (), i32), Lit(0, i32), Lit(n, i32), 1) for n in shape)
    place = Place("m", f32, Buffer("field"), len(used), tuple(shape[k] for k in used), (4,) * len(used))
    cond = Bin("gt", (ElementRead(place, tuple(Index(axes[k].index) for k in used)), Lit(0.5, f32)), u1)
    return TaskSizing(0, "t", axes, True, StackRegion(), gate=RowPredicate((Condition(cond, True),), (), axes))


@pytest.mark.parametrize(
    "shape, used", [((7,), (0,)), ((5, 6), (0, 1)), ((5, 6), (1, 0)), ((5, 6), (1,)), ((3, 4, 5), (2, 0)), ((3, 0), (1,))]
)
def test_axes_that_the_gate_does_not_read_multiply_its_count(shape, used):
    content = (np.random.default_rng(1).integers(0, 2, tuple(shape[k] for k in used))).astype(np.float32)
    gate = gated(shape, used).gate
    assert gate is not None
    host = Data(content)
    extent = extent_of(gate, host)
    assert extent is not None and extent.iterations == np.prod(shape) and extent.looked_at == content.size
    others = int(np.prod([n for k, n in enumerate(shape) if k not in used]))
    assert count_passing(gate, extent, host, 10**9) == np.count_nonzero(content) * others


@given(st.lists(st.integers(1, 60), min_size=1, max_size=3), st.integers(0, 1000), st.integers(1, 40))
def test_a_count_in_blocks_is_the_count_of_the_whole_or_reaches_enough(shape, seed, enough):
    content = (np.random.default_rng(seed).random(shape) > 0.97).astype(np.float32)
    gate = gated(tuple(shape), tuple(range(len(shape)))).gate
    assert gate is not None
    host = Data(content)
    extent = extent_of(gate, host)
    assert extent is not None
    total = int(content.sum())
    assert count_passing(gate, extent, host, 10**9) == total
    found = count_passing(gate, extent, host, enough)
    assert found == total or enough <= found <= total


def test_a_dense_gate_is_looked_at_only_until_enough_iterations_are_found():
    task = gated((1 << 20,), (0,))
    dense, empty = Data(np.ones(1 << 20, np.float32)), Data(np.zeros(1 << 20, np.float32))
    demands = [demand_of(task, host, Machine("cpu", 16), 1 << 30) for host in (dense, empty)]
    assert [d.passing for d in demands] == [1 << 12, 0]
    assert dense.reads == 1 < empty.reads


@pytest.mark.parametrize(
    "size, stake, counted",
    [
        (10, TINY_STAKE - 1, False),
        (10, TINY_STAKE, True),
        (4 * 2000, 2000, True),
        (4 * 2000 + 1, 2000, False),
        (CHEAP_COUNT, SMALL_STAKE, True),
        (CHEAP_COUNT + 1, SMALL_STAKE, False),
        (CHEAP_COUNT + 1, CHEAP_COUNT + 1, True),
        (CHEAP_COUNT + 1, None, True),
    ],
)
def test_a_gate_is_counted_where_the_bytes_are_worth_it(size, stake, counted):
    host = Data(np.zeros(size, np.float32))
    demand = demand_of(gated((size,), (0,)), host, Machine("cpu", 4), stake)
    assert (demand.passing == 0) is counted and bool(demand.note) is not counted
    assert (host.reads > 0) is counted, "what is not counted is not read"
    assert demand.iterations == size
