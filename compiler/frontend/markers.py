"""Python objects with a meaning of their own to the front end: what a user writes, and the kernel walker recognises by identity.

``lang`` hands them on under the same names. Each of them also does something sensible when plain Python calls it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from ..errors import QdrunRuntimeError, QdrunTypeError

in_python: ContextVar[Callable[[Any], None] | None] = ContextVar("qdrun_stop_grad", default=None)
"""What ``stop_grad`` of a field does in the plain Python function that a kernel has called."""


class Template:
    """The annotation of a parameter that is passed by reference (``qd.func``) or known at compile time (``qd.kernel``).

    ``Template(..)`` is the annotation itself: the arguments are Quadrants' notes for readers and mean nothing.
    """

    def __new__(cls, element_type: Any = None, ndim: int | None = None) -> Any:
        del element_type, ndim
        return cls


def template(element_type: Any = None, ndim: int | None = None) -> type[Template]:
    """``x: qd.template()`` is the same annotation as ``x: qd.Template``."""
    return Template(element_type, ndim)


@dataclass(frozen=True)
class Ref:
    """The annotation of a parameter of a ``qd.func`` that is a number of type ``dtype``, passed by reference."""

    dtype: Any

    def __qd_key__(self) -> tuple[Any, ...]:
        """The token of the annotation for kernels that use it."""
        return "ref", self.dtype


def ref(tp: Any) -> Ref:
    """``x: qd.ref(qd.f32)``: as ``qd.template()``, for a variable or an element of this type only."""
    return Ref(tp)


@dataclass(frozen=True, eq=False)
class RangeSpec:
    """``range(begin, end, step)`` with bounds that may be run-time values; ``step`` is known."""

    begin: Any
    end: Any
    step: int = 1


class NDRange:
    """Several ranges at once.

    Attributes:
        bounds: (begin, end) of each axis, Python numbers or values of the kernel.
        order: the axes in the order of their nesting, outermost first.
    """

    def __init__(self, bounds: tuple[tuple[Any, Any], ...], order: tuple[int, ...] = ()) -> None:
        self.bounds, self.order = bounds, order or tuple(range(len(bounds)))

    @property
    def known(self) -> bool:
        """Whether every bound is a Python integer."""
        return all(isinstance(x, int) for pair in self.bounds for x in pair)

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        nested = itertools.product(*(range(*self.bounds[axis]) for axis in self.order))
        return (tuple(i for _, i in sorted(zip(self.order, index))) for index in nested)


def ndrange(*args: Any, axes: Sequence[int] | None = None) -> NDRange:
    """``ndrange(n, (a, b), ..)``: the product of ranges, the last axis fastest. Without axes it has one index, which is empty.

    Args:
        args: the end of each axis, or its begin and end.
        axes: the axes in the order of their nesting, outermost first: ``axes=(1, 0)`` makes the first axis the fastest. The indices keep
            the order of ``args``.

    Raises:
        QdrunTypeError: an axis is a tuple of another length than two, or ``axes`` does not name each once.
    """
    bounds: list[tuple[Any, Any]] = []
    for axis in args:
        if not isinstance(axis, (tuple, list)):
            bounds.append((0, axis))
        elif len(axis) == 2:
            bounds.append((axis[0], axis[1]))
        else:
            raise QdrunTypeError(f"an axis of ndrange() has {len(axis)} entries", hint="give a number n or a pair (begin, end)")
    order = tuple(range(len(bounds))) if axes is None else tuple(axes)
    if not all(isinstance(axis, int) for axis in order) or sorted(order) != list(range(len(bounds))):
        hint = f"name each of the {len(bounds)} axes once, outermost first"
        raise QdrunTypeError(f"ndrange(.., axes={axes!r}) is not a permutation of range({len(bounds)})", hint=hint)
    return NDRange(tuple(bounds), order)


class Grouped:
    """The indices of ``space`` (a field, an ndarray or an NDRange) as one vector."""

    def __init__(self, space: Any) -> None:
        self.space = space

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        if isinstance(self.space, NDRange):
            return iter(self.space)
        shape = self.space.shape
        begins = getattr(self.space, "offset", None) or (0,) * len(shape)
        return itertools.product(*(range(lo, lo + n) for lo, n in zip(begins, shape)))


def grouped(x: Any) -> Grouped:
    """One vector index instead of one index per axis. ``x``: a field, an array or an ``ndrange``."""
    return Grouped(x)


def static(x: Any, *xs: Any) -> Any:
    """Evaluate at compile time: ``static(cond)``, ``static(range(n))``. In plain Python its arguments, unchanged."""
    return (x, *xs) if xs else x


def static_print(*args: Any) -> None:
    """Print while the kernel is being compiled."""
    print(*args)


def static_assert(cond: Any, msg: str | None = None) -> None:
    """Check while the kernel is being compiled.

    Raises:
        AssertionError: in plain Python, when the condition is false.
    """
    assert cond, msg


def loop_config(
    *,
    serialize: bool = False,
    block_dim: int | None = None,
    parallelize: int | None = None,
    bit_vectorize: bool = False,
    name: str | None = None,
) -> None:
    """Settings of the next loop of the kernel. ``serialize=True`` or ``parallelize=1`` run it in order; ``block_dim``: threads of a block
    on a GPU, at most 1,024. The others mean nothing here.
    """
    del serialize, block_dim, parallelize, bit_vectorize, name
    kernel_only("loop_config")


class Stopped(float):
    """A number that is meant to be a constant: a tape does not ask where it came from."""

    __slots__ = ()


def stop_grad(x: Any) -> Any:
    """Stop the gradient. Of a field or an array: what the block around this call, and the blocks in it, read of it contribute nothing to a
    gradient; the result is None. Of a value: the value, with no gradient behind it.
    """
    if isinstance(x, (float, np.floating)):
        return Stopped(x)
    if isinstance(x, int):
        return x
    if isinstance(x, np.ndarray):
        return x.copy()
    stop = getattr(type(x), "__qd_stop_grad__", None) or in_python.get()
    return kernel_only("stop_grad") if stop is None else stop(x)


def atomic_add(x: Any, y: Any) -> Any:
    """``x += y`` in one step; the result is the old content."""
    kernel_only("atomic_add")


def atomic_sub(x: Any, y: Any) -> Any:
    """``x -= y`` in one step; the result is the old content."""
    kernel_only("atomic_sub")


def atomic_mul(x: Any, y: Any) -> Any:
    """``x *= y`` in one step; the result is the old content."""
    kernel_only("atomic_mul")


def atomic_min(x: Any, y: Any) -> Any:
    """``x = min(x, y)`` in one step; the result is the old content."""
    kernel_only("atomic_min")


def atomic_max(x: Any, y: Any) -> Any:
    """``x = max(x, y)`` in one step; the result is the old content."""
    kernel_only("atomic_max")


def atomic_and(x: Any, y: Any) -> Any:
    """``x &= y`` in one step; the result is the old content."""
    kernel_only("atomic_and")


def atomic_or(x: Any, y: Any) -> Any:
    """``x |= y`` in one step; the result is the old content."""
    kernel_only("atomic_or")


def atomic_xor(x: Any, y: Any) -> Any:
    """``x ^= y`` in one step; the result is the old content."""
    kernel_only("atomic_xor")


def atomic_exchange(x: Any, y: Any) -> Any:
    """``x = y`` in one step; the result is the old content."""
    kernel_only("atomic_exchange")


def atomic_cas(x: Any, expected: Any, desired: Any) -> Any:
    """``x = desired`` if it is ``expected``, in one step; the result is the old content. For integers."""
    kernel_only("atomic_cas")


def volatile_load(target: Any) -> Any:
    """The content of an element of a field or an array, read anew at each call, also where a loop reads it again and again. It is an atomic
    update that changes nothing. It does not make waiting safe: a thread may run the iteration that it waits for after its own.
    """
    kernel_only("volatile_load")


def outer(a: Any, b: Any) -> Any:
    """The product of a column and a row, to subtract from a tile: ``t -= qd.outer(a, b)``. Lane k gives element k of both."""
    kernel_only("outer")


ATOMIC_CODES = {
    atomic_add: "add",
    atomic_sub: "sub",
    atomic_mul: "mul",
    atomic_min: "min",
    atomic_max: "max",
    atomic_and: "and",
    atomic_or: "or",
    atomic_xor: "xor",
    atomic_exchange: "xchg",
}
"""The code of ``ir.ops.ATOMICS`` for each atomic function."""


def kernel_only(name: str) -> NoReturn:
    """Refuse a call from Python.

    Raises:
        QdrunRuntimeError: always.
    """
    raise QdrunRuntimeError(
        f"{name}() was called outside of a kernel; do: call it inside a function decorated with @kernel or @func"
    )
