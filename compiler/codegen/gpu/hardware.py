"""The GPU-specific parts of the grid emitter: a target, and the text of special registers, barriers and on-chip memory.

Each backend's folder has its own ``Hardware`` and gives it to its target. ``tests/devices`` has one for the processor in the place of a
GPU, with blocks of one thread.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from ...ir.nodes import Task
from ...ir.types import DType, i32, i64
from ..llvm.emitter import Emitter
from ..llvm.target import Target


@dataclass(frozen=True, slots=True)
class GpuTarget(Target):
    """A GPU.

    Attributes:
        hardware: writes the GPU-specific text.
        block: threads of a block.
        wave: threads that execute one instruction together (a warp, a wavefront), at most: 32 or 64. Masks of them have as many bits.
            1: there are no operations of such threads together.
        wide_features: ``features`` of a kernel with more than ``small_bytes`` bytes of parameters.
        most_bytes: maximum bytes of a kernel's parameters.
        most_blocks: maximum blocks of a launch.
        global_space: the address space of the device's memory; 0: pointers do not say.
        scope: LLVM's name of the scope of atomics that all threads of the device see.
        block_scope: the same for the threads of a block.
        wide_atomics: there are atomics of 8 bytes.
        wide_accesses: consecutive iterations may share accesses of 16 bytes.
        coherent: plain accesses to the device's memory see what other blocks have written before the last fence; else only accesses by
            atomics of 4 bytes do.
        lanes: threads of a wave that exchange values by instructions, when all of them come to one; 0: there are no such instructions.
        teams: some threads of a wave may exchange values and wait for each other while the others are elsewhere.
        tapes_on_chip: adstack tapes lie in on-chip memory, unless a plan says otherwise; else all of them lie in the heap.
        private_tapes: that memory is an array of each thread, not a part of the block's.
        loop_copies: iterations of a short loop that the text has one after the other, at most. 1: its compiler unrolls.
        grid_barrier: writes a barrier of all blocks of a launch, which ``qd_launch_together`` starts at the same time; its second argument
            is the address of a word of the scratch memory, zero when the launch begins. None: blocks cannot wait for each other.
        launch_end: the driver's number that ends the list of what a launch is given.
    """

    hardware: Hardware = field(kw_only=True, repr=False, compare=False)
    libm: bool = False
    block: int = 128
    wave: int = 32
    wide_features: str = ""
    small_bytes: int = 4096
    most_bytes: int = 32_760
    most_blocks: int = (1 << 31) - 1
    global_space: int = 0
    scope: str = "device"
    block_scope: str = "block"
    wide_atomics: bool = True
    wide_accesses: bool = True
    coherent: bool = True
    lanes: int = 0
    teams: bool = False
    tapes_on_chip: bool = True
    private_tapes: bool = False
    loop_copies: int = 1
    launch_end: int = 0
    grid_barrier: Callable[[GridFn, str], None] | None = field(default=None, repr=False, compare=False)

    def tape_owners(self, block: int) -> int:
        """Threads of a block whose tapes are in the memory that a launch asks for: all, or one with ``private_tapes``."""
        return 1 if self.private_tapes else block

    @property
    def mask(self) -> DType:
        """The type of a set of the threads of a wave."""
        return i64 if self.wave > 32 else i32


@dataclass(frozen=True, slots=True)
class ParamWord:
    """One 8-byte parameter of a device function, by the origin of its value on the host.

    ``kind``: "ctx" and "arg" are words of the launch context and of the argument buffer; "begin" and "size" belong to axis ``what``;
    "count" is the number of iterations; "launch" the number of this launch of a kernel (what it makes of ``TABLE_BEGUN``); "value" is
    the operation ``what`` of the prologue, its own bytes, low end first; "self" is the address of the context.
    """

    kind: str
    what: object = 0
    ty: str = "i64"


@dataclass(frozen=True, slots=True)
class DeviceFunction:
    """A function of the device module and its parameters in order. ``before``: of one thread, for the prologue of its task;
    ``flexible``: its launch decides how large blocks are; ``wide``: a thread takes so many iterations at once by wide accesses, or 1.
    """

    name: str
    task: Task
    number: int
    words: list[ParamWord]
    before: bool = False
    flexible: bool = False
    wide: int = 1


class GridFn(Emitter):
    """A device function that is being written, as far as a ``Hardware`` knows it.

    Attributes:
        hardware: writes the GPU-specific text.
        words: the register of each parameter.
        threads_of_block: how many threads a block has.
        flexible: the launch decides that.
        barriers: how many have been written.
    """

    target: GpuTarget
    hardware: Hardware
    words: dict[ParamWord, str]
    threads_of_block: int
    flexible: bool
    barriers: int

    @abstractmethod
    def pointer_attributes(self) -> dict[ParamWord, str]:
        """The LLVM attributes of pointer parameters."""


class Hardware(Protocol):
    """Writes the text of a device function. Every value is a register: those of the grid are i32, sets of lanes ``GpuTarget.mask``."""

    def thread_in_block(self, e: GridFn) -> str:
        """The number of this thread in its block."""
        ...

    def block_number(self, e: GridFn) -> str:
        """The number of this thread's block."""
        ...

    def blocks(self, e: GridFn) -> str:
        """The number of blocks that run the function."""
        ...

    def threads(self, e: GridFn) -> str:
        """The number of threads in a block, if the launch determines it."""
        ...

    def barrier(self, e: GridFn) -> None:
        """A barrier of the block."""
        ...

    def shared_words(self, e: GridFn, words: int) -> str:
        """The generic address of so many 8-byte words of on-chip memory that the threads of a block share, of a size known here."""
        ...

    def array(self, e: GridFn, task: int, begin: int, size: int) -> str:
        """The generic address of a shared array: so many bytes of a task's, which begin at ``begin``, both multiples of 16."""
        ...

    def dynamic_shared(self, e: GridFn) -> str:
        """The generic address of the on-chip memory whose size the launch decides."""
        ...

    def lanes(self, e: GridFn) -> str:
        """A bit for each thread of the wave that is here now, with this one."""
        ...

    def lanes_below(self, e: GridFn) -> str:
        """The bits of the threads of the wave with lower numbers."""
        ...

    def ballot(self, e: GridFn, mask: str, flag: str) -> str:
        """The bits of the lanes of a mask, all of which come here, whose flag (i1) is set."""
        ...

    def from_lane(self, e: GridFn, mask: str, value: str, lane: str) -> str:
        """The i32 that a lane of a mask has, all of which come here."""
        ...

    def define(self, e: GridFn, name: str) -> str:
        """The text of the function whose code the emitter holds."""
        ...

    def wave_barrier(self, e: GridFn, mask: str = "-1") -> None:
        """A barrier of the wave's lanes in a mask, all of which come here; after it their earlier writes are visible."""
        ...

    def define_packed(self, e: GridFn, name: str, words: int, blocks: int) -> str:
        """The same of a function with one parameter, the address ``%words`` of so many words. ``blocks``: how many a multiprocessor should
        have room for at once.
        """
        ...
