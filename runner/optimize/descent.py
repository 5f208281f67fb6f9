"""Gradient descent in one trial: the loop around a session of the job. Runs on a worker; the program is kept where the job can.

The row of such a trial has, beside the job's own outputs at the point that is kept: ``out.opt.<parameter>``, the values found;
``out.opt.history``, the loss before the first step and after each; ``out.opt.steps``; ``out.opt.kept``, the step of the point that is
shown; ``out.opt.gradient_norm`` there; ``out.opt.stopped``, why it was over, as a number of ``STOPPED``; ``out.opt.builds``, how often
the job was built.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel, ValidationError

from ...compiler.errors import QdrunError
from ...jobs.base import Outcome, Session, Stopped
from ...jobs.core import paths
from ...jobs.core.outcome import arrays_of
from ..config.optimize_section import OptimizeSection
from .descent_state import SAVE_S, Descent, Kept, key_of, packed, unpacked
from .update_rules import Arrays, clipped, free_part, global_norm, projected, rate_at, update

STOPPED = ("steps", "gradient_norm", "loss", "patience", "not_finite", "interrupted")
"""Why a descent was over, by the number in ``out.opt.stopped``. ``interrupted``: by a time-out or a cancel; its row is not ``done``."""


REPORTED = ("history", "steps", "kept", "gradient_norm", "stopped", "builds")
"""Outputs below ``opt.`` that are no parameters."""


class DescentError(QdrunError, ValueError):
    """A step left the range that the job allows."""


def best_at(label: str, outputs: Mapping[str, Any]) -> str:
    """The parameters of a trial's loss as text: those that its descent has found, or ``label`` if it was not optimised.

    Args:
        label: of the trial: the parameters that it began with.
        outputs: of its row, as the journal or the table has them.
    """
    if "opt.stopped" not in outputs:
        return label
    found = {name.removeprefix("opt."): value for name, value in outputs.items() if name.startswith("opt.")}
    named = {name: value for name, value in found.items() if name not in REPORTED}
    return ", ".join(f"{name}={_value_text(value)}" for name, value in named.items())


def _value_text(value: Any) -> str:
    if isinstance(value, Mapping | tuple):  # an array that is in a file of its own, by its shape
        return f"[{'x'.join(map(str, value['shape'] if isinstance(value, Mapping) else value))}]"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value_text, value[:3])) + (", .." if len(value) > 3 else "") + "]"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def body_of(optimize: Mapping[str, Any] | None, kept: Kept | None = None) -> Callable[[Session], Outcome]:
    """The function that a worker runs on an open job: ``execute(job, .., body=body_of(spec["optimize"]))``. None: run it once.

    Args:
        optimize: ``OptimizeSection`` as plain data, with ``params`` filled in, see ``section_data``.
        kept: where a descent is kept while it runs, so that another attempt goes on from there.
    """
    if optimize is None:
        return Session.run
    section = OptimizeSection.model_validate(optimize)
    return lambda session: descend(session, section, kept)


def section_data(section: OptimizeSection | None, gradients: Sequence[str], values: Mapping[str, Any]) -> dict[str, Any] | None:
    """The section as plain data for ``body_of``, with the parameters that it means when it names none."""
    if section is None:
        return None
    data = section.model_dump(mode="json", exclude_unset=True)
    data["bounds"] = {name: [None if math.isinf(end) else end for end in ends] for name, ends in section.bounds.items()}
    return {"rule": section.rule, "steps": section.steps} | data | {"params": optimized(section, gradients, values)}


def optimized(section: OptimizeSection, gradients: Sequence[str], values: Mapping[str, Any]) -> list[str]:
    """The parameters that are optimised: those that the section names, else all gradients that are parameters."""
    return list(section.params) if section.params is not None else [name for name in gradients if paths.has(values, name)]


def descend(session: Session, section: OptimizeSection, kept: Kept | None = None) -> Outcome:
    """Minimise the loss, starting at the job's parameters. Returns the outcome of the kept point, with the outputs that the module lists.

    Args:
        session: of the job.
        section: the options.
        kept: the storage of the descent for further attempts; None: none.

    Raises:
        DescentError: a step leaves what the job's parameters allow.
        Stopped: a stop was requested; its ``outcome`` is that of the best point so far.
    """
    start = paths.plain_params(session.job.params)
    names = list(section.params or ())
    scale = {name: section.scale.get(name, 1.0) for name in names}
    bounds = {name: (ends[0] / scale[name], ends[1] / scale[name]) for name, ends in section.bounds.items()}
    key = key_of(section.model_dump(mode="json"), start, session.job.seed)
    now = unpacked(kept.load(), key) if kept is not None else None
    if now is None:
        now = Descent({name: np.asarray(paths.get(start, name), dtype=np.float64) / scale[name] for name in names})
    stopped, saved = STOPPED[0], time.monotonic()
    while True:
        session.job.watch.descent = (now.step, section.steps)
        outcome = _evaluated(session, section, now, start, kept, key)
        given = arrays_of({name: outcome.gradients[name] for name in names}, "gradient")
        g = {name: scale[name] * value.astype(np.float64) for name, value in given.items()}
        norm = global_norm(free_part(now.x, g, bounds))
        session.job.watch.log({"loss": float(outcome.loss), "grad_norm": norm})
        _look(now, section, outcome, norm)
        stopped = _over(now, section, outcome, norm)
        if stopped or now.step == section.steps:
            break
        g = g if section.clip is None else clipped(g, section.clip)
        rate = rate_at(now.step, section.learning_rate, section.steps)
        x, now.state = update(section.rule, section.options, now.state, now.x, g, rate)
        now.x, now.step = projected(x, bounds), now.step + 1
        if kept is not None and time.monotonic() - saved > SAVE_S:
            kept.save(packed(now, key))
            saved = time.monotonic()
    if kept is not None:
        kept.clear()
    if session.job.saves() and now.kept != now.step:  # fields are to hold the results of the point that is kept
        session.run(at_point(type(session.job.params), start, _real(section, now.point), now.kept))
    return _result(now, section, stopped or STOPPED[0], session.builds)


def _evaluated(
    session: Session, section: OptimizeSection, now: Descent, start: dict[str, Any], kept: Kept | None, key: str
) -> Outcome:
    """The outcome at the point of the next step. A descent that is stopped there is kept, and the error has the best point so far."""
    try:
        return session.run(at_point(type(session.job.params), start, _real(section, now.x), now.step) if now.step else None)
    except Stopped as error:
        if now.outcome is not None:
            error.outcome = _result(now, section, "interrupted", session.builds)
            if kept is not None:
                kept.save(packed(now, key))
        raise


def _real(section: OptimizeSection, x: Arrays) -> dict[str, np.ndarray]:
    """Parameters in their own units, within their bounds to the bit."""
    return projected({name: section.scale.get(name, 1.0) * value for name, value in x.items()}, section.bounds)


def at_point(model: type[BaseModel], start: dict[str, Any], x: Arrays, step: int) -> BaseModel:
    """The parameters of a step.

    Args:
        model: of the parameters.
        start: those that the descent began with.
        x: those that it has found, in their own units.
        step: its number.

    Raises:
        DescentError: the model refuses them.
    """
    values = copy.deepcopy(start)
    for name, value in x.items():
        paths.put(values, name, value.tolist())
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise DescentError(
            f"step {step} sets {where} to {first['input']}, which the job refuses: {first['msg'].lower()}\n"
            f"  do: give optimize.bounds for {where}, or a smaller optimize.learning_rate"
        ) from error


def _look(seen: Descent, section: OptimizeSection, outcome: Outcome, norm: float) -> None:
    """Note a point. One that is not finite is kept as it is, so that its row says so."""
    loss = float(outcome.loss)
    seen.history.append(loss)
    finite = math.isfinite(loss) and math.isfinite(norm)
    if not finite or section.keep == "last" or loss < seen.best or seen.outcome is None:
        seen.kept, seen.point, seen.outcome, seen.norm = seen.step, seen.x, outcome, norm
    seen.best = min(seen.best, loss)
    seen.since += 1
    if loss < seen.mark - section.stop.progress:
        seen.mark, seen.since = loss, 0


def _over(seen: Descent, section: OptimizeSection, outcome: Outcome, norm: float) -> str:
    """Why the descent is over at this point; empty when it is not."""
    stop, loss = section.stop, float(outcome.loss)
    if not math.isfinite(loss) or not math.isfinite(norm):
        return "not_finite"
    if stop.gradient_norm is not None and norm <= stop.gradient_norm:
        return "gradient_norm"
    if stop.loss is not None and loss <= stop.loss:
        return "loss"
    return "patience" if stop.patience is not None and seen.since >= stop.patience else ""


def _result(seen: Descent, section: OptimizeSection, stopped: str, builds: int) -> Outcome:
    assert seen.outcome is not None
    numbers = (float(seen.kept), seen.norm, float(STOPPED.index(stopped)), float(builds))
    return result_of(seen.outcome, _real(section, seen.point), np.array(seen.history), *numbers)


def result_of(
    outcome: Outcome, point: Arrays, history: np.ndarray, kept: float, norm: float, stopped: float, builds: float
) -> Outcome:
    """The outcome of a descent: that of the point which is kept, with what the module lists.

    Args:
        outcome: at that point.
        point: the parameters there, in their own units.
        history: the loss at each step.
        kept: the step of the point.
        norm: of the gradient there.
        stopped: a number of ``STOPPED``.
        builds: how often the job was built.
    """
    found: dict[str, Any] = {f"opt.{name}": value for name, value in point.items()}
    found |= {"opt.history": history, "opt.steps": float(len(history) - 1), "opt.kept": kept}
    found |= {"opt.gradient_norm": norm, "opt.stopped": stopped, "opt.builds": builds}
    return Outcome(outcome.loss, outcome.gradients, {**outcome.outputs, **found})


__all__ = ["STOPPED", "DescentError", "at_point", "body_of", "descend", "optimized", "result_of", "section_data"]
