"""The frames of programs that are run without a screen, on both sides: windows of qdrun in the place of Taichi's, and a clock."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

WINDOWS = Path(__file__).parents[2] / "compiler" / "lang" / "compat" / "windows"
"""They need NumPy alone, and so run beside Taichi, too."""


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


def windows(part: str) -> Any:
    """A module of qdrun's windows, loaded by its path: ``import qdrun`` may not be possible here."""
    name = "headless_windows"
    if name not in sys.modules:
        spec = spec_from_file_location(name, WINDOWS / "__init__.py", submodule_search_locations=[str(WINDOWS)])
        assert spec is not None and spec.loader is not None
        sys.modules[name] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return import_module(f"{name}.{part}")


def replace(module: Any, frames: int) -> None:
    """Put the windows into a module of the language, and count the frames."""
    global CLOCK
    CLOCK = Clock(frames)
    session = windows("session")
    session.begin(session.Session(on_show=lambda shown: CLOCK.tick()))
    module.GUI, module.ui = windows("gui").GUI, windows("ui")
    with suppress(ImportError):
        import cv2

        cv2.imshow, cv2.waitKey = lambda *args: CLOCK.tick(), lambda *args: -1
    tape = module.ad.Tape
    leave = tape.__exit__

    def exit_and_tick(self: Any, *error: Any) -> Any:
        result = leave(self, *error)
        if error[0] is None:
            CLOCK.tick()
        return result

    tape.__exit__ = exit_and_tick
