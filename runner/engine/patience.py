"""How long a run waits for its store: until the store answers, the user asks to end, or the time is over."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from ..store.files import StorageLost

PATIENCE_S = 3600.0
PATIENCE_VARIABLE = "QDRUN_STORE_PATIENCE_S"
"""A run whose store takes nothing for so long ends, and can be resumed."""
STALL_S = 5.0
LOOK_S = 0.1
T = TypeVar("T")


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

    A second Ctrl-C ends the wait. Where the run was told twice before to end, as SIGTERM does, the store gets ``STALL_S``.
    """

    def __init__(self, interrupts: Interrupts, clock: Callable[[], float] = time.monotonic) -> None:
        self._interrupts, self._clock, self._since = interrupts, clock, clock()
        self._before = self.asked()

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
        asked, waited = self.asked(), self.waited_s
        return waited >= patience_s() or asked > max(self._before, 1) or (asked > 1 and waited >= STALL_S)


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


__all__ = ["Interrupts", "Patience", "patience_s", "patiently", "storage_lost"]
