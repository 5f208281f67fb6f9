"""Detached runs: started in a background process, or submitted to a cluster as a Ray Job; then followed, or left alone."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...compiler.errors import QdrunError
from ..engine.early_plans import EarlyPlans
from ..engine.resume import config_of
from ..engine.session import metadata
from ..jobcode.store import versions
from ..observe.ended import RunEnd, Submitted
from ..observe.live import watch
from ..observe.timing import Timing
from ..provenance.record import record
from ..provenance.versions import CodeChange, adopt
from ..ray_adapter.cluster import ClusterError, check_environment
from ..ray_adapter.jobs_api import OVER, Jobs, is_dashboard, known_dead, launched, note_launch
from ..ray_adapter.known_clusters import JOB, remember, trusted
from ..regular_files import open_regular
from ..store import status as states
from ..store.files import LocalFiles
from ..store.journal import Journal
from ..store.layout import RunFolder, check_shared, create
from ..store.owner import OwnerLost, RunAlive, latest_owner, lives, owner_numbers
from ..store.replay import replay, run_state
from ..study.plan import Prepared
from ..study.shipping import Parcel, pack
from ..study.target import load
from .dashboard import asks
from .entry import FAILED

START_S = 60.0
"""A run that has not begun by then is left alone: a cluster may start its job when it has room."""
LOOK_S, JOB_LOOK_S = 0.05, 1.0
SHOWN_LINES = 12
TAIL_BYTES = 1 << 20
NO_CLUSTER = "ClusterError: "
"""The prefix of the journal's error if a run found no Ray."""


