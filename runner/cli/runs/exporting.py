"""The command ``qdrun export``."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

import typer

from ...fields import about
from ..base import Json, Run, Runs, print_document, reported


@dataclass(frozen=True)
class ExportDocument:
    """What was handed on to trackers."""

    run: Annotated[str, about("its id")]
    trackers: Annotated[list[str], about("names of the trackers that have all of it")]
    trials: Annotated[int, about("number of trials")]
    points: Annotated[int, about("number of points of their live values")]
    notes: Annotated[list[str], about("what went wrong or was left out")]
    exit_code: Annotated[int, about("exit code of the command")]


def export(
    run: Run,
    to: Annotated[
        list[str],
        typer.Option(
            "--to",
            metavar="NAME",
            help="tensorboard, wandb or mlflow; several times if need be. Default: `export` of the config.",
        ),
    ] = [],  # noqa: B006 - typer makes a list of its own
    option: Annotated[
        list[str],
        typer.Option("--option", metavar="NAME.KEY=VALUE", help="An option of a tracker, as in `wandb.project=robots`."),
    ] = [],  # noqa: B006
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue until the run ends.")] = False,
    runs: Runs = "runs",
    as_json: Json = False,
) -> None:
    """Hand live values, parameters and results of a run on to TensorBoard, Weights & Biases or MLflow.

    The run need not be finished. Exit code 1 when an export has failed.
    """
    with reported(as_json):
        from ...export import export as hand_on
        from ...export.tracker import asked_for, named_in, open_tracker
        from ...store.layout import find

        folder, notes = find(run, runs), list[str]()
        section = asked_for(folder.config().get("export"), to, option)
        trackers = {name: open_tracker(name, section, folder) for name in named_in(section)}
        feed = hand_on(folder, trackers, most=section.trials, follow=follow, note=notes.append)
        exported, code = feed.counts(), int(len(feed.trackers) < len(trackers))
        if as_json:
            print_document(
                "export", ExportDocument(folder.name, sorted(feed.trackers), **exported, notes=notes, exit_code=code)
            )
        else:
            for note in notes:
                print(note, file=sys.stderr)
            for name in sorted(feed.trackers):
                print(f"{name}: {exported['trials']} trials, {exported['points']} points")
        raise typer.Exit(code)
