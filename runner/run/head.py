"""The head of a cluster may die under a run: noticed here before Ray ends the process without a word, which it does after a minute."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType

from ...compiler.errors import QdrunError
from .exits import RESUMABLE

LOOK_S, CONNECT_S = 1.0, 2.0
PATIENCE_S = {True: 40.0, False: 5.0}
"""How long a head may be away: one of a cluster that is joined may come back; one that was started here is gone. Ray waits 60 s."""
PATIENCE_VARIABLE = "QDRUN_HEAD_PATIENCE_S"
GRACE_S = 8.0
"""What the run has to end by itself, its own calls to Ray may hang; then it is ended here."""


class ClusterLost(QdrunError, ConnectionError):
    """The head of the cluster is gone; the run can be resumed."""

    exit_code = RESUMABLE


def reachable(address: str) -> bool:
    """Whether something listens at host:port."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except OSError:
        return False
    return True


class HeadWatch:
    """Looks every second whether the head of the cluster is there, from ``begin`` until the end of the ``with``.

    Args:
        note: says to the user that the head is away, and that it is back.
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
        self._address, self._patience = "", 0.0
        self._away: float | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="head", daemon=True)

    def begin(self, address: str, *, joined: bool) -> None:
        """Look after the head at ``address``; ``joined``: others started it."""
        given = os.environ.get(PATIENCE_VARIABLE)
        self._address, self._patience = address, float(given) if given else PATIENCE_S[joined]
        self._thread.start()

    def end(self) -> None:
        """Look no more, unless the head is lost: its run is over, and nothing of what comes then must make it lost."""
        if not self.lost:
            self._over.set()

    def check(self) -> None:
        """Raise where the head is gone for good.

        Raises:
            ClusterLost: it is.
        """
        if self.lost:
            raise ClusterLost(self.lost)

    def away(self) -> bool:
        """Whether an error of Ray is one of a head that is gone: looks now."""
        return bool(self.lost) or (bool(self._address) and not self.there(self._address))

    def look(self) -> None:
        """One look."""
        now = self.clock()
        if self.there(self._address):
            if self._away is not None:
                self.note(f"the head of the cluster at {self._address} answers again")
            self._away = None
            return
        if self._away is None:
            self._away = now
            self.note(
                f"the head of the cluster at {self._address} does not answer; what runs goes on, for {self._patience:g} s at most"
            )
        if now - self._away >= self._patience:
            self.lost = (
                f"the head of the cluster at {self._address} has not answered for {now - self._away:.0f} s: the run is lost\n"
                "  do: start the cluster again, then `qdrun resume`; finished trials are kept"
            )

    def _run(self) -> None:
        while not self._over.wait(LOOK_S):
            self.look()
            if self.lost:
                break
        if self.lost and not self._over.wait(GRACE_S):
            try:
                self.last_words()
            finally:
                print(self.lost, file=sys.stderr, flush=True)
                self.exit(RESUMABLE)

    def __enter__(self) -> HeadWatch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()


__all__ = ["ClusterLost", "HeadWatch", "reachable"]
