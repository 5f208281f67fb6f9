"""Export: a value that is used outside the block that defines it travels through a local.

The reverse transform reads values of the forward half of an ``if`` arm in the backward half of the same arm. Between the two no other
instance of the block runs, so a local set right after the definition holds the right value at the use.

An integer that one operation gives of values which are visible at the use, as the index ``k + 1``, is computed again there: a local that is
set in an arm of an ``if`` differs between SIMD lanes, and what lies at such an index is gathered.
"""

from __future__ import annotations

from ..ir.nodes import Block, Const, If, Local, LocalStore, Loop, Op, Operand
from ..ir.walk import operands
from .clone import substitute

_CHEAP = frozenset(("add", "sub", "mul", "neg", "cast"))


def export_values(block: Block, outside: set[Op]) -> None:
    """Repair the scopes of a task body in place. ``outside``: values visible everywhere (axis indices)."""
    _Exporter(block, outside)


class _Exporter:
    def __init__(self, block: Block, outside: set[Op]) -> None:
        self._outside = outside
        self._visible: set[Op] = set()
        self._exported: dict[Op, Local] = {}
        self._repeated: dict[Op, tuple[Operand, ...]] = {}
        self._find(block)
        self._visible = set()
        self._rewrite(block)
        if self._exported:
            block[:0] = [LocalStore(v, Const(_zero(v), v.dtype)) for v in self._exported.values()]

    def _is_local_value(self, x: Operand) -> bool:
        return isinstance(x, Op) and x.op != "param" and x not in self._outside

    def _repeats(self, x: Op) -> bool:
        """Whether a value can be recomputed from visible values."""
        if x.op not in _CHEAP or not x.dtype.is_int or not all(a.dtype.is_int for a in x.args):
            return False
        return all(not isinstance(a, Op) or not self._is_local_value(a) or a in self._visible for a in x.args)

    def _find(self, block: Block) -> None:
        """Which values are used where they are not visible."""
        mine: list[Op] = []
        for s in block:
            for x in operands(s):
                if isinstance(x, Op) and x not in self._visible and self._is_local_value(x) and x not in self._exported:
                    if self._repeats(x):
                        self._repeated[x] = x.args  # those of its definition may become loads
                    else:
                        self._exported[x] = Local(x.dtype, "out")
            if isinstance(s, Op):
                self._visible.add(s)
                mine.append(s)
            elif isinstance(s, If):
                self._find(s.then)
                self._find(s.orelse)
            elif isinstance(s, Loop):
                self._visible.add(s.index)
                self._find(s.body)
                self._visible.discard(s.index)
        self._visible.difference_update(mine)

    def _rewrite(self, block: Block) -> None:
        """Store each exported value after its definition; load it in front of each use that cannot see it."""
        out: Block = []
        mine: list[Op] = []
        for s in block:
            swap: dict[Op, Op] = {}
            for x in operands(s):
                if not isinstance(x, Op) or x in self._visible or not self._is_local_value(x) or x in swap:
                    continue
                if x in self._exported:
                    local = self._exported[x]
                    swap[x] = Op("load", (), local.dtype, local)
                else:
                    swap[x] = Op(x.op, self._repeated[x], x.dtype, x.attr, x.loc)
                out.append(swap[x])
            substitute(s, swap)
            out.append(s)
            if isinstance(s, Op):
                self._visible.add(s)
                mine.append(s)
                if s in self._exported:
                    out.append(LocalStore(self._exported[s], s))
            elif isinstance(s, If):
                self._rewrite(s.then)
                self._rewrite(s.orelse)
            elif isinstance(s, Loop):
                self._visible.add(s.index)
                if s.index in self._exported:
                    s.body.insert(0, LocalStore(self._exported[s.index], s.index))
                self._rewrite(s.body)
                self._visible.discard(s.index)
        self._visible.difference_update(mine)
        block[:] = out


def _zero(v: Local) -> int | float | bool:
    return 0.0 if v.dtype.is_real else (False if v.dtype.kind == "b" else 0)
