"""Feeds trackers from the folder of a run: its journal and its live values, while the run goes on or afterwards.

The run knows nothing of it: a tracker that is slow or fails costs no trial.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ..config.export_section import ExportSection
from ..live.points import LiveReader
from ..stops import Stops, join
from ..store.columns import BEGUN, ROWS, names_of
from ..store.follower import Detail, Follower, JournalEntry, each_trial
from ..store.layout import RunFolder
from ..store.replay import Replayer, replay, run_state
from ..store.trial_state import FINAL
from .tracker import Beginning, Tracker, named_in, open_tracker

LOOK_EVERY_S = 2.0
SETTLE_S = 6.0
"""Seconds after the row of a trial until its last points are in the folder, also of an object store."""
CLOSE_S = 60.0
"""Seconds that a run waits for its trackers at its end."""


class Feed:
    """Tells trackers of a run what is new in its folder since the last ``look``.

    Args:
        folder: the run.
        trackers: by name.
        most: the first so many trials that begin are told of.
        note: takes a sentence for the user.
    """

    def __init__(
        self, folder: RunFolder, trackers: Mapping[str, Tracker], most: int = 1000, note: Callable[[str], None] = print
    ) -> None:
        self.trackers, self._most, self._note = dict(trackers), most, note
        self._journal, self._live = Follower(folder, Detail.FULL, settled=True), LiveReader(folder)
        self._begun, self._left_out = set[str](), set[str]()
        self._ending: dict[str, tuple[float, Mapping[str, Any]]] = {}
        self._ended, self._points = set[str](), 0
        self._trials = folder.found_trials().trials.named
        self._ids = list(self._trials)

    def look(self, *, last: bool = False) -> None:
        """Tell what is new. ``last``: the run is over, so that nothing is waited for."""
        for entry in self._journal.look(last=last).entries:
            self._take(entry)
        for logged in self._live.news():
            if not self._begun.isdisjoint(logged.trials):
                for trial, _, own in logged.each():
                    if trial in self._begun and trial not in self._ended:
                        self._points += len(own.step)
                        self._tell("log", own)
        now = time.monotonic()
        for trial in [name for name, (t, _) in self._ending.items() if last or now - t >= SETTLE_S]:
            _, record = self._ending.pop(trial)
            self._ended.add(trial)
            self._tell("end", trial, record)

    def counts(self) -> dict[str, int]:
        """The trials that were told of, and the points of their live values."""
        return {"trials": len(self._begun), "points": self._points}

    def close(self, state: str) -> None:
        """A last look, and the end of all trackers."""
        self.look(last=True)
        if self._left_out:
            self._note(f"{len(self._left_out)} trials are not exported: `export.trials` is {self._most}")
        self._tell("close", state)

    def _take(self, entry: JournalEntry) -> None:
        event, kind = entry.event, entry.event["event"]
        if kind in (BEGUN, ROWS):
            told = [row for row, trial in enumerate(names_of(event, self._ids)) if self._begins(trial)]
            made = each_trial(entry, self._ids) if told and kind == ROWS else ()
            for row in told if made else ():
                self._ends(made[row].event["trial"], made[row].event)
        elif kind == "started":
            self._begins(str(event["trial"]))
        elif kind == "ended" and event.get("status") in FINAL and self._begins(str(event["trial"])):
            self._ends(str(event["trial"]), event)
        elif kind == "requeued":  # `qdrun resume --failed`: the row before does not count
            self._ending.pop(str(event["trial"]), None)

    def _begins(self, name: str) -> bool:
        """Whether a trial is exported; the first time trackers are told."""
        if name in self._begun:
            return True
        trial = self._trials.get(name)
        if trial is None or len(self._begun) >= self._most:
            self._left_out.add(name)
            return False
        self._begun.add(name)
        self._tell("begin", Beginning(name, trial.index, trial.label, dict(_leaves(trial.params))))
        return True

    def _ends(self, trial: str, record: Mapping[str, Any]) -> None:
        if trial not in self._ended and trial not in self._ending:
            self._ending[trial] = time.monotonic(), record

    def _tell(self, what: str, *args: Any) -> None:
        for name, tracker in list(self.trackers.items()):
            try:
                getattr(tracker, what)(*args)
            except Exception as error:  # of another program: it is told no more
                del self.trackers[name]
                self._note(_ended_by(name, error))


def _leaves(params: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Parameters by dotted names; lists as they are."""
    for name, value in params.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def export(
    folder: RunFolder,
    trackers: Mapping[str, Tracker],
    *,
    most: int = 1000,
    follow: bool = False,
    note: Callable[[str], None] = print,
) -> Feed:
    """Hand a run on to trackers, from its beginning.

    Args:
        folder: the run, finished or not.
        trackers: by name.
        most: see ``Feed``.
        follow: go on until the run is over; else tell what there is now.
        note: see ``Feed``.

    Returns:
        The feed, whose ``trackers`` are those that did not fail.
    """
    feed, reader = Feed(folder, trackers, most, note), Replayer(folder)
    while follow and run_state(folder, reader.look()) == "running":
        feed.look()
        time.sleep(LOOK_EVERY_S)
    feed.close(run_state(folder, reader.look()))
    return feed


@contextmanager
def exporting(
    folder: RunFolder, section: ExportSection | None, note: Callable[[str], None], stops: Stops | None = None
) -> Iterator[None]:
    """Export a run from a thread while the block runs, and what is left at its end, unless ``stops`` says to end at once.

    Raises:
        TrackerMissing: a package is not installed.
    """
    names = named_in(section)
    if section is None or not names:
        yield
        return
    over = threading.Event()

    def work() -> None:
        trackers = {}
        for name in names:
            try:
                trackers[name] = open_tracker(name, section, folder)
            except Exception as error:  # of another program, which may be away
                note(_ended_by(name, error))
        feed = Feed(folder, trackers, section.trials, note)
        while not over.wait(LOOK_EVERY_S):
            _try(feed.look, note)
        _try(lambda: feed.close(run_state(folder, replay(folder))), note)

    thread = threading.Thread(target=work, name="export", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        if not join(thread, stops or Stops(), CLOSE_S):
            note(f"the export has not ended, for {CLOSE_S:.0f} s at most: `qdrun export {folder.uri}` exports the run again")


def _try(look: Callable[[], None], note: Callable[[str], None]) -> None:
    try:
        look()
    except (OSError, ValueError) as error:  # a store that is away comes back; the next look goes on
        note(f"the export waits: {str(error).partition(chr(10))[0]}")


def _ended_by(name: str, error: Exception) -> str:
    said = str(error).strip().partition("\n")[0]
    return f"the export to {name} has ended: {type(error).__name__}: {said}"


__all__ = ["Feed", "export", "exporting"]
