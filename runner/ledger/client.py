"""The ledger as a runner sees it: the same calls for the one in its own process and for the actor of a cluster."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from ..packing import Request
from . import inventory
from .account import Account
from .inventory import Found
from .leases import BEAT_S, Exchange, Held, Lease, LeaseEnd, Terms, Waits
from .ledger import Ledger
from .machine import Machine
from .settings import Settings

CALL_S = 30.0  # an answer that takes longer is given up; the ledger keeps the news until it hears that they have arrived


class LedgerClient(Protocol):
    """What a runner calls, from one thread."""

    run: str

    def ask(self, requests: Sequence[Request]) -> None:
        """Queue requests, many at once. ``user`` and ``run`` are filled in; ``submitted``: ``time.time()``.

        Raises:
            ValueError: one of them waits or is held already; none is queued then.
        """
        ...

    def withdraw(self, ids: Iterable[str]) -> list[str]:
        """Take requests back; the ids of those that had not been granted yet."""
        ...

    def exchange(self, done: Sequence[LeaseEnd] = (), wait_s: float = 0.0) -> Exchange:
        """Give leases back and take what is new, in one round trip; with nothing new, wait up to ``wait_s`` where others may cause some."""
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
        self._clock = time.time() - time.monotonic()
        self._ledger.join(run, user, self._now())
        self._machine = None if account is None else Machine(account, self._ledger, self._found, note)

    def _now(self) -> float:
        """Seconds since 1970 by a clock that never goes back."""
        return self._clock + time.monotonic()

    def _beat(self) -> float:
        """This run is silent only while it does something else: it never loses its leases to itself."""
        now = self._now()
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
            answer = replace(answer, close=(*answer.close, *idle))
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
        return self._ledger.avoid(self.run, device, seconds, self._now())

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


class ActorLedger:
    """The ledger of a cluster, for one run of many. Ray must have joined the cluster.

    Keeps what the run waits for and holds, so that a ledger that has started again, or has given the run up, is told of it. Each
    object is another run for the ledger, even if they have the same name: leases of one that died end by themselves.

    Args:
        lanes: for the devices of a ledger that is not there yet, see ``LocalLedger``; one that is keeps its own.
        threads: of one trial on the CPU.
        settings: of a ledger that is not there yet.
        terms: of this run.

    Raises:
        LedgerError: the cluster's ledger speaks another version of this package.
    """

    def __init__(
        self,
        run: str,
        user: str,
        *,
        lanes: int | None = None,
        threads: int = 1,
        settings: Settings | None = None,
        terms: Terms = Terms(),  # noqa: B008 - frozen
    ) -> None:
        from . import actor

        self.run, self.user, self._threads, self._terms = run, user, threads, terms
        self._key = f"{run}#{secrets.token_hex(4)}"
        self._settings = settings or Settings(lanes=lanes)
        self._actor = actor.start(self._settings)
        self._waiting: dict[str, Request] = {}
        self._held: dict[str, Held] = {}
        self._kept: set[str] = set()
        self._workers: set[str] = set()
        self._done: list[LeaseEnd] = []
        self._seen = 0
        self._joined = False
        self._poll: Any = None
        self._polled_at = 0.0
        self._groups: dict[str, tuple[Found, str]] = {}
        actor.check_version(self._actor)
        self._join()

    def _call(self, name: str, *args: Any, wait_s: float = 0.0) -> Any:
        """The answer of the actor, None where it could not be reached."""
        import ray
        from ray.exceptions import ActorDiedError, GetTimeoutError, RayActorError

        from . import actor

        try:
            return ray.get(getattr(self._actor, name).remote(*args), timeout=CALL_S + wait_s)
        except ActorDiedError:  # for good, not to be started again by Ray
            self._actor = actor.start(self._settings)
        except (RayActorError, GetTimeoutError):
            pass
        self._joined = False  # whatever it has done of this: joining again makes both sides agree
        self._poll = None
        return None

    def _join(self) -> Exchange | None:
        """Tell a ledger that does not know this run all that it must know."""
        self._poll = None
        held, waiting = list(self._held.values()), list(self._waiting.values())
        done, workers = tuple(self._done), sorted(self._workers)
        answer = self._call("join", self._key, self.user, held, waiting, done, self._seen, workers, self._threads, self._terms)
        if answer is not None:
            self._joined = True
            self._done = []
        return answer

    def ask(self, requests: Sequence[Request]) -> None:
        """See ``LedgerClient``."""
        held = {name for item in self._held.values() for name in item.lease.requests}
        names = [request.id for request in requests]
        again = next((name for name in names if name in self._waiting or name in held), None)
        if again is not None or len(set(names)) < len(names):
            raise ValueError(
                f"request {again or names} of run {self.run} waits or is held already: ask again once it has ended"
            )
        self._waiting |= dict(zip(names, requests))
        if self._joined and not self._call("ask", self._key, list(requests)):
            self._joined = False

    def withdraw(self, ids: Iterable[str]) -> list[str]:
        """See ``LedgerClient``. Nothing is withdrawn while the ledger cannot be reached."""
        out = self._call("withdraw", self._key, list(ids)) or []
        for name in out:
            self._waiting.pop(name, None)
        return out

    def exchange(self, done: Sequence[LeaseEnd] = (), wait_s: float = 0.0) -> Exchange:
        """See ``LedgerClient``."""
        for end in done:
            if end.lease in self._held:
                self._done.append(end)
                if end.kept:  # its bytes are still held: a ledger that starts again is told of them
                    self._kept.add(end.lease)
                else:
                    self._drop(end.lease)
        answer = self._answer(wait_s)
        return Exchange(reached=False) if answer is None else self._take(answer)

    def _answer(self, wait_s: float) -> Exchange | None:
        if not self._joined:
            return self._join()
        if not self._done and wait_s <= 0 and self._listens():
            return Exchange(last=self._seen)
        poll, self._poll = self._poll, None
        answer = self._polled(poll) if poll is not None and not self._done else None
        if answer is None:
            answer = self._call("exchange", self._key, tuple(self._done), self._seen, wait_s, wait_s=wait_s)
        if answer is None:
            return None
        if not answer.known:
            self._joined = False
            return self._join()
        self._done = []
        return answer

    def _listens(self) -> bool:
        """Whether a long poll is open: there is nothing new then. One that is open too long is not trusted."""
        import ray

        if self._poll is None or time.monotonic() > self._polled_at + 2 * BEAT_S:
            return False
        return not ray.wait([self._poll], timeout=0)[0]

    def _polled(self, poll: Any) -> Exchange | None:
        """What a long poll has brought; None where it is not over, or has failed: the next exchange brings the same."""
        import ray
        from ray.exceptions import RayError

        if not ray.wait([poll], timeout=0)[0]:
            return None
        try:
            return ray.get(poll)
        except RayError:
            return None

    def _take(self, answer: Exchange) -> Exchange:
        """Note what is granted and what has ended; news that has come twice is passed on once."""
        self._seen = max(self._seen, answer.last)
        leases = [lease for lease in answer.leases if all(name in self._waiting for name in lease.requests)]
        for lease in leases:
            requests = [self._waiting.pop(name) for name in lease.requests]
            self._held[lease.id] = Held(lease, requests[0])
            self._workers.add(lease.device)
            self._drop(lease.follows)
        ended = [end for end in answer.ended if self._drop(end.lease)]
        unwanted = [name for name in answer.unwanted if name in self._kept]
        self._kept.difference_update(unwanted)
        return replace(answer, leases=tuple(leases), ended=tuple(ended), unwanted=tuple(unwanted))

    def _drop(self, lease: str) -> bool:
        """A lease is held no longer; whether it was."""
        self._kept.discard(lease)
        return self._held.pop(lease, None) is not None

    def alone(self) -> list[str]:
        """Leases of earlier runners of this run end: their processes are known to be gone. The names that the ledger had for them."""
        return self._call("alone", self._key) or []

    def refs(self) -> list[Any]:
        """See ``LedgerClient``. It is ready after ``BEAT_S`` at the latest: an exchange then tells the ledger that the run lives."""
        if self._poll is None and self._joined:
            self._poll = self._actor.exchange.remote(self._key, (), self._seen, BEAT_S)
            self._polled_at = time.monotonic()
        return [] if self._poll is None else [self._poll]

    def closed(self, device: str) -> None:
        """See ``LedgerClient``."""
        self._workers.discard(device)
        self._call("closed", self._key, device)

    def avoid(self, device: str, seconds: float) -> bool:
        """See ``LedgerClient``."""
        return bool(self._call("avoid", self._key, device, seconds))

    def observe(self, pool: str, free: int, ours: int | None = None) -> None:
        """See ``LedgerClient``. ``ours``: what the workers of this run hold; the ledger adds up what the runs say."""
        self._call("observe", pool, free, ours, self._key)

    def devices(self) -> list[Found]:
        """See ``LedgerClient``. The frames of this run's kernels are among what a process holds."""
        rows: list[Found] = self._call("devices") or []
        frames = self._terms.frames
        return [row if row.backend == "cpu" else replace(row, process_bytes=row.process_bytes + frames) for row in rows]

    def options(self, device: str) -> dict[str, Any]:
        """See ``LedgerClient``.

        Raises:
            KeyError: no lease has named the device, or it is lost.
        """
        from . import actor

        if not any(item.lease.device == device for item in self._held.values()) or device not in self._groups:
            self._groups = self._call("groups") or self._groups
        found, group = self._groups[device]
        return actor.placed(group, found.resource)

    def why(self) -> dict[str, Waits]:
        """See ``LedgerClient``."""
        return self._call("why", self._key) or {}

    def snapshot(self) -> dict[str, Any]:
        """See ``LedgerClient``."""
        return self._call("snapshot") or {}

    def held(self) -> list[Lease]:
        """The leases that the run has now."""
        return [item.lease for item in self._held.values()]

    def close(self) -> None:
        """See ``LedgerClient``."""
        self._poll = None
        self._call("leave", self._key)
        self._joined = False
