"""The workers of a run as Ray actors: started when something is to run on them, asked, killed; what they say as events."""

from __future__ import annotations

import pickle
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..engine import messages as m
from ..engine.parts import error_of
from ..store.attempts import Failure
from ..workers.spec import BatchSpec, LeaseNews, Progress, WorkerInfo, WorkerSpec, worker_name
from .pages.batch_words import call_name
from .worker_deaths import last_words, left_behind, signal_of

UNEXPECTED, NODE_DIED = "The actor died unexpectedly", "The actor died because its node has died"
"""Words of Ray."""
HEAD_S = 2.0
TOLD_S = 2.0
"""Seconds to wait for the results of a dead worker, which may have been on a lost node."""
FLUSH_S = 5.0
LEFT_S = 0.5
"""Seconds to wait for the files of a dead worker."""
LOOK_EVERY_S = 2.0
"""Seconds between two questions to a worker what it does and holds."""


class Workers(Protocol):
    """The worker pool as the runner calls it; tests use one without Ray."""

    def launch(self, launches: Sequence[m.Launch], batches: Sequence[BatchSpec]) -> None:
        """Hand launches of one lease to their worker, which is started if there is none. It runs them one after the other."""
        ...

    def drop(self, worker: m.WorkerId, launches: Sequence[int]) -> None:
        """Tell a worker not to begin with launches; those that have not begun end as such."""
        ...

    def ask_to_stop(self, worker: m.WorkerId, trials: Iterable[str]) -> None:
        """Ask for trials to end between two steps; nothing is waited for."""
        ...

    def kill(self, worker: m.WorkerId) -> None:
        """End the process now; nothing more is heard of it."""
        ...

    def poll(self, timeout_s: float) -> list[m.Event]:
        """The next events. Waits until there is one, or the time is over."""
        ...

    def alive(self, device: str) -> bool:
        """Whether a worker lives on the device."""
        ...

    def look(self) -> Mapping[m.WorkerId, Progress]:
        """The last reports of workers. Requests new ones periodically, and does not wait."""
        ...

    def close(self) -> None:
        """End all workers."""
        ...


Left = tuple[frozenset[int] | None, str | None]
"""The traces of a dead worker: see ``left_behind``."""
Given = tuple[Sequence[m.Launch], Sequence[BatchSpec]]


@dataclass
class _Actor:
    """``said``: what it has said of itself; ``info``: the same once it may begin. ``queue``: what it is given then. ``dead``: what it had
    begun is looked up. ``calls``: its methods by the name of the call and whether it is for one batch.
    """

    handle: Any
    spec: WorkerSpec
    said: WorkerInfo | None = None
    info: WorkerInfo | None = None
    queue: list[Given] = field(default_factory=list)
    dead: bool = False
    calls: dict[tuple[str, bool], Any] = field(default_factory=dict)


@dataclass
class _RemoteCall:
    """The meaning of a reference: the worker, and the numbers of the launches; None for the first call of a worker.

    ``death``: the reference is not to the worker, but to the launches that it had begun when it died of ``death``.
    """

    worker: m.WorkerId
    launches: dict[int, m.Launch] | None = None
    death: tuple[Failure, m.Error] | None = None


