"""Which trials may run in one batch: those that differ in inputs alone, of a job that leaves its run to the base class."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import BaseModel

from ..core.job import Job


@dataclass(frozen=True)
class BuildFacts:
    """The facts that a build of a job has shown.

    Attributes:
        inputs: the declared inputs.
        why: why it cannot be batched; empty if it can.
    """

    inputs: tuple[str, ...] = ()
    why: str = ""


_texts: dict[tuple[object, ...], dict[tuple[str, ...], set[str]]] = {}
"""The keys of known groups, by the job with its gradients, and by its inputs."""
_known: dict[tuple[object, ...], BuildFacts] = {}
_MOST = 4096


def group_key(job: type[Job[Any]], params: BaseModel, *, wanted: Sequence[str] | None = None) -> str:
    """A text that is equal for two trials if and only if they may run in one batch: all parameters that are no inputs are equal, the
    inputs have equal shapes, whole numbers among them equal values, and they want the same gradients.

    Which parameters are inputs is found by building the job once for each ``Job.shape_key``, on the CPU; nothing runs.

    Args:
        job: whose trials ``why_not_batched`` has nothing against.
        params: of a trial.
        wanted: its gradients; None: all of ``Job.gradients``.
    """
    names = tuple(job.gradients if wanted is None else wanted)
    for inputs, texts in _texts.get((job, names), {}).items():
        text = _text(job, params, names, inputs)
        if text in texts:
            return text
    inputs = found_of(job, params, names).inputs
    text = _text(job, params, names, inputs)
    _texts.setdefault((job, names), {}).setdefault(inputs, set()).add(text)
    return text


def _text(job: type[Job[Any]], params: BaseModel, wanted: tuple[str, ...], inputs: tuple[str, ...]) -> str:
    """The key of a group whose job has these inputs. Equal keys mean equal shapes, and so the same inputs."""
    parts = [job.__module__, job.__qualname__, repr(wanted)]
    for name, value in params:
        shape = _shape_of_reals(value) if name in inputs else None
        parts.append(f"{name}={value!r}" if shape is None else f"{name}{shape}")
    if _own_shapes(job):
        parts.append(_shapes(job, params))
    return "; ".join(parts)


def why_not_batched(
    job: type[Job[Any]],
    params: BaseModel,
    *,
    wanted: Sequence[str] | None = None,
    memory_budget_bytes: int | None = None,
) -> str:
    """Why trials with these parameters cannot run in a batch, as one phrase for a table or a message; empty where they can.

    For instance: ``it overrides run()``, ``it has no simulate()``, ``it reads its seed``, ``a memory budget of 1,000,000 bytes: its time
    steps run in windows of 10 of 200``.

    Args:
        job: the class.
        params: of a trial.
        wanted: its gradients; None: all of ``Job.gradients``.
        memory_budget_bytes: of one trial, as in ``Job.opened``.
    """
    saves = not _of_class(job) and job.save is not Job.save
    return "it overrides save()" if saves else found_of(job, params, wanted, memory_budget_bytes).why


def found_of(job: type[Job[Any]], params: BaseModel, wanted: Sequence[str] | None, budget: int | None = None) -> BuildFacts:
    """Build a job with these parameters to find its facts. There is one build per ``Job.shape_key``.

    Its ``why`` is about runs alone: a job with a ``save`` can run in a batch, which leaves no files, as for its Jacobian.

    Raises:
        Exception: any error of ``build``.
    """
    why = _of_class(job)
    if why:
        return BuildFacts(why=why)
    names = tuple(job.gradients if wanted is None else wanted)
    key = job, _shapes(job, params), names, budget
    if key not in _known:
        if len(_known) >= _MOST:
            _known.clear()
        _known[key] = _built(job, params, names, budget)
    return _known[key]


def _of_class(job: type[Job[Any]]) -> str:
    """The reasons against batches that are known without a build."""
    if not job.needs_compiler:
        return "it uses no kernels"
    if job.run is not Job.run:
        return "it overrides run()"
    if not job.declares():
        return "it has no simulate()"
    if job.fill is not Job.fill:
        return "it overrides fill()"
    return "it has an __init__ of its own" if job.__init__ is not Job.__init__ else ""


def _built(job: type[Job[Any]], params: BaseModel, wanted: Sequence[str], budget: int | None) -> BuildFacts:
    from qdrun import QdrunRuntimeError

    made = job(params, wanted=wanted)
    with made.opened(threads=1, memory_budget_bytes=budget, machine_code=False):
        try:
            made.rehearsed()
        except QdrunRuntimeError as error:
            return BuildFacts(why=str(error).splitlines()[0])
        steps, window = made.time_steps(), made.window
        why = (
            f"a memory budget of {budget:,} bytes: its time steps run in windows of {window} of {steps}"
            if window < steps
            else ""
        )
        return BuildFacts(tuple(made.declared.inputs), why or made.reads_of_its_own())


def _shapes(job: type[Job[Any]], params: BaseModel) -> str:
    return json.dumps(job.shape_key(params), sort_keys=True, default=str)


def _own_shapes(job: type[Job[Any]]) -> bool:
    """Whether the job itself says what decides sizes."""
    return getattr(job.shape_key, "__func__", None) is not getattr(Job.shape_key, "__func__", None)


def _shape_of_reals(value: Any) -> tuple[int, ...] | None:
    """The shape of a real number or of lists of them; None for whole numbers."""
    if isinstance(value, float):
        return ()
    if isinstance(value, list) and value and all(type(item) is float for item in value):
        return (len(value),)
    array = np.asarray(value)
    return array.shape if array.dtype.kind == "f" else None


__all__ = ["BuildFacts", "found_of", "group_key", "why_not_batched"]
