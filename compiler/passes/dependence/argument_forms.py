"""Indices of accesses as functions of the arguments of a launch, in the types and with the wrap-around of the kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ...ir.meaning import evaluate, scalar
from ...ir.nodes import ArgDecl, Const, Op, Operand
from ...ir.ops import TABLE
from ...ir.types import DType

DEEPEST, MOST_PARTS = 32, 128


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
    """An index: an operation of ``ir.ops`` on integers, or a leaf.

    Attributes:
        op: its code; ``const``, ``arg`` and ``shape`` are leaves.
        dtype: of the result.
        args: the operands.
        leaf: the number; ``ArgDecl.index``; that and an axis.
    """

    op: str
    dtype: DType
    args: tuple[Form, ...] = ()
    leaf: tuple[int, ...] = ()

    @property
    def arguments(self) -> frozenset[int]:
        """The scalar arguments that decide it, by ``ArgDecl.index``."""
        own = frozenset(self.leaf if self.op == "arg" else ())
        return own.union(*(a.arguments for a in self.args))

    @property
    def has_shape(self) -> bool:
        """Whether the extents of an array argument decide it."""
        return self.op == "shape" or any(a.has_shape for a in self.args)

    def value(self, call: LaunchArguments) -> int:
        """The index in one launch."""
        if self.op == "const":
            return self.leaf[0]
        return int(self.values(lambda arg: call.scalars[arg], lambda arg: call.arrays[arg].shape))

    def values(self, argument: Callable[[int], Any], shape: Callable[[int], tuple[int, ...]]) -> Any:
        """The index in one launch or in many.

        Args:
            argument: gives a scalar argument, or an array of its values.
            shape: gives the extents of an array argument.
        """
        match self.op:
            case "const":
                return scalar(self.leaf[0], self.dtype)
            case "arg":
                return np.asarray(argument(self.leaf[0])).astype(self.dtype.numpy)[()]
            case "shape":
                return scalar(shape(self.leaf[0])[self.leaf[1]], self.dtype)
        return evaluate(self.op, [a.values(argument, shape) for a in self.args], self.dtype)


def forms(index: tuple[Operand, ...]) -> tuple[Form | None, ...]:
    """Each index as a form of the arguments; None: they do not decide it."""
    return tuple(_Maker().form(x) for x in index)


class _Maker:
    def __init__(self) -> None:
        self._left = MOST_PARTS

    def form(self, x: Operand, depth: int = 0) -> Form | None:
        self._left -= 1
        if not x.dtype.is_int or self._left < 0 or depth > DEEPEST:
            return None
        if isinstance(x, Const):
            return Form("const", x.dtype, leaf=(int(x.value),))
        if x.op == "arg":
            assert isinstance(x.attr, ArgDecl)
            return None if x.attr.per_trial else Form("arg", x.dtype, leaf=(x.attr.index,))
        if x.op == "shape":
            assert isinstance(x.attr, tuple)
            return Form("shape", x.dtype, leaf=(x.attr[0].index, x.attr[1]))
        return self._operation(x, depth)

    def _operation(self, x: Op, depth: int) -> Form | None:
        if x.op == "bitcast" or not TABLE[x.op].pure or TABLE[x.op].arity == 0:
            return None
        parts: list[Form] = []
        for a in x.args:
            part = self.form(a, depth + 1)
            if part is None:
                return None
            parts.append(part)
        return Form(x.op, x.dtype, tuple(parts))