class RayWorkers:
    """Actors of ``work.Worker``.

    Args:
        run: the id of the run.
        specs: what a worker is, by its place.
        options: of Ray for an actor on a device: its placement group, resources, environment.
    """

    def __init__(self, run: str, specs: Callable[[m.WorkerId], WorkerSpec], options: Callable[[str], dict[str, Any]]) -> None:
        self.run, self.specs, self.options = run, specs, options
        self._actors: dict[m.WorkerId, _Actor] = {}
        self._refs: dict[Any, _RemoteCall] = {}
        self._news: list[m.Event] = []
        self._looks: dict[Any, m.WorkerId] = {}
        self._seen: dict[m.WorkerId, Progress] = {}
        self._looked = float("-inf")
        self._deaths: queue.SimpleQueue[m.WorkerDown | m.NotReady] = queue.SimpleQueue()
        self._no_preload: set[str] = set()  # devices whose worker died while it loaded code, or loads it

    def launch(self, launches: Sequence[m.Launch], batches: Sequence[BatchSpec]) -> None:
        """Hand launches to their worker. They wait here until the worker has said what it is."""
        worker = launches[0].worker
        try:
            actor = self._actors.get(worker) or self._start(worker)
        except LookupError as error:  # the device was lost a moment ago, or the ledger cannot say where it is
            why = f"{worker.device} is not there any more: {error}"
            self._news.append(m.NotReady(worker, error_of("DeviceLost", why), m.Unready.lost))
            return
        if actor.info is not None and not actor.dead:
            self._send(worker, actor, launches, batches)
        else:
            actor.queue.append((launches, batches))

    def _send(self, worker: m.WorkerId, actor: _Actor, launches: Sequence[m.Launch], batches: Sequence[BatchSpec]) -> None:
        asked, behind = _RemoteCall(worker, {launch.id: launch for launch in launches}), launches[0].behind
        single, name = len(batches) == 1 and not behind, call_name(batches)
        if (method := actor.calls.get((name, single))) is None:
            options = {"name": name} if single else {"name": name, "num_returns": "streaming"}
            method = actor.calls[name, single] = (actor.handle.run if single else actor.handle.run_all).options(**options)
        self._refs[method.remote(pickle.dumps(tuple(batches), 5))] = asked
        if not behind:  # else the worker says when it begins
            self._news.append(m.Started(launches[0].id))

    def drop(self, worker: m.WorkerId, launches: Sequence[int]) -> None:
        """What waits here is taken out; of the rest the worker is told."""
        actor = self._actors.get(worker)
        if actor is None:
            return
        here, left = set(launches), []
        for own, batches in actor.queue:
            kept = [k for k, launch in enumerate(own) if launch.id not in here]
            self._news += [m.LaunchEnded(launch.id, {}, begun=False) for launch in own if launch.id in here]
            here -= {launch.id for launch in own}
            if kept:
                left.append(([own[k] for k in kept], [batches[k] for k in kept]))
        actor.queue = left
        if here and not actor.dead:
            unlisted(actor.handle.drop).remote(tuple(here))

    def _start(self, worker: m.WorkerId) -> _Actor:
        from .worker_actor import actor_class, versions

        spec = self.specs(worker)
        options = {"max_restarts": 0, "max_task_retries": 0, "max_concurrency": 2 * spec.lanes + 2}
        options |= {
            "name": worker_name(self.run, spec.device, spec.number) + (f"-owner{spec.owner}" if spec.owner > 1 else ""),
            "namespace": "qdrun",
            **self.options(worker.device),
        }
        handle = actor_class().options(**options).remote(versions(), pickle.dumps(spec))
        actor = self._actors[worker] = _Actor(handle, spec)
        self._refs[unlisted(handle.hello).remote()] = _RemoteCall(worker)
        return actor

    def ask_to_stop(self, worker: m.WorkerId, trials: Iterable[str]) -> None:
        """Set the flags; what the worker answers does not matter."""
        actor = self._actors.get(worker)
        if actor is not None:
            unlisted(actor.handle.stop).remote(tuple(trials))

    def kill(self, worker: m.WorkerId) -> None:
        """End the process now."""
        import ray

        actor = self._forget(worker)
        if actor is not None:
            ray.kill(actor.handle, no_restart=True)

    def _forget(self, worker: m.WorkerId) -> _Actor | None:
        self._forget_refs(worker)
        for ref in [ref for ref, where in self._looks.items() if where == worker]:
            del self._looks[ref]
        self._seen.pop(worker, None)
        return self._actors.pop(worker, None)

    def _forget_refs(self, worker: m.WorkerId) -> None:
        for ref in [ref for ref, asked in self._refs.items() if asked.worker == worker]:
            del self._refs[ref]

    def alive(self, device: str) -> bool:
        """Whether a worker lives on the device."""
        return any(worker.device == device for worker in self._actors)

    def poll(self, timeout_s: float) -> list[m.Event]:
        """All that has come back, in one look. What is known without Ray is said first: a look takes as long as a short trial."""
        import ray

        if not self._news:
            self._news += self._dead()
        if not self._news:
            refs = list(self._refs)
            if not refs:
                time.sleep(timeout_s)
                return []
            ready, _ = ray.wait(refs, num_returns=1, timeout=timeout_s, fetch_local=False)
            if ready and len(refs) > 1:
                ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)
            for ref in ready:
                if ref in self._refs:  # else an event before has ended its worker
                    self._news += self._event(ref)
        news, self._news = self._news, []
        return news

    def _event(self, ref: Any) -> list[m.Event]:
        import ray

        asked = self._refs.pop(ref)
        worker, launches = asked.worker, asked.launches
        try:
            if asked.death is not None:
                left = self._looked_up(ref)
                return self._down(worker, asked.death, lambda: left)
            value = _value(ref)
        except StopIteration:  # without an end of each
            return [m.LaunchEnded(name, {}) for name in launches or ()]
        except ray.exceptions.RayTaskError as error:  # the worker refuses: another device, another owner
            self.kill(worker)
            cause = error.cause if isinstance(getattr(error, "cause", None), Exception) else error
            return [m.WorkerDown(worker, Failure.infrastructure, error_of(type(cause).__name__, str(cause)))]
        except ray.exceptions.RayError as error:
            actor = self._actors[worker]
            if getattr(error, "actor_init_failed", False):  # Python could not even make it: this package is not there
                *_, last = str(error).rstrip().splitlines()
                return self._not_ready(worker, error_of(type(error).__name__, last.strip()))
            return self._died(worker, death_of(error, node_gone=actor.info is not None and gone(actor.info.node)))
        if isinstance(value, dict):
            return self._not_ready(worker, value)
        return self._ready(worker, value) if launches is None else self._heard(ref, asked, launches, value)

    def _heard(self, ref: Any, asked: _RemoteCall, launches: dict[int, m.Launch], value: Any) -> list[m.Event]:
        """The news of a call. More comes by the same reference until all of its launches have ended."""
        news: LeaseNews = pickle.loads(value)
        events: list[m.Event] = list(news.ends)
        for end in news.ends:
            del launches[end.launch]
        if news.running:
            events.append(m.Started(news.running, news.seconds))
        if launches:
            self._refs[ref] = asked
        return events

    def _told_before(self, worker: m.WorkerId) -> list[m.Event]:
        """The results of a worker before its death; those of its other lanes are read after its death only."""
        import ray

        events, end = list[m.Event](), time.monotonic() + TOLD_S
        for ref, asked in [(ref, asked) for ref, asked in self._refs.items() if asked.worker == worker]:
            with suppress(StopIteration, ray.exceptions.RayError):
                while asked.launches and ref in self._refs and ray.wait([ref], timeout=0, fetch_local=False)[0]:
                    del self._refs[ref]
                    events += self._heard(ref, asked, asked.launches, _value(ref, max(0.0, end - time.monotonic())))
        return events

    def _ready(self, worker: m.WorkerId, info: WorkerInfo | None) -> list[m.Event]:
        """It has said what it is, or (None) loaded code."""
        actor = self._actors[worker]
        if info is not None and actor.spec.shapes and worker.device not in self._no_preload:
            claimed = sum(batches[0].claim_bytes or 0 for _, batches in actor.queue)
            self._no_preload.add(worker.device)  # if it dies of it, the next one leaves it to the trials
            actor.said, self._refs[unlisted(actor.handle.preload).remote(claimed)] = info, _RemoteCall(worker)
            return []
        self._no_preload.discard(worker.device)
        actor.info, waiting, actor.queue = info or actor.said, actor.queue, []
        for launches, batches in waiting:
            self._send(worker, actor, launches, batches)
        return []

    def _not_ready(self, worker: m.WorkerId, error: m.Error) -> list[m.Event]:
        """It says that it can run no trial."""
        self.kill(worker)
        return [m.NotReady(worker, error)]

    def _died(self, worker: m.WorkerId, death: tuple[Failure, m.Error]) -> list[m.Event]:
        """A process is gone: take what it had told, and look up what its lanes had begun, on the host that it was on."""
        actor = self._actors[worker]
        if actor.info is None:  # before it could begin with anything
            return self._down(worker, death, lambda: (frozenset(), None))
        told = self._told_before(worker)
        if death[0] is not Failure.crash:
            return told + self._down(worker, death, lambda: (None, None))
        if actor.info.node in ("", self._node()):
            begun = actor.info.begun
            return told + self._down(worker, death, lambda: left_behind(begun))
        self._forget_refs(worker)
        actor.dead = True
        self._refs[read_there(left_behind, actor.info.node, actor.info.begun)] = _RemoteCall(worker, death=death)
        return told

    @staticmethod
    def _looked_up(ref: Any) -> Left:
        import ray

        try:
            return ray.get(ref)
        except ray.exceptions.RayError:  # the node is gone, too
            return None, None

    def _down(self, worker: m.WorkerId, death: tuple[Failure, m.Error], read: Callable[[], Left]) -> list[m.Event]:
        """The event of a death, once it is read what the worker has left. A store that stalls is waited for ``LEFT_S``; then ``poll`` has
        the event later.
        """
        actor = self._actors[worker]
        actor.dead = True
        self._forget_refs(worker)

        def look() -> None:
            (failure, error), begun = death, None
            try:
                begun, log = read()
                if error["message"].startswith(UNEXPECTED):  # Ray cannot say why
                    error = last_words(error, actor.spec, log)
            finally:  # whatever the files are, the death is told
                self._deaths.put(
                    m.WorkerDown(worker, failure, error, begun, signal_of(error))
                    if actor.info is not None
                    else m.NotReady(worker, error, m.Unready.died if failure is Failure.crash else m.Unready.lost)
                )

        looking = threading.Thread(target=look, name="last words", daemon=True)
        looking.start()
        looking.join(LEFT_S)
        return self._dead()

    def _dead(self) -> list[m.Event]:
        """The events of deaths of which is read what their workers have left."""
        found = list[m.Event]()
        while not self._deaths.empty():
            down = self._deaths.get()
            if down.worker in self._actors:
                self.kill(down.worker)
                found.append(down)
        return found

    @staticmethod
    def _node() -> str:
        import ray

        return ray.get_runtime_context().get_node_id()

    def look(self) -> Mapping[m.WorkerId, Progress]:
        """What workers said of themselves when they were last asked; asks those again that have answered. Waits for nothing."""
        import ray

        ready = ray.wait(list(self._looks), num_returns=len(self._looks), timeout=0)[0] if self._looks else []
        for ref in ready:
            worker = self._looks.pop(ref)
            with suppress(ray.exceptions.RayError):  # that it died is heard from what it runs
                self._seen[worker] = ray.get(ref)
        now, asked = time.monotonic(), set(self._looks.values())
        if now - self._looked >= LOOK_EVERY_S:
            self._looked = now
            for worker, actor in self._actors.items():
                if actor.info is not None and not actor.dead and worker not in asked:
                    self._looks[unlisted(actor.handle.progress).remote()] = worker
        return self._seen

    def close(self) -> None:
        """End all workers, which write what jobs have logged before, if they can within ``FLUSH_S``."""
        import ray

        asked = [unlisted(one.handle.flush).remote() for one in self._actors.values() if one.info is not None and not one.dead]
        with suppress(ray.exceptions.RayError):
            if asked:
                ray.wait(asked, num_returns=len(asked), timeout=FLUSH_S)
        for worker in list(self._actors):
            self.kill(worker)


