"""Arguments and options that several commands share, with their shell completion."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .output import print_document, print_json, print_rows, reported

if TYPE_CHECKING:
    from ..store.layout import RunFolder

PARAMS = ("job.params.", "sweep.params.")


def complete_runs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Shell completion: the runs in the folder of `--runs`, newest first."""
    folder = Path(str(ctx.params.get("runs") or "runs"))
    names = [entry.name for entry in folder.iterdir() if (entry / "run.json").is_file()] if folder.is_dir() else []
    return sorted((name for name in names if name.startswith(incomplete)), reverse=True)


def complete_keys(ctx: typer.Context, incomplete: str) -> list[str]:
    """Shell completion: the keys of a config that begin with the typed text, each with its `=`.

    Below ``job.params.`` and ``sweep.params.`` they are the parameters of the job that the config on the command line names.
    """
    from ..config.schema import keys

    found = keys()
    for prefix in PARAMS:
        if incomplete.startswith(prefix):
            found += [prefix + name for name in _params_of(Path(_argument(ctx, "config")))]
    return [f"{key}=" for key in found if key.startswith(incomplete)]


def _argument(ctx: typer.Context, name: str) -> str:
    """The first argument of a command line. It is missing from ``params`` while the last option has no value yet."""
    return str(ctx.params.get(name) or next((word for word in ctx.args if not word.startswith("-")), ""))


def _params_of(config: Path) -> list[str]:
    """The parameters of the job of a config; empty if the job cannot be loaded, because a completion cannot print a message."""
    from ..config.model import load_config
    from ..study.target import load, resolve

    with suppress(Exception), redirect_stdout(sys.stderr):
        loaded = load_config(config)
        return list(load(resolve(loaded.config.job.target, loaded.folder)).Params.model_fields)
    return []


def _run_of(ctx: typer.Context) -> RunFolder:
    from ..store.layout import find

    return find(_argument(ctx, "run"), str(ctx.params.get("runs") or "runs"))


def complete_trials(ctx: typer.Context, incomplete: str) -> list[str]:
    """Shell completion: the ids of the trials of the run on the command line that begin with the typed text."""
    with suppress(Exception):
        return [name for name in _run_of(ctx).trial_ids() if name.startswith(incomplete)]
    return []


def complete_columns(ctx: typer.Context, incomplete: str) -> list[str]:
    """Shell completion: the columns of the run on the command line, also after ``max:`` and after the last comma."""
    from ..observe.table import rows_of
    from ..query.table_file import current_file
    from ..store.follower import Detail
    from ..store.replay import replay

    comma = incomplete.rfind(",") + 1
    before, start = incomplete[:comma], incomplete[comma:]
    before, start = (before + "max:", start.removeprefix("max:")) if start.startswith("max:") else (before, start)
    with suppress(Exception):
        folder = _run_of(ctx)
        file = current_file(folder)
        names = rows_of(folder, replay(folder, Detail.SMALL)).names if file is None else file.names
        return [before + name for name in names if name.startswith(start)]
    return []


def complete_configs(incomplete: str) -> list[str]:
    """Shell completion: YAML files and folders that begin with the typed text."""
    folder, _, start = incomplete.rpartition("/")
    prefix = f"{folder}/" if folder or incomplete.startswith("/") else ""
    found = sorted(Path(prefix or ".").glob(f"{start}*")) if Path(prefix or ".").is_dir() else []
    named = [prefix + path.name + ("/" if path.is_dir() else "") for path in found]
    return [name for name in named if name.endswith(("/", ".yaml", ".yml"))]


Config = Annotated[Path, typer.Argument(help="YAML file that describes the run.", autocompletion=complete_configs)]
Run = Annotated[
    str, typer.Argument(help="Folder or URI of a run, its id or a part of the id, or `latest`.", autocompletion=complete_runs)
]
Trial = Annotated[
    str | None,
    typer.Argument(
        help="Id of a trial, the beginning of the id, or @n: the position in the sweep, from 0.", autocompletion=complete_trials
    ),
]
Runs = Annotated[str, typer.Option("--runs", help="Folder or URI that contains the runs, to look up ids.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Set = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set a key of the config, as in `--set limits.memory=1GiB`. Can be repeated.",
        autocompletion=complete_keys,
    ),
]

Debug = Annotated[
    bool,
    typer.Option(
        "--debug",
        help="Check every index, assert and NaN in the kernels, like `debug: true` in the config. Slow; errors name the line.",
    ),
]

__all__ = ["Config", "Debug", "Json", "Run", "Runs", "Set", "Trial", "print_document", "print_json", "print_rows", "reported"]
