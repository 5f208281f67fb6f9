"""Reads assembly text: the functions of a module as instructions, and where their branches lead.

Two sources give the same instructions: the text that LLVM writes beside an object, and what ``llvm-objdump -d`` makes of the linked bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from .faults import UnknownInstruction

_LABEL = re.compile(r"^([A-Za-z_.$][\w.$]*):$")
_LOCAL = re.compile(r"^\.?L")
_OPERANDS = re.compile(r",(?![^\[(|]*[\])])")
_MODIFIER = re.compile(r"[\w]+:\[[^\]]*\]|\S+")
_NAMED = re.compile(r"^([a-z_0-9]+):(.*)$")
_DUMP_HEAD = re.compile(r"^([0-9a-f]+) <(.+)>:$")
_DUMP_LINE = re.compile(r"^\s+(\S.*?)\s*// ([0-9A-F]+): ")
_DUMP_TARGET = re.compile(r"<[^>+]*(?:\+0x([0-9a-f]+))?>\s*$")

WAITS = frozenset(
    "s_waitcnt s_waitcnt_depctr s_waitcnt_vscnt s_waitcnt_vmcnt s_waitcnt_lgkmcnt s_waitcnt_expcnt s_delay_alu s_nop s_clause s_setprio "
    "s_sleep s_sendmsg s_inst_prefetch s_set_inst_prefetch_distance s_dcache_wb s_dcache_inv s_icache_inv buffer_wbl2 buffer_inv "
    "buffer_invl2 buffer_wbinvl1 buffer_wbinvl1_vol buffer_gl0_inv buffer_gl1_inv s_code_end s_version s_wait_idle s_ttracedata".split()
)
"""Instructions about when, not about what: here every access is done when the next instruction runs."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: ``modifiers`` maps ``offset`` to ``16``, and a bare word to ``1``."""

    mnemonic: str
    operands: tuple[str, ...]
    modifiers: Mapping[str, str]
    text: str


@dataclass(frozen=True, slots=True)
class Listing:
    """A function: the text of its instructions, and the number of the one behind each label."""

    name: str
    lines: tuple[str, ...]
    labels: Mapping[str, int]


def read_assembly(text: str) -> dict[str, Listing]:
    """The functions of what LLVM's assembly printer writes."""
    functions = set(re.findall(r"^\s*\.type\s+([\w.$]+),@function", text, re.M))
    found: dict[str, Listing] = {}
    name, lines, labels = "", [], {}
    for raw in text.splitlines():
        line = raw.split(";", 1)[0].strip()
        if label := _LABEL.match(line):
            if label[1] in functions:
                name, lines, labels = label[1], [], {}
            elif name:
                labels[label[1]] = len(lines)
        elif name and line.startswith((".section", ".size")):
            found[name] = Listing(name, tuple(lines), labels)
            name = ""
        elif name and line and not line.startswith("."):
            lines.append(line)
    return found


def read_objdump(text: str) -> dict[str, Listing]:
    """The functions of what ``llvm-objdump -d`` writes. A branch's label is ``@`` and the offset in bytes."""
    found: dict[str, Listing] = {}
    name, base, lines, labels = "", 0, [], {}
    for raw in text.splitlines():
        if head := _DUMP_HEAD.match(raw):
            if name:
                found[name] = Listing(name, tuple(lines), labels)
            base, name, lines, labels = int(head[1], 16), head[2], [], {}
        elif name and (line := _DUMP_LINE.match(raw)):
            labels[f"@{int(line[2], 16) - base}"] = len(lines)
            if line[1].startswith(("s_branch", "s_cbranch")):
                target = _DUMP_TARGET.search(raw)
                lines.append(f"{line[1].split()[0]} @{int(target[1] or '0', 16) if target else -1}")
            else:
                lines.append(line[1])
    if name:
        found[name] = Listing(name, tuple(lines), labels)
    return found


@lru_cache(maxsize=1 << 14)
def parse(text: str) -> Instruction:
    """One instruction.

    Raises:
        UnknownInstruction: it has a form that no instruction has.
    """
    mnemonic, _, rest = text.partition(" ")
    operands = [part.strip() for part in _OPERANDS.split(rest)] if rest.strip() else []
    modifiers: dict[str, str] = {}
    if operands:
        words = _MODIFIER.findall(operands[-1])
        if not words:
            raise UnknownInstruction(text)
        operands[-1] = words[0]
        for word in words[1:]:
            named = _NAMED.match(word)
            modifiers[named[1] if named else word] = named[2] if named else "1"
        named = _NAMED.match(operands[-1])  # an instruction whose only operands are modifiers, or whose last operand is missing
        if named and not named[1].isdigit():
            modifiers[named[1]] = named[2]
            operands.pop()
    return Instruction(mnemonic, tuple(operands), modifiers, text)
