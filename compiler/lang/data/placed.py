"""The base of fields and ndarrays: a place in the memory of a program, which Python reads and writes.

In a batched program a field or an ndarray has an array for each trial (``ir.trials``). From Python it is all of them at once: what is
written is written to every trial, what is read has the trials as its first axis. In ``with program.trial(b):`` it is that of trial b.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...errors import QdrunRuntimeError, QdrunTypeError, QdrunValueError
from ...frontend.python_calls import refuse_at_compile_time
from ...ir.trials import ONE, TrialLayout
from ...ir.types import DType
from ...program.layout.tree import SNode
from ...program.program import Program
from ...runtime.mirror import copied, reading, store
from ..fitting import numbers
from ..interop import ArrayConversions, host_array
from .access import assign_array, element_index, fill_array, get_element, mirrored_element, set_element
from .element_types import MatrixType


def shared_gradient(what: str) -> QdrunRuntimeError:
    """The error of a gradient of something that trials share."""
    return QdrunRuntimeError(
        f"{what} with per_trial=False is shared by all trials of a batched program, and has no gradient and no dual there: each trial"
        " would add to them\n  do: leave out per_trial=False; or leave out needs_grad and needs_dual"
    )


class Placed(ArrayConversions):
    """A field or an ndarray.

    A class that is one says what ``_owner`` and ``_all`` are, and has the attributes that stand above them.
    """

    __slots__ = ()
    _kind: ClassVar[str]  # for messages: "a field"
    dtype: DType

    if TYPE_CHECKING:
        name: Any  # what messages call it
        shape: Any  # the extents, of one trial in a batched program
        element_shape: Any  # () for numbers, (n,) for vectors, (n, m) for matrices
        per_trial: bool  # each trial of a batched program has its own

    @property
    def _owner(self) -> Program:
        """Its program."""
        raise NotImplementedError

    @property
    def _all(self) -> np.ndarray:
        """The memory; in a batched program of shape (groups, width, *shape of a trial), padding included."""
        raise NotImplementedError

    @property
    def _begins(self) -> tuple[int, ...] | None:
        """The lowest index of each axis; None for zeros."""
        return None

    @property
    def _level(self) -> SNode | None:
        """The level that a sparse field is placed in; None: all elements are active."""
        return None

    @property
    def _in_blocks(self) -> bool:
        """Whether its memory is that of active cells, as a budget allows."""
        return False

    def refuse_blocks(self, what: str) -> None:
        """Check that all elements have memory.

        Raises:
            QdrunTypeError: it is in a level with a budget.
        """
        if self._in_blocks:
            raise QdrunTypeError(f"{what}: {self._called()} is in a level with a budget", hint="leave out budget=")

    def refuse_sparse(self, what: str) -> None:
        """Check that an algorithm may take it as an array of all of its elements.

        Raises:
            QdrunTypeError: it is a sparse field.
        """
        if self._level is not None:
            raise QdrunTypeError(
                f"{what}: {self._called()} is a sparse field", hint="copy it to a dense field or an ndarray first"
            )

    # ---- trials
    @property
    def _trials(self) -> TrialLayout:
        """The trials that each have their own content."""
        return self._owner.batch.layout if self.per_trial else ONE

    @property
    def _whole(self) -> TrialLayout:
        """The trials that ``_form`` shows."""
        return ONE if self._owner.batch.open is not None else self._trials

    @property
    def _in_memory_order(self) -> np.ndarray:
        """``_form`` with its axes in the order in which ``Program.wrote`` is told indices."""
        return self._form

    def _at(self, index: tuple[int, ...]) -> tuple[Any, ...]:
        """The index of an element in ``_form``."""
        return (*(slice(None) for _ in self._whole.leading), *index)

    def _refuse_sharing(self, what: str) -> None:
        """Refuse to hand out memory in which trials lie side by side, and that of a sparse field.

        Raises:
            QdrunValueError: each trial of a batched program has its own content; or a write would have to activate cells.
        """
        if self._level is not None:
            raise QdrunValueError(
                f"{what} of {self._called()}: it is a sparse field, and a write to its memory would activate no cell\n"
                "  do: x.to_numpy() for a copy and x.from_numpy(array) to write the active cells"
            )
        trials = self._trials
        if trials.batched:
            raise QdrunValueError(
                f"{what} of {self._called()}: the {trials.count} trials of this program lie side by side in its memory, which no other"
                " library can show\n  do: x.to_numpy() for a copy and x.from_numpy(array) to write it back; or"
                " make it with per_trial=False, if all trials may share it"
            )

    # ---- memory
    @property
    def view(self) -> np.ndarray:
        """The memory as a numpy array of shape ``shape + element_shape``, written through.

        Raises:
            QdrunRuntimeError: it has no memory, or its program is closed.
            QdrunValueError: it lies on a device whose memory the host cannot touch, or trials have theirs side by side.
        """
        form = self._form
        self._refuse_sharing("view")
        self._refuse_host_view("view")
        self._show()
        return form

    @property
    def arr(self) -> np.ndarray:
        """The memory, as ``view``."""
        return self.view

    def _show(self) -> None:
        self._owner.show(self)

    def _looked_at(self) -> None:
        self._owner.recorders.looked_at(self)

    def _saw(self, value: Any, index: Any = None) -> Any:
        self._owner.recorders.saw(self, value, index)
        return value

    @property
    def _form(self) -> np.ndarray:
        """``view``, for its shape and strides; on a device with memory of its own the content is perhaps an old one.

        In a batched program this is the open trial's, or that of all trials, as ``_all``.
        """
        trial = self._owner.batch.open
        return self._all if trial is None else self._trials.of_trial(self._all, trial)

    @property
    def _content(self) -> np.ndarray:
        """The content, for our own use: it is not handed out, and not written to."""
        return reading(self._mirror, self._form)

    def _columns(self, form: np.ndarray) -> np.ndarray:
        """A copy of ``_form``, or of a part of it, with the trials that it shows as first axis."""
        return self._whole.columns(copied(self._mirror, form))

    # ---- elements
    @property
    def element_type(self) -> DType | MatrixType:
        """The type of an element: of a number, or of a vector or matrix."""
        return MatrixType(self.element_shape, self.dtype) if self.element_shape else self.dtype

    @property
    def n(self) -> int:
        """Rows of an element, 1 for numbers."""
        return self.element_shape[0] if self.element_shape else 1

    @property
    def m(self) -> int:
        """Columns of an element, 1 for numbers and vectors."""
        return self.element_shape[1] if len(self.element_shape) == 2 else 1

    def __getitem__(self, index: Any) -> Any:
        refuse_at_compile_time("reads an element of a field or an array")
        self._looked_at()
        form, at = self._form, element_index(index, self.shape, self.name, self._begins)
        if self._whole.batched:
            raise QdrunRuntimeError(
                f"`{self.name}[..]` is read in Python, and each of the {self._whole.count} trials of this program has its own value\n"
                "  do: `with program.trial(b):` around it for trial b, or x.to_numpy()[b] for all of them; what decides which kernel is"
                " launched next must not differ between trials"
            )
        if self._mirror is not None:
            return self._saw(mirrored_element(self._mirror, form, at, self._written), index)
        return self._saw(get_element(form, at, self._written), index)

    def __setitem__(self, index: Any, value: Any) -> None:
        refuse_at_compile_time("writes an element of a field or an array")
        at = element_index(index, self.shape, self.name, self._begins)
        set_element(self._written(at, value), self._at(at), value, self.name, self._mirror)

    def __len__(self) -> int:
        if not self.shape:
            raise QdrunTypeError(f"`{self.name}` has no axes, so it has no length", hint="its one element is x[None]")
        return self.shape[0]

    def __bool__(self) -> bool:
        return True  # it is there, whatever it holds

    def __reduce__(self) -> Any:
        """Refuse to pickle and to copy; an ndarray has a form of its own.

        Raises:
            QdrunRuntimeError: always.
        """
        raise QdrunRuntimeError(
            f"{self._called()} is a part of its program's layout tree, and cannot be pickled or copied\n"
            "  do: pickle x.to_numpy(), and x.from_numpy(array) of a new field"
        )

    def __iter__(self) -> Iterator[Any]:
        raise QdrunTypeError(f"{self._kind} cannot be iterated in Python: `{self.name}`", hint="use x.to_numpy(), or a kernel")

    # ---- all elements
    def fill(self, val: Any) -> None:
        """Write ``val`` (a number, or a vector for elements that are vectors) to every element, of every trial.

        Of a sparse field the active elements get it, and 0 goes to all.
        """
        value = np.asarray(val.to_numpy() if hasattr(val, "to_numpy") else val)
        if self._level is not None and value.shape in ((), self.element_shape) and value.any():
            self.from_numpy(np.broadcast_to(value, self.shape + self.element_shape))
            return
        fill_array(self._written(None, val), val, self.element_shape, self.name, self._mirror)

    def from_numpy(self, arr: Any) -> None:
        """Copy an array of shape ``shape + element_shape``; values are cast. In a batched program all trials get it; an array with the
        trials as one more axis, the first, has something for each. Of a sparse field the active elements are written.

        Raises:
            QdrunFitError: the shapes differ, or an integer type does not hold one of the numbers.
        """
        self._written(None, arr)
        self._assign(numbers(arr, self.dtype.numpy))

    def from_torch(self, arr: Any) -> None:
        """Copy a torch tensor; see ``ArrayConversions.from_torch``. Of a sparse field the active elements are written."""
        if self._level is None:
            super().from_torch(arr)
        else:
            self.from_numpy(host_array(arr, cast=True))

    def _as_numpy(self, form: Callable[[], np.ndarray], dtype: Any, copy: bool | None) -> np.ndarray:
        return super()._as_numpy(form, dtype, self._copied(copy))

    def _as_torch(self, form: Callable[[], np.ndarray], device: Any, copy: bool | None) -> Any:
        return super()._as_torch(form, device, self._copied(copy))

    def _copied(self, copy: bool | None) -> bool | None:
        """``copy`` of a conversion: a sparse field is always copied."""
        if self._level is None:
            return copy
        if copy is False:
            self._refuse_sharing("copy=False")
        return True

    def _assign(self, array: np.ndarray) -> None:
        assign_array(self._form, array, self.name, self._mirror, trials=self._whole)

    def copy_from(self, other: Any) -> None:
        """Copy another one of the same kind and shape. What trials share goes to each of them.

        Raises:
            QdrunTypeError: it is something else, or the shapes differ.
            QdrunRuntimeError: each trial would write to what they share.
        """
        if not isinstance(other, Placed) or other._kind != self._kind:
            hint = "use x.from_numpy(y.to_numpy(copy=None))"
            raise QdrunTypeError(f"{self._kind} copies from {self._kind}, not from a {type(other).__name__}", hint=hint)
        if self._level is not None:
            self.from_numpy(other.to_numpy())
            return
        other.refuse_blocks("copy_from()")
        source = other._form
        if other._whole.batched and not self._whole.batched:
            raise QdrunRuntimeError(
                f"`{self.name}` is one array, and `{other.name}` has one for each of {other._whole.count} trials"
                "\n  do: copy inside of `with program.trial(b):`, from trial b"
            )
        form = self._written(None, other)
        if self._whole.batched and not other._whole.batched and source.shape == form.shape[2:]:
            store(self._mirror, form, np.broadcast_to(reading(other._mirror, source), form.shape))
        else:
            assign_array(form, source, self.name, self._mirror, other._mirror)
