"""Neighbours of points: the points sorted by the cells of a grid that tiles the space, so that no bounds of it are asked for."""

from __future__ import annotations

from math import prod
from typing import Any

from ...compiler.extend import begin_of, make_field
from ...compiler.face import QdrunFitError, QdrunValueError, Tensor, cast, data_oriented, floor, func, i32, kernel, static
from .arrays import line
from .sorting import sorted_order


@kernel
def _begins(bucket_of: Tensor, point: Tensor, first: Tensor) -> None:
    """The first place of each bucket: that of the first point in it, or in a later one."""
    for k in point:
        before = -1
        if k > 0:
            before = bucket_of[point[k - 1]]
        for b in range(before + 1, bucket_of[point[k]] + 1):
            first[b] = k
    for _ in range(1):
        for b in range(bucket_of[point[point.shape[0] - 1]] + 1, first.shape[0]):
            first[b] = point.shape[0]


@data_oriented
class HashGrid:
    """Points by cells. After ``build(x)`` the points in a cell are ``point[first[b]]`` to ``point[first[b + 1] - 1]`` for its bucket ``b``.

    A cell is a cube of the space; a bucket holds all cells whose indices are equal modulo ``shape``, so points far apart may share one:
    test the distance. Neighbouring cells are in different buckets. The order of the points in a bucket is that of their numbers.

    Attributes:
        first: for each bucket its first place, and the number of points behind them.
        point: the numbers of the points in the order of their buckets.
        width: the length of a cell's edge.
        shape: the buckets along each axis.
    """

    def __init__(self, count: int, width: float, shape: tuple[int, ...]) -> None:
        """A grid without points: of the current program, in whose memory it takes ``4 * (2 * count + prod(shape) + 1)`` bytes.

        Args:
            count: points.
            width: at least the distance up to which neighbours are wanted.
            shape: buckets along each axis, at least 3 each; about as many as points are a good choice.

        Raises:
            QdrunValueError: a number is out of range.
        """
        if count < 1 or not width > 0 or not 1 <= len(shape) <= 3 or any(n < 3 for n in shape) or prod(shape) >= 2**31 - 1:
            raise QdrunValueError(
                f"HashGrid({count}, {width}, {shape}): a grid has points, a positive width, and 1 to 3 axes of at least 3 buckets"
            )
        self.count, self.width, self.shape = int(count), float(width), tuple(map(int, shape))
        self.first = make_field(i32, prod(self.shape) + 1, (), name="first")
        self.point = make_field(i32, self.count, (), name="point")
        self._bucket_of = make_field(i32, self.count, (), name="bucket_of")

    def build(self, x: Any) -> None:
        """Sort points into the grid. It has no derivative: which points are neighbours is constant.

        Args:
            x: one axis of vectors, one for each point; of numbers where the grid has one axis, whose cells are numbers, too.

        Raises:
            QdrunTypeError, QdrunValueError: other elements, or another number of points.
        """
        if begin_of(x):
            raise QdrunValueError(f"HashGrid.build: the indices of `x` begin at {begin_of(x)}, not at 0; do: leave out offset=")
        x = line(x, "HashGrid", "x", self.count, scalars=False)
        if not x.dtype.is_real or x.element_shape != (() if len(self.shape) == 1 else (len(self.shape),)):
            raise QdrunFitError(
                f"HashGrid.build: `x` holds {x.element_shape} of {x.dtype}, not positions with {len(self.shape)} axes"
            )
        self._sort(x)
        sorted_order(self._bucket_of, self.point, "HashGrid")
        _begins(self._bucket_of, self.point, self.first)

    @kernel
    def _sort(self, x: Tensor) -> None:
        for p in x:
            self._bucket_of[p] = self.bucket(self.cell(x[p]))

    @func
    def cell(self, position: Any) -> Any:
        """The cell of a position: whole numbers. For kernels."""
        return cast(floor(position / self.width), i32)

    @func
    def bucket(self, cell: Any) -> Any:
        """The bucket of a cell. For kernels."""
        b = 0
        if static(len(self.shape) == 1):
            b = cell % self.shape[0]
        else:
            for axis in static(range(len(self.shape))):
                b = b * self.shape[axis] + cell[axis] % self.shape[axis]
        return b