class NotStarted(QdrunError, RuntimeError):
    """The process of a run ended before it had begun; ``exit_code`` is what it ended with."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass
class Detached:
    """A detached run.

    Attributes:
        folder: of the run.
        log: log file of its process; for a Ray Job, the command that shows the log.
        pid: of its process, here.
        job: its submission id in a cluster; ``address``: of that cluster's dashboard.
        begun: whether it has claimed its folder; a queued job has not.
        note: the shipped and the omitted files.
    """

    folder: RunFolder
    log: str
    pid: int | None = None
    job: str | None = None
    address: str | None = None
    begun: bool = False
    note: str = ""
    over: Callable[[], str] = lambda: ""
    """The end of the process; empty while it lives, or if unknown."""

    @property
    def where(self) -> str:
        """The process or job of the run, as text."""
        return f"job {self.job} of {self.address}" if self.job else f"process {self.pid} of {platform.node()}"


@dataclass(frozen=True)
class Order:
    """The options of a detached run.

    Attributes:
        timing: start time of the command.
        address: of a cluster: host:port, which a process here joins, or http://host:port, which runs it as a job; None: Ray starts here.
        dashboard: start Ray's.
        again: arguments of ``remote.entry`` for a resumed run.
    """

    timing: Timing
    address: str | None = None
    dashboard: bool = False
    again: tuple[str, ...] = ()

    def words(self, address: str | None) -> list[str]:
        """The arguments of ``remote.entry``."""
        words = ["--since", repr(self.timing.command_t), *self.again]
        words += ["--dashboard"] if self.dashboard else []
        return words if address is None else [*words, "--address", address]


def submit_detached(prepared: Prepared, output: str, order: Order, more: Mapping[str, str] | None = None) -> Detached:
    """Create a run and start it detached; ``more``: see ``create``. Returns when it has begun, or after ``START_S``.

    Raises:
        CannotPlan: the job can be built for no trial; nothing was started.
        ClusterError: the cluster cannot be reached, refuses the token or the job, or cannot reach the run's folder; nothing was run.
        NotStarted: its process ended before it began.
        StorageUnknown: other processes cannot access the storage of the run.
        StorageFull: there is no room.
    """
    jobs = _jobs(order)
    check_shared(output)
    job = load(prepared.target)
    EarlyPlans(prepared, job, first=True).wait(local=order.address is None)
    folder = create(prepared, output, more, lambda files: record(files, prepared, job))
    try:
        return _handed(folder, prepared, order, jobs)
    except (QdrunError, OSError):
        never_ran(folder)
        raise


def resume_detached(
    folder: RunFolder,
    order: Order,
    *,
    config: os.PathLike[str] | None = None,
    force: bool = False,
    failed: bool = False,
    debug: bool = False,
    code: CodeChange | None = None,
) -> Detached:
    """Resume a run detached; see ``submit_detached``, and of ``code`` ``resume``.

    Raises:
        CodeChanged: see ``resume``.
        ConfigChanged: its config is another one, or is gone.
        RunAlive: another process runs it.
    """
    jobs = _jobs(order)
    check_shared(folder.uri)
    prepared, _ = config_of(folder, config, force=force, local=order.address is None, code=code)
    if prepared.target.code != versions(folder.files).current and lives(folder):
        raise RunAlive(f"{folder.name} is running\n  do: wait for its end, or stop it with `qdrun cancel {folder.uri}`")
    adopt(folder, prepared.target)
    words = ["--resume", *["--failed"] * failed, *["--force"] * force, *["--debug"] * debug]
    words += ["--config", os.path.abspath(config)] if config is not None and jobs is None else []
    return _handed(folder, prepared, Order(order.timing, order.address, order.dashboard, tuple(words)), jobs)


def _jobs(order: Order) -> Jobs | None:
    if order.address is not None and is_dashboard(order.address):
        return Jobs(order.address)
    check_environment(order.address, order.dashboard)
    return None


def _handed(folder: RunFolder, prepared: Prepared, order: Order, jobs: Jobs | None) -> Detached:
    before = max(owner_numbers(folder.files), default=0)
    uri = str(folder.path.absolute()) if isinstance(folder.files, LocalFiles) else folder.uri
    if jobs is None:
        detached = _process(folder, [uri, *order.words(order.address)])
    else:
        detached = _job(folder, prepared, [uri, *order.words("job"), "--asks", jobs.address], jobs, before)
    deadline = time.monotonic() + START_S
    while not detached.begun and time.monotonic() < deadline:
        over = detached.over()  # asked before the last look: it may have begun and ended since
        detached.begun = int((folder.last_beat() or {}).get("owner", 0)) > before
        if over and not detached.begun:
            raise failure_of(over, detached.where)
        time.sleep(0 if detached.begun else LOOK_S)
    return detached


def _process(folder: RunFolder, words: list[str]) -> Detached:
    """Start the run in a process that outlives this one and its terminal."""
    if isinstance(folder.files, LocalFiles):
        log = folder.path / "runner.log"
    else:
        log = Path(tempfile.gettempdir(), f"qdrun-{os.getuid()}-{folder.name}.log")
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "qdrun.runner.remote.entry", *words],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )

    def over() -> str:
        return "" if process.poll() is None else f"{_tail(log)}\nexit code {process.returncode}"

    note_launch(folder, pid=process.pid, host=platform.node(), log=str(log))
    return Detached(folder, str(log), pid=process.pid, over=over)


def _tail(log: Path) -> str:
    with suppress(OSError), open_regular(str(log)) as stream:
        stream.seek(max(0, os.fstat(stream.fileno()).st_size - TAIL_BYTES))
        return stream.read().decode("utf-8", "replace")
    return ""


def _job(folder: RunFolder, prepared: Prepared, words: list[str], jobs: Jobs, before: int) -> Detached:
    """Start the run as a job of a cluster."""
    name = folder.name if not before else f"{folder.name}-{before + 1}"
    with tempfile.TemporaryDirectory(prefix="qdrun-") as place:
        parcel: Parcel = pack(prepared, Path(place))
        note_launch(folder, address=jobs.address, job=name)
        remember(folder, jobs.address, JOB)
        jobs.submit(name, [*words, *parcel.shipped.words()], metadata(folder, prepared), parcel.folder)
    looked = [float("-inf")]

    def over() -> str:
        if time.monotonic() - looked[0] < JOB_LOOK_S:
            return ""
        looked[0] = time.monotonic()
        status = jobs.status(name)
        return f"{jobs.log(name)}\njob {status}" if status in OVER else ""

    log = f"ray job logs {name} --address {jobs.address}"
    note = parcel.text()
    if asks(jobs.address)[1] is False:
        note += f"\n  beware: {jobs.address} asks for no token: anybody who can reach it can run code as you"
    return Detached(folder, log, job=name, address=jobs.address, note=note, over=over)


def failure_of(printed: str, where: str) -> QdrunError:
    """Why a run did not begin, from what its process printed."""
    for line in reversed(printed.splitlines()):
        if line.startswith(FAILED):
            with suppress(ValueError, KeyError):
                said: Mapping[str, Any] = json.loads(line.removeprefix(FAILED))
                kind = ClusterError if said["exit_code"] == ClusterError.exit_code else None
                return kind(said["message"]) if kind else NotStarted(said["message"], int(said["exit_code"]))
    lacks = {
        "No module named qdrun": "qdrun is not installed",
        "No module named 'qdrun": "qdrun is not installed",
        "No module named 'ray'": "qdrun's Python has no Ray",
        "python: not found": "there is no `python`",
        "python: command not found": "there is no `python`",
    }
    for text, lack in lacks.items():
        if text in printed:
            return ClusterError(
                f"{where}: {lack} where the cluster runs its jobs; nothing was run\n"
                "  do: install the same qdrun on every machine of the cluster, for the Python that runs Ray there"
            )
    tail = "\n".join(f"  {line}" for line in printed.strip().splitlines()[-SHOWN_LINES:])
    return NotStarted(f"{where} ended before the run began; the last of what it printed:\n{tail}", 1)


def never_ran(folder: RunFolder, state: str = "failed") -> None:
    """Record in the folder that the run will not start, unless it has an owner."""
    with suppress(RunAlive, OwnerLost, OSError):
        if not owner_numbers(folder.files):
            with Journal(folder) as journal:
                journal.write("finished", sync=True, state=state)


def stop_pending(folder: RunFolder, address: str | None = None) -> bool:
    """Stop the job of a run that waits for its cluster and has not begun; False: there is none, or it has begun.

    ``address``: of the cluster's dashboard, where the run was not handed to it by this user on this machine.

    Raises:
        ClusterError: the cluster cannot be reached, or does not stop it; or only the run's folder says which cluster it is.
    """
    found = launched(folder)
    if not found.get("job") or owner_numbers(folder.files):
        return False
    known = trusted(folder, address)
    if not known:
        raise ClusterError(
            f"{folder.name} waits for the cluster at {found.get('address')}, says its folder; you did not hand it there from this machine, "
            "and your token is sent nowhere on the word of a folder\n"
            f"  do: `qdrun cancel {folder.uri} --address {found.get('address')}`, if you know that cluster"
        )
    name = str(found["job"])
    if name != folder.name and not name.startswith(f"{folder.name}-"):
        raise ClusterError(f"{folder.name} names the job {name}, which is not its own; nothing is stopped")
    Jobs(known[0]).stop(name)
    never_ran(folder, "cancelled")
    return True


def follow(detached: Detached, timing: Timing, *, quiet: bool = False) -> Submitted:
    """Show a run until it ends. Ctrl-C ends the display only.

    Raises:
        ClusterError: its process could not start or join Ray; nothing was run.
        KeyboardInterrupt: Ctrl-C, after a word about how to stop the run.
    """
    folder = detached.folder

    def sleep(seconds: float) -> None:
        time.sleep(seconds)
        if detached.over() and detached.job is not None:
            _bury(folder)

    try:
        if quiet:
            states.wait(folder, JOB_LOOK_S, sleep)
        else:
            watch(folder, sleep=sleep)
    except KeyboardInterrupt:
        print(f"\n{folder.name} goes on, in {detached.where}\n{commands(folder)}", file=sys.stderr)
        raise
    why = (replay(folder).finished or {}).get("error")
    if why and why.startswith(NO_CLUSTER):
        raise ClusterError(f"{why.removeprefix(NO_CLUSTER)}\n  log: {detached.log}\n  then: qdrun resume {folder.uri}")
    if why:
        print(f"{folder.name} ended early: {why}\n  log: {detached.log}", file=sys.stderr)
    return ended(folder, timing)


def _bury(folder: RunFolder) -> None:
    """Record that a run is lost if its process died without a final event, unless another process has resumed it."""
    owner = latest_owner(folder)
    if owner is None or run_state(folder, replay(folder)) != "running" or not known_dead(folder, owner):
        return
    with suppress(RunAlive, OwnerLost), Journal(folder, gone=owner.number) as journal:
        journal.write("finished", sync=True, state="lost")


def ended(folder: RunFolder, timing: Timing) -> Submitted:
    """The end of a run, from its folder."""
    found = states.status(folder)
    return Submitted(folder, str(found["state"]), found["timing"] or timing.summary())


def commands(folder: RunFolder) -> str:
    """The commands to watch, stop and read a detached run."""
    return f"  watch: qdrun watch {folder.uri}\n  stop:  qdrun cancel {folder.uri}"


def detached_end(made: Detached) -> RunEnd:
    """The document of a submit that has not ended."""
    folder = made.folder
    nothing = {"counts": {}, "best": None, "failures": [], "warnings": [], "seconds": None, "timing": {}}
    where = {"process": made.pid, "job": made.job, "address": made.address, "log": str(made.log)}
    return RunEnd(folder.name, folder.uri, folder.table, "running", 0, len(folder.trial_ids()), **nothing, **where)


def detached_text(made: Detached) -> str:
    """A detached run as text: its process, and how to watch, stop and read it."""
    word = "runs in" if made.begun else "waits, it has not begun yet:"
    uri, notes = made.folder.uri, made.note.splitlines()
    lines = [f"{made.folder.name} {word} {made.where}", *notes, f"  watch: qdrun watch {uri}", f"  stop:  qdrun cancel {uri}"]
    return "\n".join([*lines, f"  table: qdrun results {uri}", f"  log:   {made.log}"])


__all__ = [
    "Detached",
    "NotStarted",
    "Order",
    "commands",
    "detached_end",
    "detached_text",
    "ended",
    "failure_of",
    "follow",
    "never_ran",
    "resume_detached",
]
__all__ += ["stop_pending", "submit_detached"]
