"""The points of descents that take their steps together: on the host as arrays, or on the device of a batch as fields of its program."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
from pydantic import BaseModel

from ...jobs.core import paths
from ...jobs.core.optimizer import MOVE, TAKE, Moved, Optimizer, OptimizerSpec
from ..config.limits import limits_of
from ..config.optimize_section import OptimizeSection
from . import rules
from .evaluate import DescentError, Evaluate, Evaluated, TrialsTogether, at_point
from .results import STOPPED
from .state import Descents, Rows
from .update_rules import (
    RULES,
    USUAL,
    RuleState,
    clip_factors,
    corrections,
    free_part,
    memory_of,
    options_of,
    projected,
    rate_at,
    row_norms,
)


class Measured(NamedTuple):
    """What is known of a point of each descent: the loss, the norm of the gradient, and the errors of trials by row."""

    losses: np.ndarray
    norms: np.ndarray
    errors: Mapping[int, BaseException]


class Points(Protocol):
    """The points of descents, the memory of their rule, and the step that each keeps."""

    def evaluate(self) -> Measured:
        """Run the job at the points of ``now``.

        Raises:
            Stopped: a stop was requested.
            BaseException: what fails all of them.
        """
        ...

    def advance(self, take: np.ndarray, last: bool) -> None:
        """Keep the points of the trials ``take``, and move those that run to their next points, unless this was the ``last`` step."""
        ...

    def fetch(self, *, kept: bool = False) -> None:
        """Bring the arrays of ``now`` up to date. ``kept``: those of the steps that are kept alone."""
        ...


class HostPoints:
    """Points as the arrays of ``now``."""

    def __init__(self, now: Descents, evaluate: Evaluate, section: OptimizeSection) -> None:
        self._now, self._evaluate, self._section = now, evaluate, section
        self._scale = {name: section.scale.get(name, 1.0) for name in section.params or ()}
        self._bounds = {
            name: (low / self._scale[name], high / self._scale[name]) for name, (low, high) in section.bounds.items()
        }
        self._found: Evaluated | None = None
        self._g: Rows = {}

    def evaluate(self) -> Measured:
        """See ``Points``."""
        now, evaluate = self._now, self._evaluate
        points = real(self._section, now.x) if now.step else None
        refused = {} if points is None else evaluate.refused(points, now.running, now.step)
        for row in refused:  # it stays where it began: the others go on
            for name, column in now.x.items():
                column[row] = evaluate.columns[name][row] / self._scale[name]
        return self.measured(evaluate(real(self._section, now.x) if refused else points, now.step), refused)

    def measured(self, found: Evaluated, refused: Mapping[int, BaseException] = MappingProxyType({})) -> Measured:
        """What ``evaluate`` gives, from the results at the points. ``refused``: the trials that were not to go there."""
        now, self._found = self._now, found
        self._g = {name: scale * found.gradients[name].astype(np.float64) for name, scale in self._scale.items()}
        with np.errstate(all="ignore"):  # rows that are over may hold anything
            norms = row_norms(free_part(now.x, self._g, self._bounds))
        return Measured(found.losses, norms, {**found.errors, **refused})

    def advance(self, take: np.ndarray, last: bool) -> None:
        """See ``Points``."""
        now, found = self._now, self._found
        assert found is not None
        now.point, now.gradients, now.outputs = (
            _chosen(take, new, old)
            for new, old in ((now.x, now.point), (found.gradients, now.gradients), (found.outputs, now.outputs))
        )
        if not last:
            with np.errstate(all="ignore"):
                moved, now.rule = rules.advance(self._section, now, found, self._g, self._bounds, self._evaluate)
            now.stopped[now.running & rules.done(now)] = STOPPED.index("no_descent")
            now.x = _chosen(now.running, moved, now.x)

    def fetch(self, *, kept: bool = False) -> None:
        """See ``Points``: they are up to date."""


class DevicePoints:
    """Points as fields of a batch's program, see ``jobs.core.optimizer``. ``now`` has the numbers of each trial; its arrays are fetched."""

    def __init__(self, now: Descents, together: TrialsTogether, section: OptimizeSection) -> None:
        self._now, self._together, self._section = now, together, section
        self._batch, self._rows, self._begun = together.batch, len(now.stopped), False
        self._whole = np.zeros(0)  # squares of the gradients, for clipping
        self._options = options_of(section.rule) | dict(section.options)
        self._host: HostPoints | None = None  # of a job that is built for each run, as its first one tells

    @property
    def _optimizer(self) -> Optimizer:
        found = self._batch.job.optimizer
        assert found is not None
        return found

    def evaluate(self) -> Measured:
        """See ``Points``."""
        now, outside = self._now, np.zeros(0, np.intp)
        if self._host is not None:
            return self._host.evaluate()
        if not self._begun:
            found = self._together(real(self._section, now.x) if now.step else None, now.step)
            if self._batch.optimizer is None:
                self._host = HostPoints(now, self._together, self._section)
                return self._host.measured(found)
            errors: dict[int, BaseException] = dict(found.errors)
            self._send()
            losses, squares, *told = self._batch.measure_step(self._rows)
        else:
            (losses, squares, *told), failed = self._batch.run_again(self._rows)
            errors = dict[int, BaseException](failed)
            if len(told) > self._optimizer.spec.clip:
                outside = np.flatnonzero((told[-1] != 0) & now.running)
        if self._optimizer.spec.clip:
            self._whole = told[0]
        with np.errstate(over="ignore"):
            norms = self._norms(squares)
        if len(outside):
            refused = self._together.refused(real(self._section, self._read(self._optimizer.x)), now.running, now.step)
            assert refused.keys() == set(outside.tolist()), "limits of the device and of the host are the same"
            errors |= refused
        return Measured(losses.astype(np.float64, copy=False), norms, errors)

    def _norms(self, squares: np.ndarray, free: bool = True) -> np.ndarray:
        """Norms from sums of squares. Where these have lost digits, from the gradients."""
        norms = np.sqrt(squares)
        unusual = ~((squares > USUAL[0]) & (squares < USUAL[1])) & ~np.isnan(squares) & self._now.running
        if unusual.any():
            moved = {one.name: one for one in self._optimizer.spec.params}
            fields = {name: self._batch.job.declared.inputs[name].grad for name in moved}
            with np.errstate(all="ignore"):
                g = {name: moved[name].scale * value.astype(np.float64) for name, value in self._read(fields).items()}
                if free:
                    g = free_part(self._read(self._optimizer.x), g, {n: one.bounds for n, one in moved.items() if one.bounded})
                norms[unusual] = row_norms({name: value[unusual] for name, value in g.items()})
        return norms

    def _send(self) -> None:
        """Write what ``now`` has to the device; the inputs are there."""
        now, optimizer = self._now, self._optimizer
        inputs = self._batch.job.declared.inputs
        found = [(optimizer.x, {name: column for name, column in now.x.items() if optimizer.x[name] is not inputs[name]})]
        for kind, fields in optimizer.memory.items() if now.history else ():
            found.append((fields, {name: now.rule.memory[name][kind] for name in fields}))
        if not now.history:
            self._batch.forget_memory()
        else:
            found += [(optimizer.point, now.point), (optimizer.gradients, now.gradients), (optimizer.outputs, now.outputs)]
        for fields, columns in found:
            self._batch.put([fields[name] for name in columns], list(columns.values()))
        self._begun = True

    def advance(self, take: np.ndarray, last: bool) -> None:
        """See ``Points``."""
        if self._host is not None:
            self._host.advance(take, last)
            return
        now, section, optimizer = self._now, self._section, self._optimizer
        codes, rate, scales = TAKE * take, 0.0, (1.0, 1.0)
        if not last:
            assert section.learning_rate is not None
            codes, count = codes + MOVE * now.running, now.rule.count + 1
            rate = rate_at(now.step, section.learning_rate, section.steps)
            scales = corrections(section.rule, self._options, count)
            now.rule = RuleState(count, now.rule.memory)
            if section.clip is not None:
                with np.errstate(all="ignore"):
                    factors = clip_factors(self._norms(self._whole, free=False), section.clip)
                self._batch.put([optimizer.part], [factors])
        self._batch.step(codes.astype(np.int32), rate, scales)

    def fetch(self, *, kept: bool = False) -> None:
        """See ``Points``."""
        if self._begun:
            now, optimizer = self._now, self._optimizer
            now.point, now.gradients = self._read(optimizer.point), self._read(optimizer.gradients)
            now.outputs = self._read(optimizer.outputs)
            if not kept:
                now.x, memory = self._read(optimizer.x), {kind: self._read(of) for kind, of in optimizer.memory.items()}
                now.rule = RuleState(now.rule.count, {name: {kind: of[name] for kind, of in memory.items()} for name in now.x})

    def _read(self, fields: Mapping[str, Any]) -> Rows:
        return dict(zip(fields, self._batch.get(list(fields.values()), self._rows), strict=True))


