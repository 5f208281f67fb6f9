"""Arrays that are passed to kernels as arguments, with their gradient beside them when they have one."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from ...errors import QdrunRuntimeError, QdrunRuntimeTypeError, QdrunValueError
from ...frontend.python_calls import refuse_at_compile_time
from ...frontend.values.tensor import TensorRef
from ...frontend.values.values import count
from ...ir.nodes import Buffer, Place
from ...ir.trials import ONE
from ...ir.types import DType
from ...program.call import Key, Permutation
from ...program.layout.offsets import extents, in_memory_order, inverse, permutation, row_major
from ...program.memory.device_arrays import NearArray, near_array
from ...program.memory.memory_regions import EXTERNAL, NdarrayAllocation
from ...program.program import Program, current_program
from ...runtime.base import Allocation
from ...runtime.host_memory import reserved_bytes
from ...runtime.mirror import Mirror
from ..buffer_view import BufferView, part_of
from ..interop import host_array
from .dtypes import resolve
from .element_types import MatrixType
from .placed import Placed, shared_gradient


def intern_key(
    program: Program,
    dtype: DType,
    ndim: int,
    element: tuple[int, ...],
    has_grad: bool,
    has_dual: bool = False,
    layout: Permutation | None = None,
    per_trial: bool = False,
) -> Key:
    """The program's one key object for these: launchers compare it by identity, so arrays of other programs are not taken."""
    key = Key(dtype, ndim, element, has_grad, has_dual, layout, per_trial)
    return program.arrays.keys.setdefault(key, key)


def pack(address: int, shape: tuple[int, ...], *relatives: int | None) -> bytes:
    """The words of an ndarray argument (see ``codegen.abi``): address, extents, and the addresses of gradient and dual if it has them."""
    words = (address, *shape, *(r for r in relatives if r is not None))
    return struct.pack(f"<{len(words)}Q", *words)


