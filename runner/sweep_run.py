"""Run a sweep: start Ray while the plan is made, admit trials, collect records, keep the journal, obey Ctrl-C and cancel requests."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from ..jobs.base import Job
from .cluster import Capacity, ClusterError, check_environment, close_cluster, open_cluster
from .plan import Prepared, make_plan
from .run.session import Stops, beating, counted_signals
from .store import space, table
from .store.journal import Journal
from .store.layout import RunFolder, create
from .sweep_loop import RunContext, SweepLoop
from .timing import Timing
from .watch.board import Board
from .watch.live import display


@dataclass(frozen=True)
class Submitted:
    """How a submit ended: the state of the run, its folder, its rows, and where the seconds went."""

    folder: RunFolder
    state: str
    rows: list[table.Row]
    timing: dict[str, float | None]

    @property
    def exit_code(self) -> int:
        """0 all trials succeeded, 1 some did not, 130 interrupted."""
        return {"done": 0, "interrupted": 130}.get(self.state, 1)


def submit(
    prepared: Prepared, job: type[Job[Any]], *, output: str, timing: Timing, address: str | None, dashboard: bool, quiet: bool
) -> Submitted:
    """Run all trials of ``prepared`` and leave a run folder under ``output``.

    Raises:
        ClusterError: Ray cannot be started or joined; no trial was started.
        StorageFull: there is no room for the run.
    """
    check_environment(address)
    folder = create(prepared, output)
    board = Board(run=folder.name, total=len(prepared.trials))
    # Ray's processes die with the thread that started them, so that thread lives as long as the run.
    with (
        Journal(folder) as journal,
        display(board, quiet=quiet) as screen,
        ThreadPoolExecutor(1) as ray_thread,
        counted_signals(stops := Stops()),
        beating(journal),
    ):
        journal.write("submitted", sync=True, command_t=timing.command_t)
        starting = ray_thread.submit(_start, timing, address, dashboard, prepared.place.devices)
        state = "failed"
        try:
            stops.starting = True
            state = _run(prepared, job, starting, RunContext(folder, journal, board, screen, timing), stops)
        except KeyboardInterrupt:
            state = "interrupted"
        finally:
            stops.starting = False
            timing.ended_t = time.time()
            journal.write("finished", sync=True, state=state, timing=timing.summary())
            try:
                table.write_parquet(folder)
            finally:
                wait([starting])
                close_cluster()
    return Submitted(folder, state, table.rows(folder), timing.summary())


def _run(prepared: Prepared, job: type[Job[Any]], starting: Future[Capacity], run: RunContext, stops: Stops) -> str:
    groups = make_plan(prepared, job)  # meanwhile Ray starts, which is mostly waiting
    run.timing.planned_t = time.time()
    run.folder.save_plan(groups)
    warning = space.check_room(run.folder.files, space.estimate(prepared.trials, groups, prepared.gradients))
    if warning:
        run.screen.note(warning)
    capacity = starting.result()
    if capacity.dashboard_url:
        run.screen.note(f"dashboard: http://{capacity.dashboard_url} (it asks for a token: `ray get-auth-token` prints it)")
    ready = {"node_memory_bytes": capacity.node_memory_bytes, "dashboard": capacity.dashboard_url}
    run.journal.write("ray_ready", sync=True, cores=capacity.cores, **ready)
    threads = prepared.loaded.config.device.threads
    if threads > capacity.node_cores:
        raise ClusterError(
            f"one trial wants {threads} threads, no node of the cluster has more than {capacity.node_cores} cores\n"
            "  do: lower device.threads"
        )
    if prepared.backend != "cpu" and prepared.place.device is None and not capacity.gpus:
        raise ClusterError(
            f"no node of the cluster has a device for the {prepared.backend} backend that Ray knows of\n"
            "  do: start Ray on the machines that have some, or run without --address"
        )
    stops.starting = False
    return SweepLoop(prepared, groups, capacity, run, stops).run()


def _start(timing: Timing, address: str | None, dashboard: bool, gpus: int) -> Capacity:
    capacity = open_cluster(address, dashboard=dashboard, gpus=gpus)
    timing.ray_ready_t = time.time()
    return capacity
