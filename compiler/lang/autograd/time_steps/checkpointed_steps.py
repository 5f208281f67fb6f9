"""``qd.ad.checkpointed_steps``: time steps whose arrays hold a window of a few steps. The gradient runs the others again."""

from __future__ import annotations

import inspect
import math
import operator
from dataclasses import replace
from typing import Any

from ....errors import OutOfMemory, QdrunRuntimeError, QdrunTypeError
from ....options import bytes_of
from ....program.program import current_program
from ..tape import Tape
from .steps import Step, Steps
from .steps_plan import StepsPlan, extra_runs, fewest
from .steps_window import Window, bytes_of_slots


def checkpointed_steps(
    step: Step,
    n: int,
    state: Any = (),
    scratch: Any = (),
    *,
    temporaries: Any = (),
    in_place: Any = (),
    window: int | None = None,
    budget: int | str | None = None,
    levels: int | None = None,
) -> StepsPlan:
    """Run ``step(t, k)`` for t = 0 .. n - 1 on arrays that hold a window of time steps; a tape gets the gradient of all of them.

    Slot k of a state array is the state k steps after the window's start: the step reads slot k and writes slot k + 1. At the end, the
    final state is in slot min(n, window). The window's length is that of the first axes. When it is shorter than n, the gradient keeps the
    state at starts of windows and runs steps again. The gradient is the same to the bit as with a window of n steps, as far as the kernels
    add up in the same order (``cpu_max_num_threads=1``, or no atomics on reals).

    Args:
        step: a Python function that launches kernels. It is called more than once for one t and must do the same each time: it depends
            on t, k, the state and constant arrays, not on counters, lists that grow, the time or random numbers of Python.
        n: time steps.
        state: fields or ndarrays of window + 1 slots, which the steps hand on. Slot 0 holds the initial state.
        scratch: fields or ndarrays of window slots: step k writes slot k, and its gradient reads it again. Zero when a step begins.
        temporaries: fields, ndarrays or sparse matrices without slots, for what a step writes and reads itself: the right-hand side and the
            solution of a linear system, the state of a fixed point. Zero when a step begins. The gradient keeps a copy for each step of the
            window, and leaves nothing definite in them.
        in_place: fields or ndarrays without slots that each step updates, ``x[i] += dt * v[i]``. A snapshot is a copy of them; of a window
            whose gradient runs, the tape keeps the elements that a step overwrites and a gradient reads.
        window: steps in a window, where no ``state`` tells; None: the root of ``n``.
        budget: bytes for snapshots, a number or a text such as "2MiB"; None: as many as there are windows, and with
            ``qd.init(memory_budget=..)`` at most half of what it leaves.
        levels: run no step again more often than ``levels - 1`` times; without a budget, with as few snapshots as that allows.

    Returns:
        The plan that was followed. ``slot_bytes`` and ``fixed_bytes`` count the arrays of the window with their gradients;
        ``made_bytes``, after the run, what the steps of a window allocated and a tape kept.

    Raises:
        QdrunTypeError: the step does not take two arguments.
        QdrunRuntimeError: shapes that do not fit, a number of steps that is none, steps within steps; at the end of the tape, a step that
            launches or assigns something else when it is run again, by its number.
        OutOfMemory: the budget is too small for the snapshots; names the smallest.
    """
    program = current_program()
    count = _steps(n)
    program.materialize()
    _check_step(step)
    if window is None and isinstance(state, (list, tuple)) and not state:
        window = math.isqrt(max(count - 1, 0)) + 1
    arrays = Window.of(program, state, scratch, temporaries, in_place, window)
    tape = program.recorders.tape
    assert tape is None or isinstance(tape, Tape)
    if tape is not None and tape.in_steps:
        raise QdrunRuntimeError(
            "checkpointed_steps inside of a step\n  do: put both loops into one step, or one after the other"
        )
    rehearsal = program.recorders.rehearsal
    recorded = rehearsal.differentiates if rehearsal is not None else tape is not None and not tape.inside
    plan = _plan(arrays, count, budget, levels, program.heap.room() if recorded else None)
    if count == 0:
        return plan
    steps = Steps(step, count, arrays, plan.snapshots)
    if rehearsal is not None:
        steps.rehearse(rehearsal)
    elif tape is not None and recorded:
        tape.composite(steps)
    else:
        steps.forward()
    return replace(plan, made_bytes=steps.made_bytes)


def steps_bytes(state: Any, scratch: Any = (), temporaries: Any = ()) -> tuple[int, int]:
    """The bytes that ``plan_steps`` needs: one slot of the state without gradients, and one slot of all arrays with gradients and of copies
    of the temporaries.

    Raises:
        QdrunRuntimeError: one of them is neither a field nor an ndarray.
    """
    return bytes_of_slots(state, scratch, temporaries)


def _check_step(step: Any) -> None:
    """Refuse a step that cannot be called with two arguments."""
    try:
        inspect.signature(step).bind(0, 0)
    except TypeError as error:
        name = getattr(step, "__qualname__", repr(step)).rsplit("<locals>.", maxsplit=1)[-1]
        raise QdrunTypeError(
            f"checkpointed_steps: the step `{name}` cannot be called with two arguments, the number of the step and its slot: {error}",
            hint="write def step(t, k): .., where k is the slot of the window that it reads; steps in_place may leave it unused",
        ) from None
    except ValueError:  # a builtin without a signature
        return


def _steps(n: Any) -> int:
    try:
        count = operator.index(n)
    except TypeError:
        raise QdrunRuntimeError(f"checkpointed_steps: n={n!r} is not a whole number") from None
    if count < 0:
        raise QdrunRuntimeError(f"checkpointed_steps: n={n} is negative")
    return count


def _plan(window: Window, n: int, budget: int | str | None, levels: int | None, room: int | None) -> StepsPlan:
    """The number of snapshots to keep; ``room``: bytes that the program's memory budget leaves.

    Raises:
        OutOfMemory: not even the minimum fits.
    """
    made = StepsPlan(n, window.length, 0, window.state_bytes, window.slot_bytes, window.fixed_bytes)
    windows = made.windows
    if windows == 1:
        return made
    if levels is not None and levels < 2:
        raise QdrunRuntimeError(
            f"checkpointed_steps: levels={levels} runs no step again, and {n} steps are more than the window of {window.length}\n"
            f"  do: levels=2 or more, or arrays of {n + 1} slots"
        )
    least = 1 if levels is None else fewest(windows, levels - 1)
    if budget is not None:
        limit = bytes_of("checkpointed_steps: budget", budget)
    elif room is not None:
        limit = room // 2
    else:
        limit = None
    most = windows - 1
    if limit is not None and window.state_bytes:
        most = min(most, limit // window.state_bytes - 1)
    if most < least:
        need = (least + 1) * window.state_bytes
        what = (
            f"checkpointed_steps: {n} steps in windows of {window.length} keep at least {least} snapshots and the final state"
        )
        what += f", {need:,} bytes"
        if budget is None and room is not None:  # half of what memory_budget leaves
            raise window.program.heap.over_budget(OutOfMemory(f"{what}, in half of what memory_budget leaves"), more=2 * need)
        raise OutOfMemory(f"{what}, and the budget is {limit:,}\n  do: budget={need}, or longer windows", need)
    snapshots = least if levels is not None and limit is None else most
    assert extra_runs(windows, snapshots) < (levels or windows + 1)
    return StepsPlan(n, window.length, snapshots, window.state_bytes, window.slot_bytes, window.fixed_bytes)
