"""A program that runs one simulation after another, each as if it were the first: what a run finds, and what an earlier one may have left.

What fields hold, and where random numbers begin, is looked after by ``content``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..executable import Executable
from ..state import ProgramState
from ..variant import Variant

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


def start_of(program: ProgramState, kernels: int, launches: Launches) -> Start:
    """Remember a program in which nothing was launched yet.

    Args:
        program: the program.
        kernels: how many are compiled.
        launches: what will be launched.
    """
    peaks, most = program.device.most()
    return Start(_memory(program), kernels, used_by(launches), peaks, most)


def used_by(launches: Launches) -> frozenset[Variant]:
    """The specialisations of the current program that are launched by these."""
    found = set()
    for kernel, args in launches:
        method = getattr(kernel, "instance", None)
        found.add(kernel.variant(args, {})[0] if method is None else kernel.kernel.variant((method, *args), {})[0])
    return frozenset(found)


def is_clean(program: ProgramState, kernels: int, start: Start) -> bool:
    """Whether a run has left nothing in the program that another one would notice, beside the content of fields: nothing is open, no
    graph is kept, no memory was added, replaced or freed, no kernel compiled (it would take room from the beginning, and the next plan
    would know it), and no warning given that a program gives once.
    """
    if program.closed or program.device.dead or program.device.graphs or program.records():
        return False
    if program.replaying or program.warned or not program._idle():
        return False
    return kernels == start.kernels and _memory(program) == start.memory


def restart(program: ProgramState, kernels: Iterable[Executable], start: Start) -> None:
    """Before another run: the heap is given back, and the most bytes in use are counted from the beginning again."""
    with program.alone():
        program._shrink_heap({})
    for kernel in kernels:
        kernel.restart()
    program.device.forget_most(start.peaks, start.peak_bytes)


def _memory(program: ProgramState) -> frozenset[int]:
    return frozenset(a.serial for a in program.device.allocations() if a.category != HEAP and a.category not in OF_KERNELS)
