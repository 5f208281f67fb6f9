"""The worker as a class that Ray makes actors of."""

from __future__ import annotations

import os
import pickle
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import metadata
from typing import Any

from ...compiler.errors import QdrunError
from ..jobcode.imports import IMPORTS
from ..workers import Worker
from ..workers.records import error_record
from ..workers.spec import LeaseNews, Progress, WorkerInfo
from .compat import drop_places_of_driver
from .pages.batch_words import ActorLog

PARENT_EVERY_S, PARENT_GRACE_S = 2.0, 5.0


class WorkerActor:
    """Delegates to a ``workers.Worker``, and is no subclass.

    Ray wraps every method of an actor's class, which a trial would go through a dozen times, and disassembles the class when it exports
    it, which takes 0.1 s for a large one. Batches and news travel as pickles: Ray's own pickler looks in Python at every object that is not
    of a builtin type, 20 us for each trial of a lease.
    """

    def __init__(self, version: str, spec: bytes) -> None:
        """``version``: see ``versions``, of the runner. ``spec``: a pickled ``WorkerSpec``, which another version may not have."""
        drop_places_of_driver()
        IMPORTS.sole = True
        end_with_parent()
        self._failed: Exception | None = None
        self._log = ActorLog()
        try:  # `hello` says what is wrong: of an error here Ray may say no more than that the actor died
            check_version(version)
            self._worker = Worker(pickle.loads(spec))
            on_notice(self._worker.preempt)
        except Exception as error:
            self._failed = error

    def __repr__(self) -> str:
        return repr(self._worker) if self._failed is None else f"Worker({type(self._failed).__name__})"

    def hello(self) -> WorkerInfo | dict[str, str]:
        """See ``workers.Worker``, as for all others; the error, as rows have it, where this worker can run no trial."""
        try:
            if self._failed is not None:
                raise self._failed
            return self._worker.hello()
        except Exception as error:
            return error_record(error)

    def run(self, batches: bytes) -> bytes:
        """One batch; its end as news."""
        (batch,) = pickle.loads(batches)
        self._log.started((batch,))
        end = self._worker.run(batch)
        self._log.ended((end,))
        return pickle.dumps(LeaseNews((end,)), 5)

    def run_all(self, batches: bytes) -> Iterator[bytes]:
        """Batches one after the other; their ends in chunks."""
        given = pickle.loads(batches)
        self._log.started(given)
        for news in self._worker.run_all(given):
            self._log.ended(news.ends)
            yield pickle.dumps(news, 5)

    def preload(self, claimed: int) -> None:
        """Code."""
        self._worker.preload(claimed)

    def drop(self, launches: Sequence[int]) -> None:
        """Launches that are not to begin."""
        self._worker.drop(launches)

    def progress(self) -> Progress:
        """The state of every lane."""
        return self._worker.progress()

    def flush(self) -> None:
        """What jobs have logged."""
        self._worker.flush()

    def stop(self, trials: Sequence[str]) -> bool:
        """Trials that are to end."""
        return any([self._worker.stop(trial) for trial in trials])


def versions() -> str:
    """The version of this package, and of Python, as far as both must be the same on all machines of a run."""
    return f"qdrun {metadata.version('qdrun')}, Python {sys.version_info.major}.{sys.version_info.minor}"


def check_version(version: str) -> None:
    """Check that this process has the versions of the runner.

    Raises:
        OtherVersion: it has not.
    """
    if version != versions():
        raise OtherVersion(
            f"{sys.executable} on {platform.node()} has {versions()}; the run was submitted by {version}\n"
            "  do: install the same on all machines of the cluster"
        )


class OtherVersion(QdrunError, ImportError):
    """The Python of a worker has another version of this package than the one of the runner."""


def end_with_parent(every_s: float = PARENT_EVERY_S, grace_s: float = PARENT_GRACE_S) -> None:
    """End this process when the one that started it, Ray's raylet, is gone.

    Ray notices that by a socket. A trial that has closed descriptors which are not its own leaves a process that Ray never ends.
    """
    parent = os.getppid()

    def wait() -> None:
        while os.getppid() == parent:
            time.sleep(every_s)
        time.sleep(grace_s)  # Ray ends it better
        os._exit(1)

    threading.Thread(target=wait, name="parent", daemon=True).start()


@cache
def actor_class() -> Any:
    """The actor class, once for a process: every other one would be exported anew."""
    import ray

    return ray.remote(WorkerActor)


def on_notice(call: Callable[[], object]) -> bool:
    """Call once from a thread when this process gets SIGTERM, the notice of spot instances, Slurm and Kubernetes before SIGKILL. False:
    this is not the main thread, which alone may ask for signals.

    The main thread of a worker waits in Ray's native code, where handlers of Python never run. The number of a signal is written to the
    wakeup descriptor by the C part of Python's handler, at once.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    if signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, signal.SIG_IGN, None):
        signal.signal(signal.SIGTERM, lambda *_: None)
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)

    def wait() -> None:
        while signal.SIGTERM not in os.read(ours, 64):
            pass
        call()

    threading.Thread(target=wait, name="preemption", daemon=True).start()
    return True
