"""Where trials run: as Ray tasks on CPU cores, or one after the other on workers that hold a device each."""

from __future__ import annotations

from typing import Any, Protocol

from .cluster import Capacity
from .plan import Prepared
from .trials import Trial
from .worker import TrialWorker, run_trial

AHEAD = 2
MIB = 1 << 20


class Places(Protocol):
    """Starts trials and takes their places back.

    Attributes:
        slots: trials that run at once.
        window: trials that may be started and not ended.
        limit: the name and the bytes of the memory that one trial must fit; no bytes where that is not known.
    """

    slots: int
    window: int
    limit: tuple[str, int | None]

    def launch(self, trial: Trial, planned: int | None) -> Any:
        """Start a trial; the stream of its messages."""
        ...

    def ended(self, stream: Any, *, intact: bool) -> None:
        """A trial is over. Not ``intact``: its process is gone, or its device is lost to that process."""
        ...

    def stop(self, stream: Any) -> None:
        """Stop a trial now, whatever it does."""
        ...

    def close(self) -> None:
        """Give everything back."""
        ...


def places(prepared: Prepared, capacity: Capacity) -> Places:
    """The places of a run: workers for a backend with devices, tasks for the CPU."""
    return TaskPlaces(prepared, capacity) if prepared.backend == "cpu" else DevicePlaces(prepared, capacity)


class TaskPlaces:
    """A Ray task for each trial; Ray keeps their processes warm, and counts cores and bytes."""

    def __init__(self, prepared: Prepared, capacity: Capacity) -> None:
        import ray

        self.prepared, self.task = prepared, ray.remote(run_trial)
        config = prepared.loaded.config
        self.threads = config.device.threads
        slots = min(max(1, capacity.cores // self.threads), config.device.slots or capacity.cores)
        self.window = config.limits.max_concurrent or slots + AHEAD
        self.slots = min(slots, self.window)
        self.limit: tuple[str, int | None] = ("the memory of the largest node", capacity.node_memory_bytes)

    def launch(self, trial: Trial, planned: int | None) -> Any:
        """Queue the task with the threads and the bytes of the trial."""
        memory = -(-(planned or 0) // MIB) * MIB
        task = self.task.options(
            name=f"{self.prepared.loaded.config.name}/{trial.label}",
            num_cpus=self.threads,
            memory=memory or None,
            num_returns="streaming",
            max_retries=0,
        )
        return task.remote(self.prepared.spec(trial))

    def ended(self, stream: Any, *, intact: bool) -> None:
        """Ray has the place back already."""

    def stop(self, stream: Any) -> None:
        """Kill the process of the task."""
        import ray

        ray.cancel(stream, force=True)

    def close(self) -> None:
        """Nothing is kept."""


class DevicePlaces:
    """A Ray actor for each device. Its process sees that device alone and keeps it, and the compiled kernels, from trial to trial.

    One process for each device: several take turns on it, and each pays for a driver context of its own. An actor, since Ray would
    give the process of a task another device the next time, when it holds the first one already.
    """

    def __init__(self, prepared: Prepared, capacity: Capacity) -> None:
        import ray

        self.prepared, self.actor = prepared, ray.remote(TrialWorker)
        config = prepared.loaded.config
        # A device that the config names is taken by its name, whatever Ray would give; without one, Ray chooses and hides the others.
        self.options = {"num_cpus": config.device.threads, "num_gpus": 0 if prepared.place.device is not None else 1}
        count = 1 if prepared.place.device is not None else capacity.gpus
        self.slots = self.window = min(count, config.limits.max_concurrent or count)
        self.limit: tuple[str, int | None] = ("what the device has for trials", prepared.place.memory_bytes)
        self.idle: list[Any] = []
        self.busy: dict[Any, Any] = {}

    def launch(self, trial: Trial, planned: int | None) -> Any:
        """Hand the trial to a worker that has none, or to a new one."""
        worker = self.idle.pop() if self.idle else self._start()
        name = f"{self.prepared.loaded.config.name}/{trial.label}"
        stream = worker.run.options(num_returns="streaming", name=name).remote(self.prepared.spec(trial))
        self.busy[stream] = worker
        return stream

    def _start(self) -> Any:
        return self.actor.options(**self.options, max_restarts=0, max_task_retries=0).remote(self.prepared.backend)

    def ended(self, stream: Any, *, intact: bool) -> None:
        """The worker is free for the next trial, or replaced when that comes."""
        worker = self.busy.pop(stream)
        if intact:
            self.idle.append(worker)
        else:
            _kill(worker)

    def stop(self, stream: Any) -> None:
        """Kill the worker: a launch that hangs cannot be asked."""
        _kill(self.busy.pop(stream))

    def close(self) -> None:
        """End all workers."""
        for worker in (*self.idle, *self.busy.values()):
            _kill(worker)
        self.idle.clear()
        self.busy.clear()


def _kill(worker: Any) -> None:
    import ray

    ray.kill(worker, no_restart=True)
