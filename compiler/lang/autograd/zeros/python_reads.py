"""Numbers that Python reads in a tape and passes on: to the kernel that gets one it is a constant, and that part of the gradient is lost.

Python computes with plain numbers, so what becomes of one is not known in general. It is known again where Python passes on the very object
that it has read, a view of an array that it has read, or a number with the same digits, if these are so many that no other number has them
by chance. Numbers that are read for a log or a decision never come back, and nothing is said of them.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ....errors import DifferentiationError, warn_user
from ....frontend.markers import Template
from ....passes.dependence.gradient_flow import passes_on
from ....program.memory.versions import user_line
from ...data.matrix import Matrix
from ..gradient_arrays import has_grad

if TYPE_CHECKING:
    from ....ir.nodes import Place
    from ....program.program import Program
    from ....program.variant import Variant

MOST_OBJECTS, MOST_NUMBERS = 1 << 12, 1 << 16
"""Objects and numbers that are remembered: those that were read last."""
SMALL = 1 << 10
"""Elements of an array whose numbers are remembered, besides the array."""
_STOP = "or qd.stop_grad(..) around it, if it is meant to be a constant"


class PythonRead(NamedTuple):
    """What Python has read.

    Attributes:
        what: as messages call it.
        do: how to keep its gradient.
        tensor: the field or the ndarray; None: a kernel has returned it.
        call: otherwise the kernel and the arguments.
    """

    what: str
    do: str
    tensor: Any = None
    call: tuple[Any, tuple[Any, ...]] | None = None


class PythonReads:
    """What Python has read since a tape was opened.

    Attributes:
        objects: what was read, by its identity; each is held, or its weak reference is.
    """

    def __init__(self, strict: bool) -> None:
        self._strict = strict
        self.objects: dict[int, tuple[Any, PythonRead]] = {}
        self._numbers: dict[float, PythonRead] = {}  # of arrays and vectors: their items are other objects each time
        self._scalars: dict[float, PythonRead] = {}

    def read(self, tensor: Any, value: Any, index: Any) -> None:
        """Python has read a tensor, or its element at an index (``value`` is an array or tensor otherwise)."""
        if not has_grad(tensor):
            return
        whole = hasattr(value, "shape") and not isinstance(value, Matrix)
        at = ", ".join(map(str, index)) if isinstance(index, (tuple, list)) else str(index)
        what = f"the content of `{tensor.name}`" if whole else f"`{tensor.name}[{at or None}]`"
        self._add(value, PythonRead(what, f"pass `{tensor.name}` itself and read it in the kernel", tensor))

    def returned(self, kernel: Any, args: tuple[Any, ...], result: Any) -> None:
        """A kernel has returned something."""
        do = "store it in a field with needs_grad=True instead, and pass the field"
        found = PythonRead(f"what kernel `{kernel.source.name}` returns", do, call=(kernel, args))
        for value in result if isinstance(result, tuple) else (result,):
            if isinstance(value, (float, Matrix)):
                self._add(value, found)

    def _add(self, value: Any, read: PythonRead) -> None:
        weak = not isinstance(value, (float, Matrix))
        self.objects[id(value)] = weakref.ref(value) if weak else value, read
        if isinstance(value, float):
            self._scalars[value] = read
        elif isinstance(value, (Matrix, np.ndarray)):
            array = value.to_numpy() if isinstance(value, Matrix) else value
            if array.size <= SMALL and array.dtype.kind == "f":
                self._numbers |= dict.fromkeys(array.ravel().tolist(), read)
        for kept, most in ((self.objects, MOST_OBJECTS), (self._numbers, MOST_NUMBERS), (self._scalars, MOST_OBJECTS)):
            for key in list(itertools.islice(kept, max(0, len(kept) - most))):
                del kept[key]  # type: ignore[arg-type]

    def _find(self, value: Any) -> PythonRead | None:
        if type(value) is float:
            kept, read = self.objects.get(id(value), (None, None))
            return read if kept is value else self._numbers.get(value) if _tells(value) else None
        if isinstance(value, np.floating):
            return self._of_digits((float(value),))
        if isinstance(value, (list, tuple)) or is_dataclass(value):
            items = value[:SMALL] if isinstance(value, (list, tuple)) else getattr(value, "__dict__", {}).values()
            return next((found for one in items if (found := self._find(one)) is not None), None)
        if isinstance(value, Matrix) and id(value) not in self.objects:
            return self._of_digits(value.to_numpy().ravel().tolist())
        while value is not None:
            kept, read = self.objects.get(id(value), (None, None))
            if kept is value or (isinstance(kept, weakref.ref) and kept() is value):
                return read
            value = getattr(value, "base", None) if isinstance(value, np.ndarray) else getattr(value, "_base", None)
        return None

    def _of_digits(self, values: Iterable[Any]) -> PythonRead | None:
        """What was read, by numbers that are copies of it."""
        known = (self._numbers.get(v) or self._scalars.get(v) for v in values if isinstance(v, float) and _tells(v))
        return next((read for read in known if read is not None), None)

    def passed(self, program: Program, kernel: Any, args: tuple[Any, ...]) -> None:
        """Tell if a launch gets something that was read, and it matters to a gradient.

        Raises:
            DifferentiationError: it does, and the tape is strict.
        """
        for param, arg in zip(kernel.binder.params, args):
            read = self._find(arg)
            if read is not None and not program.recorders.second_order and _carries(read):
                variant, _ = kernel.variant(args, {})
                if _matters(variant, param.name, known=param.annotation is Template):
                    self._tell(program, read, f"passed to kernel `{kernel.source.name}`", read.do)

    def assigned(self, program: Program, tensor: Any, value: Any) -> None:
        """Tell if Python assigns something that was read to a tensor with a gradient."""
        read = self._find(value)
        if (
            read is not None
            and read.tensor is not tensor
            and not program.recorders.second_order
            and has_grad(tensor)
            and _carries(read)
        ):
            alike = getattr(read.tensor, "shape", None) == tensor.shape
            do = "assign in a kernel" + (f", or `{tensor.name}.copy_from({read.tensor.name})` for all of it" if alike else "")
            self._tell(program, read, f"assigned to `{tensor.name}`", do)

    def _tell(self, program: Program, read: PythonRead, how: str, do: str) -> None:
        where = user_line()
        text = f"{read.what} is read in Python and {how} at {where}, as a constant: a part of the gradient is lost; do: {do}, {_STOP}"
        if self._strict:
            raise DifferentiationError(text)
        if ("python", where) not in program.state.warned:
            program.state.warned.add(("python", where))
            program.state.told.append(text)
            warn_user(text)


def _tells(number: float) -> bool:
    """Whether a number has so many digits that two of them are not equal by chance."""
    short = float(f"{number:.5g}")
    return short != number and float(np.float32(short)) != number


def _carries(read: PythonRead) -> bool:
    """Whether what was read depends on something with a gradient."""
    if read.call is None:
        return True
    kernel, args = read.call
    edges = (edge for task in kernel.variant(args, {})[0].compiled_kernel.gradient_flow for edge in task.edges)
    return any(edge.target.buffer.kind == "ret" and edge.source is not None and passes_on(edge.source) for edge in edges)


def _matters(variant: Variant, name: str, known: bool) -> bool:
    """Whether a parameter has a derivative in what a kernel stores: a number, or an array from outside. ``known``: at compile time."""

    def is_param(place: Place | None) -> bool:
        owner = None if place is None else place.buffer.owner
        return known or place is None or getattr(owner, "name", "").partition(".")[0] == name

    edges = [edge for task in variant.compiled_kernel.gradient_flow for edge in task.edges]
    return any(
        is_param(edge.source) and passes_on(edge.target) and (edge.live or any(cut.kind == "array" for cut in edge.cuts))
        for edge in edges
        if edge.target.buffer.kind != "ret"
    )


__all__ = ["PythonReads"]
