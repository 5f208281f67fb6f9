"""Builds the record of an attempt, a finished run or an error, as plain data with arrays. Never imports ray.

The record of an attempt: ``status`` (done, failed, cancelled), ``loss``, ``gradients``, ``gradient_norm`` (the 2-norm over all of them),
``outputs``, ``seconds`` (of ``parts``), ``planned`` and ``used`` (bytes by kind), ``planned_bytes``, ``used_bytes``, ``device``,
``launched`` (``Job.launched``); of one that has no result: ``failure`` (its class), ``error``, and ``restart``, when the process cannot use
its device any more. The worker adds ``folder`` (path, number and bytes of the files that the job left), ``claim_bytes``, ``over_claim``,
``lane``, ``pid``, ``host``, ``started_t``, ``ended_t`` (seconds since the epoch) and ``worker_seconds``.
"""

from __future__ import annotations

import math
import os
import traceback
from collections.abc import Collection, Mapping
from types import TracebackType
from typing import Any

import numpy as np

from ...compiler.errors import QdrunError, QdrunRuntimeError
from ...jobs.base import Finished, Outcome, Stopped, Watch
from ...jobs.core.outcome import arrays_of, loss_of
from ..store.attempts import PREEMPTED, Failure
from ..user_lines import CALLERS, COMPILER

MAX_TEXT, CHILD_LINES = 20_000, 6
GRADIENTS = frozenset(("grad", "_gradient", "_backward"))
"""Functions of the compiler that launch gradients: of a tape, of time steps."""
IN_KERNEL = "kernel `"
"""Matches the name of the kernel in an error message."""
BELOW = (*COMPILER, os.path.join(os.path.dirname(os.__file__), ""))
"""The compiler, and Python's own modules that it uses."""
Record = dict[str, Any]
PREEMPTION = "its machine is going away: its worker got SIGTERM"
"""Why trials are asked to stop then; such a stop is no end of a trial, see ``failed_record``."""


def finished_record(finished: Finished) -> Record:
    """A finished run as plain data. A loss or a gradient that is not finite makes it a failed one that keeps its numbers.

    Raises:
        BadOutcome: a gradient or an output is neither a number nor an array of numbers.
    """
    told = {"warnings": list(finished.warnings)} if finished.warnings else {}
    record: Record = {
        "status": "done",
        **told,
        **numbers_of(finished.outcome),
        "seconds": sum(finished.seconds.values()),
        "parts": finished.seconds,
        "planned": finished.plan.by_kind(),
        "planned_bytes": finished.plan.bytes,
        "used": finished.used,
        "used_bytes": finished.peak_bytes,
        "device": finished.device,
        "launched": finished.launched or None,
    }
    return judged(record)


def judged(record: Record) -> Record:
    """A record with numbers: where some are not finite, that of a failed attempt."""
    loss, gradients = record["loss"], record["gradients"]
    what = [] if math.isfinite(loss) else [f"the loss is {loss}"]
    what += [f"the gradient of {name} is not finite" for name, value in gradients.items() if not np.isfinite(value).all()]
    if what:
        error = {"type": "NotFinite", "message": "; ".join(what), "traceback": ""}
        return record | {"status": "failed", "failure": Failure.not_finite.value, "error": error}
    return record


def numbers_of(outcome: Outcome) -> Record:
    """The loss, the gradients with their norm, and the outputs of an outcome.

    Raises:
        BadOutcome: a gradient or an output is neither a number nor an array of numbers.
    """
    gradients = arrays_of(outcome.gradients, "gradient")
    return {
        "loss": loss_of(outcome.loss),
        "gradients": gradients,
        "gradient_norm": norm_of(gradients.values()),
        "outputs": arrays_of(outcome.outputs, "output"),
    }


def norm_of(arrays: Collection[np.ndarray[Any, Any]]) -> float | None:
    """The 2-norm over all numbers of all arrays, in double precision; None where there are none. Infinite or NaN where one of them is."""
    if not arrays:
        return None
    flat = [np.asarray(array, dtype=np.float64).ravel() for array in arrays]
    norms = [math.sqrt(x.dot(x)) for x in flat]  # as ``np.linalg.norm``, which takes longer
    return math.hypot(*norms)


def gradient_norm(record: Mapping[str, Any]) -> float | None:
    """The 2-norm over all gradients of a record; None where it has none, or where they lie in a file and it was not written down."""
    if record.get("gradient_norm") is not None:
        return float(record["gradient_norm"])
    gradients = record.get("gradients")
    if not gradients:
        return None
    return None if any(isinstance(value, dict) for value in gradients.values()) else norm_of(gradients.values())


