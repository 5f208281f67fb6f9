"""The ledger of one run that shares this machine with the user's other runs: it grants what their account leaves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from .account import CORES, Account, RunAccount, share, waits_longer
from .inventory import Found
from .ledger import Ledger


class Machine:
    """Keeps one run's ledger within what the other runs of this user leave of this machine.

    Attributes:
        account: of this machine.
        used: bytes that the workers of this run were seen to hold, by pool.
        beside: what the others hold, in words; empty where there are none.
    """

    def __init__(self, account: Account, ledger: Ledger, found: Sequence[Found], note: Callable[[str], None]) -> None:
        self.account, self._ledger, self._note = account, ledger, note
        self._found = {row.id: row for row in found if row.usable}
        self._threads = {name: row.threads for name, row in self._found.items() if row.backend == "cpu"}
        self._cores = max([row.lanes * row.threads for row in self._found.values() if row.backend == "cpu"], default=0)
        self.used: dict[str, int] = {}
        self.beside = ""
        self._others: list[RunAccount] = []

    @contextmanager
    def granting(self, run: str) -> Iterator[list[str]]:
        """While open, the ledger grants what others leave, and no other run grants anything. In the end it holds the devices on which this
        run's worker does nothing and is in the way of a run that cannot start anything.
        """
        idle: list[str] = []
        with self.account.gate() as mine:
            before = self._ledger.settle_until
            if mine:
                self._limit(run)
            else:
                self._ledger.settle_until = math.inf
            try:
                yield idle
            finally:
                self._ledger.settle_until = before
                if mine:
                    now = self._entry(run)
                    self.account.write(now)
                    idle += self._ledger.idle(run) if waits_longer(now, self._others) else []

    def _entry(self, run: str) -> RunAccount:
        held, counts = self._ledger.held(run)
        if self._threads:
            held[CORES] = sum(counts.get(device, 0) * threads for device, threads in self._threads.items())
        return self.account.entry(held, self.used, self._needs(run))

    def _needs(self, run: str) -> dict[str, int]:
        needs = self._ledger.least(run)
        return needs | {CORES: min(self._threads.values())} if needs and self._threads else needs

    def _limit(self, run: str) -> None:
        mine, self._others = self._entry(run), self.account.others()
        others, needs = self._others, mine.needs
        self._say(others)
        pools = {}
        for pool, capacity in {row.pool: row.capacity for row in self._found.values()}.items():
            seen = sum(entry.used.get(pool, 0) for entry in others) if pool in self.used else 0
            strangers = max(0, self._ledger.foreign(pool) - seen)
            pools[pool] = share(pool, capacity - strangers, mine, others, needs.get(pool, 0))
        cores = share(CORES, self._cores, mine, others, needs.get(CORES, 0))
        self._ledger.limit(run, pools, {device: cores // threads for device, threads in self._threads.items()})

    def _say(self, others: list[RunAccount]) -> None:
        held = {pool: sum(entry.held.get(pool, 0) for entry in others) for pool in {row.pool for row in self._found.values()}}
        names = ", ".join(f"{entry.run} (process {entry.pid})" for entry in others)
        taken = ", ".join(f"{amount / 2**30:.1f} GiB of {pool}" for pool, amount in sorted(held.items()) if amount)
        before, self.beside = self.beside, f"other runs of yours hold {taken or 'nothing yet'}: {names}" if others else ""
        if others and not before:
            self._note(f"this machine is shared with {names}: trials wait for their part of its memory and cores")
        elif before and not others:
            self._note("this run has the machine for itself again")


def with_others_back(found: Iterable[Found], others: Sequence[RunAccount]) -> list[Found]:
    """Devices with what other runs use of their memory taken for free: it will be, and a trial that needs it waits and is not refused."""
    rows = list(found)
    used = {row.pool: sum(entry.used.get(row.pool, 0) for entry in others) for row in rows}
    return [row if row.free is None else replace(row, free=min(row.total, row.free + used[row.pool])) for row in rows]


__all__ = ["Machine", "with_others_back"]