class Ndarray(Placed):
    """An array of numbers, vectors or matrices, the components of an element side by side. Made by ``qd.ndarray``.

    Row-major, unless it was made with a ``layout``: then ``shape`` and every index keep the order of the axes, and the memory is nested
    in the order that ``layout`` says. A native launcher reads the first two slots.

    Attributes:
        grad: the gradient, None when none is stored.
        dual: the tangent of forward mode, None when none is stored.
        per_trial: each trial of a batched program has its own.
        wrapper_type: the class whose slot ``_impl`` holds an ndarray that launchers take as if it were given itself.
        view_type: the class of parts of ndarrays, whose slot ``_part`` holds what launchers take for them.
    """

    _kind = "an ndarray"
    _ref: TensorRef | None
    _buffer: Buffer | None
    __slots__ = (  # noqa: RUF023
        "_key",
        "_packed",
        "_program",
        "_memory",
        "_view",
        "_buffer",
        "_name",
        "_ref",
        "_trial_bytes",
        "dtype",
        "dual",
        "element_shape",
        "grad",
        "per_trial",
        "shape",
        "__weakref__",
    )
    wrapper_type: ClassVar[type | None] = None
    view_type: ClassVar[type] = BufferView

    def __init__(
        self,
        program: Program,
        dtype: DType,
        shape: tuple[int, ...],
        element: tuple[int, ...],
        needs_grad: bool,
        category: str,
        needs_dual: bool = False,
        layout: Permutation | None = None,
        memory: Allocation | None = None,
        per_trial: bool = True,
    ) -> None:
        self._program = program
        self.dtype, self.shape, self.element_shape = dtype, shape, element
        self._name, self._ref, self._buffer = "", None, None
        nbytes = count(shape) * count(element) * dtype.size
        self.per_trial = per_trial and memory is None
        if self.per_trial:
            program.batch.lay_out((shape,))
        trials = program.batch.layout if self.per_trial else ONE
        if program.batch.layout.batched and not trials.batched and (needs_grad or needs_dual):
            raise shared_gradient("an ndarray")
        self._trial_bytes = trials.trial_bytes(nbytes)
        nbytes = trials.bytes(self._trial_bytes or nbytes)
        self._memory: Allocation = program.allocate(nbytes, category) if memory is None else memory
        stored = in_memory_order(shape, layout)
        form, axes, bytes_ = stored + element, inverse(layout or tuple(range(len(shape)))), self._memory.view
        view, first = (
            trials.view(bytes_, dtype.numpy, self._trial_bytes, 0, form, row_major(form, dtype.size)),
            len(trials.leading),
        )
        axes = (*range(first), *(first + axis for axis in axes))
        self._view = view.transpose(*axes, *range(len(axes), view.ndim))
        like = program, dtype, shape, element, False, "gradients", False, layout, None, per_trial
        self.grad: Ndarray | None = Ndarray(*like) if needs_grad else None
        self.dual: Ndarray | None = Ndarray(*like) if needs_dual else None
        self._key = intern_key(program, dtype, len(shape), element, needs_grad, needs_dual, layout, trials.batched)
        self._packed = self.words(stored)
        program.arrays.alive.add(self)
        if needs_grad or needs_dual:
            program.arrays.differentiable.add(self)

    def words(self, stored: tuple[int, ...], begin: int = 0, has_grad: bool = True) -> bytes:
        """The words of an argument: ``stored`` extents in the order of memory, from element ``begin`` of the memory on. ``has_grad``: with
        the gradient, if there is one.
        """
        start = begin * count(self.element_shape) * self.dtype.size
        relatives = (self.grad if has_grad else None, self.dual)
        return pack(self._memory.ptr + start, stored, *(None if x is None else x._memory.ptr + start for x in relatives))

    def part(self, begin: int, size: int) -> Ndarray:
        """What native launchers take for a part of an array with one axis: it has nothing but a key and the words. None of it is taken
        where each trial has an array of its own.
        """
        made = object.__new__(Ndarray)
        made._key = None if self._key.per_trial else self._key  # type: ignore[assignment]
        made._packed = self.words((size,), begin)
        return made

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        memory = getattr(self, "_memory", None)
        if memory is not None and not ending():  # at the end of the process, modules may be gone already
            self._program.device.free(memory)

    @property
    def _mirror(self) -> Mirror | None:  # type: ignore[override]
        return self._memory.mirror

    @property
    def _owner(self) -> Program:
        return self._program

    @property
    def _all(self) -> np.ndarray:
        """See ``Placed``.

        Raises:
            QdrunRuntimeError: its program is closed.
        """
        if getattr(self._program, "closed", False):
            raise QdrunRuntimeError("this ndarray belongs to a program that is closed; do: make it after qd.init()")
        return self._view

    @property
    def stored(self) -> np.ndarray:
        """The memory as it lies, for its shape and strides (see ``_form``): axes in the order of their nesting, then the element. In a
        batched program it is that of the open trial, or of the first.
        """
        array = self._in_memory_order
        return self._whole.of_trial(array, 0)

    @property
    def _in_memory_order(self) -> np.ndarray:
        layout, form, first = self._key.layout, self._form, len(self._whole.leading)
        if layout is None:
            return form
        return form.transpose(*range(first), *(first + axis for axis in layout), *range(first + self.ndim, form.ndim))

    @property
    def layout(self) -> Permutation | None:
        """The axis at each level of nesting in memory, outermost first; None for row-major."""
        return self._key.layout

    def has_grad(self) -> bool:
        """Whether a gradient is stored."""
        return self.grad is not None

    def has_dual(self) -> bool:
        """Whether a dual is stored."""
        return self.dual is not None

    @property
    def address(self) -> int:
        """The address of the first element."""
        return self._memory.ptr

    def __getitem__(self, index: Any) -> Any:
        """An element; ``x[a:b]`` of an array with one axis is a ``BufferView``.

        Raises:
            QdrunTypeError: a slice of an array with several axes.
            QdrunValueError: the slice has a step.
        """
        if isinstance(index, slice) and self.ndim == 1:
            return BufferView(self, *part_of(index, self.shape[0]))
        return super().__getitem__(index)

    @property
    def ndim(self) -> int:
        """Number of indices."""
        return len(self.shape)

    @property
    def needs_grad(self) -> bool:
        """Whether a gradient is stored."""
        return self.grad is not None

    @property
    def needs_dual(self) -> bool:
        """Whether a dual, the tangent of forward mode, is stored."""
        return self.dual is not None

    def _written(self, index: tuple[int, ...] | None = None, source: Any = None, parts: tuple[Any, ...] = ()) -> np.ndarray:
        """The memory, for a write of Python (``index``: one element, ``parts``: components of it). The recorders are told."""
        view, layout = self._form, self._key.layout
        at = index if index is None or layout is None else in_memory_order(index, layout)
        self._program.recorders.wrote(self, at, source, parts)
        return view

    @property
    def name(self) -> str:
        """The name in messages: that in the first kernel that refers to it by name."""
        return self._name or "ndarray"

    @property
    def named(self) -> bool:
        """Whether it has a name of its own."""
        return bool(self._name)

    def __qd_name__(self, name: str) -> None:
        """Set the name in messages to the kernel's name of it, unless it has one."""
        if not self._name:
            self._name = name
            if self._ref is not None:
                self._ref = replace(self._ref, name=name)
                for k, place in enumerate(self._ref.places):
                    for suffix, p in (("", place), ("_grad", place.grad), ("_dual", place.dual)):
                        if p is not None:
                            p.name = self._place_name(k, suffix)

    def _place_name(self, component: int, suffix: str) -> str:
        return f"{self.name}_{component}{suffix}" if self.element_shape else self.name + suffix

    def __qd_value__(self) -> TensorRef:
        """The value in a kernel that refers to the ndarray by name: its memory, which the kernel keeps alive."""
        _ = self._all
        if self._ref is None:
            data, rest = self._places("", self), {}
            for role, relative in (("grad", self.grad), ("dual", self.dual)):
                rest[role] = self._places(f"_{role}", relative) if relative is not None else (None,) * len(data)
            for place, grad, dual in zip(data, rest["grad"], rest["dual"], strict=True):
                place.grad, place.dual = grad, dual
            self._ref = TensorRef(self.name, data, self.element_shape, self.ndim, self.shape, layout=self.layout)
        return self._ref

    def _places(self, suffix: str, array: Ndarray) -> tuple[Place, ...]:
        if array._buffer is None:
            memory = array._memory
            where = memory.ptr, memory.nbytes, memory.category, memory.view
            held = NdarrayAllocation(*where, serial=memory.serial, mirror=memory.mirror, holder=array)
            array._buffer = Buffer("field", held)
        stored = in_memory_order(self.shape, self.layout)
        where = array._buffer, self.ndim, stored, row_major(stored + self.element_shape, self.dtype.size)[: self.ndim]
        how = {"is_grad": suffix == "_grad", "trial_bytes": self._trial_bytes}
        names = [self._place_name(k, suffix) for k in range(count(self.element_shape))]
        return tuple(Place(name, self.dtype, *where, k * self.dtype.size, **how) for k, name in enumerate(names))

    def __copy__(self) -> Ndarray:
        return self.__deepcopy__({})

    def __deepcopy__(self, memo: Any) -> Ndarray:
        kind = self._memory.category if self._memory.category != EXTERNAL else "ndarrays"
        like = self._program, self.dtype, self.shape, self.element_shape, self.needs_grad, kind, self.needs_dual, self.layout
        out = Ndarray(*like, per_trial=self.per_trial)
        out.copy_from(self)
        return out

    def __reduce__(self) -> Any:
        """Pickled as numpy data; unpickled in the program that is current then, with a gradient of zeros if it had one."""
        form = self.dtype, self.shape, self.element_shape, self.has_grad(), self.has_dual(), self.layout
        return _unpickled, (*form, self.to_numpy(), self.per_trial)

    def __repr__(self) -> str:
        return f"<ndarray {self.dtype}{list(self.element_shape) or ''}, {self.shape}>"


