"""The commands ``qdrun tag`` and ``qdrun note``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from ...visible import visible
from ..base import Json, Run, Runs, print_document, reported

if TYPE_CHECKING:
    from ...store.layout import RunFolder
    from ...upkeep.labels import Labels


def tag(
    run: Run,
    names: Annotated[list[str], typer.Argument(help="The tags, as in `baseline` or `paper/fig2`. Default: show them.")] = [],  # noqa: B006
    remove: Annotated[bool, typer.Option("--remove", help="Take these tags away.")] = False,
    runs: Runs = "runs",
    as_json: Json = False,
) -> None:
    """Give tags to a run. `qdrun ls --tag NAME` lists the runs with a tag; `qdrun gc` never removes a run that has one."""
    with reported(as_json):
        from ...store.layout import find
        from ...upkeep import labels

        folder = find(run, runs)
        found = labels.tag(folder, names, remove=remove) if names else labels.labels_of(folder)
        _show("tag", folder, found, as_json, ", ".join(found.tags) or "no tags")


def note(
    run: Run,
    text: Annotated[str | None, typer.Argument(help="The note. Default: show the notes.")] = None,
    runs: Runs = "runs",
    as_json: Json = False,
) -> None:
    """Add a note to a run."""
    with reported(as_json):
        from ...store.layout import find
        from ...upkeep import labels

        folder = find(run, runs)
        found = labels.labels_of(folder) if text is None else labels.note(folder, text)
        lines = [f"{time.strftime('%Y-%m-%d %H:%M', time.localtime(one.t))}  {one.text}" for one in found.notes]
        _show("note", folder, found, as_json, "\n".join(lines) or "no notes")


def _show(command: str, folder: RunFolder, found: Labels, as_json: bool, text: str) -> None:
    if as_json:
        from ...upkeep.labels import RunLabels

        print_document(command, RunLabels(folder.name, found.tags, found.notes))
    else:
        print(visible(f"{folder.name}: {text}" if command == "tag" else text))
