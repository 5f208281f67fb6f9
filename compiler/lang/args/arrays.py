"""Array arguments of a launch: ours, numpy's and torch's. What can be passed by pointer is; everything else is copied, and copied back
if the kernel writes to it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import QdrunFitError, QdrunRuntimeError, QdrunTypeError
from ...frontend.signature import ArrayArg
from ...frontend.values.values import count
from ...ir.byte_bounds import byte_bounds
from ...ir.types import DType, from_numpy
from ...ir.walk import kernel_places
from ...program.call import Call, Key
from ...program.memory.device_arrays import NearArray, is_torch, may_share, near_array
from ...program.program import current_program
from ...runtime.base import Allocation
from ..buffer_view import BufferView
from ..data.element_types import NdarrayType
from ..data.field import Field
from ..data.ndarray import Ndarray, intern_key
from ..data.tensor import Tensor
from ..interop import bare, host_array, lives_elsewhere, mark_written, torch_gradient
from ..interop_on_device import offers_device_memory
from .host_staging import lend, same_view, take

if TYPE_CHECKING:
    from ...program.program import Program
    from ...program.variant import Variant

_EFFORT: Any = 100_000  # steps that an exact answer may take
ANY_ARRAY = NdarrayType(None, None)


def is_array(value: Any) -> bool:
    """Whether a value is passed as an array: an ndarray, a tensor on one, a numpy array or a torch tensor."""
    if isinstance(value, Tensor):
        value = value._unwrap()
    return isinstance(value, (Ndarray, BufferView, np.ndarray)) or is_torch(value) or offers_device_memory(value)


def bind_array(annotation: NdarrayType, value: Any, call: Call, number: int) -> tuple[Key, ArrayArg]:
    """Append the words of one array argument to the call; the key and the spec of its type.

    Raises:
        QdrunTypeError: it is no array, or not of the annotated type.
    """
    if isinstance(value, Tensor):
        value = value._unwrap()
    if isinstance(value, Field):
        hint = "annotate the parameter with qd.template() or qd.Tensor"
        raise QdrunTypeError(f"expected an ndarray, a numpy array or a torch tensor, got the field `{value.name}`", hint=hint)
    if isinstance(value, (Ndarray, BufferView)):
        key = _bind_own(annotation, value, call, number)
    else:
        key = _bind_foreign(annotation, value, call, number)
    return key, ArrayArg(*key)


def _bind_own(annotation: NdarrayType, given: Ndarray | BufferView, call: Call, number: int) -> Key:
    value: Ndarray = given.arr if isinstance(given, BufferView) else given
    key, words, stored = value._key, value._packed, value.stored  # that of a closed program raises
    if value._program is not current_program():
        raise QdrunTypeError("this ndarray belongs to another program", hint="make it after qd.init(), or pass a.to_numpy()")
    if annotation.needs_grad is False and value.grad is not None:
        key = intern_key(value._program, *key[:3], False, *key[4:])
        words = value.words(stored.shape[: key.ndim], has_grad=False)
    start = 0
    if isinstance(given, BufferView):
        if key.per_trial:
            raise QdrunTypeError("each trial has its own array, which has no views", hint="make it with per_trial=False")
        start = given.offset * value.dtype.size * count(value.element_shape)
        stored = stored[given.offset : given.offset + given.size]
        words = value.words(given.shape, given.offset, key.has_grad)
    _check_type(annotation, key)
    call.arrays[number] = stored
    call.kept.append(value)  # another thread may take it out of the object that holds it
    (call.parts if isinstance(given, BufferView) else call.own).add(number)
    mirror = value._mirror
    if mirror is not None:
        call.mirrors[number], call.at[number] = mirror, value.address + start
        call.reads[number] = lambda: mirror.read(stored)
    if key.per_trial:
        call.reads[number] = lambda: value._columns(value._in_memory_order)
    call.keys[number] = key
    call.words += words
    return key


def _bind_foreign(annotation: NdarrayType, value: Any, call: Call, number: int) -> Key:
    program = current_program()
    if not program.device.on_host:
        return _bind_on_device(annotation, value, call, number, program)
    array = host_array(value)
    wants_grad, key = _foreign_key(annotation, value, array, program)
    passed = _passed(array, key.dtype, call, number)
    grad = torch_gradient(value) if wants_grad else None
    words = (passed.ctypes.data, *passed.shape[: key.ndim])
    if key.has_grad:
        words = (*words, _pass_gradient(grad, array.shape, key.dtype, call, number))
    call.words += struct.pack(f"<{len(words)}Q", *words)
    call.arrays[number] = passed
    call.keys[number] = key
    if is_torch(value):
        _write_back(value, array, call, number)
    if passed is not array:
        call.sources[number] = array
    return key


def _foreign_key(annotation: NdarrayType, value: Any, array: Any, program: Program) -> tuple[bool, Key]:
    """Whether an array of another library has a gradient, and the key of its type, which the annotation accepts."""
    dtype, ndim, element = _type_of(annotation, array)
    wants_grad = is_torch(value) and value.requires_grad and dtype.is_real
    key = intern_key(program, dtype, ndim, element, wants_grad and annotation.needs_grad is not False)
    _check_type(annotation, key)
    return wants_grad, key


def _bind_on_device(annotation: NdarrayType, value: Any, call: Call, number: int, program: Program) -> Key:
    """An array of another library where the program's memory is not the host's."""
    near = near_array(value, program.device.link)
    array = host_array(value) if near is None else near
    wants_grad, key = _foreign_key(annotation, value, array, program)
    first = len(call.words)
    call.words += struct.pack(f"<{1 + key.ndim}Q", 0, *array.shape[: key.ndim])
    call.keys[number] = key
    _pass_on_device(program, array, call, number, first)
    if wants_grad:
        grad = torch_gradient(value)
        if key.has_grad:
            there = near_array(grad, program.device.link)
            given: Any = host_array(grad) if there is None else there
            _check_gradient(given, array.shape, key.dtype)
            call.words += bytes(8)
            _pass_on_device(program, given, call, ("grad", number), len(call.words) - 8)
            if there is None and lives_elsewhere(grad):
                call.after.append((("grad", number), lambda: _copy_to_torch(grad, given)))
    if is_torch(value):
        _write_back(value, array, call, number, near is not None)
    return key


def _pass_on_device(program: Program, array: Any, call: Call, number: Any, word: int) -> None:
    """Put an array's address into the words of the launch, or have it lent when the launch is made. ``number``: as in ``Call.after``."""
    is_data = isinstance(number, int)
    if isinstance(array, NearArray):
        taken = take(array, call, number)
        call.words[word : word + 8] = taken.address.to_bytes(8, "little")
        if is_data:
            arrays: dict[int, Any] = call.arrays
            arrays[number], call.at[number], call.reads[number] = taken, taken.address, taken.copy
            if array.readonly:
                call.readonly.append(number)
        return
    if is_data:
        twin = next((k for k, other in call.sources.items() if same_view(other, array)), None)
        call.arrays[number] = array if twin is None else call.arrays[twin]
        call.sources[number] = array
        if not array.flags.writeable or _repeats(array):
            call.readonly.append(number)
    lend(program, array, call, number, word)


