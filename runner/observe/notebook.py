"""Progress of a run in a notebook: one output of the cell that is written again, by IPython's display handles."""

from __future__ import annotations

import io
import sys
import time
from types import TracebackType
from typing import Any

from . import live
from .board import Board
from .html import line_html

EVERY_S, WIDTH = 0.5, 110
PRE = "<pre style='white-space:pre;overflow-x:auto;line-height:1.2'>{code}</pre>"


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook; a console of IPython is a terminal."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and getattr(shell, "kernel", None) is not None


def display(board: Board, *, quiet: bool = False) -> live.Display:
    """The display that fits: in the cell of a notebook, or where stderr goes."""
    return live.display(board, quiet=quiet) if quiet or not in_notebook() else live.Unbroken(Cell(board))


class Cell:
    """Shows a board below the cell that runs. Notes are lines above it."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self._notes: list[str] = []
        self._handle: Any = None
        self._last = 0.0

    def __enter__(self) -> Cell:
        self._show()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._show()

    def update(self) -> None:
        """Write the output again when it is old enough."""
        if time.monotonic() - self._last >= EVERY_S:
            self._show()

    def note(self, text: str) -> None:
        """Show a line above the board."""
        self._notes.append(text)
        self._show()

    def _show(self) -> None:
        import IPython.display as shows

        self._last = time.monotonic()
        text, html = board_shown(self.board)
        shown = {"text/html": "".join(map(line_html, self._notes)) + html, "text/plain": "\n".join([*self._notes, text])}
        if self._handle is None:
            self._handle = shows.display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)


def board_shown(board: Board) -> tuple[str, str]:
    """Return a board as rich draws it: as plain characters, which editors and converters without HTML show, and as HTML."""
    from rich.console import Console

    console = Console(file=io.StringIO(), record=True, width=WIDTH, force_jupyter=False)
    console.print(live.render(board.view()))
    return console.export_text(clear=False), console.export_html(inline_styles=True, code_format=PRE)


__all__ = ["Cell", "board_shown", "display", "in_notebook"]
