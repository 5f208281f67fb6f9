"""``ti.GUI``: a window of pixels."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from .drawing import Drawing, as_array, hex_colors, hex_to_rgb, pixels, points
from .raster import Array
from .window import BaseWindow, WindowEvent


class WidgetValue:
    """What a slider or a label shows."""

    def __init__(self, value: float) -> None:
        self.value = value


class GUI(BaseWindow):
    """A window of pixels. Positions are from (0, 0) at the lower left to (1, 1); radii are in pixels; colours are 0xRRGGBB."""

    Event, WidgetValue = WindowEvent, WidgetValue
    SHIFT, ALT, CTRL, ESCAPE, RETURN, TAB, BACKSPACE = "Shift", "Alt", "Control", "Escape", "Return", "Tab", "BackSpace"
    SPACE, UP, DOWN, LEFT, RIGHT, CAPSLOCK = " ", "Up", "Down", "Left", "Right", "Caps_Lock"
    LMB, MMB, RMB, EXIT, WHEEL, MOVE = "LMB", "MMB", "RMB", "WMClose", "Wheel", "Motion"
    MOTION, PRESS, RELEASE = "motion", "press", "release"

    def __init__(
        self,
        name: str = "Taichi",
        res: Any = 512,
        background_color: int = 0x0,
        show_gui: bool = True,
        fullscreen: bool = False,
        fast_gui: bool = False,
    ) -> None:
        super().__init__(name, res, hex_to_rgb(background_color))
        self.background_color, self.fast_gui = background_color, fast_gui
        self.fps_limit = 60
        self.canvas = self

    def slider(self, text: str, minimum: float, maximum: float, step: float = 1) -> WidgetValue:
        """A slider, which stays at its minimum."""
        return WidgetValue(minimum)

    def label(self, text: str) -> WidgetValue:
        """A label that shows a number."""
        return WidgetValue(0)

    def button(self, text: str, event_name: str | None = None) -> str:
        """A button, which is not pressed. Returns the name of its event."""
        return event_name or f"WidgetButton_{text}"

    def has_key_event(self) -> bool:
        """Whether a key was pressed: never."""
        return False

    def get_key_event(self) -> NoReturn:
        """Wait for a key, which never comes: as if the window was closed.

        Raises:
            SystemExit: always.
        """
        raise SystemExit(0)

    def clear(self, color: int | None = None) -> None:
        """Paint over everything."""
        code = self.background_color if color is None else color
        self.drawing = Drawing(self.res, hex_to_rgb(code))
        self.drawing.add("clear", lambda raster: None, color=self.drawing.background)

    def set_image(self, img: Any) -> None:
        """Show an image of the size of the window.

        Raises:
            ValueError: it is no image.
            AssertionError: it has another size.
        """
        self.drawing.image(img)
        shape = self.drawing.calls[-1].arrays["pixels"].shape[:2]
        assert shape == self.res, f"the image has {shape} pixels, the window {self.res}"

    def cook_image(self, img: Any) -> Array:
        """An image as (width, height, 4), from 0 to 1."""
        return np.pad(pixels(img), ((0, 0), (0, 0), (0, 1)))

    def get_image(self) -> Array:
        """The frame so far: (width, height, 4), from 0 to 1."""
        return self._rgba()

    def circle(self, pos: Any, color: int = 0xFFFFFF, radius: float = 1) -> None:
        """Show one circle."""
        self.circles(points(pos), radius, color)

    def circles(
        self, pos: Any, radius: Any = 1, color: Any = 0xFFFFFF, palette: Any = None, palette_indices: Any = None
    ) -> None:
        """Show circles. ``palette_indices``: for each circle its colour in the palette."""
        at = points(pos)
        if palette is not None:
            if palette_indices is None:
                raise AssertionError("circles with a palette need palette_indices")
            color = np.asarray(palette, np.int64)[as_array(palette_indices).astype(np.int64).reshape(-1)]
        self.drawing.discs(at, as_array(radius), hex_colors(as_array(color), len(at)))

    def line(self, begin: Any, end: Any, radius: float = 1, color: int = 0xFFFFFF) -> None:
        """Show one line."""
        self.lines(points(begin), points(end), radius, color)

    def lines(self, begin: Any, end: Any, radius: Any = 1, color: Any = 0xFFFFFF) -> None:
        """Show lines."""
        first, last = points(begin), points(end)
        self.drawing.lines(first, last, as_array(radius), hex_colors(as_array(color), len(first)))

    def triangle(self, a: Any, b: Any, c: Any, color: int = 0xFFFFFF) -> None:
        """Show one triangle."""
        self.triangles(points(a), points(b), points(c), color)

    def triangles(self, a: Any, b: Any, c: Any, color: Any = 0xFFFFFF) -> None:
        """Show triangles."""
        corners = np.stack([points(a), points(b), points(c)], 1)
        self.drawing.triangles(corners, hex_colors(as_array(color), len(corners)))

    def rect(self, topleft: Any, bottomright: Any, radius: float = 1, color: int = 0xFFFFFF) -> None:
        """Show the edges of a rectangle."""
        (x, y), (u, v) = topleft, bottomright
        corners = np.array([(x, y), (u, y), (u, v), (x, v)], float)
        self.lines(corners, np.roll(corners, -1, 0), radius, color)

    def text(self, content: str, pos: Any, font_size: float = 15, color: int = 0xFFFFFF) -> None:
        """Show a text with its upper left corner at a place."""
        self.drawing.text(str(content), (float(pos[0]), float(pos[1])), font_size, hex_colors(color, 1)[0])

    def arrow(self, orig: Any, direction: Any, radius: float = 1, color: int = 0xFFFFFF, **kw: Any) -> None:
        """Show one arrow."""
        self.arrows(points(orig), points(direction), radius, color, **kw)

    def arrows(
        self, orig: Any, direction: Any, radius: Any = 1, color: Any = 0xFFFFFF, tip_scale: float = 0.2, angle: float = 45
    ) -> None:
        """Show arrows from ``orig`` to ``orig + direction``. ``angle``: of the tip, in degrees."""
        begin, way = points(orig), points(direction)
        end, turn = begin + way, np.radians(180 - angle)
        self.lines(begin, end, radius, color)
        for side in (turn, -turn):
            spin = np.array([[np.cos(side), np.sin(side)], [-np.sin(side), np.cos(side)]])
            self.lines(end, end + way @ spin * tip_scale, radius, color)

    def point_field(self, radius: Any, color: Any = 0xFFFFFF, bound: float = 0.5) -> None:
        """Show a grid of circles with these radii (w, h)."""
        radii = as_array(radius)
        self.circles(_grid(radii.shape[:2], bound), radii.reshape(-1), color)

    def arrow_field(self, direction: Any, radius: Any = 1, color: Any = 0xFFFFFF, bound: float = 0.5, **kw: Any) -> None:
        """Show a grid of arrows (w, h, 2)."""
        way = as_array(direction)
        self.arrows(_grid(way.shape[:2], bound), way.reshape(-1, 2), radius, color, **kw)

    def vector_field(self, vector_field: Any, arrow_spacing: int = 5, color: Any = 0xFFFFFF) -> None:
        """Show arrows at every so many places of a field of vectors; the longest is a tenth of the window."""
        v = as_array(vector_field)
        way = v[::arrow_spacing, ::arrow_spacing] * (0.1 / (np.linalg.norm(v, axis=-1).max(initial=0) + 1e-16))
        x, y = (np.arange(0, n, arrow_spacing) / n for n in v.shape[:2])
        begin = np.stack(np.meshgrid(x, y, indexing="ij"), -1)
        self.arrows(begin.reshape(-1, 2), way.reshape(-1, 2), 1, color)

    def contour(self, scalar_field: Any, normalize: bool = False) -> None:
        """Show a field of numbers in the colours of matplotlib's plasma."""
        self.set_image(contour_image(scalar_field, "plasma", normalize, self.res))

    def show(self, file: str | None = None) -> None:
        """End the frame; write its image to a file."""
        if file is not None:
            self._write(file)
        self._end_frame()


