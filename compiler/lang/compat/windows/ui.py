"""``ti.ui``: windows with a canvas, scenes and widgets."""

from __future__ import annotations

from typing import Any

import numpy as np

from .drawing import as_array, points, rgb_colors
from .gui import contour_image
from .raster import Array
from .scene import Camera, ProjectionMode, Scene, groups
from .window import BaseWindow

SHIFT, ALT, CTRL, ESCAPE, RETURN, TAB, BACKSPACE = "Shift", "Alt", "Control", "Escape", "Return", "Tab", "BackSpace"
SPACE, UP, DOWN, LEFT, RIGHT, CAPSLOCK = " ", "Up", "Down", "Left", "Right", "CapsLock"
LMB, MMB, RMB, PRESS, RELEASE = "LMB", "MMB", "RMB", "Press", "Release"


def make_camera() -> Camera:
    """A new camera."""
    return Camera()


def check_ggui_availability() -> None:
    """Nothing: there are windows."""


class UiWindow(BaseWindow):
    """A window without a screen."""

    def __init__(
        self,
        name: str,
        res: Any,
        vsync: bool = False,
        show_window: bool = True,
        fps_limit: float = 1000,
        pos: tuple[int, int] = (100, 100),
    ) -> None:
        super().__init__(name, res)
        self.fps_limit = fps_limit
        self._gui, self._canvas, self._scene = Gui(), Canvas(self), Scene()

    @property
    def GUI(self) -> Gui:
        """The widgets."""
        return self._gui

    def get_gui(self) -> Gui:
        """The widgets."""
        return self._gui

    def get_canvas(self) -> Canvas:
        """The canvas."""
        return self._canvas

    def get_scene(self) -> Scene:
        """A scene for the canvas."""
        return self._scene

    def get_window_shape(self) -> tuple[int, int]:
        """Width and height in pixels."""
        return self.res

    def show(self) -> None:
        """End the frame."""
        self._end_frame()

    def save_image(self, filename: str) -> None:
        """Write the image of the frame so far."""
        self._write(filename)

    write_image = save_image

    def get_image_buffer_as_numpy(self) -> Array:
        """The frame so far: (width, height, 4), from 0 to 1."""
        return self._rgba()

    def get_depth_buffer_as_numpy(self) -> Array:
        """The depths of the frame so far: (width, height), 1 at the camera's near plane, 0 far away."""
        return self._raster().depth.astype(np.float32)

    def get_depth_buffer(self, depth: Any) -> None:
        """Store the depths to a field or ndarray of the size of the window."""
        depth.from_numpy(self.get_depth_buffer_as_numpy())


Window = UiWindow


