"""The window of ``checkpointed_steps``: arrays whose first axis is time, a few steps long, and the snapshots of their first slot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ....errors import OutOfMemory, QdrunRuntimeError
from ....frontend.values.values import count
from ....program.memory.versions import checksum
from ....runtime.mirror import Mirror, copied, copy, store
from ...assembly import Assembly
from ...data.field import Field
from ...data.ndarray import Ndarray
from ...data.struct_field import StructField
from ...data.tensor import unwrap

if TYPE_CHECKING:
    from ....program.program import Program
    from ....runtime.base import Allocation

ROUNDING = 1e-3, 1e-6
"""Tolerance of a replay relative to the sum of magnitudes, if sums of several threads are in any order: f32 and f64."""


def arrays_of(what: str, given: Any, caller: str = "checkpointed_steps") -> list[Any]:
    """The fields and ndarrays of an argument, fields of structs taken apart.

    Raises:
        QdrunRuntimeError: something else is among them.
        QdrunTypeError: a sparse field is.
    """
    tensors = given if isinstance(given, (list, tuple)) else [given]
    out: list[Any] = []
    for tensor in map(unwrap, tensors):
        if isinstance(tensor, StructField):
            out += tensor.leaves()
        elif isinstance(tensor, Assembly) and what == "temporaries":
            out += [tensor.values, tensor.counts]
        elif isinstance(tensor, (Field, Ndarray)) and not getattr(tensor, "role", ""):
            tensor.refuse_sparse(f"{caller}: {what}")
            out.append(tensor)
        else:
            raise QdrunRuntimeError(
                f"{caller}: {what} holds fields and ndarrays, not {type(tensor).__name__}\n"
                "  do: make it with qd.field, qd.ndarray or qd.tensor; arrays of others cannot be put back"
            )
    return out


def name_of(tensor: Any) -> str:
    """The name of a field or an ndarray in messages."""
    return f"`{tensor.name}`" if isinstance(tensor, Field) else f"the ndarray `{tensor.name}`"


@dataclass(frozen=True, eq=False)
class Window:
    """The arrays of a window.

    Attributes:
        program: theirs.
        state: arrays of ``length + 1`` slots: slot k is the state k steps after the window's start.
        scratch: arrays of ``length`` slots: what step k leaves for its gradient.
        length: steps.
        temporaries: arrays without slots, zero when a step begins; the gradient needs what each step left in them.
        in_place: arrays without slots that each step updates.
    """

    program: Program
    state: tuple[Any, ...]
    scratch: tuple[Any, ...]
    length: int
    temporaries: tuple[Any, ...] = ()
    in_place: tuple[Any, ...] = ()

    @staticmethod
    def of(
        program: Program, state: Any, scratch: Any, temporaries: Any = (), in_place: Any = (), length: int | None = None
    ) -> Window:
        """Check the arrays and infer the window's length from their shapes; ``length``: it, where no array tells.

        Raises:
            QdrunRuntimeError: no state, shapes that do not fit each other, an array that is given twice, an offset of the first axis, or
                an array of another program.
        """
        states, scratches = arrays_of("state", state), arrays_of("scratch", scratch)
        others = arrays_of("temporaries", temporaries)
        places = arrays_of("in_place", in_place)
        if not states and not places:
            raise QdrunRuntimeError(
                "checkpointed_steps: no state\n  do: state=[x, ..], the arrays that a step hands to the next, or in_place=[x, ..], those"
                " that it updates"
            )
        slots = {t: t.shape[0] if t.shape else 0 for t in states}
        steps = next(iter(slots.values())) - 1 if states else length or 1
        if length not in (None, steps):
            raise QdrunRuntimeError(
                f"checkpointed_steps: window={length}, and {name_of(states[0])} of shape {states[0].shape} has a window of {steps}\n"
                "  do: leave window= out; it is for arrays in_place"
            )
        if steps < 1:
            raise QdrunRuntimeError(
                f"checkpointed_steps: {name_of(states[0])} of shape {states[0].shape} has no room for a step\n"
                "  do: give it a first axis of window + 1 slots, at least 2"
            )
        for tensor in (*states, *scratches):
            _check(program, tensor, steps, tensor in slots)
        for tensor in (*others, *places):
            _check_owner(program, tensor)
        every = (*states, *scratches, *others, *places)
        if len(set(map(id, every))) < len(every):
            raise QdrunRuntimeError(
                "checkpointed_steps: an array is given twice\n  do: name it once, as state, scratch, temporaries or in_place"
            )
        return Window(program, tuple(states), tuple(scratches), steps, tuple(others), tuple(places))

    def __iter__(self) -> Iterator[Any]:
        return iter((*self.state, *self.scratch))

    @property
    def state_bytes(self) -> int:
        """Bytes of one slot of all state arrays, and of those in place: of a snapshot."""
        return sum(_slot_bytes(t) for t in self.state) + sum(t._form.nbytes for t in self.in_place)

    @property
    def slot_bytes(self) -> int:
        """Bytes of one more step: state, scratch, their gradients and duals, and a copy of the temporaries."""
        return sum(_slot_bytes(t) * (1 + _stored(t)) for t in self) + self.temporary_bytes

    @property
    def temporary_bytes(self) -> int:
        """Bytes of a copy of the temporaries."""
        return sum(t._form.nbytes for t in self.temporaries)

    @property
    def fixed_bytes(self) -> int:
        """Bytes of the one slot that state has more than there are steps, and of the arrays without slots, with gradients and duals."""
        sizes = [(_slot_bytes(t), t) for t in self.state] + [(t._form.nbytes, t) for t in (*self.temporaries, *self.in_place)]
        return sum(size * (1 + _stored(t)) for size, t in sizes)

    # ---- values
    def clear(self) -> None:
        """Zero what a run of the window fills: slots 1.. of the state, and the scratch."""
        for tensor in self.state:
            with self._dual_from(tensor, 0):
                store(tensor._mirror, part(tensor, tensor._written(), slice(1, None)), 0)
        for tensor in self.scratch:
            store(tensor._mirror, tensor._written(), 0)

    def begin_step(self) -> None:
        """Zero the temporaries."""
        for tensor in self.temporaries:
            store(tensor._mirror, tensor._written(), 0)

    def advance(self, length: int) -> None:
        """Make the state after ``length`` steps the start of the next window."""
        for tensor in self.state:
            with self._dual_from(tensor, length):
                content = tensor._written()
                copy(tensor._mirror, part(tensor, content, 0), tensor._mirror, part(tensor, content, length))

    @contextmanager
    def _dual_from(self, tensor: Any, slot: int) -> Iterator[None]:
        """In forward mode a write clears the dual: afterwards slot 0 of it is what ``slot`` was before."""
        dual = _relative(tensor, "dual") if self.program.recorders.forward is not None else None
        kept = None if dual is None else slot_content(dual, slot)
        yield
        if dual is not None:
            store(dual._mirror, part(dual, dual._form, 0), kept)

    def checks(self) -> list[Check]:
        """A fingerprint of the content of each state array, in slot 0 of those with slots."""
        return [check for _, check in self.checks_of(0)]

    def checks_of(self, slot: int) -> Iterator[tuple[Any, Check]]:
        """The state arrays, each with a fingerprint of its content in a slot."""
        for tensor, content in self.contents(slot):
            yield tensor, Check.of(copied(tensor._mirror, content))

    def contents(self, slot: int, written: bool = False) -> Iterator[tuple[Any, np.ndarray]]:
        """The state arrays with the memory of a slot, or of all of an array in place. ``written``: it is about to be written."""
        for tensor in self.state:
            yield tensor, part(tensor, tensor._written() if written else tensor._form, slot)
        for tensor in self.in_place:
            yield tensor, tensor._written() if written else tensor._form

    # ---- gradients
    def _gradients(self, tensors: Iterable[Any]) -> Iterator[tuple[Mirror | None, Callable[[int | slice], np.ndarray]]]:
        """The memory of the gradients, about to be written: their mirrors, and what gives slots of them."""
        for tensor in tensors:
            grad = _relative(tensor, "grad")
            if grad is not None:
                yield grad._mirror, partial(part, grad, grad._written())

    def seeded(self) -> bool:
        """Whether slot 0 of a gradient of the state holds something."""
        return any(slot_content(g, 0).any() for t in self.state if (g := _relative(t, "grad")) is not None)

    def hand_back(self, length: int) -> None:
        """Make the gradient of the window's start that of the end of the window before, of ``length`` steps; clear all others."""
        for mirror, grad in self._gradients(self.state):
            copy(mirror, grad(length), mirror, grad(0))
            store(mirror, grad(slice(length)), 0)
            store(mirror, grad(slice(length + 1, None)), 0)
        for mirror, grad in self._gradients(self.scratch):
            store(mirror, grad(slice(None)), 0)

    def end_step_backwards(self) -> None:
        """Clear the gradients of the temporaries: they were zero before the step, whatever there was."""
        for tensor in self.temporaries:
            if (grad := _relative(tensor, "grad")) is not None:
                store(grad._mirror, grad._written(), 0)

    def drop_gradients(self) -> None:
        """Clear all gradients but that of the start."""
        for mirror, grad in self._gradients(self.state):
            store(mirror, grad(slice(1, None)), 0)
        for mirror, grad in self._gradients(self.scratch):
            store(mirror, grad(slice(None)), 0)

    @property
    def start_gradient_bytes(self) -> int:
        """Bytes of slot 0 of the state's gradients."""
        return sum(_slot_bytes(t) for t in self.state if _relative(t, "grad") is not None)

    def start_gradient_views(self, memory: np.ndarray) -> list[np.ndarray]:
        """Room for slot 0 of the state's gradients, in ``memory``."""
        return _views([(t, _slot_shape(t)) for t in self.state if _relative(t, "grad") is not None], memory)

    def swap_start_gradient(self, slots: list[np.ndarray], other: Mirror | None) -> None:
        """Exchange slot 0 of the state's gradients with these arrays, which lie in memory with the mirror ``other``."""
        for (mirror, grad), slot in zip(self._gradients(self.state), slots, strict=True):
            held = copied(other, slot)
            copy(other, slot, mirror, grad(0))
            store(mirror, grad(0), held)


