"""The command line: ``qdrun submit | plan | explain | results | status | devices | cancel``. Only ``submit`` imports ray."""

from __future__ import annotations

import json
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from . import cli_config
from .cli_base import Config, Json, Run, Runs, Set, complete_runs, print_json, reported
from .timing import Timing, process_started

app = typer.Typer(
    name="qdrun",
    help="Differentiable simulations in bulk. Exit codes: 0 all trials succeeded, 1 some failed, 2 the config is wrong, 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class Arch(StrEnum):
    """The backends that can be planned for."""

    cpu = "cpu"
    cuda = "cuda"
    amdgpu = "amdgpu"
    vulkan = "vulkan"
    metal = "metal"


class Format(StrEnum):
    """How ``results`` prints the table."""

    table = "table"
    csv = "csv"
    json = "json"
    parquet = "parquet"


def main() -> None:
    """Entry point of the ``qdrun`` command."""
    app()


app.command()(cli_config.schema)
app.command()(cli_config.check)


@app.command()
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
    command_t = process_started()
    with reported(as_json):
        from . import show
        from .plan import prepare
        from .submit import submit as run

        prepared, job = prepare(config, local=address is None, overrides=changes)
        timing = Timing(command_t=command_t, submitted_t=time.time())
        folder = output or prepared.loaded.config.uri
        done = run(prepared, job, output=folder, timing=timing, address=address, dashboard=dashboard, quiet=quiet)
        if as_json:
            print_json(show.summary_data(done))
        else:
            print(show.summary_text(done))
        raise typer.Exit(done.exit_code)


@app.command()
def plan(
    config: Config,
    changes: Set = [],  # noqa: B006
    arch: Annotated[Arch | None, typer.Option(help="Plan for this backend, which need not be there.")] = None,
    as_json: Json = False,
) -> None:
    """Show what would run and the memory it would need; run nothing. Exit code 1 when a trial cannot be planned or does not fit."""
    with reported(as_json):
        from . import show
        from .plan import make_plan, prepare

        prepared, job = prepare(config, overrides=changes)
        groups = make_plan(prepared, job, arch and arch.value)
        if as_json:
            print_json(show.plan_data(prepared, groups))
        else:
            print(show.plan_text(prepared, groups))
        if not all(show.fits(group, prepared.byte_limits) for group in groups):
            raise typer.Exit(1)


@app.command()
def explain(
    config: Config,
    changes: Set = [],  # noqa: B006
    arch: Annotated[Arch | None, typer.Option(help="For this backend, which need not be there.")] = None,
    as_json: Json = False,
) -> None:
    """Show where every byte of a trial goes, which loop owns it, and what each remedy would save; run nothing.

    Exit code 1 when a trial cannot be planned, or not within memory_budget.
    """
    with reported(as_json):
        from . import explain as show
        from .plan import prepare

        prepared, job = prepare(config, overrides=changes)
        found = show.explain(prepared, job, arch and arch.value)
        if as_json:
            print_json(show.data(prepared, found))
        else:
            print(show.text(prepared, found))
        if any(part.error for part in found):
            raise typer.Exit(1)


@app.command()
def results(
    run: Run,
    form: Annotated[Format, typer.Option("--format", "-f", help="How to print the table.")] = Format.table,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write to this file instead of stdout.")] = None,
    runs: Runs = "runs",
    as_json: Json = False,
) -> None:
    """Show the table of a run, finished or not. `parquet` rebuilds the file in the run folder, or writes --out, and prints its path."""
    with reported(as_json):
        from . import show
        from .store import table
        from .store.layout import find
        from .store.replay import replay

        folder = find(run, runs)
        found = replay(folder, slim=False)
        if found.damaged:
            print(f"{folder.uri}: {found.damaged} damaged line(s) of its journal left out", file=sys.stderr)
        if form is Format.parquet:
            path = table.write_parquet(folder, out)
            print(json.dumps({"path": str(path)}) if as_json else path)
            return
        rows = table.rows_of(folder, found)
        if as_json or form is Format.json:
            text = json.dumps(table.as_json(rows), indent=1, allow_nan=False) + "\n"
        else:
            text = table.as_csv(rows) if form is Format.csv else show.results_text(rows) + "\n"
        if out is None:
            sys.stdout.write(text)
        else:
            out.write_text(text, encoding="utf-8")


@app.command()
def status(
    run: Annotated[
        str | None,
        typer.Argument(help="Folder of a run, or its id; none: all runs.", autocompletion=complete_runs),
    ] = None,
    runs: Runs = "runs",
    as_json: Json = False,
) -> None:
    """Show how runs are doing: running, done, failed, cancelled, interrupted or lost."""
    with reported(as_json):
        from . import show
        from .store import status as state
        from .store.layout import find

        states = state.list_runs(runs) if run is None else [state.status(find(run, runs))]
        if as_json:
            print_json(states if run is None else states[0])
        else:
            print(show.status_text(states))


@app.command()
def devices(as_json: Json = False) -> None:
    """Show which backends this machine has, and why not the others."""
    with reported(as_json):
        from . import show
        from .devices import devices as rows

        found = rows()
        if as_json:
            print_json(show.devices_data(found))
        else:
            print(show.devices_text(found))


@app.command()
def cancel(run: Run, runs: Runs = "runs", as_json: Json = False) -> None:
    """Ask a running submit to stop: no trial is started any more, running ones are stopped, finished rows stay."""
    with reported(as_json):
        from .store import status as state
        from .store.layout import find

        folder = find(run, runs)
        before, asked = state.request_cancel(folder)
        if as_json:
            print_json({"run": folder.name, "state": before, "cancel_requested": asked})
        else:
            print(f"{folder.name}: " + ("asked to stop" if asked else f"nothing to stop, the run is {before}"))
