"""A program that runs one simulation after another, each as if it were the first: what a run finds, and what an earlier one may have left.

What fields hold, and where random numbers begin, is looked after by ``content``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .kernel_plan import kernels_of

if TYPE_CHECKING:
    from .program import Program
    from .variant import Variant

Launches = Iterable[tuple[Any, tuple[Any, ...]]]
"""Kernels with arguments."""

OF_KERNELS = frozenset(("context", "temporaries"))
HEAP = "adstack"


@dataclass(frozen=True)
class Start:
    """A program before its first run.

    Attributes:
        memory: serials of its allocations, beside those of kernels and the heap.
        kernels: how many are compiled.
        used: the specialisations that its launches will use.
        peaks, peak_bytes: the most bytes of each category, and of all, that making it took.
    """

    memory: frozenset[int]
    kernels: int
    used: frozenset[Variant]
    peaks: dict[str, int]
    peak_bytes: int


def start_of(program: Program, launches: Launches) -> Start:
    """Remember a program in which nothing was launched yet. ``launches``: what will be."""
    peaks, most = program.device.most()
    return Start(_memory(program), len(kernels_of(program)), used_by(launches), peaks, most)


def used_by(launches: Launches) -> frozenset[Variant]:
    """The specialisations of the current program that are launched by these."""
    found = set()
    for kernel, args in launches:
        method = getattr(kernel, "instance", None)
        found.add(kernel.variant(args, {})[0] if method is None else kernel.kernel.variant((method, *args), {})[0])
    return frozenset(found)


def is_clean(program: Program, start: Start) -> bool:
    """Whether a run has left nothing in the program that another one would notice, beside the content of fields: nothing is open, no
    graph is kept, no memory was added, replaced or freed, no kernel compiled (it would take room from the beginning, and the next plan
    would know it), and no warning given that a program gives once.
    """
    open_now = (program.tape, program.forward, program.versions, program._recording)
    if program.closed or program.device.dead or program.device.graphs or any(x is not None for x in open_now):
        return False
    if program.replaying or program.warned or not program._idle():
        return False
    return len(kernels_of(program)) == start.kernels and _memory(program) == start.memory


def restart(program: Program, start: Start) -> None:
    """Before another run: the heap is given back, and the most bytes in use are counted from the beginning again."""
    with program.alone():
        program._shrink_heap({})
    for kernel in kernels_of(program):
        kernel.restart()
    program.device.forget_most(start.peaks, start.peak_bytes)


def _memory(program: Program) -> frozenset[int]:
    return frozenset(a.serial for a in program.device.allocations() if a.category != HEAP and a.category not in OF_KERNELS)


__all__ = ["Start", "is_clean", "restart", "start_of", "used_by"]
