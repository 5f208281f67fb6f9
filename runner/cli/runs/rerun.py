"""The command ``qdrun rerun``."""

from __future__ import annotations

from typing import Annotated

import typer

from ...clock import now
from ..base import Json, Run, Runs, Trial, print_document, reported
from ..running import Address, Quiet


def rerun(
    run: Run,
    trial: Trial = None,
    output: Annotated[
        str | None, typer.Option(help="Folder or URI for the new run. Default: the folder of the runs, as of --runs.")
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            metavar="X", min=0.0, help="Largest relative difference that counts as equal. Default: 1e-9 in f64, 1e-4 in f32."
        ),
    ] = None,
    code: Annotated[
        str | None,
        typer.Option(metavar="HASH", help="Only the trials of this version of the code, as in the column `code`."),
    ] = None,
    address: Address = None,
    quiet: Quiet = False,
    runs: Runs = "runs",
    as_json: Json = False,
) -> None:
    """Run a run again, or one of its trials, from its folder alone, and compare the numbers.

    The code, the config and the inputs are those that the folder keeps. Exit code 1 when numbers differ.
    """
    from ...observe.timing import Timing, process_started

    command_t = process_started()
    with reported(as_json):
        from ...compare.rerun import RerunDocument
        from ...compare.rerun import rerun as again
        from ...observe.ended import RunEnd, summary_text
        from ...query.picking import trial_of
        from ...store.layout import find

        folder = find(run, runs)
        name = None if trial is None else trial_of(folder, trial)
        how = {"output": output or runs, "tolerance": tolerance, "address": address, "quiet": quiet, "code": code}
        found = again(folder, name, timing=Timing(command_t=command_t, submitted_t=now()), **how)
        if as_json:
            ended = RunEnd.of(found.done)
            print_document("rerun", RerunDocument(folder.name, found.comparison, found.changed, ended, found.exit_code))
        else:
            print(f"{summary_text(found.done)}\n{found.text}")
        raise typer.Exit(found.exit_code)
