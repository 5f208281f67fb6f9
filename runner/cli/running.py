"""The commands that start and stop runs: ``qdrun submit | resume | cancel``."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from ..clock import now
from ..fields import about
from .base import Config, Debug, Json, Run, Runs, Set, Trial, print_document, reported

if TYPE_CHECKING:
    from ..observe.ended import ResumePlan, Submitted
    from ..observe.timing import Timing
    from ..remote.detach import Detached, Order
    from ..store.layout import RunFolder


Address = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Join the Ray cluster at this address; http://HOST:8265 submits a Ray Job; `slurm` asks for an allocation. "
        "Default: start Ray on this machine.",
    ),
]
Dashboard = Annotated[bool, typer.Option("--dashboard", help="Start Ray's dashboard, on 127.0.0.1 only.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Do not show progress.")]
Detach = Annotated[
    bool,
    typer.Option("--detach", "-d", help="Run in a background process and return. The run survives this terminal."),
]
Wait = Annotated[
    bool,
    typer.Option("--wait", help="Wait for the end. This is the default without --detach; with it, follow the background run."),
]


@dataclass(frozen=True)
class CancelRequest:
    """The effect of a cancel request."""

    run: Annotated[str, about("its id")]
    trial: Annotated[str | None, about("the trial; null for the whole run")]
    state: Annotated[str, about("state of the run before")]
    cancel_requested: Annotated[bool, about("whether there was anything to stop")]


class Code(StrEnum):
    """The code that a run goes on with."""

    kept = "kept"
    new = "new"


def submit(
    config: Config,
    changes: Set = [],  # noqa: B006 - typer makes a list of its own
    address: Address = None,
    dashboard: Dashboard = False,
    output: Annotated[
        str | None,
        typer.Option(help="Folder or URI for the run, instead of `storage` of the config. The folder of a run: go on with it."),
    ] = None,
    detach: Detach = False,
    wait: Wait = False,
    debug: Debug = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation of a large sweep.")] = False,
    quiet: Quiet = False,
    sbatch: Annotated[
        list[str],
        typer.Option(
            "--sbatch", metavar="KEY[=VALUE]", help="With --address slurm: an option of sbatch, as in `partition=gpu`."
        ),
    ] = [],  # noqa: B006 - as above
    as_json: Json = False,
) -> None:
    """Run a sweep and wait for its end. On a terminal, a sweep of more than 1,000 trials first shows its plan and asks for confirmation.

    If --output is the folder of a run, it goes on with that run: a finished one stays as it is.
    """
    from ..observe.timing import Timing, process_started

    command_t = process_started()
    with reported(as_json):
        from ..config.values import expanded
        from ..remote.cluster_inventory import devices_at
        from ..remote.detach import Order
        from ..search.warm_start import warm_started
        from ..store.layout import RunExists, RunFolder
        from ..study.prepare import prepare
        from .confirmation import asked

        there = None if address == "slurm" else devices_at(address)
        prepared, job = prepare(config, local=address is None, overrides=changes, debug=debug, cluster=there)
        prepared = warm_started(prepared, job)
        folder = expanded(output) if output else prepared.loaded.config.uri
        if output and (found := RunFolder(folder)).is_run:
            if address == "slurm":
                raise RunExists(
                    f"{folder} is the folder of a run, and an allocation of Slurm begins a new one\n"
                    "  do: name another --output, or go on with the run on a cluster: --address HOST:PORT"
                )
            found.check_config(prepared.resolved)
            order = Order(Timing(command_t=command_t, submitted_t=now()), address, dashboard)
            _again(found, order, detach or is_dashboard(address), wait or not detach, quiet, as_json)
        planned = () if yes or quiet or as_json else asked(prepared, job, local=address is None)
        timing = Timing(command_t=command_t, submitted_t=now())
        if address == "slurm":
            from ..remote.slurm import submit_slurm

            _detached(submit_slurm(prepared, folder, sbatch), timing, wait, quiet, as_json)
        if detach or is_dashboard(address):
            from ..remote.detach import submit_detached

            if prepared.choice is not None and not quiet and not as_json:
                print(prepared.choice.text, file=sys.stderr)
            _detached(
                submit_detached(prepared, folder, Order(timing, address, dashboard)), timing, wait or not detach, quiet, as_json
            )
        from ..engine.session import submit as run

        how = {"address": address, "dashboard": dashboard, "quiet": quiet}
        _ended(run(prepared, job, output=folder, timing=timing, plan=planned, **how), as_json)


def _again(run: RunFolder, order: Order, detached: bool, wait: bool, quiet: bool, as_json: bool) -> NoReturn:
    """Go on with a run that was submitted before, and exit with its code; one without remaining trials stays as it is."""
    from ..engine.resume import look, over, resume
    from ..remote.detach import resume_detached
    from ..store.replay import Replayer

    reader = Replayer(run)
    done = over(run, look(run, reader=reader))
    if not quiet and not as_json:
        said = "goes on" if done is None else "has ended before; nothing is left to run"
        print(f"run {run.name} {said}", file=sys.stderr)
    if done is None and detached:
        _detached(resume_detached(run, order), order.timing, wait, quiet, as_json)
    if done is None:
        how = {"address": order.address, "dashboard": order.dashboard, "timing": order.timing}
        done = resume(run, quiet=quiet, reader=reader, **how)
    _ended(done, as_json)


def is_dashboard(address: str | None) -> bool:
    """Whether an address is that of a dashboard, which has Ray's Jobs API."""
    return address is not None and address.startswith(("http://", "https://"))


