"""OpenCV's windows without a screen: ``cv2.imshow`` shows a frame, and no key is pressed."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import numpy as np

from .window import BaseWindow


def install() -> None:
    """Replace the windows of ``cv2`` when it is imported."""
    if not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())  # type: ignore[arg-type]


class _AfterImport:
    """A finder that changes ``cv2`` behind its import."""

    def __init__(self) -> None:
        self._inside = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The spec of ``cv2`` as the other finders give it, with a loader that goes on to replace its windows."""
        if name != "cv2" or self._inside:
            return None
        self._inside = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._inside = False
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _replace(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _replace(cv2: ModuleType) -> None:
    """Put windows without a screen into the module."""
    windows: dict[str, BaseWindow] = {}

    def imshow(winname: str, mat: Any) -> None:
        image = np.asarray(mat.get() if hasattr(mat, "get") else mat)
        image = image[..., None] if image.ndim == 2 else image[..., 2::-1]  # blue, green, red
        if image.dtype.kind == "i":
            image = image.clip(0, None).astype(np.uint8)
        upright = image[::-1].swapaxes(0, 1)
        if winname not in windows or windows[winname].res != upright.shape[:2]:
            windows[winname] = BaseWindow(winname, upright.shape[:2])
        windows[winname].drawing.image(upright)
        windows[winname]._end_frame()

    def no_key(*args: Any, **kw: Any) -> int:
        return -1

    def nothing(*args: Any, **kw: Any) -> None:
        pass

    made = {"imshow": imshow, "waitKey": no_key, "waitKeyEx": no_key, "pollKey": no_key}
    made |= dict.fromkeys(("namedWindow", "moveWindow", "resizeWindow", "destroyWindow", "destroyAllWindows"), nothing)
    made |= dict.fromkeys(("setWindowTitle", "setMouseCallback", "createTrackbar", "startWindowThread"), nothing)
    cv2.__dict__.update(made)
