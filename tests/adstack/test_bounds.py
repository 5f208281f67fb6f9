"""Trip-count bounds against brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdrun.compiler.adstack import bounds
from qdrun.compiler.adstack.bounds import max_trips
from qdrun.compiler.adstack.sizeexpr import AnyOf, Arg, Bin, Extent, Index, Lit, Range, Read, Unknown
from qdrun.compiler.ir.nodes import ArgDecl, Buffer, Op, Place
from qdrun.compiler.ir.types import f32, i32

N = ArgDecl("n", "scalar", i32)
A = ArgDecl("a", "ndarray", f32, 2)
LENGTHS = Place("lengths", i32, Buffer("field"), 1, (8,), (4,))


class Host:
    def __init__(self, n=0, lengths=()):
        self.n, self.lengths = n, np.array(lengths, np.int32)

    def scalar(self, arg):
        return self.n

    def extent(self, arg, axis):
        return (7, 11)[axis]

    def array(self, place):
        return self.lengths


def loop(begin, end, step=1):
    return Range(Op("index", (), i32), begin, end, step)


def test_a_literal_bound_is_its_own_trip_count():
    assert max_trips(loop(Lit(2), Lit(9)), (), Host()) == bounds.Trips(7, "literal")


def test_scalar_arguments_and_shapes_are_read_from_the_launch():
    assert max_trips(loop(Lit(0), Arg(N)), (), Host(n=13)) == bounds.Trips(13, "argument")
    assert max_trips(loop(Lit(0), Extent(A, 1)), (), Host()) == bounds.Trips(11, "shape")


def test_an_empty_range_has_no_iterations():
    assert max_trips(loop(Lit(0), Arg(N)), (), Host(n=-5)).count == 0


@given(st.integers(0, 40), st.integers(1, 40))
def test_a_bound_that_falls_with_the_outer_index_is_sized_exactly(n, rows):
    outer = loop(Lit(0), Lit(rows))
    inner = loop(Lit(0), Bin("sub", (Lit(n), Index(outer.index))))
    assert max_trips(inner, (outer,), Host()).count == max(max(0, n - i) for i in range(rows))


@given(st.lists(st.integers(0, 9), min_size=2, max_size=12))
def test_ragged_rows_need_the_longest_row_not_the_whole_array(lengths):
    start = np.cumsum([0, *lengths])
    outer = loop(Lit(0), Lit(len(lengths)))
    i = Index(outer.index)
    inner = loop(Read(LENGTHS, (i,)), Read(LENGTHS, (Bin("add", (i, Lit(1))),)))
    assert max_trips(inner, (outer,), Host(lengths=start)).count == max(lengths)


def test_a_guarded_read_past_the_end_counts_as_no_iterations():
    outer = loop(Lit(0), Lit(4))
    i = Index(outer.index)
    inner = loop(Read(LENGTHS, (i,)), Read(LENGTHS, (Bin("add", (i, Lit(1))),)))
    assert max_trips(inner, (outer,), Host(lengths=[0, 3, 5, 9])).count == 4


@given(st.integers(-20, 20), st.integers(-20, 20), st.sampled_from([-3, -2, -1, 1, 2, 5]))
def test_steps_count_as_pythons_range_does(begin, end, step):
    assert max_trips(loop(Lit(begin), Lit(end), step), (), Host()).count == len(range(begin, end, step))


def test_min_is_not_taken_for_max():
    assert max_trips(loop(Lit(0), Bin("min", (Arg(N), Lit(3)))), (), Host(n=1000)).count == 3


def test_a_value_that_depends_on_the_path_is_bounded_by_its_largest_option():
    found = max_trips(loop(Lit(0), AnyOf((Lit(3), Arg(N)))), (), Host(n=8))
    assert found == bounds.Trips(8, "interval bound")


def test_what_only_running_can_tell_is_unknown_and_says_why():
    assert max_trips(loop(Lit(0), Unknown("counted")), (), Host()) == bounds.Trips(None, "counted")
    assert max_trips(loop(Lit(0), None), (), Host()) == bounds.Trips(None, "while")


def test_interval_arithmetic_takes_over_when_there_are_too_many_tuples(monkeypatch):
    monkeypatch.setattr(bounds, "LIMIT", 1000)
    outer = loop(Lit(0), Lit(10**9))
    inner = loop(Lit(0), Bin("sub", (Lit(64), Index(outer.index))))
    assert max_trips(inner, (outer,), Host()) == bounds.Trips(64, "interval bound")


def test_enumeration_in_pieces_gives_the_same_as_in_one(monkeypatch):
    outer = loop(Lit(0), Lit(5000))
    middle = loop(Lit(0), Bin("mod", (Index(outer.index), Lit(7))))
    inner = loop(Index(middle.index), Bin("add", (Index(middle.index), Bin("mod", (Index(outer.index), Lit(13))))))
    whole = max_trips(inner, (outer, middle), Host())
    monkeypatch.setattr(bounds, "CHUNK", 512)
    assert max_trips(inner, (outer, middle), Host()) == whole == bounds.Trips(12, "literal, exact over the enclosing indices")


CODES = ("add", "sub", "mul", "floordiv", "mod", "min", "max")


def exprs(index):
    leaf = st.one_of(st.integers(-6, 6).map(Lit), st.just(Index(index)), st.just(Arg(N)))
    return st.recursive(leaf, lambda e: st.builds(lambda c, a, b: Bin(c, (a, b)), st.sampled_from(CODES), e, e), max_leaves=5)


def value(e, i, n):
    if isinstance(e, Lit):
        return e.value
    if isinstance(e, Index):
        return i
    if isinstance(e, Arg):
        return n
    a, b = (value(x, i, n) for x in e.args)
    return {
        "add": a + b, "sub": a - b, "mul": a * b, "min": min(a, b), "max": max(a, b),
        "floordiv": a // b if b else 0, "mod": a % b if b else 0,
    }[e.op]  # fmt: skip


OUTER = loop(Lit(0), Lit(9))


@settings(max_examples=200)
@given(exprs(OUTER.index), exprs(OUTER.index), st.integers(-9, 9))
def test_any_expression_is_exact_by_enumeration_and_never_under_by_intervals(lo, hi, n):
    inner = loop(lo, hi)
    truth = max(max(0, value(hi, i, n) - value(lo, i, n)) for i in range(9))
    assert max_trips(inner, (OUTER,), Host(n=n)).count == truth
    by_intervals = bounds._by_intervals(inner, (OUTER,), Host(n=n)).count
    assert by_intervals is None or by_intervals >= truth


@pytest.mark.parametrize("k", [1, 5, 64, 1000])
def test_ten_million_outer_iterations_are_enumerated_in_pieces(k):
    outer = loop(Lit(0), Lit(10_000_000))
    inner = loop(Lit(0), Bin("mod", (Index(outer.index), Lit(k))))
    assert max_trips(inner, (outer,), Host()).count == k - 1
