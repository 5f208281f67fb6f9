"""The commands that read a config only: ``qdrun schema | check``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NoReturn

import typer

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
            print_document("check", found.data())
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

            raise died(prepare(config, overrides=changes)[0], signal_name(code), f"python -c '{MAIN}' {shlex.join(words)}")
    raise typer.Exit(code)


__all__ = ["check", "schema"]
