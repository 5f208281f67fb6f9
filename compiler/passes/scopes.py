"""Export: a value that is used outside the block that defines it travels through a local.

The reverse transform reads values of the forward half of an ``if`` arm in the backward half of the same arm. Between the two no other
instance of the block runs, so a local set right after the definition holds the right value at the use.
"""

from __future__ import annotations

from ..ir.nodes import Block, Const, If, Local, LocalStore, Loop, Op, Operand
from ..ir.walk import operands
from .clone import replace_operands


def export_values(block: Block, outside: set[Op]) -> None:
    """Repair the scopes of a task body in place. ``outside``: values visible everywhere (axis indices)."""
    _Exporter(block, outside)


class _Exporter:
    def __init__(self, block: Block, outside: set[Op]) -> None:
        self._outside = outside
        self._visible: set[Op] = set()
        self._exported: dict[Op, Local] = {}
        self._find(block)
        if self._exported:
            self._visible = set()
            self._rewrite(block)
            block[:0] = [LocalStore(v, Const(_zero(v), v.dtype)) for v in self._exported.values()]

    def _is_local_value(self, x: Operand) -> bool:
        return isinstance(x, Op) and x.op != "param" and x not in self._outside

    def _find(self, block: Block) -> None:
        """Which values are used where they are not visible."""
        mine: list[Op] = []
        for s in block:
            for x in operands(s):
                if isinstance(x, Op) and self._is_local_value(x) and x not in self._visible and x not in self._exported:
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
                if isinstance(x, Op) and x in self._exported and x not in self._visible and x not in swap:
                    local = self._exported[x]
                    swap[x] = Op("load", (), local.dtype, local)
                    out.append(swap[x])
            if swap:
                replace_operands(s, lambda x, swap=swap: swap.get(x, x) if isinstance(x, Op) else x)
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
