"""Trip-count bounds against brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

from qdrun.compiler.ir.meaning import evaluate, limits, scalar
from qdrun.compiler.ir.nodes import ArgDecl, Buffer, Op, Place
from qdrun.compiler.ir.types import f32, f64, i8, i16, i32, i64, u1, u8, u16, u32, u64
from qdrun.compiler.tape.bounds import bounds, enumerate
from qdrun.compiler.tape.bounds.bounds import max_trips
from qdrun.compiler.tape.bounds.evaluable import known_nest
from qdrun.compiler.tape.bounds.evaluate import Points
from qdrun.compiler.tape.bounds.intervals import Intervals
from qdrun.compiler.tape.bounds.queries import Space
from qdrun.compiler.tape.bounds.sizeexpr import (
    Bin,
    Cast,
    ElementRead,
    Extent,
    Index,
    Lit,
    Range,
    ScalarArgument,
    UnknownExpr,
    parts,
)
from qdrun.compiler.tape.bounds.sizeexpr import truth as unknown

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
    assert max_trips(loop(Lit(0), ScalarArgument(N)), (), Host(n=13)) == bounds.Trips(13, "argument")
    assert max_trips(loop(Lit(0), Extent(A, 1)), (), Host()) == bounds.Trips(11, "shape")


def test_an_empty_range_has_no_iterations():
    assert max_trips(loop(Lit(0), ScalarArgument(N)), (), Host(n=-5)).count == 0


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
    inner = loop(ElementRead(LENGTHS, (i,)), ElementRead(LENGTHS, (Bin("add", (i, Lit(1))),)))
    assert max_trips(inner, (outer,), Host(lengths=start)).count == max(lengths)


def test_a_guarded_read_past_the_end_counts_as_no_iterations():
    outer = loop(Lit(0), Lit(4))
    i = Index(outer.index)
    inner = loop(ElementRead(LENGTHS, (i,)), ElementRead(LENGTHS, (Bin("add", (i, Lit(1))),)))
    assert max_trips(inner, (outer,), Host(lengths=[0, 3, 5, 9])).count == 4


@given(st.integers(-20, 20), st.integers(-20, 20), st.sampled_from([-3, -2, -1, 1, 2, 5]))
def test_steps_count_as_pythons_range_does(begin, end, step):
    assert max_trips(loop(Lit(begin), Lit(end), step), (), Host()).count == len(range(begin, end, step))


def test_min_is_not_taken_for_max():
    assert max_trips(loop(Lit(0), Bin("min", (ScalarArgument(N), Lit(3)))), (), Host(n=1000)).count == 3


def test_a_value_that_depends_on_the_path_is_bounded_by_its_largest_option():
    found = max_trips(loop(Lit(0), Bin("select", (unknown(), ScalarArgument(N), Lit(3)), i64)), (), Host(n=8))
    assert found == bounds.Trips(8, "argument, the largest over the paths that may be taken")


def test_what_only_running_can_tell_is_unknown_and_says_why():
    assert max_trips(loop(Lit(0), UnknownExpr("counted")), (), Host()) == bounds.Trips(None, "counted")
    assert max_trips(loop(Lit(0), None), (), Host()) == bounds.Trips(None, "while")


def test_a_bound_that_is_met_at_an_end_of_the_indices_needs_no_enumeration(monkeypatch):
    monkeypatch.setattr(bounds, "MOST_WORK", 0)
    outer = loop(Lit(0), Lit(10**9))
    inner = loop(Lit(0), Bin("sub", (Lit(64), Index(outer.index))))
    assert max_trips(inner, (outer,), Host()) == bounds.Trips(64, "literal, exact over the enclosing indices")


def test_what_enumeration_would_take_too_long_for_is_an_upper_bound():
    i, j, k = (loop(Lit(0), Lit(30_000)) for _ in range(3))
    a, b, c = Index(i.index), Index(j.index), Index(k.index)
    hill = Bin("sub", (Bin("min", (a, Bin("sub", (Lit(20_000), a)))), Bin("abs", (Bin("sub", (b, Lit(7))),))))
    hill = Bin("add", (hill, Bin("min", (c, Lit(0)))))
    found = max_trips(loop(Lit(0), hill), (i, j, k), Host())
    assert found.count >= 10_000 and found.source == "interval bound: 2.7e+13 combinations of indices are too many to look at"


def test_an_upper_bound_says_so():
    i, j = (loop(Lit(0), Lit(10**9)) for _ in range(2))
    twisted = Bin("xor", (Bin("mul", (Index(i.index), Lit(7))), Bin("mod", (Index(j.index), Lit(1000)))))
    inner = loop(Lit(0), Bin("mod", (Bin("sub", (Bin("mul", (twisted, Lit(0))), Lit(3))), Lit(100))))
    found = max_trips(inner, (i, j), Host())
    assert found == bounds.Trips(97, "literal, exact over the enclosing indices")
    inner = loop(Lit(0), Bin("mod", (Bin("mul", (twisted, Lit(2))), Lit(100))))
    found = max_trips(inner, (i, j), Host())
    assert (found.count, found.source) == (99, "interval bound: 1e+18 combinations of indices are too many to look at")


def test_enumeration_in_pieces_gives_the_same_as_in_one(monkeypatch):
    outer = loop(Lit(0), Lit(5000))
    middle = loop(Lit(0), Bin("mod", (Index(outer.index), Lit(7))))
    inner = loop(Index(middle.index), Bin("add", (Index(middle.index), Bin("mod", (Index(outer.index), Lit(13))))))
    whole = enumerate.largest(Space(inner, (outer, middle), Host()))
    for chunk, long in ((64, 4096), (512, 2), (100_000, 1)):
        monkeypatch.setattr(enumerate, "CHUNK", chunk)
        monkeypatch.setattr(enumerate, "LONG", long)
        assert enumerate.largest(Space(inner, (outer, middle), Host())) == whole == 12
    assert max_trips(inner, (outer, middle), Host()) == bounds.Trips(12, "literal, exact over the enclosing indices")


INTS = (i8, i16, i32, i64, u8, u16, u32, u64)
BINARY = "add sub mul floordiv mod cdiv crem min max and or xor shl shr sar pow".split()
UNARY = "neg abs sgn bitnot popcnt clz".split()
COMPARE = "lt le gt ge eq ne".split()


def numbers(dtype):
    low, high = limits(dtype)
    return st.one_of(st.integers(max(low, -5), min(high, 5)), st.integers(low, high), st.sampled_from([low, high]))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_operations_give_what_the_kernel_computes_whatever_wraps(data):
    dtype = data.draw(st.sampled_from(INTS))
    op = data.draw(st.sampled_from([*BINARY, *UNARY, *COMPARE]))
    columns = [data.draw(st.lists(numbers(dtype), min_size=6, max_size=6)) for _ in range(1 if op in UNARY else 2)]
    indices = [Op("index", (), dtype) for _ in columns]
    result = u1 if op in COMPARE else dtype
    arrays = [np.array(c, dtype.numpy) for c in columns]
    e = Bin(op, tuple(map(Index, indices)), result)
    values, bad = Points(Host(), 6, dict(zip(indices, arrays))).eval(e)
    assert values.dtype == result.numpy
    assert bad is False
    assert values.tolist() == [evaluate(op, [a[k] for a in arrays], result) for k in range(6)]
    box = {op: (min(c), max(c)) for op, c in zip(indices, columns)}
    low, high = Intervals(Host(), box).of(e)
    assert low <= int(values.min()) <= int(values.max()) <= high
    for k in range(6):
        single, _ = Points(Host(), 1, {i: a[k] for i, a in zip(indices, arrays)}).eval(e)
        assert single == values[k] and single.dtype == values.dtype


@pytest.mark.parametrize("dtype", [i32, u32, i64, u64], ids=str)
def test_powers_and_quotients_keep_every_bit_of_their_type(dtype):
    """Above 2**53, where f64 has gaps; of one value as of many."""
    low, high = limits(dtype)
    bases = np.array([high, high - 1, high // 2 + 2, 3, 7, low, 0], dtype.numpy)
    others = np.array([1, 3, 40, 37, 22, 5, 0], dtype.numpy)
    for op in ("pow", "floordiv", "mod", "cdiv", "crem"):
        want = [evaluate(op, [a, b], dtype) for a, b in zip(bases, others)]
        found = evaluate(op, [bases, others], dtype)
        assert found.dtype == dtype.numpy and found.tolist() == want, op
        assert all(x.dtype == dtype.numpy for x in want), op


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([*INTS, u1]), st.sampled_from([*INTS, f32, f64]), st.data())
def test_casts_wrap_and_saturate_as_in_the_kernel(to, of, data):
    reals = st.one_of(st.floats(width=of.bits), st.integers(-300, 300).map(float)) if of.is_real else numbers(of)
    items = np.array(data.draw(st.lists(reals, min_size=1, max_size=6)), of.numpy)
    index = Op("index", (), of)
    values, _ = Points(Host(), len(items), {index: items}).eval(Cast(Index(index), to))
    assert values.tolist() == [evaluate("cast", [x], to) for x in items]


def trees(indices, dtype):
    leaf = st.one_of(
        st.integers(-6, 6).map(lambda v: Lit(v, dtype)),
        st.sampled_from(indices).map(Index),
        st.integers(0, 200).map(lambda v: Lit(v, dtype)),
    )

    def more(e):
        two = st.builds(lambda c, a, b: Bin(c, (a, b), dtype), st.sampled_from(BINARY[:-1]), e, e)
        one = st.builds(lambda c, a: Bin(c, (a,), dtype), st.sampled_from(UNARY[:4]), e)
        narrow = e.map(lambda a: Cast(Cast(a, i8), dtype))
        cond = st.builds(lambda c, a, b: Bin(c, (a, b), u1), st.sampled_from(COMPARE), e, e)
        return st.one_of(two, two, one, narrow, st.builds(lambda c, a, b: Bin("select", (c, a, b), dtype), cond, e, e))

    return st.recursive(leaf, more, max_leaves=6)


def value(e, at):
    """One value, from the reference meaning of each operation."""
    if isinstance(e, Lit):
        return scalar(e.value, e.dtype)
    if isinstance(e, Index):
        return at[e.op]
    if isinstance(e, Cast):
        return evaluate("cast", [value(e.arg, at)], e.dtype)
    return evaluate(e.op, [value(a, at) for a in e.args], e.dtype)


@settings(max_examples=20, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])  # shrinking takes minutes
@given(st.data())
def test_any_expression_is_exact_and_never_under_by_intervals(data):
    dtype = data.draw(st.sampled_from([i32, i32, i64, i16, u32]))
    ops = [Op("index", (), dtype) for _ in range(2)]
    n = data.draw(st.integers(1, 9))
    outer = Range(ops[0], Lit(0, dtype), Lit(n, dtype), 1)
    middle = Range(ops[1], *(data.draw(trees(ops[:1], dtype)) for _ in range(2)), data.draw(st.sampled_from([1, 3, -1, -2])))
    tuples = []
    for i in range(n):
        at = {ops[0]: dtype.numpy.type(i)}
        span = range(int(value(middle.begin, at)), int(value(middle.end, at)), middle.step)
        assume(len(span) < 500)
        tuples += [{**at, ops[1]: dtype.numpy.type(j)} for j in span]
    lo, hi = data.draw(trees(ops, dtype)), data.draw(trees(ops, dtype))
    if not any(isinstance(e, Index) and e.op is ops[1] for x in (lo, hi) for e in parts(x)):
        tuples = [{ops[0]: dtype.numpy.type(i)} for i in range(n)]  # an index that is not used is not looked at
    step = data.draw(st.sampled_from([-3, -1, 1, 2]))
    inner = Range(Op("index", (), dtype), lo, hi, step)
    truth = max((len(range(int(value(lo, at)), int(value(hi, at)), step)) for at in tuples), default=0)
    inner, used = known_nest(inner, (outer, middle))
    assert enumerate.largest(Space(inner, used, Host())) == truth
    search = bounds._Search(inner, used, Host())
    size, most = search.measure()
    assert most >= truth
    assert size >= len(tuples) or len(used) < 2
    trips = max_trips(inner, used, Host())
    assert trips.count is None or trips.count >= truth
    assert trips.count == truth or "interval bound" in trips.source


def test_a_bound_that_wraps_is_the_number_that_the_kernel_gets():
    n, m = 100_000, 65_536
    square = Bin("mul", (ScalarArgument(N), ScalarArgument(N)), i32)
    assert max_trips(loop(Lit(0), square), (), Host(n=n)).count == n * n % 2**32
    assert max_trips(loop(Lit(0), square), (), Host(n=m)).count == 0
    outer = Range(Op("index", (), i32), Lit(0, i32), Lit(70_000, i32), 1)
    wrapped = Bin("mul", (Index(outer.index), Index(outer.index)), i32)
    truth = max((i * i + 2**31) % 2**32 - 2**31 for i in range(70_000))
    assert max_trips(Range(Op("index", (), i32), Lit(0, i32), wrapped, 1), (outer,), Host()).count == truth


def test_a_span_that_does_not_fit_64_bits_is_not_small():
    low, high = Lit(-(2**63)), Lit(2**63 - 1)
    assert max_trips(loop(low, high), (), Host()).count == 2**63 - 1


@pytest.mark.parametrize("step", [1, -1, 3, -3])
def test_an_empty_range_whose_span_wraps_has_no_iterations(step):
    ends = (Lit(2**62), Lit(-(2**62) - 10))
    assert max_trips(loop(*(ends if step > 0 else ends[::-1]), step), (), Host()).count == 0


@pytest.mark.parametrize(
    ("long", "longs"),
    [(2**40, 2), (2**63 - 1, 5), *(pytest.param(*x, marks=pytest.mark.slow) for x in ((2**62, 3), (2**62, 4), (2**63 - 1, 2)))],
)
def test_ranges_whose_lengths_add_up_to_more_than_64_bits_hide_no_other(long, longs):
    """The long ranges are those of iterations that do not run, say: their tuples must not make the others disappear."""
    length = Place("length", i64, Buffer("field"), 1, (8,), (8,))
    table = Place("table", i64, Buffer("field"), 1, (8,), (8,))
    arrays = {length: np.array([5] * (16 - longs) + [long] * longs), table: np.array([9, 0, 0, 0, 1, 0, 0, 0])}

    class Arrays(Host):
        def array(self, place):
            return arrays[place]

    rows = Range(Op("index", (), i32), Lit(0, i32), Lit(16, i32), 1)
    middle = Range(Op("index", (), i64), Lit(0), ElementRead(length, (Index(rows.index),)), 1)
    at = Bin("and", (Index(middle.index), Lit(7)))
    turned = Bin("and", (Bin("add", (Index(middle.index), Lit(1))), Lit(7)))
    inner = Range(Op("index", (), i64), Lit(0), Bin("add", (ElementRead(table, (at,)), ElementRead(table, (turned,)))), 1)
    found = max_trips(inner, (rows, middle), Arrays())
    assert 9 <= (found.count or 9) <= 18


def test_what_only_running_can_tell_may_be_bounded_by_something_else():
    unknown = UnknownExpr("who knows")
    assert max_trips(loop(Lit(0), Bin("min", (ScalarArgument(N), unknown))), (), Host(n=7)).count == 7
    assert max_trips(loop(Bin("max", (Lit(2), unknown)), Bin("min", (unknown, ScalarArgument(N)))), (), Host(n=7)).count == 5
    assert max_trips(loop(Lit(0), Bin("max", (ScalarArgument(N), unknown))), (), Host(n=7)) == bounds.Trips(None, "who knows")
    assert max_trips(loop(Bin("max", (Lit(2), unknown)), ScalarArgument(N), 3), (), Host(n=12)).count == 10, (
        "begin may be 3 or 4"
    )
    outer = loop(unknown, Lit(9))
    assert max_trips(loop(Lit(0), Index(outer.index)), (outer,), Host()) == bounds.Trips(None, "who knows")
    endless = loop(Lit(0), None)
    clamped = Bin("min", (Index(endless.index), Lit(9)))
    assert max_trips(loop(Lit(0), clamped), (endless,), Host()).count == 9


def test_a_read_outside_of_an_array_counts_where_its_value_is_used():
    outer = loop(Lit(0), Lit(4))
    i = Index(outer.index)
    guarded = Bin("select", (Bin("lt", (i, Lit(3)), u1), ElementRead(LENGTHS, (i,)), Lit(5)))
    assert max_trips(loop(Lit(0), guarded), (outer,), Host(lengths=[1, 2, 3])).count == 5
    assert max_trips(loop(Lit(0), ElementRead(LENGTHS, (i,))), (outer,), Host(lengths=[1, 2, 3])).count == 3
    assert max_trips(loop(Lit(0), ElementRead(LENGTHS, (i,))), (outer,), Host(lengths=[])).count == 0


def test_wide_intervals_of_few_indices_do_not_stop_an_enumeration():
    outer = Range(Op("index", (), u32), Lit(0, u32), Lit(5, u32), 1)
    down = Cast(Cast(Bin("neg", (Index(outer.index),), u32), i8), u32)
    middle = Range(Op("index", (), u32), down, Bin("add", (down, Lit(3000, u32)), u32), 1)
    inner = Range(Op("index", (), u32), Lit(0, u32), Bin("mod", (Index(middle.index), Lit(77, u32)), u32), 1)
    assert max_trips(inner, (outer, middle), Host()).count == 76
    shifted = Bin("mod", (Bin("mul", (Index(middle.index), Lit(10, u32)), u32), Lit(100, u32)), u32)
    found = max_trips(Range(inner.index, Lit(0, u32), shifted, 1), (outer, middle), Host())
    truth = max(
        (10 * (-i % 2**32 + k)) % 2**32 % 100 for i in range(5) for k in range(3000) if i == 0 or -i % 2**32 + k < 2**32
    )
    assert found == bounds.Trips(truth, "literal, exact over the enclosing indices")


@pytest.mark.parametrize("k", [1, 5, 64, 1000])
def test_a_hundred_million_outer_iterations(k):
    outer = loop(Lit(0), Lit(10**8))
    inner = loop(Lit(0), Bin("mod", (Index(outer.index), Lit(k))))
    assert max_trips(inner, (outer,), Host()).count == k - 1


def test_ragged_rows_are_streamed():
    rng = np.random.default_rng(3)
    lengths = rng.integers(0, 9, 3_000_000)
    lengths[2_345_678] = 40
    outer = Range(Op("index", (), i32), Lit(0, i32), Lit(len(lengths), i32), 1)
    i = Index(outer.index)
    inner = Range(
        Op("index", (), i32), ElementRead(LENGTHS, (i,)), ElementRead(LENGTHS, (Bin("add", (i, Lit(1, i32)), i32),)), 1
    )
    found = max_trips(inner, (outer,), Host(lengths=np.concatenate([[0], np.cumsum(lengths)])))
    assert found == bounds.Trips(40, "array, exact over the enclosing indices")


GRID = Place("grid", i32, Buffer("field"), 2, (40, 30), (120, 4))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**30), st.integers(-3, 3), st.integers(-3, 3), st.booleans())
def test_elements_of_a_table_at_two_indices(seed, di, dj, turned):
    table = np.random.default_rng(seed).integers(-5, 50, (40, 30)).astype(np.int32)
    outer, middle = loop(Lit(0), Lit(40)), loop(Lit(0), Lit(300))
    i, j = Bin("add", (Index(outer.index), Lit(di))), Bin("add", (Index(middle.index), Lit(dj)))
    first, second = (j, i) if turned else (i, j)
    host = Host(lengths=table)
    truth = max(
        (table[a, b] for p in range(40) for q in range(300) for a, b in [(q + dj, p + di) if turned else (p + di, q + dj)]
         if 0 <= a < 40 and 0 <= b < 30),
        default=0,
    )  # fmt: skip
    assert max_trips(loop(Lit(0), ElementRead(GRID, (first, second))), (outer, middle), host).count == max(0, truth)
