"""The frames of a run: how many windows show, where they are saved, and what is said of them at the end."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from .drawing import Drawing
from .files import write

FRAMES = 100
"""Frames after which a loop ``while window.running`` ends if the command line gives no number."""


class FramesOver(SystemExit):
    """A program that does not ask whether its window is open has shown its last frame: it ends here, with the exit code 0."""


class Session:
    """Counts the frames of all windows together, and saves them.

    Attributes:
        limit: frames after which ``running`` is false, and the next frame ends the program; None: ``FRAMES``, and it does not.
        folder: where every frame is saved.
        on_show: called after each frame with their number so far.
        shown: frames so far, by the name of the window.
        saved: files written into the folder.
        own_files: images that the program saved itself.
        cut: a window was closed, or the program ended, because of the frames.
        reported: what ``lines`` says was printed.
    """

    def __init__(
        self, limit: int | None = None, folder: str | Path | None = None, on_show: Callable[[int], None] | None = None
    ) -> None:
        self.limit, self.folder, self.on_show = limit, None if folder is None else Path(folder).absolute(), on_show
        self.shown: dict[str, int] = {}
        self.saved = self.own_files = 0
        self.cut = self._asked = self.reported = False

    @property
    def frames(self) -> int:
        """The frames so far."""
        return sum(self.shown.values())

    def open(self, name: str) -> str:
        """Take in a window. Returns the name of its files, which no other window has."""
        plain = re.sub(r"[^\w.-]+", "-", name).strip("-.") or "window"
        title, k = plain, 2
        while title in self.shown:
            title, k = f"{plain}-{k}", k + 1
        self.shown[title] = 0
        return title

    @property
    def runs(self) -> bool:
        """Whether a window that is asked is still open."""
        going = self.frames < (FRAMES if self.limit is None else self.limit)
        self.cut |= not going
        self._asked = True
        return going

    def show(self, title: str, drawing: Drawing) -> None:
        """End a frame.

        Raises:
            FramesOver: it is the last one, and the program has not asked for it whether the window is open; or there were enough before.
        """
        if self.limit is not None and self.frames >= self.limit:
            self.cut = True
            raise FramesOver(0)
        if self.folder is not None:
            self._save(f"{title}-{self.shown[title]:05d}", drawing)
        self.shown[title] += 1
        if self.on_show is not None:
            self.on_show(self.frames)
        asked, self._asked = self._asked, False
        if not asked and self.limit is not None and self.frames >= self.limit:
            self.cut = True
            raise FramesOver(0)

    def _save(self, name: str, drawing: Drawing) -> None:
        assert self.folder is not None
        self.folder.mkdir(parents=True, exist_ok=True)
        write(drawing.render().color, self.folder / f"{name}.png")
        self.saved += 1
        if any(call.kind == "scene" for call in drawing.calls):
            np.savez_compressed(self.folder / f"{name}.npz", **drawing.arrays())  # type: ignore[arg-type]
            self.saved += 1

    def lines(self) -> list[str]:
        """What the run did with windows, for people."""
        if not self.shown:
            return []
        n = self.frames
        text = f"{n:,} frame{'s' * (n != 1)} shown in {', '.join(self.shown)}"
        if self.folder is not None:
            text += f"; {self.saved:,} files saved in {self.folder}"
        if self.own_files:
            text += f"; {self.own_files:,} images saved by the program"
        if self.cut and self.limit is None:
            text += f"\n  the window was closed after {FRAMES} frames, as no user can close it; --frames N shows N"
        elif self.limit is None and not self.folder:
            text += "; --frames N ends after N, --save FOLDER keeps them"
        return [text]


def report_at_exit() -> None:
    """Print to stderr what the current session did with windows, unless it was printed."""
    current = CURRENT[0]
    if current.shown and not current.reported:
        print("\n".join(f"qdrun.compat: {line}" for line in current.lines()), file=sys.stderr)


CURRENT = [Session()]
"""The session that new windows belong to, as the only item."""


def begin(session: Session) -> Session:
    """Make a session the current one."""
    CURRENT[0] = session
    return session
