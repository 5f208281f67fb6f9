"""The devices of this machine, and what the user's other runs here leave of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from .account import CORES, Account, RunAccount, share, waits_longer
from .inventory import Found
from .ledger import Ledger


class Machine:
    """The devices of this machine for one run. Its ledger keeps within what the other runs of this user leave.

    Args:
        found: the devices.
        account: shared with the other runs of this user; None: there are none.
        note: tells the user that there are others, and that there are none any more.

    Attributes:
        beside: what the others hold, in words; empty where there are none.
    """

    def __init__(
        self, found: Sequence[Found], account: Account | None = None, note: Callable[[str], None] = lambda text: None
    ) -> None:
        self._found, self._account, self._note = list(found), account, note
        self._added: set[str] = set()
        usable = [row for row in self._found if row.usable]
        self._capacity = {row.pool: row.capacity for row in usable}
        self._threads = {row.id: row.threads for row in usable if row.backend == "cpu"}
        self._cores = max([row.lanes * row.threads for row in usable if row.backend == "cpu"], default=0)
        self._used: dict[str, int] = {}
        self._others: list[RunAccount] = []
        self.beside = ""

    @property
    def others(self) -> bool:
        """Whether other runs share the machine."""
        return bool(self.beside)

    @property
    def changed(self) -> bool:
        """Devices of a machine do not change."""
        return False

    def devices(self) -> list[Found]:
        """All of them, usable or not."""
        return list(self._found)

    def options(self, device: str) -> dict[str, Any]:
        """Ray hands out nothing here; the worker takes its device by the name that it is given."""
        return {"num_cpus": 0}

    def observed(self, pool: str, ours: int) -> None:
        """The workers of this run hold so many bytes of a pool."""
        self._used[pool] = ours

    def closed(self, device: str) -> None:
        """The run's worker on a device is gone."""

    def look_for(self, backend: str | None) -> None:
        """What is not here does not come."""

    def close(self) -> None:
        """The run holds nothing any more."""
        if self._account is not None:
            self._account.close()

    @contextmanager
    def granting(self, ledger: Ledger) -> Iterator[list[str]]:
        """While open, the ledger grants what others leave, and no other run grants anything. In the end it holds the devices on which this
        run's worker does nothing and is in the way of a run that cannot start anything.
        """
        idle: list[str] = []
        for row in self._found:
            if row.usable and row.id not in self._added:
                self._added.add(row.id)
                ledger.add_device(row)
        if self._account is None:
            yield idle
            return
        with self._account.gate() as mine:
            ledger.grants = mine
            if mine:
                self._limit(ledger, self._account)
            yield idle
            if mine:
                now = self._entry(ledger, self._account)
                self._account.write(now)
                idle += ledger.idle() if waits_longer(now, self._others) else []

    def _entry(self, ledger: Ledger, account: Account) -> RunAccount:
        held, counts = ledger.held()
        needs = ledger.least()
        if self._threads:
            held[CORES] = sum(counts.get(device, 0) * threads for device, threads in self._threads.items())
            needs |= {CORES: min(self._threads.values())} if needs else {}
        return account.entry(held, self._used, needs)

    def _limit(self, ledger: Ledger, account: Account) -> None:
        mine, self._others = self._entry(ledger, account), account.others()
        others, needs = self._others, mine.needs
        self._say(others)
        pools = {}
        for pool, capacity in self._capacity.items():
            seen = sum(entry.used.get(pool, 0) for entry in others) if pool in self._used else 0
            strangers = max(0, ledger.foreign(pool) - seen)
            pools[pool] = share(pool, capacity - strangers, mine, others, needs.get(pool, 0))
        cores = share(CORES, self._cores, mine, others, needs.get(CORES, 0))
        ledger.limit(pools, {device: cores // threads for device, threads in self._threads.items()})

    def _say(self, others: list[RunAccount]) -> None:
        held = {pool: sum(entry.held.get(pool, 0) for entry in others) for pool in self._capacity}
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
