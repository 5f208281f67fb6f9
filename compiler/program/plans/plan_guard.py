"""Detects whether the inputs of a plan have changed, so that a plan is made once for each content of its inputs.

Scalars and extents are the key of a plan. Elements of arrays are watched by the *version* of what they lie in: the writes from Python, and
the launches of the program's kernels that store to it, which each kernel counts itself (``abi.CTX_LAUNCHES``), as native launchers pass
Python by. Memory that was handed out, and arrays that come as arguments, have no version: their content is compared each time. When a
version has moved, the content decides, too: a write that changes nothing costs no new plan.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from struct import Struct, unpack_from
from typing import TYPE_CHECKING

import numpy as np

from ...codegen.abi import arg_words
from ...ir.nodes import ArgDecl, Buffer, Place
from ...runtime.base import Allocation
from ...runtime.native.guard import word_numbers
from ...tape.bounds.queries import HostInputs, reducer_of
from ...tape.bounds.sizeexpr import ElementRead, Extent, ScalarArgument, SizeExpr
from ..memory.data_versions import DataVersions
from ..memory.memory_regions import EXTERNAL, memory_base

if TYPE_CHECKING:
    from ..call import Call
    from ..state import ProgramState

MOST_COMPARED = 1 << 22
"""Bytes of an array of which a copy is kept to compare with. A larger one is evaluated again when it may have changed."""

FEW = 1 << 14
"""Bytes that are faster compared as text."""


class _WatchedArray:
    """The last observed state of one array that plans read."""

    def __init__(self, program: ProgramState, place: Place, memory: Allocation | None) -> None:
        self.place = place
        self._program, self.memory = program, memory
        self._base = None if memory is None else memory_base(memory)
        self._versioned = memory is not None and memory.category != EXTERNAL and not place.is_grad
        self._data, self._shown = program.data, program.arrays.shown
        self._kernels, self._counters = -1, list[ctypes.c_int64]()
        self.seen: int | None = None  # the version of the last look
        self._content: np.ndarray | None = None

    def version(self) -> int | None:
        """A version that changes with every possible change of the content; None: the content may change at any time."""
        if not self._versioned or (self._shown and self.memory is not None and self._program.arrays.was_shown(self.memory)):
            return None
        data = self._data
        if data.generation != self._kernels:
            self._kernels, self._counters = data.generation, data.counters(self._base, self.place.offset)
        version = 0
        for counter in self._counters:
            version += counter.value
        return version

    def counted(self) -> list[tuple[int, int]] | None:
        """The counters behind the version, by address, with what they say now; None when the content may be another than was seen."""
        if self.seen is None or self.version() != self.seen:
            return None
        found = [(ctypes.addressof(c), c.value) for c in self._counters]
        return found if sum(value for _, value in found) == self.seen else None

    def changed(self, host: HostInputs) -> bool:
        """Whether the content may be another than when it was ``look``ed at."""
        version = self.version()
        if version is not None and version == self.seen:
            return False
        if self._content is None:
            return True
        now = host.array(self.place)
        if not _same(now, self._content):
            return True
        self.seen = version
        return False

    def look(self, host: HostInputs) -> None:
        """Remember what there is now. The version is read first: a write in between is seen the next time."""
        self.seen, self._content = self.version(), None
        reducer = reducer_of(host)
        if reducer is not None and reducer.far(
            self.place
        ):  # arrays that are not copied cannot be compared: the query is evaluated again
            return
        now = host.array(self.place)
        self._content = now.copy() if now.nbytes <= MOST_COMPARED else None


def _decisive(args: list[ArgDecl], exprs: list[SizeExpr]) -> tuple[int, ...]:
    """The words of the arguments and extents that are read by bounds and gates."""
    at, out = word_numbers(args), set[int]()
    for e in exprs:
        if isinstance(e, ScalarArgument):
            out.add(at[e.arg.index])
        elif isinstance(e, Extent):
            out.add(at[e.arg.index] + 1 + e.axis)
    return tuple(sorted(out))


def read_words(args: Iterable[ArgDecl], words: bytes) -> tuple[dict[int, int | float], dict[int, np.ndarray]]:
    """The scalars of a launch, and arrays of the shapes of its arrays with nothing in them, by ``ArgDecl.index``.

    Args:
        args: of the kernel.
        words: the argument buffer after its first word.
    """
    scalars: dict[int, int | float] = {}
    arrays: dict[int, np.ndarray] = {}
    at = 0
    for d in args:
        if d.kind == "scalar":
            scalars[d.index] = np.frombuffer(words, d.dtype.numpy, 1, at)[0].item()
        else:
            shape = unpack_from(f"<{d.ndim}q", words, at + 8)
            arrays[d.index] = np.broadcast_to(np.zeros((), d.dtype.numpy), (*shape, *d.element))
        at += 8 * arg_words(d)
    return scalars, arrays


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays of one shape have the same bits."""
    return a.tobytes() == b.tobytes() if a.nbytes <= FEW else np.array_equal(_bits(a), _bits(b))


