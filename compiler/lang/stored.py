"""What a compiled kernel is on disk: the facts that launches need, and beside them the IR, which is read when something asks for it.

The machine code itself lies in an entry of its own, under the key that the text of the module gives it.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ..codegen.llvm.kernel import symbol
from ..ir.nodes import Assert, Buffer, ClaimRow, Const, Kernel, Loop, Op, Operand, Overflow, Print
from ..ir.process import collector_paused
from ..ir.store import StoreError, dump, load
from ..ir.threads import new_lock
from ..ir.types import i32
from ..ir.walk import kernel_buffers, written_places
from ..runtime.cpu import Compiled
from ..runtime.device import Device
from ..runtime.jit import LoadedCode


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
    kinds: frozenset[str]
    draws: bool
    written: frozenset[object]
    stores: tuple[tuple[Buffer, int], ...]


def ready(kernel: Kernel, make: Callable[[Device], Compiled], draws: bool, written: frozenset[object]) -> Ready:
    """A kernel that ``make`` compiles."""
    kinds = frozenset(b.kind for b in kernel_buffers(kernel))
    places = (p for t in kernel.tasks for p in (*written_places(t.body), *(r.place for r in t.reductions)))
    stores = tuple(dict.fromkeys((p.buffer, p.offset) for p in places if p.buffer.kind == "field"))
    return Ready(Facts(replace(kernel, tasks=[]), kinds, draws, written, stores), lambda: kernel, make)


def pack(made: Ready, buffers: Sequence[Buffer], found: Any = None, lazy: Sequence[str] = ()) -> bytes:
    """A compiled kernel as bytes.

    Args:
        made: what was compiled.
        buffers: the recipe's field buffers, which the reader has, too.
        found: a dataclass that comes with it (``Gradient``, ``Tangent``), or None.
        lazy: the names of those of its fields that are read when something asks for them.

    Raises:
        StoreError: it holds something that cannot be stored.
    """
    compiled = made.made
    assert compiled is not None and isinstance(compiled.code, LoadedCode)
    names = [] if found is None else list(type(found).__dataclass_fields__)
    at_hand = {name: getattr(found, name) for name in names if name not in lazy}
    facts = (
        made.head,
        made.kinds,
        _without_code(compiled),
        compiled.code.key,
        made.draws,
        made.written,
        made.stores,
        at_hand,
    )
    first = dump(facts, buffers)
    known = [*buffers, *made.head.args]
    second = zlib.compress(dump((made.kernel, {name: getattr(found, name) for name in names if name in lazy}), known), 1)
    return len(first).to_bytes(8, "little") + first + second


def unpack(data: bytes, buffers: Sequence[Buffer], device: Device) -> tuple[Ready, Any] | None:
    """A compiled kernel from its bytes, with its code; None when the code is not kept any more.

    Raises:
        StoreError: the bytes are damaged.
    """
    size = int.from_bytes(data[:8], "little")
    head, kinds, compiled, key, draws, written, stores, at_hand = load(data[8 : 8 + size], buffers)
    compiled = device.restore(compiled, key, [symbol(head)])
    if compiled is None:
        return None

    @functools.cache
    def rest() -> tuple[Kernel, dict[str, Any]]:
        return load(zlib.decompress(data[8 + size :]), [*buffers, *head.args])

    facts = Facts(head, kinds, draws, written, stores)
    return Ready(facts, lambda: rest()[0], compiled), Found(at_hand, lambda: rest()[1])


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
    """The facts of a kernel that messages need, without the IR behind them."""
    return replace(
        compiled,
        address=0,
        messages=[_bare(m) for m in compiled.messages],
        prints=[_bare(p) for p in compiled.prints],
        seconds=0.0,
        from_cache=True,
        code=None,  # type: ignore[arg-type]
    )


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


__all__ = ["Found", "Ready", "StoreError", "pack", "ready", "unpack"]
