"""A function of the text as statements of Metal Shading Language."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..text.lines import (
    SIZES,
    Alloca,
    AtomicLoad,
    AtomicStore,
    Binary,
    CallInst,
    CastInst,
    Compare,
    ElementAddress,
    Extract,
    ExtractValue,
    Fence,
    Insert,
    Line,
    Load,
    Negate,
    OnChip,
    Select,
    Store,
    Swap,
    Update,
)
from ..text.structure import BeginIf, BeginLoop, Break, Continue, ControlEvent, Else, EndIf, EndLoop, Return, StraightCode
from . import accesses, expressions
from .accesses import Address
from .analysis import RegisterFacts, analyse, is_pure
from .values import FLOATS, TYPES, literal, word_of

LONGEST = 120
"""Characters of an expression that stands in another one, at most."""

NUMBERS = {"qd.thread": "qt", "qd.block": "qb", "qd.blocks": "qg", "qd.threads": "ql"}
_BARRIER = "threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);"
_FENCE = "atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);"


@dataclass(slots=True)
class ModuleAddresses:
    """Where things of a module lie: the first byte of each variable in on-chip memory; what a call of one of its functions gives along."""

    on_chip: dict[str, str]
    extras: dict[str, tuple[str, ...]]


@dataclass(slots=True)
class MslBody:
    """The statements of one function.

    Attributes:
        places: see ``ModuleAddresses``.
        lines: the statements, indented.
        declared: the variables at the top, by their types.
        helpers: functions of ``accesses`` that are used: the name, the address space, the type.
    """

    places: ModuleAddresses
    lines: list[str] = field(default_factory=list)
    declared: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    helpers: set[tuple[str, str, str]] = field(default_factory=set)
    _facts: RegisterFacts = field(default_factory=RegisterFacts)
    _depth: int = 1
    _text: dict[str, str] = field(default_factory=dict)  # of what stands in expressions
    _on_chip: set[str] = field(default_factory=set)
    _tables: dict[str, str] = field(default_factory=dict)
    _vectors: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _swaps: dict[str, Swap] = field(default_factory=dict)

    def run(self, events: Sequence[ControlEvent]) -> None:
        """Write a function."""
        self._facts = analyse(events)
        for slot, ty in self._facts.slots.items():
            self.declared[TYPES[ty]].append(name_of(slot))
        k = 0
        while k < len(events):
            if _is_turn(events[k : k + 5]):
                last = events[k]
                assert isinstance(last, BeginIf)
                self.put(f"if {self._condition(last.condition, not last.when)} break;")
                k += 4
                continue
            self._event(events[k], events[k + 1] if k + 1 < len(events) else None)
            k += 1

    # ---- statements
    def put(self, text: str) -> None:
        """A statement."""
        self.lines.append("  " * self._depth + text)

    def _event(self, event: ControlEvent, following: ControlEvent | None) -> None:
        match event:
            case StraightCode(lines=lines):
                for line in lines:
                    self._line(line)
            case BeginIf(condition=condition, when=when):
                self.put(f"if {self._condition(condition, when)} {{")
                self._depth += 1
            case Else():
                self._depth -= 1
                self.put("} else {")
                self._depth += 1
            case EndIf() | EndLoop():
                self._depth -= 1
                self.put("}")
            case BeginLoop():
                self.put("for (;;) {")
                self._depth += 1
            case Break():
                self.put("break;")
            case Continue():
                if not isinstance(following, EndLoop):
                    self.put("continue;")
            case Return(type=ty, value=value):
                if value:
                    self.put(f"return {self.value(ty, value)};")
                elif self._depth > 1 or following is not None:
                    self.put("return;")

    def _condition(self, word: str, when: bool) -> str:
        text = self.value("i1", word)
        if not when:
            return f"(!{text})"
        return text if text[0] == "(" else f"({text})"

    # ---- values
    def value(self, ty: str, word: str) -> str:
        """An operand as an expression."""
        if word.startswith("%"):
            return self._text.get(word) or name_of(word)
        return literal(ty, word)

    def _set(self, line: Line, result: str, kind: str, text: str, pure: bool = False) -> None:
        """A value that has been computed."""
        if pure and result in self._facts.inline and len(text) <= LONGEST:
            self._text[result] = text
        elif result in self._facts.top:
            self.declared[kind].append(name_of(result))
            self.put(f"{name_of(result)} = {text};")
        elif self._facts.uses[result]:
            self.put(f"const {kind} {name_of(result)} = {text};")
        elif not is_pure(line) and not isinstance(line, (Load, Binary, Negate, CastInst, Insert)):
            self.put(f"{text};")

    def address(self, word: str) -> Address:
        """The address in a register."""
        return Address(self.value("ptr", word), word in self._on_chip)

    # ---- instructions
    def _line(self, line: Line) -> None:
        match line:
            case Alloca():
                pass
            case OnChip(result=result, variable=variable):
                self._on_chip.add(result)
                self._text[result] = self.places.on_chip[variable]
            case ElementAddress():
                self._element(line)
            case Load():
                self._load(line)
            case Store():
                self._store(line)
            case Insert() | Extract():
                self._vector(line)
            case Binary(result=result, type=ty, a=a, b=b):
                self._set(
                    line, result, TYPES[ty], expressions.binary(line, self.value(ty, a), self.value(ty, b)), is_pure(line)
                )
            case Negate(result=result, type=ty, value=value):
                self._set(line, result, TYPES[ty], f"-{self.value(ty, value)}")
            case Compare(result=result, type=ty, a=a, b=b):
                self._set(line, result, "bool", expressions.compare(line, self.value(ty, a), self.value(ty, b)), True)
            case Select(result=result, condition=condition, type=ty, a=a, b=b):
                text = f"({self.value('i1', condition)} ? {self.value(ty, a)} : {self.value(ty, b)})"
                self._set(line, result, TYPES[ty], text, True)
            case CastInst(result=result, source=source, value=value, type=ty):
                self._set(line, result, TYPES[ty], expressions.cast(line, self.value(source, value)), is_pure(line))
            case CallInst():
                self._call(line)
            case _:
                self._atomic(line)

    def _atomic(self, line: Line) -> None:
        match line:
            case AtomicLoad(result=result, type=ty, address=address):
                self._set(line, result, TYPES[ty], accesses.load(ty, self.address(address)))
            case AtomicStore(type=ty, value=value, address=address):
                self.put(f"{accesses.store(ty, self.address(address), self.value(ty, value))};")
            case Update(result=result, type=ty, address=address, value=value):
                at = self.address(address)
                if at.on_chip and ty in FLOATS:
                    self.helpers.add(("add", at.space, ty))
                self._set(line, result, TYPES[ty], accesses.update(line, at, self.value(ty, value)))
            case Swap():
                self._swap(line)
            case ExtractValue(result=result, pair=pair, which=which):
                ty, name = self._swaps[pair].type, name_of(pair)
                if which:
                    self._set(line, result, "bool", f"{name}_done")
                else:
                    seen = f"as_type<{TYPES[ty]}>({name}_seen)" if ty in FLOATS else f"{name}_seen"
                    self._set(line, result, TYPES[ty], seen)
            case Fence():
                self.put(_FENCE)
            case _:
                raise expressions.unsupported(f"the instruction {type(line).__name__}")

    def _swap(self, line: Swap) -> None:
        at, name = self.address(line.address), name_of(line.result)
        expected, new = self.value(line.type, line.expected), self.value(line.type, line.new)
        word = word_of(line.type)
        if line.type in FLOATS:
            expected, new = f"as_type<{word}>({expected})", f"as_type<{word}>({new})"
        if not line.weak:
            self.helpers.add(("swap", at.space, line.type))
        self._swaps[line.result] = line
        self.declared[word].append(f"{name}_seen")
        self.declared["bool"].append(f"{name}_done")
        self.put(f"{name}_seen = {expected};")
        self.put(f"{name}_done = {accesses.swap(line, at, f'{name}_seen', new)};")

    # ---- memory
    def _element(self, line: ElementAddress) -> None:
        size, narrow = SIZES[line.type], line.index_type == "i32"
        index = self.value(line.index_type, line.offset)
        if line.base.startswith("@"):
            self._tables[line.result] = line.base[1:]
            self._set(line, line.result, TYPES[line.index_type], index, True)
            return
        chip = line.base in self._on_chip
        if chip:
            self._on_chip.add(line.result)
            index = index if narrow else f"uint({index})"
        elif narrow:
            index = f"ulong(long(int({index})))"
        suffix = "u" if chip else "ul"
        by = _times(line.offset, size, suffix) or (f"{index} * {size}{suffix}" if size > 1 else index)
        self._set(line, line.result, "uint" if chip else "ulong", f"({self.value('ptr', line.base)} + {by})", True)

    def _load(self, line: Load) -> None:
        address, ty = line.address, line.type
        if address in self._facts.slots:
            self._set(line, line.result, TYPES[ty], name_of(address), True)
        elif address in self._tables:
            self._set(line, line.result, TYPES[ty], f"{self._tables[address]}[{self.value('i32', address)}]")
        elif line.many == 1:
            self._set(line, line.result, TYPES[ty], accesses.read(ty, self.address(address), line.align))
        else:
            self._load_many(line)

    def _load_many(self, line: Load) -> None:
        parts: list[str] = []
        for k, (count, kind) in enumerate(accesses.pieces(line.type, line.many, line.align)):
            name = f"{name_of(line.result)}_{k}"
            at = self.address(line.address).shifted(len(parts) * SIZES[line.type])
            self._name(line.result, name, kind, at.place(kind) if count > 1 else accesses.read(line.type, at, line.align))
            parts += [name] if count == 1 else [f"{name}.{part}" for part in accesses.PARTS[:count]]
        self._vectors[line.result] = tuple(parts)

    def _name(self, result: str, name: str, kind: str, text: str) -> None:
        """A variable for a part of a value of several elements."""
        if result in self._facts.top:
            self.declared[kind].append(name)
            self.put(f"{name} = {text};")
        else:
            self.put(f"const {kind} {name} = {text};")

    def _store(self, line: Store) -> None:
        if line.address in self._facts.slots:
            self.put(f"{name_of(line.address)} = {self.value(line.type, line.value)};")
            return
        at, ty = self.address(line.address), line.type
        if line.many == 1:
            for text in accesses.write(ty, at, self.value(ty, line.value), line.align):
                self.put(text)
            return
        values, done = self._vectors[line.value], 0
        for count, kind in accesses.pieces(ty, line.many, line.align):
            here = at.shifted(done * SIZES[ty])
            if count > 1:
                self.put(f"{here.place(kind)} = {kind}({', '.join(values[done : done + count])});")
            else:
                for text in accesses.write(ty, here, values[done], line.align):
                    self.put(text)
            done += count

    def _vector(self, line: Insert | Extract) -> None:
        if isinstance(line, Extract):
            self._set(line, line.result, TYPES[line.type], self._vectors[line.vector][line.place], True)
            return
        before = self._vectors.get(line.vector) or ("",) * line.many
        value = self.value(line.type, line.value)
        if not value.replace(".", "").replace("_", "").isalnum():  # what it is made of may change until the whole is stored
            name = f"{name_of(line.result)}_{line.place}"
            self._name(line.result, name, TYPES[line.type], value)
            value = name
        self._vectors[line.result] = (*before[: line.place], value, *before[line.place + 1 :])

    # ---- calls
    def _call(self, line: CallInst) -> None:
        args = [self.value(ty, word) for ty, word in zip(line.types, line.args, strict=True)]
        if line.name in NUMBERS:
            self._text[line.result] = NUMBERS[line.name]
        elif line.name == "qd.barrier":
            self.put(_BARRIER)
        elif line.name.startswith("llvm."):
            self._set(line, line.result, TYPES[line.type], expressions.intrinsic(line, args), is_pure(line))
        else:
            text = f"{line.name}({', '.join([*args, *self.places.extras[line.name]])})"
            if line.type == "void":
                self.put(f"{text};")
            else:
                self._set(line, line.result, TYPES[line.type], text)


def _is_turn(events: Sequence[ControlEvent]) -> bool:
    """Whether a loop ends here by a condition: it goes on where that holds, and is left where not."""
    kinds = [type(e) for e in events]
    return kinds == [BeginIf, Continue, EndIf, Break, EndLoop]


def _times(word: str, size: int, suffix: str) -> str:
    """The bytes of a literal number of elements; "" for another number."""
    if not word.lstrip("-").isdigit():
        return ""
    return f"{int(word) * size & (0xFFFFFFFF if suffix == 'u' else 0xFFFFFFFFFFFFFFFF)}{suffix}"


def name_of(register: str) -> str:
    """A register as a name of the language."""
    return "v" + register[1:].replace(".", "_")
