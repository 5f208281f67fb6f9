"""``TreeLeaf``: what can be placed in the layout tree."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ...frontend.values.budget import LeafRef
from ...ir.nodes import Place
from ...ir.types import DType


class TreeLeaf:
    """A tensor that can be placed in the tree: a field, the gradient or the dual of one, or the activity of a sparse level.

    Attributes:
        dtype: the component type.
        element: ``()`` for scalars, ``(n,)`` or ``(n, m)``.
        name: the name in messages.
        role: "" for a field, "grad" or "dual" for its gradient or dual.
        planar: each component has its own plane.
        per_trial: each trial of a batched program has its own copy.
        hidden: it holds the activity of a sparse level; the user did not place it.
        level: the level (``tree.SNode``) that it is placed in; None: it has no place yet.
        along: what is placed with it: gradients that were asked for before it had a place.
    """

    dtype: DType
    element: tuple[int, ...]
    name: str
    role: str
    planar: bool
    per_trial: bool
    hidden: bool
    level: Any
    along: Sequence[TreeLeaf]
    _places: tuple[Place, ...]
    _view: np.ndarray | None

    @property
    def components(self) -> int:
        """Numbers per element."""
        return prod(self.element)

    def reference(self) -> LeafRef:
        """The leaf inside a kernel, as ``LevelRef`` knows it."""
        assert self.level is not None
        cells = self.level.cells
        return LeafRef(self.name, self._places, self.element, tuple(cells), tuple(cells.values()), self.hidden)

    def enter(self, node: Any, offset: Any) -> None:
        """Take a place in a level."""
        for level in node.upward():
            level.begin_activity(self)
        self.attach(node, offset)
        node.adopt(self)

    def attach(self, node: Any, offset: Any = None) -> None:
        """Remember the level that it is placed in, and the lowest index of each axis."""
        raise NotImplementedError

    def settle(self, places: tuple[Place, ...], view: np.ndarray) -> None:
        """Receive memory."""
        raise NotImplementedError

    def activity(self, what: str) -> TreeLeaf:
        """A new i32 leaf for the activity of a level that this leaf is placed in, not placed yet; ``what``: the end of its name."""
        raise NotImplementedError

    def fill(self, val: Any) -> None:
        """Write ``val`` to every element; of a sparse field, to every active one, and 0 to all."""
        raise NotImplementedError

    def release(self) -> None:
        """Let go of the memory; the program is being closed."""
        raise NotImplementedError