class Snapshots:
    """Copies of the state, of one slot or in place, in one allocation counted as ``snapshots``.

    Raises:
        OutOfMemory: they do not fit.
    """

    def __init__(self, window: Window, amount: int, what: str) -> None:
        self._window = window
        nbytes = window.state_bytes
        try:
            self._memory: Allocation = window.program.allocate(amount * nbytes, "snapshots")
        except OutOfMemory as error:
            raise OutOfMemory(f"{what}: {amount} x {nbytes:,} bytes of state: {error}") from None
        forms = [(t, _slot_shape(t)) for t in window.state] + [(t, t._form.shape) for t in window.in_place]
        self._slots = [_views(forms, self._memory.view[k * nbytes : (k + 1) * nbytes]) for k in range(amount)]

    def store(self, number: int, slot: int = 0) -> None:
        """Keep a slot of the state, and what is in place."""
        for (tensor, content), kept in zip(self._window.contents(slot), self._slots[number]):
            copy(self._memory.mirror, kept, tensor._mirror, content)

    def restore(self, number: int, slot: int = 0) -> None:
        """Put it back."""
        for (tensor, content), kept in zip(self._window.contents(slot, written=True), self._slots[number]):
            copy(tensor._mirror, content, self._memory.mirror, kept)

    def free(self) -> None:
        """Give the memory back."""
        self._slots = []
        self._window.program.device.free(self._memory)


