"""Whether a step that is run again does the same: its launches, their arguments, and what Python assigns.

Each launch and each assignment of a window is one event: a kind (the kernel, the types of its arguments) and some numbers (the arguments;
of an array which one it is, or what it holds). A step that reads a counter, the time or random numbers of Python has other ones each time.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ....program.memory.device_arrays import NearArray, address_of
from ....program.memory.given_arrays import content_mark
from ...data.ndarray import Ndarray
from .steps_window import adds_in_order

if TYPE_CHECKING:
    from ....program.program import Program
    from ....program.variant import Variant
    from ...args.binding import Bound
    from ..overwrites import HostWrite

_NUMBERS = frozenset((int, float, bool))
_EXACT = (1 << 53) - 1  # integers up to here are doubles
REMEDY = (
    "do: let a step depend only on its two arguments, the state and constant arrays; hold what differs from step to step in an array that"
    " kernels index with t; draw random numbers in kernels"
)


class _Kind(NamedTuple):
    """What is alike in several events.

    Attributes:
        what: in messages.
        names: of the numbers.
        reals: which of them are real numbers.
        is_launch: it is no assignment from Python.
    """

    what: str
    names: tuple[str, ...]
    reals: tuple[bool, ...]
    is_launch: bool = True


class Kinds:
    """The kinds of events of one loop over steps.

    Args:
        program: its program.
        begin: arrays with a smaller serial number were there before the steps.
    """

    def __init__(self, program: Program, begin: int) -> None:
        self.program, self.begin = program, begin
        self.found: list[_Kind] = []
        self.computed: list[bool] = []  # kinds of kernels that return numbers, which Python may pass on
        self._numbers: dict[object, int] = {}
        self._held: list[Any] = []  # what the keys name by identity

    def number(self, key: tuple[Any, ...], held: object, make: Any, computed: bool = False) -> int:
        """The number of a kind; ``make`` gives it where it is new."""
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self.found)
            self.found.append(make())
            self.computed.append(computed)
            self._held.append(held)
        return found

    def array(self, x: Ndarray) -> float:
        """Which ndarray it is; those that steps make are told apart by their form alone."""
        serial = x._memory.serial
        return float(serial) if serial < self.begin else -float(hash((x.shape, str(x.dtype))) & _EXACT)

    def tensor(self, x: Any) -> float:
        """Which field or ndarray it is."""
        return self.array(x) if isinstance(x, Ndarray) else float(id(x))


class Trace:
    """The events of one run of a window."""

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds
        self._events, self._numbers, self._ends = array("i"), array("d"), array("i")
        self._write: HostWrite | None = None  # an assignment whose values are not known yet
        self._single: np.ndarray | None = None  # numbers that are known as f32 only
        self.reads = bool(kinds.program.arrays.shown)  # whether Python has read what kernels computed

    # ---- what happens
    def launch(self, kernel: Any, flat: tuple[Any, ...] | None, bound: tuple[Variant, Bound] | None) -> None:
        """A kernel is launched; ``flat``: its arguments where they tell launches apart, else it is bound."""
        self.settle()
        kinds = self._kinds
        if flat is None:
            assert bound is not None
            self._bound_launch(kernel, *bound)
            return
        types = tuple(map(type, flat))
        kind = kinds.number(
            (id(kernel), *types), kernel, lambda: _kind_of(kernel, types), "return" in kernel.fn.__annotations__
        )
        self._events.append(kind)
        self._numbers.extend(
            [float(x) if type(x) in _NUMBERS else kinds.array(x) if type(x) is Ndarray else float(id(x) & _EXACT) for x in flat]
        )

    def _bound_launch(self, kernel: Any, variant: Variant, bound: Bound) -> None:
        call, kinds = bound.call, self._kinds
        numbers = [float(hash(bound.key) & _EXACT), *map(float, call.scalars.values())]
        numbers += [_argument(kinds, variant, bound, index) for index in call.arrays]
        numbers += [float(content_mark(column) & _EXACT) for column in call.columns.values()]
        order = (*call.scalars, *call.arrays, *call.columns)
        reals = (
            False,
            *(isinstance(x, float) for x in call.scalars.values()),
            *(_is_real(call, k) for k in order[len(call.scalars) :]),
        )

        def kind() -> _Kind:
            names = {d.index: d.name for d in variant.head.args}
            return _Kind(f"kernel `{kernel.source.name}`", ("a compile-time argument", *(names[k] for k in order)), reals)

        self._events.append(kinds.number((id(kernel), order, reals), kernel, kind, "return" in kernel.fn.__annotations__))
        self._numbers.extend(numbers)

    def function(self, name: str, args: Sequence[Any] = ()) -> None:
        """A function with a gradient of its own, or steps within the step, begins."""
        self.settle()
        numbers = [float(x) for x in args if type(x) in _NUMBERS]
        reals = tuple(type(x) is float for x in args if type(x) in _NUMBERS)
        names = tuple(f"argument {k}" for k in range(1, len(numbers) + 1))
        self._events.append(self._kinds.number((name, reals), None, lambda: _Kind(f"`{name}`", names, reals)))
        self._numbers.extend(numbers)

    def wrote(self, write: HostWrite) -> None:
        """Python is about to write; the values are looked at later."""
        self.settle()
        self._write = write

    def settle(self) -> None:
        """Look at what Python wrote last."""
        write, self._write = self._write, None
        if write is None:
            return
        tensor, numbers = write.tensor, list[float]()
        if write.source is None and self._kinds.program.recorders.recording is None and not tensor._in_blocks:
            values = write.values(tensor)
            few = values.size <= 4 and values.dtype.kind in "fiub"
            numbers = values.astype(float).ravel().tolist() if few else [float(content_mark(values) & _EXACT)]
        count = len(numbers)
        key = "write", *map(self._kinds.tensor, (tensor, write.source)), write.index, write.parts, count

        def kind() -> _Kind:
            return _Kind(f"`{tensor.name}`", ("what Python assigns",) * count, (tensor.dtype.is_real,) * count, is_launch=False)

        self._events.append(self._kinds.number(key, None, kind))
        self._numbers.extend(numbers)

    def step_done(self) -> None:
        """A step has ended."""
        self.settle()
        self._ends.append(len(self._events))

    def end_steps(self, events: list[int]) -> None:
        """Steps have ended after so many events, which were entered late."""
        self._ends = array("i", events)

    @property
    def numbers(self) -> array[float]:
        """The numbers of all events."""
        return self._numbers

    def has_events_of(self, other: Trace) -> bool:
        """Whether the kinds of the events, and the steps that they belong to, are those of another run."""
        return (self._events, self._ends) == (other._events, other._ends)

    def assign(self, other: Trace, numbers: array[float], ends: list[int], single: np.ndarray | None) -> None:
        """Take the events of another run with other numbers.

        Args:
            other: the run.
            numbers: the numbers of its events.
            ends: events up to the end of each step.
            single: which numbers are known as f32 only.
        """
        self._events, self._numbers, self._ends, self._single = other._events, numbers, array("i", ends), single

    # ---- what is compared
    def difference(self, first: Trace) -> tuple[int, str]:
        """How this run differs from the first one: the step within the window, and what; an empty text: it does not."""
        single = first._single if self._single is None else self._single
        if single is not None and len(self._numbers) == len(first._numbers):
            for trace in (self, first):
                trace._round(single)
        mine, theirs = (t._events.tobytes() + t._numbers.tobytes() + t._ends.tobytes() for t in (self, first))
        if mine == theirs:
            return 0, ""
        at = number = 0
        for step, (end, other_end) in enumerate(zip(self._ends, first._ends)):
            launches = 0
            while at < min(end, other_end):
                now, was = (self._kinds.found[t._events[at]] for t in (self, first))
                launches += now.is_launch
                if self._events[at] != first._events[at]:
                    return step, f"{_place(now, launches)} comes where {was.what} came in the first run"
                text = self._numbers_differ(first, now, number, launches)
                if text:
                    return step, text
                at, number = at + 1, number + len(now.names)
            if end != other_end:
                begin = self._ends[step - 1] if step else 0
                return step, f"it makes {end - begin} launches and assignments, and made {other_end - begin} in the first run"
        return 0, ""

    def _round(self, single: np.ndarray) -> None:
        numbers = np.array(self._numbers)
        numbers[single] = numbers[single].astype(np.float32)
        self._numbers = array("d", numbers.tobytes())

    def _numbers_differ(self, first: Trace, kind: _Kind, begin: int, launches: int) -> str:
        """Real numbers count unless they may come from what kernels computed, in any order of sums, with several threads."""
        loose = (self._is_computed() or first._is_computed()) and not adds_in_order(self._kinds.program)
        for name, real, now, was in zip(kind.names, kind.reals, self._numbers[begin:], first._numbers[begin:]):
            if now != was and not (math.isnan(now) and math.isnan(was)) and not (real and loose):
                shown = f"is {now:.9g}, and was {was:.9g}" if abs(now) < 1e9 and abs(was) < 1e9 else "is another one than"
                return f"{_name(name)} of {_place(kind, launches)} {shown} in the first run"
        return ""

    def _is_computed(self) -> bool:
        """Whether Python may pass on what kernels computed."""
        return self.reads or any(self._kinds.computed[kind] for kind in set(self._events))


def _kind_of(kernel: Any, types: tuple[type, ...]) -> _Kind:
    names = [p.name for p in kernel.binder.params]
    names += ["an ndarray of an object"] * (len(types) - len(names))
    return _Kind(f"kernel `{kernel.source.name}`", tuple(names), tuple(t is float for t in types))


def _argument(kinds: Kinds, variant: Variant, bound: Bound, index: int) -> float:
    """Which array an argument is; of one of another library what it holds, unless the kernel writes there."""
    call, device = bound.call, variant.program.device
    x = call.sources.get(index, call.arrays[index])
    if index in call.own | call.parts:
        address = call.at.get(index) or address_of(x)
        memory = device.owner(address)
        known = memory is not None and memory.serial < kinds.begin
        return float(hash((address if known else 0, x.shape)) & _EXACT)
    owners = [place.buffer.owner for place, _, _ in variant.compiled_kernel.writes]
    if isinstance(x, NearArray) or not x.size or any(getattr(owner, "index", None) == index for owner in owners):
        return float(hash(x.shape) & _EXACT)
    return float(content_mark(x) & _EXACT)


def _is_real(call: Any, index: int) -> bool:
    x = call.columns.get(index)
    x = call.arrays[index] if x is None else x
    return index not in call.own | call.parts and np.dtype(x.dtype).kind == "f"


def _name(name: str) -> str:
    return name if " " in name else f"`{name}`"


def _place(kind: _Kind, launches: int) -> str:
    return f"{kind.what} (launch {launches})" if kind.is_launch else kind.what


__all__ = ["REMEDY", "Kinds", "Trace"]
