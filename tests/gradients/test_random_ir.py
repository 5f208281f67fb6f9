"""Random kernels: one gradient under every checkpoint plan, equal to central differences, and no side effect of the primal."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from harness import PLANS, numeric, run_gradient
from random_ir import Program, make

from qdrun.compiler.ir.verify import verify_kernel
from qdrun.compiler.passes.exits import lower_exits
from qdrun.compiler.passes.reverse.gradient import Gradient, reverse_kernel
from qdrun.compiler.passes.reverse.unroll import MOST_TRIPS
from qdrun.compiler.passes.simplify.simplify import simplify
from qdrun.compiler.runtime.python.interpret import Memory, run_kernel

FAST = range(0, 12)
AHEAD = 100_000 * int(os.environ.get("QDRUN_SEED", "0"))
SLOW = range(AHEAD + 12, AHEAD + int(os.environ.get("QDRUN_RANDOM_PROGRAMS", "36")))


def build(seed: int, simplified: bool, unroll: int) -> tuple[Program, Gradient]:
    p = make(seed)
    verify_kernel(p.kernel, lowered=False)
    kernel = lower_exits(p.kernel)
    if simplified:
        kernel = simplify(kernel)
    verify_kernel(kernel)
    p.kernel = kernel
    gradient = reverse_kernel(kernel, unroll)
    verify_kernel(gradient.kernel)
    if simplified:
        gradient = Gradient(simplify(gradient.kernel), gradient.sizing)
        verify_kernel(gradient.kernel)
    return p, gradient


def primal(p: Program, memory: Memory, w_out: np.ndarray, w_own: np.ndarray) -> float:
    memory.array(p.out)[:] = 0
    memory.array(p.own)[:] = 0
    run_kernel(p.kernel, memory)
    return float((memory.array(p.out) * w_out).sum() + (memory.array(p.own) * w_own).sum())


def check(seed: int, simplified: bool) -> None:
    """With short loops written out, and with checkpoints in all of them."""
    for unroll in (0, MOST_TRIPS):
        check_gradient(seed, *build(seed, simplified, unroll))


def check_gradient(seed: int, p: Program, gradient: Gradient) -> None:
    memory = p.memory(seed)
    weights = memory.array(p.out.grad).copy(), memory.array(p.own.grad).copy()
    x = [memory.array(p.x)]
    coarse = numeric(lambda: primal(p, memory, *weights), x, 1e-5)[0]
    fine = numeric(lambda: primal(p, memory, *weights), x, 1e-6)[0]
    first = None
    for name, choose in PLANS.items():
        memory = p.memory(seed)
        before = memory.array(p.x).copy()
        run_gradient(gradient, memory, choose)
        got = memory.array(p.x.grad).copy()
        assert np.array_equal(memory.array(p.x), before), f"{name}: the gradient changed its input"
        assert not memory.array(p.out).any() and not memory.array(p.own).any(), f"{name}: a side effect of the primal ran"
        first = got if first is None else first
        assert np.array_equal(first, got), f"{name}: differs from one level by {np.abs(first - got).max()}"
    scale = max(1.0, np.abs(fine).max())  # differences of a huge value say nothing about a small component
    usable = np.abs(coarse - fine) <= 1e-5 * scale  # no branch flips between the points
    assert np.all(np.abs(first - coarse)[usable] <= 1e-4 * scale)


@pytest.mark.parametrize("seed", [pytest.param(s, marks=pytest.mark.slow) if s in (3, 4, 5) else s for s in FAST])
def test_a_random_kernel_has_one_gradient_under_every_plan_and_it_is_right(seed):
    check(seed, simplified=False)


@pytest.mark.parametrize(
    "seed", [*range(1000, 1006, 2), *(pytest.param(s, marks=pytest.mark.slow) for s in range(1001, 1006, 2))]
)
def test_the_gradient_is_right_after_simplification_too(seed):
    check(seed, simplified=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SLOW)
def test_many_random_kernels_have_the_right_gradient(seed):
    check(seed, simplified=seed % 2 == 0)