class Canvas:
    """Where a window's frame is drawn. Positions are from (0, 0) at the lower left to (1, 1); sizes are shares of the height."""

    def __init__(self, window: UiWindow) -> None:
        self._window = window

    @property
    def _height(self) -> int:
        return self._window.res[1]

    def set_background_color(self, color: Any) -> None:
        """Set the colour behind everything."""
        r, g, b = np.asarray(color, float)[:3].tolist()
        self._window.background = self._window.drawing.background = (r, g, b)

    def set_image(self, img: Any) -> None:
        """Show an image, stretched over the window."""
        self._window.drawing.image(img)

    def contour(self, scalar_field: Any, cmap_name: str = "plasma", normalize: bool = False) -> None:
        """Show a field of numbers in the colours of a map of matplotlib."""
        self.set_image(contour_image(scalar_field, cmap_name, normalize))

    def circles(
        self,
        centers: Any,
        radius: float,
        color: Any = (0.5, 0.5, 0.5),
        per_vertex_color: Any = None,
        per_vertex_radius: Any = None,
    ) -> None:
        """Show circles."""
        at = points(centers)
        radii = np.asarray(radius if per_vertex_radius is None else as_array(per_vertex_radius).reshape(-1)[: len(at)])
        self._window.drawing.discs(at, radii * self._height, rgb_colors(color, len(at), per_vertex_color))

    def lines(
        self, vertices: Any, width: float, indices: Any = None, color: Any = (0.5, 0.5, 0.5), per_vertex_color: Any = None
    ) -> None:
        """Show lines between vertices 0 and 1, 2 and 3, ..; or between those that the indices name."""
        at = points(vertices)
        ends = groups(len(at), indices, 2, slice(None))
        colors = rgb_colors(color, len(at), per_vertex_color)[ends]
        self._window.drawing.lines(at[ends[:, 0]], at[ends[:, 1]], max(0.5, width * self._height / 2), colors)

    def triangles(self, vertices: Any, color: Any = (0.5, 0.5, 0.5), indices: Any = None, per_vertex_color: Any = None) -> None:
        """Show triangles."""
        at = points(vertices)
        corners = groups(len(at), indices, 3, slice(None))
        self._window.drawing.triangles(at[corners], rgb_colors(color, len(at), per_vertex_color)[corners])

    def vector_field(
        self, vector_field: Any, arrow_spacing: int = 5, scale: float = 0.1, width: float = 0.002, color: Any = (0, 0, 0)
    ) -> None:
        """Show arrows at every so many places of a field of vectors. ``scale``: the longest one's length."""
        v = as_array(vector_field)
        w, h = v.shape[:2]
        x, y = (np.unique([*range(0, n, arrow_spacing), n - 1]) for n in (w, h))
        begin = np.stack(np.meshgrid(x / max(w - 1, 1), y / max(h - 1, 1), indexing="ij"), -1).reshape(-1, 2)
        longest = max(float(np.linalg.norm(v, axis=-1).max(initial=0)), 1e-30)
        way = v[x[:, None], y[None]].reshape(-1, 2) * (scale / longest)
        tips = []
        for side in (np.radians(150), -np.radians(150)):
            spin = np.array([[np.cos(side), np.sin(side)], [-np.sin(side), np.cos(side)]])
            tips.append(begin + way + way @ spin * 0.2)
        ends = np.stack([begin, begin + way, begin + way, tips[0], begin + way, tips[1]], 1)
        self.lines(ends.reshape(-1, 2), width, color=color)

    def scene(self, scene: Scene) -> None:
        """Show a scene, and empty it."""
        shapes, view = scene._snapshot()
        arrays = {f"{k}_{s.kind}_{name}": a for k, s in enumerate(shapes) for name, a in s.arrays.items()}
        self._window.drawing.add("scene", lambda raster: view.draw(raster, shapes), **view.arrays, **arrays)


class Gui:
    """Widgets without a user: each returns the value that it is given."""

    def sub_window(self, name: str, x: float, y: float, width: float, height: float) -> Gui:
        """A window of widgets, for ``with``."""
        return self

    def __enter__(self) -> Gui:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def begin(self, name: str, x: float, y: float, width: float, height: float) -> None:
        """Begin a window of widgets."""

    def end(self) -> None:
        """End it."""

    def text(self, text: str, color: Any = None) -> None:
        """A text."""

    def checkbox(self, text: str, old_value: bool) -> bool:
        """A box, which stays as it is."""
        return old_value

    def slider_int(self, text: str, old_value: int, minimum: int, maximum: int) -> int:
        """A slider, which stays where it is."""
        return old_value

    def slider_float(self, text: str, old_value: float, minimum: float, maximum: float) -> float:
        """A slider, which stays where it is."""
        return old_value

    def color_edit_3(self, text: str, old_value: Any) -> Any:
        """A colour, which stays as it is."""
        return old_value

    def button(self, text: str) -> bool:
        """A button, which is not pressed."""
        return False


__all__ = ["Camera", "Canvas", "Gui", "ProjectionMode", "Scene", "Window", "check_ggui_availability", "make_camera"]
__all__ += [name for name in dict(globals()) if name.isupper() and isinstance(globals()[name], str)]
