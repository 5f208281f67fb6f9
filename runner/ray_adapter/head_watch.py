"""The head of a cluster, or the node that a run is on, may die under it: noticed here. Without its head Ray ends a process after a minute
and says nothing; without its node a run would wait for workers that never start.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType

from ...compiler.errors import QdrunError
from ..exit_codes import RESUMABLE

LOOK_S, CONNECT_S = 1.0, 2.0
PATIENCE_S = {True: 40.0, False: 5.0}
"""How long a head may be away: one of a cluster that is joined may come back; one that was started here is gone. Ray waits 60 s."""
PATIENCE_VARIABLE = "QDRUN_HEAD_PATIENCE_S"
NODE_PATIENCE_S = 5.0
"""The same of the process of the own node (its raylet): it never comes back under that address, and nothing starts without it."""
GRACE_S = 8.0
"""What the run has to end by itself, its own calls to Ray may hang; then it is ended here."""


class ClusterLost(QdrunError, ConnectionError):
    """The head of the cluster is gone, or the node of the run; the run can be resumed."""

    exit_code = RESUMABLE


def reachable(address: str) -> bool:
    """Whether something listens at host:port."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except OSError:
        return False
    return True


@dataclass
class _Place:
    """A process of Ray that the run cannot do without: what it is in words, its patience, since when it does not answer."""

    what: str
    patience_s: float
    away: float | None = None


class HeadWatch:
    """Looks every second whether the head of the cluster and the own node are there, from ``begin`` until the end of the ``with``.

    Args:
        note: says to the user that one of them is away, and that it is back.
        last_words: writes down that the run is lost; called where the run does not end by itself within ``GRACE_S``.
        exit: ends the process.
        there: whether an address is reachable.
        clock: seconds.
    """

    def __init__(
        self,
        note: Callable[[str], None],
        last_words: Callable[[], None],
        *,
        exit: Callable[[int], object] = os._exit,
        there: Callable[[str], bool] = reachable,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.note, self.last_words, self.exit, self.there, self.clock = note, last_words, exit, there, clock
        self.lost = ""
        self._places: dict[str, _Place] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="head", daemon=True)

    def begin(self, address: str, *, joined: bool, node: str = "") -> None:
        """Look after the head at ``address`` and the process of the own node at ``node``; ``joined``: others started them."""
        given = os.environ.get(PATIENCE_VARIABLE)
        if node:
            self._places[node] = _Place("this machine's node of the cluster (Ray's raylet)", NODE_PATIENCE_S)
        if address:
            self._places[address] = _Place("the head of the cluster", float(given) if given else PATIENCE_S[joined])
        self._thread.start()

    def end(self) -> None:
        """Look no more, unless the head is lost: its run is over, and nothing of what comes then must make it lost."""
        if not self.lost:
            self._over.set()

    def check(self) -> None:
        """Raise where the head or the node is gone for good.

        Raises:
            ClusterLost: it is.
        """
        if self.lost:
            raise ClusterLost(self.lost)

    def away(self) -> bool:
        """Whether an error of Ray is one of a head or a node that is gone: looks now."""
        return bool(self.lost) or not all(self.there(address) for address in self._places)

    def look(self) -> None:
        """One look."""
        for address, place in self._places.items():
            self._look_at(address, place)

    def _look_at(self, address: str, place: _Place) -> None:
        now, where = self.clock(), f"{place.what} at {address}"
        if self.there(address):
            if place.away is not None:
                self.note(f"{where} answers again")
            place.away = None
            return
        if place.away is None:
            place.away = now
            self.note(f"{where} does not answer; what runs goes on, for {place.patience_s:g} s at most")
        if now - place.away >= place.patience_s and not self.lost:
            self.lost = (
                f"{where} has not answered for {now - place.away:.0f} s: the run is lost\n"
                "  do: start the cluster again if it was joined, then `qdrun resume`; finished trials are kept"
            )

    def _run(self) -> None:
        while not self._over.wait(LOOK_S):
            self.look()
            if self.lost:
                break
        if self.lost and not self._over.wait(GRACE_S):
            words = threading.Thread(target=self._say_last_words, name="last words", daemon=True)
            words.start()
            words.join(GRACE_S)  # the store may not answer either
            print(self.lost, file=sys.stderr, flush=True)
            self.exit(RESUMABLE)

    def _say_last_words(self) -> None:
        with suppress(Exception):  # another process may have the run
            self.last_words()

    def __enter__(self) -> HeadWatch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()


__all__ = ["ClusterLost", "HeadWatch", "reachable"]
