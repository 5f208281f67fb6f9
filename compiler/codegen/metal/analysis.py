"""Where the values of a function are defined and used: which are declared where they are computed, and which stand in an expression.

The text has no scopes, the language has: a value that is used outside of the block of its definition is declared at the top. What is used
once, in the same block, and cannot change in between is no variable at all. Results of float arithmetic always are: no compiler may fuse
two operations that stand in two statements.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..text.lines import Alloca, Binary, CallInst, CastInst, Compare, ElementAddress, Extract, Line, Load, Select, Store
from ..text.structure import BeginIf, BeginLoop, ControlEvent, Else, EndIf, EndLoop, Return, StraightCode
from .values import FLOATS

_PURE = (CastInst, Compare, ElementAddress, Extract, Select)


@dataclass(slots=True)
class RegisterFacts:
    """Facts about the registers of a function.

    Attributes:
        uses: how often each is read.
        top: those that are declared at the top.
        inline: those that stand in the expression that uses them.
        slots: the type of each variable.
    """

    uses: Counter[str] = field(default_factory=Counter)
    top: set[str] = field(default_factory=set)
    inline: set[str] = field(default_factory=set)
    slots: dict[str, str] = field(default_factory=dict)


def operands(line: Line) -> list[str]:
    """The registers that an instruction reads."""
    fields = zip(line._fields, line)
    words: list[str] = []
    for name, value in fields:
        if name == "args":
            words += value  # type: ignore[arg-type]
        elif name not in ("result", "type", "types", "op", "order", "variable", "source", "name") and isinstance(value, str):
            words.append(value)
    return [w for w in words if w.startswith("%")]


def is_pure(line: Line) -> bool:
    """Whether an instruction gives the same wherever it stands, and computes no float."""
    if isinstance(line, _PURE):
        return not (isinstance(line, CastInst) and line.type in FLOATS and line.op != "bitcast")
    if isinstance(line, Binary):
        return line.type not in FLOATS
    return isinstance(line, CallInst) and line.name.startswith("llvm.") and line.type not in FLOATS


class _Scopes:
    """The blocks of a function as a tree."""

    def __init__(self) -> None:
        self.parents: list[int] = [-1]
        self.here = 0

    def enter(self) -> None:
        self.parents.append(self.here)
        self.here = len(self.parents) - 1

    def leave(self) -> None:
        self.here = self.parents[self.here]

    def contains(self, outer: int, inner: int) -> bool:
        """Numbers of outer blocks are smaller."""
        while inner > outer:
            inner = self.parents[inner]
        return inner == outer


class _Walk:
    """Goes through the events of a function once, and notes where things happen: the numbers of lines in order, and blocks."""

    def __init__(self) -> None:
        self.scopes, self.facts = _Scopes(), RegisterFacts()
        self.defined: dict[str, tuple[int, Line]] = {}
        self.used_in: dict[str, set[int]] = {}
        self.used_by: dict[str, tuple[int, str]] = {}  # the last use: its number, and the result that it computes
        self.stores: dict[str, list[int]] = {}  # of slots
        self.at_of: dict[str, int] = {}
        self.at = 0

    def use(self, word: str, by: str = "") -> None:
        if word.startswith("%"):
            self.facts.uses[word] += 1
            self.used_in.setdefault(word, set()).add(self.scopes.here)
            self.used_by[word] = self.at, by

    def line(self, line: Line) -> None:
        self.at += 1
        result = getattr(line, "result", "")
        for word in operands(line):
            self.use(word, result)
        if isinstance(line, Alloca):
            self.facts.slots[line.result] = line.type
        elif result:
            self.defined[result] = self.scopes.here, line
            self.at_of[result] = self.at
        if isinstance(line, Store):
            self.stores.setdefault(line.address, []).append(self.at)

    def run(self, events: Sequence[ControlEvent]) -> None:
        scopes = self.scopes
        for event in events:
            match event:
                case StraightCode(lines=lines):
                    for line in lines:
                        self.line(line)
                case BeginIf(condition=condition):
                    self.at += 1
                    self.use(condition)
                    scopes.enter()
                case Else():
                    scopes.leave()
                    scopes.enter()
                case BeginLoop():
                    scopes.enter()
                case EndIf() | EndLoop():
                    scopes.leave()
                case Return(value=value):
                    self.at += 1
                    self.use(value)
                case _:
                    pass

    def decide(self) -> None:
        """Which values stand in expressions, and which are declared at the top."""
        facts, computed_at = self.facts, dict[str, int]()
        for name, (scope, line) in reversed(self.defined.items()):
            inner = self.used_in.get(name, set())
            at, by = self.used_by.get(name, (0, ""))
            at = computed_at.get(by, at)  # where the expression stands that uses it
            computed_at[name] = self.at_of[name]
            if facts.uses[name] == 1 and inner == {scope} and (is_pure(line) or self._unchanged(name, line, at)):
                facts.inline.add(name)
                computed_at[name] = at
            elif not all(self.scopes.contains(scope, x) for x in inner):
                facts.top.add(name)

    def _unchanged(self, name: str, line: Line, until: int) -> bool:
        """Whether an instruction reads a slot that nothing writes before its value is used."""
        if not isinstance(line, Load) or line.address not in self.facts.slots:
            return False
        begin = self.at_of[name]
        return not any(begin < at < until for at in self.stores.get(line.address, ()))


def analyse(events: Sequence[ControlEvent]) -> RegisterFacts:
    """The facts about a function."""
    walk = _Walk()
    walk.run(events)
    walk.decide()
    return walk.facts
