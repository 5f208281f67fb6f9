"""The types of vectors, matrices and arrays: annotations, and constructors of values, fields and ndarrays."""

from __future__ import annotations

import dataclasses
from typing import Any, NoReturn

from ...errors import QdrunFitError, QdrunTypeError
from ...frontend.values import constructors, ops, values
from ...ir.types import DType, Unsigned
from ...program.program import CURRENT, current_program
from .dtypes import resolve
from .matrix import Matrix, Vector, wrap


class MatrixType:
    """The type of vectors or matrices of one shape and component type: an annotation, and a constructor on both sides.

    Attributes:
        shape: (n,) or (n, m).
        dtype: the component type; None: that of the argument (in an ndarray annotation).
    """

    __slots__ = ("_dtype", "shape")

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        if not all(isinstance(e, int) and e > 0 for e in shape):
            raise QdrunFitError(f"the extents of a matrix type are positive integers, not {shape}")
        self.shape = shape
        self._dtype = dtype

    @property
    def dtype(self) -> DType | None:
        """The component type; ``float`` and ``int`` are the defaults of the program that is current when it is read."""
        return None if self._dtype is None else resolve(self._dtype)

    @property
    def n(self) -> int:
        """Number of rows."""
        return self.shape[0]

    @property
    def m(self) -> int:
        """Number of columns, 1 for vectors."""
        return self.shape[1] if len(self.shape) == 2 else 1

    def __call__(self, *args: Any) -> Matrix:
        """Build a value: one number fills it; otherwise the components of all arguments are its components in order.

        Raises:
            QdrunTypeError: the number of components differs.
        """
        flat: list[Any] = []
        for arg in args:
            flat += _components(arg)
        if len(args) == 1 and len(flat) == 1:
            flat *= values.count(self.shape)
        if len(flat) != values.count(self.shape):
            raise QdrunFitError(f"a value of shape {self.shape} needs {values.count(self.shape)} components, not {len(flat)}")
        if self._dtype in (float, int) and CURRENT.get() is None:
            made = Vector([self._dtype(x) for x in flat])  # the type is that of the program whose kernel uses it
        else:
            made = Vector(flat, self.dtype)
        return made if len(self.shape) == 1 else wrap(made.to_numpy().reshape(self.shape), declared=made.dtype is not None)

    def __qd_key__(self) -> tuple[Any, ...]:
        """The token of the type for kernels that use it."""
        return self.shape, "unsigned" if self._dtype is Unsigned else self._dtype

    def __qd_lower__(self, b: Any, *args: Any) -> values.MatrixValue:
        """The constructor inside a kernel."""
        return constructors.lower_typed(b, self.shape, self._dtype, args)

    def get_shape(self) -> tuple[int, ...]:
        """(n,) or (n, m)."""
        return self.shape

    def field(
        self,
        shape: Any = None,
        order: str | None = None,
        name: str = "",
        offset: Any = None,
        needs_grad: bool = False,
        needs_dual: bool = False,
        layout: Any = None,
        per_trial: bool = True,
    ) -> Any:
        """A field of such values; the arguments are those of ``qd.field`` without the type."""
        how = {"needs_grad": needs_grad, "needs_dual": needs_dual, "name": name, "order": order, "layout": layout}
        return current_program().factory.field(self._stored(), shape, self.shape, offset=offset, per_trial=per_trial, **how)

    def ndarray(
        self, shape: Any, needs_grad: bool = False, needs_dual: bool = False, layout: Any = None, per_trial: bool = True
    ) -> Any:
        """An ndarray of such values; the arguments are those of ``qd.ndarray`` without the type."""
        how = {"needs_grad": needs_grad, "needs_dual": needs_dual, "layout": layout, "per_trial": per_trial}
        return current_program().factory.ndarray(self._stored(), shape, self.shape, **how)

    def _stored(self) -> DType:
        return resolve(float if self._dtype is None else self._dtype)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MatrixType) and (self.shape, self._dtype) == (other.shape, other._dtype)

    def __hash__(self) -> int:
        return hash((self.shape, self._dtype))

    def __repr__(self) -> str:
        kind = "vector" if len(self.shape) == 1 else "matrix"
        return f"{kind}({', '.join(map(str, self.shape))}, {getattr(self._dtype, '__name__', self._dtype)})"


