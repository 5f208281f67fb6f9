"""The device code of a GPU made for the processor, to run it without a GPU: a block is one thread, unless its threads meet.

A device function is ``void name(ptr regs, ptr words)``: the special registers as 8-byte words, and its parameters, packed::

    0  thread in its block     1  block     2  number of blocks     3  threads of a block     4  address of what the launch asks for
    5  address of the shared arrays     6  address of ``void barrier(ptr regs, i64 site)``     7  the machine's own
    8  address of ``i32 exchange(ptr regs, i64 site, i32 mask, i32 value, i32 lane)``

A barrier's site is its number, plus ``GRID_SITE`` where all blocks meet. The lanes of a mask exchange values: each gives one, and gets that
of a lane.
"""

from __future__ import annotations

from qdrun.compiler.codegen.gpu.hardware import GpuTarget, GridFn

REG_THREAD, REG_BLOCK, REG_BLOCKS, REG_THREADS, REG_SHARED, REG_ARRAYS, REG_BARRIER = 0, 1, 2, 3, 4, 5, 6
REG_EXCHANGE, REG_WORDS = 8, 9
GRID_SITE = 1 << 32


class EmulatedHardware:
    """Device functions as functions of the processor."""

    def thread_in_block(self, e: GridFn) -> str:
        """The one thread, or a word of the machine where threads meet."""
        return self._word(e, REG_THREAD) if e.threads_of_block > 1 else "0"

    def block_number(self, e: GridFn) -> str:
        """A word of the machine."""
        return self._word(e, REG_BLOCK)

    def blocks(self, e: GridFn) -> str:
        """A word of the machine."""
        return self._word(e, REG_BLOCKS)

    def threads(self, e: GridFn) -> str:
        """One."""
        return "1"

    def _word(self, e: GridFn, word: int) -> str:
        p = e.hoist(("reg*", word), f"getelementptr i64, ptr %regs, i64 {word}")
        return e.hoist(("reg", word), f"load i32, ptr {p}")

    def barrier(self, e: GridFn) -> None:
        """A single thread does not wait.

        Several call the machine with the number of the barrier, which checks that all are at the same one.
        """
        if e.threads_of_block > 1:
            self._meet(e, 0)

    def grid_barrier(self, e: GridFn, arrived: str) -> None:
        """The machine, which runs all blocks at the same time."""
        self._meet(e, GRID_SITE)

    def _meet(self, e: GridFn, among: int) -> None:
        e.barriers += 1
        e.put(f"call void {self._pointer(e, REG_BARRIER)}(ptr %regs, i64 {among + e.barriers})")

    def shared_words(self, e: GridFn, words: int) -> str:
        """The one thread's own memory: blocks whose threads meet have no reductions."""
        slot = e.hoisted.get(("shared", words))
        if slot is None:
            slot = e.hoisted["shared", words] = e.slot(f"[{words} x i64]")
        return slot

    def array(self, e: GridFn, task: int, begin: int, size: int) -> str:
        """Memory of the machine's."""
        base = self._pointer(e, REG_ARRAYS)
        return e.hoist(("array", begin), f"getelementptr i8, ptr {base}, i64 {begin}")

    def dynamic_shared(self, e: GridFn) -> str:
        """A word of the machine."""
        return self._pointer(e, REG_SHARED)

    def _pointer(self, e: GridFn, word: int) -> str:
        p = e.hoist(("reg*", word), f"getelementptr i64, ptr %regs, i64 {word}")
        return e.hoist(("reg", word), f"load ptr, ptr {p}")

    def lanes(self, e: GridFn) -> str:
        """A warp is one thread."""
        return "1"

    def lanes_below(self, e: GridFn) -> str:
        """No effect: there are none."""
        return "0"

    def ballot(self, e: GridFn, mask: str, flag: str) -> str:
        """Its own flag."""
        return e.t(f"zext i1 {flag} to {e.ty(e.target.mask, False)}")

    def from_lane(self, e: GridFn, mask: str, value: str, lane: str) -> str:
        """What the machine has from the other thread of a mask; its own value, where that is ``lanes``."""
        return value if mask == "1" else self._exchange(e, mask, value, lane)

    def _exchange(self, e: GridFn, mask: str, value: str, lane: str) -> str:
        e.barriers += 1
        to = self._pointer(e, REG_EXCHANGE)
        return e.t(f"call i32 {to}(ptr %regs, i64 {e.barriers}, i32 {mask}, i32 {value}, i32 {lane})")

    def define(self, e: GridFn, name: str) -> str:
        """A function that loads its words first."""
        loads: list[str] = []
        for k, (word, reg) in enumerate(e.words.items()):
            loads += [f"  {reg}.p = getelementptr i64, ptr %words, i64 {k}", f"  {reg} = load {word.ty}, ptr {reg}.p"]
        head = [f"define void @{name}(ptr %regs, ptr %words) nounwind {{", "entry:"]
        return "\n".join([*head, *e.slots, *loads, *e.head, *e.lines, "}"])

    def wave_barrier(self, e: GridFn, mask: str = "-1") -> None:
        """All threads of the block, or those of a mask."""
        if mask == "-1":
            self.barrier(e)
        else:
            self._exchange(e, mask, "0", e.t(f"and i32 {self.thread_in_block(e)}, {e.target.wave - 1}"))

    def define_packed(self, e: GridFn, name: str, words: int, blocks: int) -> str:
        """The words lie packed anyway."""
        head = [f"define void @{name}(ptr %regs, ptr %words) nounwind {{", "entry:"]
        return "\n".join([*head, *e.slots, *e.head, *e.lines, "}"])


def emulated_target(triple: str = "", cpu: str = "", features: str = "") -> GpuTarget:
    """The processor (its LLVM names) in the place of a GPU."""
    made = EmulatedHardware()
    return GpuTarget(
        "emulated",
        triple,
        cpu,
        features,
        hardware=made,
        block=1,
        teams=True,
        wide_features=features,
        grid_barrier=made.grid_barrier,
    )
