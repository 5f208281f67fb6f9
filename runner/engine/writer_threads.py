"""The threads of a run that talk to its store, so that a store that stalls does not stop the loop of the run.

One thread writes the journal, in the order in which the loop hands events over; another one looks for requests to cancel and for room.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from ..clock import now
from ..store.files import StorageFull, StorageLost, StorageUnreachable
from ..store.follower import Event
from ..store.journal import SYNC_EVERY_S, Journal
from ..store.layout import RunFolder
from ..store.owner import CancelRequests, Owner, cancel_requests
from ..upkeep.space import SPARE_BYTES

STALL_S = 5.0
"""Once an event has waited for so long to be written, no more trials are started until the store has taken all of them."""
MOST_WAITING = 10_000
"""The same once so many events wait. What runs then may still add its own."""


PATIENCE_S = 3600.0
PATIENCE_VARIABLE = "QDRUN_STORE_PATIENCE_S"
"""A run whose store takes nothing for so long ends, and can be resumed."""
HURRY_S, LOOK_S = 10.0, 0.1
T = TypeVar("T")


class JournalWriter:
    """Writes events to the journal from a thread of its own, in the order in which they were handed over.

    The thread also writes what waits for room, and syncs when it is time.

    Args:
        journal: of the run.
        row: adds to the row of a trial what only the store knows; called in the thread.
    """

    def __init__(self, journal: Journal, row: Callable[[Event], Event] = lambda event: event) -> None:
        self._journal, self._row = journal, row
        self._changed = threading.Condition()
        self._queue: deque[tuple[float, Sequence[tuple[str, Event]]]] = deque()
        self._writing = 0  # events that the thread has taken and not written yet
        self._since = 0.0  # when the first of those was handed over
        self._refusal: StorageFull | None = None
        self._failure: BaseException | None = None
        self._spoiled: list[str] = []
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="journal writer", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """The number of events that are not in the journal yet."""
        with self._changed:
            return self._waiting()

    def _waiting(self) -> int:
        return self._writing + sum(len(events) for _, events in self._queue)

    @property
    def refusal(self) -> StorageFull | None:
        """Why the store takes nothing now; None while it takes events, or has not answered yet. What it refused, the journal keeps."""
        with self._changed:
            return self._refusal

    @property
    def stalled(self) -> bool:
        """Whether events have waited too long, or too many of them wait."""
        with self._changed:
            first = self._since if self._writing else self._queue[0][0] if self._queue else None
            late = first is not None and time.monotonic() - first >= STALL_S
            return late or self._waiting() >= MOST_WAITING

    def put(self, events: Sequence[tuple[str, Event]]) -> None:
        """Hand events over, which happen now. Waits for nothing."""
        if not events:
            return
        t = now()
        stamped = [(event, {"t": t, **fields}) for event, fields in events]
        with self._changed:
            if self._failure is None:
                self._queue.append((time.monotonic(), stamped))
                self._changed.notify_all()

    def settle(self, timeout_s: float) -> bool:
        """Whether everything is written, or kept by the journal where the store refuses it; waits up to ``timeout_s`` for that."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting(), timeout_s)

    def spoiled(self) -> list[str]:
        """The trials whose record no line could hold, since the last call: their rows are those of failed ones."""
        with self._changed:
            out, self._spoiled = self._spoiled, []
            return out

    def check(self) -> None:
        """Make sure that the journal can still be written.

        Raises:
            OwnerLost, FolderGone, or what else has ended the thread: nothing that was handed over since will be written.
        """
        with self._changed:
            if self._failure is not None:
                raise self._failure

    def close(self) -> None:
        """Write what waits, and end the thread, which ``patience.patiently`` bounds. What the store refuses stays with the journal."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closing, SYNC_EVERY_S)
                if self._closing and not self._queue:
                    return
                events = [event for _, some in self._queue for event in some]
                self._since = self._queue[0][0] if self._queue else 0.0
                self._queue.clear()
                self._writing = len(events)
            spoiled, refusal, failure = self._write(events)
            with self._changed:
                self._spoiled += spoiled
                self._refusal, self._failure, self._writing = refusal, failure, 0
                if failure is not None:
                    self._queue.clear()
                self._changed.notify_all()
            if failure is not None:
                return

    def _write(self, events: Sequence[tuple[str, Event]]) -> tuple[list[str], StorageFull | None, BaseException | None]:
        """The spoiled trials, why the store refuses, and what ends the thread."""
        try:
            if events:
                rows = [(event, self._row(fields) if event == "ended" else fields) for event, fields in events]
                return self._journal.write_all(rows), None, None
            return [], None if self._journal.retry() else self._refusal or StorageFull("the store takes no lines"), None
        except StorageFull as error:
            return [], error, None
        except BaseException as error:
            return [], None, error


class StoreWatch:
    """Polls the run's folder in a thread: cancel requests, and free space for results.

    Args:
        folder: of the run.
        owner: the owner that the requests are addressed to.
        every_s: seconds between two polls.
    """

    def __init__(self, folder: RunFolder, owner: Owner, every_s: float) -> None:
        self._folder, self._owner, self._every_s = folder, owner, every_s
        self._requests = CancelRequests()
        self._failure: BaseException | None = None
        self._cramped, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="store watch", daemon=True)
        self._thread.start()

    @property
    def requests(self) -> CancelRequests:
        """The requests of the last successful poll.

        Raises:
            Any error of a poll, except that the store does not answer.
        """
        if self._failure is not None:
            raise self._failure
        return self._requests

    @property
    def room(self) -> bool:
        """Whether nothing says that there is no room for results."""
        return not self._cramped.is_set()

    def cramped(self) -> None:
        """A result found no room: there is none until a look finds some. Lines of the journal find room on a disk that is all but full."""
        self._cramped.set()

    def close(self) -> None:
        """End the thread after its look; one that the store does not answer is not waited for."""
        self._over.set()
        self._thread.join(self._every_s)

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                self._look()
                self._over.wait(self._every_s)
        except BaseException as error:
            self._failure = error

    def _look(self) -> None:
        try:
            self._requests = cancel_requests(self._folder, self._owner)
            if self._cramped.is_set():
                free = self._folder.files.free_bytes()
                if free is None or free >= SPARE_BYTES:
                    self._cramped.clear()
        except StorageUnreachable:
            return  # nothing new while the store does not answer


class Interrupts(Protocol):
    """The number of stop requests of the user."""

    @property
    def count(self) -> int:
        """Returns that number. May raise if the run cannot continue."""
        ...


def patience_s() -> float:
    """The seconds that a run waits for its store."""
    return float(os.environ.get(PATIENCE_VARIABLE) or PATIENCE_S)


def storage_lost(uri: str, why: str) -> StorageLost:
    """The end of a run without its store."""
    return StorageLost(
        f"the run ends without its store: {why}\n  do: see why {uri} takes nothing, then `qdrun resume {uri}`; its rows are kept"
    )


class Patience:
    """Decides how long to wait for the store, from the moment it is made.

    A second Ctrl-C, or SIGTERM, ends the wait for a store that has not answered for ``HURRY_S``.
    """

    def __init__(self, interrupts: Interrupts, clock: Callable[[], float] = time.monotonic) -> None:
        self._interrupts, self._clock, self._since = interrupts, clock, clock()

    def asked(self) -> int:
        """The number of stop requests, also where the run cannot continue for another reason."""
        try:
            return self._interrupts.count
        except ConnectionError:  # the cluster is lost as well
            return 2

    @property
    def waited_s(self) -> float:
        """Since this was made."""
        return self._clock() - self._since

    @property
    def over(self) -> bool:
        """Whether nothing is waited for any more."""
        return self.waited_s >= patience_s() or (self.asked() > 1 and self.waited_s >= HURRY_S)


def patiently(call: Callable[[], T], what: str, uri: str, interrupts: Interrupts, note: Callable[[str], None]) -> T:
    """Make a call that reaches the store from a thread, and wait for it as long as ``Patience`` says.

    Args:
        call: what to do.
        what: what the user waits for, in words.
        uri: the folder of the run.
        interrupts: see ``Patience``.
        note: tells the user after ``STALL_S``.

    Raises:
        StorageLost: the call has not ended; its thread is left behind.
    """
    made: list[T] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            made.append(call())
        except BaseException as error:
            failed.append(error)

    thread, patience, told = threading.Thread(target=work, name="store", daemon=True), Patience(interrupts), False
    thread.start()
    while thread.is_alive():
        thread.join(LOOK_S)
        if not thread.is_alive():
            break
        if patience.over:
            raise storage_lost(uri, f"it has not answered for {patience.waited_s:.0f} s; {what}")
        if patience.waited_s >= STALL_S and not told:
            told = True
            note(f"the store does not answer; {what}; Ctrl-C twice ends the run without it")
    if failed:
        raise failed[0]
    return made[0]


__all__ = ["Interrupts", "JournalWriter", "Patience", "StoreWatch", "patience_s", "patiently", "storage_lost"]
