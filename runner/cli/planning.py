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
        from ..observe import show
        from ..search.warm_start import warm_started
        from ..study.batches import Batches, groups_of
        from ..study.placement import curves, fits, park_of, plans_beside, predict
        from ..study.plan import make_plan
        from ..study.prepare import prepare

        prepared, job = prepare(config, local=device_memory is None, overrides=changes)
        prepared = warm_started(prepared, job)
        wanted = arch and arch.value
        groups = make_plan(prepared, job, wanted)
        park, placed = park_of(prepared, groups, device_memory), None
        together = (
            [] if park is None else groups_of(prepared, job, groups, park.threads(prepared), park.pools, park.devices, wanted)
        )
        if park is not None:
            points, beside = curves(prepared, job, groups, wanted), plans_beside(prepared, job)
            placed = predict(prepared, groups, park, points, Batches(together, 1.0), beside)
        if as_json:
            print_document("plan", show.plan_data(prepared, groups, placed, together))
        else:
            print(show.plan_text(prepared, groups, placed, together))
        if (placed and placed.misfits) or not all(fits(group, prepared.byte_limits) for group in groups):
            raise typer.Exit(3)
        if any(group.plan is None for group in groups):
            raise typer.Exit(1)


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