def points_of(now: Descents, evaluate: Evaluate, section: OptimizeSection) -> Points:
    """The points of descents: on the device of their batch if its program has the optimiser, else on the host."""
    if isinstance(evaluate, TrialsTogether) and section.rule in RULES and evaluate.batch.optimizer is not None:
        return DevicePoints(now, evaluate, section)
    return HostPoints(now, evaluate, section)


def optimizer_of(section: OptimizeSection | None, params: BaseModel, *, debug: bool = False) -> OptimizerSpec | None:
    """The optimiser with which a batch is opened for descents; None: their points are on the host.

    Args:
        section: the options, with ``params`` filled in.
        params: of one of the trials.
        debug: its kernels check what they compute: an optimiser may compute anything for trials that are over.
    """
    if section is None or section.rule not in RULES or debug or not section.params:
        return None
    options = options_of(section.rule) | dict(section.options)
    moved = tuple(_moved(section, params, name) for name in section.params)
    return OptimizerSpec(RULES[section.rule], memory_of(section.rule), tuple(options.values()), moved, section.clip is not None)


def _moved(section: OptimizeSection, params: BaseModel, name: str) -> Moved:
    low, high = section.bounds.get(name, (-np.inf, np.inf))
    limits, model = limits_of(type(params), [name]), type(params)
    if limits is None:
        return Moved(name, section.scale.get(name, 1.0), low, high)
    start = paths.plain_params(params)
    shape = np.shape(paths.get(start, name))

    def allows(number: float) -> bool:
        try:
            at_point(model, start, {name: np.full(shape, number)}, 0)
        except DescentError:
            return False
        return True

    compare, most = dict(limits.of[name].compare), np.finfo(np.float64).max
    low_ends = [compare.get("ge", -np.inf), np.nextafter(compare.get("gt", -np.inf), np.inf) if "gt" in compare else -np.inf]
    high_ends = [compare.get("le", np.inf), np.nextafter(compare.get("lt", np.inf), -np.inf) if "lt" in compare else np.inf]
    least = max(*low_ends, -np.inf if allows(-np.inf) else -most)
    greatest = min(*high_ends, np.inf if allows(np.inf) else most)
    return Moved(name, section.scale.get(name, 1.0), low, high, float(least), float(greatest), allows(np.nan))


def real(section: OptimizeSection, x: Mapping[str, np.ndarray]) -> Rows:
    """Parameters in their own units, within their bounds to the bit."""
    return projected({name: section.scale.get(name, 1.0) * value for name, value in x.items()}, section.bounds)


def _chosen(rows: np.ndarray, new: Mapping[str, np.ndarray], old: Mapping[str, np.ndarray]) -> Rows:
    """``new`` in these rows, ``old`` in the others; what has no old value is new in all of them."""
    return {
        name: np.where(rows.reshape(-1, *[1] * (value.ndim - 1)), value, old[name]) if name in old else value.copy()
        for name, value in new.items()
    }


__all__ = ["DevicePoints", "HostPoints", "Measured", "Points", "optimizer_of", "points_of", "real"]
