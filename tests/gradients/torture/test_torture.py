"""Every thread about gradients that were wrong without a word: right here, or refused. The table at the end of the run says which."""

from __future__ import annotations

import sys
import textwrap
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qdrun as qd

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from cases_data import DATA, PAIRS
from cases_loops import LOOPS
from replay import same
from scene import Case, Scene

CASES: dict[str, Case] = {**LOOPS, **DATA}


def close_to(got: np.ndarray, want: np.ndarray, tolerance: float, what: str) -> None:
    scale = max(1.0, float(np.abs(want).max(initial=0.0)))
    np.testing.assert_allclose(got / scale, want / scale, rtol=0, atol=tolerance, err_msg=what)


@pytest.mark.parametrize(
    "seeds, each",
    [
        ((0,), (1, 3)),
        pytest.param((0,), (1, 2), marks=pytest.mark.slow),  # with the first level, whose bits are those of the others
        pytest.param((1, 2), (1, 2, 3), marks=pytest.mark.slow),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", CASES)
def test_a_thread_is_right_or_refused(name: str, seeds: tuple[int, ...], each: tuple[int, ...], record_property: Any) -> None:
    case = CASES[name]
    record_property("torture", (case.thread, name, "refused" if case.refused else "right"))
    if case.refused:
        scene = Scene(case, 0)
        with warnings.catch_warnings(), pytest.raises((qd.QdrunError, qd.GradientWarning)) as e:
            warnings.simplefilter("error", qd.GradientWarning)
            scene.gradient()
        assert case.refused in str(e.value)
        assert "\n  do: " in str(e.value)
        return
    first: dict[int, np.ndarray] = {}
    for levels in each:
        scene = Scene(case, 0, ad_checkpoint_levels=levels)
        for seed in seeds:  # the plan of a launch follows its data
            scene.draw(seed)
            got = scene.gradient()
            if levels == 1:
                first[seed] = got
                close_to(got, scene.differences(), 2e-6, "central differences")
                scene.interpreted()
                close_to(scene.tape_gradient(), got, 1e-13, "the tape differs from k.grad()")
            assert same(got, first[seed]), f"{levels} levels give other bits"
        scene.close()


@pytest.mark.parametrize("one, two", PAIRS)
def test_two_ways_to_write_the_same_have_one_gradient(one: str, two: str) -> None:
    got = []
    for name in (one, two):
        scene = Scene(CASES[name], 5)
        got.append(scene.gradient())
        scene.close()
    close_to(got[0], got[1], 1e-13, f"{one} / {two}")


ROWS = ["set before a dynamic loop, used in it and after it", "a branch mixing a vector arm and a dynamic arm", "break at the first hit",
        "a branch of the data mixing a vector arm and a dynamic arm", "a while loop to convergence", "while True with two exits",
        "a loop-carried vector rebuilt from itself"]  # fmt: skip


FAST_ROWS = ("break at the first hit", "a loop-carried vector rebuilt from itself")


@pytest.mark.parametrize("name", [n if n in FAST_ROWS else pytest.param(n, marks=pytest.mark.slow) for n in ROWS])
def test_each_lane_of_a_batch_has_its_own_gradient(name: str) -> None:
    """quadrants#791: one lane's gradient was copied to all. A batch of 19 rows against each row in a launch of its own."""
    case = CASES[name]
    body = textwrap.dedent(case.source).strip("\n").replace("(i + j) % N", "i").replace("j % N", "i")
    batches: dict[int, Scene] = {}
    for lanes in (1, 4, 8):
        batches[lanes] = Scene(Case(case.thread, body), 9, 19, cpu_lanes=lanes)
        batches[lanes].gradient()
    own = body.replace("range(n)", "range(n // 100)").replace("> n", "> n // 100")
    guarded = "if i == n % 100:\n" + textwrap.indent(own, "    ")
    single = Scene(Case(case.thread, guarded), 9, 19)
    for row in range(19):
        single.case = replace(single.case, launches=(("k", (500 + row,)),))
        single.gradient()
        for n in ("x", "w", "v2"):
            own_row = single.fields[n].grad.to_numpy()[row]
            for lanes, whole in batches.items():
                close_to(whole.fields[n].grad.to_numpy()[row], own_row, 1e-12, f"{n}, row {row}, {lanes} lanes")


def test_every_thread_of_the_list_has_a_case() -> None:  # warp#1350 and taichi#6172: test_tape_threads.py
    have = {c.thread for c in CASES.values()}
    want = (
        "warp#1694 warp#729 warp#1293 warp#1740 warp#1552 warp#174 taichi#2425 taichi#8356 taichi#1966 taichi#550 taichi#2505"
    )
    want += " taichi#7115 taichi#7116 taichi#4332 taichi#8119 quadrants#797 quadrants#791 quadrants#229 taichi#4226"
    want += " genesis-world#2742 genesis-world#2537 genesis-world#2150 genesis-world#2069"
    assert not set(want.split()) - have
