"""Stand-ins for windows, image files and profilers, for programs that are run without a screen. They count frames."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import numpy as np


class Enough(BaseException):
    """The program has shown as many frames as are asked for. No ``except Exception`` of the program catches it."""


class Clock:
    """The moments at which the program showed a frame, or left a tape."""

    def __init__(self, frames: int) -> None:
        self.frames, self.moments = frames, [time.perf_counter()]
        self.sync: Any = None

    def tick(self) -> None:
        """A frame ends."""
        if self.sync is not None:
            self.sync()
        self.moments.append(time.perf_counter())
        if len(self.moments) > self.frames:
            raise Enough


CLOCK = Clock(1)


class Anything:
    """Takes every call and attribute; false, and nothing in it."""

    def __init__(self, *args: Any, **kw: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Anything:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __call__(self, *args: Any, **kw: Any) -> Anything:
        return Anything()

    def __enter__(self) -> Anything:
        return self

    def __exit__(self, *error: Any) -> None:
        pass

    def __bool__(self) -> bool:
        return False

    def __iter__(self) -> Any:
        return iter(())

    def __index__(self) -> int:
        return 0

    __int__ = __index__

    def __float__(self) -> float:
        return 0.0


class Window(Anything):
    """``ti.GUI`` and ``ti.ui.Window``: open until the frames are over; no key or button is pressed."""

    ESCAPE, SPACE, LEFT, RIGHT, UP, DOWN, SHIFT, CTRL = "Escape", " ", "Left", "Right", "Up", "Down", "Shift", "Control"
    LMB, RMB, MMB, PRESS, RELEASE, MOTION, EXIT, WHEEL = "LMB", "RMB", "MMB", "press", "release", "motion", "WMClose", "Wheel"
    TAB, RETURN, BACKSPACE, ALT = "Tab", "Return", "BackSpace", "Alt"
    running, event, fps_limit, frame = True, None, 0, 0

    def __init__(self, name: str = "", res: Any = (512, 512), *args: Any, **kw: Any) -> None:
        self.name = name
        self.res = (res, res) if isinstance(res, int) else tuple(res)

    def __bool__(self) -> bool:
        return True

    def show(self, *args: Any, **kw: Any) -> None:
        """A frame."""
        CLOCK.tick()

    def get_event(self, *args: Any) -> bool:
        return False

    def get_events(self, *args: Any) -> list[Any]:
        return []

    def get_key_event(self, *args: Any) -> None:
        raise RuntimeError("no event")

    def is_pressed(self, *args: Any) -> bool:
        return False

    def has_key_event(self, *args: Any) -> bool:
        return False

    def get_cursor_pos(self) -> tuple[float, float]:
        return (0.5, 0.5)

    def get_window_shape(self) -> tuple[int, int]:
        return self.res

    def get_gui(self) -> Widgets:
        return Widgets()

    GUI = property(get_gui)

    def get_canvas(self) -> Anything:
        return Anything()

    def slider(self, text: str, minimum: float, maximum: float, step: float = 1) -> Value:
        return Value((minimum + maximum) / 2)

    def button(self, *args: Any, **kw: Any) -> str:
        return "button"

    def label(self, *args: Any, **kw: Any) -> Value:
        return Value(0)

    def get_image(self) -> np.ndarray:
        return np.zeros((*self.res, 4), np.float32)

    def get_image_buffer_as_numpy(self) -> np.ndarray:
        return self.get_image()

    def get_depth_buffer_as_numpy(self) -> np.ndarray:
        return self.get_image()[..., 0]


class Value:
    """What a slider shows."""

    def __init__(self, value: float) -> None:
        self.value = value


class Widgets(Anything):
    """``window.get_gui()``: every widget keeps its value."""

    def sub_window(self, *args: Any) -> Widgets:
        return self

    def __enter__(self) -> Widgets:
        return self

    def slider_int(self, text: str, old: int, *rest: Any) -> int:
        return old

    def slider_float(self, text: str, old: float, *rest: Any) -> float:
        return old

    def checkbox(self, text: str, old: bool) -> bool:
        return old

    def color_edit_3(self, text: str, old: Any) -> Any:
        return old

    def button(self, text: str) -> bool:
        return False


class Ui(Anything):
    """``ti.ui``."""

    Window = Window
    ESCAPE, SPACE, LEFT, RIGHT, UP, DOWN, SHIFT = "Escape", " ", "Left", "Right", "Up", "Down", "Shift"
    LMB, RMB, MMB, PRESS, RELEASE = "LMB", "RMB", "MMB", "press", "release"
    Camera, Scene, ProjectionMode = Anything, Anything, Anything()


def replace(module: Any, frames: int) -> None:
    """Put the stand-ins into a module of the language, and count the frames."""
    global CLOCK
    CLOCK = Clock(frames)
    module.GUI, module.ui = Window, Ui()
    module.tools, module.profiler = Anything(), Anything()
    with suppress(ImportError):
        import cv2

        cv2.imshow, cv2.waitKey = lambda *args: CLOCK.tick(), lambda *args: -1
    module.rgb_to_hex = lambda c: int(c[0] * 255) * 65536 + int(c[1] * 255) * 256 + int(c[2] * 255)
    tape = module.ad.Tape
    leave = tape.__exit__

    def exit_and_tick(self: Any, *error: Any) -> Any:
        result = leave(self, *error)
        if error[0] is None:
            CLOCK.tick()
        return result

    tape.__exit__ = exit_and_tick