def _ended(done: Submitted, as_json: bool) -> NoReturn:
    """Print how a run ended, and exit with its code."""
    from ..observe.ended import RunEnd, summary_text

    if as_json:
        print_document("submit", RunEnd.of(done))
    else:
        print(summary_text(done))
    raise typer.Exit(done.exit_code)


def _detached(
    made: Detached, timing: Timing, wait: bool, quiet: bool, as_json: bool, again: ResumePlan | None = None
) -> NoReturn:
    """Print which process runs a run, and follow it if asked to. ``again``: the document of ``resume``."""
    from ..observe.ended import RunEnd
    from ..remote.detach import detached_end, detached_text, follow

    if (not quiet and not as_json) or not wait:
        text = detached_text(made)
        if as_json:
            data = detached_end(made)
            print_document("submit", data) if again is None else print_document("resume", replace(again, ended=data))
        else:
            print(text, file=sys.stderr if wait else sys.stdout)
    if not wait:
        raise typer.Exit(0)
    done = follow(made, timing, quiet=quiet or as_json)
    if again is not None and as_json:
        print_document("resume", replace(again, ended=RunEnd.of(done)))
        raise typer.Exit(done.exit_code)
    _ended(done, as_json)


def _with_changes(folder: RunFolder, plan: ResumePlan, *, code: bool, config: bool) -> ResumePlan:
    """Add what has changed since the run began. ``code``, ``config``: compare these with what the run keeps."""
    from ..engine.resume import config_changes
    from ..provenance.versions import code_changes

    changed = {"code_changes": code_changes(folder)} if code else {}
    return replace(plan, **changed, config_changes=config_changes(folder) if config else ())


def resume(
    run: Run,
    config: Annotated[Path | None, typer.Option(help="Use this config instead of the copy in the run's folder.")] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Continue although the config or the job's files have changed, with the present ones."),
    ] = False,
    code: Annotated[
        Code | None,
        typer.Option(
            "--code", help="If the job's files have changed: continue with the code the run keeps, or with the new code."
        ),
    ] = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="Also run trials again that failed by an error of their own.")
    ] = False,
    debug: Debug = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show which trials would be kept, retried and skipped, and run nothing.")
    ] = False,
    address: Address = None,
    dashboard: Dashboard = False,
    detach: Detach = False,
    wait: Wait = False,
    quiet: Quiet = False,
    runs: Runs = "runs",
    as_json: Json = False,
) -> None:
    """Continue a run that was interrupted, cancelled or lost.

    Finished trials are kept, and so are trials that failed by an error of their own.
    """
    from ..observe.timing import Timing, process_started

    command_t = process_started()
    with reported(as_json):
        from ..engine.resume import look, over
        from ..engine.resume import resume as go_on
        from ..observe.ended import RunEnd, summary_text
        from ..store.layout import find
        from ..store.replay import Replayer
        from .confirmation import which_code

        reader = Replayer(folder := find(run, runs))
        plan = look(folder, failed=failed, reader=reader)
        checked = bool(plan.retried) and not force
        plan = _with_changes(
            folder, plan, code=checked and (dry_run or code is None), config=checked and dry_run and config is None
        )
        if not as_json and not quiet:
            print(plan.text, file=sys.stdout if dry_run else sys.stderr)
        if dry_run:
            if as_json:
                print_document("resume", plan)
            return
        timing, done = Timing(command_t=command_t, submitted_t=now()), over(folder, plan)
        if done is not None:
            if not as_json:
                print(f"nothing is left to run; table: qdrun results {folder.uri}")
        elif detach or is_dashboard(address):
            from ..remote.detach import Order, resume_detached

            chosen = which_code(plan.code_changes, code)
            made = resume_detached(
                folder, Order(timing, address, dashboard), config=config, force=force, failed=failed, debug=debug, code=chosen
            )
            _detached(made, timing, wait or not detach, quiet, as_json, plan)
        else:
            how = {"address": address, "dashboard": dashboard, "quiet": quiet, "timing": timing}
            how |= {"code": which_code(plan.code_changes, code)}
            done = go_on(folder, config=config, force=force, failed=failed, debug=debug, reader=reader, **how)
            if not as_json:
                print(summary_text(done))
        if as_json:
            print_document("resume", replace(plan, ended=RunEnd.of(done)))
        raise typer.Exit(done.exit_code)


def cancel(
    run: Run,
    trial: Trial = None,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Dashboard of the cluster that has the run in its queue, if this machine does not know it."
        ),
    ] = None,
    runs: Runs = "runs",
    as_json: Json = False,
) -> None:
    """Ask a run to stop: it stops its running trials, starts no others and keeps finished rows. With TRIAL, stop that trial only."""
    with reported(as_json):
        from ..query.picking import trial_of
        from ..store import status as state
        from ..store.layout import find

        folder = find(run, runs)
        name = None if trial is None else trial_of(folder, trial)
        before, asked = state.request_cancel(folder, name)
        if name is None and folder.files.exists("launch.json") and not folder.files.names("owners"):
            from ..remote.detach import stop_pending
            from ..remote.slurm import stop_queued

            asked |= stop_queued(folder) or stop_pending(folder, address)
        if as_json:
            print_document("cancel", CancelRequest(folder.name, name, before, asked))
        elif name is None:
            print(f"{folder.name}: " + ("asked to stop" if asked else f"nothing to stop, the run is {before}"))
        else:
            over = "the trial is over" if before == "running" else f"the run is {before}"
            print(f"{folder.name}, trial {name}: " + ("asked to stop" if asked else f"nothing to stop, {over}"))
