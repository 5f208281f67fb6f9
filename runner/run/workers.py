"""The workers of a run as Ray actors: started when something is to run on them, asked, killed; what they say as events."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..store.attempts import Failure
from ..work.spec import BatchEnd, BatchSpec, WorkerSpec, worker_name
from . import messages as m
from .parts import error_of

KEEP = ("restart",)


class Workers(Protocol):
    """What the runner calls; tests have one without Ray."""

    def launch(self, launch: m.Launch, batch: BatchSpec) -> None:
        """Hand a launch to its worker, which is started if there is none."""
        ...

    def ask_to_stop(self, worker: m.Worker, trials: Iterable[str]) -> None:
        """Ask for trials to end between two steps; nothing is waited for."""
        ...

    def kill(self, worker: m.Worker) -> None:
        """End the process now; nothing more is heard of it."""
        ...

    def poll(self, timeout_s: float, others: Sequence[Any] = ()) -> list[m.Event]:
        """What has happened; waits until something has, one of ``others`` is ready, or the time is over."""
        ...

    def alive(self, device: str) -> bool:
        """Whether a worker lives on the device."""
        ...

    def close(self) -> None:
        """End all workers."""
        ...


@dataclass
class _Actor:
    handle: Any
    ready: bool = False
    queue: list[tuple[m.Launch, BatchSpec]] = field(default_factory=list)


class RayWorkers:
    """Actors of ``work.Worker``.

    Args:
        run: the id of the run.
        specs: what a worker is, by its place.
        options: of Ray for an actor on a device: its placement group, resources, environment.
    """

    def __init__(self, run: str, specs: Callable[[m.Worker], WorkerSpec], options: Callable[[str], dict[str, Any]]) -> None:
        self.run, self.specs, self.options = run, specs, options
        self._actors: dict[m.Worker, _Actor] = {}
        self._refs: dict[Any, tuple[m.Worker, m.Launch | None]] = {}
        self._news: list[m.Event] = []

    def launch(self, launch: m.Launch, batch: BatchSpec) -> None:
        """Hand a launch to its worker. It waits there until the worker has said what it is."""
        actor = self._actors.get(launch.worker) or self._start(launch.worker)
        if actor.ready:
            self._send(launch.worker, actor, launch, batch)
        else:
            actor.queue.append((launch, batch))

    def _send(self, worker: m.Worker, actor: _Actor, launch: m.Launch, batch: BatchSpec) -> None:
        self._refs[actor.handle.run.remote(batch)] = (worker, launch)
        self._news.append(m.Started(launch.id))

    def _start(self, worker: m.Worker) -> _Actor:
        import ray

        from ..work import Worker

        spec = self.specs(worker)
        options = {"max_restarts": 0, "max_task_retries": 0, "max_concurrency": spec.lanes + 2}
        options |= {
            "name": worker_name(self.run, spec.device, spec.number),
            "namespace": "qdrun",
            **self.options(worker.device),
        }
        handle = ray.remote(Worker).options(**options).remote(spec)
        actor = self._actors[worker] = _Actor(handle)
        self._refs[handle.hello.remote()] = (worker, None)
        return actor

    def ask_to_stop(self, worker: m.Worker, trials: Iterable[str]) -> None:
        """Set the flags; what the worker answers does not matter."""
        actor = self._actors.get(worker)
        if actor is not None:
            for trial in trials:
                actor.handle.stop.remote(trial)

    def kill(self, worker: m.Worker) -> None:
        """End the process now."""
        import ray

        actor = self._forget(worker)
        if actor is not None:
            ray.kill(actor.handle, no_restart=True)

    def _forget(self, worker: m.Worker) -> _Actor | None:
        for ref in [ref for ref, (where, _) in self._refs.items() if where == worker]:
            del self._refs[ref]
        return self._actors.pop(worker, None)

    def alive(self, device: str) -> bool:
        """Whether a worker lives on the device."""
        return any(worker.device == device for worker in self._actors)

    def poll(self, timeout_s: float, others: Sequence[Any] = ()) -> list[m.Event]:
        """All that has come back, in one look."""
        import ray

        refs = [*self._refs, *others]
        wait_s = 0.0 if self._news else timeout_s
        if not refs:
            time.sleep(wait_s)
        else:
            ready, _ = ray.wait(refs, num_returns=1, timeout=wait_s, fetch_local=False)
            if ready and len(refs) > 1:
                ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)
            for ref in ready:
                if ref in self._refs:
                    self._news += self._event(ref)
        news, self._news = self._news, []
        return news

    def _event(self, ref: Any) -> list[m.Event]:
        import ray

        worker, launch = self._refs.pop(ref)
        try:
            value = ray.get(ref)
        except ray.exceptions.RayTaskError as error:  # the worker refuses: another device, another owner
            self.kill(worker)
            cause = error.cause if isinstance(getattr(error, "cause", None), Exception) else error
            return [m.WorkerDown(worker, Failure.infrastructure, error_of(type(cause).__name__, str(cause)))]
        except ray.exceptions.RayError as error:
            self.kill(worker)
            return [m.WorkerDown(worker, *death_of(error))]
        actor = self._actors[worker]
        if launch is not None:
            return [ended(launch, value)]
        actor.ready = True
        waiting, actor.queue = actor.queue, []
        for one, batch in waiting:
            self._send(worker, actor, one, batch)
        return []

    def close(self) -> None:
        """End all workers."""
        for worker in list(self._actors):
            self.kill(worker)


def ended(launch: m.Launch, end: BatchEnd) -> m.Ended:
    """What a worker gave back for a launch, as an event."""
    ends, restart = {}, False
    for one in end.ends:
        failure = one.record.get("failure")
        if failure is None and one.record.get("status") != "done":
            failure = Failure.user_error
        restart |= bool(one.record.get("restart"))
        record = {name: value for name, value in one.record.items() if name not in KEEP}
        ends[one.trial] = m.TrialEnd(record, None if failure is None else Failure(failure))
    return m.Ended(launch.id, ends, restart=restart, retire=bool(end.retire))


def death_of(error: Exception) -> tuple[Failure, dict[str, str]]:
    """Why an actor is gone: its own fault, as far as Ray can tell, or that of its node."""
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    infra = type(error).__name__ == "ActorUnavailableError" or any(
        word in text for word in ("node has died", "its node", "node was terminated", "creation task", "owner has died")
    )
    told = next((line for line in lines if line.startswith("The actor")), lines[0] if lines else "")
    failure = Failure.infrastructure if infra else Failure.crash
    return failure, error_of("WorkerCrashedError" if failure is Failure.crash else type(error).__name__, told)
