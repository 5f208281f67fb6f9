"""The device code of a GPU made for the processor, to run it without a GPU: a block is one thread.

A device function is ``void name(ptr regs, ptr words)``: the special registers as 8-byte words, and its parameters, packed::

    0  thread in its block (0)     1  block     2  number of blocks     3  threads of a block     4  address of what the launch asks for
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .gpu import GpuTarget

if TYPE_CHECKING:
    from .grid import GridEmitter

REG_THREAD, REG_BLOCK, REG_BLOCKS, REG_THREADS, REG_SHARED, REG_WORDS = 0, 1, 2, 3, 4, 8


def emulated_target(triple: str = "", cpu: str = "", features: str = "") -> GpuTarget:
    """The processor (its LLVM names) in the place of a GPU."""
    return GpuTarget("emulated", triple, cpu, features, block=1, wide_features=features)


class EmulatedHardware:
    """Device functions as functions of the processor."""

    def thread_in_block(self, e: GridEmitter) -> str:
        """The one thread."""
        return "0"

    def block_number(self, e: GridEmitter) -> str:
        """A word of the machine."""
        return self._word(e, REG_BLOCK)

    def blocks(self, e: GridEmitter) -> str:
        """A word of the machine."""
        return self._word(e, REG_BLOCKS)

    def threads(self, e: GridEmitter) -> str:
        """One."""
        return "1"

    def _word(self, e: GridEmitter, word: int) -> str:
        p = e.hoist(("reg*", word), f"getelementptr i64, ptr %regs, i64 {word}")
        return e.hoist(("reg", word), f"load i32, ptr {p}")

    def barrier(self, e: GridEmitter) -> None:
        """One thread waits for nobody."""

    def shared_words(self, e: GridEmitter, words: int) -> str:
        """The one thread's own memory."""
        slot = e.hoisted.get(("shared", words))
        if slot is None:
            slot = e.hoisted["shared", words] = e.slot(f"[{words} x i64]")
        return slot

    def dynamic_shared(self, e: GridEmitter) -> str:
        """A word of the machine."""
        p = e.hoist(("reg*", REG_SHARED), f"getelementptr i64, ptr %regs, i64 {REG_SHARED}")
        return e.hoist(("reg", REG_SHARED), f"load ptr, ptr {p}")

    def define(self, e: GridEmitter, name: str) -> str:
        """A function that loads its words first."""
        loads: list[str] = []
        for k, (word, reg) in enumerate(e.words.items()):
            loads += [f"  {reg}.p = getelementptr i64, ptr %words, i64 {k}", f"  {reg} = load {word.ty}, ptr {reg}.p"]
        head = [f"define void @{name}(ptr %regs, ptr %words) nounwind {{", "entry:"]
        return "\n".join([*head, *e.slots, *loads, *e.head, *e.lines, "}"])
