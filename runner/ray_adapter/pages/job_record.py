"""A run as a Ray Job: its row in the list of jobs, its message and its log, also where no job was submitted.

Ray lists the process of a run by itself, but without a log, a message or an id that anybody knows. A process whose metadata name a
submission is listed with Ray's record of that submission. Here the run writes this record: the submission id is the id of the run.
"""

from __future__ import annotations

import os
import shlex
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ... import clock
from ...observe.live import LINE_EVERY_S, line
from ...observe.view import FailureView, RunView
from ...visible import visible
from . import job_store

SUBMISSION = "job_submission_id"
"""Key of Ray in the metadata of a driver."""
WRITE_EVERY_S, END_WAIT_S, MEND_EVERY_S = 1.0, 2.0, 5.0
ENDS = {"done": "SUCCEEDED", "cancelled": "STOPPED", "interrupted": "STOPPED"}
"""The state of Ray's record by that of the run; FAILED for the others."""
GONE = "the process of the run is gone: `qdrun resume` goes on with it"


class JobRecord:
    """The record of one run. A thread of its own writes it, as Ray's store may hang when its head is away.

    Args:
        run: id of the run.
        metadata: shown on the page of the job.
        store: where Ray keeps these records.
    """

    def __init__(self, run: str, metadata: Mapping[str, str], store: job_store.JobStore) -> None:
        self.run, self._store, self._log = run, store, store.log_of(run)
        self._info: dict[str, Any] = {
            "status": "RUNNING",
            "entrypoint": entry_point(sys.argv),
            "message": "plans its trials",
            "start_time": int(clock.now() * 1000),
            "metadata": {**metadata, job_store.DRIVER: store.driver},
            "driver_node_id": store.node,
        }
        self._lines = [f"run {run}"] + [f"{name}: {metadata[name]}" for name in ("folder", "user") if name in metadata]
        self._said, self._said_t = "", float("-inf")
        self._failures: frozenset[FailureView] = frozenset()
        self._lock, self._over = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="job record", daemon=True)
        self._thread.start()

    @classmethod
    def begin(cls, metadata: Mapping[str, str]) -> JobRecord | None:
        """Record the run that the metadata name, on the Ray that this process has open. None: Ray keeps its own record of this process, as
        it is a submitted job, or lacks the names for it (``job_store``).
        """
        if "run" not in metadata or job_store.SUBMITTED in os.environ:
            return None
        store = job_store.opened()
        return None if store is None else cls(metadata["run"], metadata, store)

    def show(self, view: RunView) -> None:
        """Show the run as it is now. Does not wait."""
        new = [one for one in view.failures if one not in self._failures]
        now, text = time.monotonic(), line(view)
        with self._lock:
            self._failures |= set(new)
            self._info["message"] = text.partition(": ")[2]
            self._lines += [f"{one.label} failed: {one.kind}: {one.message}" for one in new]
            if text != self._said and now - self._said_t >= LINE_EVERY_S:
                self._said, self._said_t = text, now
                self._lines.append(text)

    def over(self, state: str, view: RunView) -> None:
        """Record the end of the run; waits for ``END_WAIT_S`` at most."""
        self._said_t = float("-inf")
        self.show(replace(view, state=state))
        with self._lock:
            self._info |= {"status": ENDS.get(state, "FAILED"), "end_time": int(clock.now() * 1000)}
        self._over.set()
        self._thread.join(END_WAIT_S)

    def _run(self) -> None:
        over = False
        while not over:
            over = self._over.is_set()
            with suppress(
                Exception
            ):  # a head that is away: `head_watch` tells of it, and the next record has all that this one had
                self._write()
            if not over:
                self._over.wait(WRITE_EVERY_S)

    def _write(self) -> None:
        """Write again also where nothing is new: Ray takes a job that is not its own for failed when its agent starts to serve jobs."""
        with self._lock:
            info, lines = dict(self._info), list(self._lines)
        if lines:
            stamp = time.strftime("%H:%M:%S")
            with self._log.open("a", encoding="utf-8") as log:
                log.writelines(f"{stamp} {visible(text)}\n" for text in lines)
            with self._lock:
                del self._lines[: len(lines)]
        self._store.put(self.run, info | {"driver_agent_http_address": self._store.agent()})


def entry_point(words: Sequence[str]) -> str:
    """The command of this process as one would type it: without the folder of the program, and of its Python."""
    program = Path(words[0] if words else "")
    name = f"python -m qdrun.runner.{program.parent.name}.{program.stem}" if program.parent.name == "remote" else program.name
    return f"{name} {shlex.join(words[1:])}".strip()


def mend() -> None:
    """Record the end of runs whose process is gone without having done so."""
    store = job_store.opened()
    if store is None:
        return
    dead = store.dead_drivers()
    for run, info in store.all():
        driver = (info.get("metadata") or {}).get(job_store.DRIVER)
        if info.get("status") == "RUNNING" and driver in dead:
            store.put(run, info | {"status": "FAILED", "message": GONE, "end_time": int(clock.now() * 1000)})


def start_mending() -> Callable[[], None]:
    """Call ``mend`` now and then, from a thread, until the function that this returns is called."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(MEND_EVERY_S):
            with suppress(Exception):  # a head that is away
                mend()

    thread = threading.Thread(target=run, name="job records", daemon=True)
    thread.start()

    def end() -> None:
        over.set()
        thread.join(END_WAIT_S)

    return end


__all__ = ["SUBMISSION", "JobRecord", "entry_point", "mend", "start_mending"]