def failed_record(error: BaseException, place: str = "") -> Record:
    """An attempt that raised: its class of failure, and the error as text. ``place``: more of where, for its message."""
    if isinstance(error, Stopped) and str(error) == PREEMPTION:
        text = {"type": PREEMPTED, "message": PREEMPTION, "traceback": ""}
        return {"status": "failed", "failure": Failure.infrastructure.value, "error": text}
    if isinstance(error, Stopped):
        text = {"type": "Stopped", "message": str(error), "traceback": ""}
        found = {} if error.outcome is None else numbers_of(error.outcome)
        return {"status": "cancelled", "failure": Failure.cancelled.value, "error": text, **found}
    record: Record = {"status": "failed", "failure": failure_of(error).value, "error": error_record(error, place)}
    if getattr(error, "restart", False):
        record["restart"] = True
    return record


def said_by_children(printed: str) -> str:
    """Why the processes of a pool have died, for the message of its error: the last lines that they have printed."""
    lines = [line.rstrip() for line in printed.splitlines() if line.strip()]
    if not lines:
        return "\n  its processes have printed nothing: they were killed, perhaps for their memory (`dmesg` says so)"
    return "\n  the last that its processes have printed:" + "".join(f"\n    {line}" for line in lines[-CHILD_LINES:])


def failure_of(error: BaseException) -> Failure:
    """The failure class of an error that a job raised.

    A lost device is an infrastructure failure, unless an index out of bounds in a kernel may be the cause: that counts as a crash.
    """
    if getattr(error, "restart", False):
        return Failure.crash if getattr(error, "bounds", False) else Failure.infrastructure
    return Failure.out_of_memory if isinstance(error, MemoryError) else Failure.user_error


def place_of(error: BaseException, trial: str, watch: Watch | None) -> str:
    """The location of a failed check in a run: trial, run of an optimisation, time step, forward or reverse; empty for other errors.

    Args:
        error: the error of the job.
        trial: its id.
        watch: the watch of the job; None if there is none yet.
    """
    if not isinstance(error, QdrunRuntimeError) or IN_KERNEL not in str(error):
        return ""
    backwards = getattr(error, "mode", "") == "gradient" or _in_gradient(error.__traceback__)
    parts = [f"trial {trial}"]
    if watch is not None and watch.runs > 1:
        parts.append(f"run {watch.runs} of the job")
    step = getattr(error, "step", None)
    if step is None and watch is not None and watch.steps and not backwards:
        step = watch.steps - 1
    parts += [] if step is None else [f"time step {step}"]
    return f"in {', '.join(parts)}, {'reverse' if backwards else 'forward'}"


def _in_gradient(trace: TracebackType | None) -> bool:
    """Whether an error came out of the launch of a gradient."""
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename.startswith(COMPILER) and (code.co_name in GRADIENTS or "Gradient" in code.co_qualname):
            return True
        trace = trace.tb_next
    return False


def error_record(error: BaseException, place: str = "") -> dict[str, str]:
    """An exception as text, so that it crosses processes whatever it is made of. ``place``: see ``failed_record``."""
    trace = "".join(_shown(error).format())
    try:
        message = str(error)
    except Exception as broken:  # the user's own __str__
        message = f"(its message raised {type(broken).__name__})"
    if place:
        first, advice, rest = message.partition("\n  do: ")
        message = f"{first}\n  {place}{advice}{rest}"
    return {"type": type(error).__name__, "message": _clean(message[:MAX_TEXT]), "traceback": _clean(trace[-MAX_TEXT:])}


def _shown(error: BaseException) -> traceback.TracebackException:
    """The traceback of an exception without what calls the job, and of an error that the compiler found in the job without the compiler."""
    found = traceback.TracebackException(type(error), error, _of_the_job(error.__traceback__))
    if isinstance(error, QdrunError):
        own = [k for k, frame in enumerate(found.stack) if not frame.filename.startswith(BELOW)]
        if own:
            del found.stack[own[-1] + 1 :]
            found.__cause__ = _outside(found.__cause__)
            found.__context__ = _outside(found.__context__)
    return found


def _outside(found: traceback.TracebackException | None) -> traceback.TracebackException | None:
    """The exception behind another one, where it passed through more than the compiler."""
    inside = found is None or all(frame.filename.startswith(BELOW) for frame in found.stack)
    return None if inside else found


def _of_the_job(trace: TracebackType | None) -> TracebackType | None:
    """A traceback that starts at the job's frames. The whole traceback if it has none of them."""
    here = trace
    while here is not None and here.tb_frame.f_code.co_filename.startswith(CALLERS):
        here = here.tb_next
    return here or trace


def _clean(text: str) -> str:
    """Text that every file and terminal can take: lone surrogates escaped."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


__all__ = [
    "Record",
    "error_record",
    "failed_record",
    "failure_of",
    "finished_record",
    "gradient_norm",
    "judged",
    "norm_of",
    "numbers_of",
    "place_of",
    "said_by_children",
]