def _bits(x: np.ndarray) -> np.ndarray:
    """Values that are equal where ``x`` has the same bits: ``0.0`` and ``-0.0`` pass different gates, and a NaN is what it was."""
    return x.view(f"u{x.itemsize}") if x.dtype.kind == "f" else x


def _key_of(integers: list[int], reals: list[int]) -> Callable[[Mapping[int, int | float]], object]:
    """Gives the scalar arguments of these numbers as a key that tells ``0.0`` from ``-0.0``."""
    whole = itemgetter(*integers) if integers else lambda _: None
    if not reals:
        return whole
    pack = Struct(f"{len(reals)}d").pack
    return lambda scalars: (whole(scalars), pack(*(scalars[k] for k in reals)))


@dataclass
class PlanInputs:
    """The inputs of the plans of one gradient.

    Attributes:
        scalars: returns the scalar arguments that plans read; arguments are numbered.
        arrays: numbers of the array arguments with extents that plans read.
        watched: arrays with elements that plans read.
        words: numbers of the words of the argument buffer that determine the bytes of a plan without a budget. The others only determine
            which plan under a budget is the fastest.
    """

    scalars: Callable[[Mapping[int, int | float]], object]
    arrays: tuple[int, ...]
    watched: tuple[_WatchedArray, ...]
    words: tuple[int, ...]

    @classmethod
    def of(
        cls,
        program: ProgramState,
        args: Iterable[ArgDecl],
        owners: Mapping[Buffer, Allocation],
        exprs: Iterable[SizeExpr],
    ) -> PlanInputs:
        """The inputs of plans that are made of ``exprs``.

        The cost model looks at integers and extents that the memory itself does not depend on, so all of them count.
        """
        args, exprs = list(args), list(exprs)
        places = [e.place for e in exprs if isinstance(e, ElementRead)]
        reals = {e.arg for e in exprs if isinstance(e, ScalarArgument)}
        wanted = [d for d in args if d.kind == "ndarray" or (not d.per_trial and (d.dtype.is_int or d in reals))]
        scalars = [d for d in wanted if d.kind == "scalar"]
        return cls(
            _key_of([d.index for d in scalars if not d.dtype.is_real], [d.index for d in scalars if d.dtype.is_real]),
            tuple(d.index for d in wanted if d.kind == "ndarray"),
            tuple(_WatchedArray(program, p, owners.get(p.buffer)) for p in dict.fromkeys(places)),
            _decisive(args, exprs),
        )

    def key(self, call: Call) -> object:
        """The key of a plan."""
        key = self.scalars(call.scalars)
        return (key, *(call.arrays[k].shape for k in self.arrays)) if self.arrays else key

    @property
    def by_words(self) -> bool:
        """Whether the words of the arguments tell all that a plan reads of them: not the elements of an array argument."""
        return all(w.memory is not None for w in self.watched)

    def decisive(self, words: bytes | bytearray) -> tuple[int, ...]:
        """The key of a plan without a budget, which has fewer parts than ``key``. ``words``: the argument buffer after its first word."""
        if not self.words:
            return ()
        whole = memoryview(words).cast("q")
        return tuple([whole[k - 1] for k in self.words])

    def counted(self, data: DataVersions) -> list[tuple[int, int]] | None:
        """Counters by address with their values. While they stay, all arrays have their last observed content.

        None: counters cannot tell, or an array has been written since.
        """
        if not self.watched:
            return []
        found = [(ctypes.addressof(data.changes), data.changes.value)]
        for w in self.watched:
            counted = w.counted()
            if counted is None:
                return None
            found += counted
        return found

    def unmoved(self) -> bool:
        """Whether all arrays have the versions that they had. False tells nothing: ask ``changed``."""
        for w in self.watched:  # a loop, not a call of ``all``: this is on the way of every launch
            if w.seen is None or w.version() != w.seen:
                return False
        return True

    def changed(self, host: HostInputs) -> bool:
        """Whether an array may have changed since it was last observed."""
        return any(w.changed(host) for w in self.watched)

    def look(self, host: HostInputs) -> None:
        """Remember the content of the arrays."""
        for w in self.watched:
            w.look(host)
