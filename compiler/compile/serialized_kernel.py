"""The disk format of a compiled kernel: the facts that launches need, and the IR, which is read on demand.

Both are documents of ``ir.store``: data, of the classes that ``CODEC`` lists. The machine code lies in an entry of its own, under the key
that the text of the module gives it.
"""

from __future__ import annotations

import functools
import warnings
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, get_type_hints

from ..codegen.abi import ContextLayout
from ..codegen.llvm.kernel import exports_of
from ..errors import QdrunRuntimeError
from ..ir.nodes import Assert, Buffer, BufferKind, ClaimRow, Const, Kernel, Loop, Op, Operand, Overflow, Print
from ..ir.store import NODES, Codec, StoreError
from ..ir.types import i32
from ..passes.dependence.paths import Broken
from ..passes.dependence.store_maps import Spot, WritePair
from ..passes.forward.tangent import Tangent
from ..passes.reverse.gradient import Gradient
from ..runtime.base import Device
from ..runtime.cache import disk_cache, key_of
from ..runtime.compiled import Compiled
from ..runtime.jit import LoadedCode
from ..tape import sizing, work
from ..tape.bounds import row_predicates, sizeexpr
from .lazy_kernel import KernelSummary, LazyKernel, Written

FOUND: dict[str, type | None] = {"forward": None, "reverse": Gradient, "tangent": Tangent}
"""The parts of a compiled kernel by kind."""
LAZY = frozenset(("kernel", "replayed"))
"""Fields of these that are read when something asks for them."""


@dataclass(frozen=True)
class _Kept:
    """The part of an entry that every launch needs: ``KernelSummary``, and of the code all but its bytes, which ``key`` names."""

    head: Kernel
    kinds: frozenset[BufferKind]
    draws: bool
    written: frozenset[Written]
    stores: tuple[tuple[Buffer, int], ...]
    compiled: Compiled
    key: str


CODEC = Codec(
    (
        *NODES,
        *(
            sizeexpr.Lit,
            sizeexpr.ScalarArgument,
            sizeexpr.Extent,
            sizeexpr.Index,
            sizeexpr.ElementRead,
            sizeexpr.Bin,
            sizeexpr.Cast,
        ),
        *(
            sizeexpr.Pick,
            sizeexpr.UnknownExpr,
            sizeexpr.Range,
            work.Work,
            work.LoopWork,
            row_predicates.Condition,
            row_predicates.RowPredicate,
        ),
        *(sizing.StackSizing, sizing.LoopSizing, sizing.StackRegion, sizing.TaskSizing, Broken, Spot, WritePair),
        *(ContextLayout, Compiled, _Kept),
    ),
    fixed={
        (Compiled, "address"): 0,
        (Compiled, "seconds"): 0.0,
        (Compiled, "from_cache"): True,
        (Compiled, "code"): None,
    },
)
"""The closed table of what an entry may hold."""


class Storage:
    """The kernels of one source key on disk. A kind is a key of ``FOUND``.

    Args:
        key: the source key.
        numbers: for each field buffer, which of the buffers that lowering looked up it is; not needed to load.
        saved: called when the forward kernel was saved.
    """

    def __init__(self, key: str, numbers: Sequence[int] = (), saved: Callable[[], None] | None = None) -> None:
        self._key, self._numbers, self._saved = key, list(numbers), saved

    def load_forward(self, device: Device) -> tuple[LazyKernel, list[Buffer], list[int]] | None:
        """The forward kernel with its field buffers and their numbers; None when there is none that is whole."""
        entry = self._entry("forward")
        numbers = None if entry is None else entry[1].get("numbers")
        if entry is None or not isinstance(numbers, list) or any(type(n) is not int or n < 0 for n in numbers):
            return None
        buffers = [Buffer("field") for _ in numbers]
        found = self._unpack("forward", entry[0], buffers, device)
        return None if found is None else (found[0], buffers, numbers)

    def load(self, kind: str, buffers: Sequence[Buffer], device: Device) -> tuple[LazyKernel, Any] | None:
        """The kernel of a kind with its ``Gradient`` or ``Tangent``; None when there is none that is whole."""
        entry = self._entry(kind)
        return None if entry is None else self._unpack(kind, entry[0], buffers, device)

    def save(self, kind: str, made: LazyKernel, buffers: Sequence[Buffer], found: Any) -> None:
        """Keep a kernel, whose machine code is made. One that cannot be stored is not kept, with a warning."""
        disk = disk_cache()
        if disk is None:
            return
        try:
            data = pack(made, buffers, kind, found)
        except StoreError as e:  # an internal error, or nesting that is too deep for Python
            message = f"kernel `{made.head.name}` ({kind}) is not kept on disk, each process compiles it again: {e}"
            warnings.warn(message, RuntimeWarning, stacklevel=2)
        else:
            disk.put(key_of(self._key, kind), data, {"name": made.head.name, "kind": kind, "numbers": self._numbers})
        if kind == "forward" and self._saved is not None:
            self._saved()

    def _entry(self, kind: str) -> tuple[bytes, dict[str, Any]] | None:
        disk = disk_cache()
        return disk.get(key_of(self._key, kind)) if disk else None

    def _unpack(self, kind: str, data: bytes, buffers: Sequence[Buffer], device: Device) -> tuple[LazyKernel, Any] | None:
        try:
            return unpack(data, buffers, kind, device)
        except StoreError:
            disk = disk_cache()
            if disk is not None:
                disk.discard(key_of(self._key, kind))
            return None


