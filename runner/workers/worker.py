"""The worker: holds one device, keeps it and the compiled kernels warm, and runs batches of trials on its lanes.

Plain Python: Ray makes it an actor in the runner's adapter, tests use it as it is. Errors of a job are data. A lane cannot be interrupted
from outside of it: ``stop`` asks, and a job that does not look is ended with its process.
"""

from __future__ import annotations

import os
import platform
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...compiler.errors import QdrunError
from ...compiler.runtime.inventory import DeviceHandle
from ...jobs.base import Job, Stopped
from ...jobs.core.debug import BOUNDS, Debug
from ..clock import now
from ..config.values import INTERPRETER
from ..jobcode.imports import IMPORTS
from ..jobcode.store import USED
from ..live.points import Logged
from ..live.writer import LiveWriter
from ..optimize.descent import body_of
from ..optimize.kept import KeptFiles, batch_path, path_of
from ..optimize.rungs import Rungs
from ..store.attempts import Attempt, Failure, pack, write_spec
from ..store.columns import BatchRows
from ..store.files import StorageFull
from ..store.layout import RunFolder
from ..store.owner import Owner, OwnerLost, check_owner, latest_owner
from ..study.target import Target, load
from .artifacts import TooManyArtifacts, keep
from .capture import ProcessLog, captured, install, process_stream, uninstall
from .device_check import Wear, process_bytes, take_device
from .host_limit import HostLimit, spare_bytes
from .lanes import Lane, LaneDied, Lanes, WorkerCall
from .marks import Marks
from .preload import build_and_load, preload
from .records import PREEMPTION, Record, failed_record, finished_record, place_of, said_by_children
from .spec import (
    BatchSpec,
    LaunchEnded,
    LeaseNews,
    Progress,
    WorkerInfo,
    WorkerSpec,
    log_folder,
    worker_name,
)
from .together import split

CHUNK_S = 0.25
LOOK_S = 0.25
"""Between two looks at the memory of process and device: trials may be much shorter."""
RETRY_S, WATCH_S = 0.5, 2.0


