"""Tensors: one class over both kinds of memory, fields and ndarrays, chosen for each tensor when it is made."""

from __future__ import annotations

import operator
from enum import IntEnum
from typing import Any

import numpy as np

from ...errors import QdrunTypeError, QdrunValueError
from ...frontend.values.tensor import TensorRef
from ...program.layout.offsets import permutation
from ..interop import ArrayConversions
from .dtypes import resolve
from .element_types import MatrixType
from .field import Field
from .make_field import make_field
from .ndarray import Ndarray, make_ndarray


class Backend(IntEnum):
    """The storage of a tensor. A kernel is specialised for the shape of a field, but not of an ndarray."""

    FIELD = 0
    NDARRAY = 1


class Tensor(ArrayConversions):
    """A field or an ndarray behind one interface; also the annotation of a kernel parameter that takes either.

    Made by ``qd.tensor``, ``Vector.tensor``, ``Matrix.tensor``, or by ``qd.wrap`` around what exists. Indices and shapes are canonical,
    whatever the layout.

    Raises:
        QdrunTypeError: it is made around something else.
    """

    __slots__ = ("_grad", "_impl", "__weakref__")  # noqa: RUF023  (a native launcher reads `_impl`)

    def __init__(self, impl: Field | Ndarray) -> None:
        if not isinstance(impl, (Field, Ndarray)):
            hint = "make one with qd.tensor(dtype, shape)"
            raise QdrunTypeError(f"a tensor is made around a field or an ndarray, not {type(impl).__name__}", hint=hint)
        self._impl: Any = impl
        self._grad: Tensor | None = None

    def _unwrap(self) -> Any:
        """The field or the ndarray."""
        return self._impl

    def __qd_value__(self) -> TensorRef:
        """The value of the tensor inside a kernel."""
        return self._impl.__qd_value__()

    def __qd_name__(self, name: str) -> None:
        """Set the name in messages to the kernel's name of it, unless it has one."""
        self._impl.__qd_name__(name)

    @property
    def backend(self) -> Backend:
        """Which kind of memory it has."""
        return Backend.FIELD if isinstance(self._impl, Field) else Backend.NDARRAY

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents, in the order of the indices."""
        return self._impl.shape

    @property
    def offset(self) -> tuple[int, ...]:
        """The lowest index of each axis: that of the field, zeros for an ndarray."""
        return getattr(self._impl, "offset", None) or (0,) * len(self.shape)

    @property
    def dtype(self) -> Any:
        """The type of one component."""
        return self._impl.dtype

    @property
    def element_shape(self) -> tuple[int, ...]:
        """() for numbers, (n,) for vectors, (n, m) for matrices."""
        return self._impl.element_shape

    @property
    def layout(self) -> tuple[int, ...] | None:
        """The axis at each level of nesting in memory, outermost first; None for row-major."""
        return self._impl.layout

    @property
    def view(self) -> np.ndarray:
        """The memory as a numpy array of shape ``shape + element_shape``."""
        return self._impl.view

    def from_numpy(self, arr: Any) -> None:
        """See ``Placed.from_numpy``."""
        self._impl.from_numpy(arr)

    @property
    def grad(self) -> Tensor | None:
        """The gradient as a tensor. None for an ndarray that stores none; a field has one that is perhaps not placed yet."""
        if self._grad is None and self.dtype.is_real:
            found = self._impl.grad
            self._grad = None if found is None else Tensor(found)
        return self._grad

    @property
    def dual(self) -> Tensor | None:
        """The tangent of forward mode, as ``grad``."""
        found = self._impl.dual if self.dtype.is_real else None
        return None if found is None else Tensor(found)

    def has_grad(self) -> bool:
        """Whether a gradient is stored."""
        return self._impl.has_grad()

    def has_dual(self) -> bool:
        """Whether a dual is stored."""
        return self._impl.has_dual()

    def __getitem__(self, index: Any) -> Any:
        return self._impl[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._impl[index] = value

    def __len__(self) -> int:
        return self.shape[0]

    def fill(self, value: Any) -> None:
        """Write ``value`` to every element."""
        self._impl.fill(value)

    def copy_from(self, other: Any) -> None:
        """Copy a tensor of the same backend and shape, or its field or ndarray.

        Raises:
            QdrunTypeError: the backends or the shapes differ.
        """
        self._impl.copy_from(unwrap(other))

    def to_numpy(self, dtype: Any = None, *, copy: bool | None = True) -> np.ndarray:
        return self._impl.to_numpy(dtype, copy=copy)

    def __reduce__(self) -> Any:
        """Pickled as numpy data; unpickled in the program that is current then, with a gradient of zeros if it had one."""
        form = self.dtype, self.element_shape, self.shape, self.backend, self.layout, self.has_grad()
        offset = self.offset if any(self.offset) else None
        return _unpickled, (*form, self._impl.to_numpy(), offset, self._impl.per_trial)

    def __repr__(self) -> str:
        layout = "" if self.layout is None else f", layout={self.layout}"
        return f"Tensor(shape={self.shape}, dtype={self.dtype}, backend={self.backend.name}{layout})"


_OF_IMPL = (
    *("_called", "_content", "_form", "_mirror", "_mirror_if_placed", "_looked_at", "_saw", "_show", "_trials"),
    *("_columns", "_refuse_sharing", "_assign", "_written"),
)
for _name in _OF_IMPL:  # what ``ArrayConversions`` asks of memory
    setattr(Tensor, _name, property(operator.attrgetter(f"_impl.{_name}")))

Ndarray.wrapper_type = Tensor


def unwrap(value: Any) -> Any:
    """The field or ndarray of a tensor; any other value as it is."""
    return value._impl if isinstance(value, Tensor) else value


def wrap(impl: Any) -> Tensor:
    """A tensor around an existing field or ndarray.

    Raises:
        QdrunTypeError: it is neither.
    """
    return Tensor(impl)


def tensor(
    dtype: Any,
    shape: int | tuple[int, ...],
    *,
    backend: Backend | int = Backend.NDARRAY,
    layout: Any = None,
    needs_grad: bool = False,
    **unknown: Any,
) -> Tensor:
    """Make a tensor of zeros in the current program.

    Args:
        dtype: a scalar type, or a vector or matrix type.
        shape: the extents, in the order of the indices.
        backend: a field or an ndarray.
        layout: the axis at each level of nesting in memory, outermost first: (1, 0) stores a matrix by columns.
        needs_grad: also store a gradient.
        unknown: ``needs_dual=True`` also stores a dual, for forward mode; ``per_trial=False``: all trials of a batched program share it;
            anything else is refused by name.

    Raises:
        QdrunValueError: an unknown backend, or a layout that is no permutation of the axes.
        QdrunTypeError: an unknown option, or a gradient of integers.
    """
    if isinstance(dtype, (Field, Ndarray, Tensor)):
        hint = "use qd.wrap(x) for a tensor around what exists"
        raise QdrunTypeError(f"qd.tensor() makes a new tensor; the first argument is a {type(dtype).__name__}", hint=hint)
    element = dtype.shape if isinstance(dtype, MatrixType) else ()
    scalar = dtype._stored() if isinstance(dtype, MatrixType) else resolve(dtype)
    return make_tensor("qd.tensor", scalar, element, shape, backend, layout, needs_grad, unknown)


def make_tensor(
    called: str,
    dtype: Any,
    element: tuple[int, ...],
    shape: Any,
    backend: Backend | int,
    layout: Any,
    needs_grad: bool,
    unknown: dict[str, Any],
    offset: Any = None,
) -> Tensor:
    """A tensor of any element shape. ``called`` names the function that the user called; ``unknown`` are keywords that it does not take."""
    needs_dual, per_trial = bool(unknown.pop("needs_dual", False)), bool(unknown.pop("per_trial", True))
    if unknown:
        name = next(iter(unknown))
        hint = (
            "use layout=(..)"
            if name == "order"
            else "it takes dtype, shape, backend, layout, needs_grad, needs_dual, per_trial"
        )
        raise QdrunTypeError(f"{called}() does not accept {name}=", hint=hint)
    try:
        where = Backend(backend)
    except ValueError as e:
        names = ", ".join(f"qd.Backend.{b.name}" for b in Backend)
        raise QdrunValueError(f"backend={backend!r} is not one of {names}") from e
    extents = (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(shape)
    order = permutation(layout, len(extents))
    if where is Backend.NDARRAY:
        return Tensor(make_ndarray(dtype, extents, element, needs_grad, None, needs_dual, order, per_trial))
    return Tensor(make_field(dtype, extents, element, needs_grad, needs_dual, layout=order, offset=offset, per_trial=per_trial))


def _unpickled(
    dtype: Any,
    element: tuple[int, ...],
    shape: tuple[int, ...],
    backend: Backend,
    layout: tuple[int, ...] | None,
    grad: bool,
    data: np.ndarray,
    offset: Any = None,
    per_trial: bool = True,
) -> Tensor:
    out = make_tensor("qd.tensor", dtype, element, shape, backend, layout, grad, {"per_trial": per_trial}, offset)
    out.from_numpy(data)
    return out


def begin_of(array: Any) -> int:
    """The first index of a field of one axis with an offset; 0 of anything else."""
    begins = getattr(unwrap(array), "_begins", None)
    return begins[0] if begins is not None and len(begins) == 1 else 0


def from_zero(field: Any) -> Any:
    """A field with an offset as one on the same memory whose indices begin at 0, and anything else as it is. For kernels of the library."""
    if not isinstance(field, Field) or field._begins is None:
        return field
    if field._at_zero is None:
        view, out = field._all, Field(field._root, field.dtype, field.element, field.name, field.role)
        out.level, out._layout, out.per_trial, out.planar = field.parent(), field._layout, field.per_trial, field.planar
        out._places, out._view, out._storage = field._places, view, field._storage
        for role, relative in field._relatives.items():
            if relative.placed:
                out._relatives[role] = from_zero(relative)
                out._relatives[role].primal = out
        field._at_zero = out
    return field._at_zero