def _unpickled(
    dtype: DType,
    shape: tuple[int, ...],
    element: tuple[int, ...],
    grad: bool,
    dual: bool,
    layout: Permutation | None,
    data: np.ndarray,
    per_trial: bool = True,
) -> Ndarray:
    out = make_ndarray(dtype, shape, element, grad, needs_dual=dual, layout=layout, per_trial=per_trial)
    out.from_numpy(data)
    return out


def ndarray(
    dtype: Any,
    shape: int | tuple[int, ...],
    needs_grad: bool = False,
    needs_dual: bool = False,
    layout: Any = None,
    per_trial: bool = True,
) -> Ndarray:
    """Make an ndarray of zeros in the current program.

    Args:
        dtype: a scalar type (``qd.f32``, ``float``) or a vector or matrix type.
        shape: the extents, () for one number.
        needs_grad: also store a gradient.
        needs_dual: also store a dual, for forward mode.
        layout: the axis at each level of nesting in memory, outermost first: (1, 0) stores a matrix by columns.
        per_trial: False: all trials of a batched program share it, and kernels only read it.

    Raises:
        QdrunTypeError: a gradient of integers, or a shape that is no tuple of positive integers.
        QdrunRuntimeError: a gradient of what trials share.
        QdrunValueError: a layout that is no permutation of the axes.
    """
    element = dtype.shape if isinstance(dtype, MatrixType) else ()
    scalar = dtype._stored() if isinstance(dtype, MatrixType) else resolve(dtype)
    return make_ndarray(scalar, shape, element, needs_grad, needs_dual=needs_dual, layout=layout, per_trial=per_trial)


