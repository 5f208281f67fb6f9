"""The plan of a sweep: its trials, their memory, the batches, and where they would run. Nothing is run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...jobs.base import Job
from ..study.batches import Batches, BatchGroup, groups_of
from ..study.placement import Predicted, curves, fits, park_of, plans_beside, predict
from ..study.plan import PlannedGroup, Prepared, make_plan
from . import show
from .html import text_html


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
    def data(self) -> dict[str, Any]:
        """The plan as plain data, as of `qdrun plan --json`."""
        return show.plan_data(self.prepared, self.groups, self.placed, self.together)

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
