"""The body of a SPIR-V function that is being written: instructions, values by register, control flow from the events of a text.

Slots are variables of the function; there is no ``OpPhi``. A condition has a merge block of its own, even where several end at one label
of the text. A loop is ``header -> body .. continue -> header``, and nothing else stands in the header or in the block to continue at.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ..text.read import DeviceText
from ..text.structure import BeginIf, BeginLoop, Break, Continue, ControlEvent, Else, EndIf, EndLoop, Return
from .features import CUT_WORD
from .module import SpirvModule
from .opcodes import ALIGNED, BuiltIn, Decoration, Math, Opcode, StorageClass


class SlotPlace(NamedTuple):
    """A variable of the function: its type and id."""

    type: str
    variable: int


class OnChipPlace(NamedTuple):
    """Bytes from the begin of a variable in on-chip memory: the variable's name, and an id of 32 bits."""

    variable: str
    offset: int


class TablePlace(NamedTuple):
    """A value of a constant table: the id of a pointer."""

    pointer: int


Place = SlotPlace | OnChipPlace | TablePlace
"""What an address register stands for, unless it is an address in the device's memory: a 64-bit number."""


@dataclass(slots=True)
class _Selection:
    """A condition that is being written: its merge block, where its other arm's label stands in the code, whether the merge is reached."""

    merge: int
    other: int
    reached: bool = False
    has_else: bool = False


@dataclass(slots=True)
class _LoopConstruct:
    """A loop that is being written: the labels of its header, of where it continues, of what follows it; whether that is reached.
    ``inside``: a variable that says whether the program has left it, for ``Features.cuts_loops``.
    """

    header: int
    onward: int
    follow: int
    left: bool = False
    inside: int = 0