def pack(made: LazyKernel, buffers: Sequence[Buffer], kind: str, found: Any = None) -> bytes:
    """A compiled kernel as bytes.

    Args:
        made: what was compiled.
        buffers: the kernel's field buffers, which the reader has, too.
        kind: a key of ``FOUND``.
        found: what comes with it.

    Raises:
        StoreError: it holds something that has no place in an entry.
    """
    compiled = made.made
    assert compiled is not None and isinstance(compiled.code, LoadedCode)
    kept = _Kept(made.head, made.kinds, made.draws, made.written, made.stores, _without_code(compiled), compiled.code.key)
    at_hand, later = _names(kind)
    first = CODEC.dump((kept, _values(found, at_hand)), _hint(kind, _Kept, at_hand), buffers)
    rest = CODEC.dump((made.kernel, _values(found, later)), _hint(kind, Kernel, later), [*buffers, *made.head.args])
    return len(first).to_bytes(8, "little") + first + zlib.compress(rest, 1)


def unpack(data: bytes, buffers: Sequence[Buffer], kind: str, device: Device) -> tuple[LazyKernel, Any] | None:
    """A compiled kernel from its bytes, with its code; None when the code is not kept any more.

    Raises:
        StoreError: the bytes are damaged.
    """
    size = int.from_bytes(data[:8], "little")
    at_hand, later = _names(kind)
    kept, values = CODEC.load(data[8 : 8 + size], _hint(kind, _Kept, at_hand), buffers)
    head = kept.head
    compiled = device.restore(kept.compiled, kept.key, exports_of(head, bool(kept.compiled.chunk)))
    if compiled is None:
        return None

    @functools.cache
    def rest() -> tuple[Kernel, dict[str, Any]]:
        try:
            kernel, found = CODEC.load(zlib.decompress(data[8 + size :]), _hint(kind, Kernel, later), [*buffers, *head.args])
        except (StoreError, zlib.error) as e:
            raise QdrunRuntimeError(
                f"the cached IR of kernel `{head.name}` cannot be read ({e}), although its checksum is right: remove the "
                "folder of compiled kernels (QDRUN_CACHE_DIR) and run again"
            ) from e
        return kernel, dict(zip(later, found))

    facts = KernelSummary(head, kept.kinds, kept.draws, kept.written, kept.stores)
    return LazyKernel(facts, lambda: rest()[0], compiled), Found(dict(zip(at_hand, values)), lambda: rest()[1])


@functools.cache
def _names(kind: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The fields of what comes with a kernel: those at hand, and those that are read later."""
    cls = FOUND[kind]
    names = [] if cls is None else [f.name for f in fields(cls)]
    return tuple(n for n in names if n not in LAZY), tuple(n for n in names if n in LAZY)


@functools.cache
def _hint(kind: str, first: type, names: tuple[str, ...]) -> Any:
    """The annotation of a part of an entry: an object, and fields of what comes with the kernel."""
    cls = FOUND[kind]
    hints = {} if cls is None else get_type_hints(cls)
    rest = tuple(Kernel if name == "kernel" else hints[name] for name in names)
    return tuple[first, tuple[rest]]  # type: ignore[valid-type]


def _values(found: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(getattr(found, name) for name in names)


class Found:
    """A ``Gradient`` or a ``Tangent`` that was stored: its fields, some of them read on demand."""

    def __init__(self, at_hand: dict[str, Any], rest: Callable[[], dict[str, Any]]) -> None:
        self.__dict__.update(at_hand)
        self._rest = rest

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        rest = self._rest()
        if name not in rest:
            raise AttributeError(name)
        return rest[name]


def _without_code(compiled: Compiled) -> Compiled:
    """The facts of a kernel that launches and messages need, without the IR behind them, as a ``Compiled`` of any device."""
    plain: dict[str, Any] = {f.name: getattr(compiled, f.name) for f in fields(Compiled)}
    bare: dict[str, Any] = {"messages": [_bare(m) for m in compiled.messages], "prints": [_bare(p) for p in compiled.prints]}
    bare["chunk"] = int(compiled.chunk != 0)
    return Compiled(**(plain | bare))


def _bare(s: Any) -> Any:
    """A statement that a message stands for: its text and its place, and of each operand the type."""
    if isinstance(s, Assert):
        return replace(s, cond=Const(True, s.cond.dtype), args=tuple(map(_typed, s.args)))
    if isinstance(s, Overflow):
        loop = Loop(Op("index", (), i32), Const(0, i32), None, loc=s.loop.loc)
        return replace(s, loop=loop)
    if isinstance(s, ClaimRow):
        return s
    assert isinstance(s, Print)
    return replace(s, parts=tuple(p if isinstance(p, str) else _typed(p) for p in s.parts))


def _typed(x: Operand) -> Const:
    return Const(0, x.dtype)
