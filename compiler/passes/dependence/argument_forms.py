"""Indices of accesses as sums of the arguments of a launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ...ir.nodes import ArgDecl, Operand
from .indexing import linear


class LaunchArguments(Protocol):
    """The arguments of one launch that decide an index, by ``ArgDecl.index``."""

    @property
    def scalars(self) -> Mapping[int, int | float]:
        """The scalar arguments."""
        ...

    @property
    def arrays(self) -> Mapping[int, np.ndarray]:
        """The array arguments."""
        ...


@dataclass(frozen=True, slots=True)
class Form:
    """An index as constant + sum(factor * argument) + sum(factor * extent)."""

    constant: int
    scalars: tuple[tuple[int, int], ...]  # (ArgDecl.index, factor)
    extents: tuple[tuple[int, int, int], ...]  # (ArgDecl.index, axis, factor)

    def value(self, call: LaunchArguments) -> int:
        """The index in one launch."""
        out = self.constant
        for arg, factor in self.scalars:
            out += factor * int(call.scalars[arg])
        for arg, axis, factor in self.extents:
            out += factor * call.arrays[arg].shape[axis]
        return out


def form_of(x: Operand) -> Form | None:
    """The form of an index that the arguments of a launch decide; None: they do not."""
    found = linear(x)
    scalars: list[tuple[int, int]] = []
    extents: list[tuple[int, int, int]] = []
    for leaf, factor in found.leaves:
        kind, what = leaf if isinstance(leaf, tuple) else (None, None)
        if kind == "arg" and isinstance(what, ArgDecl) and not what.per_trial:
            scalars.append((what.index, factor))
        elif kind == "shape" and isinstance(what, tuple) and isinstance(what[0], ArgDecl):
            extents.append((what[0].index, what[1], factor))
        else:
            return None
    return Form(found.constant, tuple(scalars), tuple(extents))


def forms(index: tuple[Operand, ...]) -> tuple[Form | None, ...]:
    """``form_of`` of each index."""
    return tuple(map(form_of, index))
