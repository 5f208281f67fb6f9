"""The Jacobian of a job's residuals, by a batch in a program of its own: reverse mode has a row for each trial, forward mode a column.

In reverse mode all trials of the batch have the same inputs, and each sums the residuals with other weights: those of trial k choose
residual k, so that its gradient is row k. In forward mode each trial has another direction of the inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from pydantic import BaseModel

from ...compiler.errors import OutOfMemory, QdrunError
from ...jobs.base import BatchSession, Job, MemoryPlan, PlanEntry, group_key
from ...jobs.planning.groups import found_of

KIND = "jacobian"
"""The kind of its bytes in a memory plan."""
MOST = 1024
"""Trials of its batch."""


class NoResiduals(QdrunError, ValueError):
    """A rule needs residuals, and the job has none, or cannot compute their Jacobian."""


@dataclass(frozen=True)
class JacobianMode:
    """How a Jacobian is computed: in which mode, and how many of its rows (reverse) or columns (forward) at once, of how many."""

    mode: str
    at_once: int
    count: int

    @property
    def text(self) -> str:
        """In words, for a plan."""
        return f"{self.mode} mode, {self.at_once} of {self.count} {self.unit}s at once"

    @property
    def unit(self) -> str:
        """The part of the Jacobian that a trial of the batch computes."""
        return "column" if self.mode == "forward" else "row"


def choose(job: Job[Any], plan: MemoryPlan, names: Sequence[str]) -> JacobianMode:
    """The mode that costs less by the memory plan of the open job: reverse mode writes the state, the gradients and what tapes keep once
    for each residual, forward mode the state and as many tangents once for each parameter.

    Args:
        job: open, with gradients.
        plan: its plan.
        names: the parameters.

    Raises:
        NoResiduals: it declares none.
    """
    if job.declared.residuals is None:
        raise NoResiduals(
            f"`levenberg_marquardt` needs residuals, and {type(job).__name__} declares an objective\n"
            "  do: write self.residuals(count) in build instead of self.objective(), if its loss is a sum of squares; else use rule: lbfgs"
        )
    why = found_of(type(job), job.params, job.wanted).why
    if why:
        raise NoResiduals(
            f"the Jacobian of {type(job).__name__} cannot be computed in a batch: {why}\n  do: use rule: lbfgs, which needs none"
        )
    kinds = plan.by_kind()
    state = kinds.get("state", 0)
    backwards = state + sum(kinds.get(kind, 0) for kind in ("gradients", "adstack", "snapshots", "temporaries"))
    rows = int(job.declared.residuals.shape[0])
    columns = sum(int(np.size(getattr(job.params, name))) for name in names)
    mode, count = ("forward", columns) if columns * 2 * state <= rows * backwards else ("reverse", rows)
    return JacobianMode(mode, min(count, MOST), count)


class Jacobian:
    """The open program that computes it. Make it while the job is open whose Jacobian it is.

    Attributes:
        choice: how; fewer rows or columns at once than asked for where a memory budget is too small.
        plan: the bytes of the program.

    Args:
        job: the job.
        names: the parameters: inputs of the job.
        choice: how.
        beside: bytes of the program of the job, which count in the memory limit and in the memory budget of both.

    Raises:
        OutOfMemory: not even one row or column fits the memory budget; names the smallest budget that works.
    """

    def __init__(self, job: Job[Any], names: Sequence[str], choice: JacobianMode, beside: int = 0) -> None:
        self.choice, self._names = choice, list(names)
        options, limit = dict(job.opened_with), job.opened_with.get("memory_limit_bytes")
        options["memory_limit_bytes"] = None if limit is None else max(1, limit - beside)
        self._context = copy_context()  # its program is current in it, that of the job stays current outside
        self._context.run(self._open, job, options)
        budget = 0 if job.program is None else job.program.options.memory_budget
        while budget and beside + self.plan.bytes > budget:
            self._shrink(job, options, budget, beside)

    def _shrink(self, job: Job[Any], options: dict[str, Any], budget: int, beside: int) -> None:
        """Open it again for fewer rows or columns at once."""
        at_once, held = self.choice.at_once, self.plan.bytes
        self.close()
        if at_once == 1:
            raise OutOfMemory(
                f"memory_budget of {budget:,} bytes is too small for `levenberg_marquardt`: the job takes {beside:,} bytes, and one"
                f" {self.choice.unit} of the Jacobian at a time {held:,} beside it\n"
                f"  do: memory_budget: {beside + held} or more, or rule: lbfgs, which needs no Jacobian",
                beside + held,
            )
        fits = max(0, budget - beside) * at_once // held
        self.choice = replace(self.choice, at_once=max(1, min(at_once - 1, fits)))
        self._context.run(self._open, job, options)

    def _open(self, job: Job[Any], options: dict[str, Any]) -> None:
        wanted = self._names if self.choice.mode == "reverse" else []
        made = type(job)(job.params, wanted=wanted, seed=job.seed)
        made.jacobian = self.choice.mode
        key = group_key(type(job), job.params, wanted=wanted)
        self._session = BatchSession(made, self.choice.at_once, key, options | {"batch": self.choice.at_once})
        self._session.build()
        self.plan, self._seed = made.plan(), job.seed

    @property
    def entry(self) -> PlanEntry:
        """Its bytes, as an entry of the trial's plan."""
        return PlanEntry(
            kind=KIND, bytes=self.plan.bytes, source="optimize.rule: levenberg_marquardt", formula=self.choice.text
        )

    @property
    def peak_bytes(self) -> int:
        """The most bytes that it has held."""
        return self._session.job.peak_bytes() or 0

    def at(self, params: BaseModel) -> np.ndarray:
        """The Jacobian at a point, (residuals, numbers of the parameters), f64.

        Raises:
            Exception: what a kernel reports.
        """
        return self._context.run(self._at, params)

    def _at(self, params: BaseModel) -> np.ndarray:
        values = {name: np.asarray(getattr(params, name), np.float64) for name in self._session.job.declared.inputs}
        parts = self._rows(values) if self.choice.mode == "reverse" else self._columns(values)
        whole = np.concatenate(parts)
        return whole if self.choice.mode == "reverse" else np.ascontiguousarray(whole.T)

    def _rows(self, values: dict[str, np.ndarray]) -> list[np.ndarray]:
        parts, job = list[np.ndarray](), self._session.job
        for start, count in self._chunks():
            weights = np.zeros((self.choice.at_once, self.choice.count))
            weights[np.arange(count), start + np.arange(count)] = 1.0
            job.program.column(job.declared.weights).write(weights)
            found = self._run(values, count)
            parts.append(np.concatenate([found.gradients[name].reshape(count, -1) for name in self._names], axis=1))
        return [part.astype(np.float64) for part in parts]

    def _columns(self, values: dict[str, np.ndarray]) -> list[np.ndarray]:
        parts, job = list[np.ndarray](), self._session.job
        for start, count in self._chunks():
            directions, at = np.zeros((self.choice.at_once, self.choice.count)), 0
            directions[np.arange(count), start + np.arange(count)] = 1.0
            tangents = {}
            for name in self._names:
                size = values[name].size
                tangents[name] = directions[:, at : at + size].reshape(-1, *values[name].shape)
                at += size
            job.tangents = tangents
            self._run(values, count)
            parts.append(job.declared.read(job.declared.residuals.dual, job.program)[:count].astype(np.float64))
        return parts

    def _chunks(self) -> list[tuple[int, int]]:
        size = self.choice.at_once
        return [(start, min(size, self.choice.count - start)) for start in range(0, self.choice.count, size)]

    def _run(self, values: dict[str, np.ndarray], count: int) -> Any:
        inputs = {name: np.repeat(value[None], count, axis=0) for name, value in values.items()}
        found = self._session.run_columns(inputs, [self._seed] * count)
        for error in found.errors.values():
            raise error
        return found

    def close(self) -> None:
        """Close the program."""
        self._context.run(self._session.close)


__all__ = ["KIND", "Jacobian", "JacobianMode", "NoResiduals", "choose"]
