"""The builder of the front end: an ``ir.builder.StatementBuilder`` that also knows the kernel's default types and checks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ...errors import QdrunSyntaxError
from ...ir.builder import StatementBuilder
from ...ir.nodes import Block, Loop, Operand, Place
from ...ir.types import DType, f32, i32

if TYPE_CHECKING:
    from ..values.budget import PoolRef


@dataclass(eq=False)
class VisitedCell:
    """The cell that a loop over a sparse field is at: it is active, so a store to it needs no activation.

    Attributes:
        flags: where its level keeps the activity.
        extents: the shape that ``index`` is an index of.
        index: the loop's indices.
        relied: the inner loops in which a store relied on it.
    """

    flags: Place
    extents: tuple[int, ...]
    index: tuple[Operand, ...]
    relied: set[Loop] = field(default_factory=set)


class FrontBuilder(StatementBuilder):
    """The builder that every lowering function of the front end gets as ``b``.

    Attributes:
        default_fp: the type of a float literal.
        default_ip: the type of an integer literal.
        debug: whether the user's asserts are compiled.
        check_bounds: whether every index is checked at run time.
        overflow: what an integer operation does whose result does not fit its type.
        pools: of the levels with a budget whose activity the kernel changes, by their flags.
        nan_check: whether operations that compute a NaN or an infinity are detected, including those on literals.
    """

    def __init__(
        self,
        block: Block,
        default_fp: DType = f32,
        default_ip: DType = i32,
        debug: bool = False,
        check_bounds: bool = False,
        overflow: Literal["wrap", "report", "raise"] = "wrap",
        nan_check: bool = False,
    ) -> None:
        super().__init__(block)
        self.default_fp = default_fp
        self.default_ip = default_ip
        self.debug = debug
        self.check_bounds = check_bounds
        self.overflow = overflow
        self.nan_check = nan_check
        self.pools: dict[Place, PoolRef] = {}
        self._loops: list[Loop] = []
        self._visited: list[VisitedCell] = []

    @contextmanager
    def loop(self, begin: Operand, end: Operand | None, step: int = 1) -> Iterator[Loop]:
        """As in ``StatementBuilder``; the builder knows which loops are open."""
        with super().loop(begin, end, step) as s:
            self._loops.append(s)
            try:
                yield s
            finally:
                self._loops.pop()

    @contextmanager
    def visiting(self, flags: Place, extents: tuple[int, ...], index: tuple[Operand, ...]) -> Iterator[None]:
        """Emit the body of a loop over the active cells of a level."""
        before = list(self._visited)
        self._visited.append(VisitedCell(flags, extents, index))
        try:
            yield
        finally:
            self._visited = before

    def known_active(self, flags: Place, extents: tuple[int, ...], index: tuple[Operand, ...]) -> bool:
        """Whether an index is that of a cell that a loop around is at, and nothing so far ended its activity."""
        for seen in self._visited:
            if seen.flags is flags and seen.extents == extents and all(x is y for x, y in zip(seen.index, index)):
                seen.relied.update(self._loops)
                return True
        return False

    def forget_active(self, flags: set[Place]) -> None:
        """Cells of some levels become inactive here.

        Raises:
            QdrunSyntaxError: a loop around comes back to a store that took its cell for active.
        """
        for seen in self._visited:
            if seen.flags in flags and seen.relied.intersection(self._loops):
                raise QdrunSyntaxError(
                    "deactivate() stands in an inner loop that also writes to the cell of the loop over the sparse field",
                    hint="note in a variable that the cell is to end, and call deactivate() behind the inner loop",
                )
        self._visited = [seen for seen in self._visited if seen.flags not in flags]
