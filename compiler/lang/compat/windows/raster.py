"""A software rasteriser in NumPy: discs, lines and triangles, with a depth buffer. Images are indexed ``[x, y]`` from the lower left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

Array = np.ndarray
Shade = Callable[[Array, Array], Array]
"""(which disc or triangle, its normal or its weights of the corners there) of each pixel -> their colours."""
Layer = tuple[Array, Array]
"""(buffer of the image's size, value of each shape or corner): larger values cover smaller ones."""
FRAGMENTS = 1 << 20
"""Pixels that are computed at once."""


class Raster:
    """An image and its depth buffer.

    Attributes:
        color: (width, height, 3), from 0 to 1.
        depth: (width, height), 1 at the near plane, 0 where nothing was drawn.
    """

    def __init__(self, res: tuple[int, int], background: Any = (0.0, 0.0, 0.0)) -> None:
        self.color = np.empty((*res, 3), np.float32)
        self.color[:] = background
        self.depth = np.zeros(res)

    def image(self, pixels: Array) -> None:
        """Stretch an image (w, h, 3) over everything. It takes the nearest pixel."""
        (w, h), (a, b) = self.color.shape[:2], pixels.shape[:2]
        x, y = ((np.arange(n) * m // n) for n, m in ((w, a), (h, b)))
        self.color[:] = pixels if (w, h) == (a, b) else pixels[x[:, None], y[None]]

    def discs(self, at: Array, radius: Array, color: Array, depth: Array | None = None, shade: Shade | None = None) -> None:
        """Draw filled circles, each of one pixel at least; later ones cover former ones.

        Args:
            at: centres in pixels, (n, 2).
            radius: in pixels, (n,).
            color: (n, 3).
            depth: of the centres, (n,); None draws over everything.
            shade: gives the colours in the place of ``color``.
        """
        ok = np.isfinite(at).all(1) & (np.abs(at) < 1e6).all(1) & (radius > 0)
        w, h = self.color.shape[:2]
        ok &= ((at + radius[:, None] >= 0) & (at - radius[:, None] <= (w, h))).all(1)
        reach = np.ceil(np.minimum(radius, 2 * max(w, h))).astype(int)
        layer = self._layer(depth, len(at))
        for part in _runs(np.flatnonzero(ok), reach, layer[1]):
            r = int(reach[part[0]])
            span = np.arange(-r, r + 1)
            offset = np.stack(np.meshgrid(span, span, indexing="ij"), -1).reshape(-1, 2)
            for chunk in _chunks(part, len(offset)):
                self._disc_pixels(chunk, at, radius, color, layer, shade, offset)

    def _disc_pixels(
        self, chunk: Array, at: Array, radius: Array, color: Array, layer: Layer, shade: Shade | None, offset: Array
    ) -> None:
        cell = np.floor(at[chunk]).astype(int)[:, None] + offset
        apart = (cell + 0.5 - at[chunk][:, None]) / radius[chunk][:, None, None]
        length = np.square(apart).sum(-1)
        inside = (length <= 1) | (offset == 0).all(-1)
        w, h = self.color.shape[:2]
        inside &= (cell >= 0).all(-1) & (cell < (w, h)).all(-1)
        disc, _ = np.nonzero(inside)
        which, apart, length = chunk[disc], apart[inside], length[inside]

        def colors(k: Array) -> Array:
            if shade is None:
                return color[which[k]]
            up = np.sqrt(np.maximum(0, 1 - length[k]))
            return shade(which[k], np.concatenate([apart[k], up[:, None]], 1))

        self._plot(cell[inside], colors, layer[0], layer[1][which])

    def lines(self, begin: Array, end: Array, radius: Array, color: Array, depth: Array | None = None) -> None:
        """Draw lines with round ends.

        Args:
            begin: in pixels, (n, 2).
            end: likewise.
            radius: half the width in pixels, (n,).
            color: (n, 3), or (n, 2, 3) for both ends.
            depth: of both ends, (n, 2).
        """
        w, h = self.color.shape[:2]
        seen = np.flatnonzero(np.isfinite(begin).all(1) & np.isfinite(end).all(1))
        first, last = _clip(begin[seen], end[seen], (w, h), float(np.max(radius, initial=1)))
        seen, first, last = seen[first < last], first[first < last], last[first < last]
        a, way = begin[seen], end[seen] - begin[seen]
        count = np.ceil(np.linalg.norm(way, axis=1) * (last - first) / np.maximum(0.5, radius[seen] / 2)).astype(int) + 1
        for lo, hi in _spans(count):
            n = count[lo:hi]
            line = np.repeat(np.arange(lo, hi), n)
            place = np.arange(n.sum()) - np.repeat(np.cumsum(n) - n, n)
            t = first[line] + (last - first)[line] * place / np.maximum(count[line] - 1, 1)
            ends = color[seen[line]]
            shown = ends if ends.ndim == 2 else ends[:, 0] * (1 - t)[:, None] + ends[:, 1] * t[:, None]
            z = None if depth is None else depth[seen[line], 0] * (1 - t) + depth[seen[line], 1] * t
            self.discs(a[line] + way[line] * t[:, None], radius[seen[line]], shown, z)

    def triangles(self, corners: Array, color: Array, depth: Array | None = None, shade: Shade | None = None) -> None:
        """Draw filled triangles.

        Args:
            corners: in pixels, (n, 3, 2).
            color: (n, 3), or (n, 3, 3) for each corner.
            depth: of the corners, (n, 3).
            shade: gives the colours in the place of ``color``.
        """
        res = np.array(self.color.shape[:2])
        ok = np.isfinite(corners.reshape(len(corners), 6).sum(1))
        safe = np.where(ok[:, None, None], corners, 0)
        low = np.clip(np.floor(safe.min(1)), 0, res).astype(int)
        high = np.clip(np.ceil(safe.max(1)), 0, res).astype(int)
        size = np.max(high - low, 1)
        ok &= np.all(high > low, 1)
        side = 1 << np.ceil(np.log2(np.maximum(size, 1))).astype(int)
        layer = self._layer(depth, len(corners), corners=3)
        for part in _runs(np.flatnonzero(ok), side, layer[1]):
            span = np.arange(int(side[part[0]]))
            offset = np.stack(np.meshgrid(span, span, indexing="ij"), -1).reshape(-1, 2)
            for chunk in _chunks(part, len(offset)):
                self._triangle_pixels(chunk, corners, color, layer, shade, low, offset)

    def _triangle_pixels(
        self, chunk: Array, corners: Array, color: Array, layer: Layer, shade: Shade | None, low: Array, offset: Array
    ) -> None:
        cell = low[chunk][:, None] + offset
        p, (a, b, c) = cell + 0.5, (corners[chunk, k][:, None] for k in range(3))
        area = _cross(b - a, c - a)
        with np.errstate(divide="ignore", invalid="ignore"):
            weight = np.stack([_cross(b - p, c - p), _cross(c - p, a - p), _cross(a - p, b - p)], -1) / area[..., None]
        inside = (weight >= -1e-9).all(-1) & (cell < self.color.shape[:2]).all(-1)
        which, weight = chunk[np.nonzero(inside)[0]], weight[inside].astype(np.float32)

        def colors(k: Array) -> Array:
            if shade is not None:
                return shade(which[k], weight[k])
            return color[which[k]] if color.ndim == 2 else np.einsum("nk,nkc->nc", weight[k], color[which[k]])

        self._plot(cell[inside], colors, layer[0], np.einsum("nk,nk->n", weight, layer[1][which]))

    def text(self, mask: Array, at: tuple[float, float], color: Array) -> None:
        """Draw a mask (w, h) with values from 0 to 1; ``at`` is its upper left corner in pixels."""
        w, h = self.color.shape[:2]
        cell = np.argwhere(mask > 0)
        place = cell + np.array([int(at[0]), int(at[1]) - mask.shape[1]])
        inside = (place >= 0).all(1) & (place < (w, h)).all(1)
        (x, y), share = place[inside].T, mask[tuple(cell[inside].T)][:, None]
        self.color[x, y] = self.color[x, y] * (1 - share) + color * share

    def _layer(self, depth: Array | None, count: int, corners: int = 1) -> Layer:
        """The buffer that decides what covers what: that of depths, or, without depths, one for the order of this call."""
        if depth is not None:
            return self.depth, depth
        order = np.arange(1.0, count + 1)
        return np.zeros(self.depth.shape), order if corners == 1 else np.repeat(order[:, None], corners, 1)

    def _plot(self, cell: Array, colors: Callable[[Array], Array], buffer: Array, depth: Array) -> None:
        """Set those pixels that are not behind what is there. ``colors``: of the pixels with these numbers."""
        flat, buffer = cell[:, 0] * self.color.shape[1] + cell[:, 1], buffer.reshape(-1)
        seen = np.flatnonzero(depth >= buffer[flat])
        seen = seen[np.argsort(depth[seen], kind="stable")]
        buffer[flat[seen]] = depth[seen]
        seen = seen[depth[seen] == buffer[flat[seen]]]  # the nearest at each place
        self.color.reshape(-1, 3)[flat[seen]] = colors(seen)


def _cross(a: Array, b: Array) -> Array:
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]


def _runs(which: Array, size: Array, layer: Array) -> Iterator[Array]:
    """Parts of ``which`` of equal size, in each the nearest first: they cover most of the others."""
    if len(which):
        near = layer if layer.ndim == 1 else layer.max(1)
        which = which[np.lexsort((-near[which], size[which]))]
        yield from np.split(which, np.flatnonzero(np.diff(size[which])) + 1)


def _chunks(which: Array, each: int) -> Iterator[Array]:
    step = max(1, FRAGMENTS // each)
    for lo in range(0, len(which), step):
        yield which[lo : lo + step]


def _spans(count: Array) -> Iterator[tuple[int, int]]:
    """Ranges of lines with not too many points together."""
    lo, ends = 0, np.cumsum(count)
    while lo < len(count):
        done = ends[lo - 1] if lo else 0
        hi = max(lo + 1, int(np.searchsorted(ends, done + FRAGMENTS, "right")))
        yield lo, hi
        lo = hi


def _clip(begin: Array, end: Array, res: tuple[int, int], margin: float) -> tuple[Array, Array]:
    """The part of each line that is near the image: from and to, as shares of its length."""
    first, last = np.zeros(len(begin)), np.ones(len(begin))
    way = end - begin
    for axis in (0, 1):
        for sign, edge in ((1, -margin), (-1, -margin - res[axis])):  # sign * x >= edge
            start, step = sign * begin[:, axis] - edge, sign * way[:, axis]
            with np.errstate(divide="ignore", invalid="ignore"):
                t = -start / step
            first = np.where(step > 0, np.maximum(first, t), first)
            last = np.where(step < 0, np.minimum(last, t), last)
            last = np.where((step == 0) & (start < 0), -1.0, last)
    return first, last
