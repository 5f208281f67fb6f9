"""Shows the progress of a run: a live board on a terminal, plain lines elsewhere. Writes to stderr; stdout is for data."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from ..packing.claims import amount
from ..store.layout import RunFolder
from ..study.trials import counted
from ..visible import visible
from .board import Board
from .view import SHOWN, DeviceView, RunningTrial, RunView, RunWatch, retries_text

if TYPE_CHECKING:
    from rich.console import RenderableType

LINE_EVERY_S = 10.0
SHOWN_LANES = 8
SHOWN_DEVICES = 16
ORDER = ("done", "running", "waiting", "failed", "poisoned", "cancelled")
COLOURS = {"done": "green", "running": "cyan", "failed": "red", "poisoned": "red", "cancelled": "yellow"}
EXIT_CODES = {"done": 0, "lost": 5, "interrupted": 5}
"""Of `qdrun watch`, by the state of the run; 1 for the others."""


def line(view: RunView) -> str:
    """A run in one line."""
    parts = [f"{view.ended}/{view.total} trials"]
    alone = view.lanes[0].step if len(view.lanes) == 1 else ""
    parts += [f"{view.counts[word]} {word}" for word in ORDER if view.counts.get(word) and word not in ("done", "waiting")]
    parts += [alone] if alone else []
    parts += retries_text(view.retries, kinds=False)
    parts += [f"best {view.best[0]:.6g} ({view.best[1]})"] if view.best else []
    parts += [_speed(view.rate)] if view.rate and not view.over else []
    parts += [f"about {duration(view.eta_s)} left"] if view.eta_s is not None else []
    return f"{view.state}: " + ", ".join(parts)


def _speed(rate: float) -> str:
    return f"{rate:.1f} trials/s" if rate >= 1 else f"{rate * 60:.1f} trials/min"


def duration(seconds: float) -> str:
    """Seconds for people: ``12 s``, ``3 min 20 s``, ``2 h 05 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def device_line(device: DeviceView) -> str:
    """One line about a device: ``gpu:0 3/4 lanes claimed 12.0 GiB of 22.8 GiB, used 11.2 GiB``."""
    lanes = f"{device.running}/{device.lanes} lanes" if device.lanes is not None else f"{device.running} running"
    claimed = f"claimed {amount(device.claimed)}"
    claimed += f" of {amount(device.capacity)}" if device.capacity is not None else ""
    return f"{device.id}  {lanes}  {claimed}" + (f", used {amount(device.used)}" if device.used is not None else "")


def lane_line(lane: RunningTrial) -> str:
    """One line about a running trial."""
    words = [lane.label, lane.device, lane.step, duration(lane.seconds)]
    return "  ".join(word for word in words if word)


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


class PlainLines:
    """Plain lines, at most one every ten seconds and one at the end, for pipes, logs and dumb terminals."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self._shown = ""
        self._last = 0.0

    def __enter__(self) -> PlainLines:
        self.note(f"run {self.board.run}: {counted(self.board.total, 'trial')}")
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
        if (now := line(self.board.view())) != self._shown:
            self._shown = now
            self.note(now)

    def note(self, text: str) -> None:
        """Print a line now."""
        print(visible(text), file=sys.stderr, flush=True)


class LiveBoard:
    """A board that redraws itself on a terminal."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self._screen = _Screen(board.view, lambda: board.notes[-SHOWN:])
        self.console = self._screen.console

    def __enter__(self) -> LiveBoard:
        self._screen.live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._screen.live.stop()

    def update(self) -> None:
        """The live display redraws on its own."""

    def note(self, text: str) -> None:
        """Print a line above the board."""
        self.console.print(visible(text), markup=False, highlight=False)


class _Screen:
    """The part of the terminal that is drawn again and again."""

    def __init__(self, view: Callable[[], RunView], notes: Callable[[], Sequence[str]]) -> None:
        from rich.console import Console
        from rich.live import Live as RichLive

        self.console = Console(stderr=True)
        self.live = RichLive(
            console=self.console, get_renderable=lambda: render(view(), notes()), refresh_per_second=4, transient=True
        )


