"""Launch parameters of one loop."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdrun.compiler.tape.levels import fixed_capacity, full_tape, thinning, with_levels
from qdrun.compiler.tape.options import SMALLEST_THINNING


@pytest.mark.parametrize(
    ("k", "levels", "words"),
    [(64, 1, 64), (64, 2, 16), (256, 2, 32), (1000, 2, 64), (4096, 2, 128), (64, 3, 11), (1000, 3, 29), (4096, 3, 47)],
)
def test_slots_follow_the_square_and_the_cube_root(k, levels, words):
    assert with_levels(k, levels).words(1, 1) == words


@given(st.integers(2, 3000), st.sampled_from([2, 3]), st.integers(1, 6), st.integers(1, 6))
def test_a_plan_covers_every_iteration_and_segments_divide_blocks(k, levels, x, t):
    p = with_levels(k, levels, None, x, t)
    assert p.D1 % p.S == 0
    assert p.C1 * p.D1 >= k
    assert p.capacity >= k
    assert p.C2 == p.D1 // p.S - 1
    assert p.C1 == ceil(k / p.D1)


@given(st.integers(2, 1500), st.integers(1, 6), st.data())
def test_two_levels_are_as_small_as_any_segment_length_makes_them(k, x, data):
    t = data.draw(st.integers(1, x))
    assert with_levels(k, 2, None, x, t).words(x, t) == min(ceil(k / s) * x + s * t for s in range(1, k + 1))


@given(st.integers(8, 200), st.integers(1, 4), st.data())
def test_three_levels_are_about_as_small_as_any(k, x, data):
    t = data.draw(st.integers(1, x))
    best = min((ceil(k / (s * r)) + r - 1) * x + s * t for s in range(1, k + 1) for r in range(2, k // s + 2))
    assert with_levels(k, 3, None, x, t).words(x, t) <= best + t


def test_more_levels_never_need_more_words():
    for k in (10, 100, 1000, 10_000):
        words = [with_levels(k, n).words(1, 1) for n in (1, 2, 3)]
        assert words == sorted(words, reverse=True)


def test_thinning_reaches_a_million_iterations_in_under_300_slots():
    p = thinning(*SMALLEST_THINNING)
    assert p.capacity == 1_000_000
    assert p.words(1, 1) == 299


@pytest.mark.parametrize("params", [(4, 4, 4), (100, 99, 100, 3000), (4, 7, 4, 6)])
def test_thinning_refuses_blocks_that_do_not_double_to_the_longest(params):
    with pytest.raises(ValueError, match="by doubling"):
        thinning(*params)


def test_a_fixed_capacity_holds_that_many_iterations_and_no_more():
    assert fixed_capacity(50).capacity == 50
    assert full_tape(0).tape_slots == 1