class Worker:
    """See the module and ``WorkerSpec``. ``hello`` comes first."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec, self.folder = spec, RunFolder(spec.run)
        self.name = worker_name(self.folder.name, spec.device, spec.number)
        self._owner = Owner(spec.owner, spec.token, 0, "", 0.0)
        self._wear, self._wear_lock = Wear(spec.recycle_after, spec.grow_bytes, spec.recycle_s), threading.Lock()
        self._held: DeviceHandle | None = None
        self._jobs: dict[tuple[Any, ...], type[Job[Any]]] = {}
        self._looked = self._checked = 0.0
        self._who = {"pid": os.getpid(), "host": platform.node()}
        self._closed = False
        path = log_folder(spec.device, spec.number, spec.owner)
        self._log = ProcessLog(self.folder, path) if spec.own_process else None
        self._marks = None if self._log is None else Marks(self._log.where, spec.lanes)
        self._host = HostLimit(spec.job.get("memory_limit_bytes") if spec.own_process else None)
        install()
        self._lanes = Lanes(
            spec.lanes,
            self.name,
            self._attempt,
            self._attempt_together,
            lambda: self._wear.retire,
            self._begin,
            self._not_closed,
            self._broken,
            self._tell,
        )
        self._live = LiveWriter(self.folder, path, self._lanes.logged, self._check_owner)
        self._live.start()
        self._rungs = Rungs(self.folder.files, path, self._check_owner)

    def __repr__(self) -> str:
        """Ray's dashboard asks once, before anything runs: what does not change. What runs now is in ``progress``."""
        job = (self.spec.job.get("target") or {}).get("name", "any job")
        return f"Worker({self.spec.device}: {job}, {self.spec.lanes} lane{'s' if self.spec.lanes > 1 else ''})"

    # ---- the outside
    def hello(self) -> WorkerInfo:
        """Take the device, import the job, and say what this worker is.

        Raises:
            DeviceMismatch: the process sees another device than the one it was started for.
            DeviceError: the device cannot be used.
            OwnerLost: the run belongs to another owner.
            TargetError, NotKept: the job cannot be imported here, for no trial.
        """
        self._check_token()
        self._held = self._held or take_device(self.spec, self.name)
        if target := self.spec.job.get("target"):
            self._job(target)
        free, total = self._device_memory()
        log = "" if self._log is None else str(self._log.where)
        held, begun = self._held, "" if self._marks is None else self._marks.path
        return WorkerInfo(
            self.name, os.getpid(), platform.node(), held.name, held.uuid, held.pci, free, total, log, begun, _node()
        )

    def run(self, batch: BatchSpec) -> LaunchEnded:
        """Run a batch on the next lane that is free.

        Raises:
            DeviceMismatch, DeviceError, OwnerLost: ``hello`` was not called, and would have raised it.
        """
        task = self._give((batch,))
        while not self._lanes.wait(task, WATCH_S):
            pass
        (end,) = task.taken()
        return end

    def run_all(self, batches: Sequence[BatchSpec]) -> Iterator[LeaseNews]:
        """Run batches one after the other on one lane; their ends in chunks, so that short trials cost no message each.

        A chunk comes at the end, and before that at least every ``CHUNK_S`` when something has ended or begun.

        Raises:
            DeviceMismatch, DeviceError, OwnerLost: see ``run``.
        """
        task, told = self._give(tuple(batches)), 0
        while not self._lanes.wait(task, CHUNK_S):
            ends, running = task.taken(), task.running or (0, 0.0)
            if ends or running[0] != told:
                told = running[0]
                yield LeaseNews(ends, told, time.monotonic() - running[1])
        yield LeaseNews(task.taken())

    def _give(self, batches: Sequence[BatchSpec]) -> WorkerCall:
        if self._held is None:
            self.hello()
        return self._lanes.give(batches)

    def preload(self, claimed: int) -> None:
        """Load the code of ``WorkerSpec.shapes``, after ``hello`` and before the first trial; see ``workers.preload``."""
        preload(self.spec.shapes, claimed, self._load)

    def _load(self, shape: BatchSpec) -> None:
        spec = self._spec_of(shape)
        build_and_load(self._job(spec["target"]), spec)

    def drop(self, launches: Sequence[int]) -> None:
        """Do not begin with launches, whether they are here already or not; each that had not begun ends without ends of trials."""
        self._lanes.dropped.update(launches)

    def _tell(self, logged: Logged) -> None:
        self._live.put(logged)

    def _begin(self, lane: int, launch: int) -> None:
        if self._marks is not None:
            self._marks.begin(lane, launch)

    def progress(self) -> Progress:
        """The present state of every lane. Does not wait for lanes."""
        free, total = self._device_memory()
        states = tuple(lane.state() for lane in self._lanes.all)
        return Progress(states, self._wear.trials, process_bytes(), free, total, self._wear.retire)

    def stop(self, trial: str, why: str = "it was asked to stop") -> bool:
        """Ask a trial to end at its next step; one that waits in a lease does not begin. False: it neither runs nor waits here."""
        return any([lane.stop(trial, why) for lane in self._lanes.all])

    def preempt(self) -> None:
        """The machine is going away: running trials end at their next step, to go on elsewhere, and nothing else begins here."""
        self._lose(PREEMPTION)
        for lane in self._lanes.all:
            lane.stop_all(PREEMPTION)

    def flush(self) -> None:
        """Write what jobs have logged; before the process is ended."""
        self._live.write(sync=True)

    def close(self, timeout_s: float = 10.0) -> bool:
        """End the lanes after what they run, and the log. False: a trial still runs after ``timeout_s``; end the process."""
        if self._closed:
            return True
        self._closed = True
        ended = self._lanes.close(timeout_s)
        self._live.close()
        self._rungs.close()
        uninstall()
        if self._log is not None:
            self._log.close()
        if self._marks is not None:
            self._marks.close()
        return ended

    # ---- one attempt, on a lane
    def _attempt(self, lane: Lane, batch: BatchSpec) -> Record:
        attempt = Attempt(batch.trials[0], batch.attempts[0], self.spec.owner)
        started, clock = now(), time.perf_counter()
        with captured(self.folder, attempt):
            record = self._execute(lane, batch)
        own = lane.take_artifacts()
        if batch.claim_bytes is not None:
            self._against_claim(record, batch, batch.claim_bytes)
        record.update(self._who, lane=lane.number, started_t=started, ended_t=now())
        if checks := BOUNDS if batch.checked else Debug.of(self.spec.job.get("debug")):
            record["checks"] = str(checks)
        if label := _label(self.spec):
            record["code"] = label
        record["worker_seconds"] = time.perf_counter() - clock
        lane.save()
        if attempt.number > 1 or record["status"] != "done":
            self._keep_spec(attempt, batch)
        try:
            record = self._saved(lane, attempt, record, None if own is None else Path(own.name))
        finally:
            if own is not None:
                own.cleanup()
        self._ended(lane, record)
        return record

    def _attempt_together(self, lane: Lane, batch: BatchSpec) -> tuple[dict[str, Record], tuple[BatchRows, ...]] | None:
        """The attempts of a batch, at once. None: the job raises something for all of them, and it is not known which trial is at fault."""
        count = len(batch.trials)
        asked = {row: why for row, trial in enumerate(batch.trials) if (why := lane.asked(trial)) is not None}
        rows = [row for row in range(count) if row not in asked]
        started, clock = now(), time.perf_counter()
        about = self._who | {"lane": lane.number, "started_t": started}
        ends = {batch.trials[row]: failed_record(Stopped(why)) | about | {"ended_t": started} for row, why in asked.items()}
        found: tuple[BatchRows, ...] = ()
        if rows:
            spec, trials = self._spec_of(batch), [batch.trials[row] for row in rows]
            attempts = [batch.attempts[row] for row in rows]
            lane.runs(rows)
            try:
                with self._host.trial(count):
                    kept = trials, self._kept(batch_path(self.spec.owner, batch.launch), attempts)
                    ran = lane.open.run_batch(self._job(spec["target"]), spec, batch.columns, rows, kept)
            except BaseException as error:
                record = failed_record(error) | about | {"ended_t": now(), "claim_bytes": batch.claim_bytes}
                if record["failure"] == Failure.user_error:
                    return None
                ends |= {trial: dict(record) for trial in trials}
            else:
                shared = ran.shared(count) | about
                shared |= {"ended_t": now(), "claim_bytes": None if batch.claim_bytes is None else batch.claim_bytes // count}
                if checks := Debug.of(self.spec.job.get("debug")):
                    shared["checks"] = str(checks)
                if label := _label(self.spec):
                    shared["code"] = label
                shared["worker_seconds"] = (time.perf_counter() - clock) / count
                found, alone = split(ran, trials, attempts, shared)
                ends |= alone
        lane.save()
        record, until = {}, time.monotonic() + self.spec.storage_wait_s
        for trial, number in zip(batch.trials, batch.attempts, strict=True):
            if trial in ends:
                lane.save()  # of many results each is watched from its own begin
                record = self._saved(lane, Attempt(trial, number, self.spec.owner), ends[trial], until=until)
                ends[trial] = record
        self._ended(lane, found[0].shared if found else record)
        return ends, found

    def _broken(self, batch: BatchSpec, error: BaseException) -> Record:
        """The end of an attempt that has raised where it should not: in what writes it down. The lane that it ran on may be gone."""
        record = failed_record(error) | self._who | {"ended_t": now(), "claim_bytes": batch.claim_bytes}
        if isinstance(error, LaneDied):  # as when the process dies: tried again, alone
            record["failure"] = Failure.crash.value
        return record

    def _execute(self, lane: Lane, batch: BatchSpec) -> Record:
        trial, trials = batch.trials[0], 0
        try:
            why = lane.asked(trial)
            if why is not None:
                raise Stopped(why)
            spec = self._spec_of(batch)
            # What a checked attempt computes is not used, so it takes no saved point.
            kept = None if batch.checked else self._kept(path_of(trial), batch.attempts)
            job, body = self._job(spec["target"]), body_of(spec.get("optimize"), kept, trial)
            with self._host.trial():
                try:
                    record = finished_record(lane.open.run(job, spec, body))
                except MemoryError as error:
                    if not isinstance(error, QdrunError):
                        trials = self._host.trials  # of which any may have taken it
                    raise
        except BaseException as error:  # SystemExit and KeyboardInterrupt of a job end the job, and not the lane
            now = lane.now
            watch = None if now is None or now.job is None else now.job.watch
            record = failed_record(error, place_of(error, trial, watch))
            if trials:
                self._note_host_limit(record, trials)
            if isinstance(error, BrokenExecutor) and self._log is not None:
                record["error"]["message"] += said_by_children(self._log.printed())
        if record["status"] != "done":
            lane.open.close_after_failure()
        return record

    def _note_host_limit(self, record: Record, trials: int) -> None:
        """Put into a row why the host gave no more memory; ``shared``: to ``trials`` that ran at once, of which it may be none's fault."""
        each = "" if trials == 1 else f" for each of {trials} trials that shared the process"
        beside = f"{spare_bytes(trials):,} for the process beside it, of the host's memory"
        said = f"`limits.memory` is {self._host.limit:,} bytes{each}, and {beside}"
        record["error"]["message"] += f"\n  {said}\n  do: raise limits.memory, or let the trial hold less at once"
        if trials > 1:
            record["shared"] = True

    def _kept(self, path: str, attempts: Sequence[int]) -> KeptFiles:
        """Where the descents of trials are kept between attempts."""
        first = all(number == 1 for number in attempts)
        return KeptFiles(self.folder.files, path, self._check_owner, first, self._rungs)

    def _job(self, target: Mapping[str, Any]) -> type[Job[Any]]:
        key = tuple(target.values())
        if key not in self._jobs:
            self._jobs[key] = load(Target.model_validate(target), self.spec.run)
        return self._jobs[key]

    def _spec_of(self, batch: BatchSpec) -> dict[str, Any]:
        """The settings of its first trial."""
        spec = {**self.spec.job, **batch.columns.own_spec(batch.trials[0], 0)}
        spec["backend"] = INTERPRETER if spec.get("backend") == INTERPRETER else self.spec.backend
        spec["device"] = self.spec.which
        if batch.checked:
            spec["debug"] = BOUNDS.model_dump()
        if batch.budget_bytes is not None:
            spec["memory_budget_bytes"] = batch.budget_bytes
        if batch.strict and batch.claim_bytes is not None:
            limit = spec["memory_limit_bytes"]
            spec["memory_limit_bytes"] = min(
                batch.claim_bytes, batch.claim_bytes if limit is None else limit * len(batch.trials)
            )
        return spec

    def _against_claim(self, record: Record, batch: BatchSpec, claim: int) -> None:
        """Put into the row what it says of the claim: its bytes, and by name what was used above it, or refused."""
        used = record.get("used_bytes")
        record["claim_bytes"] = claim
        if used is not None and used > claim:
            record["over_claim"] = {"bytes": used - claim, "claim": claim, "by": record["used"]}
        elif record.get("failure") == Failure.out_of_memory and batch.strict:
            said = f"the claim of the trial was {claim:,} bytes on {self.spec.device}, and its program got no more"
            record["error"]["message"] += f"\n  {said}"

    # ---- what it leaves behind
    def _keep_spec(self, attempt: Attempt, batch: BatchSpec) -> None:
        with suppress(OSError, ValueError, KeyError):  # it can be made again from the config
            write_spec(self.folder, attempt, self._spec_of(batch))

    def _saved(
        self, lane: Lane, attempt: Attempt, record: Record, own: Path | None = None, until: float | None = None
    ) -> Record:
        """The record for the journal; its large arrays are in the store, and its artifacts, which lie in ``own``. Waits for room, see
        ``WorkerSpec.storage_wait_s``; ``until``: by the monotonic clock, of the results of a batch.
        """
        end = time.monotonic() + self.spec.storage_wait_s if until is None else until
        while True:
            try:
                if time.monotonic() - self._checked > LOOK_S:
                    self._check_owner()
                if own is not None:
                    record = self._with_artifacts(attempt, record, own)
                return pack(self.folder, attempt, record, self._check_owner)
            except StorageFull as error:
                if time.monotonic() > end or lane.asked(attempt.trial) is not None:
                    return self._unsaved(record, error)
                time.sleep(RETRY_S)
            except BaseException as error:  # of whatever a job gave back: it is that trial's error
                if isinstance(error, OwnerLost):
                    self._lose(f"the run was taken over: {str(error).splitlines()[0]}")
                return self._unsaved(record, error)

    def _with_artifacts(self, attempt: Attempt, record: Record, own: Path) -> Record:
        """A record that names the artifacts of its attempt, which are in the store then.

        Raises:
            TooManyArtifacts: of one that is ``done``; another keeps its own error, and says that no file was kept.
        """
        try:
            kept = keep(self.folder.files, attempt.artifacts, own, self._check_owner)
        except TooManyArtifacts as error:
            if record["status"] == "done":
                raise
            said = f"{record['error']['message']}\n  {error}"
            return record | {"error": record["error"] | {"message": said}}
        return record if kept is None else record | {"artifacts": kept}

    def _check_owner(self) -> None:
        """In front of every file, and now and then: what goes back to the runner is the runner's to refuse."""
        check_owner(self.folder, self._owner)
        self._checked = time.monotonic()

    @staticmethod
    def _unsaved(record: Mapping[str, Any], error: BaseException) -> Record:
        """The attempt as a failed one, without the numbers that could not be kept."""
        kept = {name: value for name, value in record.items() if name not in ("gradients", "outputs", "loss")}
        failed = failed_record(error)
        if isinstance(error, OSError | OwnerLost):
            failed["failure"] = Failure.infrastructure.value
        elif not isinstance(error, QdrunError):
            failed["error"]["message"] = f"its result cannot be written down: {failed['error']['message']}"
        return kept | failed

    def _check_token(self) -> None:
        now = latest_owner(self.folder)
        if now is None or (now.number, now.token) != (self._owner.number, self._owner.token):
            if now is not None:
                who = f"owner {now.number} (process {now.pid} on {now.host})"
            elif self.folder.is_run:
                who = "no owner"
            else:
                who = f"no owner: {platform.node()} has no run in that place; `storage` must be one that all machines share"
            raise OwnerLost(
                f"{self.name} was started for owner {self._owner.number} of {self.folder.name}, which belongs to {who}\n"
                f"  do: `qdrun status {self.folder.uri}` shows the state of the run"
            )

    # ---- its own state
    def _ended(self, lane: Lane, record: Record) -> None:
        if record.get("restart"):
            self._lose(f"its device is lost to the process: {record['error']['message'].splitlines()[0]}")
        for name in IMPORTS.used():
            with suppress(OSError):
                self.folder.files.claim(f"{USED}/{name}", b"")
        with self._wear_lock:
            self._wear.ended()
            now = time.monotonic()
            look, retires = now - self._looked >= LOOK_S, bool(self._wear.retire)
            self._looked = now if look else self._looked
        if retires:
            self.flush()
        if look:
            self._look()

    def _look(self) -> None:
        """Whether the process holds ever more that belongs to no trial."""
        on_host, open_now = self.spec.backend == "cpu", self._lanes.held()
        held = {"process": process_bytes() - (open_now if on_host else 0)}
        # while trials are open, their memory changes between two readings, by gigabytes
        free, total = (0, 0) if on_host or open_now else self._device_memory()
        if total:
            held["device"] = total - free
        with self._wear_lock:
            self._wear.look(held)

    def _lose(self, why: str) -> None:
        """Nothing can be run here any more."""
        with self._wear_lock:
            self._wear.end(why)
        self._lanes.lost = True

    def _not_closed(self, error: BaseException) -> None:
        """A program could not be closed as it should, after its last trial has ended well; or a lane has died."""
        if isinstance(error, LaneDied):
            self._lose(str(error))
        elif getattr(error, "restart", False):
            self._lose(f"its device is lost to the process: {str(error).splitlines()[0]}")
        else:
            traceback.print_exception(error, file=process_stream("stderr"))

    def _device_memory(self) -> tuple[int, int]:
        if self._held is None or self._lanes.lost:
            return 0, 0
        try:
            return self._held.memory()
        except QdrunError:
            return 0, 0  # the device has failed: the next trial says so


def _label(spec: WorkerSpec) -> str:
    """What rows say of the code that they come from, see ``Target.label``."""
    return str((spec.job.get("target") or {}).get("label", ""))


def _node() -> str:
    """The node of the cluster that this process is on; empty outside of Ray."""
    ray = sys.modules.get("ray")
    return ray.get_runtime_context().get_node_id() if ray is not None and ray.is_initialized() else ""


__all__ = ["Worker"]
