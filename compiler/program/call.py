"""The arguments of a launch."""

from __future__ import annotations

from collections.abc import Callable, Container
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ..ir.types import DType
from ..runtime.mirror import Mirror

_NOTHING = nullcontext()


@dataclass
class Call:
    """The arguments of one launch: the words of the argument buffer, and what the planner may read of them."""

    words: bytearray
    scalars: dict[int, int | float] = field(default_factory=dict)  # by ArgDecl.index
    arrays: dict[int, np.ndarray] = field(default_factory=dict)  # by ArgDecl.index; element axes last
    keys: dict[int, object] = field(default_factory=dict)  # type key of each of our ndarrays, by ArgDecl.index
    own: set[int] = field(default_factory=set)  # ndarrays of this program, by ArgDecl.index
    parts: set[int] = field(default_factory=set)  # views of ndarrays of this program, by ArgDecl.index
    sources: dict[int, np.ndarray] = field(default_factory=dict)  # the caller's array where ``arrays`` has a copy of it
    readonly: list[int] = field(default_factory=list)  # arrays that must not be written, by ArgDecl.index
    columns: dict[int, np.ndarray] = field(default_factory=dict)  # scalars that each trial has its own of, by ArgDecl.index
    kept: list[object] = field(default_factory=list)  # what must live until the launch is over
    # On a device with memory of its own: the mirrors of ndarrays, how the content of an array is read, where its memory lies on the
    # device, what brings the memory that the launch works on and takes it away.
    mirrors: dict[int, Mirror] = field(default_factory=dict)
    reads: dict[int, Callable[[], np.ndarray]] = field(default_factory=dict)
    at: dict[int, int] = field(default_factory=dict)
    loans: list[Callable[[Container[object]], AbstractContextManager[None]]] = field(default_factory=list)
    # What is to be done once the array of this index, or its gradient ("grad", index), was written: copies back to arrays that could
    # not be passed as they are.
    after: list[tuple[object, Callable[[], None]]] = field(default_factory=list)

    def content(self, index: int) -> np.ndarray:
        """The current content of an array argument, or of a scalar argument for each trial. What each trial has its own of has the trials
        as its first axis.
        """
        if index in self.columns:
            return self.columns[index]
        read = self.reads.get(index)
        return self.arrays[index] if read is None else read()

    def provided(self, written: Container[object]) -> AbstractContextManager[object]:
        """The memory that the launch works on is there; ``written``: what the kernel writes, as in ``after``."""
        if not self.loans:
            return _NOTHING
        stack = ExitStack()
        try:
            for loan in self.loans:
                stack.enter_context(loan(written))
        except BaseException:
            stack.close()
            raise
        return stack


Permutation = tuple[int, ...]


class Key(NamedTuple):
    """The properties of an argument that a kernel is specialised for.

    ``layout``: the axis at each level of nesting, outermost first; None for row-major. ``per_trial``: each trial of a batched program has
    its own.
    """

    dtype: DType
    ndim: int
    element: tuple[int, ...]
    has_grad: bool
    has_dual: bool = False
    layout: Permutation | None = None
    per_trial: bool = False
