"""Chooses the points of a curve, and the trials of a chart, that are kept where there are too many."""

from __future__ import annotations

import numpy as np


def picked(count: int, most: int) -> list[int]:
    """At most ``most`` indices below ``count``, evenly spread, the first and the last one included."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})


def envelope(x: np.ndarray, y: np.ndarray, buckets: int) -> np.ndarray:
    """The points of a curve that keep its extremes: the smallest and the largest of each of ``buckets`` equal parts of the x axis.

    Args:
        x: (points,), not decreasing.
        y: (points,); points that are not finite are left out.
        buckets: number of parts.

    Returns:
        Indices of points in their order, the first and the last finite point among them; all finite points where there are no more than
        two for each part.
    """
    kept = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
    if len(kept) <= 2 * buckets:
        return kept
    x, y = x[kept].astype(np.float64), y[kept]
    width = (x[-1] - x[0]) / buckets or 1.0
    bucket = np.minimum(((x - x[0]) / width).astype(np.int64), buckets - 1)
    by_value = np.lexsort((y, bucket))
    ends = np.flatnonzero(np.diff(bucket[by_value])) + 1
    lowest, highest = by_value[np.append(0, ends)], by_value[np.append(ends, len(kept)) - 1]
    return kept[np.unique(np.concatenate([lowest, highest, [0, len(kept) - 1]]))]


__all__ = ["envelope", "picked"]
