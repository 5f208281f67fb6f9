"""Tapes whose launches overwrite nothing that a gradient needs: when the same launches are recorded again, nothing is checked.

The arguments are compared as far as they decide what a launch reads and writes: integers by value, floats by type, ndarrays by identity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ...frontend.markers import Template
from .memory_regions import EXTERNAL

MOST_LAUNCHES = 1 << 14
MOST_TAPES = 16
_NUMBERS = frozenset((int, float, bool))

Launches = Sequence[tuple[Any, tuple[Any, ...], dict[str, Any]]]
"""Kernels with their arguments and keyword arguments."""


class KnownTape(NamedTuple):
    """A tape that needs no check.

    Attributes:
        launches: the token of the kernel, and of each argument its type and what of it decides indices.
        loss: the identity of its loss.
        generation: ``DataVersions.generation`` at its end; a kernel that was compiled or closed since may be one of these.
    """

    launches: list[tuple[object, tuple[tuple[type, object], ...]]]
    loss: int
    generation: int

    def has(self, number: int, kernel: Any, args: tuple[Any, ...]) -> bool:
        """Whether this is launch ``number``."""
        if number >= len(self.launches):
            return False
        token, wanted = self.launches[number]
        if token is not kernel.token or len(args) != len(wanted):
            return False
        for arg, (kind, content) in zip(args, wanted):
            if type(arg) is not kind or (content is not None and content != (arg if kind in _NUMBERS else arg._memory.serial)):
                return False
        return True


class KnownTapes:
    """The known tapes of a program, by the kernel that each launches first. They keep no kernels and no arrays alive."""

    def __init__(self) -> None:
        self._found: dict[object, KnownTape] = {}

    def begins(self, program: Any, kernel: Any) -> KnownTape | None:
        """The tape that begins with a launch of ``kernel``."""
        found = self._found.get(kernel.token)
        usable = (
            found is not None and found.generation == program.data.generation and not program.shown and program.versions is None
        )  # else reads are marked
        return found if usable and program.recording is None and program.second_order is None else None

    def enter(self, program: Any, launches: Launches, loss: int) -> None:
        """Remember a tape that was checked, and whose gradients have run, if its launches can be compared."""
        usable = program.recording is None and program.second_order is None and 0 < len(launches) <= MOST_LAUNCHES
        if not usable or any(kwargs or not all(map(_is_plain, args)) for _, args, kwargs in launches):
            return
        if any(p.annotation is Template for kernel in {kernel for kernel, *_ in launches} for p in kernel.binder.params):
            return
        first = launches[0][0].token
        known = [(kernel.token, tuple(map(_compared, args))) for kernel, args, _ in launches]
        self._found.pop(first, None)
        self._found[first] = KnownTape(known, loss, program.data.generation)
        if len(self._found) > MOST_TAPES:
            del self._found[next(iter(self._found))]


def _is_plain(arg: Any) -> bool:
    memory = None if type(arg) in _NUMBERS else getattr(arg, "_memory", None)
    return type(arg) in _NUMBERS or (memory is not None and memory.category != EXTERNAL and memory.nbytes > 0)


def _compared(arg: Any) -> tuple[type, object]:
    kind = type(arg)
    return kind, None if kind is float else arg if kind in _NUMBERS else arg._memory.serial


__all__ = ["KnownTape", "KnownTapes"]
