"""``Vector`` and ``Matrix`` outside of kernels: small numpy arrays with the methods that kernels have.

The same classes are constructors inside kernels (``__qd_lower__``), and an instance that a kernel refers to becomes a constant of it
(``__qd_value__``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from ...errors import QdrunFitError, QdrunTypeError
from ...frontend.library import host_linalg
from ...frontend.library.methods import METHODS
from ...frontend.library.traced import builder_of, call
from ...frontend.values import constructors, ops, values
from ...frontend.values import matrix as front
from ...frontend.values.constructors import has_lowering
from ...ir.builder import convert
from ...ir.nodes import Const, Op
from ...ir.types import DType, from_numpy
from ...program.program import current_program
from ..fitting import fitting, numbers
from .dtypes import defaults, resolve


class Matrix(NDArrayOperatorsMixin):
    """A matrix of shape (n, m) or a vector of shape (n,). Arithmetic is element by element; ``@`` multiplies.

    Args:
        arr: a list of numbers, a list of rows (lists or vectors), or a numpy array.
        dt: the type of the components; without it Python numbers take the default types inside kernels.
    """

    __slots__ = ("_data", "_dtype", "_how")
    __array_priority__ = 1000
    __qd_lower__ = staticmethod(constructors.lower_matrix)

    def __new__(cls, arr: Any = None, dt: Any = None) -> Any:
        """In a plain Python function that a kernel calls, of values that are known at run time only: what a kernel makes of them."""
        b = builder_of((arr,))
        return super().__new__(cls) if b is None else call(b, cls.__qd_lower__, (arr, dt), {})

    def __init__(self, arr: Any, dt: Any = None) -> None:
        if not isinstance(arr, (list, tuple, np.ndarray, Matrix)):
            raise QdrunTypeError(f"a matrix is made of a list or an array, not of {type(arr).__name__}")
        dtype = None if dt is None else resolve(dt)
        rows = [r.to_numpy() if isinstance(r, Matrix) else r for r in arr]
        try:
            data = np.array(rows) if dtype is None else numbers(rows, dtype.numpy)
        except ValueError as e:
            raise QdrunFitError("the rows of a matrix have the same number of entries") from e
        if data.ndim not in (1, 2) or (data.dtype.kind not in "fiub" and (dtype is None or data.dtype.kind != "O")):
            raise QdrunTypeError(f"a matrix is made of numbers in one or two axes, not of {arr!r}")
        if dtype is not None:
            data = np.array(fitting(data, dtype.numpy, f"a value of shape {data.shape}"), dtype.numpy)
        if dtype is None and isinstance(arr, (np.ndarray, Matrix)):
            dtype = arr.dtype if isinstance(arr, Matrix) else from_numpy(arr.dtype)
        self._data, self._dtype = data, dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """(n,) or (n, m)."""
        return self._data.shape

    @property
    def n(self) -> int:
        """Number of rows."""
        return self._data.shape[0]

    @property
    def m(self) -> int:
        """Number of columns, 1 for a vector."""
        return self._data.shape[1] if self._data.ndim == 2 else 1

    @property
    def ndim(self) -> int:
        """1 for a vector, 2 for a matrix."""
        return self._data.ndim

    @property
    def dtype(self) -> DType | None:
        """The declared type of the components, None when Python numbers were given without one."""
        return self._dtype

    @property
    def entries(self) -> np.ndarray:
        """The components as a numpy array; the memory itself."""
        return self._data

    def get_shape(self) -> tuple[int, ...]:
        """The shape."""
        return self.shape

    def to_numpy(self) -> np.ndarray:
        """A copy as a numpy array."""
        return self._data.copy()

    def to_list(self) -> list[Any]:
        """Nested lists of Python numbers."""
        return self._data.tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._data, dtype) if copy or dtype is not None else self._data

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kw: Any) -> Any:
        arrays = [x._data if isinstance(x, Matrix) else x for x in inputs]
        out = kw.pop("out", None)
        result = getattr(ufunc, method)(*arrays, **kw)
        if out is not None:  # an augmented assignment keeps the object, as it keeps the memory of a field's element
            out[0]._data[...] = result
            return out[0]
        return self.__qd_wrap__(result)

    def __qd_wrap__(self, result: Any) -> Any:
        """Convert the result of a function of this matrix: arrays to matrices, numpy scalars to Python numbers."""
        return wrap(result, declared=self._dtype is not None)

    def __getitem__(self, index: Any) -> Any:
        part = wrap(self._data[tuple(index) if isinstance(index, (list, Matrix)) else index], declared=self._dtype is not None)
        return _comparison(part, getattr(self, "_how", None))

    def __setitem__(self, index: Any, value: Any) -> None:
        self._data[index] = self._fitting(value)

    def _fitting(self, value: Any) -> np.ndarray:
        """A value that becomes some of the components."""
        new = value._data if isinstance(value, Matrix) else numbers(value, self._data.dtype)
        return fitting(new, self._data.dtype, f"a value of shape {self.shape}")

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[Any]:
        return (self[k] for k in range(self.n))

    def __getattr__(self, name: str) -> Any:
        positions = None if name.startswith("_") else front.swizzle_positions(self._data.shape, name)
        if positions is None:
            raise AttributeError(f"a value of shape {self._data.shape} has no attribute `{name}`")
        return self[positions[0]] if len(positions) == 1 else self.__qd_wrap__(self._data[list(positions)])

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("_data", "_dtype"):
            object.__setattr__(self, name, value)
            return
        positions = front.swizzle_positions(self._data.shape, name)
        if positions is None:
            raise AttributeError(f"a value of shape {self._data.shape} has no components `{name}`")
        self._data[list(positions)] = self._fitting(value)

    def __eq__(self, other: Any) -> Any:
        return _comparison(np.equal(self, other), np.all)

    def __ne__(self, other: Any) -> Any:
        return _comparison(np.not_equal(self, other), np.any)

    def __bool__(self) -> bool:
        """The truth value of ``a == b`` (all components are equal) or ``a != b`` (some differ).

        Raises:
            QdrunTypeError: of any other matrix.
        """
        how = getattr(self, "_how", None)
        if how is not None:
            return bool(how(self._data))
        raise QdrunTypeError("the truth of a matrix is ambiguous", hint="use .any() or .all()")

    def __repr__(self) -> str:
        return str(self._data.tolist())

    def __hash__(self) -> int:
        return id(self)

    def __copy__(self) -> Matrix:
        return type(self)(self)

    def __deepcopy__(self, memo: Any) -> Matrix:
        return type(self)(self)

    def __reduce__(self) -> Any:
        return type(self), (self._data, self._dtype)

    def __qd_value__(self) -> values.MatrixValue:
        """The constant that a kernel sees: typed as declared, else with the default types."""
        dtype = self._dtype
        if dtype is None:
            fp, ip = defaults()
            dtype = (
                fp if self._data.dtype.kind == "f" else ip if self._data.dtype.kind in "iu" else from_numpy(self._data.dtype)
            )
        return values.MatrixValue(self.shape, tuple(Const(convert(x, dtype), dtype) for x in self._data.ravel().tolist()))

    def norm_sqr(self) -> float:
        """The sum of the squares of all components."""
        return (self._data * self._data).sum().item()

    def norm(self, eps: float = 0.0) -> float:
        """``sqrt(norm_sqr + eps)``."""
        return float(np.sqrt(self.norm_sqr() + eps))

    def norm_inv(self, eps: float = 0.0) -> float:
        """``1 / sqrt(norm_sqr + eps)``."""
        return 1.0 / self.norm(eps)

    def normalized(self, eps: float = 0.0) -> Matrix:
        """``self / (norm + eps)``."""
        return self * (1.0 / (self.norm() + eps))

    def dot(self, other: Any) -> Any:
        """The inner product of two vectors."""
        return self._paired(other, np.dot, "dot")

    def cross(self, other: Any) -> Any:
        """The cross product: a vector in three dimensions, a number in two."""
        if self.n == 2:
            p, q = self._data, np.asarray(other)
            return (p[0] * q[1] - p[1] * q[0]).item()
        return self._paired(other, np.cross, "cross")

    def frobenius_inner(self, other: Any) -> Any:
        """The sum of the products of the components of two matrices of one shape."""
        right = np.asarray(other)
        if right.shape != self.shape:
            raise QdrunTypeError(f"frobenius_inner takes two matrices of one shape, not {self.shape} and {right.shape}")
        return (self._data * right).sum().item()

    def outer_product(self, other: Any) -> Any:
        """The matrix of all products ``self[i] * other[j]``."""
        return self.__qd_wrap__(np.outer(self._data, np.asarray(other)))

    def _paired(self, other: Any, f: Any, what: str) -> Any:
        right = np.asarray(other)
        if right.shape != self.shape or self.ndim != 1:
            raise QdrunFitError(f"{what} takes two vectors of one length, not shapes {self.shape} and {right.shape}")
        return self.__qd_wrap__(f(self._data, right))

    def determinant(self) -> float:
        """The determinant of a square matrix."""
        return float(np.linalg.det(self._data))

    def inverse(self) -> Matrix:
        """The inverse of a square matrix.

        Raises:
            QdrunFitError: it is not square.
            QdrunRuntimeError: it is singular, exactly or nearly.
        """
        return self.__qd_wrap__(host_linalg.inverse(self._data))

    def transpose(self) -> Matrix:
        """Rows become columns; a vector becomes a matrix of one row."""
        return self.__qd_wrap__((self._data if self.ndim == 2 else self._data[:, None]).T.copy())

    def trace(self) -> Any:
        """The sum of the diagonal.

        Raises:
            QdrunTypeError: the matrix is not square.
        """
        if self.ndim != 2 or self.n != self.m:
            raise QdrunFitError(f"trace() takes a square matrix, not one of shape {self.shape}")
        return np.trace(self._data).item()

    def sum(self) -> Any:
        """The sum of all components."""
        return self._data.sum().item()

    def max(self) -> Any:
        """The largest component."""
        return self._data.max().item()

    def min(self) -> Any:
        """The smallest component."""
        return self._data.min().item()

    def any(self) -> bool:
        """Whether some component is not zero."""
        return bool(self._data.any())

    def all(self) -> bool:
        """Whether no component is zero."""
        return bool(self._data.all())

    def cast(self, dtype: Any) -> Matrix:
        """A copy with components of ``dtype``."""
        return type(self)(self._data.astype(resolve(dtype).numpy))

    def fill(self, val: Any) -> None:
        """Set every component."""
        self._data[...] = self._fitting(val)

    @staticmethod
    @has_lowering(constructors.lower_zero)
    def zero(dt: Any, n: int, m: int | None = None) -> Matrix:
        """A vector or matrix of zeros."""
        return _filled(0, dt, n, m)

    @staticmethod
    @has_lowering(constructors.lower_one)
    def one(dt: Any, n: int, m: int | None = None) -> Matrix:
        """A vector or matrix of ones."""
        return _filled(1, dt, n, m)

    @staticmethod
    @has_lowering(constructors.lower_unit)
    def unit(n: int, i: int, dt: Any = None) -> Matrix:
        """The i-th basis vector of n dimensions."""
        return Vector([int(k == i) for k in range(n)], int if dt is None else dt)

    @staticmethod
    @has_lowering(front.identity)
    def identity(dt: Any, n: int) -> Matrix:
        """The n x n identity."""
        return Matrix(np.eye(n), dt)

    @staticmethod
    @has_lowering(front.diag)
    def diag(dim: int, val: Any) -> Matrix:
        """The matrix with ``val`` on its diagonal and zero elsewhere."""
        return Matrix([[val if i == j else val * 0 for j in range(dim)] for i in range(dim)])

    @staticmethod
    @has_lowering(constructors.lower_rows)
    def rows(rows: Sequence[Any]) -> Matrix:
        """A matrix from its rows."""
        return Matrix(list(rows))

    @staticmethod
    @has_lowering(front.columns_of)
    def cols(cols: Sequence[Any]) -> Matrix:
        """A matrix from its columns."""
        return Matrix(list(cols)).transpose()

    @classmethod
    def field(
        cls,
        n: int,
        m: int,
        dtype: Any,
        shape: Any = None,
        order: str | None = None,
        name: str = "",
        offset: Any = None,
        needs_grad: bool = False,
        needs_dual: bool = False,
        layout: Any = None,
        ndim: int | None = None,
        per_trial: bool = True,
    ) -> Any:
        """A field of n x m matrices, or with ``ndim=1`` of vectors of n components; the other arguments are those of ``qd.field``."""
        element = (n,) if ndim == 1 else (n, m)
        how = {"name": name, "order": order, "layout": layout, "offset": offset, "per_trial": per_trial}
        return current_program().factory.field(
            resolve(dtype), shape, element, needs_grad=needs_grad, needs_dual=needs_dual, **how
        )

    @classmethod
    def ndarray(
        cls,
        n: int,
        m: int,
        dtype: Any,
        shape: Any,
        needs_grad: bool = False,
        needs_dual: bool = False,
        layout: Any = None,
        per_trial: bool = True,
    ) -> Any:
        """An ndarray of n x m matrices; the other arguments are those of ``qd.ndarray``."""
        how = {"needs_grad": needs_grad, "needs_dual": needs_dual, "layout": layout, "per_trial": per_trial}
        return current_program().factory.ndarray(resolve(dtype), shape, (n, m), **how)

    @classmethod
    def tensor(
        cls,
        n: int,
        m: int,
        dtype: Any,
        shape: Any,
        *,
        backend: int = 1,
        layout: Any = None,
        needs_grad: bool = False,
        **unknown: Any,
    ) -> Any:
        """A tensor of n x m matrices; the other arguments are those of ``qd.tensor``."""
        how = {"backend": backend, "layout": layout, "needs_grad": needs_grad, "unknown": unknown}
        return current_program().factory.tensor("qd.Matrix.tensor", resolve(dtype), (n, m), shape, **how)


def _of_class(name: str, function: Any) -> None:
    """Let kernels call a method by its class: ``qd.Vector.dot(u, v)``."""

    def lower(b: Any, m: Any, *args: Any, **kw: Any) -> Any:
        known = isinstance(m, Matrix) and not any(isinstance(x, (values.MatrixValue, Op, Const)) for x in (*args, *kw.values()))
        return function(m, *args, **kw) if known else METHODS[name](b, ops.as_matrix(b, m, f"{name}()"), *args, **kw)

    function.__qd_lower__ = lower


for _name in sorted(METHODS.keys() & vars(Matrix).keys() - {"fill"}):
    _of_class(_name, vars(Matrix)[_name])


class Vector(Matrix):
    """A vector of shape (n,)."""

    __slots__ = ()

    def __init__(self, arr: Any, dt: Any = None) -> None:
        super().__init__(arr, dt)
        if self.ndim != 1:
            raise QdrunFitError(f"a vector has one axis, not shape {self.shape}")

    @classmethod
    def field(  # type: ignore[override]
        cls,
        n: int,
        dtype: Any,
        shape: Any = None,
        order: str | None = None,
        name: str = "",
        offset: Any = None,
        needs_grad: bool = False,
        needs_dual: bool = False,
        layout: Any = None,
        per_trial: bool = True,
    ) -> Any:
        """A field of vectors of n components; the other arguments are those of ``qd.field``."""
        how = {"name": name, "order": order, "layout": layout, "offset": offset, "per_trial": per_trial}
        return current_program().factory.field(resolve(dtype), shape, (n,), needs_grad=needs_grad, needs_dual=needs_dual, **how)

    @classmethod
    def ndarray(  # type: ignore[override]
        cls,
        n: int,
        dtype: Any,
        shape: Any,
        needs_grad: bool = False,
        needs_dual: bool = False,
        layout: Any = None,
        per_trial: bool = True,
    ) -> Any:
        """An ndarray of vectors of n components; the other arguments are those of ``qd.ndarray``."""
        how = {"needs_grad": needs_grad, "needs_dual": needs_dual, "layout": layout, "per_trial": per_trial}
        return current_program().factory.ndarray(resolve(dtype), shape, (n,), **how)

    @classmethod
    def tensor(  # type: ignore[override]
        cls,
        n: int,
        dtype: Any,
        shape: Any,
        *,
        backend: int = 1,
        layout: Any = None,
        needs_grad: bool = False,
        **unknown: Any,
    ) -> Any:
        """A tensor of vectors of n components; the other arguments are those of ``qd.tensor``."""
        how = {"backend": backend, "layout": layout, "needs_grad": needs_grad, "unknown": unknown}
        return current_program().factory.tensor("qd.Vector.tensor", resolve(dtype), (n,), shape, **how)


def _filled(value: int, dt: Any, n: int, m: int | None) -> Matrix:
    shape = (n,) if m is None else (n, m)
    return wrap(np.full(shape, value, resolve(dt).numpy))


def _comparison(result: Any, how: Any) -> Any:
    """The result of ``==`` or ``!=`` of matrices, which has a truth value."""
    if isinstance(result, Matrix):
        object.__setattr__(result, "_how", how)
    return result


def wrap(result: Any, declared: bool = True) -> Any:
    """A numpy array of one or two axes as a ``Vector`` or ``Matrix`` on the same memory; a numpy scalar as a Python number.

    ``declared``: whether the array's type counts as the declared one.
    """
    if isinstance(result, np.generic):
        return result.item()
    if not isinstance(result, np.ndarray) or result.ndim not in (1, 2):
        return result
    out = object.__new__(Vector if result.ndim == 1 else Matrix)
    out._data = result
    out._dtype = from_numpy(result.dtype) if declared else None
    return out
