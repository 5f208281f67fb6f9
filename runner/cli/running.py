"""The commands that run trials, and stop them: ``qdrun submit | resume | cancel``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from ..clock import now
from .base import Config, Debug, Json, Run, Runs, Set, Trial, print_document, reported

if TYPE_CHECKING:
    from ..engine.session import Submitted
    from ..observe.timing import Timing
    from ..remote.detach import Detached


Address = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Join the Ray cluster at this address; http://HOST:8265 runs it there as a Ray Job. Without it Ray runs here.",
    ),
]
Dashboard = Annotated[bool, typer.Option("--dashboard", help="Start Ray's dashboard, on 127.0.0.1 alone.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Detach = Annotated[
    bool,
    typer.Option("--detach", "-d", help="Hand the run to a process of its own and return; it goes on without this terminal."),
]
Wait = Annotated[
    bool,
    typer.Option("--wait", help="Wait for the end, as without --detach. With it: follow a run that survives this terminal."),
]


def submit(
    config: Config,
    changes: Set = [],  # noqa: B006 - typer makes a list of its own
    address: Address = None,
    dashboard: Dashboard = False,
    output: Annotated[str | None, typer.Option(help="Folder or URI for the run, instead of `storage` of the config.")] = None,
    detach: Detach = False,
    wait: Wait = False,
    debug: Debug = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not show the plan of a large sweep and ask.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run a sweep and wait for its end. On a terminal, more than 1,000 trials are shown as a plan, and asked for, first."""
    from ..observe.timing import Timing, process_started

    command_t = process_started()
    with reported(as_json):
        from ..remote.cluster_inventory import devices_at
        from ..study.prepare import prepare
        from .confirmation import asked

        prepared, job = prepare(config, local=address is None, overrides=changes, debug=debug, cluster=devices_at(address))
        planned = () if yes or quiet or as_json else asked(prepared, job, local=address is None)
        timing = Timing(command_t=command_t, submitted_t=now())
        folder = output or prepared.loaded.config.uri
        if detach or is_dashboard(address):
            from ..remote.detach import Order, submit_detached

            if prepared.choice is not None and not quiet and not as_json:
                print(prepared.choice.text, file=sys.stderr)
            _detached(
                submit_detached(prepared, folder, Order(timing, address, dashboard)), timing, wait or not detach, quiet, as_json
            )
        from ..engine.session import submit as run

        how = {"address": address, "dashboard": dashboard, "quiet": quiet}
        _ended(run(prepared, job, output=folder, timing=timing, plan=planned, **how), as_json)


def is_dashboard(address: str | None) -> bool:
    """Whether an address is one for Ray's Jobs API."""
    return address is not None and address.startswith(("http://", "https://"))


def _ended(done: Submitted, as_json: bool) -> NoReturn:
    """Say how a run ended, and end as it did."""
    from ..observe import show

    if as_json:
        print_document("submit", show.summary_data(done))
    else:
        print(show.summary_text(done))
    raise typer.Exit(done.exit_code)


def _detached(
    made: Detached, timing: Timing, wait: bool, quiet: bool, as_json: bool, again: dict[str, Any] | None = None
) -> NoReturn:
    """Say who runs a run, and follow it, or leave it alone. ``again``: the document of ``resume``."""
    from ..observe import show
    from ..remote.detach import detached_data, detached_text, follow

    if (not quiet and not as_json) or not wait:
        text = detached_text(made)
        if as_json:
            data = detached_data(made)
            print_document("submit", data) if again is None else print_document("resume", again | {"ended": data})
        else:
            print(text, file=sys.stderr if wait else sys.stdout)
    if not wait:
        raise typer.Exit(0)
    done = follow(made, timing, quiet=quiet or as_json)
    if again is not None and as_json:
        print_document("resume", again | {"ended": show.summary_data(done)})
        raise typer.Exit(done.exit_code)
    _ended(done, as_json)


def resume(
    run: Run,
    config: Annotated[Path | None, typer.Option(help="Another config, instead of the copy in the run's folder.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Go on although the config or the job's file has changed.")] = False,
    failed: Annotated[bool, typer.Option("--failed", help="Run trials again that failed by their own fault.")] = False,
    debug: Debug = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be kept, retried and skipped; run nothing.")
    ] = False,
    address: Address = None,
    dashboard: Dashboard = False,
    detach: Detach = False,
    wait: Wait = False,
    quiet: Quiet = False,
    runs: Runs = "runs",
    as_json: Json = False,
) -> None:
    """Go on with a run that was interrupted, cancelled or lost. Finished trials are kept; those that failed by their own fault, too."""
    from ..observe.timing import Timing, process_started

    command_t = process_started()
    with reported(as_json):
        from ..engine.resume import look, over
        from ..engine.resume import resume as go_on
        from ..observe import show
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
        timing, done = Timing(command_t=command_t, submitted_t=now()), over(folder, plan)
        if done is not None:
            if not as_json:
                print(f"nothing is left to run; table: qdrun results {folder.uri}")
        elif detach or is_dashboard(address):
            from ..remote.detach import Order, resume_detached

            made = resume_detached(
                folder, Order(timing, address, dashboard), config=config, force=force, failed=failed, debug=debug
            )
            _detached(made, timing, wait or not detach, quiet, as_json, data)
        else:
            how = {"address": address, "dashboard": dashboard, "quiet": quiet, "timing": timing}
            done = go_on(folder, config=config, force=force, failed=failed, debug=debug, **how)
            if not as_json:
                print(show.summary_text(done))
        if as_json:
            print_document("resume", data | {"ended": show.summary_data(done)})
        raise typer.Exit(done.exit_code)


def cancel(
    run: Run,
    trial: Trial = None,
    address: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Dashboard of the cluster that has not begun with the run, if not known here."),
    ] = None,
    runs: Runs = "runs",
    as_json: Json = False,
) -> None:
    """Ask a running submit to stop: no trial is started any more, running ones are stopped, finished rows stay. Or stop one trial."""
    with reported(as_json):
        from ..observe.picking import trial_of
        from ..store import status as state
        from ..store.layout import find

        folder = find(run, runs)
        name = None if trial is None else trial_of(folder, trial)
        before, asked = state.request_cancel(folder, name)
        if name is None and folder.files.exists("launch.json") and not folder.files.names("owners"):
            from ..remote.detach import stop_pending

            asked |= stop_pending(folder, address)
        if as_json:
            print_document("cancel", {"run": folder.name, "trial": name, "state": before, "cancel_requested": asked})
        elif name is None:
            print(f"{folder.name}: " + ("asked to stop" if asked else f"nothing to stop, the run is {before}"))
        else:
            over = "the trial is over" if before == "running" else f"the run is {before}"
            print(f"{folder.name}, trial {name}: " + ("asked to stop" if asked else f"nothing to stop, {over}"))
