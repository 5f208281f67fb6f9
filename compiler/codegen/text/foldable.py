"""The registers of a function whose values a compiler can find without running it: those that depend on literals alone."""

from __future__ import annotations

from .lines import (
    SIZES,
    Alloca,
    Binary,
    CallInst,
    CastInst,
    Compare,
    ElementAddress,
    Extract,
    Insert,
    Line,
    Load,
    Negate,
    Select,
    Store,
)
from .read import TextFunction

_ABSORBING = frozenset("and or mul sdiv udiv srem urem shl lshr ashr".split())
"""Operations of integers that some value of one operand decides alone, as 0 does for ``and``."""
_FOLDED_WITH_ITSELF = frozenset("sub xor".split())
_Pure = ElementAddress | Binary | Negate | Compare | Select | CastInst | Insert | Extract | CallInst


def foldable(function: TextFunction) -> frozenset[str]:
    """The registers whose values may be constants after inlining, unrolling, the removal of slots and the forwarding of stores to loads.
    Errs on the side of more registers.

    A multiplication or a division of floats counts only if both operands are literals: the translator hides the others from the compiler.
    """
    lines = [line for block in function.blocks.values() for line in block.lines]
    slots = {x.result for x in lines if isinstance(x, Alloca)}
    known = _Known()
    while True:
        before = len(known.registers) + len(known.stored)
        for x in lines:
            match x:
                case Store() if known.holds(x.value):
                    if x.address in slots:
                        known.registers.add(x.address)
                    else:
                        known.stored.add(SIZES[x.type])
                case Load() if x.address in known.registers or (x.address not in slots and SIZES[x.type] in known.stored):
                    known.registers.add(x.result)
                case _ if isinstance(x, _Pure) and _is_foldable(x, known):
                    known.registers.add(x.result)
        if len(known.registers) + len(known.stored) == before:
            return frozenset(known.registers)


class _Known:
    """What was found so far: registers, slots among them, and how wide the constants are that are stored into memory."""

    def __init__(self) -> None:
        self.registers, self.stored = set[str](), set[int]()

    def holds(self, operand: str) -> bool:
        """Whether an operand is a literal, or such a register."""
        return operand[0] != "%" or operand in self.registers


def _is_foldable(x: Line, known: _Known) -> bool:
    """Whether the value of a line without effects depends on such operands alone."""
    match x:
        case ElementAddress():
            return x.base[0] == "@" and known.holds(x.offset)
        case Binary(op="fmul" | "fdiv"):
            return x.a[0] != "%" and x.b[0] != "%"
        case Binary():
            alone = x.op in _ABSORBING and any(y in known.registers or _decides(y) for y in (x.a, x.b))
            return alone or (x.op in _FOLDED_WITH_ITSELF and x.a == x.b) or (known.holds(x.a) and known.holds(x.b))
        case Compare():
            return x.a == x.b or (known.holds(x.a) and known.holds(x.b))
        case Select():
            a, b = known.holds(x.a), known.holds(x.b)
            return (a and b) or (known.holds(x.condition) and (a or b))
        case Negate() | CastInst():
            return known.holds(x.value)
        case Insert():
            return known.holds(x.value) and known.holds(x.vector)
        case Extract():
            return known.holds(x.vector)
        case CallInst():
            return bool(x.result and x.args) and all(map(known.holds, x.args))
    return False


def _decides(literal: str) -> bool:
    return literal in ("0", "1", "-1", "true", "false", "zeroinitializer")
