"""The commands that only read run folders: ``qdrun status | watch | ls | logs``. They never import ray."""

from __future__ import annotations

import sys
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from ..visible import visible
from .base import Json, Run, Runs, Trial, complete_runs, print_document, reported

if TYPE_CHECKING:
    from ..observe.listing import LogPart
    from ..store.layout import RunFolder

FOLLOW_S = 0.3


class State(StrEnum):
    """The states of a run."""

    running = "running"
    done = "done"
    failed = "failed"
    cancelled = "cancelled"
    interrupted = "interrupted"
    lost = "lost"
    damaged = "damaged"


class Stream(StrEnum):
    """The streams that ``logs`` can select."""

    both = "both"
    stdout = "stdout"
    stderr = "stderr"


def status(
    run: Annotated[
        str | None,
        typer.Argument(
            help="Folder or URI of a run, its id or a part of the id, or `latest`. Default: all runs.",
            autocompletion=complete_runs,
        ),
    ] = None,
    runs: Runs = "runs",
    as_json: Json = False,
) -> None:
    """Show the state of runs: running, done, failed, cancelled, interrupted or lost.

    For one run, also show its running trials, and why others wait.
    """
    with reported(as_json):
        from ..observe import show
        from ..observe.listing import state_of, states_of
        from ..store.layout import find

        states = states_of(runs) if run is None else [state_of(find(run, runs))]
        if as_json:
            print_document("status", {"runs": states})
        else:
            print(show.status_text(states) if states else show.no_runs(runs))


def ls(
    runs: Runs = "runs",
    last: Annotated[int, typer.Option("--last", "-n", min=1, help="Number of runs to show.")] = 20,
    state: Annotated[State | None, typer.Option(help="Show only runs in this state.")] = None,
    tags: Annotated[list[str], typer.Option("--tag", help="Show only runs with this tag. Can be repeated.")] = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """List runs, newest first."""
    with reported(as_json):
        from ..observe import show
        from ..observe.listing import listed

        found = listed(runs, last, None if state is None else state.value, tags)
        if as_json:
            print_document("ls", {"where": runs, "runs": found})
        else:
            print(show.list_text(found) if found else show.no_runs(runs, "" if state is None else state.value, tags))


def watch(run: Run, runs: Runs = "runs", as_json: Json = False) -> None:
    """Follow a run until it ends, on whatever machine it runs. With --json, print its present state once.

    Exit code 0 when all trials succeeded, 1 when some did not, 5 when the run was lost or interrupted and can be resumed.
    """
    with reported(as_json):
        from ..store.layout import find

        folder = find(run, runs)
        if as_json:
            from ..observe.view import view_of

            print_document("watch", view_of(folder))
        else:
            from ..observe.live import watch as follow

            raise typer.Exit(follow(folder))


def logs(
    run: Run,
    trial: Trial = None,
    attempt: Annotated[int | None, typer.Option(min=1, help="Number of the attempt. Default: the last one.")] = None,
    stream: Annotated[Stream, typer.Option(help="Show only one of the two streams.")] = Stream.both,
    workers: Annotated[bool, typer.Option("--workers", help="Show the output of worker processes outside of trials.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue until the trial, or the run, ends.")] = False,
    runs: Runs = "runs",
    as_json: Json = False,
) -> None:
    """Show the output of a trial and the traceback of its error; without a trial, the output of all trials."""
    if follow and as_json:
        raise typer.BadParameter("a document has an end: leave out --follow or --json")
    if workers and (trial or attempt or follow):
        raise typer.BadParameter("--workers shows the output of all workers: leave out the trial, --attempt and --follow")
    with reported(as_json):
        from ..observe.listing import attempts_of, logs_of, worker_logs
        from ..query.picking import attempt_of, trial_of
        from ..store.attempts import STREAMS
        from ..store.layout import find

        folder = find(run, runs)
        name = None if trial is None else trial_of(folder, trial)
        streams = STREAMS if stream is Stream.both else (stream.value,)
        if name is not None and attempt is not None and not follow:
            attempt_of(name, attempt, attempts_of(folder, name))
        if follow:
            if not _follow(folder, name, attempt, streams):
                _say_nothing(folder, name)
            return
        found = worker_logs(folder, streams) if workers else logs_of(folder, name, attempt, streams)
        if as_json:
            print_document("logs", {"run": folder.name, "logs": found})
        elif not found:
            _say_nothing(folder, name)
        else:
            for part in found:
                _print_part(part, len(found) > 1)


def _say_nothing(folder: RunFolder, trial: str | None) -> None:
    print(f"{folder.name}: nothing was printed" + (f" by trial {trial}" if trial else ""), file=sys.stderr)


def _print_part(part: LogPart, headed: bool) -> None:
    if headed:
        whose = part["worker"] or f"{part['trial']} attempt {part['attempt']}"
        print(f"==> {whose} {part['stream']} <==")
    print(visible(part["text"]), end="" if part["text"].endswith("\n") else "\n", flush=True)


def _follow(folder: RunFolder, trial: str | None, attempt: int | None, streams: tuple[str, ...]) -> bool:
    """Print existing and new output until the trial has its row or the run ends. Returns whether there was any output."""
    from ..observe.listing import LogFollower

    follower, shown = LogFollower(folder, trial, attempt, streams), ""
    while True:
        over = follower.over()  # asked before the last look, so that nothing is missed
        for part in follower.news():
            key = f"{part['trial']} {part['attempt']} {part['stream']}"
            if key != shown:
                print(f"==> {part['trial']} attempt {part['attempt']} {part['stream']} <==")
                shown = key
            ends = part["stream"] == "error" and not part["text"].endswith("\n")
            print(visible(part["text"]), end="\n" if ends else "", flush=True)
        if over:
            return bool(shown)
        time.sleep(FOLLOW_S)
