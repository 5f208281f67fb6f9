"""What a plan reads of a launch, and whether it is still what it was: so that a plan is made once for each content of its inputs.

Scalars and extents are the key of a plan. Elements of arrays are watched by the *version* of what they lie in: the writes from Python, and
the launches of the program's kernels that store to it, which each kernel counts itself (``abi.CTX_LAUNCHES``), as native launchers pass
Python by. Memory that was handed out, and arrays that come as arguments, have no version: their content is compared each time. When a
version has moved, the content decides, too: a write that changes nothing costs no new plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from struct import Struct
from typing import TYPE_CHECKING, Any

import numpy as np

from ..adstack.evaluate import Host
from ..adstack.sizeexpr import Arg, Extent, Read, SizeExpr
from ..codegen.abi import CTX_LAUNCHES
from ..ir.nodes import ArgDecl, Buffer, Op, Place
from ..runtime.device import Allocation
from .spots import EXTERNAL, memory_base, memory_of

if TYPE_CHECKING:
    from .executable import Call, Executable
    from .program import Program

MOST_COMPARED = 1 << 22
"""Bytes of an array of which a copy is kept to compare with. A larger one is evaluated again when it may have changed."""

Stored = tuple[object, int]
"""The base of some memory, and the offset of one scalar-valued array in it."""


class DataVersions:
    """The versions of a program's memory.

    Attributes:
        from_python: writes from Python so far: of fields by their components, of other memory by its base.
        kernels: what each kernel stores to, and its context, in which it counts its launches.
    """

    def __init__(self) -> None:
        self.from_python: dict[object, int] = {}
        self.kernels: list[tuple[frozenset[Stored], memoryview]] = []

    def enter(self, executable: Executable, stores: Iterable[tuple[Buffer, int]]) -> None:
        """A kernel that counts its launches in its context, and what it stores to: field buffers with the offsets of components."""
        stored = frozenset((memory_base(executable.owners[b]), offset) for b, offset in stores)
        if stored:
            self.kernels.append((stored, executable.context.data))

    def wrote(self, tensor: Any) -> None:
        """Python is about to write to a field or an ndarray."""
        base = memory_base(memory_of(tensor))
        counts = self.from_python
        if hasattr(tensor, "_memory"):  # an ndarray
            counts[base] = counts.get(base, 0) + 1
            return
        for place in tensor._places:  # other fields in the same memory have not changed
            stored = base, place.offset
            counts[stored] = counts.get(stored, 0) + 1

    def counters(self, stored: Stored) -> list[memoryview]:
        """The contexts of the kernels that store to an array."""
        return [context for to, context in self.kernels if stored in to]


class _Watched:
    """One array that plans read, as it was when it was last looked at."""

    def __init__(self, program: Program, place: Place, memory: Allocation | None) -> None:
        self.place = place
        self._program, self._memory = program, memory
        self._base = None if memory is None else memory_base(memory)
        self._versioned = memory is not None and memory.category != EXTERNAL and not place.is_grad
        self._data, self._shown = program.data, program.shown
        self._kernels, self._contexts = -1, list[memoryview]()
        self.seen: int | None = None  # the version of the last look
        self._content: np.ndarray | None = None

    def version(self) -> int | None:
        """Never the same again once the content may have changed; None: anybody may change it at any time."""
        if not self._versioned or (self._shown and self._memory is not None and self._program.was_shown(self._memory)):
            return None
        data = self._data
        if len(data.kernels) != self._kernels:
            self._kernels, self._contexts = len(data.kernels), data.counters((self._base, self.place.offset))
        version = data.from_python.get(self._base, 0) + data.from_python.get((self._base, self.place.offset), 0)
        for context in self._contexts:
            version += context[CTX_LAUNCHES]
        return version

    def changed(self, host: Host) -> bool:
        """Whether the content may be another than when it was ``look``ed at."""
        version = self.version()
        if version is not None and version == self.seen:
            return False
        if self._content is None:
            return True
        now = host.array(self.place)
        if not np.array_equal(_bits(now), _bits(self._content)):
            return True
        self.seen = version
        return False

    def look(self, host: Host) -> None:
        """Remember what there is now. The version is read first: a write in between is seen the next time."""
        self.seen = self.version()
        now = host.array(self.place)
        self._content = now.copy() if now.nbytes <= MOST_COMPARED else None


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
    """What the plans of one gradient read.

    Attributes:
        scalars: gives the scalar arguments that count; they have numbers.
        arrays: numbers of the array arguments whose extents count.
        watched: arrays whose elements count.
        fixed: nothing of a launch counts at all.
    """

    scalars: Callable[[Mapping[int, int | float]], object]
    arrays: tuple[int, ...]
    watched: tuple[_Watched, ...]
    fixed: bool

    @classmethod
    def of(
        cls,
        program: Program,
        args: Iterable[ArgDecl],
        owners: Mapping[Buffer, Allocation],
        exprs: Iterable[SizeExpr],
        leaves: Iterable[Op],
    ) -> PlanInputs:
        """The inputs of plans that are made of ``exprs`` and, for gates, of the ops ``leaves``.

        The cost model looks at integers and extents that the memory itself does not depend on, so all of them count.
        """
        exprs, leaves = list(exprs), list(leaves)
        places = [e.place for e in exprs if isinstance(e, Read)] + [x.attr for x in leaves if isinstance(x.attr, Place)]
        reals = {e.arg for e in exprs if isinstance(e, Arg)} | {x.attr for x in leaves if isinstance(x.attr, ArgDecl)}
        wanted = [d for d in args if d.kind == "ndarray" or d.dtype.is_int or d in reals]
        scalars = [d for d in wanted if d.kind == "scalar"]
        return cls(
            _key_of([d.index for d in scalars if not d.dtype.is_real], [d.index for d in scalars if d.dtype.is_real]),
            tuple(d.index for d in wanted if d.kind == "ndarray"),
            tuple(_Watched(program, p, owners.get(p.buffer)) for p in dict.fromkeys(places)),
            not leaves and not any(isinstance(e, (Read, Arg, Extent)) for e in exprs),
        )

    def key(self, call: Call) -> object:
        """What tells plans of one content apart."""
        key = self.scalars(call.scalars)
        return (key, *(call.arrays[k].shape for k in self.arrays)) if self.arrays else key

    def unmoved(self) -> bool:
        """Whether all arrays have the versions that they had. False tells nothing: ask ``changed``."""
        for w in self.watched:  # a loop, not a call of ``all``: this is on the way of every launch
            if w.seen is None or w.version() != w.seen:
                return False
        return True

    def changed(self, host: Host) -> bool:
        """Whether an array may have another content than when it was last looked at."""
        return any(w.changed(host) for w in self.watched)

    def look(self, host: Host) -> None:
        """Remember the content of the arrays."""
        for w in self.watched:
            w.look(host)
