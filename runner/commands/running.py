"""The commands that run trials, and stop them: ``qdrun submit | resume | cancel``."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from ..cli_base import Config, Json, Run, Runs, Set, Trial, print_document, reported


def submit(
    config: Config,
    changes: Set = [],  # noqa: B006 - typer makes a list of its own
    address: Annotated[str | None, typer.Option(help="Join the Ray cluster at this address; without it Ray runs here.")] = None,
    dashboard: Annotated[bool, typer.Option("--dashboard", help="Start Ray's dashboard, on 127.0.0.1 alone.")] = False,
    output: Annotated[str | None, typer.Option(help="Folder or URI for the run, instead of `output` of the config.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
    as_json: Json = False,
) -> None:
    """Run a sweep and wait for its end."""
    from ..timing import Timing, process_started

    command_t = process_started()
    with reported(as_json):
        from .. import show
        from ..plan import prepare
        from ..run.session import submit as run

        prepared, job = prepare(config, local=address is None, overrides=changes)
        timing = Timing(command_t=command_t, submitted_t=time.time())
        folder = output or prepared.loaded.config.uri
        done = run(prepared, job, output=folder, timing=timing, address=address, dashboard=dashboard, quiet=quiet)
        if as_json:
            print_document("submit", show.summary_data(done))
        else:
            print(show.summary_text(done))
        raise typer.Exit(done.exit_code)


def resume(
    run: Run,
    config: Annotated[Path | None, typer.Option(help="Its config, where it is not at its old place.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Go on although the config or the job's file has changed.")] = False,
    failed: Annotated[bool, typer.Option("--failed", help="Run trials again that failed by their own fault.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be kept, retried and skipped; run nothing.")
    ] = False,
    address: Annotated[str | None, typer.Option(help="Join the Ray cluster at this address; without it Ray runs here.")] = None,
    dashboard: Annotated[bool, typer.Option("--dashboard", help="Start Ray's dashboard, on 127.0.0.1 alone.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
    runs: Runs = "runs",
    as_json: Json = False,
) -> None:
    """Go on with a run that was interrupted, cancelled or lost. Finished trials are kept; those that failed by their own fault, too."""
    from ..timing import Timing, process_started

    command_t = process_started()
    with reported(as_json):
        from .. import show
        from ..run.resume import look
        from ..run.resume import resume as go_on
        from ..store.layout import find

        folder = find(run, runs)
        plan = look(folder, failed=failed)
        data = {"run": folder.name, "state": plan.state, "kept": list(plan.kept)}
        data |= {"retried": dict(plan.retried), "skipped": dict(plan.skipped), "ended": None}
        if not as_json and not quiet:
            print(show.resume_text(data), file=sys.stdout if dry_run else sys.stderr)
        if dry_run:
            if as_json:
                print_document("resume", data)
            return
        timing = Timing(command_t=command_t, submitted_t=time.time())
        how = {"address": address, "dashboard": dashboard, "quiet": quiet, "timing": timing}
        done = go_on(folder, config=config, force=force, failed=failed, **how)
        if as_json:
            print_document("resume", data | {"ended": show.summary_data(done)})
        else:
            print(show.summary_text(done))
        raise typer.Exit(done.exit_code)


def cancel(run: Run, trial: Trial = None, runs: Runs = "runs", as_json: Json = False) -> None:
    """Ask a running submit to stop: no trial is started any more, running ones are stopped, finished rows stay. Or stop one trial."""
    with reported(as_json):
        from ..store import status as state
        from ..store.layout import find
        from .picking import trial_of

        folder = find(run, runs)
        name = None if trial is None else trial_of(folder, trial)
        before, asked = state.request_cancel(folder, name)
        if as_json:
            print_document("cancel", {"run": folder.name, "trial": name, "state": before, "cancel_requested": asked})
        elif name is None:
            print(f"{folder.name}: " + ("asked to stop" if asked else f"nothing to stop, the run is {before}"))
        else:
            over = "the trial is over" if before == "running" else f"the run is {before}"
            print(f"{folder.name}, trial {name}: " + ("asked to stop" if asked else f"nothing to stop, {over}"))
