"""A guarded adstack heap: canary words behind each row and around each plane, and everything in it filled before a launch.

What a launch touched is what no longer holds the canary. So a plan can be compared with the words that were really written: none beyond
it, and a read of a word that nobody wrote gives a NaN, which shows in the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from qdrun.compiler.ir.types import PLANES
from qdrun.compiler.program.plans.gradient_executable import GradientExecutable
from qdrun.compiler.program.plans.gradient_plans import LaunchHost
from qdrun.compiler.runtime.base import Allocation
from qdrun.compiler.runtime.cpu.device import CpuDevice
from qdrun.compiler.tape.heap_plan import HeapPlan, TaskPlan
from qdrun.compiler.tape.levels import LoopPlan
from qdrun.compiler.tape.plan import make_plan

MARGIN = 4096  # bytes before and behind each plane
CANARY = np.array(
    [0xFFD1ADE5, 0xFFF7C0DE], np.uint32
)  # NaNs, each alone and both as one f64, of a payload that no arithmetic makes


class Guard:
    """The heaps of the programs that ran inside ``guarded``."""

    def __init__(self, pad: int) -> None:
        self.pad = pad
        self._raw: dict[int, np.ndarray] = {}  # by address: the plane with its margins

    def allocate(self, nbytes: int, category: str) -> Allocation:
        """Memory of a plane between margins."""
        whole = np.empty(nbytes + 2 * MARGIN + 72, np.uint8)
        skip = -whole.ctypes.data % 64
        raw = whole[skip : skip + MARGIN + nbytes + -nbytes % 8 + MARGIN]
        view = raw[MARGIN : MARGIN + nbytes]
        self._raw[view.ctypes.data] = raw
        self._fill(raw)
        return Allocation(view.ctypes.data, nbytes, category, view)

    def arm(self) -> None:
        """Fill every heap with canaries again."""
        for raw in self._raw.values():
            self._fill(raw)

    @staticmethod
    def _fill(raw: np.ndarray) -> None:
        raw.view(np.uint32).reshape(-1, 2)[:] = CANARY

    def check(self, program: Any, plan: HeapPlan) -> dict[str, int]:
        """Compare what was touched since the last ``arm`` with a plan.

        Returns:
            Bytes touched, by plane.

        Raises:
            AssertionError: a word outside of the planned ones was written.
        """
        touched = {}
        for plane, size in PLANES.items():
            address = program.heap.address(plane)
            if not address:
                assert not plan.planes[plane], f"plane {plane} has no memory, and the plan has {plan.planes[plane]} bytes"
                continue
            written = self._written(self._raw[address], size)
            margin = MARGIN // size
            inside = written[margin:-margin]
            allowed = np.zeros(inside.size, bool)
            for first, end in self._planned(plan, plane):
                assert end <= inside.size, f"plane {plane}: row ends at word {end} of {inside.size}"
                allowed[first:end] = True
            beyond = np.flatnonzero(inside & ~allowed)
            assert not written[:margin].any(), f"plane {plane}: a write before the heap"
            assert not written[-margin:].any(), f"plane {plane}: a write behind the heap"
            assert not beyond.size, f"plane {plane}: words {beyond[:8].tolist()} are beyond the plan {plan.rows()}"
            touched[plane] = int(inside.sum()) * size
        return touched

    @staticmethod
    def _written(raw: np.ndarray, size: int) -> np.ndarray:
        """One flag a word, margins included."""
        halves = raw.view(np.uint32).reshape(-1, 2) != CANARY
        return halves.any(axis=1) if size == 8 else halves.reshape(-1)

    @staticmethod
    def _planned(plan: HeapPlan, plane: str) -> Iterator[tuple[int, int]]:
        """First and last word of each row of each task; a row is ``lanes`` rows side by side."""
        for task in plan.tasks:
            words, stride = task.words.get(plane, 0), task.stride.get(plane, 0)
            if not task.parallel:
                yield 0, words
                continue
            lanes = task.lanes
            for row in range(task.rows // lanes):
                yield row * stride * lanes, (row * stride + words) * lanes


@contextmanager
def guarded(pad: int = 3) -> Iterator[Guard]:
    """Heaps of programs used inside the block are guarded. ``pad``: words between the rows."""
    guard = Guard(pad)
    allocate, stride = CpuDevice._allocate, TaskPlan.stride

    def guarded_allocate(self: CpuDevice, nbytes: int, category: str) -> Allocation:
        return guard.allocate(nbytes, category) if category == "adstack" else allocate(self, nbytes, category)

    def padded_stride(self: TaskPlan) -> dict[str, int]:
        return {plane: words + (pad if words else 0) for plane, words in stride.fget(self).items()}  # type: ignore[misc]

    CpuDevice._allocate = guarded_allocate  # type: ignore[method-assign]
    TaskPlan.stride = property(padded_stride)  # type: ignore[assignment,method-assign]
    try:
        yield guard
    finally:
        CpuDevice._allocate = allocate  # type: ignore[method-assign]
        TaskPlan.stride = stride  # type: ignore[method-assign]


def plan_with(k: Any, args: tuple[Any, ...], choose: Callable[..., LoopPlan]) -> HeapPlan:
    """The plan of a kernel's gradient whose loops are chosen by ``choose(sizing, count, source)``."""
    exe, bound = _gradient(k, args)
    return make_plan(exe.name, exe.sizing, LaunchHost(bound.call, exe.owners), replace(exe.plans._options(), choose=choose))


def launch_under(k: Any, args: tuple[Any, ...], plan: HeapPlan) -> None:
    """Launch a kernel's gradient under a plan, whatever its arguments ask for."""
    exe, bound = _gradient(k, args)
    with exe.program.admission.alone():
        exe._apply(plan, bound.call)
        try:
            exe.launch(bound.call)
        finally:
            exe._apply(exe.plan(bound.call), bound.call)  # native launches count on it


def _gradient(k: Any, args: tuple[Any, ...]) -> tuple[GradientExecutable, Any]:
    variant, bound = k.grad._ready(args, {})
    return variant.gradient, bound