def from_dlpack(x: Any, copy: bool | None = None) -> Ndarray:
    """An ndarray on the memory of another library's array: numpy, torch, or whatever speaks DLPack. Scalars only.

    Args:
        x: the array. It is kept alive; both sides see what the other writes.
        copy: True for memory of our own; False to refuse it; None to copy when the array cannot be written, is not dense, or lies on
            another device.

    Raises:
        QdrunValueError: ``copy=False`` for such an array.
        QdrunTypeError: it is no array, or of a type that kernels do not have.
    """
    from ...program.program import current_program

    program = current_program()
    near = near_array(x, program.device.link)
    if near is not None and near.dense and near.size and not copy:
        return _on_near(program, near)
    given = host_array(x)
    order = tuple(sorted(range(given.ndim), key=lambda k: (-given.strides[k], k)))
    dense = given.transpose(order)
    here = program.device.on_host and getattr(getattr(x, "device", None), "type", "cpu") == "cpu"
    fits = here and dense.flags.c_contiguous and given.flags.writeable and given.flags.aligned and given.size > 0
    if copy is False and not fits:
        raise QdrunValueError("copy=False: the array is on another device, not dense, not aligned, empty or not to be written")
    dtype = resolve(given.dtype)
    if copy or not fits:
        out = make_ndarray(dtype, given.shape, (), per_trial=False)
        out.from_numpy(given)
        return out
    flat = dense.reshape(-1).view(np.uint8)
    memory = Allocation(dense.ctypes.data, dense.nbytes, EXTERNAL, flat, freed=True)
    return Ndarray(program, dtype, given.shape, (), False, EXTERNAL, layout=permutation(order, given.ndim), memory=memory)


def _on_near(program: Program, near: NearArray) -> Ndarray:
    """An ndarray on the memory that another library has on the program's device."""
    memory = Allocation(near.address, near.nbytes, EXTERNAL, reserved_bytes(near.nbytes), freed=True)
    memory.mirror = mirror = Mirror(near.link, near.address, memory.view, current=False)
    mirror.shared, mirror.owner = True, near.owner
    if near.stream:
        near.link.settle(near.stream)
    out = Ndarray(program, resolve(near.dtype), near.shape, (), False, EXTERNAL, memory=memory)
    out._show()
    return out


def make_ndarray(
    dtype: DType,
    shape: Any,
    element: tuple[int, ...],
    needs_grad: bool = False,
    program: Program | None = None,
    needs_dual: bool = False,
    layout: Any = None,
    per_trial: bool = True,
) -> Ndarray:
    """An ndarray of any element shape; ``program`` is the current one unless it is given."""
    refuse_at_compile_time("makes an ndarray", "make the ndarray before the kernel, and pass it")
    if (needs_grad or needs_dual) and not dtype.is_real:
        what = "needs_grad=True" if needs_grad else "needs_dual=True"
        raise QdrunRuntimeTypeError(f"{dtype} is not supported for ndarray with {what}\n  do: use qd.f32 or qd.f64")
    form = extents(shape, "an ndarray")
    if any(e < 0 for e in form):
        raise QdrunRuntimeTypeError(f"the shape of an ndarray is made of integers that are not negative, not {shape!r}")
    if program is None:
        program = current_program()
    stored = permutation(layout, len(form))
    return Ndarray(program, dtype, form, element, needs_grad, "ndarrays", needs_dual, stored, per_trial=per_trial)
