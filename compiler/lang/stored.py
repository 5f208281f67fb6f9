"""What a compiled kernel is on disk: the facts that launches need, and beside them the IR, which is read when something asks for it.

Both are documents of ``ir.store``: data, of the classes that ``CODEC`` lists. The machine code lies in an entry of its own, under the key
that the text of the module gives it.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Union, get_type_hints

from ..adstack import gates, sizeexpr, sizing, work
from ..codegen.abi import ContextLayout
from ..codegen.llvm.kernel import symbol
from ..errors import QdrunRuntimeError
from ..ir.nodes import Assert, Buffer, BufferKind, ClaimRow, Const, Kernel, Loop, Op, Operand, Overflow, Print
from ..ir.process import collector_paused
from ..ir.store import NODES, Codec, StoreError
from ..ir.threads import new_lock
from ..ir.types import i32
from ..ir.walk import kernel_buffers, written_places
from ..runtime.cpu import Compiled
from ..runtime.device import Device
from ..runtime.jit import LoadedCode
from ..transforms.gradient import Gradient
from ..transforms.paths import Broken
from ..transforms.tangent import Tangent

Written = Union[int, tuple[str, int]]
"""``ArgDecl.index`` of an array that a kernel writes; ("grad", index) or ("dual", index) for what belongs to it."""

FOUND: dict[str, type | None] = {"forward": None, "reverse": Gradient, "tangent": Tangent}
"""What comes with a compiled kernel of each kind."""
LAZY = frozenset(("kernel", "replayed"))
"""Fields of these that are read when something asks for them."""


class Ready:
    """A kernel that can be launched, and its machine code, which is made when it is first asked for.

    Attributes:
        head: the kernel without its tasks.
        kinds: the kinds of the buffers that it touches.
        draws: it reads the launch's random seed.
        written: ``ArgDecl.index`` of the arrays that it writes; ("grad", index) for their gradients.
        stores: what it writes of fields: buffer, and offset of the component.
        read: gives the kernel with its tasks.
    """

    def __init__(self, facts: Facts, read: Callable[[], Kernel], code: Compiled | Callable[[Device], Compiled]) -> None:
        self.head, self.kinds, self.draws, self.written, self.stores = facts
        self.read = read
        self._lock = new_lock(self, "_lock")
        self._made = code if isinstance(code, Compiled) else None
        self._make = None if isinstance(code, Compiled) else code
        self._then: list[Callable[[], None]] = []

    @property
    def kernel(self) -> Kernel:
        """The kernel with its tasks."""
        return self.read()

    @property
    def made(self) -> Compiled | None:
        """The machine code, if it was made."""
        return self._made

    def compiled(self, device: Device) -> Compiled:
        """The machine code. Of several threads that ask for it at once, one makes it, and the others wait.

        Args:
            device: compiles; all devices that share a recipe make the same code.

        Raises:
            QdrunRuntimeError: the code is refused; the next one who asks meets the same error.
        """
        if self._made is None:
            with self._lock:
                if self._made is None and self._make is not None:
                    with collector_paused():
                        self._made = self._make(device)
                    self._make = None
                    while self._then:
                        self._then.pop(0)()
        assert self._made is not None
        return self._made

    def once_compiled(self, then: Callable[[], None]) -> None:
        """Do this when the machine code is there: at once, if it is."""
        with self._lock:
            if self._made is None:
                self._then.append(then)
                return
        then()


class Facts(NamedTuple):
    """What is known of a kernel without its tasks, see ``Ready``."""

    head: Kernel
    kinds: frozenset[BufferKind]
    draws: bool
    written: frozenset[Written]
    stores: tuple[tuple[Buffer, int], ...]


@dataclass(frozen=True)
class _Kept:
    """The part of an entry that every launch needs: ``Facts``, and of the code all but its bytes, which ``key`` names."""

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
        *(sizeexpr.Lit, sizeexpr.Arg, sizeexpr.Extent, sizeexpr.Index, sizeexpr.Read, sizeexpr.Bin, sizeexpr.Cast),
        *(sizeexpr.Pick, sizeexpr.Unknown, sizeexpr.Range, work.Work, work.LoopWork, gates.Condition, gates.Gate),
        *(sizing.StackSizing, sizing.LoopSizing, sizing.Region, sizing.TaskSizing, Broken),
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


def ready(kernel: Kernel, make: Callable[[Device], Compiled], draws: bool, written: frozenset[Written]) -> Ready:
    """A kernel that ``make`` compiles."""
    kinds: frozenset[BufferKind] = frozenset(b.kind for b in kernel_buffers(kernel))
    places = (p for t in kernel.tasks for p in (*written_places(t.body), *(r.place for r in t.reductions)))
    stores = tuple(dict.fromkeys((p.buffer, p.offset) for p in places if p.buffer.kind == "field"))
    return Ready(Facts(replace(kernel, tasks=[]), kinds, draws, written, stores), lambda: kernel, make)


def pack(made: Ready, buffers: Sequence[Buffer], kind: str, found: Any = None) -> bytes:
    """A compiled kernel as bytes.

    Args:
        made: what was compiled.
        buffers: the recipe's field buffers, which the reader has, too.
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


def unpack(data: bytes, buffers: Sequence[Buffer], kind: str, device: Device) -> tuple[Ready, Any] | None:
    """A compiled kernel from its bytes, with its code; None when the code is not kept any more.

    Raises:
        StoreError: the bytes are damaged.
    """
    size = int.from_bytes(data[:8], "little")
    at_hand, later = _names(kind)
    kept, values = CODEC.load(data[8 : 8 + size], _hint(kind, _Kept, at_hand), buffers)
    head = kept.head
    compiled = device.restore(kept.compiled, kept.key, [symbol(head)])
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

    facts = Facts(head, kept.kinds, kept.draws, kept.written, kept.stores)
    return Ready(facts, lambda: rest()[0], compiled), Found(dict(zip(at_hand, values)), lambda: rest()[1])


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


__all__ = ["CODEC", "Found", "Ready", "StoreError", "pack", "ready", "unpack"]
