"""The part of a loop's bounds that is known before a launch. A value known only at run time is left out where another value bounds it."""

from __future__ import annotations

from dataclasses import replace

from ...ir.nodes import Op
from .sizeexpr import Bin, Cast, Index, Pick, Range, SizeExpr, UnknownExpr, inner


class Unknowable(Exception):
    """A bound is known only at run time. The text says why."""


def known_nest(loop: Range, nest: tuple[Range, ...]) -> tuple[Range, tuple[Range, ...]]:
    """A loop that has no fewer iterations, and the ranges that its bounds use, each behind those that it uses itself.

    Raises:
        Unknowable: there is none that can be evaluated.
    """
    work = _Nest({r.index: r for r in nest})
    return work.range(loop), tuple(work.used.values())


class _Nest:
    def __init__(self, ranges: dict[Op, Range]) -> None:
        self._ranges = ranges
        self.used: dict[Op, Range] = {}
        self._visited: set[int] = set()

    def range(self, r: Range) -> Range:
        """A range with all the values of ``r``."""
        if r.end is None:
            raise Unknowable("inside a while loop")
        up = r.step > 0
        begin, end = self._bound(r.begin, not up), self._bound(r.end, up)
        if begin is not r.begin and abs(r.step) != 1:
            return Range(r.index, begin, end, 1 if up else -1, r.loc)
        return r if begin is r.begin and end is r.end else replace(r, begin=begin, end=end)

    def _bound(self, e: SizeExpr, up: bool) -> SizeExpr:
        """An expression that is never below ``e`` (``up``), or never above it."""
        try:
            return self._exact(e)
        except Unknowable:
            if isinstance(e, Bin) and e.op == ("min" if up else "max"):
                sides = [x for x in (self._bound_or_none(a, up) for a in e.args) if x is not None]
                if sides:
                    return sides[0] if len(sides) == 1 else Bin(e.op, tuple(sides), e.dtype)
            elif isinstance(e, Bin) and (e.op in ("select", "min", "max")):
                sides = [self._bound(a, up) for a in e.args[-2:]]
                return Bin("max" if up else "min", tuple(sides), e.dtype)
            elif isinstance(e, Cast) and e.dtype.holds(e.arg.dtype):
                return Cast(self._bound(e.arg, up), e.dtype)
            raise

    def _bound_or_none(self, e: SizeExpr, up: bool) -> SizeExpr | None:
        try:
            return self._bound(e, up)
        except Unknowable:
            return None

    def _exact(self, e: SizeExpr) -> SizeExpr:
        """``e`` itself; what it uses is noted.

        Raises:
            Unknowable: some part of it cannot be evaluated.
        """
        if id(e) not in self._visited:
            if isinstance(e, UnknownExpr):
                raise Unknowable(e.why)
            if isinstance(e, Index):
                self._use(e.op)
            for x in inner(e):
                self._exact(x)
            if isinstance(e, Pick):
                self.used.setdefault(e.range.index, e.range)
            self._visited.add(id(e))
        return e

    def _use(self, op: Op) -> None:
        if op in self.used:
            return
        r = self._ranges.get(op)
        if r is None:
            raise Unknowable("the index of another loop")
        found = self.range(r)
        self.used.setdefault(op, found)
