"""``qd.linalg.SparseMatrixBuilder``: collects triplets that kernels add, and makes matrices of them."""

from __future__ import annotations

from typing import Any

from ...compiler.extend import Assembly, make_ndarray, scratch
from ...compiler.face import QdrunRuntimeError, QdrunValueError, current_program, f32, i32
from .matrix import SparseMatrix, real_type, shape_of
from .pattern import refuse_trials, sort_triplets, sum_runs

NAME = "SparseMatrixBuilder"


class SparseMatrixBuilder(Assembly):
    """Triplets (row, column, value). A kernel with a parameter of the type ``qd.types.sparse_matrix_builder()`` adds some:
    ``A[i, j] += v`` and ``A[i, j] -= v``; each adds one triplet.

    The triplets have no gradient. For the gradient with respect to values, add to a matrix that is built: see ``SparseMatrix``.

    Args:
        num_rows: of the matrices.
        num_cols: of the matrices; None: as many.
        max_num_triplets: how many triplets fit: 4 bytes for the row, 4 for the column, those of ``dtype``, and 4 more when it builds.
        dtype: f32 or f64.
        storage_format: a hint of Quadrants that means nothing here: rows are compressed.
        needs_grad: whether the values of matrices have gradients.

    Raises:
        QdrunTypeError: another type.
        QdrunValueError: no such shape, or room for no triplet.
        QdrunRuntimeError: the program is batched.
    """

    def __init__(
        self,
        num_rows: Any = None,
        num_cols: Any = None,
        max_num_triplets: int = 0,
        dtype: Any = f32,
        storage_format: str = "col_major",
        needs_grad: bool = False,
    ) -> None:
        del storage_format
        refuse_trials(current_program(), NAME)
        self.num_rows, self.num_cols = shape_of(num_rows, num_cols, NAME)
        if not isinstance(max_num_triplets, int) or max_num_triplets < 1:
            raise QdrunValueError(f"{NAME}: max_num_triplets={max_num_triplets!r} is no positive whole number")
        self.dtype, self.needs_grad, self._most = real_type(dtype, NAME), needs_grad, max_num_triplets
        size = max_num_triplets + 1
        arrays = make_ndarray(i32, size, ()), make_ndarray(i32, size, ()), make_ndarray(self.dtype, size, ())
        super().__init__(*arrays, scratch("linalg.none", 1, i32), make_ndarray(i32, 1, ()), False)

    def _count(self) -> int:
        """How many triplets there are; it waits for the device.

        Raises:
            QdrunRuntimeError: more than fit.
        """
        count = int(self.counts.to_numpy()[0])
        if count > self._most:
            self.clear()
            raise QdrunRuntimeError(
                f"{NAME}: {count} triplets were added, and {self._most} fit\n  do: max_num_triplets={count}"
            )
        return count

    def clear(self) -> None:
        """Drop the triplets."""
        self.counts.fill(0)
        self.values.fill(0)

    def build(self, dtype: Any = None, _format: str = "CSR") -> SparseMatrix:
        """The matrix of the triplets, which are added up where several have one entry. The builder is empty afterwards.

        Args:
            dtype: not used: that of the builder counts.
            _format: "CSR"; others do not exist.

        Raises:
            QdrunRuntimeError: more triplets were added than fit.
            QdrunValueError: a triplet lies outside of the matrix.
        """
        del dtype
        if _format != "CSR":
            raise QdrunValueError(f"{NAME}.build: the format {_format!r} does not exist\n  do: leave it out")
        count, shape = self._count(), (self.num_rows, self.num_cols)
        if not count:
            return SparseMatrix(*shape, dtype=self.dtype)
        found = sort_triplets(shape, self.rows, self.columns, count, NAME)
        values = make_ndarray(self.dtype, found.pattern.nnz + 1, (), self.needs_grad)
        sum_runs(self.values, found.order, found.runs, values)
        self.clear()
        return SparseMatrix.of(found.pattern, values)

    def print_triplets(self) -> None:
        """Print the triplets, in the order in which they were added."""
        count = self._count()
        print(f"n={self.num_rows}, m={self.num_cols}, num_triplets={count} (max={self._most})")
        for i, j, value in zip(*(a.to_numpy()[:count].tolist() for a in (self.rows, self.columns, self.values)), strict=True):
            print(f"({i}, {j}) val={value}")