class AnyMatrixType:
    """The annotation of vectors, or of matrices, of any shape: ``types.vector()``, ``types.matrix(dtype=qd.f32)``.

    Attributes:
        axes: 1 for vectors, 2 for matrices.
    """

    __slots__ = ("_dtype", "axes")

    def __init__(self, axes: int, dtype: Any) -> None:
        self.axes, self._dtype = axes, dtype

    def __call__(self, *args: Any) -> NoReturn:
        """Refused: a value has a shape.

        Raises:
            QdrunTypeError: always.
        """
        raise QdrunTypeError(f"{self!r} makes no values: it has no size", hint="give the size: types.vector(3, qd.f32)")

    def __qd_key__(self) -> tuple[Any, ...]:
        """The token of the type for kernels that use it."""
        return self.axes, self._dtype

    def __qd_lower__(self, b: Any, *args: Any) -> values.MatrixValue:
        """An argument of a function, whose components become those of the type."""
        if len(args) != 1:
            self(*args)
        value = ops.as_matrix(b, args[0], repr(self))
        if len(value.shape) != self.axes:
            raise QdrunFitError(f"{self!r} takes values with {self.axes} axes, not of shape {value.shape}")
        return constructors.lower_typed(b, value.shape, self._dtype, (value,))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyMatrixType) and self.__qd_key__() == other.__qd_key__()

    def __hash__(self) -> int:
        return hash(self.__qd_key__())

    def __repr__(self) -> str:
        return f"{'vector' if self.axes == 1 else 'matrix'}({'' if self._dtype is None else f'dtype={self._dtype}'})"


def _components(arg: Any) -> list[Any]:
    if hasattr(arg, "tolist"):
        arg = arg.tolist()
    if isinstance(arg, (list, tuple, Matrix)):
        return [x for e in arg for x in _components(e)]
    return [arg]


@dataclasses.dataclass(frozen=True)
class Optional:
    """The annotation ``T | None``: that an argument is None is known at compile time."""

    inner: Any


class NdarrayType:
    """The annotation of an ndarray parameter. ``None`` leaves the type, the number of axes or the element to the argument.

    Attributes:
        element: ``()`` for scalars, the shape of vectors or matrices, None for any.
        needs_grad: True or False when the annotation asks for it, None for any.
        element_dim: the number of axes of an element, None for any.
    """

    __slots__ = ("_dtype", "element", "element_dim", "ndim", "needs_grad")

    def __init__(self, dtype: Any, ndim: int | None, needs_grad: bool | None = None, element_dim: int | None = None) -> None:
        self.element: tuple[int, ...] | None = None
        if isinstance(dtype, MatrixType):
            self.element, dtype = dtype.shape, dtype._dtype
        elif isinstance(dtype, AnyMatrixType):
            element_dim, dtype = dtype.axes, dtype._dtype
        elif element_dim == 0 or (dtype is not None and element_dim is None):
            self.element = ()
        self.element_dim = element_dim if self.element is None else len(self.element)
        if ndim is not None and (not isinstance(ndim, int) or ndim < 0):
            raise QdrunFitError(f"ndim is a number of axes, not {ndim!r}")
        self._dtype, self.ndim, self.needs_grad = dtype, ndim, needs_grad

    @property
    def dtype(self) -> DType | None:
        """The component type, None for any."""
        return None if self._dtype is None else resolve(self._dtype)

    def __or__(self, other: None) -> Optional:
        if other is not None:
            return NotImplemented
        return Optional(self)

    __ror__ = __or__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NdarrayType) and self._parts() == other._parts()

    def __hash__(self) -> int:
        return hash(self._parts())

    def __qd_key__(self) -> tuple[Any, ...]:
        """The token of the type for kernels that use it."""
        return self._parts()

    def _parts(self) -> tuple[Any, ...]:
        return self._dtype, self.ndim, self.element, self.needs_grad, self.element_dim

    def __repr__(self) -> str:
        return f"ndarray(dtype={self._dtype}, ndim={self.ndim}, element={self.element})"
