"""Every field of a program in sparse levels, all of whose cells are active: the program must compute what it computes on dense fields."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import numpy as np

from qdrun.compiler.lang.data import make_field as makers
from qdrun.compiler.lang.data.field import Field
from qdrun.compiler.program.layout.tree import Axes, Root

UNABLE = ("is a sparse field", "has a budget", "in a level with a budget")
"""Parts of errors that refuse something of sparse fields, or of those in levels with a budget."""


@contextmanager
def sparse_fields(budget: bool = False) -> Iterator[None]:
    """Inside the block ``qd.field(shape=..)`` places fields in pointer and bitmasked levels, in turn, on the host; or in levels with a
    ``budget`` that is enough for all cells, which have blocks from the last to the first.
    """
    before, settle, turn = makers.level_of, Field.settle, count()

    def level_of(top: Any, extents: tuple[int, ...], nested: tuple[int, ...] | None) -> Any:
        if not isinstance(top, Root) or not extents or nested is not None:
            return before(top, extents, nested)
        axes = Axes(range(len(extents)))
        if budget:
            half = tuple(2 if n % 2 == 0 else 1 for n in extents)
            return top.pointer(axes, half, budget=1 << 40).dense(axes, tuple(n // h for n, h in zip(extents, half)))
        match next(turn) % 3:
            case 0:
                return top.bitmasked(axes, extents)
            case 1:
                half = tuple(2 if n % 2 == 0 else 1 for n in extents)
                return top.pointer(axes, half).bitmasked(axes, tuple(n // h for n, h in zip(extents, half)))
        return top.pointer(axes, 1).dense(axes, extents)

    def activate(self: Any, places: Any, view: Any) -> None:
        settle(self, places, view)
        if self.hidden and self.name.endswith(".active"):
            view[...] = 1
        if self.hidden and self.name.endswith(".block"):
            view[...] = np.arange(view.size, 0, -1).reshape(view.shape)
        if self.hidden and self.name.endswith(".free"):
            view[0] = view.size - 1

    makers.level_of, Field.settle = level_of, activate
    try:
        yield
    finally:
        makers.level_of, Field.settle = before, settle