def _grid(shape: tuple[int, ...], bound: float) -> Array:
    """The places of the cells of a grid in the window, in its order."""
    w, h = shape
    x, y = ((np.arange(n) + bound) / (n + 2 * bound - 1) for n in (w, h))
    return np.stack(np.meshgrid(x, y, indexing="ij"), -1).reshape(-1, 2)


def contour_image(scalar_field: Any, name: str, normalize: bool, res: tuple[int, int] | None = None) -> Array:
    """A field of numbers as an image in the colours of a map of matplotlib, or in greys without it; stretched to ``res``."""
    a = as_array(scalar_field).astype(np.float64)
    if a.ndim != 2:
        raise ValueError(f"contour() takes a field of numbers with two axes, not {a.shape}")
    if res is not None and res != a.shape:
        for axis, n in enumerate(res):  # linear between the cells
            at = np.linspace(0, a.shape[axis] - 1, n)
            low = np.minimum(at.astype(int), max(a.shape[axis] - 2, 0))
            share = (at - low).reshape((-1, 1) if axis == 0 else (1, -1))
            above = np.minimum(low + 1, a.shape[axis] - 1)
            a = np.take(a, low, axis) * (1 - share) + np.take(a, above, axis) * share
    if normalize:
        a = (a - a.min()) / (a.max() - a.min() + 1e-16)
    try:
        from matplotlib import colormaps
    except ImportError:
        return a.astype(np.float32)
    return colormaps[name](a)[..., :3].astype(np.float32)
