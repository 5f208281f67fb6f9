"""The plan of a sweep: its trials, their memory, the batches, and where they would run. Nothing is run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from typing_extensions import TypedDict

from ...jobs.base import Job
from ...jobs.planning.gradient_notes import warnings_of
from ..fields import Data, about
from ..study.batches import Batches, BatchGroup, BatchGroupData, groups_of
from ..study.placement import PlacementData, Predicted, curves, fits, park_of, plans_beside, predict
from ..study.plan import PlannedGroup, Prepared, make_plan
from . import show
from .html import text_html


class PlannedTrial(TypedDict):
    """A trial of a plan."""

    id: Annotated[str, about("computed from parameters and replicate")]
    label: Annotated[str, about("the swept values")]
    replicate: Annotated[int, about("number of the repetition")]
    seed: Annotated[int, about("the trial's own seed")]
    params: Annotated[Data, about("all parameters")]


class ShapeData(TypedDict):
    """Trials that need equal memory."""

    trials: Annotated[list[str], about("their ids")]
    example: Annotated[str, about("the label of one of them")]
    error: Annotated[str | None, about("why no plan could be made")]
    arch: Annotated[str | None, about("the backend of the plan")]
    bytes: Annotated[int | None, about("of one trial, without code and the overhead of the process")]
    footprint: Annotated[int | None, about("bytes plus the overhead of the process on a GPU")]
    by_kind: Annotated[dict[str, int], about("bytes by kind")]
    entries: Annotated[list[Data], about("the terms of the sum: kind, bytes, source, formula, plane, where")]
    notes: Annotated[list[str], about("ways to make a trial faster, with the line of the kernel")]
    gradients: Annotated[list[Data], about("gradients with a path that is cut: name, connected, warning, why")]
    fits: Annotated[bool | None, about("whether it is within limits.memory and memory_budget; null: no plan")]


class PlanDocument(TypedDict):
    """Trials, their memory and their placement."""

    name: Annotated[str, about("name of the config")]
    target: Annotated[str, about("the job")]
    backend: Annotated[str, about("backend of the trials")]
    choice: Annotated[
        Data | None,
        about("with device.backend: auto and several backends: backend, reason, and the candidates with their predictions"),
    ]
    threads: Annotated[int, about("threads of one trial")]
    gradients: Annotated[list[str], about("names of the gradients")]
    warnings: Annotated[
        list[str], about("gradients that are 0 or incomplete whatever the parameters, with the line that cuts the path")
    ]
    trials: Annotated[list[PlannedTrial], about("all trials")]
    memory: Annotated[list[ShapeData], about("the memory of each shape of trials")]
    batch: Annotated[int | str, about("`batch` of the config")]
    batches: Annotated[list[BatchGroupData], about("groups of trials that may be batched; empty if the devices are unknown")]
    memory_budget: Annotated[int | str | None, about("`memory_budget` of the config")]
    overrides: Annotated[list[str], about("the changes by --set")]
    at_once: Annotated[int | None, about("as in placement; null if the devices are unknown")]
    placement: Annotated[PlacementData | None, about("null for a plan of another backend without --device-memory")]


@dataclass(frozen=True, repr=False)
class SweepPlan:
    """The plan of a sweep; in a notebook, its text.

    Attributes:
        prepared: the config, with its job and its trials.
        groups: trials of one shape, with their memory.
        placed: where they would run; None where the devices are unknown.
        together: which of them run in batches.
    """

    prepared: Prepared
    groups: list[PlannedGroup]
    placed: Predicted | None
    together: list[BatchGroup]

    @property
    def text(self) -> str:
        """The plan as `qdrun plan` prints it."""
        return show.plan_text(self.prepared, self.groups, self.placed, self.together)

    @property
    def data(self) -> PlanDocument:
        """The plan as plain data, as of `qdrun plan --json`."""
        prepared, placed = self.prepared, self.placed
        config = prepared.loaded.config
        return {
            "name": config.name,
            "target": prepared.target.text,
            "backend": prepared.arch,
            "choice": None if prepared.choice is None else prepared.choice.data(),
            "threads": config.device.threads,
            "gradients": list(prepared.gradients),
            "warnings": warnings_of(self.groups),
            "trials": [
                {"id": t.id, "label": t.label, "replicate": t.replicate, "seed": t.seed, "params": t.params}
                for t in prepared.trials
            ],
            "memory": [_shape_data(group, prepared.trials.ids, prepared.byte_limits) for group in self.groups],
            "batch": config.batch,
            "batches": [group.data() for group in self.together],
            "memory_budget": config.memory_budget,
            "overrides": list(prepared.loaded.overrides),
            "at_once": None if placed is None else placed.at_once,
            "placement": None if placed is None else placed.data(),
        }

    @property
    def exit_code(self) -> int:
        """0 all trials can run, 3 one does not fit, 1 one cannot be planned."""
        small = all(fits(group, self.prepared.byte_limits) for group in self.groups)
        if (self.placed and self.placed.misfits) or not small:
            return 3
        return int(any(group.plan is None for group in self.groups))

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return text_html(self.text)


def _shape_data(group: PlannedGroup, ids: Sequence[str], limits: Mapping[str, int | None]) -> ShapeData:
    plan = group.plan
    return {
        "trials": [ids[place] for place in group.places],
        "example": group.example,
        "error": group.error or None,
        "arch": plan and plan.arch,
        "bytes": plan and plan.bytes,
        "footprint": plan and plan.footprint,
        "by_kind": plan.by_kind() if plan else {},
        "entries": [entry.model_dump() for entry in plan.entries] if plan else [],
        "notes": list(plan.notes) if plan else [],
        "gradients": [note.model_dump() for note in group.gradients],
        "fits": None if plan is None else not show.beyond(plan.bytes, limits),
    }


def plan_of(prepared: Prepared, job: type[Job[Any]], arch: str | None = None, device_memory: str | None = None) -> SweepPlan:
    """Plan a sweep.

    Args:
        prepared: its config.
        job: its job.
        arch: plan for this backend, which need not be here.
        device_memory: place the trials on cards of these sizes, as in ``24GiB*2``.

    Raises:
        QdrunError: ``device_memory`` cannot be read.
    """
    groups = make_plan(prepared, job, arch)
    park = park_of(prepared, groups, device_memory)
    if park is None:
        return SweepPlan(prepared, groups, None, [])
    together = groups_of(prepared, job, groups, park.threads(prepared), park.pools, park.devices, arch)
    points, beside = curves(prepared, job, groups, arch), plans_beside(prepared, job)
    return SweepPlan(prepared, groups, predict(prepared, groups, park, points, Batches(together, 1.0), beside), together)


__all__ = ["SweepPlan", "plan_of"]