def unlisted(method: Any) -> Any:
    """A method of an actor whose calls the dashboard does not count: there, each call that is counted is a lease."""
    return method.options(enable_task_events=False)


def _value(ref: Any, timeout_s: float | None = None) -> Any:
    """The value of a ready reference; for a stream, its next item."""
    import ray

    return ray.get(next(ref) if isinstance(ref, ray.ObjectRefGenerator) else ref, timeout=timeout_s)


def read_there(read: Callable[[str], Any], node: str, path: str) -> Any:
    """Call ``read(path)`` on a node; a reference to what it gives."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    where = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(read).options(name="read_begun", num_cpus=0, max_retries=0, scheduling_strategy=where).remote(path)


def death_of(error: Exception, *, node_gone: bool) -> tuple[Failure, dict[str, str]]:
    """Why an actor is gone: its own fault, or that of its node (``node_gone``), of the cluster, or of what starts it. Judged by types."""
    from ray import exceptions

    others = (
        exceptions.ActorUnavailableError,
        exceptions.NodeDiedError,
        exceptions.OwnerDiedError,
        exceptions.LocalRayletDiedError,
    )
    starts = (exceptions.ActorUnschedulableError, exceptions.ActorPlacementGroupRemoved, exceptions.RuntimeEnvSetupError)
    infra = node_gone or isinstance(error, (*others, *starts)) or NODE_DIED in str(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = next((line for line in lines if line.startswith("The actor")), lines[0] if lines else "")
    if isinstance(error, exceptions.RayActorError):
        infra |= error.actor_init_failed or error.preempted  # pyright: ignore[reportAttributeAccessIssue]
    failure = Failure.infrastructure if infra else Failure.crash
    return failure, error_of("WorkerCrashedError" if failure is Failure.crash else type(error).__name__, told)


def gone(node: str) -> bool:
    """Whether the cluster takes a node for dead; False where there is no cluster, or its head does not say so within ``HEAD_S``."""
    import ray

    rows: list[Mapping[str, Any]] = []

    def ask() -> None:
        with suppress(ray.exceptions.RayError, ConnectionError, RuntimeError, TimeoutError):
            rows.extend(ray.nodes())

    if node:
        asking = threading.Thread(target=ask, name="nodes", daemon=True)  # without a head the call may hang
        asking.start()
        asking.join(HEAD_S)
    return bool(rows) and not any(row["NodeID"] == node and row["Alive"] for row in rows)
