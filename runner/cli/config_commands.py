"""The commands that write configs, or read one only: ``qdrun new | examples | schema | check``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from ..fields import about
from .base import Config, Debug, Json, Set, complete_configs, print_document, print_json, reported


def schema(
    config: Annotated[
        Path | None,
        typer.Argument(help="Include the parameters of the job of this config.", autocompletion=complete_configs),
    ] = None,
) -> None:
    """Print the JSON schema of configs. docs/running-sweeps.md explains how editors use it."""
    with reported(as_json=False):
        from ..config.schema import config_schema

        params = None
        if config is not None:
            from ..config.model import load_config
            from ..study.prepare import load_job  # brings the compiler

            params = load_job(load_config(config))[1].Params
        print_json(config_schema(params))


def check(
    config: Config,
    changes: Set = [],  # noqa: B006 - typer makes a list of its own
    horizon: Annotated[int | None, typer.Option(min=1, help="Time steps to run. Default: the job's, but at most 32.")] = None,
    tolerance: Annotated[
        float | None, typer.Option(min=0.0, help="Largest allowed relative error. Default: 1e-4 in f64, 5e-2 in f32.")
    ] = None,
    most: Annotated[int, typer.Option(min=1, help="Elements to compare in each gradient.")] = 8,
    debug: Debug = False,
    in_process: Annotated[
        bool,
        typer.Option(
            "--in-process",
            help="Run the job in this process, for a debugger. A crash by a signal then ends the command without a message.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare the gradients of a job with finite differences of its loss, for the first trial of a config. Every index is checked.

    Exit code 1 when they differ, or when the job ends its process.
    """
    if not in_process:
        words = ["check", str(config), "--in-process", f"--most={most}", *(f"--set={change}" for change in changes)]
        words += [] if horizon is None else [f"--horizon={horizon}"]
        words += [] if tolerance is None else [f"--tolerance={tolerance!r}"]
        words += ["--debug"] * debug + ["--json"] * as_json
        _apart(config, changes, words, as_json)
    with reported(as_json):
        from ..study import check as checking
        from ..study.prepare import prepare

        prepared, job = prepare(config, overrides=changes, debug=debug)
        found = checking.check(prepared, job, horizon=horizon, tolerance=tolerance, most=most)
        if as_json:
            print_document("check", found)
        else:
            print(found.text())
        if not found.agrees:
            raise typer.Exit(1)


def _apart(config: Path, changes: list[str], words: list[str], as_json: bool) -> NoReturn:
    """Run a check in a child process and exit with its code. Report a child that died by a signal."""
    import shlex

    from .child_process import MAIN, run_apart, signal_name

    code = run_apart(words)
    if signal_name(code):
        with reported(as_json):
            from ..study.check import died
            from ..study.prepare import prepare

            raise died(prepare(config, overrides=changes)[0], signal_name(code), f"python -P -c '{MAIN}' {shlex.join(words)}")
    raise typer.Exit(code)


@dataclass(frozen=True)
class WrittenFiles:
    """The files that were written."""

    written: Annotated[list[str], about("their paths")]
    next: Annotated[str, about("the command that runs the first config")]


@dataclass(frozen=True)
class ExampleRow:
    """A config that comes with the package."""

    name: Annotated[str, about("name of its job")]
    config: Annotated[str, about("file name of the config")]
    seconds: Annotated[int | None, about("seconds on two cores, with the start of Ray; null if unknown")]
    shows: Annotated[str, about("what it shows")]


@dataclass(frozen=True)
class ExampleList:
    """All examples; with `copy`, the files that were written."""

    examples: Annotated[list[ExampleRow] | None, about("each config that comes with the package")] = None
    written: Annotated[list[str] | None, about("paths of the copies")] = None
    next: Annotated[str | None, about("the command that runs the first config")] = None


class Kind(StrEnum):
    """What ``new`` can write."""

    job = "job"
    sweep = "sweep"


class Action(StrEnum):
    """What ``examples`` can do beside listing them."""

    copy = "copy"


def new(
    kind: Annotated[Kind, typer.Argument(help="`job`: a job and a sweep of it. `sweep`: a config for a job that exists.")],
    name: Annotated[str, typer.Argument(help="Name of the files without `.py` and `.yaml`.")],
    job: Annotated[
        str | None,
        typer.Option(
            metavar="TARGET",
            help="For `sweep`: the job, as `file.py:Class` or `package.module:Class`. Default: the robot of the quickstart.",
        ),
    ] = None,
    folder: Annotated[Path, typer.Option("--dir", help="Folder for the files.")] = Path("."),
    as_json: Json = False,
) -> None:
    """Write a skeleton that runs as it is. Files that exist are not overwritten."""
    if kind is Kind.job and job:
        raise typer.BadParameter("--job names the job of a sweep: write `qdrun new sweep`, or leave it out")
    with reported(as_json):
        from ..examples import files

        if kind is Kind.job:
            written = files.new_job(name, folder)
        else:
            from ..examples.sweep import DEFAULT_JOB, sweep_text

            written = files.new_sweep(name, folder, sweep_text(name, job or DEFAULT_JOB, folder))
        _tell("new", written, as_json)


def examples(
    action: Annotated[Action | None, typer.Argument(help="`copy`: copy an example. Default: list all of them.")] = None,
    name: Annotated[str | None, typer.Argument(help="For `copy`: name of the example or of its config.")] = None,
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="For `copy`: the folder for the files.")] = Path("."),
    as_json: Json = False,
) -> None:
    """List the examples that come with the package, or copy the job and the configs of one. Files that exist are not overwritten.

    Seconds are about those of the command on two quiet cores, with the start of Ray.
    """
    if action is Action.copy and name is None:
        raise typer.BadParameter("`copy` needs the name of an example: `qdrun examples` lists them")
    with reported(as_json):
        if name is not None:
            from ..examples.files import copied

            _tell("examples", copied(name, folder), as_json, first=name)
            return
        from ..examples.catalog import examples as every
        from ..text_grid import grid

        rows = [(one.job, one.config.name, one.seconds, one.shows) for one in every()]
        if as_json:
            print_document("examples", ExampleList([ExampleRow(*row) for row in rows]))
        else:
            shown = [(job, config, "" if seconds is None else str(seconds), shows) for job, config, seconds, shows in rows]
            print(grid(["example", "config", "seconds", "shows"], shown))
            print("\nqdrun examples copy NAME    copies a job and its configs to this folder")


def _tell(command: str, written: list[Path], as_json: bool, first: str = "") -> None:
    """Say which files were written, and the command that runs the config of a name, else the first one."""
    configs = sorted((path for path in written if path.suffix == ".yaml"), key=lambda path: first not in (path.stem, path.name))
    names, following = [str(path) for path in written], f"qdrun submit {configs[0]}"
    if as_json:
        print_document(command, {"written": names, "next": following})
    else:
        print(f"wrote {', '.join(names)}\nnext: {following}")
