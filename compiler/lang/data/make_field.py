"""``qd.field``: makes fields, and places those that are given a shape."""

from __future__ import annotations

from typing import Any

from ...errors import QdrunRuntimeError, QdrunRuntimeTypeError, QdrunSyntaxError
from ...frontend.python_calls import refuse_at_compile_time
from ...frontend.values.values import StructForm
from ...ir.types import DType
from ...program.layout.offsets import PLANES, Order, extents, nesting, permutation
from ...program.layout.tree import Axes, Root, level_of
from ...program.program import current_program
from .dtypes import resolve
from .element_types import MatrixType
from .field import Field
from .placed import shared_gradient


def field(
    dtype: Any,
    shape: int | tuple[int, ...] | None = None,
    order: str | None = None,
    name: str = "",
    offset: int | tuple[int, ...] | None = None,
    needs_grad: bool = False,
    needs_dual: bool = False,
    layout: Any = None,
    per_trial: bool = True,
) -> Field:
    """Make a field.

    Args:
        dtype: a scalar type (``qd.f32``, ``float``), a vector, matrix or struct type.
        shape: the extents, () for one number; None leaves the placement to ``qd.root``.
        order: the nesting of the axes in memory, as "ji"; without it the last axis is contiguous.
        name: what messages call it.
        offset: the lowest index of each axis, instead of 0; indices run up to ``offset + shape - 1``.
        needs_grad: also place ``x.grad``.
        needs_dual: also place ``x.dual``.
        layout: ``order`` as a tuple of axes, (1, 0); or, for vectors and matrices, ``qd.Layout.SOA``: a plane for each component.
        per_trial: False: all trials of a batched program share it, and kernels only read it. It has no gradient there.

    Raises:
        QdrunTypeError: a gradient of an integer field.
        QdrunRuntimeError: a gradient of what trials share.
        QdrunSyntaxError: an offset without a shape, or of another length.
        QdrunValueError: a layout that is no permutation of the axes.
    """
    if isinstance(dtype, StructForm):
        return dtype.field(shape, name, offset, needs_grad, needs_dual, layout, per_trial)  # type: ignore[attr-defined]
    how = {"name": name, "order": order, "layout": layout, "offset": offset, "per_trial": per_trial}
    if isinstance(dtype, MatrixType):
        return dtype.field(shape, needs_grad=needs_grad, needs_dual=needs_dual, **how)
    return make_field(resolve(dtype), shape, (), needs_grad, needs_dual, **how)


def make_field(
    dtype: DType,
    shape: Any,
    element: tuple[int, ...],
    needs_grad: bool = False,
    needs_dual: bool = False,
    name: str = "",
    order: str | None = None,
    root: Root | None = None,
    layout: Any = None,
    offset: Any = None,
    per_trial: bool = True,
) -> Field:
    """A field of any element shape; ``root`` is that of the current program unless it is given."""
    refuse_at_compile_time("makes a field", "make the field before the kernel, and pass it or use it by name")
    if (needs_grad or needs_dual) and not dtype.is_real:
        raise QdrunRuntimeTypeError(
            f"{dtype} is not supported for a field with needs_grad=True or needs_dual=True\n  do: use qd.f32 or qd.f64"
        )
    if root is None:
        root = current_program().root
    out = Field(root, dtype, element, name or root.next_name())
    out.named, out.per_trial = bool(name), per_trial
    if root.is_shared(out) and (needs_grad or needs_dual):
        raise shared_gradient(f"field `{out.name}`")
    if shape is None:
        if offset is not None:
            raise QdrunSyntaxError(
                f"`{out.name}` has an offset, but no shape\n  do: give a shape, or place it: qd.root.dense(..).place(x, offset=..)"
            )
        if order is not None or layout not in (None, Order.AOS, Order.NULL):
            raise QdrunRuntimeError(
                f"`{out.name}` has an order or a layout, but no shape; do: give a shape, or place it with qd.root.dense"
            )
        out.along = _asked_for(out, needs_grad, needs_dual)[1:]
        return out
    form = extents(shape, f"field `{out.name}`")
    axes = nesting(form, order) if layout is None or isinstance(layout, Order) else permutation(layout, len(form))
    out._layout = axes if axes != tuple(range(len(form))) else None
    wanted = _asked_for(out, needs_grad, needs_dual)
    if layout is not Order.SOA or not element:
        level_of(root, form, axes).place(*wanted, offset=offset)
        return out
    for each in wanted:  # planes of its own for the field, and for its gradient
        level_of(root.dense(Axes((PLANES,)), out.components), form, axes).place(each, offset=offset)
    return out


def _asked_for(out: Field, needs_grad: bool, needs_dual: bool) -> list[Field]:
    """The field, then its gradient and its dual as far as they are to be stored."""
    return [out, *([out.grad] if needs_grad else []), *([out.dual] if needs_dual else [])]