def _type_of(annotation: NdarrayType, array: Any) -> tuple[DType, int, tuple[int, ...]]:
    try:
        dtype = from_numpy(array.dtype.newbyteorder("="))
    except KeyError:
        raise QdrunTypeError(f"numpy dtype {array.dtype} has no kernel type", hint="use array.astype(..)") from None
    element = annotation.element or ()
    if annotation.element is None and annotation.element_dim:  # vectors or matrices of any size: the last axes
        if array.ndim < annotation.element_dim:
            raise QdrunFitError(f"expected element_dim {annotation.element_dim}, got an array of shape {array.shape}")
        element = tuple(array.shape[array.ndim - annotation.element_dim :])
    if array.ndim < len(element) or array.shape[array.ndim - len(element) :] != element:
        raise QdrunFitError(f"expected elements of shape {element}, got an array of shape {array.shape}")
    return dtype, array.ndim - len(element), element


def _passed(array: np.ndarray, dtype: DType, call: Call, number: int) -> np.ndarray:
    """The array itself, or a copy that is written back after the launch; one copy for the same view given twice."""
    flags = array.flags
    if not flags.writeable or _repeats(array):
        call.readonly.append(number)
    if flags.c_contiguous and flags.aligned and array.dtype.isnative:
        return array if type(array) is np.ndarray else array.view(np.ndarray)
    twin = next((k for k, other in call.sources.items() if same_view(other, array)), None)
    copy = np.array(array, dtype.numpy, order="C") if twin is None else call.arrays[twin]
    if flags.writeable:
        call.after.append((number, lambda: np.copyto(array, copy)))
    return copy


def _repeats(array: np.ndarray) -> bool:
    """Whether elements of an array share memory, as those of an expanded tensor: which of them a write changes has no answer."""
    return (
        array.size > 0
        and 0 in array.strides
        and any(step == 0 and extent > 1 for step, extent in zip(array.strides, array.shape))
    )


def _pass_gradient(grad: Any, shape: tuple[int, ...], dtype: DType, call: Call, number: int) -> int:
    """The address of the gradient of a torch tensor, or of a copy that is written back when the kernel writes to it."""
    array = host_array(grad)
    _check_gradient(array, shape, dtype)
    if array.flags.c_contiguous and not lives_elsewhere(grad):
        return array.ctypes.data
    copy = np.array(array, order="C")
    call.kept.append(copy)
    call.after.append((("grad", number), lambda: _copy_to_torch(grad, copy)))
    return copy.ctypes.data


