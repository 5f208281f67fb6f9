"""The ledger of a cluster as a runner sees it: ``LedgerClient`` by calls of the actor, of which any may be lost."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from ...compiler.errors import QdrunError
from ..exit_codes import NO_CLUSTER
from ..ledger.inventory import Found
from ..ledger.leases import BEAT_S, Exchange, Held, Lease, LeaseEnd, Terms, Waits
from ..ledger.settings import NAME, NAMESPACE, Settings
from ..packing import Request

START_S = 30.0
"""Seconds that a starting run waits for the ledger of a cluster; a new ledger waits for its nodes first."""
CALL_S = 10.0
"""Seconds until an answer is given up; the ledger keeps the news until they are acknowledged.

Later calls do not wait until the ledger has answered again: the run continues with its leases.
"""
LEAVE_S = 1.0
"""Seconds that an ending run waits for an unreachable ledger; without an answer its leases expire."""
LOST, LATE = object(), object()
"""Instead of an answer: there will be none, and it has not come yet."""


class LedgerError(QdrunError, RuntimeError):
    """The cluster's ledger cannot be used by this run."""

    exit_code = NO_CLUSTER


def start(settings: Settings) -> Any:
    """Get the ledger of the joined cluster: the existing one, or a new one. It outlives the run.

    It prefers the head node, which no autoscaler removes. It must not demand it: when the head's raylet dies and its control plane lives,
    Ray would try to start the ledger again on that node for ever.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from . import placement_groups
    from .ledger_actor import LedgerActor

    options: dict[str, Any] = {"name": NAME, "namespace": NAMESPACE, "lifetime": "detached", "get_if_exists": True}
    head = placement_groups.head_node()
    if head is not None:
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node_id=head, soft=True)
    made = ray.remote(LedgerActor).options(num_cpus=0, max_restarts=-1, max_task_retries=0, max_concurrency=10_000, **options)
    return made.remote(settings, prefers_head=head is not None)


def check_version(actor: Any) -> None:
    """Refuse a ledger that does not start, or that another version of this package has started.

    Raises:
        LedgerError: says what to do.
    """
    import ray
    from ray.exceptions import GetTimeoutError, RayActorError

    from .ledger_actor import ANSWER_S, VERSION

    try:
        version = ray.get(actor.version.remote(), timeout=ANSWER_S)
    except GetTimeoutError as error:
        raise LedgerError(
            f"the ledger of this cluster, actor {NAME} of namespace {NAMESPACE}, has not answered for {ANSWER_S:.0f} s\n"
            "  do: see its state and its log on the actors page of the Ray dashboard; `ray status` lists the nodes that live"
        ) from error
    except RayActorError as error:
        raise LedgerError(
            f"the ledger of this cluster, actor {NAME} of namespace {NAMESPACE}, does not start: {error}\n"
            "  do: see that the nodes of the cluster can import this version of qdrun"
        ) from error
    if version != VERSION:
        raise LedgerError(
            f"the ledger of this cluster speaks version {version}, this qdrun speaks {VERSION}\n"
            f"  do: use the qdrun that the cluster has, or, when no run is on, end the actor {NAME} of namespace {NAMESPACE}"
        )


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
        self.run, self.user, self._threads, self._terms = run, user, threads, terms
        self._key = f"{run}#{secrets.token_hex(4)}"
        self._settings = settings or Settings(lanes=lanes)
        self._actor = start(self._settings)
        self._waiting: dict[str, Request] = {}
        self._held: dict[str, Held] = {}
        self._workers: set[str] = set()
        self._done: list[LeaseEnd] = []
        self._seen = 0
        self._others = False
        self._joined = False
        self._joining: tuple[Any, int, set[str], list[str]] | None = None
        self._news: Exchange | None = None
        self._poll: Any = None
        self._polled_at = 0.0
        self._groups: dict[str, tuple[Found, str]] = {}
        check_version(self._actor)
        self._join(START_S)

    def _send(self, name: str, *args: Any) -> Any:
        """Call the actor; a reference to its answer."""
        return getattr(self._actor, name).remote(*args)

    def _hear(self, ref: Any, timeout_s: float) -> Any:
        """The answer, or ``LOST``, or ``LATE``."""
        import ray
        from ray.exceptions import ActorDiedError, GetTimeoutError, RayActorError

        try:
            return ray.get(ref, timeout=timeout_s)
        except GetTimeoutError:
            return LATE
        except ActorDiedError:  # for good, not to be started again by Ray
            self._actor = start(self._settings)
        except RayActorError:
            pass
        return LOST

    def _call(self, name: str, *args: Any, wait_s: float = 0.0) -> Any:
        """The answer of the actor, None where it could not be reached."""
        if not self._joined and not self._join():
            return None
        answer = self._hear(self._send(name, *args), CALL_S + wait_s)
        if answer is LOST or answer is LATE:
            self._joined = False  # whatever it has done of this: joining again makes both sides agree
            self._poll = None
            return None
        return answer

    def _tell(self, name: str, *args: Any) -> None:
        """Call the actor without an answer. One that is away is told when the run joins it again."""
        if self._joined:
            self._send(name, *args)

    def _join(self, wait_s: float = 0.0) -> bool:
        """Tell a ledger that does not know this run all that it must know; whether it has heard that. Its answer is ``_news``.

        The call stays open, and is looked at again the next time: a ledger that starts takes its time.
        """
        self._poll = None
        if self._joining is None:
            held, waiting = list(self._held.values()), list(self._waiting.values())
            workers = sorted(self._workers)
            what = self._key, self.user, held, waiting, tuple(self._done), self._seen, workers, self._threads, self._terms
            self._joining = self._send("join", *what), len(self._done), set(self._waiting), workers
        ref, done_then, waiting_then, workers_then = self._joining
        answer = self._hear(ref, wait_s)
        if answer is LATE:
            return False
        self._joining = None
        if answer is LOST:
            return False
        self._joined, self._news = True, answer
        del self._done[:done_then]
        for device in set(workers_then) - self._workers:
            self._tell("closed", self._key, device)
        late = [request for name, request in self._waiting.items() if name not in waiting_then]
        if late and not self._call("ask", self._key, late):
            self._joined = False
        return self._joined

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
            if self._drop(end.lease):
                self._done.append(end)
        answer = self._answer(wait_s)
        return Exchange(reached=False) if answer is None else self._take(answer)

    def _answer(self, wait_s: float) -> Exchange | None:
        if not self._joined and not self._join():
            return None
        news, self._news = self._news, None
        if news:  # of the call that joined
            return news
        if not self._done and wait_s <= 0 and self._listens():
            return Exchange(last=self._seen, others=self._others)
        poll, self._poll = self._poll, None
        answer = self._polled(poll) if poll is not None and not self._done else None
        if answer is None:
            answer = self._call("exchange", self._key, tuple(self._done), self._seen, wait_s, wait_s=wait_s)
        if answer is None:
            return None
        if not answer.known:
            self._joined = False
            return self._answer(wait_s) if self._join(CALL_S) else None
        self._done = []
        return answer

    def _listens(self) -> bool:
        """Whether a long poll is open: there is nothing new then. One that is open too long is not trusted."""
        import ray

        if self._poll is None or time.monotonic() > self._polled_at + 2 * BEAT_S:
            return False
        return not ray.wait([self._poll], timeout=0)[0]

    def _polled(self, poll: Any) -> Exchange | None:
        """The answer of a long poll; None if it is not over, or has failed: the next exchange returns the same news."""
        import ray
        from ray.exceptions import RayError

        if not ray.wait([poll], timeout=0)[0]:
            return None
        try:
            return ray.get(poll)
        except RayError:
            return None

    def _take(self, answer: Exchange) -> Exchange:
        """Record granted and ended leases; duplicate news is ignored."""
        self._seen, self._others = max(self._seen, answer.last), answer.others
        leases = [lease for lease in answer.leases if all(name in self._waiting for name in lease.requests)]
        for lease in leases:
            requests = [self._waiting.pop(name) for name in lease.requests]
            self._held[lease.id] = Held(lease, requests[0])
            self._workers.add(lease.device)
        ended = [end for end in answer.ended if self._drop(end.lease)]
        return replace(answer, leases=tuple(leases), ended=tuple(ended))

    def _drop(self, lease: str) -> bool:
        """A lease is held no longer; whether it was."""
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
        self._tell("closed", self._key, device)

    def avoid(self, device: str, seconds: float) -> bool:
        """See ``LedgerClient``."""
        return bool(self._call("avoid", self._key, device, seconds))

    def observe(self, pool: str, free: int, ours: int | None = None) -> None:
        """See ``LedgerClient``. ``ours``: what the workers of this run hold; the ledger adds up what the runs say."""
        self._tell("observe", pool, free, ours, self._key)

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
        from .placement_groups import placed

        if not any(item.lease.device == device for item in self._held.values()) or device not in self._groups:
            self._groups = self._call("groups") or self._groups
        found, group = self._groups[device]
        return placed(group, found.resource)

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
        self._hear(self._send("leave", self._key), CALL_S if self._joined else LEAVE_S)
        self._joined = False
