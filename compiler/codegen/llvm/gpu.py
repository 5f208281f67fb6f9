"""What the grid emitter needs of a GPU: a target, and how its special registers, barriers and on-chip memory are written.

There are two: the machine itself, and the same code made for the processor, with blocks of one thread, for tests without a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from .target import Target

if TYPE_CHECKING:
    from .grid import GridEmitter


@dataclass(frozen=True, slots=True)
class GpuTarget(Target):
    """A GPU. ``block``: threads of a block; ``features``: what LLVM is told besides ``cpu``; ``wide_features``: the same for a kernel
    with more than ``small_bytes`` bytes of parameters; ``most_bytes``: no kernel may have more.
    """

    libm: bool = False
    block: int = 128
    wide_features: str = ""
    small_bytes: int = 4096
    most_bytes: int = 32_760


@dataclass(frozen=True, slots=True)
class Word:
    """One 8-byte parameter of a device function: where its value is found on the host.

    ``kind``: "ctx" and "arg" are words of the launch context and of the argument buffer; "begin" and "size" belong to axis ``what``;
    "count" is the number of iterations; "launch" the number of this launch of a kernel (what it makes of ``TABLE_BEGUN``); "value" is
    the operation ``what`` of the prologue, its own bytes, low end first; "self" is the address of the context.
    """

    kind: str
    what: object = 0
    ty: str = "i64"


class Hardware(Protocol):
    """How a device function is written. Every value is a register; those of the grid are i32."""

    def thread_in_block(self, e: GridEmitter) -> str:
        """The number of this thread in its block."""
        ...

    def block_number(self, e: GridEmitter) -> str:
        """The number of this thread's block."""
        ...

    def blocks(self, e: GridEmitter) -> str:
        """How many blocks run the function."""
        ...

    def threads(self, e: GridEmitter) -> str:
        """How many threads a block has, where the launch decides it."""
        ...

    def barrier(self, e: GridEmitter) -> None:
        """All threads of the block arrive before one goes on."""
        ...

    def shared_words(self, e: GridEmitter, words: int) -> str:
        """The generic address of so many 8-byte words of on-chip memory that the threads of a block share, of a size known here."""
        ...

    def array(self, e: GridEmitter, task: int, begin: int, size: int) -> str:
        """The generic address of a shared array: so many bytes of a task's, which begin at ``begin``, both multiples of 16."""
        ...

    def dynamic_shared(self, e: GridEmitter) -> str:
        """The generic address of the on-chip memory whose size the launch decides."""
        ...

    def lanes(self, e: GridEmitter) -> str:
        """A bit for each thread of the warp that is here now, with this one."""
        ...

    def lanes_below(self, e: GridEmitter) -> str:
        """The bits of the threads of the warp with lower numbers."""
        ...

    def ballot(self, e: GridEmitter, mask: str, flag: str) -> str:
        """The bits of the lanes of a mask, all of which come here, whose flag (i1) is set."""
        ...

    def from_lane(self, e: GridEmitter, mask: str, value: str, lane: str) -> str:
        """The i32 that a lane of a mask has, all of which come here."""
        ...

    def define(self, e: GridEmitter, name: str) -> str:
        """The text of the function whose code the emitter holds."""
        ...
