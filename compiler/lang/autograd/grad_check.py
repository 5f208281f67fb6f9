"""``Tape(grad_check=[..])``: the gradients of a tape against central differences."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import GradientCheckError, QdrunRuntimeError
from ...ir.nodes import Op
from ...ir.types import f64
from ...ir.walk import walk
from ...runtime.mirror import copy, store
from ..data.field import Field
from ..data.ndarray import Ndarray
from ..data.tensor import unwrap
from .gradient_arrays import has_grad
from .overwrites import HostWrite, Launch
from .saved_memory import SavedMemory

if TYPE_CHECKING:
    from ...program.call import Call
    from ...program.program import Program
    from ...program.variant import Variant

FEW = 32
"""Fields of at most so many numbers are checked number by number; of larger ones, so many numbers and ``DIRECTIONS`` random directions."""

DIRECTIONS = 4


@dataclass(frozen=True)
class Tolerance:
    """``|difference - gradient| <= relative * (sum of |gradient * direction|) + absolute * |loss|``."""

    relative: float
    absolute: float
    steps: tuple[float, ...]  # of the differences: one of them must agree


DOUBLE = Tolerance(1e-5, 1e-9, tuple(2.0**-k for k in range(3, 30, 2)))
# Smaller steps than these get lost in the last digits of single precision, and any number comes out.
SINGLE = Tolerance(1e-2, 1e-4, tuple(2.0**-k for k in range(3, 14, 2)))


@dataclass
class _Change:
    """An assignment from Python, with what it wrote once that is known."""

    write: HostWrite
    values: np.ndarray | None = None


class GradCheck:
    """Repeats the launches of a tape with the checked fields moved a little, and compares.

    Raises:
        QdrunRuntimeError: no loss of type f64, or something to check that is no field or ndarray with a gradient.
    """

    def __init__(self, loss: Any, tensors: Any) -> None:
        if not isinstance(tensors, (list, tuple)) or not tensors:
            raise QdrunRuntimeError("grad_check is a list of the fields whose gradients are compared")
        if not isinstance(loss, (Field, Ndarray)) or loss.dtype is not f64:
            raise QdrunRuntimeError("grad_check needs a loss of type f64: with fewer digits a difference says little")
        tensors = [unwrap(t) for t in tensors]
        for tensor in tensors:
            if not isinstance(tensor, (Field, Ndarray)) or not has_grad(tensor):
                name = getattr(tensor, "name", type(tensor).__name__)
                raise QdrunRuntimeError(f"grad_check: `{name}` has no gradient; do: make it with needs_grad=True")
        self.loss, self.tensors = loss, [t for t in tensors if t is not loss]
        self._changes: list[_Change] = []
        self._pending: list[_Change] = []
        self._outside: dict[int, tuple[Any, np.ndarray]] = {}
        self._program: Program | None = None

    # ---- while the tape records
    def start(self, program: Program) -> None:
        """The tape was entered: remember where everything starts."""
        self._program = program
        self._start = SavedMemory.of(program, [])
        self._launches = program.seeds.drawn

    def wrote(self, write: HostWrite) -> None:
        """Python is about to write."""
        if any(write.tensor is t for t in self.tensors):
            name = getattr(write.tensor, "name", "ndarray")
            raise QdrunRuntimeError(
                f"grad_check moves `{name}`, and Python writes to it inside the tape: the move would be overwritten\n"
                "  do: write to it before the tape"
            )
        if not write.hidden:
            self._pending.append(_Change(write))

    def launching(self, call: Call) -> None:
        """A launch is about to run with these arguments."""
        for index, array in {**call.arrays, **call.sources}.items():
            if index not in call.own | call.parts:
                self._outside.setdefault(id(array), (array, array.copy()))

    def settle(self) -> None:
        """Keep what Python wrote since the last launch."""
        for change in self._pending:
            change.values = change.write.values(change.write.tensor)
        self._changes += self._pending
        self._pending = []

    # ---- at the end
    def run(self, calls: list[Launch], launches: list[Launch]) -> None:
        """Compare, and leave every field as the tape left it.

        Args:
            calls: the steps of the tape.
            launches: all launches, those inside of functions with a gradient of their own included.

        Raises:
            GradientCheckError: names the field, the index and both numbers.
        """
        program = self._program
        assert program is not None
        self.settle()
        variants = {id(v): v for v in (kernel.variant(args, kwargs)[0] for kernel, args, kwargs in launches)}
        self._calls, self._single = calls, any(map(_rounds, variants.values()))
        outside = [array for array, _ in self._outside.values()]
        end, draws, versions = SavedMemory.of(program, outside), program.seeds.drawn, program.recorders.versions
        self._start.outside = list(self._outside.values())
        for tensor in self.tensors:
            tensor.refuse_blocks("the check of a gradient")
        gradients = [tensor.grad._content.astype(np.float64) for tensor in self.tensors]
        program.recorders.versions, program.replay.running = None, True
        try:
            for tensor, gradient in zip(self.tensors, gradients):
                self._compare(tensor, gradient)
        finally:
            end.put_back()
            program.seeds.drawn, program.recorders.versions, program.replay.running = draws, versions, False

    def _compare(self, tensor: Any, gradient: np.ndarray) -> None:
        rng = np.random.default_rng(0)
        size = gradient.size
        numbers = np.arange(size) if size <= FEW else rng.choice(size, FEW, replace=False)
        for number in numbers.tolist():
            direction = np.zeros(size)
            direction[number] = 1.0
            self._along(tensor, gradient, direction.reshape(gradient.shape))
        for _ in range(DIRECTIONS if size > FEW else 0):
            direction = rng.uniform(0.5, 1.0, gradient.shape) * rng.choice((-1.0, 1.0), gradient.shape)
            if not self._agrees(tensor, gradient, direction)[0]:
                self._narrow(tensor, gradient, direction)

    def _along(self, tensor: Any, gradient: np.ndarray, direction: np.ndarray) -> None:
        ok, difference, eps = self._agrees(tensor, gradient, direction)
        if not ok:
            at = tuple(int(k) for k in np.unravel_index(int(np.argmax(np.abs(direction))), gradient.shape))
            self._fail(tensor, at, float(gradient[at]), difference, eps)

    def _narrow(self, tensor: Any, gradient: np.ndarray, direction: np.ndarray) -> None:
        """Halve a direction that disagrees until one number is left."""
        chosen = np.arange(gradient.size)
        while chosen.size > 1:
            half = chosen[: chosen.size // 2]
            part = np.zeros(gradient.size)
            part[half] = direction.ravel()[half]
            ok = self._agrees(tensor, gradient, part.reshape(gradient.shape))[0]
            chosen = chosen[chosen.size // 2 :] if ok else half
        last = np.zeros(gradient.size)
        last[chosen] = 1.0
        self._along(tensor, gradient, last.reshape(gradient.shape))
        ok, difference, eps = self._agrees(tensor, gradient, direction)
        raise GradientCheckError(
            f"the gradient of {_name(tensor)} is wrong along a random direction: {float((gradient * direction).sum()):.17g}, differences"
            f" say {difference:.17g} (step {eps:g})"
        )

    def _agrees(self, tensor: Any, gradient: np.ndarray, direction: np.ndarray) -> tuple[bool, float, float]:
        """Whether a difference agrees with the gradient for some step; else the difference that the step changes least, and its step."""
        expected, scale = float((gradient * direction).sum()), float(np.abs(gradient * direction).sum())
        tolerance = self._tolerance(tensor)
        found: list[float] = []
        for eps in tolerance.steps:
            up, low = self._loss_at(tensor, direction, eps), self._loss_at(tensor, direction, -eps)
            difference = (up - low) / (2 * eps)
            error = abs(difference - expected)
            if error <= tolerance.relative * scale + tolerance.absolute * max(abs(up), abs(low)):
                return True, difference, eps
            found.append(difference)
        changes = [abs(a - b) if np.isfinite(a - b) else np.inf for a, b in itertools.pairwise(found)]
        steadiest = int(np.argmin(changes))
        return False, found[steadiest], tolerance.steps[steadiest]

    def _tolerance(self, tensor: Any) -> Tolerance:
        return SINGLE if self._single or tensor.dtype is not f64 else DOUBLE

    def _loss_at(self, tensor: Any, direction: np.ndarray, eps: float) -> float:
        program = self._program
        assert program is not None
        self._start.put_back()
        program.seeds.drawn = self._launches  # the same random numbers
        content = tensor._content
        store(tensor._mirror, tensor._form, content + (eps * direction).astype(content.dtype))
        changes = list(self._changes)
        for when in range(len(self._calls) + 1):
            while changes and changes[0].write.before == when:
                change = changes.pop(0)
                _again(change)
            if when < len(self._calls):
                function, args, kwargs = self._calls[when]
                function(*args, **kwargs)
        return float(self.loss._content.reshape(-1)[0])

    def _fail(self, tensor: Any, at: tuple[int, ...], gradient: float, difference: float, eps: float) -> None:
        tolerance = self._tolerance(tensor)
        begins = (*(getattr(tensor, "offset", None) or ()), *([0] * len(at)))
        index = ", ".join(str(begin + k) for begin, k in zip(begins, at)) if at else "None"
        raise GradientCheckError(
            f"the gradient of {_name(tensor)}[{index}] is {gradient:.17g}, differences say {difference:.17g} (step {eps:g}; relative"
            f" tolerance {tolerance.relative:g})\n  do: look at the kernels and the gradients of your own between {_name(tensor)} and the"
            " loss; a no_grad function and a jump in the loss differ from differences on purpose"
        )


def _rounds(variant: Variant) -> bool:
    """Whether a kernel computes with fewer digits than f64."""
    statements = [s for task in variant.compiled_kernel.ir.tasks for s in walk(task.body)]
    stored = [access[0].dtype for access in variant.compiled_kernel.writes]
    return any(d.is_real and d is not f64 for d in [*stored, *(s.dtype for s in statements if isinstance(s, Op))])


def _again(change: _Change) -> None:
    """Repeat an assignment from Python."""
    write = change.write
    if write.source is not None:
        copy(write.tensor._mirror, write.tensor._form, write.source._mirror, write.source._form)
    else:
        write.put(write.tensor, change.values)


def _name(tensor: Any) -> str:
    return f"`{tensor.name}`" if isinstance(tensor, Field) else "the ndarray "
