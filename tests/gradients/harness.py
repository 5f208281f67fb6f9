"""Runs a reverse kernel on the interpreter under a given plan, and compares with central differences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from qdrun.compiler.ir.nodes import Op, StackPut
from qdrun.compiler.ir.types import PLANES
from qdrun.compiler.passes.reverse.gradient import Gradient
from qdrun.compiler.runtime.python import interpret
from qdrun.compiler.runtime.python.interpret import Memory, run_kernel
from qdrun.compiler.tape.heap_plan import HeapPlan
from qdrun.compiler.tape.levels import LoopPlan, full_tape, thinning, with_levels
from qdrun.compiler.tape.machine import cpu
from qdrun.compiler.tape.plan import PlanOptions, make_plan


class MemoryHost:
    """Host knowledge for plans, from interpreter memory."""

    def __init__(self, memory: Memory, scalars=None) -> None:
        self.memory, self.scalars = memory, scalars or {}

    def scalar(self, arg):
        return self.scalars[arg]

    def extent(self, arg, axis):
        return self.memory.shapes[arg][axis]

    def array(self, place):
        return self.memory.array(place)


PLANS = {
    "L1": lambda s, k, src: full_tape(k, src) if k is not None else thinning(64, 63, 64),
    "L2": lambda s, k, src: levels(s, k, 2, None),
    "L2 S=1": lambda s, k, src: levels(s, k, 2, 1),
    "L2 S=3": lambda s, k, src: levels(s, k, 2, 3),
    "L3": lambda s, k, src: levels(s, k, 3, None),
    "L3 S=1": lambda s, k, src: levels(s, k, 3, 1),
    "L3 S=2": lambda s, k, src: levels(s, k, 3, 2),
    "thin 4/3/2": lambda s, k, src: thinning(4, 3, 2),
    "thin 3/7/1": lambda s, k, src: thinning(3, 7, 1),
    "thin 5/1/3": lambda s, k, src: thinning(5, 1, 3),
    "thin 2/31/1": lambda s, k, src: thinning(2, 31, 1),
}


def levels(s, k, n, seg) -> LoopPlan:
    return thinning(4, 15, 4) if k is None else with_levels(k, n, seg, s.words("ck1"), s.words("tape"))


@dataclass
class Watch:
    """What interpreted kernels did: slots used of each stack, by task and name, and runs of operations."""

    slots: dict[tuple[int, str], int] = field(default_factory=dict)
    runs: Counter[str] = field(default_factory=Counter)

    def check(self, plan: HeapPlan) -> None:
        """Fail if a stack used a slot that was not planned."""
        planned = {(t.position, k.name): p.plan.slots(k.kind) for t in plan.tasks for p in t.loops for k in p.stacks}
        for stack, used in self.slots.items():
            assert used <= planned[stack], f"stack {stack} used {used} slots, planned are {planned[stack]}"


@contextmanager
def watched() -> Iterator[Watch]:
    """Watch everything that is interpreted inside the block."""
    watch, stmt = Watch(), interpret._Iteration.stmt

    def watching(self, s) -> None:
        if isinstance(s, StackPut):
            key, slot = (self.task, s.stack.name), int(self.value(s.slot))
            assert slot >= 0
            watch.slots[key] = max(watch.slots.get(key, 0), slot + 1)
        elif isinstance(s, Op):
            watch.runs[s.op] += 1
        stmt(self, s)

    interpret._Iteration.stmt = watching
    try:
        yield watch
    finally:
        interpret._Iteration.stmt = stmt


def run_gradient(gradient: Gradient, memory: Memory, choose, scalars=None) -> HeapPlan:
    """Plan, run, and check that no slot beyond the plan was used."""
    plan = make_plan(gradient.kernel.name, gradient.sizing, MemoryHost(memory, scalars), PlanOptions(cpu(1), choose=choose))
    params = {(t.position, name): value for t in plan.tasks for name, value in t.params.items()}
    with watched() as watch:
        run_kernel(gradient.kernel, memory, scalars, params=params)
    watch.check(plan)
    return plan


def planes_of(plan: HeapPlan) -> int:
    return sum(plan.planes[p] for p in PLANES)


def numeric(value, arrays: list[np.ndarray], h: float) -> list[np.ndarray]:
    """Central differences of ``value()`` with respect to every element of ``arrays`` (changed in place and put back)."""
    out = []
    for a in arrays:
        g = np.zeros_like(a)
        for i in np.ndindex(a.shape):
            keep = a[i]
            a[i] = keep + h
            up = value()
            a[i] = keep - h
            down = value()
            a[i] = keep
            g[i] = (up - down) / (2 * h)
        out.append(g)
    return out
