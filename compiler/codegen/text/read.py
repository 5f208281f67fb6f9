"""Reads device text into functions of blocks of instructions.

The text is that of ``docs/device-text.md``, as ``TranslatedHardware`` writes it. What is only a hint to LLVM (``nsw``, ``noalias``,
metadata) is left out, branches with a literal condition become jumps, blocks that nothing reaches go, and a ``phi`` becomes a slot: then
no value depends on the path. A line of no known form is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ...errors import QdrunRuntimeError
from .lines import (
    SIZES,
    Alloca,
    AtomicLoad,
    AtomicStore,
    Binary,
    Branch,
    CallInst,
    CastInst,
    Compare,
    ElementAddress,
    End,
    Extract,
    ExtractValue,
    Fence,
    Insert,
    Jump,
    Line,
    Load,
    Negate,
    OnChip,
    Return,
    Select,
    Store,
    Swap,
    Update,
)

ENTRY = "entry"
"""The first block of every function."""


@dataclass(frozen=True, slots=True)
class Join:
    """A value that depends on the path: its register and type, and the value from each block that comes before."""

    result: str
    type: str
    values: tuple[tuple[str, str], ...]


@dataclass(slots=True)
class BasicBlock:
    """Instructions that run one after the other.

    Attributes:
        name: its label.
        lines: the instructions.
        numbers: their lines in the text; 0: the reader has added it.
        end: where it goes.
        joins: its ``phi``, until they have slots.
    """

    name: str
    lines: list[Line] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    end: End | None = None
    joins: list[Join] = field(default_factory=list)

    def add(self, line: Line, number: int) -> None:
        """Append an instruction."""
        self.lines.append(line)
        self.numbers.append(number)


@dataclass(frozen=True, slots=True)
class TextFunction:
    """A function of the text.

    Attributes:
        name: without ``@``.
        result: its type; ``void``.
        parameters: type and register of each.
        entry: a launch runs it: its parameters are 8-byte words.
        packed: its one parameter is the address of its words.
        words: how many it has.
        threads: of a block; 0: the launch decides, or it is not an entry.
        blocks: by label, in the order of the text; the first is ``ENTRY``.
    """

    name: str
    result: str
    parameters: tuple[tuple[str, str], ...]
    entry: bool = False
    packed: bool = False
    words: int = 0
    threads: int = 0
    blocks: dict[str, BasicBlock] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Table:
    """A constant table of the module: so many literals of a type."""

    name: str
    type: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OnChipVariable:
    """A variable in the on-chip memory of a block: so many bytes; ``dynamic``: as many as the launch says, behind all others; ``wide``:
    there are atomics of 8 bytes on it.
    """

    name: str
    size: int
    dynamic: bool
    wide: bool = False


@dataclass(frozen=True, slots=True)
class DeviceText:
    """A device text that has been read. ``lines`` are those of the text, for messages."""

    functions: dict[str, TextFunction]
    tables: dict[str, Table]
    variables: dict[str, OnChipVariable]
    lines: list[str]

    @property
    def entries(self) -> list[TextFunction]:
        """What a launch runs, in the order of the text."""
        return [f for f in self.functions.values() if f.entry]


_ENTRY = re.compile(r'define void @(\w+)\((.*)\) "threads"="(\d+|any)"(?: "words"="(\d+)")? \{')
_INTERNAL = re.compile(r"define internal (\w+) @(\w+)\((.*?)\) [\w ()]*\{")
_TABLE = re.compile(r"@(\w+) = internal (?:addrspace\(\d+\) )?constant \[\d+ x (\w+)\] \[(.*)\], align \d+")
_VARIABLE = re.compile(r"@(\w+) = (internal|external) addrspace\(3\) global \[(\d+) x (\w+)\](?: poison)?, align 16")
_IGNORED = re.compile(r"; |declare |![0-9]+ = |target ")
_LABEL = re.compile(r"([\w.]+):")
_HINTS = re.compile(r", ![\w.]+ ![0-9]+")


def read(text: str) -> DeviceText:
    """A device text as data.

    Raises:
        QdrunRuntimeError: a line of the text is not in the grammar of device text; names the line.
    """
    lines = text.splitlines()
    out = DeviceText({}, {}, {}, lines)
    function: TextFunction | None = None
    block: BasicBlock | None = None
    for number, raw in enumerate(lines, 1):
        line = raw.strip()
        if not line:
            continue
        if function is None:
            function = _outside(out, line, number)
            block = None
        elif line == "}":
            _finish(function)
            out.functions[function.name] = function
            function = None
        elif line[-1] == ":" and (label := _LABEL.fullmatch(line)):
            block = function.blocks[label[1]] = BasicBlock(label[1])
        elif block is None or block.end is not None:
            raise unreadable(line, number, "it stands outside of a block")
        else:
            _inside(block, line, number)
    if out.variables:
        _find_wide(out)
    return out


def _find_wide(out: DeviceText) -> None:
    """Which variables in on-chip memory there are atomics of 8 bytes on."""
    for function in out.functions.values():
        where: dict[str, str] = {}
        for line in (x for block in function.blocks.values() for x in block.lines):
            match line:
                case OnChip(result=result, variable=variable):
                    where[result] = variable
                case ElementAddress(result=result, base=base) if base in where:
                    where[result] = where[base]
                case Update() | Swap() | AtomicLoad() | AtomicStore() if line.address in where and SIZES[line.type] == 8:
                    name = where[line.address]
                    out.variables[name] = replace(out.variables[name], wide=True)


def unreadable(line: str, number: int, why: str = "it has no form of docs/device-text.md") -> QdrunRuntimeError:
    """The error of a line of a device text."""
    return QdrunRuntimeError(
        f"line {number} of a device text cannot be translated, as {why}: {line.strip()}"
        "\n  do: this is a bug in qdrun; report it with the kernel's source"
    )


def _outside(out: DeviceText, line: str, number: int) -> TextFunction | None:
    """A line of the module; the function that it begins."""
    if _IGNORED.match(line):
        return None
    if m := _ENTRY.fullmatch(line):
        words = _parameters(m[2])
        packed = m[4] is not None
        threads = 0 if m[3] == "any" else int(m[3])
        return TextFunction(m[1], "void", words, True, packed, int(m[4]) if packed else len(words), threads)
    if m := _INTERNAL.fullmatch(line):
        return TextFunction(m[2], m[1], _parameters(m[3]))
    if m := _TABLE.fullmatch(line):
        out.tables[m[1]] = Table(m[1], m[2], tuple(v.split()[-1] for v in m[3].split(", ")))
        return None
    if m := _VARIABLE.fullmatch(line):
        out.variables[m[1]] = OnChipVariable(m[1], int(m[3]) * SIZES[m[4]], m[2] == "external")
        return None
    raise unreadable(line, number)


def _parameters(text: str) -> tuple[tuple[str, str], ...]:
    words = (p.split() for p in text.split(", ") if p)
    return tuple((w[0], w[-1]) for w in words)


def _inside(block: BasicBlock, line: str, number: int) -> None:
    """An instruction, or the end of the block."""
    leaves = line.endswith(" ; leaves")
    if leaves:
        line = line.removesuffix(" ; leaves")
    if "!" in line:
        line = _HINTS.sub("", line)
    if line.startswith(("br ", "ret ")):
        block.end = _end(line, leaves, number)
        return
    if line[0] == "%":
        result, _, what = line.partition(" = ")
    else:
        result, what = "", line
    if m := _PHI.fullmatch(what):
        block.joins.append(Join(result, m[1], ((m[2], m[3]), (m[4], m[5]))))
        return
    word = what.partition(" ")[0]
    reader = _READERS.get(word)
    found = reader(result, what) if reader is not None else None
    if found is None:
        raise unreadable(line, number)
    if isinstance(found, AtomicStore) and " release," in what:
        block.add(Fence(), number)
    block.add(found, number)
    if isinstance(found, Swap) and " acquire " in what:
        block.add(Fence(), number)


_JUMP = re.compile(r"br label %([\w.]+)")
_BRANCH = re.compile(r"br i1 (\S+), label %([\w.]+), label %([\w.]+)")
_RETURN = re.compile(r"ret (?:void|(\w+) (\S+))")


def _end(line: str, leaves: bool, number: int) -> End:
    if m := _JUMP.fullmatch(line):
        return Jump(m[1], leaves)
    if m := _BRANCH.fullmatch(line):
        if m[1] in ("true", "false") or m[2] == m[3]:
            return Jump(m[3] if m[1] == "false" else m[2], False)
        return Branch(m[1], m[2], m[3])
    if m := _RETURN.fullmatch(line):
        return Return(m[1] or "", m[2] or "")
    raise unreadable(line, number)


Reader = Callable[[str, str], Line | None]

_ALLOCA = re.compile(r"alloca (\w+)")
_CAST_ON_CHIP = re.compile(r"addrspacecast ptr addrspace\(3\) @(\w+) to ptr")
_ELEMENT = re.compile(r"getelementptr (\w+), ptr (?:addrspace\(\d+\) )?([%@][\w.]+), (i\d+) (\S+)")
_LOAD = re.compile(r"load (?:<(\d+) x (\w+)>|(\w+)), ptr (?:addrspace\(\d+\) )?(\S+?)(?:, align (\d+))?")
_ATOMIC_LOAD = re.compile(r"load atomic (?:volatile )?(i\d+), ptr (\S+) (?:syncscope\(\"\w+\"\) )?monotonic, align \d+")
_STORE = re.compile(r"store (?:<(\d+) x (\w+)>|(\w+)) (\S+), ptr (\S+?)(?:, align (\d+))?")
_ATOMIC_STORE = re.compile(r"store atomic (i\d+) (\S+), ptr (\S+) (?:syncscope\(\"\w+\"\) )?(?:monotonic|release), align \d+")
_UPDATE = re.compile(r"atomicrmw (\w+) ptr (\S+), (\w+) (\S+) (?:syncscope\(\"\w+\"\) )?monotonic")
_SWAP = re.compile(
    r"cmpxchg (weak )?ptr (\S+), (\w+) (\S+), \w+ (\S+) (?:syncscope\(\"\w+\"\) )?(?:monotonic|acquire) monotonic"
)
_PART = re.compile(r"extractvalue \{ \w+, i1 \} (\S+), (0|1)")
_FENCE = re.compile(r"fence (?:syncscope\(\"\w+\"\) )?seq_cst")
_BINARY = re.compile(r"(\w+) (?:nuw |nsw |afn )*(\w+) (\S+), (\S+)")
_NEGATE = re.compile(r"fneg (\w+) (\S+)")
_COMPARE = re.compile(r"([if]cmp) (\w+) (\w+) (\S+), (\S+)")
_SELECT = re.compile(r"select i1 (\S+), (\w+) (\S+), \w+ (\S+)")
_CAST = re.compile(r"(\w+) (?:nuw |nsw )*(\w+) (\S+) to (\w+)")
_INSERT = re.compile(r"insertelement <(\d+) x (\w+)> (\S+), \w+ (\S+), i64 (\d+)")
_EXTRACT = re.compile(r"extractelement <(\d+) x (\w+)> (\S+), i64 (\d+)")
_CALL = re.compile(r"call (?:afn )?(\w+) @([\w.]+)\((.*)\)")
_PHI = re.compile(r"phi (\w+) \[ (\S+), %([\w.]+) \], \[ (\S+), %([\w.]+) \]")


def _load(result: str, what: str) -> Line | None:
    if m := _LOAD.fullmatch(what):
        ty = m[2] or m[3]
        return Load(result, ty, int(m[1] or 1), m[4], int(m[5] or SIZES[ty]))
    if m := _ATOMIC_LOAD.fullmatch(what):
        return AtomicLoad(result, m[1], m[2])
    return None


def _store(result: str, what: str) -> Line | None:
    if m := _STORE.fullmatch(what):
        ty = m[2] or m[3]
        return Store(ty, int(m[1] or 1), m[4], m[5], int(m[6] or SIZES[ty]))
    if m := _ATOMIC_STORE.fullmatch(what):
        return AtomicStore(m[1], m[2], m[3])
    return None


def _call(result: str, what: str) -> Line | None:
    m = _CALL.fullmatch(what)
    if m is None:
        return None
    args = tuple(a.split(" ") for a in m[3].split(", ") if a)
    return CallInst(result, m[1], m[2], tuple(a[0] for a in args), tuple(a[-1] for a in args))


def _form(pattern: re.Pattern[str], make: Callable[[str, re.Match[str]], Line]) -> Reader:
    """A reader of lines of one form."""

    def reader(result: str, what: str) -> Line | None:
        m = pattern.fullmatch(what)
        return m and make(result, m)

    return reader


def _readers() -> dict[str, Reader]:
    """By the first word of an instruction."""
    out: dict[str, Reader] = {
        "alloca": _form(_ALLOCA, lambda r, m: Alloca(r, m[1])),
        "addrspacecast": _form(_CAST_ON_CHIP, lambda r, m: OnChip(r, m[1])),
        "getelementptr": _form(_ELEMENT, lambda r, m: ElementAddress(r, m[1], m[2], m[3], m[4])),
        "load": _load,
        "store": _store,
        "atomicrmw": _form(_UPDATE, lambda r, m: Update(r, m[1], m[2], m[3], m[4])),
        "cmpxchg": _form(_SWAP, lambda r, m: Swap(r, m[2], m[3], m[4], m[5], bool(m[1]))),
        "extractvalue": _form(_PART, lambda r, m: ExtractValue(r, m[1], int(m[2]))),
        "fence": _form(_FENCE, lambda r, m: Fence()),
        "fneg": _form(_NEGATE, lambda r, m: Negate(r, m[1], m[2])),
        "select": _form(_SELECT, lambda r, m: Select(r, m[1], m[2], m[3], m[4])),
        "insertelement": _form(_INSERT, lambda r, m: Insert(r, m[2], int(m[1]), m[3], m[4], int(m[5]))),
        "extractelement": _form(_EXTRACT, lambda r, m: Extract(r, m[2], int(m[1]), m[3], int(m[4]))),
        "call": _call,
    }
    compare = _form(_COMPARE, lambda r, m: Compare(r, m[1], m[2], m[3], m[4], m[5]))
    binary = _form(_BINARY, lambda r, m: Binary(r, m[1], m[2], m[3], m[4]))
    cast = _form(_CAST, lambda r, m: CastInst(r, m[1], m[2], m[3], m[4]))
    out |= dict.fromkeys(("icmp", "fcmp"), compare)
    out |= dict.fromkeys("add sub mul sdiv udiv srem urem and or xor shl lshr ashr fadd fsub fmul fdiv".split(), binary)
    out |= dict.fromkeys("trunc zext sext fptrunc fpext sitofp uitofp bitcast ptrtoint inttoptr".split(), cast)
    return out


_READERS = _readers()


def _finish(function: TextFunction) -> None:
    """Leave out what nothing reaches, and give each ``phi`` a slot."""
    blocks = function.blocks
    seen, left = {ENTRY}, [ENTRY]
    while left:
        end = blocks[left.pop()].end
        for to in successors(end):
            if to not in seen:
                seen.add(to)
                left.append(to)
    for name in [name for name in blocks if name not in seen]:
        del blocks[name]
    for block in blocks.values():
        for join in block.joins:
            _give_slot(blocks, block, join)


def _give_slot(blocks: dict[str, BasicBlock], block: BasicBlock, join: Join) -> None:
    """A value that depends on the path into a block: stored before each jump to it, loaded where it begins. What is stored is no other
    slot's content, so their order does not matter.
    """
    slot, size = f"{join.result}.slot", SIZES[join.type]
    blocks[ENTRY].lines.insert(0, Alloca(slot, join.type))
    blocks[ENTRY].numbers.insert(0, 0)
    for value, source in join.values:
        blocks[source].add(Store(join.type, 1, value, slot, size), 0)
    block.lines.insert(0, Load(join.result, join.type, 1, slot, size))
    block.numbers.insert(0, 0)


def successors(end: End | None) -> tuple[str, ...]:
    """The labels that the end of a block goes to."""
    match end:
        case Jump(to=to):
            return (to,)
        case Branch(yes=yes, no=no):
            return (yes, no)
    return ()
