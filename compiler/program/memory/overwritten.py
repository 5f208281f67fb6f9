"""Follows the launches of a tape, and copies the elements that a launch is about to overwrite while an earlier gradient needs them.

The times of copies are even before what Python writes between two launches, and odd before a launch: ``2 * number + 1``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...errors import QdrunRuntimeError
from ...frontend.markers import Template
from .effects import Effects, Numbers, Part, PendingReads, effects_of, pattern_of
from .kept import Elements, KeptElements, elements_of, tensor_elements
from .memory_regions import IndexPattern, MemoryRegion, tensor_regions

_NUMBERS = frozenset((int, float, bool))


class Overwritten:
    """The overwritten elements of one tape.

    Attributes:
        kept: their copies.
        unkept: launches and assignments, by their time, of elements that cannot be copied.

    Args:
        program: whose launches they are.
        run: False to count bytes only, while nothing runs.
    """

    def __init__(self, program: Any, run: bool = True) -> None:
        self._program, self._run = program, run
        self.kept = KeptElements(program)
        self.unkept: set[int] = set()
        self._pending = PendingReads()
        self._known: dict[object, tuple[Effects, tuple[tuple[int, int], ...], tuple[Any, ...]]] = {}
        self._special: dict[int, bool] = {}  # kernels with an argument that a launch may be specialised for
        self._now: tuple[Effects, Any] | None = None

    # ---- launches
    def launching(self, number: int, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any], reverse: bool = True) -> None:
        """A kernel is about to run as launch ``number``, or as a part of it. ``reverse``: the tape will run its gradient.

        Raises:
            DifferentiationError: no correct gradient exists, by name and line.
            OutOfMemory: the device has no room for the copies.
            QdrunRuntimeError: a graph is recorded, which cannot keep elements.
        """
        effects, numbers = self._now = self._effects(kernel, args, kwargs, reverse)
        for part in effects.before:
            self._pending.add(part.spot, _pattern(part, numbers))
        found: list[tuple[Part, IndexPattern]] = []
        for part in effects.writes:
            pattern = _pattern(part, numbers)
            if self._pending.meets(part.spot, pattern):
                found.append((part, pattern))
        if found:
            self._copy(2 * number + 1, effects, found)
        if effects.before and 2 * number + 1 not in self.unkept:
            self.kept.before.add(number)

    def launched(self) -> None:
        """It has run."""
        assert self._now is not None
        effects, numbers = self._now
        for part in effects.after:
            self._pending.add(part.spot, _pattern(part, numbers))

    def _effects(self, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any], reverse: bool) -> tuple[Effects, Any]:
        special = self._special.get(id(kernel))
        if special is None:
            special = self._special[id(kernel)] = any(p.annotation is Template for p in kernel.binder.params)
        plain = not special and not kwargs and all(type(a) in _NUMBERS or hasattr(a, "_memory") for a in args)
        key = (id(kernel), reverse, *(type(a) if type(a) in _NUMBERS else id(a) for a in args)) if plain else None
        known = self._known.get(key) if plain else None
        if known is None:
            variant, bound = kernel.variant(args, kwargs)
            effects = effects_of(variant, bound.call, reverse)
            if not plain or len(args) != len(kernel.binder.params):
                return effects, bound.call
            at = {p.name: k for k, p in enumerate(kernel.binder.params)}
            used = tuple((d.index, at[d.name]) for d in variant.head.args if d.index in effects.scalars and d.name in at)
            if len(used) < len(effects.scalars):
                return effects, bound.call
            known = self._known[key] = effects, used, (kernel, args)  # kept alive: keys are identities
        effects, used, _ = known
        return effects, Numbers({index: args[k] for index, k in used}, effects.call.arrays)

    def _copy(self, time: int, effects: Effects, found: list[tuple[Part, IndexPattern]]) -> None:
        self._refuse_recording(effects.variant.head.name)
        groups: dict[object, tuple[dict[object, Elements], list[MemoryRegion]]] = {}
        for part, pattern in found:
            there = elements_of(effects.variant, effects.call, part.place, pattern)
            if there is None:
                self.unkept.add(time)
                continue
            array = there.array
            parts, spots = groups.setdefault((part.spot.base, part.spot.layout, pattern), ({}, []))
            parts[array.__array_interface__["data"][0], array.shape, array.strides] = there
            spots.append(part.spot)
            self._pending.kept(part.spot, pattern)
        self.kept.keep(time, [(list(parts.values()), tuple(spots)) for parts, spots in groups.values()], self._run)

    def _refuse_recording(self, name: str) -> None:
        if self._program.recording is not None:
            raise QdrunRuntimeError(
                f"`{name}` overwrites elements that the gradient of an earlier launch needs: a tape keeps them, and a graph cannot\n"
                "  do: call the function itself, or give the field a leading time axis"
            )

    # ---- Python, and what runs several launches
    def writing(self, time: int, tensor: Any, index: tuple[int, ...] | None = None) -> None:
        """Python, or what runs several launches, is about to write one element of an array, or all."""
        regions = tensor_regions(tensor)
        patterns = [(spot, index if index is not None and len(index) == ndim else (None,) * ndim) for spot, ndim in regions]
        if not any(self._pending.meets(spot, pattern) for spot, pattern in patterns):
            return
        self._refuse_recording("Python")
        found = tensor_elements(tensor, index)
        if found is None:
            self.unkept.add(time)
            return
        for spot, pattern in patterns:
            self._pending.kept(spot, pattern)
        self.kept.keep(time, [found], self._run)

    def reads(self, found: Iterable[tuple[MemoryRegion, Iterable[IndexPattern]]]) -> None:
        """What the gradient of several launches reads again."""
        for spot, patterns in found:
            for pattern in patterns:
                self._pending.add(spot, pattern)


def _pattern(part: Part, numbers: Any) -> IndexPattern:
    return pattern_of(part.forms, numbers) if part.fixed is None else part.fixed


__all__ = ["Overwritten"]
