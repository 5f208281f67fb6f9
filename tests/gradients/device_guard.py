"""A guarded adstack heap on a GPU: canaries before and behind each plane, and in rows that belong to no thread.

The rows of a GPU's heap lie side by side, word by word. So a thread that leaves its row, or has one that the plan does not know, writes
into a row of canaries between those of the other threads. A word that nobody has written is a NaN, which shows in the gradient.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from heap_guard import CANARY, MARGIN, launch_under, plan_with
from plan_kernels import PlanCase, plan_kernel

import qdrun as qd
from qdrun.compiler.ir.types import PLANES
from qdrun.compiler.runtime.base import Allocation
from qdrun.compiler.runtime.gpu.device import GpuDevice
from qdrun.compiler.runtime.mirror import Link
from qdrun.compiler.tape.heap_plan import HeapPlan, TaskPlan
from qdrun.compiler.tape.levels import LoopPlan, fixed_capacity, full_tape, thinning, with_levels
from qdrun.compiler.tape.sizing import LoopSizing


class DeviceGuard:
    """The heaps of the programs that ran inside ``guarded_on_device``."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}  # by address: bytes of the plane

    def add(self, device: Link, at: int, nbytes: int) -> None:
        """Take in a plane with margins around it, and fill all of it."""
        self._sizes[at] = nbytes
        self._fill(device, at)

    def arm(self, program: Any) -> None:
        """Fill the heap with canaries again."""
        for plane in PLANES:
            if program.heap.address(plane):
                self._fill(program.device, program.heap.address(plane))

    def _fill(self, device: Link, at: int) -> None:
        raw = np.tile(CANARY, (self._sizes[at] + -self._sizes[at] % 8 + 2 * MARGIN) // 8)
        device.upload(at - MARGIN, raw.ctypes.data, raw.nbytes)

    def _written(self, program: Any, at: int, size: int) -> np.ndarray:
        """One flag for each word of the plane and its margins."""
        raw = np.empty(self._sizes[at] + -self._sizes[at] % 8 + 2 * MARGIN, np.uint8)
        program.device.download(raw.ctypes.data, at - MARGIN, raw.nbytes)
        halves = raw.view(np.uint32).reshape(-1, 2) != CANARY
        return halves.any(axis=1) if size == 8 else halves.reshape(-1)

    def check(self, program: Any, plan: HeapPlan, rows: dict[int, int]) -> int:
        """Compare what was written since the last ``arm`` with a plan.

        Args:
            plan: with rows that belong to no thread.
            rows: how many rows of each task belong to threads.

        Returns:
            Bytes that were written.

        Raises:
            AssertionError: a word was written that belongs to no thread.
        """
        total = 0
        for plane, size in PLANES.items():
            at = program.heap.address(plane)
            if not at:
                assert not plan.planes[plane]
                continue
            written, margin = self._written(program, at, size), MARGIN // size
            inside = written[margin:-margin]
            assert not written[:margin].any(), f"plane {plane}: a write before the heap"
            assert not written[-margin:].any(), f"plane {plane}: a write behind the heap"
            allowed = np.zeros(inside.size, bool)
            for task in plan.tasks:
                words = np.arange(task.rows * task.words.get(plane, 0))
                allowed[words[words % max(1, task.rows) < rows[task.position]]] = True
            beyond = np.flatnonzero(inside & ~allowed)
            assert not beyond.size, f"plane {plane}: words {beyond[:8].tolist()} belong to no thread of {plan.rows()}"
            total += int(inside.sum()) * size
        return total


def padded(plan: HeapPlan, pad: int = 3) -> tuple[HeapPlan, dict[int, int]]:
    """The plan with rows that belong to no thread, and how many rows of each task belong to threads."""
    rows, tasks = dict[int, int](), list[TaskPlan]()
    for task in plan.tasks:
        rows[task.position] = task.rows
        more = task.rows + pad
        if task.rows and task.params["rows"] < task.params["threads"] <= more:
            more = task.rows  # else each thread would have the row of its number, and claim none
        tasks.append(replace(task, rows=more, params={**task.params, "rows": more}) if task.rows else task)
    return HeapPlan(plan.kernel, tuple(tasks)), rows


@contextmanager
def guarded_on_device() -> Iterator[DeviceGuard]:
    """Heaps of programs on GPUs used inside the block are guarded."""
    guard, allocate, free = DeviceGuard(), GpuDevice._allocate, GpuDevice._free

    def guarded_allocate(self: GpuDevice, nbytes: int, category: str) -> Allocation:
        if category != "adstack":
            return allocate(self, nbytes, category)
        made = allocate(self, nbytes + -nbytes % 8 + 2 * MARGIN, category)
        inner = Allocation(made.ptr + MARGIN, nbytes, category, np.empty(0, np.uint8))
        guard.add(self, inner.ptr, nbytes)
        return inner

    def guarded_free(self: GpuDevice, allocation: Allocation) -> None:
        if allocation.category == "adstack":
            allocation.ptr -= MARGIN
        free(self, allocation)

    GpuDevice._allocate, GpuDevice._free = guarded_allocate, guarded_free  # type: ignore[method-assign]
    try:
        yield guard
    finally:
        GpuDevice._allocate, GpuDevice._free = allocate, free  # type: ignore[method-assign]


def a_plan(r: random.Random, s: LoopSizing, count: int | None, source: str) -> LoopPlan:
    """A plan of a loop that nobody would choose."""
    if count is None or r.random() < 0.2:
        return thinning(r.randint(3, 9), 2 ** r.randint(0, 5) - 1 or 1, r.randint(8, 40), source=source)
    levels, segment = r.randint(1, 3), r.choice([None, 1, 2, 3, r.randint(1, 12)])
    return with_levels(count, levels, segment, s.words("ck1"), s.words("tape"), source) if count else full_tape(count, source)


def a_small_plan(r: random.Random, s: LoopSizing, count: int | None, source: str) -> LoopPlan:
    """One that may be too small, as if data had changed under it."""
    levels = r.randint(1, 3)
    if levels == 1:
        return fixed_capacity(r.randint(1, 4), source)
    less = max(1, (5 if count is None else count) - r.randint(0, 4))
    return with_levels(less, levels, r.choice([None, 1, 2]), s.words("ck1"), s.words("tape"), source)


def check_kernel(number: int, counts: Counter[str], plans: int = 3, **where: Any) -> None:
    """One random kernel: near the processor's gradient, whose sines are others; the same bits under random plans; those or an overflow
    under small ones; never a word outside of the rows. ``where``: ``arch`` and ``device`` of ``qd.init``.
    """
    source, r = plan_kernel(number), random.Random(number)
    here = PlanCase(source, number)
    expected = here.gradient()
    here.close()
    with guarded_on_device() as guard:
        case = PlanCase(source, number, **where)
        want = case.gradient()
        off = np.abs(want - expected) > 1e-6 * max(1.0, float(np.abs(expected[np.isfinite(expected)]).max()))
        counts["components"] += off.size
        counts["of which took another branch"] += int(off.sum())
        for way in (None, *[partial(a_plan, r)] * plans, *[partial(a_small_plan, r)] * plans):
            chosen = plan_with(case.k, case.args, way) if way else case.k.grad.plan(*case.args)
            plan, rows = padded(chosen)
            case.program.heap.grow(plan.planes)
            guard.arm(case.program)
            try:
                got = case.gradient(partial(launch_under, case.k, case.args, plan))
                np.testing.assert_array_equal(got, want)
            except qd.AdStackOverflow:
                assert way and way.func is a_small_plan
                counts["overflows"] += 1
            counts["plans"] += 1
            counts["plans with writes"] += guard.check(case.program, plan, rows) > 0
        np.testing.assert_array_equal(case.gradient(), want, "after small plans")
        case.close()
