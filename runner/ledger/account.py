"""The account that the runs of one user on one machine share.

Each run is a process with its own ledger; without the account, two of them would grant the same bytes.

Each process has a file in ``private.machine_folder()``, which it writes anew whenever what it holds has changed, and holds the lock of
that file while it lives. The kernel gives a lock back however the process ends: a file whose lock is free counts no more. Files are read
and written behind a gate, a lock for all runs, which is held for far below a millisecond.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ..private import machine_folder, private

GATE, ENTRY = "gate", ".json"
MOST_BYTES = 1 << 20
GATE_S, TRY_S = 0.5, 0.002
CORES = "cores"
"""The name of the machine's cores among pools of bytes."""


@dataclass(frozen=True)
class RunAccount:
    """The entry of one run: what it holds, in bytes by pool, and of ``CORES``.

    Attributes:
        run: its id; ``pid``: its process, for people.
        held: granted to its trials and workers.
        used: the observed use of its workers, if known; other runs count it as taken.
        needs: the least that would let it start a request, if it waits.
        since: start of the time in which it waits and holds nothing, in seconds since 1970; 0 otherwise.
    """

    run: str
    pid: int
    held: Mapping[str, int] = field(default_factory=dict)
    used: Mapping[str, int] = field(default_factory=dict)
    needs: Mapping[str, int] = field(default_factory=dict)
    since: float = 0.0


class Account:
    """The entry of one run in the account of this machine, from its creation to ``close``.

    Args:
        run: its id.
        folder: instead of the machine's.

    Attributes:
        written: the entry that other runs see.

    Raises:
        NotPrivate: another user could write there.
    """

    def __init__(self, run: str, folder: Path | None = None) -> None:
        self.run = run
        self._folder = private((folder or machine_folder()) / "account")
        self._name = secrets.token_hex(8) + ENTRY
        self._gate = self._open(GATE)
        self.written: RunAccount | None = None
        with self.gate():  # between the two steps the file would be taken for one of a process that is gone
            self._file = self._open(self._name)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _open(self, name: str) -> int:
        return os.open(self._folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    @contextmanager
    def gate(self) -> Iterator[bool]:
        """While open, no other run grants anything. False: another one has the gate for long, and nothing is to be granted now."""
        end, mine = time.monotonic() + GATE_S, False
        while not mine and time.monotonic() < end:
            try:
                fcntl.flock(self._gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
                mine = True
            except BlockingIOError:
                time.sleep(TRY_S)
        try:
            yield mine
        finally:
            if mine:
                fcntl.flock(self._gate, fcntl.LOCK_UN)

    def others(self) -> list[RunAccount]:
        """The other runs that live; the files of those that do not are removed. To be called behind the gate.

        A process that this run was taken over from is left out, it may be stopped (Ctrl-Z) for ever.
        """
        found = [self._read(name) for name in os.listdir(self._folder) if name.endswith(ENTRY)]
        return [entry for entry in found if entry is not None and entry.run != self.run]

    def _read(self, name: str) -> RunAccount | None:
        if name == self._name:
            return None
        with suppress(OSError, ValueError, TypeError):
            file = os.open(self._folder / name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return RunAccount(**json.loads(os.pread(file, MOST_BYTES, 0)))
            else:
                (self._folder / name).unlink()
            finally:
                os.close(file)
        return None

    def entry(self, held: Mapping[str, int], used: Mapping[str, int], needs: Mapping[str, int]) -> RunAccount:
        """Publish what this run holds, uses and needs."""
        before, waits = self.written, bool(needs) and not any(held.values())
        since = (before.since if before is not None and before.since else time.monotonic()) if waits else 0.0
        return RunAccount(self.run, os.getpid(), dict(held), dict(used), dict(needs), since)

    def write(self, entry: RunAccount) -> None:
        """Let the others see it. To be called behind the gate."""
        if entry != self.written:
            data = json.dumps(asdict(entry)).encode()
            os.pwrite(self._file, data, 0)
            os.ftruncate(self._file, len(data))
            self.written = entry

    def close(self) -> None:
        """This run holds nothing any more."""
        if self._file >= 0:
            (self._folder / self._name).unlink(missing_ok=True)
            os.close(self._file)
            os.close(self._gate)
            self._file = -1


def waits_longer(mine: RunAccount, others: Sequence[RunAccount]) -> list[RunAccount]:
    """Others that wait, hold nothing, and have waited longer than this run, which may hold something."""
    return [entry for entry in others if entry.since and not 0 < mine.since <= entry.since]


def share(pool: str, capacity: int, mine: RunAccount, others: Sequence[RunAccount], least: int = 0) -> int:
    """Bytes (or cores) of a pool that a run may hold in all, beside others. Pure.

    What others hold they keep, and so does the run. While others wait, each run has an equal part, but room for one thing at least
    (``least``). Before a run gets more, one that holds nothing and has waited longer gets what it needs.
    """
    active = [entry for entry in others if entry.held.get(pool, 0) or entry.needs.get(pool, 0)]
    first = sum(entry.needs.get(pool, 0) for entry in waits_longer(mine, active))
    most = capacity - sum(entry.held.get(pool, 0) for entry in active) - first
    if any(entry.needs.get(pool, 0) for entry in active):
        most = min(most, max(capacity // (1 + len(active)), least))
    return max(most, mine.held.get(pool, 0), 0)


__all__ = ["CORES", "Account", "RunAccount", "share", "waits_longer"]