@dataclass(slots=True)
class SpirvBody:
    """Code, values and places of one function.

    Attributes:
        module: it belongs to.
        text: it is made of.
        variables: of the function: instructions at its begin.
        code: the other instructions.
        values: the id of each register.
        places: the registers that stand for a place.
        pairs: the registers of what a compare-and-swap gives.
        vectors: the registers of several values: the id of each.
        globals: variables of the module that it names.
        calls: functions of the text that it calls.
        on_chip: names of the variables in on-chip memory that it uses.
        magnitudes: the registers of absolute values: the id of each number.
        foldable: registers that the driver may find the values of, if that matters (``Features.folds_wrongly``).
    """

    module: SpirvModule
    text: DeviceText
    variables: list[int] = field(default_factory=list)
    code: list[int] = field(default_factory=list)
    values: dict[str, int] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)
    pairs: dict[str, tuple[int, int]] = field(default_factory=dict)
    vectors: dict[str, list[int]] = field(default_factory=dict)
    globals: dict[int, None] = field(default_factory=dict)
    calls: dict[str, None] = field(default_factory=dict)
    on_chip: set[str] = field(default_factory=set)
    magnitudes: dict[str, int] = field(default_factory=dict)
    foldable: frozenset[str] = frozenset()
    _open: list[_Selection | _LoopConstruct] = field(default_factory=list)
    _reached: bool = True

    # -- instructions
    def emit(self, opcode: int, ty: int, *words: int) -> int:
        """An instruction with a result, by the id of its type."""
        self.module.last += 1
        found = self.module.last
        self.code += [(len(words) + 3) << 16 | opcode, ty, found, *words]
        return found

    def op(self, opcode: int, name: str, *words: int) -> int:
        """An instruction with a result of a type of the text."""
        return self.emit(opcode, self.module.type(name), *words)

    def exact(self, opcode: int, name: str, *words: int) -> int:
        """A float operation that is not to be merged with another one."""
        found = self.emit(opcode, self.module.type(name), *words)
        self.module.decorate(found, Decoration.NoContraction)
        return found

    def math(self, number: int, name: str, *words: int) -> int:
        """A function of GLSL.std.450."""
        return self.emit(Opcode.ExtInst, self.module.type(name), self.module.glsl, number, *words)

    def do(self, opcode: int, *words: int) -> None:
        """An instruction without a result."""
        self.code += [(len(words) + 1) << 16 | opcode, *words]

    def operand(self, name: str, text: str) -> int:
        """A register or a literal of a type."""
        return self.values[text] if text[0] == "%" else self.module.constant(name, text)

    def compared(self, name: str, text: str) -> int:
        """The same for a comparison of floats: there an absolute value is an instruction, which costs nothing on GPUs. Elsewhere it is not:
        it may make a subnormal number zero.
        """
        if text in self.magnitudes and name != "half" and text not in self.foldable:
            return self.math(Math.FAbs, name, self.magnitudes[text])
        return self.operand(name, text)

    def named(self, variable: int) -> int:
        """Note that the function names a variable of the module."""
        self.globals[variable] = None
        return variable

    def unknown_zero(self) -> int:
        """An integer that the driver cannot know: the number of blocks along an axis that has one, less 1."""
        m = self.module
        three = self.emit(Opcode.Load, m.vector("i32", 3), self.named(m.built_in(BuiltIn.NumWorkgroups)))
        return self.op(Opcode.ISub, "i32", self.op(Opcode.CompositeExtract, "i32", three, 1), m.number(1))

    def new_variable(self, ty: int, *initial: int) -> int:
        """A variable of the function, of a type by its id."""
        pointer, found = self.module.pointer(StorageClass.Function, ty), self.module.id()
        self.variables += [(4 + len(initial)) << 16 | Opcode.Variable, pointer, found, StorageClass.Function, *initial]
        return found

    # -- control flow
    def label(self, name: int) -> None:
        """Begin a block."""
        self.code += [2 << 16 | Opcode.Label, name]
        self._reached = True

    def _end(self, opcode: int, *words: int) -> None:
        self.do(opcode, *words)
        self._reached = False

    def control(self, event: ControlEvent, following: list[ControlEvent]) -> int:
        """An event that is not ``StraightCode``. ``following``: the next three. Returns how many of those it has written as well."""
        match event:
            case BeginIf():
                return self._if(event, following)
            case Else():
                condition = self._condition()
                condition.has_else = True
                self._meet(condition)
                other = self.code[condition.other] = self.module.id()
                self.label(other)
            case EndIf():
                condition = self._condition()
                self._open.pop()
                self._meet(condition)
                self.label(condition.merge)
                if condition.has_else and not condition.reached:
                    self._end(Opcode.Unreachable)
            case BeginLoop():
                loop, body = _LoopConstruct(self.module.id(), self.module.id(), self.module.id()), self.module.id()
                self._open.append(loop)
                if self.module.features.cuts_loops:
                    loop.inside = self.new_variable(self.module.array("i32", self.module.number(2)))
                    self.do(Opcode.Store, self._inside(loop), self.module.number(1))
                self.do(Opcode.Branch, loop.header)
                self.label(loop.header)
                self.do(Opcode.LoopMerge, loop.follow, loop.onward, 0)
                self.do(Opcode.Branch, body)
                self.label(body)
            case EndLoop():
                self._end_loop()
            case Break() | Continue():
                self._end(Opcode.Branch, self._exit(event))
            case Return(type=ty, value=value):
                if value:
                    self._end(Opcode.ReturnValue, self.operand(ty, value))
                else:
                    self._end(Opcode.Return)
        return 0

    def _if(self, event: BeginIf, following: list[ControlEvent]) -> int:
        condition = self.operand("i1", event.condition)
        match following:
            case [Break() | Continue() as first, EndIf(), Break() | Continue() as second] if (
                not self.module.features.cuts_loops
            ):
                # the end of a loop's body
                ways = [self._exit(first), self._exit(second)]
                self._end(Opcode.BranchConditional, condition, *(ways if event.when else ways[::-1]))
                return 3
        merge, arm = self.module.id(), self.module.id()
        self.do(Opcode.SelectionMerge, merge, 0)
        self.do(Opcode.BranchConditional, condition, *((arm, merge) if event.when else (merge, arm)))
        self._open.append(_Selection(merge, len(self.code) - (1 if event.when else 2)))
        self.label(arm)
        return 0

    def _exit(self, event: Break | Continue) -> int:
        """The label that a jump out of the innermost loop, or to its begin, goes to."""
        loop = next(x for x in reversed(self._open) if isinstance(x, _LoopConstruct))
        if isinstance(event, Continue):
            return loop.onward
        loop.left = True
        if loop.inside:
            self.do(Opcode.Store, self._inside(loop), self.module.number(0))
        return loop.follow

    def _inside(self, loop: _LoopConstruct) -> int:
        """A pointer to what says that the program is inside of a loop. It is the one of two elements that the driver cannot know, or it
        would see that no way out of the loop leaves a 1 there.
        """
        return self.emit(
            Opcode.AccessChain,
            self.module.pointer(StorageClass.Function, self.module.type("i32")),
            loop.inside,
            self.unknown_zero(),
        )

    def _condition(self) -> _Selection:
        found = self._open[-1]
        assert isinstance(found, _Selection)
        return found

    def _meet(self, condition: _Selection) -> None:
        """End an arm."""
        if self._reached:
            self._end(Opcode.Branch, condition.merge)
            condition.reached = True

    def _end_loop(self) -> None:
        loop = self._open.pop()
        assert isinstance(loop, _LoopConstruct) and not self._reached
        self.label(loop.onward)
        self.do(Opcode.Branch, loop.header)
        self.label(loop.follow)
        if loop.inside:
            self._tell(loop)
        if not loop.left:
            self._end(Opcode.Unreachable)

    def _tell(self, loop: _LoopConstruct) -> None:
        """Behind a loop: tell the host if the driver has ended it."""
        m, arm, merge = self.module, self.module.id(), self.module.id()
        inside = self.op(Opcode.INotEqual, "i1", self.op(Opcode.Load, "i32", self._inside(loop)), m.number(0))
        self.do(Opcode.SelectionMerge, merge, 0)
        self.do(Opcode.BranchConditional, inside, arm, merge)
        self.label(arm)
        word = self.emit(Opcode.ConvertUToPtr, m.in_memory("i32"), m.number(CUT_WORD, "i64"))
        self.do(Opcode.Store, word, m.number(1), ALIGNED, 4)
        self.do(Opcode.Branch, merge)
        self.label(merge)

    def finish(self, head: list[int]) -> list[int]:
        """The whole function behind its head, which ends with the label of its first block."""
        assert not self._open and not self._reached
        return self.whole(head)

    def whole(self, head: list[int]) -> list[int]:
        """The same of a function without control flow, whose end has been written."""
        return [*head, *self.variables, *self.code, 1 << 16 | Opcode.FunctionEnd]
