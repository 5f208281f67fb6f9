"""When the value of an operation matters: always, or in one arm of a ``select`` or an ``if`` only.

``select`` computes both of its arms, so that ``qd.select(x > 0, qd.log(x), 0)`` makes a NaN that is never used. The rules of reverse mode
are full of these. A *way* in which a value is demanded is a set of conditions with the truth values that they must have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ...ir.nodes import Block, If, Loop, Op, Operand, Stmt
from ...ir.ops import TABLE
from ...ir.walk import operands

Way = frozenset[tuple[Operand, bool]]
MOST_WAYS, MOST_CONDITIONS = 4, 8
"""Values that are demanded in more ways, or under more conditions, count as always demanded."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The ways in which a value is demanded; the conditions are all known before the statement at ``position`` of its block."""

    ways: frozenset[Way]
    position: int

    @property
    def always(self) -> bool:
        """Whether it is demanded whatever the conditions are."""
        return frozenset() in self.ways


class Demands(NamedTuple):
    """The demand for each value of a task; one that is missing is demanded by nothing."""

    of: dict[Op, Demand]


def demands_of(block: Block) -> Demands:
    """The demands for the values of a block and of the blocks inside it, each seen from its own block."""
    out = Demands({})
    _Block(block, out).run()
    return out


_ALWAYS = Demand(frozenset((frozenset(),)), 0)
_TESTS = frozenset(("isnan", "isinf"))


class _Block:
    """Walk one block from its end."""

    def __init__(self, block: Block, out: Demands) -> None:
        self._block, self._out = block, out
        self._own: set[Op] = set()
        self._reads: set[Op] = set()

    def run(self) -> set[Op]:
        """Note the demands; returns the values of other blocks that this one reads."""
        self._own = {s for s in self._block if isinstance(s, Op)}
        for position in reversed(range(len(self._block))):
            self._stmt(self._block[position], position)
        return self._reads - self._own

    def _stmt(self, s: Stmt, position: int) -> None:
        if isinstance(s, If):
            self._give(s.cond, _ALWAYS)
            then, other = _Block(s.then, self._out).run(), _Block(s.orelse, self._out).run()
            for x in then | other:
                self._give(x, _ALWAYS if x in then and x in other else _only(_ALWAYS, s.cond, x in then, position))
            return
        if isinstance(s, Loop):
            for x in (*operands(s), *_Block(s.body, self._out).run()):
                self._give(x, _ALWAYS)
            return
        if not (isinstance(s, Op) and TABLE[s.op].pure):
            for x in operands(s):
                self._give(x, _ALWAYS)
            if isinstance(s, Op) and s.op == "atomic":  # its effect is what matters
                self._out.of[s] = _ALWAYS
            return
        demand = self._out.of.get(s)
        if demand is None or s.op in _TESTS or (s.op in ("ne", "eq") and s.args[0] is s.args[1]):
            return
        if s.op == "select":
            cond, x, y = s.args
            self._give(cond, demand)
            for arm, truth in ((x, True), (y, False)):
                self._give(arm, demand if x is y else _only(demand, cond, truth, position))
            return
        for x in s.args:
            self._give(x, demand)

    def _give(self, x: Operand, demand: Demand) -> None:
        if not isinstance(x, Op):
            return
        if x not in self._own:
            self._reads.add(x)
            return
        before = self._out.of.get(x)
        self._out.of[x] = demand if before is None else _either(before, demand)


def _only(demand: Demand, cond: Operand, truth: bool, position: int) -> Demand:
    """Demanded in one arm of a select or an if."""
    ways = frozenset(way | {(cond, truth)} for way in demand.ways)
    if any(len(way) > MOST_CONDITIONS for way in ways):
        return _ALWAYS
    return Demand(ways, position if demand.always else max(position, demand.position))


def _either(x: Demand, y: Demand) -> Demand:
    ways = x.ways | y.ways
    if frozenset() in ways or len(ways) > MOST_WAYS:
        return _ALWAYS
    return Demand(ways, max(x.position, y.position))
