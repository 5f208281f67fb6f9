"""What a person sees while a sweep runs: a live board on a terminal, plain lines elsewhere. Goes to stderr; stdout is for data."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol

LINE_EVERY_S = 5.0
SHOWN_FAILURES = 5


@dataclass
class Board:
    """The state of a running sweep, as far as people look at it."""

    run: str
    total: int
    slots: int = 1
    counts: Counter[str] = field(default_factory=Counter)
    running: dict[str, str] = field(default_factory=dict)
    best: tuple[float, str] | None = None
    notes: list[str] = field(default_factory=list)
    phase: str = "starting Ray"
    began: float = field(default_factory=time.monotonic)
    first_start: float | None = None

    @property
    def ended(self) -> int:
        """Trials that will not run any more."""
        return sum(self.counts.values())

    def started(self, trial: str, label: str) -> None:
        """A trial has started on a worker."""
        self.first_start = self.first_start or time.monotonic()
        self.running[trial] = label

    def stopped(self, trial: str, status: str, label: str, loss: float | None) -> None:
        """A trial has ended with ``status``."""
        self.running.pop(trial, None)
        self.counts[status] += 1
        if status == "done" and loss is not None and (self.best is None or loss < self.best[0]):
            self.best = (loss, label)

    def left_s(self) -> float | None:
        """Estimated seconds to the end, from the trials ended so far."""
        if self.first_start is None or not self.ended or self.ended >= self.total:
            return None
        return (time.monotonic() - self.first_start) / self.ended * (self.total - self.ended)

    def line(self) -> str:
        """The board in one line."""
        parts = [f"{self.ended}/{self.total} trials"]
        parts += [f"{number} {word}" for word, number in sorted(self.counts.items()) if word != "done"]
        parts += [f"{len(self.running)} running"] if self.running else []
        parts += [f"best {self.best[0]:.6g} ({self.best[1]})"] if self.best else []
        left = self.left_s()
        parts += [f"about {left:.0f} s left"] if left is not None else []
        return f"{self.phase}: " + ", ".join(parts)


class Display(Protocol):
    """Shows a board; ``note`` is for what must not be missed."""

    def __enter__(self) -> Display: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...
    def update(self) -> None:
        """The board has changed, or some time has passed."""
        ...

    def note(self, text: str) -> None:
        """Say something once."""
        ...


class Silent:
    """Shows nothing."""

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        return None

    def update(self) -> None:
        """Nothing to show."""

    def note(self, text: str) -> None:
        """Nothing to say."""


class Lines:
    """Plain lines, at most one every five seconds and one at the end, for pipes, logs and dumb terminals."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self._shown = ""
        self._last = 0.0

    def __enter__(self) -> Lines:
        self.note(f"run {self.board.run}: {self.board.total} trials")
        self._last = time.monotonic()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self._show()

    def update(self) -> None:
        """Print the board when it has changed and the last line is old enough."""
        if time.monotonic() - self._last >= LINE_EVERY_S:
            self._show()

    def _show(self) -> None:
        self._last = time.monotonic()
        if (line := self.board.line()) != self._shown:
            self._shown = line
            self.note(line)

    def note(self, text: str) -> None:
        """Print a line now."""
        print(text, file=sys.stderr, flush=True)


class Live:
    """A board that redraws itself on a terminal."""

    def __init__(self, board: Board) -> None:
        from rich.console import Console
        from rich.live import Live as RichLive

        self.board = board
        self.console = Console(stderr=True)
        self._live = RichLive(console=self.console, get_renderable=self._render, refresh_per_second=5, transient=True)

    def __enter__(self) -> Live:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._live.stop()

    def update(self) -> None:
        """The live display redraws on its own."""

    def note(self, text: str) -> None:
        """Print a line above the board."""
        self.console.print(text, markup=False, highlight=False)

    def _render(self) -> object:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        board = self.board
        names = list(board.running.values())[: max(1, board.slots)]
        parts: list[object] = [
            Text(f"{board.run}  {time.monotonic() - board.began:.0f} s", style="bold"),
            ProgressBar(total=board.total, completed=board.ended, width=60),
            Text(board.line()),
        ]
        parts += [Text(f"  > {name}", style="dim") for name in names[:8]]
        parts += [Text(f"  ! {note}", style="red") for note in board.notes[-SHOWN_FAILURES:]]
        return Group(*parts)  # pyright: ignore[reportArgumentType]


def display(board: Board, *, quiet: bool = False) -> Display:
    """The display that fits where stderr goes. Colours follow NO_COLOR and FORCE_COLOR."""
    if quiet:
        return Silent()
    if sys.stderr.isatty() and os.environ.get("TERM", "") not in ("", "dumb"):
        return Live(board)
    return Lines(board)