def _check_gradient(array: Any, shape: tuple[int, ...], dtype: DType) -> None:
    if array.shape != shape or array.dtype != dtype.numpy:
        raise QdrunFitError(f"its .grad has shape {array.shape} and type {array.dtype}, not {shape} and {dtype}")


def _write_back(value: Any, array: Any, call: Call, number: int, near: bool = False) -> None:
    """Updates a torch tensor after a kernel has written to it: copies its content back if it was staged, and bumps its version."""
    if lives_elsewhere(value) and not near:  # `array` is a copy, which is up to date by then
        call.after.append((number, lambda: _copy_to_torch(value, array)))
    else:
        call.after.append((number, lambda: mark_written(value)))


def _copy_to_torch(tensor: Any, array: np.ndarray) -> None:
    import torch

    bare(tensor).copy_(torch.from_numpy(array))


def _check_type(annotation: NdarrayType, key: Key) -> None:
    if annotation.dtype is not None and annotation.dtype is not key.dtype:
        hint = f"pass an array of {annotation.dtype}, or annotate the parameter with {key.dtype}"
        raise QdrunTypeError(f"expected dtype {annotation.dtype}, got {key.dtype}", hint=hint)
    checks = (
        ("number of axes", annotation.ndim, key.ndim),
        ("element shape", annotation.element, key.element),
        ("element_dim", annotation.element_dim, len(key.element)),
        ("needs_grad", annotation.needs_grad, key.has_grad),
    )
    for what, wanted, got in checks:
        if wanted is not None and wanted != got:
            hint = "pass such an array, or change the annotation of the parameter"
            raise QdrunTypeError(f"expected {what} {wanted}, got {got}", hint=hint)


# ---- what a launch must not be given
def check_memory(name: str, variant: Variant, call: Call) -> None:
    """Refuse arrays that this kernel must not be given as they are. It takes different arguments and fields for different memory.

    Raises:
        QdrunRuntimeError: an array that is read-only is written; an array that had to be copied shares elements with another one, or an
            array shares elements with a field that the kernel uses, and one of the two is written.
    """
    written = variant.compiled_kernel.forward.written
    names = [d.name for d in variant.head.args]
    for number in call.readonly:
        if number in written:
            given = call.sources.get(number, call.arrays[number])
            shared = isinstance(given, np.ndarray) and given.flags.writeable
            why = "shows one element in many places" if shared else "is read-only, or a copy that its library made"
            raise QdrunRuntimeError(
                f"kernel `{name}` writes to `{names[number]}`, and the array given for it {why}\n  do: pass array.copy()"
            )
    for number, original in call.sources.items():
        for other, array in call.arrays.items():
            seen = call.sources.get(other, array)
            one_copy = call.arrays[number] is array
            if not one_copy and (number in written or other in written) and _share(original, seen):
                raise QdrunRuntimeError(
                    f"kernel `{name}` got parts of one array for `{names[number]}` and `{names[other]}` that overlap, and writes to them;"
                    f" one had to be copied\n  do: pass copies, or contiguous arrays"
                )
    for number, array in call.arrays.items():
        given = call.sources.get(number, array)
        first, end = _bytes_of(given) if number not in call.at else (call.at[number], call.at[number] + given.nbytes)
        for memory in variant.owners.values():
            if first < memory.ptr + memory.nbytes and memory.ptr < end:
                _check_field(name, variant, memory, names[number], given, number in written)


def _check_field(name: str, variant: Variant, memory: Allocation, arg: str, array: np.ndarray, written: bool) -> None:
    """Refuse an array that lies in the memory of a field, if the kernel uses that very field and writes to one of them."""
    stores = {place for place, _, _ in variant.compiled_kernel.writes}
    for place in kernel_places(variant.compiled_kernel.ir):
        if variant.owners.get(place.buffer) is not memory or not (written or place in stores):
            continue
        assert place.shape is not None
        view = np.ndarray(place.shape, place.dtype.numpy, memory.view.data, place.offset, place.strides)
        # of an array of another library on the device it is known that it lies in the memory of the field; that is enough
        if isinstance(array, NearArray) or _share(array, view):
            raise QdrunRuntimeError(
                f"kernel `{name}` uses `{place.name}`, and the array given for `{arg}` is a part of its memory; it writes to one of them\n"
                "  do: pass a copy"
            )


def _bytes_of(array: np.ndarray) -> tuple[int, int]:
    """The first address of an array's memory, and the one after its last."""
    first = array.__array_interface__["data"][0]
    return (first, first + array.nbytes) if array.flags.c_contiguous else byte_bounds(array)


def _share(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays have an element in common; True when that is too hard to say."""
    if isinstance(a, NearArray) or isinstance(b, NearArray):
        return may_share(a, b)
    try:
        return np.may_share_memory(a, b) and np.shares_memory(a, b, max_work=_EFFORT)
    except np.exceptions.TooHardError:
        return True