class ArrayCopies:
    """Copies of arrays, ``amount`` of each, in one allocation counted as ``snapshots``.

    Raises:
        OutOfMemory: they do not fit.
    """

    def __init__(self, program: Program, tensors: Iterable[Any], amount: int = 1) -> None:
        self._program = program
        self._tensors = sorted(tensors, key=lambda t: -t.dtype.size)  # wider types first, so that all are aligned
        self._each = sum(t._form.nbytes for t in self._tensors)  # of one copy of all
        self.nbytes = amount * self._each
        self._memory: Allocation = program.allocate(self.nbytes, "snapshots")

    def _parts(self, number: int) -> Iterator[tuple[Any, np.ndarray]]:
        at = number * self._each
        for tensor in self._tensors:
            form = tensor._form
            yield tensor, self._memory.view[at : at + form.nbytes].view(form.dtype).reshape(form.shape)
            at += form.nbytes

    def store(self, number: int = 0) -> None:
        """Copy what the arrays hold."""
        for tensor, kept in self._parts(number):
            copy(self._memory.mirror, kept, tensor._mirror, tensor._form)

    def restore(self, number: int = 0) -> None:
        """Put it back."""
        for tensor, kept in self._parts(number):
            copy(tensor._mirror, tensor._written(), self._memory.mirror, kept)

    def free(self) -> None:
        """Give the memory back."""
        if not self._program.closed:
            self._program.device.free(self._memory)


