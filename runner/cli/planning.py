"""The commands that look ahead and run nothing: ``qdrun plan | explain``."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from .base import Config, Json, Set, print_document, reported


class ArchChoice(StrEnum):
    """The backends of ``--arch``."""

    cpu = "cpu"
    cuda = "cuda"
    amdgpu = "amdgpu"
    vulkan = "vulkan"
    metal = "metal"


def plan(
    config: Config,
    changes: Set = [],  # noqa: B006 - typer makes a list of its own
    arch: Annotated[
        ArchChoice | None, typer.Option(help="Plan for this backend, even if this machine does not have it.")
    ] = None,
    device_memory: Annotated[
        str | None,
        typer.Option(metavar="SIZES", help="Place the trials on hypothetical cards, as in `24GiB*2,80GiB*2`."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the trials of a config, their memory and their placement, and run nothing.

    Exit code 3 when a trial does not fit, 1 when one cannot be planned.
    """
    with reported(as_json):
        from ..observe.planned import plan_of
        from ..search.warm_start import warm_started
        from ..study.prepare import prepare

        prepared, job = prepare(config, local=device_memory is None, overrides=changes)
        found = plan_of(warm_started(prepared, job), job, arch and arch.value, device_memory)
        if as_json:
            print_document("plan", found.data)
        else:
            print(found.text)
        if found.exit_code:
            raise typer.Exit(found.exit_code)


def explain(
    config: Config,
    changes: Set = [],  # noqa: B006
    arch: Annotated[
        ArchChoice | None, typer.Option(help="Explain the plan for this backend, even if this machine does not have it.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the memory of a trial by field and by loop, and the bytes that each remedy would save. Runs nothing.

    Exit code 1 when a trial cannot be planned, or not within memory_budget.
    """
    with reported(as_json):
        from ..study import explain as show
        from ..study.prepare import prepare

        prepared, job = prepare(config, overrides=changes)
        found = show.explain(prepared, job, arch and arch.value)
        if as_json:
            print_document("explain", show.data(prepared, found))
        else:
            print(show.text(prepared, found))
        if any(part.error for part in found):
            raise typer.Exit(1)
