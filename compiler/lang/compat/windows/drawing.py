"""What one frame of a window shows: draw calls in order, each with copies of its arrays."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .raster import Array, Raster


def as_array(x: Any) -> Array:
    """Copy a field, an ndarray, a tensor of PyTorch, a vector or numbers to NumPy."""
    if hasattr(x, "to_numpy"):
        return np.array(x.to_numpy())
    if hasattr(x, "detach"):
        x = x.detach().cpu()
    return np.array(x)


def points(x: Any, axes: int = 2) -> Array:
    """Positions (n, axes): the leading axes of an array flattened, missing coordinates 0."""
    a = as_array(x).astype(np.float64)
    if a.ndim > 2 and a.shape[-1] == 1:  # column vectors
        a = a[..., 0]
    a = a.reshape(-1, a.shape[-1]) if a.ndim > 1 else a.reshape(1, -1)
    return np.pad(a[:, :axes], ((0, 0), (0, max(0, axes - a.shape[1]))))


def rgb_to_hex(c: Any) -> Any:
    """A colour 0xRRGGBB from three numbers between 0 and 1, or arrays of them."""
    r, g, b = (np.clip(np.asarray(part) * 255, 0, 255).astype(int) for part in (c[0], c[1], c[2]))
    code = (r << 16) + (g << 8) + b
    return code if code.ndim else int(code)


def hex_to_rgb(color: int) -> tuple[float, float, float]:
    """Red, green and blue between 0 and 1 of a colour 0xRRGGBB."""
    r, g, b = ((color >> shift & 255) / 255 for shift in (16, 8, 0))
    return r, g, b


def hex_colors(color: Any, n: int) -> Array:
    """Colours (n, 3) of one code 0xRRGGBB, or of n."""
    codes = np.broadcast_to(np.asarray(color).astype(np.int64).reshape(-1), n)
    return np.stack([codes >> shift & 255 for shift in (16, 8, 0)], -1) / np.float32(255)


def rgb_colors(color: Any, n: int, each: Any = None) -> Array:
    """Colours (n, 3) of one triple, or of an array with one for each point."""
    a = as_array(color if each is None else each).astype(np.float32)
    a = a.reshape(-1, a.shape[-1])[:n, :3] if each is not None else a.reshape(1, -1)[:, :3]
    return np.broadcast_to(a, (n, 3))


def pixels(image: Any) -> Array:
    """An image (w, h, 3) with numbers from 0 to 1, of numbers or vectors, of reals or integers.

    Raises:
        ValueError: it is no image.
    """
    a = as_array(image)
    if a.ndim == 2:
        a = a[..., None]
    if a.ndim != 3 or a.dtype.kind not in "uf" or not 1 <= a.shape[2] <= 4:
        raise ValueError(
            f"an image has two axes and 1 to 4 channels of reals or unsigned integers, this one {a.shape} of {a.dtype}"
        )
    if a.dtype.kind == "u":
        a = a / np.float32(np.iinfo(a.dtype).max)
    a = np.nan_to_num(a.astype(np.float32))
    if a.shape[2] == 1:
        a = np.repeat(a, 3, 2)
    return np.pad(a[..., :3], ((0, 0), (0, 0), (0, max(0, 3 - a.shape[2])))).clip(0, 1)


@dataclass(frozen=True, slots=True)
class DrawCall:
    """One call: the arrays that it drew, and how a raster draws them."""

    kind: str
    arrays: dict[str, Array]
    draw: Callable[[Raster], None]


@dataclass
class Drawing:
    """The calls of one frame.

    Attributes:
        background: red, green and blue.
        calls: first to last.
    """

    res: tuple[int, int]
    background: tuple[float, float, float] = (0.0, 0.0, 0.0)
    calls: list[DrawCall] = field(default_factory=list)

    def add(self, kind: str, draw: Callable[[Raster], None], **arrays: Any) -> None:
        """Add a call."""
        self.calls.append(DrawCall(kind, {name: np.asarray(a) for name, a in arrays.items() if a is not None}, draw))

    def image(self, image: Any) -> None:
        """Show an image over the whole window."""
        shown = pixels(image)
        self.add("image", lambda r: r.image(shown), pixels=shown)

    def discs(self, at: Array, radius: Any, color: Array) -> None:
        """Show circles. ``at``: (n, 2), the lower left corner of the window is 0, the upper right one 1. ``radius``: in pixels."""
        radii = np.broadcast_to(np.asarray(radius, np.float64).reshape(-1), len(at))
        self.add("circles", lambda r: r.discs(self._pixels(at), radii, color), centers=at, radius=radii, color=color)

    def lines(self, begin: Array, end: Array, radius: Any, color: Array) -> None:
        """Show lines. ``radius``: half the width, in pixels. ``color``: (n, 3), or (n, 2, 3) for both ends."""
        radii = np.broadcast_to(np.asarray(radius, np.float64).reshape(-1), len(begin))
        self.add(
            "lines",
            lambda r: r.lines(self._pixels(begin), self._pixels(end), radii, color),
            **{"begin": begin, "end": end, "radius": radii, "color": color},
        )

    def triangles(self, corners: Array, color: Array) -> None:
        """Show triangles (n, 3, 2)."""
        self.add("triangles", lambda r: r.triangles(self._pixels(corners), color), corners=corners, color=color)

    def text(self, content: str, at: tuple[float, float], size: float, color: Array) -> None:
        """Show a text. ``at``: the upper left corner."""
        place = (at[0] * self.res[0], at[1] * self.res[1])
        self.add("text", lambda r: _write(r, content, place, size, color), content=content, at=at, color=color)

    def render(self) -> Raster:
        """The image."""
        raster = Raster(self.res, self.background)
        for call in self.calls:
            call.draw(raster)
        return raster

    def arrays(self) -> dict[str, Array]:
        """The arrays of all calls, as ``<call>_<kind>_<array>``."""
        return {f"{k}_{call.kind}_{name}": a for k, call in enumerate(self.calls) for name, a in call.arrays.items()}

    def _pixels(self, at: Array) -> Array:
        return at * np.array(self.res, float)


def _write(raster: Raster, content: str, at: tuple[float, float], size: float, color: Array) -> None:
    """Draw a text with Pillow; without it there is none."""
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError:
        return
    font = ImageFont.load_default(max(1.0, float(size)))
    left, _, right, bottom = ImageDraw.Draw(Image.new("L", (1, 1))).multiline_textbbox((0, 0), content, font=font)
    mask = Image.new("L", (max(1, math.ceil(right - min(left, 0))), max(1, math.ceil(bottom))))
    ImageDraw.Draw(mask).multiline_text((0, 0), content, 255, font=font)
    raster.text(np.asarray(mask, np.float32).T[:, ::-1] / 255, at, color)
