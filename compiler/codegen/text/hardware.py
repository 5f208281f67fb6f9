"""The hardware of every target whose device text is translated to another language, not compiled by LLVM.

What LLVM has intrinsics for are calls of pseudo functions::

    i32 @qd.thread()    the number of this thread in its block       i32 @qd.block()     the number of its block
    i32 @qd.threads()   the number of threads in a block             i32 @qd.blocks()    the number of blocks
    void @qd.barrier()  all threads of the block meet; earlier accesses to on-chip and device memory are seen after it

A device function says how large its blocks are: ``"threads"="128"``, or ``"any"`` if its launch decides. ``"words"="12"``: its one
parameter is the address of so many words.
"""

from __future__ import annotations

from typing import Any, NoReturn

from ..gpu.hardware import GpuTarget, GridFn
from ..gpu.on_chip import OnChipVariables
from ..llvm.target import Unsupported

MOST_BLOCKS = 65_535
"""Blocks of a launch that every such device takes."""


class TranslatedHardware(OnChipVariables):
    """Device functions as text that a translator reads."""

    def thread_in_block(self, e: GridFn) -> str:
        """``@qd.thread``"""
        return self._number(e, "thread")

    def block_number(self, e: GridFn) -> str:
        """``@qd.block``"""
        return self._number(e, "block")

    def blocks(self, e: GridFn) -> str:
        """``@qd.blocks``"""
        return self._number(e, "blocks")

    def threads(self, e: GridFn) -> str:
        """``@qd.threads``"""
        return self._number(e, "threads")

    def _number(self, e: GridFn, name: str) -> str:
        e.module.declare(f"qd.{name}", f"declare i32 @qd.{name}()")
        return e.hoist(("number", name), f"call i32 @qd.{name}()")

    def barrier(self, e: GridFn) -> None:
        """``@qd.barrier``"""
        e.module.declare("qd.barrier", "declare void @qd.barrier()")
        e.put("call void @qd.barrier()")

    def _refuse_lanes(self, *_: Any, **__: Any) -> NoReturn:
        raise Unsupported("an operation of the threads of a wave, which this GPU's language does not have")

    wave_barrier = lanes = lanes_below = ballot = from_lane = _refuse_lanes
    """Refused: a wave of these targets is one thread."""

    def define(self, e: GridFn, name: str) -> str:
        """A function with one parameter for each word."""
        params = ", ".join(f"{w.ty} {reg}" for w, reg in e.words.items())
        threads = "any" if e.flexible else str(e.threads_of_block)
        return _text(e, f'define void @{name}({params}) "threads"="{threads}" {{')

    def define_packed(self, e: GridFn, name: str, words: int, blocks: int) -> str:
        head = f'define void @{name}(ptr %words) "threads"="{e.threads_of_block}" "words"="{words}" {{'
        return _text(e, head, ["  %regs = inttoptr i64 0 to ptr"])


def _text(e: GridFn, head: str, first: list[str] | None = None) -> str:
    return "\n".join([head, "entry:", *(first or []), *e.slots, *e.head, *e.lines, "}"])


def translated_target(name: str, block: int = 128) -> GpuTarget:
    """The target of a backend whose device text is translated.

    Args:
        name: of the backend.
        block: threads of a block, a power of two.
    """
    return GpuTarget(
        name,
        hardware=TranslatedHardware(),
        block=block,
        wave=1,
        most_blocks=MOST_BLOCKS,
        tapes_on_chip=False,
        coherent=False,
        i128=False,
    )
