"""``qd.linalg.SparseMatrix``: a matrix in compressed rows, and its arithmetic as kernels, which a tape takes like other launches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ...compiler.extend import Assembly, DType, from_zero, make_ndarray, resolve, unwrap
from ...compiler.face import Field, Ndarray, QdrunRuntimeError, QdrunTypeError, QdrunValueError, current_program, f32, f64, i32
from ..algorithms import inclusive_scan
from .pattern import Pattern, refuse_trials, sort_triplets, sum_runs, vector_like
from .products import combine, convert, count_products, hadamard, join, multiply, products, scale, split_triplets

NAME = "SparseMatrix"


class SparseMatrix(Assembly):
    """A sparse matrix. Its entries stay the same; their values may change.

    In a kernel that has it as a parameter of the type ``qd.types.sparse_matrix_builder()``, ``A[i, j] += v`` adds to the entry (i, j),
    which must be there. With ``needs_grad`` the values have a gradient, so that a tape brings the gradient of solutions and products to
    what the kernel read.

    Args:
        n: rows.
        m: columns; None: as many.
        sm: a matrix to share the entries and the values of.
        dtype: f32 or f64.
        storage_format: a hint of Quadrants that means nothing here: rows are compressed.

    Attributes:
        pattern: its entries.
        values: their values, and one element more; an ndarray.

    Raises:
        QdrunTypeError: another type.
        QdrunValueError: no such shape.
        QdrunRuntimeError: the program is batched.
    """

    def __init__(
        self, n: Any = None, m: Any = None, sm: SparseMatrix | None = None, dtype: Any = f32, storage_format: str = "col_major"
    ) -> None:
        del storage_format
        refuse_trials(current_program(), NAME)
        if sm is not None:
            self._take(sm.pattern, sm.values)
            return
        self.dtype = real_type(dtype, NAME)
        self.n, self.m = shape_of(n, m, NAME)
        nothing = make_ndarray(i32, 1, ()), make_ndarray(i32, 1, ()), make_ndarray(i32, self.n + 1, ())
        self._take(Pattern((self.n, self.m), 0, *nothing), make_ndarray(self.dtype, 1, ()))

    def _take(self, pattern: Pattern, values: Ndarray) -> None:
        (self.n, self.m), self.dtype, self.pattern = pattern.shape, values.dtype, pattern
        counts = make_ndarray(i32, 1, ())
        super().__init__(pattern.rows, pattern.columns, values, pattern.begins, counts, True)

    @staticmethod
    def of(pattern: Pattern, values: Ndarray) -> SparseMatrix:
        """The matrix of a pattern and of values that are ready."""
        made = SparseMatrix.__new__(SparseMatrix)
        made._take(pattern, values)
        return made

    @staticmethod
    def from_triplets(n: int, m: int, rows: Any, columns: Any, values: Any) -> SparseMatrix:
        """The matrix of triplets; those of one entry are added up, in their order. The gradient goes to ``values``.

        Args:
            n: rows.
            m: columns.
            rows: an ndarray or a field of one axis, i32.
            columns: as many.
            values: as many f32 or f64.

        Raises:
            QdrunTypeError, QdrunValueError: other types or lengths, or a triplet outside of the matrix.
        """
        what = f"{NAME}.from_triplets"
        refuse_trials(current_program(), what)
        shape = shape_of(n, m, what)
        values = unwrap(values)
        dtype, length = real_type(values.dtype, what), values.shape[0]
        return _of_triplets(
            shape, _vector(rows, i32, length, what), _vector(columns, i32, length, what), _vector(values, dtype, length, what)
        )

    # ---- content
    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.n, self.m

    def fill(self, value: float) -> None:
        """Set the value of every entry; ``fill(0)`` before kernels add to it."""
        self.values.fill(value)

    def to_numpy(self) -> np.ndarray:
        """The matrix with its zeros, (n, m)."""
        self.check()
        out, nnz = np.zeros(self.shape, self.dtype.numpy), self.pattern.nnz
        out[self.rows.to_numpy()[:nnz], self.columns.to_numpy()[:nnz]] = self.values.to_numpy()[:nnz]
        return out

    def check(self) -> None:
        """Refuse a matrix that a kernel added to where it has no entry.

        Raises:
            QdrunRuntimeError: one did.
        """
        lost = int(self.counts.to_numpy()[0])
        if lost:
            raise QdrunRuntimeError(
                f"a kernel added {lost} values to a {self.n} x {self.m} {NAME} where it has no entry, and its entries stay the same\n"
                "  do: build a new matrix with SparseMatrixBuilder, or add a 0 there when it is built"
            )

    def _entry(self, indices: Any) -> int | None:
        """The number of an entry; None: there is none."""
        i, j = (int(k) for k in indices)
        if not (0 <= i < self.n and 0 <= j < self.m):
            raise QdrunValueError(f"{NAME}[{i}, {j}]: the matrix is {self.n} x {self.m}")
        begin, end = (int(k) for k in self.begins.to_numpy()[i : i + 2])
        found = begin + int(np.searchsorted(self.columns.to_numpy()[begin:end], j))
        return found if found < end and self.columns[found] == j else None

    def __getitem__(self, indices: Any) -> float:
        entry = self._entry(indices)
        return 0.0 if entry is None else self.values[entry]

    def __setitem__(self, indices: Any, value: float) -> None:
        entry = self._entry(indices)
        if entry is None:
            raise QdrunValueError(
                f"{NAME}[{indices[0]}, {indices[1]}] has no entry, and entries stay the same\n  do: build a new matrix"
            )
        self.values[entry] = value

    def __repr__(self) -> str:
        rows = ("[" + ", ".join(f"{x:g}" for x in row) + "]" for row in self.to_numpy())
        return "\n".join(rows)

    # ---- arithmetic
    def __add__(self, other: SparseMatrix) -> SparseMatrix:
        return self._plus(other, 1.0, "+")

    def __sub__(self, other: SparseMatrix) -> SparseMatrix:
        return self._plus(other, -1.0, "-")

    def _plus(self, other: Any, factor: float, sign: str) -> Any:
        if not isinstance(other, SparseMatrix):
            return NotImplemented
        _fitting(self, other, sign, self.shape == other.shape)
        if self.pattern.same(other.pattern):
            out = vector_like(self.pattern.nnz + 1, self.dtype, self.values, other.values)
            combine(self.values, other.values, out, factor)
            return SparseMatrix.of(self.pattern, out)
        first, second = self.pattern.nnz, other.pattern.nnz
        rows, columns = make_ndarray(i32, first + second, ()), make_ndarray(i32, first + second, ())
        for target, a, b in ((rows, self.rows, other.rows), (columns, self.columns, other.columns)):
            join(a, b, target, first, 1)
        values = vector_like(first + second, self.dtype, self.values, other.values)
        join(self.values, other.values, values, first, factor)
        return _of_triplets(self.shape, rows, columns, values)

    def __neg__(self) -> SparseMatrix:
        return self * -1.0

    def __mul__(self, other: Any) -> Any:
        """Times a number, or entry by entry times another matrix."""
        out = vector_like(
            self.pattern.nnz + 1, self.dtype, self.values, *([other.values] if isinstance(other, SparseMatrix) else [])
        )
        if isinstance(other, SparseMatrix):
            _fitting(self, other, "*", self.shape == other.shape)
            hadamard(self.rows, self.columns, self.values, other.columns, other.values, other.begins, out)
        elif isinstance(other, (int, float, np.integer, np.floating)):
            scale(self.values, out, float(other))
        else:
            return NotImplemented
        return SparseMatrix.of(self.pattern, out)

    __rmul__ = __mul__

    def transpose(self) -> SparseMatrix:
        """The transposed matrix."""
        nnz = self.pattern.nnz
        rows, columns = make_ndarray(i32, nnz, ()), make_ndarray(i32, nnz, ())
        values = vector_like(nnz, self.dtype, self.values)
        for target, source in ((rows, self.columns), (columns, self.rows), (values, self.values)):
            scale(source, target, 1)
        return _of_triplets((self.m, self.n), rows, columns, values)

    def __matmul__(self, other: Any) -> Any:
        """Times a vector, or times another matrix.

        A vector is an ndarray, and so is the result; for a field or a numpy array the result is a numpy array. Numbers of another type are
        converted to the matrix's.

        Raises:
            QdrunTypeError: something else; a field with a gradient in a tape, which a numpy array would lose.
            QdrunValueError: another length.
        """
        self.check()
        if isinstance(other, SparseMatrix):
            return self._times_matrix(other)
        x, result = as_vector(self.m, self.dtype, other, f"{NAME} @ x", self.values)
        out = vector_like(self.n, self.dtype, self.values, x)
        self.apply(x, out)
        return result(out)

    def apply(self, x: Any, out: Any) -> None:
        """``out`` = the matrix times ``x``; arrays of one axis of the program."""
        multiply(self.begins, self.columns, self.values, x, out)

    def _times_matrix(self, other: SparseMatrix) -> SparseMatrix:
        _fitting(self, other, "@", self.m == other.n)
        nnz = self.pattern.nnz
        ends = make_ndarray(i32, nnz + 1, ())
        count_products(self.columns, other.begins, ends)
        inclusive_scan(ends, ends)
        length = int(ends[nnz])
        rows, columns = make_ndarray(i32, length, ()), make_ndarray(i32, length, ())
        values = vector_like(length, self.dtype, self.values, other.values)
        products(self.rows, self.columns, self.values, other.columns, other.values, other.begins, ends, rows, columns, values)
        return _of_triplets((self.n, other.m), rows, columns, values)

    # ---- from and to elsewhere
    def build_from_ndarray(self, ndarray: Any) -> None:
        """Take new entries from triplets (row, column, value).

        Args:
            ndarray: vectors of three reals, or three numbers for each triplet.

        Raises:
            QdrunTypeError, QdrunValueError: it is no such ndarray, or a triplet lies outside of the matrix.
        """
        what = f"{NAME}.build_from_ndarray"
        triplets = unwrap(ndarray)
        if not isinstance(triplets, Ndarray) or not triplets.dtype.is_real:
            raise QdrunTypeError(f"{what} takes an ndarray of reals, not {type(ndarray).__name__}")
        size = int(np.prod(triplets.shape + triplets.element_shape))
        vectors = triplets.element_shape == (3,) and len(triplets.shape) == 1
        if not vectors and (size % 3 or triplets.element_shape or len(triplets.shape) != 1):
            raise QdrunValueError(
                f"{what}: {size} numbers are no triplets\n  do: a Vector.ndarray(3, ..) of one axis, or 3 numbers for each"
            )
        length = size // 3
        rows, columns = make_ndarray(i32, length, ()), make_ndarray(i32, length, ())
        values = vector_like(length, self.dtype, triplets)
        split_triplets(triplets, rows, columns, values, vectors)
        made = _of_triplets(self.shape, rows, columns, values)
        self._take(made.pattern, made.values)

    def mmwrite(self, filename: str) -> None:
        """Write the entries to a Matrix Market file, in the coordinate format."""
        self.check()
        nnz = self.pattern.nnz
        entries = zip(*(a.to_numpy()[:nnz].tolist() for a in (self.rows, self.columns, self.values)), strict=True)
        lines = ["%%MatrixMarket matrix coordinate real general", f"{self.n} {self.m} {nnz}"]
        lines += [f"{i + 1} {j + 1} {value!r}" for i, j, value in entries]
        Path(filename).write_text("\n".join(lines) + "\n", encoding="ascii")


def _of_triplets(shape: tuple[int, int], rows: Any, columns: Any, values: Any, count: int | None = None) -> SparseMatrix:
    if rows.shape[0] == 0:
        return SparseMatrix(*shape, dtype=values.dtype)
    found = sort_triplets(shape, rows, columns, count, NAME)
    out = vector_like(found.pattern.nnz + 1, values.dtype, values)
    sum_runs(values, found.order, found.runs, out)
    return SparseMatrix.of(found.pattern, out)


def _fitting(a: SparseMatrix, b: SparseMatrix, sign: str, fits: bool) -> None:
    if not fits:
        raise QdrunValueError(f"{a.n} x {a.m} {sign} {b.n} x {b.m}: the shapes of the matrices do not fit")
    if a.dtype != b.dtype:
        raise QdrunTypeError(f"a {NAME} of {a.dtype} {sign} one of {b.dtype}", hint="build both with one dtype")
    a.check()
    b.check()


def real_type(dtype: Any, what: str) -> DType:
    """f32 or f64.

    Raises:
        QdrunTypeError: it is another type.
    """
    found = resolve(dtype)
    if found not in (f32, f64):
        raise QdrunTypeError(f"{what}: the type {found} is not f32 or f64")
    return found


def shape_of(n: Any, m: Any, what: str) -> tuple[int, int]:
    """Rows and columns.

    Raises:
        QdrunValueError: they are no positive whole numbers.
    """
    found = [n, n if m is None else m]
    if not all(isinstance(k, (int, np.integer)) and k > 0 for k in found):
        raise QdrunValueError(f"{what}: {n!r} rows and {m!r} columns: both are positive whole numbers")
    return int(found[0]), int(found[1])


def _vector(array: Any, dtype: DType, length: int, what: str) -> Any:
    """An array of one axis of the program.

    Raises:
        QdrunTypeError: it has another type.
        QdrunValueError: it has another shape.
    """
    array = unwrap(array)
    if not isinstance(array, (Field, Ndarray)) or array.element_shape or array.dtype != dtype:
        of = getattr(array, "dtype", "")
        raise QdrunTypeError(f"{what}: {type(array).__name__} of {of} is no field or ndarray of {dtype}")
    array.refuse_sparse(what)
    if array.shape != (length,):
        raise QdrunValueError(f"{what}: an array of the shape {array.shape} has not {length} elements on one axis")
    return from_zero(array)


def as_vector(length: int, dtype: DType, given: Any, what: str, *others: Any) -> tuple[Any, Any]:
    """A vector of the program, and what makes a result of the kind of the one that is given. Numbers of another type are converted.

    Raises:
        QdrunTypeError: no such vector; in a tape, a field or a numpy array where a gradient would be lost.
        QdrunValueError: another length.
    """
    given = unwrap(given)
    if isinstance(given, Ndarray):
        return _converted(given, dtype, length, what), lambda out: out
    program = current_program()
    own = [given] if isinstance(given, Field) else []
    if program.recorders.tape is not None and not program.recorders.tape.inside and any(a.has_grad() for a in (*own, *others)):
        raise QdrunTypeError(
            f"{what}: the result of a {type(given).__name__} is a numpy array, which has no gradient",
            hint="give an ndarray: its result is an ndarray with a gradient",
        )
    if isinstance(given, Field):
        return _converted(given, dtype, length, what), lambda out: out.to_numpy()
    if not isinstance(given, np.ndarray):
        raise QdrunTypeError(f"{what}: {type(given).__name__} is no ndarray, field or numpy array")
    if given.shape != (length,):
        raise QdrunValueError(f"{what}: an array of the shape {given.shape} has not {length} elements on one axis")
    made = make_ndarray(dtype, length, ())
    made.from_numpy(given.astype(dtype.numpy))
    return made, lambda out: out.to_numpy()


def _converted(array: Any, dtype: DType, length: int, what: str) -> Any:
    """An array of the program, copied if its numbers have another type."""
    found = _vector(array, array.dtype, length, what)
    if found.dtype is dtype:
        return found
    out = vector_like(length, dtype, found)
    convert(found, out)
    return out


__all__ = ["SparseMatrix", "as_vector", "real_type", "shape_of"]
