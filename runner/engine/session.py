"""A run from its first second to its last: the run's folder, signals, signs of life, Ray, plans, the loop, the table."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

from ...compiler.errors import QdrunError
from ...jobs.base import Job
from ...jobs.planning.gradient_notes import warnings_of
from ..checks.first_check import first_check
from ..clock import now
from ..export import exporting
from ..export.callbacks import calling, commands_of
from ..export.tracker import named_in
from ..jobcode.imports import IMPORTS
from ..ledger.account import Account
from ..ledger.client import RunLedger
from ..ledger.machine import Machine, with_others_back
from ..observe import table
from ..observe.board import Board
from ..observe.ended import Submitted
from ..observe.live import Display
from ..observe.notebook import display
from ..observe.remarks import keep_remarks
from ..observe.timing import Timing
from ..optimize.kept import forget_batches
from ..private import NotPrivate
from ..provenance.record import record, record_data
from ..ray_adapter.cluster import Capacity, ClusterError, check_environment, close_cluster, open_cluster
from ..ray_adapter.head_watch import ClusterLost, HeadWatch
from ..ray_adapter.held_devices import HeldDevices
from ..ray_adapter.known_clusters import DASHBOARD, remember
from ..ray_adapter.node_inventory import Settings, most_cores
from ..ray_adapter.pages.metrics import Metrics
from ..stops import Stops, counted_signals
from ..store.files import FolderGone, StorageFull, StorageLost
from ..store.journal import Journal, JournalReader
from ..store.layout import BEAT_EVERY_S, LOST_AFTER_S, RunFolder, check_shared, create
from ..store.owner import OwnerLost, cancel_requests
from ..study.placement import devices_of, frames_of, with_frames
from ..study.plan import Planned, Prepared, plan_all
from ..study.target import notes_of
from ..study.trial_list import Trials
from ..study.trials import counted
from ..upkeep import space
from ..upkeep.caches import trim
from ..upkeep.removal import discarding
from .early_plans import CannotPlan, EarlyPlans, failures_text, refuse
from .event_writer import Kept, Outside
from .parts import TrialAt
from .start import RunCancelled, check_device, run_trials, user, warm
from .writer_threads import Patience, patiently, storage_lost

ROOM_EVERY_S = 0.5
Stage = Callable[[Journal], tuple[Sequence[TrialAt] | None, Kept]]
"""Returns the trials to run after the claim of the journal (None: all), and what earlier owners have left."""


@dataclass(frozen=True)
class How:
    """The options of a running submit: Ray, progress, start time."""

    timing: Timing
    address: str | None = None
    dashboard: bool = False
    quiet: bool = False


@contextmanager
def beating(journal: Journal, board: Board | None = None, note: Callable[[str], None] = lambda text: None) -> Iterator[None]:
    """Write the heartbeat of the run from a thread, so that a long plan or a slow start does not look like a lost run.

    It says how far the running trials are, as ``board`` has it. ``note``: tells the user that files cannot be written in the run's folder.
    """
    over, refused = threading.Event(), [False]

    def once() -> None:
        written = False
        with suppress(OSError, QdrunError):  # a store that is away may come back; a lost run is met again at the next write
            written = journal.beat(None if board is None else board.steps.copy())
        if refused[0] == written:
            refused[0] = not written
            where = journal.folder.uri
            refusal = f"no file can be written in {where}: the run goes on, and looks lost to others after {LOST_AFTER_S:g} s"
            note(f"files can be written in {where} again" if written else refusal)

    def beat() -> None:
        while not over.wait(BEAT_EVERY_S):
            once()

    once()  # until now the last sign of life is that of the process that made the run, or of the owner before
    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(BEAT_EVERY_S)  # one that the store does not answer is not waited for


def submit(
    prepared: Prepared,
    job: type[Job],
    *,
    output: str,
    timing: Timing,
    address: str | None,
    dashboard: bool,
    quiet: bool,
    plan: Sequence[Planned] = (),
    more: Mapping[str, str] | None = None,
    files: Mapping[str, bytes] | None = None,
) -> Submitted:
    """Run all trials of ``prepared`` and leave a run folder under ``output``.

    ``plan``: where it was made before; ``more``: see ``create``; ``files``: further files of the run folder, by path, for its workers.

    Raises:
        CannotPlan: the job can be built for no trial; nothing was started.
        TrackerMissing: the package of a tracker in ``export`` is not installed.
        CallbackMissing: what ``callbacks`` names is not there.
        ClusterError: Ray cannot be started or joined; no trial was started.
        StorageUnknown: no other process can see where the run is to be stored.
        StorageFull: there is no room for the run.
    """
    check_environment(address, dashboard)
    check_shared(output)
    named_in(prepared.loaded.config.export)
    commands_of(prepared.loaded.config.callbacks, prepared.loaded.folder)
    plans: Sequence[Planned] | EarlyPlans = plan
    if plan:
        refuse(plan, notes_of(prepared.target), local=address is None)
    else:
        plans = EarlyPlans(prepared, job)
        plans.wait(local=address is None)
    if prepared.trials.names is not None:
        prepared.trials.names.later = prepared.may_list_later
    folder = create(prepared, output, more, lambda made: record(made, prepared, job, files or {}))
    with discarding(folder, CannotPlan):
        done = attend(prepared, job, folder, How(timing, address, dashboard, quiet), lambda journal: (None, Kept()), plans)
    trim()
    return done


def attend(
    prepared: Prepared,
    job: type[Job],
    folder: RunFolder,
    how: How,
    stage: Stage,
    plan: Sequence[Planned] | EarlyPlans = (),
    *,
    gone: int = 0,
    reader: JournalReader | None = None,
) -> Submitted:
    """Take a run over and bring it to its end.

    Args:
        prepared: its config.
        job: its job.
        folder: the run's folder; no process runs it.
        how: with which Ray.
        stage: the trials to run.
        plan: the plan, if it was made or is being made.
        gone: the owner of the run, if its process is known to be dead: its timeout and its leases need not be waited for.
        reader: has read the journal so far.

    Raises:
        ClusterError: Ray cannot be started or joined; no trial was started.
        RunAlive: another process runs it.
        StorageFull: there is no room for the run.
    """
    timing, state, ours, why, board = how.timing, "failed", True, "", Board(run=folder.name, total=len(prepared.trials))
    # Ray's processes die with the thread that started them, so that thread lives as long as the run.
    with (
        Journal(folder, gone=gone, reader=reader) as journal,
        display(board, quiet=how.quiet) as screen,
        ThreadPoolExecutor(1) as ray_thread,
        HeadWatch(screen.note, lambda: _last_words(journal)) as head,
        counted_signals(stops := Stops(check=head.check)),
        beating(journal, board, screen.note),
        _telling(folder, prepared, screen.note, stops),
    ):
        work, kept = stage(journal)
        before = kept.show(board)
        if work is not None and not work:
            return _nothing_left(journal, before, timing)
        journal.write("submitted", sync=True, command_t=timing.command_t, code=prepared.target.code)
        board.check = first_check(prepared, job, folder.uri, screen.note, board.warnings)
        starting = ray_thread.submit(_start, timing, how, prepared.ray_devices, metadata(folder, prepared))
        try:
            stops.starting = True
            planned = _planned(prepared, job, folder, plan, how, screen)
            warm(prepared, job, planned, starting.done)
            capacity = starting.result()
            head.begin(capacity.head, joined=how.address is not None, node=capacity.node)
            _ready(journal, board, screen, capacity, joined=how.address is not None)
            ledger = _ledger(prepared, folder, how.address, planned, capacity, owner=journal.owner.number, note=screen.note)
            outside = lambda w: Outside(folder, journal, board, screen, timing, ledger, w, stops.started())  # noqa: E731
            state = run_trials(prepared, planned, outside, ledger, folder=folder, owner=journal.owner, work=work, before=before)
        except (KeyboardInterrupt, RunCancelled) as error:
            state = "cancelled" if isinstance(error, RunCancelled) else "interrupted"
        except OwnerLost as error:
            state, ours = "lost", False
            screen.note(str(error))
        except Exception as error:
            ours, stops.storeless = not isinstance(error, FolderGone | StorageLost), isinstance(error, StorageLost)
            if not (ours and (isinstance(error, ClusterLost) or head.away())):
                why = f"{type(error).__name__}: {error}"
                raise
            state = "lost"
            screen.note(str(error) if isinstance(error, ClusterLost) else f"the cluster is gone: {error}")
        finally:
            stops.starting = False
            timing.ended_t = now()
            head.end()
            try:
                done = _end(ours, journal, screen, stops, state, timing, why, prepared.trials)
                board.over(done.state)
                keep_remarks(folder, done.made, board.checked(done.state == "done", lambda: stops.asked > 0))
            finally:
                wait([starting])
                close_cluster(lost=bool(head.lost) or (state == "lost" and ours))
    return done


@contextmanager
def _telling(folder: RunFolder, prepared: Prepared, note: Callable[[str], None], stops: Stops) -> Iterator[None]:
    """Tell trackers and callbacks of the run while the block runs. Afterwards this process imports nothing of the job any more."""
    loaded = prepared.loaded
    for text in notes_of(prepared.target):
        note(text)
    with (
        IMPORTS.released(),
        exporting(folder, loaded.config.export, note, stops),
        calling(folder, loaded.config.callbacks, loaded.folder, note, stops),
    ):
        yield


def _nothing_left(journal: Journal, before: Mapping[str, int], timing: Timing) -> Submitted:
    """End a resumed run without remaining trials, without Ray."""
    state, timing.ended_t = "done" if set(before) <= {"done"} else "failed", now()
    journal.write("finished", sync=True, state=state, timing=timing.summary())
    with suppress(StorageFull):
        journal.folder.files.sweep("")
    table.write_table(journal.folder)
    return Submitted(journal.folder, state, timing.summary())


def _planned(
    prepared: Prepared,
    job: type[Job],
    folder: RunFolder,
    plan: Sequence[Planned] | EarlyPlans,
    how: How,
    screen: Display,
) -> Sequence[Planned]:
    """The plans, made while Ray starts; tells the user at once of shapes that cannot be built.

    Raises:
        CannotPlan: a new run has none that can.
    """
    if isinstance(plan, EarlyPlans):
        planned = plan.all()
        refuse(planned, notes_of(prepared.target), local=how.address is None)
    else:
        planned = plan or plan_all(prepared, job, prepared.loaded.config.limits.timeout_s)
    groups = [group for group, _ in planned]
    how.timing.planned_t = now()
    folder.save_plan(groups)
    record_data(folder.files, prepared, [name for group in groups for name in group.data])
    if prepared.choice is not None:
        screen.note(prepared.choice.text)
    for text in warnings_of(groups):
        screen.note(f"warning: {text}")
    failed = [group for group in groups if group.plan is None]
    if failed:
        count = sum(len(group.places) for group in failed)
        others = "the others run" if len(failed) < len(groups) else "they are tried where they run"
        screen.note(f"{counted(count, 'trial')} cannot be planned, {others}\n{failures_text(failed)}")
    warning = space.check_room(folder.files, space.estimate(prepared.trials, groups, prepared.gradients))
    if warning:
        screen.note(warning)
    return planned


def _ready(journal: Journal, board: Board, screen: Display, capacity: Capacity, *, joined: bool) -> None:
    """Ray is there: show the run on its pages, and note where they are."""
    board.metrics = Metrics(journal.folder.name, capacity.record)
    if capacity.dashboard_url and joined:
        remember(journal.folder, f"http://{capacity.dashboard_url}", DASHBOARD)
    if capacity.dashboard_url:
        screen.note(f"dashboard: http://{capacity.dashboard_url} (`qdrun dashboard` opens it, logged in)")
    ready = {"node_memory_bytes": capacity.node_memory_bytes, "dashboard": capacity.dashboard_url}
    journal.write("ray_ready", sync=True, cores=capacity.cores, **ready)


def _ledger(
    prepared: Prepared,
    folder: RunFolder,
    address: str | None,
    planned: Sequence[Planned],
    capacity: Capacity,
    *,
    owner: int,
    note: Callable[[str], None],
) -> RunLedger:
    """The ledger of the run, with the devices of this machine or of the cluster. ``owner``: the number of this process among the owners of
    the run. ``note``: tells the user whom this machine is shared with.

    Raises:
        ClusterError: no node has a device of the backend.
    """
    config, groups = prepared.loaded.config, [group for group, _ in planned]
    if address is not None:
        settings = Settings(config.device.slots, config.device.threads, frames_of(groups))
        ledger = RunLedger(folder.name, HeldDevices(folder.name, owner, settings), most=config.limits.max_concurrent)
    elif found := devices_of(prepared):
        account, rows = _account(folder, note), with_frames(found, groups)
        if account is not None:
            with account.gate():
                rows = with_others_back(rows, account.others())
        ledger = RunLedger(folder.name, Machine(rows, account, note))
    else:
        raise ClusterError(f"this machine has no device for the {prepared.where} backend\n  do: `qdrun devices` says why")
    most = (lambda: capacity.node_cores) if address is None else most_cores
    check_device(prepared, ledger, most, note, lambda: cancel_requests(folder).whole)
    return ledger


def _account(folder: RunFolder, note: Callable[[str], None]) -> Account | None:
    """The account that the runs of this user on this machine share; None if another user blocks its folder."""
    try:
        return Account(folder.name)
    except (NotPrivate, OSError) as error:
        note(f"this run does not see what other runs of yours hold of this machine: {error}")
        return None


def _end(
    ours: bool, journal: Journal, screen: Display, stops: Stops, state: str, timing: Timing, why: str, trials: Trials
) -> Submitted:
    """``_finish``, unless the run or its store is lost (``ours``); bounds how long the store is waited for.

    Raises:
        StorageLost: the store did not take the last line; see ``patiently``.
    """
    written, made, lost = list[str](), (), None
    try:
        if ours:
            end = partial(_finish, journal, screen, stops, state, timing, why, trials, written.append)
            state, made = patiently(end, "the end of the run waits for it", journal.folder.uri, stops, screen.note)
    except StorageLost as error:
        stops.storeless = True
        if not written:
            raise
        lost = error
        screen.note("the run is over, and its table is left to `qdrun results`")
    finally:
        if not ours or stops.storeless:
            journal.give_up()
    return Submitted(journal.folder, (written or [state])[0], timing.summary(), made, lost)


def _finish(
    journal: Journal,
    screen: Display,
    stops: Stops,
    state: str,
    timing: Timing,
    why: str,
    trials: Trials,
    written: Callable[[str], object] = lambda state: None,
) -> tuple[str, Sequence[table.Row]]:
    """Write the last line of the journal, and the table, and let the run go; wait for a store that refuses as ``Patience`` says.

    ``why``: the reason why the run ended before its trials, for remote followers. ``trials``: of the run; all of them are listed before.
    ``written``: called once the state of the run is in the journal. Gives the state, and the rows if the table was made.

    Raises:
        StorageLost: the store has not taken the last lines.
    """
    try:
        if not (trials.listed() or _room(trials.listed, stops)):
            raise storage_lost(journal.folder.uri, "the list of trials waits for room")
        journal.write("finished", sync=True, state=state, timing=timing.summary(), **({"error": why} if why else {}))
    except OwnerLost as error:
        screen.note(str(error))
        return "lost", ()
    except StorageFull as error:
        screen.note(f"{str(error).splitlines()[0]}: waiting until {error.until}; Ctrl-C gives up, `qdrun resume` goes on later")
        if not _room(journal.retry, stops):
            raise storage_lost(journal.folder.uri, str(error).splitlines()[0]) from error
    written(state)
    made = _made_table(journal, screen, stops, state, trials)
    journal.close()
    return state, made


def _made_table(journal: Journal, screen: Display, stops: Stops, state: str, trials: Trials) -> Sequence[table.Row]:
    """Write the table, and remove what is of no use any more. Every row is in the journal: the table can be made at any time."""
    files = journal.folder.files
    if state == "done":
        forget_batches(files)
    with suppress(StorageFull):  # files that a process was killed over while it wrote them
        files.sweep("")
    try:
        return table.write_table(journal.folder, trials=trials)
    except StorageFull as error:
        screen.note(f"{str(error).splitlines()[0]}: the table waits until {error.until}; Ctrl-C leaves it to `qdrun results`")
        _room(lambda: _table(journal, trials), stops)
    return ()


def _room(works: Callable[[], bool], stops: Stops) -> bool:
    """Try until it works; False: the user does not want to wait, or has waited for too long."""
    asked, patience = stops.asked, Patience(stops)
    while not works():
        time.sleep(ROOM_EVERY_S)
        if stops.asked > asked or patience.over:
            return False
    return True


def _table(journal: Journal, trials: Trials) -> bool:
    with suppress(StorageFull):
        table.write_table(journal.folder, trials=trials)
        return True
    return False


def _last_words(journal: Journal) -> None:
    """Record that the run is lost, from another thread than the hanging one, unless that one has recorded its end."""
    if not journal.closed:
        journal.write("finished", sync=True, state="lost")
        journal.close()
    print(f"next: qdrun resume {journal.folder.uri}", file=sys.stderr, flush=True)


def metadata(folder: RunFolder, prepared: Prepared) -> dict[str, str]:
    """Ray's record of the job of a run, from its dashboard."""
    shown = {"job_name": prepared.loaded.config.name, "run": folder.name, "user": user(), "trials": str(len(prepared.trials))}
    return shown | {"folder": folder.uri if "//" in folder.uri else os.path.abspath(folder.uri)}


def _start(timing: Timing, how: How, gpus: int, job: dict[str, str]) -> Capacity:
    capacity = open_cluster(how.address, dashboard=how.dashboard, gpus=gpus, job=job)
    timing.ray_ready_t = now()
    return capacity


__all__ = ["How", "Stops", "attend", "beating", "counted_signals", "submit"]