@dataclass(frozen=True)
class Check:
    """Stands for the content of an array: equal bits, or, where order of sums may change them, nearly equal numbers."""

    bits: bytes
    magnitude: float
    weighted: float

    @staticmethod
    def of(array: np.ndarray) -> Check:
        """The check of an array's content."""
        flat = np.ascontiguousarray(array).reshape(-1).astype(np.float64)
        with np.errstate(all="ignore"):
            weights = np.cos(np.arange(flat.size, dtype=np.float64))
            return Check(checksum(array), float(np.abs(flat).sum()), float((flat * weights).sum()))

    def differs(self, other: Check, tolerance: float) -> bool:
        """Whether the contents differ by more than ``tolerance`` times the sum of magnitudes."""
        if self.bits == other.bits:
            return False
        return not abs(self.weighted - other.weighted) <= tolerance * max(self.magnitude, other.magnitude)


def part(tensor: Any, memory: np.ndarray, slots: int | slice) -> np.ndarray:
    """Slots of the memory of an array, of all trials in a batched program."""
    return memory[(*tensor._at(()), slots, ...)]


def slot_content(tensor: Any, slot: int) -> np.ndarray:
    """The content of one slot of an array, as an array of its own."""
    return copied(tensor._mirror, part(tensor, tensor._form, slot))


def adds_in_order(program: Program) -> bool:
    """Whether kernels that run again compute the same bits: sums of reals have one order."""
    return program.device.on_host and program.device.threads == 1


def tolerance_of(tensor: Any, program: Program) -> float:
    """The tolerance of a replay of a state array: zero on one thread, or for integers."""
    if not tensor.dtype.is_real or adds_in_order(program):
        return 0.0
    return ROUNDING[tensor.dtype.size == 8]


def _check(program: Program, tensor: Any, length: int, is_state: bool) -> None:
    slots = length + is_state
    if not tensor.shape or tensor.shape[0] != slots:
        kind = "state" if is_state else "scratch"
        raise QdrunRuntimeError(
            f"checkpointed_steps: {name_of(tensor)} of shape {tensor.shape} is {kind} in a window of {length} steps\n"
            f"  do: give it a first axis of {slots} slots: state has one more than there are steps in the window, scratch has as many"
        )
    _check_owner(program, tensor)
    if isinstance(tensor, Field) and tensor.offset[0]:
        raise QdrunRuntimeError(
            f"checkpointed_steps: the first axis of {name_of(tensor)} begins at {tensor.offset[0]}; do: let slots count from 0"
        )


def _check_owner(program: Program, tensor: Any) -> None:
    owner = tensor._root.program if isinstance(tensor, Field) else tensor._program
    if owner is not program:
        raise QdrunRuntimeError(
            f"checkpointed_steps: {name_of(tensor)} belongs to another program; do: make it after qd.init()"
        )


def _relative(tensor: Any, role: str) -> Any:
    """The gradient or the dual of an array, None when none is stored."""
    if not tensor.dtype.is_real:
        return None
    found = getattr(tensor, role)
    return found if found is not None and getattr(found, "placed", True) else None


def _slot_shape(tensor: Any) -> tuple[int, ...]:
    """The shape of one slot in memory, all trials included."""
    return (*tensor._trials.leading, *tensor.shape[1:], *tensor.element_shape)


def _slot_bytes(tensor: Any) -> int:
    return count(_slot_shape(tensor)) * tensor.dtype.size


def bytes_of_slots(state: Any, scratch: Any, temporaries: Any) -> tuple[int, int]:
    """Bytes of one slot of the state, and of one slot of all arrays with their gradients and duals, with a copy of the temporaries."""
    states, scratches = arrays_of("state", state), arrays_of("scratch", scratch)
    copies = sum(t._form.nbytes for t in arrays_of("temporaries", temporaries))
    return sum(map(_slot_bytes, states)), sum(_slot_bytes(t) * (1 + _stored(t)) for t in (*states, *scratches)) + copies


def _stored(tensor: Any) -> int:
    """The number of stored companions: gradient, dual, both or none."""
    return sum(_relative(tensor, role) is not None for role in ("grad", "dual"))


def _views(forms: Iterable[tuple[Any, tuple[int, ...]]], memory: np.ndarray) -> list[np.ndarray]:
    """An array of the given shape for each tensor, consecutively in ``memory``; wider types first, so that all are aligned."""
    out: dict[int, np.ndarray] = {}
    at = 0
    chosen = list(forms)
    for k in sorted(range(len(chosen)), key=lambda k: -chosen[k][0].dtype.size):
        tensor, shape = chosen[k]
        size = count(shape) * tensor.dtype.size
        out[k] = memory[at : at + size].view(tensor.dtype.numpy).reshape(shape)
        at += size
    return [out[k] for k in range(len(chosen))]
