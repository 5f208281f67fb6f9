"""Levels with a budget inside kernels: their fields and blocks, and what errors say of them."""

from __future__ import annotations

from dataclasses import dataclass

from ...ir.nodes import Place


@dataclass(frozen=True, slots=True, eq=False)
class LeafRef:
    """A field below a level.

    Attributes:
        name: what messages call it.
        places: one per component, row-major.
        element: ``()`` for scalars, ``(n,)`` or ``(n, m)``.
        axes: the letters of its axes, by number.
        extents: its shape.
        hidden: it is the activity of a level.
    """

    name: str
    places: tuple[Place, ...]
    element: tuple[int, ...]
    axes: tuple[int, ...]
    extents: tuple[int, ...]
    hidden: bool


@dataclass(frozen=True, slots=True, eq=False)
class PoolRef:
    """The blocks of a level with a budget.

    Attributes:
        name: the first field in it, for messages.
        flags: 1 for each active cell.
        slots: the number of the block of each cell; 0: it has none.
        free: element 0 counts the blocks in use, n; after n others, the rest are numbers of free blocks. A 0 at k stands for k.
        count: the blocks for active cells.
        block_bytes: of all fields, gradients and duals in a cell.
        budget: the bytes that the user gave.
        gradients: the gradients in it.
    """

    name: str
    flags: Place
    slots: Place
    free: Place
    count: int
    block_bytes: int
    budget: int
    gradients: tuple[LeafRef, ...]


def used_up(name: str, budget: int, count: int, block_bytes: int, more: str) -> str:
    """What an error says of a level with a budget that has too few blocks. ``more``: how many are missing."""
    return (
        f"the budget of `{name}` is used up: its {budget:,} bytes hold {count:,} active cells of {block_bytes:,} bytes, {more} too few;"
        " do: give pointer(.., budget=) more bytes, or deactivate cells"
    )


def freed_in_a_tape(what: str, name: str) -> str:
    """What an error says of something that ends the activity of cells whose gradients are still needed."""
    return (
        f"{what} deactivates cells of `{name}`, whose level has a budget: their blocks may go to other cells, and the backward pass would"
        " not find their gradients\n  do: deactivate before the first launch of the tape or after it, or leave out budget="
    )
