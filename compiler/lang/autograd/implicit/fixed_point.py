"""``qd.ad.fixed_point``: iterate a step until it changes nothing. The gradient is that of the result, whatever led there.

The fixed point is ``x = F(x, p)``. With ``g`` as the gradient of ``x``, that of ``p`` is ``(dF/dp)^T w`` where ``w = g + (dF/dx)^T w``
(the implicit function theorem; Christianson, Reverse accumulation and attractive fixed points, 1994). ``w`` is the sum of ``v_0 = g``
and ``v_k+1 = (dF/dx)^T v_k``. Each pass through the gradient of one step takes ``v_k``, adds ``(dF/dp)^T v_k`` to the gradient of ``p``
and gives ``v_k+1``, so that nothing but the gradients themselves is needed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ....errors import DifferentiationError, QdrunRuntimeError
from ....ir.types import f32, f64, i32
from ....program.memory.memory_regions import tensor_regions
from ....program.plans.tape_budget import compile_all
from ....program.program import Program, current_program
from ....program.rehearsal import Rehearsal
from ....runtime.base import next_serial
from ...data.field import Field
from ...data.ndarray import Ndarray
from ...launches.scratch import ArrayForm, borrowed
from ...no_gradient import ONLY_REVERSE, refuse_in_a_trial, refuse_in_forward_mode
from ..gradient_arrays import has_grad
from ..overwrites import HostWrite, Overwrites, Timed, add_use, all_uses
from ..tape import Tape
from ..time_steps.repeats import REMEDY, Kinds, Trace
from ..time_steps.steps import recorded_by
from ..time_steps.steps_check import Composite
from ..time_steps.steps_window import ArrayCopies, arrays_of
from ..time_steps.window_tape import WindowTape
from .transfers import advance, collect, drop

NAME = "qd.ad.fixed_point"


class FixedPoint(Composite):
    """An iteration that converged.

    Attributes:
        steps: steps until the state was found; in a batched program of each trial.
        adjoint_steps: passes through the gradient of a step; None until the tape has run it.
        kept_bytes: what the gradient keeps: one copy of the state.
    """

    whole = True

    def __init__(
        self, step: Callable[[], Any], pairs: list[tuple[Any, Any]], tolerances: tuple[float, float], max_steps: int
    ) -> None:
        self._step, self._pairs, self._max_steps = step, pairs, max_steps
        self._rtol, self._atol = tolerances
        self._program: Program = current_program()
        self.steps: Any = 0
        self.adjoint_steps: int | None = None
        self.kept_bytes = 0
        self._tape: Tape | None = None
        self._kept: ArrayCopies | None = None
        self._kinds = Kinds(self._program, next_serial())
        self._trace: Trace | None = None  # what the recorded step launched and assigned
        self._timed: list[Timed] = []
        self._writes: list[HostWrite] = []

    def __repr__(self) -> str:
        return f"{NAME}({getattr(self._step, '__qualname__', self._step)})"

    # ---- forward
    def __call__(self) -> None:
        """Iterate, and run one more step at the result."""
        self._iterate()
        self._step()

    def _iterate(self) -> None:
        with self._scalars() as (sums, done):
            self._until_still(sums, done)

    def _until_still(self, sums: Ndarray, done: Ndarray) -> None:
        trials = sums.to_numpy().size // sums.shape[0]
        steps, found = np.zeros(trials, int), np.zeros((trials, 1, 2))
        for number in range(1, self._max_steps + 1):
            self._step()
            sums.fill(0)
            for k, (old, new) in enumerate(self._pairs):
                advance(old, new, sums, done, k, not old.element_shape)
            found = np.sqrt(sums.to_numpy().reshape(trials, -1, 2).astype(float))
            finished = steps > 0
            bad = ~np.isfinite(found).all((1, 2)) & ~finished
            if bad.any():
                self._fail(bad, f"the state is not finite after step {number}")
            small = (found[..., 0] <= self._rtol * found[..., 1] + self._atol).all(1)
            steps[small & ~finished] = number
            if steps.all():
                break
            done.from_numpy((steps > 0).astype(np.int32).reshape(done.to_numpy().shape))
        else:
            worst = found[..., 0] / np.maximum(found[..., 1], np.finfo(float).tiny)
            self._fail(
                steps == 0,
                f"it did not converge in {self._max_steps} steps: the last one changed the state by {worst.max():.3g} of its norm",
            )
        self.steps = steps if self._program.batch.layout.batched else int(steps[0])

    @contextmanager
    def _scalars(self) -> Iterator[tuple[Ndarray, Ndarray]]:
        """Sums of squares, two for each array of the state, and whether a trial is done: 0 at first."""
        dtype = f64 if any(old.dtype is f64 for old, _ in self._pairs) else f32
        with (
            borrowed(NAME, ArrayForm(dtype, (2 * len(self._pairs),)), 1) as (sums,),
            borrowed(NAME, ArrayForm(i32, (1,)), 1) as (done,),
        ):
            if self._program.recorders.rehearsal is None:
                with recorded_by(self._program, None):
                    done.fill(0)
            yield sums, done

    def _fail(self, which: np.ndarray, what: str) -> None:
        error = QdrunRuntimeError(
            f"{self!r}: {what}\n  do: max_steps=, a larger rtol= or atol=, or a step that moves less (damping)"
        )
        self._program.batch.refuse(which, error)

    def rehearse(self, rehearsal: Rehearsal) -> None:
        """Make all launches once, while nothing runs."""
        with rehearsal.within():
            self._step()
        with self._scalars() as (sums, done), rehearsal.unseen():
            for k, (old, new) in enumerate(self._pairs):
                advance(old, new, sums, done, k, not old.element_shape)
                if rehearsal.backwards and has_grad(old) and has_grad(new):
                    collect(old, new, sums, k, not old.element_shape)
                    drop(new, done)
        if rehearsal.differentiates:
            self.kept_bytes = sum(old._form.nbytes for old, _ in self._pairs)
            rehearsal.keeps(self.kept_bytes, sum(t._form.nbytes for pair in self._pairs for t in pair))

    # ---- what the tape asks
    def arrays(self) -> list[Any]:
        """The state, and the new state."""
        return [tensor for pair in self._pairs for tensor in pair]

    def record(self, tape: Tape) -> None:
        """Iterate unseen, and note what one step reads and writes at the result."""
        self._tape = tape
        with recorded_by(self._program, None):
            self._iterate()
            self._kept = ArrayCopies(self._program, [old for old, _ in self._pairs])
            self._kept.store()
        self.kept_bytes = self._kept.nbytes
        inner = self._recording()
        self._timed, self._writes = inner.log.timed(), inner.log.writes
        Overwrites.of(self._timed, self._writes).check()

    def _recording(self) -> WindowTape:
        assert self._tape is not None
        inner = WindowTape(self._tape, self._kinds)
        inner.repeats = True
        with recorded_by(self._program, inner):
            self._step()
        inner.trace.step_done()
        self._trace = self._trace or inner.trace
        _, text = inner.trace.difference(self._trace)
        if text:
            raise QdrunRuntimeError(f"{self!r}: the step is not the same when it is run again: {text}\n  {REMEDY}")
        return inner

    def join(self, found: Overwrites, when: int) -> None:
        """Enter the accesses: the gradient runs a step again, so that it needs all that this reads from elsewhere."""
        timed = [Timed(when, t.launch, t.hidden, t.cut) for t in self._timed]
        writes = [HostWrite(when, w.tensor, w.index, w.source, w.hidden, w.parts) for w in self._writes]
        writes += [HostWrite(when, tensor) for pair in self._pairs for tensor in pair]
        mine = Overwrites.of(timed, writes)
        own = {spot for spot, _ in all_uses(mine.writes)}
        for uses, target in ((mine.reads, found.reads), (mine.loads, found.reads), (mine.writes, found.writes)):
            for spot, use in all_uses(uses):
                if uses is mine.writes or spot not in own:
                    add_use(target, spot, use)
        found.variants += mine.variants

    def reserve(self, program: Program) -> int:
        """See ``Composite.reserve``: the copies that hold, while its gradient runs, what is there now."""

        def launches() -> None:
            with self._scalars() as (sums, done):
                for k, (old, new) in enumerate(self._pairs):
                    collect(old, new, sums, k, not old.element_shape)
                    drop(new, done)

        compile_all(program, launches)
        return sum(tensor._form.nbytes for pair in self._pairs for tensor in pair)

    def sample(self) -> list[Any]:
        """The launches of one step."""
        return list(self._timed)

    def host_writes(self) -> list[HostWrite]:
        """What Python writes in a step, and the copy of the new state that each step ends with."""
        return [*self._writes, *(HostWrite(0, old, source=new) for old, new in self._pairs)]

    def release(self) -> None:
        """Give the copy back."""
        if self._kept is not None:
            self._kept.free()
        self._kept = None

    # ---- backward
    def grad(self) -> None:
        """Add the gradient of the fixed point to the gradients of what the step reads, and clear that of the state.

        Raises:
            QdrunRuntimeError: the passes do not converge, or it ran already.
            DifferentiationError: the step hands more to the next one than its state.
        """
        if self._kept is None:
            raise QdrunRuntimeError(f"the gradient of {self!r} was run already; do: record it in another tape")
        after = ArrayCopies(self._program, [tensor for pair in self._pairs for tensor in pair])
        after.store()
        try:
            self._kept.restore()
            self._solve(self._recording())
        finally:
            after.restore()
            after.free()
            self.release()

    def _solve(self, step: WindowTape) -> None:
        with self._scalars() as (sums, done):
            self._collect(step, sums, done)
        for _, new in self._pairs:
            new.grad.fill(0)
        self._check_carried()

    def _collect(self, step: WindowTape, sums: Ndarray, done: Ndarray) -> None:
        first, steps = None, 0
        while True:
            sums.fill(0)
            for k, (old, new) in enumerate(self._pairs):
                collect(old, new, sums, k, not old.element_shape)
            found = np.sqrt(sums.to_numpy().reshape(-1, len(self._pairs), 2)[..., 0].astype(float)).max(1)
            first = found if first is None else first
            open_ = ~(found <= self._rtol * first)
            if not np.isfinite(found).all() or steps == self._max_steps:
                bad = open_ if steps == self._max_steps else ~np.isfinite(found)
                self._fail(bad & open_, f"its gradient did not converge in {steps} passes through the gradient of a step")
            if not open_.any() or not found.any():
                break
            done.from_numpy((~open_).astype(np.int32).reshape(done.to_numpy().shape))
            for _, new in self._pairs:
                drop(new, done)
            step.reverse()
            steps += 1
        self.adjoint_steps = steps

    def _check_carried(self) -> None:
        """Refuse a step that reads, from the step before, an array that is no part of the state: it has a gradient left."""
        state = {id(tensor) for pair in self._pairs for tensor in pair}
        written = {spot for spot, _ in all_uses(Overwrites.of(self._timed, self._writes).writes)}
        for tensor in self._program.tensors():
            if id(tensor) in state or not has_grad(tensor) or not any(s in written for s, _ in tensor_regions(tensor)):
                continue
            if tensor.grad._content.any():
                raise DifferentiationError(
                    f"{self!r}: the step adds to `{tensor.name}`, or reads what the step before left there, and it is no part of the state",
                    None,
                    f"name `{tensor.name}` in the state, overwrite it in each step, or compute it after {NAME}",
                )


def fixed_point(
    step: Callable[[], Any],
    state: Any,
    new: Any,
    *,
    rtol: float | None = None,
    atol: float = 0.0,
    max_steps: int = 10_000,
) -> FixedPoint:
    """Call ``step()``, which computes ``new`` from ``state``, and copy ``new`` to ``state``, until the state no longer changes.

    It has converged when ``|new - state| <= rtol * |new| + atol`` (Euclidean norms) for each array of the state. Afterwards ``state``
    is the fixed point, and ``new`` one more step from there. A tape gets the gradient of the fixed point by the implicit function
    theorem: it keeps one copy of the state and nothing of the iteration. What the state was at first has no influence on it. In a
    batched program each trial stops by itself.

    Args:
        step: launches kernels, the same each time. It reads ``state`` and writes ``new``; what else it writes, it overwrites each time.
        state: a field or an ndarray, or a list of them, of reals and with gradients. It holds the first guess.
        new: as many of the same shapes and types.
        rtol: relative tolerance, of the state and of its gradient; None: 1e-12, or 1e-6 where all of the state is f32 or f16.
        atol: absolute tolerance of the state.
        max_steps: of the iteration, and of passes of its gradient.

    Returns:
        The numbers of steps, and the bytes that are kept.

    Raises:
        QdrunRuntimeError: it does not converge (in a batch ``TrialsFailed``); the arrays do not fit each other; inside of ``FwdMode``,
            ``qd.capture``, of a step of another fixed point that a tape records, or of one trial.
        DifferentiationError: at the end of the tape, a step reads what the step before left in an array that is no part of the state.
    """
    program = current_program()
    refuse_in_forward_mode(program, NAME, ONLY_REVERSE)
    refuse_in_a_trial(program, f"{NAME} runs the launches of all trials")
    if program.recorders.recording is not None:
        raise QdrunRuntimeError(f"{NAME} inside of qd.capture: the number of launches is not known before; do: call it outside")
    program.materialize()
    pairs = _pairs(program, state, new)
    if rtol is None:
        rtol = 1e-12 if all(old.dtype is f64 for old, _ in pairs) else 1e-6
    if not (rtol >= 0 and atol >= 0):
        raise QdrunRuntimeError(f"{NAME}: rtol={rtol}, atol={atol}: tolerances are not negative")
    made = FixedPoint(step, pairs, (float(rtol), float(atol)), _count(max_steps))
    if program.recorders.rehearsal is not None:
        made.rehearse(program.recorders.rehearsal)
        return made
    tape = program.recorders.tape
    assert tape is None or isinstance(tape, Tape)
    if tape is None or tape.inside:
        made()
        return made
    if tape.repeats:
        raise QdrunRuntimeError(
            f"{NAME} inside of a step of {NAME} has no gradient; do: one state of both, or one tape without"
        )
    for tensor in (tensor for pair in pairs for tensor in pair):
        if not has_grad(tensor):
            raise QdrunRuntimeError(f"{NAME}: `{tensor.name}` has no gradient; do: make it with needs_grad=True")
    tape.composite(made)
    return made


def _count(max_steps: Any) -> int:
    try:
        count = operator.index(max_steps)
    except TypeError:
        count = 0
    if count < 1:
        raise QdrunRuntimeError(f"{NAME}: max_steps={max_steps!r} is not a positive whole number")
    return count


def _pairs(program: Program, state: Any, new: Any) -> list[tuple[Any, Any]]:
    """The arrays of the state, each with the one that the step writes."""
    olds, news = arrays_of("state", state, NAME), arrays_of("new", new, NAME)
    if len(olds) != len(news) or not olds:
        raise QdrunRuntimeError(
            f"{NAME}: state has {len(olds)} arrays and new has {len(news)}; do: one new array for each of the state"
        )
    if len({id(t) for t in (*olds, *news)}) < 2 * len(olds):
        raise QdrunRuntimeError(
            f"{NAME}: an array is given twice; do: a step reads `state` and writes `new`, which are different arrays"
        )
    for old, new_one in zip(olds, news, strict=True):
        forms = [(t.shape, t.element_shape, t.dtype) for t in (old, new_one)]
        if forms[0] != forms[1]:
            raise QdrunRuntimeError(
                f"{NAME}: `{old.name}` is {_described(old)} and `{new_one.name}` is {_described(new_one)}; do: give both the same form"
            )
        for tensor in (old, new_one):
            owner = tensor._root.program if isinstance(tensor, Field) else tensor._program
            if owner is not program:
                raise QdrunRuntimeError(f"{NAME}: `{tensor.name}` belongs to another program; do: make it after qd.init()")
            if not tensor.dtype.is_real:
                raise QdrunRuntimeError(f"{NAME}: `{tensor.name}` holds {tensor.dtype}; do: a state of reals")
            if isinstance(tensor, Field) and any(tensor.offset):
                raise QdrunRuntimeError(f"{NAME}: the indices of `{tensor.name}` do not begin at 0; do: leave out offset=")
    return list(zip(olds, news, strict=True))


def _described(tensor: Any) -> str:
    element = "x".join(map(str, tensor.element_shape))
    return f"{tensor.dtype}{f'[{element}]' if element else ''} of shape {tensor.shape}"
