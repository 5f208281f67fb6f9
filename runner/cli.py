"""The command line: ``qdrun submit | plan | explain | results | status | devices | cancel``. Only ``submit`` imports ray."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from ..compiler.errors import QdrunError
from .timing import Timing, process_started
from .yaml_lines import ConfigError

app = typer.Typer(
    name="qdrun",
    help="Differentiable simulations in bulk. Exit codes: 0 all trials succeeded, 1 some failed, 2 the config is wrong, 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Config = Annotated[Path, typer.Argument(help="YAML file of the run.")]
Run = Annotated[str, typer.Argument(help="Folder of a run, or its id.")]
Runs = Annotated[Path, typer.Option("--runs", help="Folder where runs lie, to look up ids.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]


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


@contextmanager
def reported(as_json: bool) -> Iterator[None]:
    """Turn our errors into a message and an exit code: 2 for what is wrong before anything starts, 130 for Ctrl-C."""
    try:
        yield
    except ConfigError as error:
        _fail(error.as_json(), str(error), as_json)
    except BrokenPipeError:  # `qdrun results RUN | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (QdrunError, OSError) as error:
        _fail({"error": {"type": type(error).__name__, "message": str(error)}}, str(error), as_json)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _fail(data: dict[str, Any], text: str, as_json: bool) -> None:
    if as_json:
        _print_json(data)
    else:
        print(text, file=sys.stderr)
    raise typer.Exit(2)


def _print_json(data: Any) -> None:
    print(json.dumps(data, indent=1, allow_nan=False))


@app.command()
def submit(
    config: Config,
    address: Annotated[str | None, typer.Option(help="Join the Ray cluster at this address; without it Ray runs here.")] = None,
    dashboard: Annotated[bool, typer.Option("--dashboard", help="Start Ray's dashboard, on 127.0.0.1 alone.")] = False,
    output: Annotated[Path | None, typer.Option(help="Folder for the run, instead of `output` of the config.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
    as_json: Json = False,
) -> None:
    """Run a sweep and wait for its end."""
    command_t = process_started()
    with reported(as_json):
        from . import show
        from .plan import prepare
        from .submit import submit as run

        prepared, job = prepare(config, local=address is None)
        timing = Timing(command_t=command_t, submitted_t=time.time())
        folder = output or Path(prepared.loaded.config.output)
        done = run(prepared, job, output=folder, timing=timing, address=address, dashboard=dashboard, quiet=quiet)
        if as_json:
            _print_json(show.summary_data(done))
        else:
            print(show.summary_text(done))
        raise typer.Exit(done.exit_code)


@app.command()
def plan(
    config: Config,
    arch: Annotated[Arch | None, typer.Option(help="Plan for this backend, which need not be there.")] = None,
    as_json: Json = False,
) -> None:
    """Show what would run and the memory it would need; run nothing. Exit code 1 when a trial cannot be planned or does not fit."""
    with reported(as_json):
        from . import show
        from .plan import make_plan, prepare

        prepared, job = prepare(config)
        groups = make_plan(prepared, job, arch and arch.value)
        if as_json:
            _print_json(show.plan_data(prepared, groups))
        else:
            print(show.plan_text(prepared, groups))
        if not all(show.fits(group, prepared.byte_limits) for group in groups):
            raise typer.Exit(1)


@app.command()
def explain(
    config: Config,
    arch: Annotated[Arch | None, typer.Option(help="For this backend, which need not be there.")] = None,
    as_json: Json = False,
) -> None:
    """Show where every byte of a trial goes, which loop owns it, and what each remedy would save; run nothing.

    Exit code 1 when a trial cannot be planned, or not within memory_budget.
    """
    with reported(as_json):
        from . import explain as show
        from .plan import prepare

        prepared, job = prepare(config)
        found = show.explain(prepared, job, arch and arch.value)
        if as_json:
            _print_json(show.data(prepared, found))
        else:
            print(show.text(prepared, found))
        if any(part.error for part in found):
            raise typer.Exit(1)


@app.command()
def results(
    run: Run,
    form: Annotated[Format, typer.Option("--format", "-f", help="How to print the table.")] = Format.table,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write to this file instead of stdout.")] = None,
    runs: Runs = Path("runs"),
    as_json: Json = False,
) -> None:
    """Show the table of a run, finished or not. `parquet` rebuilds the file in the run folder, or writes --out, and prints its path."""
    with reported(as_json):
        from . import results as table
        from . import show
        from .folder import find
        from .journal import read

        folder = find(run, runs)
        damaged = read(folder.events)[1]
        if damaged:
            print(f"{folder.events}: {damaged} damaged line(s) left out", file=sys.stderr)
        if form is Format.parquet:
            path = table.write_parquet(folder, out)
            print(json.dumps({"path": str(path)}) if as_json else path)
            return
        rows = table.rows(folder)
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
    run: Annotated[str | None, typer.Argument(help="Folder of a run, or its id; without it all runs are listed.")] = None,
    runs: Runs = Path("runs"),
    as_json: Json = False,
) -> None:
    """Show how runs are doing: running, done, failed, cancelled, interrupted or lost."""
    with reported(as_json):
        from . import show
        from . import status as state
        from .folder import find

        states = state.list_runs(runs) if run is None else [state.status(find(run, runs))]
        if as_json:
            _print_json(states if run is None else states[0])
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
            _print_json(show.devices_data(found))
        else:
            print(show.devices_text(found))


@app.command()
def cancel(run: Run, runs: Runs = Path("runs"), as_json: Json = False) -> None:
    """Ask a running submit to stop: no trial is started any more, running ones are stopped, finished rows stay."""
    with reported(as_json):
        from . import status as state
        from .folder import find

        folder = find(run, runs)
        before, asked = state.request_cancel(folder)
        if as_json:
            _print_json({"run": folder.path.name, "state": before, "cancel_requested": asked})
        else:
            print(f"{folder.path.name}: " + ("asked to stop" if asked else f"nothing to stop, the run is {before}"))
