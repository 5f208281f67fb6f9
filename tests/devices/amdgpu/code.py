"""A function of a code object as Python functions, one for each block of instructions, which is written when it first runs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping

from .faults import BadState, UnknownInstruction
from .listing import WAITS, Instruction, Listing, parse
from .wave import SCC, VCC, Wave
from .writing.lanes import plain, write_operation
from .writing.memory_writer import write_memory
from .writing.scalars import write_scalar
from .writing.special import HANDLERS, write_comparison, writes_exec
from .writing.writer import Names, Writer

END, BARRIER = -1, -2
"""What a block returns at the end of the program, and at a barrier, besides the number of the next block."""
MOST_BLOCKS = 2_000_000
CODE_BASE = 0x7000_0000_0000
_STEP = 4  # addresses of instructions are that far apart
_LANE_REGISTERS = re.compile(r"\b([va])(?:(\d+)|\[(\d+):(\d+)\])")
_CONDITIONS = {
    "scc0": f"not S[{SCC}]", "scc1": f"S[{SCC}]", "execz": "not w.exec()", "execnz": "w.exec()",
    "vccz": "not {vcc}", "vccnz": "{vcc}",
}  # fmt: skip
_ENDS = ("s_branch", "s_cbranch_", "s_endpgm", "s_barrier", "s_setpc_b64")


class Code:
    """A function.

    Attributes:
        width: lanes of a wave.
        registers: of each lane.
    """

    def __init__(self, listing: Listing, chip: int, width: int, symbols: Mapping[str, int]) -> None:
        self._listing, self._chip, self.width = listing, chip, width
        counts = {"v": 0, "a": 0}
        for line in listing.lines:
            for file, one, _, last in _LANE_REGISTERS.findall(line):
                counts[file] = max(counts[file], int(one or last) + 1)
        self._agprs = counts["v"] + counts["v"] % 2
        self.registers = max(4, self._agprs + counts["a"])
        self._names = Names()
        self._firsts = self._leaders()
        self._blocks = {first: k for k, first in enumerate(self._firsts)}
        self._symbols = {**symbols, **{label: CODE_BASE + _STEP * at for label, at in listing.labels.items()}}
        n = len(self._firsts)
        self._full: list[Callable[[Wave], int] | None] = [None] * n
        self._part: list[Callable[[Wave], int] | None] = [None] * n
        self._names_in: list[tuple[str, ...]] = [()] * n  # the instructions of each block that is written
        self._runs = [0] * n  # how often waves have run it since they were counted

    def _leaders(self) -> list[int]:
        lines = self._listing.lines
        firsts = {0, *self._listing.labels.values()}
        for k, line in enumerate(lines):
            if line.startswith(_ENDS) or writes_exec(parse(line)):
                firsts.add(k + 1)
        return sorted(first for first in firsts if first < len(lines))

    def run(self, wave: Wave) -> int:
        """Run a wave to its end or to a barrier.

        Raises:
            UnknownInstruction, BadState, BadAddress.
        """
        pc = wave.pc
        full, part, runs = self._full, self._part, self._runs
        for _ in range(MOST_BLOCKS):
            whole = wave.active is None
            runs[pc] += wave.some  # without a lane, nothing is computed
            function = (full if whole else part)[pc] or self._write(pc, whole)
            pc = function(wave)
            if pc < 0:
                return pc
        raise BadState(f"a wave has run {MOST_BLOCKS:,} blocks of {self._listing.name} without an end")

    def count(self, executed: Counter[str]) -> None:
        """Add how often waves have executed each instruction since the last call. Blocks that no lane took part in do not count."""
        for k, n in enumerate(self._runs):
            if n:
                for name in self._names_in[k]:
                    executed[name] += n
                self._runs[k] = 0

    # ---- a block
    def _write(self, number: int, whole: bool) -> Callable[[Wave], int]:
        x = Writer(self._names, self._chip, self.width, whole, self._agprs, self._symbols)
        at = begin = self._firsts[number]
        end = self._firsts[number + 1] if number + 1 < len(self._firsts) else len(self._listing.lines)
        done = False
        while at < end and not done:
            line = self._listing.lines[at]
            done = self._instruction(x, line, at)
            at += 1
        if not done:
            x.put(f"return {self._block(at)}")
        exec(compile(x.text("block"), f"{self._listing.name}.{number}", "exec"), self._names)
        function = self._names.pop("block")
        (self._full if whole else self._part)[number] = function
        lines = self._listing.lines[begin:at]
        self._names_in[number] = tuple(plain(part.split()[0])[0] for line in lines for part in line.split("::"))
        return function

    def _block(self, at: int) -> int:
        if at not in self._blocks:
            raise BadState(f"{self._listing.name} runs out of its last instruction")
        return self._blocks[at]

    def _instruction(self, x: Writer, line: str, at: int) -> bool:
        """Write one instruction; whether it ends the block."""
        if "::" in line:
            self._pair(x, line)
            return False
        i = parse(line)
        if i.mnemonic in WAITS:
            return False
        if i.mnemonic.startswith(_ENDS):
            x.put(self._leave(x, i, at))
            return True
        if i.mnemonic == "s_getpc_b64":
            x.base = CODE_BASE + _STEP * (at + 1)
            x.set_pair(i.operands[0], str(x.base))
            return False
        try:
            self._any(x, i)
        except (IndexError, ValueError, KeyError) as e:
            raise UnknownInstruction(f"{line} ({type(e).__name__}: {e})") from e
        return False

    def _any(self, x: Writer, i: Instruction) -> None:
        name = plain(i.mnemonic)[0].replace("v_dual_", "v_")
        if name.startswith("s_") and write_scalar(x, i):
            return
        if name.startswith("v_"):
            if write_operation(x, i) or write_comparison(x, i):
                return
            handler = HANDLERS.get(name)
            if handler is not None:
                handler(x, i, name)
                return
        if not write_memory(x, i):
            raise UnknownInstruction(i.text)

    def _pair(self, x: Writer, line: str) -> None:
        """Two instructions that read their operands before either writes."""
        x.waiting = []
        for part in line.split("::"):
            self._any(x, parse(part.strip()))
        writes, x.waiting = x.waiting, None
        for write in writes:
            x.put(write)

    def _leave(self, x: Writer, i: Instruction, at: int) -> str:
        name = i.mnemonic
        if name == "s_endpgm":
            return f"return {END}"
        if name == "s_barrier":
            x.put(f"w.pc = {self._block(at + 1)}")
            return f"return {BARRIER}"
        if name == "s_setpc_b64":
            blocks = {CODE_BASE + _STEP * first: k for first, k in self._blocks.items()}
            return f"return {x.names.of(blocks)}[{x.word(i.operands[0], 'q')}]"
        target = self._block(self._listing.labels[i.operands[0]])
        if name == "s_branch":
            return f"return {target}"
        condition = _CONDITIONS.get(name.removeprefix("s_cbranch_"))
        if condition is None:
            raise UnknownInstruction(i.text)
        vcc = f"(S[{VCC}] | S[{VCC + 1}])" if self.width == 64 else f"S[{VCC}]"
        return f"return {target} if {condition.format(vcc=vcc)} else {self._block(at + 1)}"
