"""A kernel that can be launched: the facts that launches need are there at once, machine code and IR are made on first use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, Union

from ..ir.nodes import ArgDecl, Buffer, BufferKind, Kernel
from ..ir.process import while_compiling
from ..ir.threads import new_lock
from ..ir.walk import has_op, kernel_buffers, walk, written_places
from ..passes.dependence.access import writes_of
from ..runtime.base import Device
from ..runtime.compiled import Compiled

Written = Union[int, tuple[str, int]]
"""``ArgDecl.index`` of an array that a kernel writes; ("grad", index) or ("dual", index) for what belongs to it."""


class KernelSummary(NamedTuple):
    """The facts about a kernel that are known without its tasks.

    Attributes:
        head: the kernel without its tasks.
        kinds: the kinds of the buffers that it uses.
        draws: it reads the launch's random seed.
        written: ``ArgDecl.index`` of the arrays that it writes; ("grad", index) for their gradients.
        stores: the fields that it writes: buffer, and offset of the component.
    """

    head: Kernel
    kinds: frozenset[BufferKind]
    draws: bool
    written: frozenset[Written]
    stores: tuple[tuple[Buffer, int], ...]


def facts_of(kernel: Kernel) -> KernelSummary:
    """The facts of a kernel."""
    kinds: frozenset[BufferKind] = frozenset([b.kind for b in kernel_buffers(kernel)])
    draws = has_op(kernel, "seed")
    writes = writes_of([s for t in kernel.tasks for s in walk(t.body)])
    written = frozenset([_written(p.buffer) for p, _, _ in writes if isinstance(p.buffer.owner, ArgDecl)])
    places = [p for t in kernel.tasks for p in (*written_places(t.body), *[r.place for r in t.reductions])]
    stores = tuple(dict.fromkeys([(p.buffer, p.offset) for p in places if p.buffer.kind == "field"]))
    return KernelSummary(replace(kernel, tasks=[]), kinds, draws, written, stores)


def _written(buffer: Buffer) -> Written:
    """The name of an array argument, or of its gradient or dual, in ``KernelSummary.written``."""
    assert isinstance(buffer.owner, ArgDecl)
    index = buffer.owner.index
    return index if buffer.kind == "arg" else (buffer.kind.removeprefix("arg_"), index)


class LazyKernel:
    """A kernel and its machine code, which is made when it is first asked for.

    Args:
        facts: see ``KernelSummary``; they are attributes, too.
        read: gives the kernel with its tasks.
        code: the machine code, or what makes it.
        save: called once with the kernel when its code was made, to keep it for other processes.
    """

    def __init__(
        self,
        facts: KernelSummary,
        read: Callable[[], Kernel],
        code: Compiled | Callable[[Device], Compiled],
        save: Callable[[LazyKernel], None] | None = None,
    ) -> None:
        self.head, self.kinds, self.draws, self.written, self.stores = self.facts = facts
        self.read = read
        self._lock = new_lock(self, "_lock")
        self._made = code if isinstance(code, Compiled) else None
        self._make = None if isinstance(code, Compiled) else code
        self._save = save

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
            device: compiles; all devices that share a kernel make the same code.

        Raises:
            QdrunRuntimeError: the code is refused; the next call meets the same error.
        """
        if self._made is None:
            with self._lock:
                if self._made is None and self._make is not None:
                    with while_compiling():
                        self._made = self._make(device)
                    self._make = None
                    if self._save is not None:
                        self._save(self)
        assert self._made is not None
        return self._made
