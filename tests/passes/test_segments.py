"""Loops over segments, as GPUs get them: the bits of the plain driver under every plan, and bookkeeping between the iterations only."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "gradients"))

from harness import PLANS, run_gradient
from random_ir import make

import qdrun as qd
from qdrun.compiler.compile import pipeline
from qdrun.compiler.ir.nodes import If, Loop, StackPut
from qdrun.compiler.ir.verify import verify_kernel
from qdrun.compiler.ir.walk import walk
from qdrun.compiler.passes.reverse import segments
from qdrun.compiler.passes.reverse.gradient import reverse_kernel


def form(sizing: tuple) -> str:
    """The text without the numbers of values."""
    return re.sub(r"%\d+|id=\d+", "", repr(sizing))


def check(seed: int, unroll: int = 0) -> int:
    """Compares both drivers under every plan; returns how many stacks there are."""
    p = make(seed)
    p.kernel = pipeline.simplified(p.kernel)
    plain, segmented = (reverse_kernel(p.kernel, unroll, segmented=s) for s in (False, True))
    verify_kernel(segmented.kernel)
    assert form(segmented.sizing) == form(plain.sizing)
    for name, choose in PLANS.items():
        got = []
        for gradient in (plain, segmented):
            memory = p.memory(seed)
            plan = run_gradient(gradient, memory, choose)
            got.append((memory.array(p.x.grad).copy(), plan.bytes))
        assert np.array_equal(got[0][0], got[1][0]), f"{name}: the gradients differ"
        assert got[0][1] == got[1][1]
    return sum(len(t.stacks) for t in segmented.kernel.tasks)


def test_random_kernels_have_the_bits_of_the_plain_driver():
    assert sum(check(seed) for seed in range(2)) > 2


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 130, 10))
def test_many_random_kernels_have_the_bits_of_the_plain_driver(first):
    for seed in range(first, first + 10):
        check(seed, unroll=16 * (seed % 2))


def conditions(body: list) -> tuple[int, bool]:
    """How many conditions an iteration decides, and whether it puts a state on the tape; loops inside are not looked at."""
    count, puts = 0, False
    for s in body:
        puts |= isinstance(s, StackPut) and s.stack.kind == "tape"
        if isinstance(s, If):
            inner = [conditions(arm) for arm in (s.then, s.orelse)]
            count += 1 + sum(n for n, _ in inner)
            puts |= any(p for _, p in inner)
    return count, puts


def test_an_iteration_puts_at_most_its_own_state_and_decides_nothing():
    """In the plain driver every iteration of a sweep asks whether a segment starts or ends."""
    qd.init(arch=qd.cpu, cpu_max_num_threads=1)
    x = qd.field(qd.f32, 8, needs_grad=True)
    y = qd.field(qd.f32, 8, needs_grad=True)

    @qd.kernel
    def march(n: qd.i32):
        for i in x:
            v = x[i]
            for _ in range(n):
                v = qd.sin(v) + 0.1
            y[i] = v

    kernel = march.variant((3,), {})[0].compiled_kernel.ir
    decided = {}
    for segmented in (False, True):
        gradient = pipeline.gradient(kernel, segmented=segmented).kernel
        found = [conditions(s.body) for t in gradient.tasks for s in walk(t.body) if isinstance(s, Loop)]
        # the loop over segments in the backward pass puts one state itself, behind a condition
        decided[segmented] = [n for n, puts in found if puts]
    assert min(decided[False]) > 2 and sorted(decided[True])[:2] == [0, 0], "the sweep and the refill"


def test_a_long_body_is_not_copied_twice_more(monkeypatch):
    kernel = next(
        k
        for seed in range(30)
        for k in [pipeline.simplified(make(seed).kernel)]
        if any(t.stacks for t in reverse_kernel(k, 0).kernel.tasks)
    )
    monkeypatch.setattr(segments, "MOST_STATEMENTS", 0)
    sizes = [sum(1 for t in reverse_kernel(kernel, 0, segmented=s).kernel.tasks for _ in walk(t.body)) for s in (False, True)]
    assert sizes[0] == sizes[1]
