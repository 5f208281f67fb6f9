"""What ``ti.GUI`` and ``ti.ui.Window`` have in common: frames, the drawing of the current one, and input that never comes."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import session
from .drawing import Drawing
from .files import write
from .raster import Array, Raster


class WindowEvent:
    """An event of a window."""

    def __init__(self) -> None:
        self.type = self.modifier = self.pos = self.key = self.delta = None


class BaseWindow:
    """A window without a screen. It is open until the frames are over; no key or button is ever pressed.

    Attributes:
        background: the colour of new frames.
        drawing: what the frame shows so far.
        last: the drawing of the frame before.
    """

    def __init__(self, name: str, res: Any, background: tuple[float, float, float] = (0.0, 0.0, 0.0)) -> None:
        self.name = name
        self.res = (int(res), int(res)) if np.ndim(res) == 0 else (int(res[0]), int(res[1]))
        self.session = session.CURRENT[0]
        self._title = self.session.open(str(name))
        self._open = True
        self.event: Any = None
        self.fps_limit: Any = None
        self.frame = 0
        self.background = background
        self.last = self.drawing = Drawing(self.res, background)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def running(self) -> bool:
        """Whether the window is open."""
        return self._open and self.session.runs

    @running.setter
    def running(self, value: bool) -> None:
        self._open = bool(value)

    def close(self) -> None:
        """Close the window."""
        self._open = False

    destroy = close

    def _end_frame(self) -> None:
        self.session.show(self._title, self.drawing)
        self.frame += 1
        self.last, self.drawing = self.drawing, Drawing(self.res, self.background)

    def _raster(self) -> Raster:
        """The image of the current frame; of the last one if nothing was drawn since."""
        return (self.drawing if self.drawing.calls else self.last).render()

    def _write(self, path: str) -> None:
        write(self._raster().color, path)
        self.session.own_files += 1

    def _rgba(self) -> Array:
        return np.pad(self._raster().color, ((0, 0), (0, 0), (0, 1)), constant_values=1.0)

    def get_event(self, *tags: Any) -> bool:
        """Whether there is an event: never."""
        return False

    def get_events(self, *tags: Any) -> list[Any]:
        """Events: none."""
        return []

    def is_pressed(self, *keys: Any) -> bool:
        """Whether a key or button is pressed: never."""
        return False

    def get_cursor_pos(self) -> tuple[float, float]:
        """The mouse, which stays in the lower left corner."""
        return (0.0, 0.0)
