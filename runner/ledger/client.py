"""The ledger as a runner sees it: the same calls for the one in its own process, which is here, and for the actor of a cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from .. import clock
from ..packing import Request
from . import inventory
from .account import Account
from .inventory import Found
from .leases import BEAT_S, Exchange, LeaseEnd, Waits
from .ledger import Ledger
from .machine import Machine


class LedgerClient(Protocol):
    """The ledger as a runner calls it, from one thread."""

    run: str

    def ask(self, requests: Sequence[Request]) -> None:
        """Queue requests, many at once. ``user`` and ``run`` are filled in; ``submitted``: ``clock.now()``.

        Raises:
            ValueError: one of them waits or is held already; none is queued then.
        """
        ...

    def withdraw(self, ids: Iterable[str]) -> list[str]:
        """Take requests back; the ids of those that had not been granted yet."""
        ...

    def exchange(self, done: Sequence[LeaseEnd] = (), wait_s: float = 0.0) -> Exchange:
        """Return leases and receive news, in one round trip. Without news, wait up to ``wait_s`` if other runs may cause some."""
        ...

    def refs(self) -> list[Any]:
        """To wait for with ``ray.wait`` beside the workers: ready when ``exchange`` has something new. Empty in local mode."""
        ...

    def closed(self, device: str) -> None:
        """The run's worker on a device is gone: its process is charged no more."""
        ...

    def avoid(self, device: str, seconds: float) -> bool:
        """Grant this run nothing more on a device for so long; False, and nothing is done, where it has no other."""
        ...

    def observe(self, pool: str, free: int, ours: int | None = None) -> None:
        """A worker has seen so many bytes free in a pool, and our workers hold ``ours`` of it."""
        ...

    def devices(self) -> list[Found]:
        """Every device of the machine or the cluster, usable or not."""
        ...

    def options(self, device: str) -> dict[str, Any]:
        """Options for the actor of a worker on a device: ``Worker.options(**ledger.options(lease.device))``."""
        ...

    def why(self) -> dict[str, Waits]:
        """Why requests wait: by the id of one of each kind. Of many kinds, the first ones."""
        ...

    def snapshot(self) -> dict[str, Any]:
        """Pools, devices with leases, runs and users, as plain data."""
        ...

    def close(self) -> None:
        """The run is over, and its workers gone: all its leases end, its requests are forgotten."""
        ...


class LocalLedger:
    """The ledger of this machine, for one run alone, in its process.

    Args:
        lanes: trials at once on each device; None: all cores of the CPU, and ``inventory.LANES`` on a GPU.
        threads: of one trial on the CPU.
        devices: instead of those of this machine.
        account: shared with the other runs of this user; None: there are none.
        note: tells the user that there are others, and that there are none any more.
    """

    def __init__(
        self,
        run: str,
        user: str,
        *,
        lanes: int | None = None,
        threads: int = 1,
        devices: Sequence[Found] | None = None,
        account: Account | None = None,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.run = run
        self._found = list(devices) if devices is not None else inventory.local(threads, lanes)
        self._ours = devices is None
        self._told: set[str] = set()
        self._ledger = Ledger()
        for row in self._found:
            if row.usable:
                self._ledger.add_device(row)
        self._seen, self._looked = 0, time.monotonic()
        self._ledger.join(run, user, clock.now())
        self._machine = None if account is None else Machine(account, self._ledger, self._found, note)

    def _beat(self) -> float:
        """This run is silent only while it does something else: it never loses its leases to itself."""
        now = clock.now()
        self._ledger.beat(self.run, now)
        if self._ours and time.monotonic() - self._looked > BEAT_S:
            self._looked = time.monotonic()
            for pool, free in inventory.free_now(self._found).items():
                if pool not in self._told:  # workers know what of it is ours
                    self._ledger.observe(pool, free)
        return now

    def ask(self, requests: Sequence[Request]) -> None:
        """See ``LedgerClient``."""
        self._ledger.ask(self.run, requests, self._beat())

    def withdraw(self, ids: Iterable[str]) -> list[str]:
        """See ``LedgerClient``."""
        return self._ledger.withdraw(self.run, ids)

    def exchange(self, done: Sequence[LeaseEnd] = (), wait_s: float = 0.0) -> Exchange:
        """See ``LedgerClient``. Never waits: of what happens here but by this run the next exchange hears."""
        now = self._beat()
        if self._machine is None:
            answer = self._ledger.exchange(self.run, done, now, self._seen)
        else:
            self._ledger.give_back(self.run, done, now)
            with self._machine.granting(self.run) as idle:
                answer = self._ledger.exchange(self.run, (), now, self._seen)
            answer = replace(answer, close=(*answer.close, *idle), others=bool(self._machine.beside))
        self._seen = answer.last
        return answer

    def refs(self) -> list[Any]:
        """Nothing to wait for."""
        return []

    def closed(self, device: str) -> None:
        """See ``LedgerClient``."""
        self._ledger.closed(self.run, device)

    def avoid(self, device: str, seconds: float) -> bool:
        """See ``LedgerClient``."""
        return self._ledger.avoid(self.run, device, seconds, clock.now())

    def observe(self, pool: str, free: int, ours: int | None = None) -> None:
        """See ``LedgerClient``."""
        if ours is not None:
            self._told.add(pool)
            if self._machine is not None:
                self._machine.used[pool] = ours
        self._ledger.observe(pool, free, ours, self.run)

    def devices(self) -> list[Found]:
        """See ``LedgerClient``."""
        return list(self._found)

    def options(self, device: str) -> dict[str, Any]:
        """See ``LedgerClient``: Ray hands out nothing here; the worker takes its device by the name that it is given."""
        return {"num_cpus": 0}

    def why(self) -> dict[str, Waits]:
        """See ``LedgerClient``."""
        beside = "" if self._machine is None else self._machine.beside
        return {
            name: Waits(one.count, f"{one.why}; {beside}" if beside else one.why)
            for name, one in self._ledger.why(self.run).items()
        }

    def snapshot(self) -> dict[str, Any]:
        """See ``LedgerClient``."""
        return self._ledger.snapshot()

    def close(self) -> None:
        """See ``LedgerClient``."""
        self._ledger.leave(self.run)
        if self._machine is not None:
            self._machine.account.close()