def render(view: RunView, notes: Sequence[str] = ()) -> RenderableType:
    """A run as rich draws it: counts, a bar, devices with their bytes, lanes, why trials wait, and the last failures."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    head = Table.grid(padding=(0, 2))
    head.add_row(Text(view.run, style="bold"), Text(view.state), Text(duration(view.seconds)))
    counts = Text("  ").join(
        Text(f"{view.counts[word]} {word}", style=COLOURS.get(word, "")) for word in ORDER if view.counts.get(word)
    )
    bar = Table.grid()  # a bar alone does not end its line
    bar.add_row(ProgressBar(total=max(1, view.total), completed=view.ended, width=60))
    parts: list[RenderableType] = [head, bar, counts]
    said = [_speed(view.rate)] if view.rate and not view.over else []
    said += [f"about {duration(view.eta_s)} left"] if view.eta_s is not None else []
    said += [f"best {view.best[0]:.6g} ({view.best[1]})"] if view.best else []
    said += retries_text(view.retries)
    parts += [Text(", ".join(said))] if said else []
    parts += [_devices(view.devices)] if view.devices else []
    parts += [Text(f"  > {lane_line(lane)}", style="dim") for lane in view.lanes[:SHOWN_LANES]]
    parts += [Text(f"    and {len(view.lanes) - SHOWN_LANES} more", style="dim")] if len(view.lanes) > SHOWN_LANES else []
    parts += [Text(f"  {reason.count} wait: {reason.text}", style="yellow") for reason in view.reasons[:SHOWN]]
    failures = notes or [f"{failure.label} failed: {failure.kind}: {failure.message}" for failure in view.failures]
    parts += [Text(f"  ! {failure}", style="red") for failure in failures]
    return Group(*parts)


def _devices(devices: Sequence[DeviceView]) -> RenderableType:
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for device in devices[:SHOWN_DEVICES]:
        room = device.capacity or 0
        bar = ProgressBar(total=room, completed=min(device.claimed, room), width=20) if room else Text("")
        table.add_row(bar, Text(device_line(device)))
    if len(devices) > SHOWN_DEVICES:
        table.add_row(Text(""), Text(f"and {len(devices) - SHOWN_DEVICES} more devices"))
    return table


class Unbroken:
    """Wraps a display and ignores its errors: a run continues if its terminal is closed, or the reader of its pipe is gone."""

    def __init__(self, shown: Display) -> None:
        self._shown = shown

    def _try(self, show: Callable[[Display], object]) -> None:
        try:
            show(self._shown)
        except (OSError, ValueError):  # the latter of a file that is closed
            gone, self._shown = self._shown, Silent()
            with suppress(OSError, ValueError):
                gone.__exit__(None, None, None)  # a board draws from a thread of its own

    def __enter__(self) -> Unbroken:
        self._try(lambda shown: shown.__enter__())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._try(lambda shown: shown.__exit__(kind, error, trace))

    def update(self) -> None:
        """See ``Display``."""
        self._try(lambda shown: shown.update())

    def note(self, text: str) -> None:
        """See ``Display``."""
        self._try(lambda shown: shown.note(text))


def on_terminal() -> bool:
    """Whether stderr can be drawn on."""
    return sys.stderr.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def display(board: Board, *, quiet: bool = False) -> Display:
    """The display that fits where stderr goes. Colours follow NO_COLOR and FORCE_COLOR."""
    if quiet:
        return Silent()
    return Unbroken(LiveBoard(board) if on_terminal() else PlainLines(board))


def watch(
    folder: RunFolder, *, every_s: float = 1.0, line_every_s: float = LINE_EVERY_S, sleep: Callable[[float], None] = time.sleep
) -> int:
    """Follow a run, wherever it runs, from its journal alone until it is over; gives the exit code of `qdrun watch`.

    0 all trials succeeded, 1 some did not, 5 the run was lost or interrupted and can be resumed. Reading takes at most a tenth of
    the time: a large journal is read less often.

    Args:
        folder: the run.
        every_s: seconds between two looks.
        line_every_s: seconds between two lines where stderr is no terminal.
        sleep: waits.

    Raises:
        OSError: the run cannot be read.
    """
    seen = _RunWatcher(folder, every_s, sleep)
    if not on_terminal():
        _follow_in_lines(seen, line_every_s)
    else:
        screen = _Screen(lambda: seen.view, tuple)
        if not seen.view.over:
            with screen.live:
                while not seen.view.over:
                    seen.look()
        screen.console.print(render(seen.view))
    return EXIT_CODES.get(seen.view.state, 1)


class _RunWatcher:
    """Looks at a run again and again; ``view`` is the last look."""

    def __init__(self, folder: RunFolder, every_s: float, sleep: Callable[[float], None]) -> None:
        self.folder, self.every_s, self.sleep = folder, every_s, sleep
        self._watch = RunWatch(folder)
        self._read()

    def _read(self) -> None:
        clock = time.monotonic()
        self.view = self._watch.view()
        self.cost_s = time.monotonic() - clock

    def look(self) -> None:
        """Wait, and look again."""
        self.sleep(max(self.every_s, 10 * self.cost_s))
        self._read()


def _follow_in_lines(seen: _RunWatcher, line_every_s: float) -> None:
    def say(text: str) -> None:
        print(visible(text), file=sys.stderr, flush=True)

    say(f"run {seen.folder.name}: {counted(seen.view.total, 'trial')}")
    shown, last = "", float("-inf")
    while True:
        now, over = line(seen.view), seen.view.over
        if now != shown and (over or time.monotonic() - last >= line_every_s):
            say(now)
            shown, last = now, time.monotonic()
        if over:
            break
        seen.look()
    for failure in seen.view.failures:
        say(f"failed: {failure.label}: {failure.kind}: {failure.message}")
    if seen.view.state in ("lost", "interrupted"):
        say(f"next: qdrun resume {seen.folder.uri}")
