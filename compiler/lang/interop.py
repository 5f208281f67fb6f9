"""Arrays of other libraries: our memory as theirs, and theirs as numpy arrays. numpy, torch, and whatever speaks DLPack.

Torch is never imported here unless a caller asks for a torch tensor: a value can only be a torch tensor when torch is loaded already.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import QdrunRuntimeError, QdrunTypeError, QdrunValueError
from ..ir.trials import TrialLayout
from ..program.memory.device_arrays import is_torch
from ..runtime.mirror import Mirror
from . import interop_on_device as device_arrays
from .data.dtypes import resolve

_CPU = 1  # DLPack's number of the device


class ArrayConversions(device_arrays.SharedOnDevice):
    """The conversions that fields, ndarrays and tensors share. They all see the canonical shape: ``shape`` and then the element.

    A class that has it offers ``view``, the memory as a numpy array, and ``_written()``, the same when it is about to be written.
    ``_mirror`` looks after the host's copy on a device with memory of its own; it is None where the memory is the host's.
    """

    __slots__ = ()
    _mirror: Mirror | None

    @property
    def view(self) -> np.ndarray:
        """The memory as a numpy array, handed out."""
        raise NotImplementedError

    @property
    def _content(self) -> np.ndarray:
        """The same, for our own use."""
        raise NotImplementedError

    def _written(self, index: tuple[int, ...] | None = None, source: Any = None, parts: tuple[Any, ...] = ()) -> np.ndarray:
        raise NotImplementedError

    @property
    def _form(self) -> np.ndarray:
        """The same, for its shape and strides: on a device with memory of its own the content is perhaps an old one."""
        raise NotImplementedError

    def _mirror_if_placed(self) -> Mirror | None:
        """``_mirror``, without giving memory to what has none yet."""
        return self._mirror

    def _show(self) -> None:
        """Tell the recorders that the memory escaped."""
        raise NotImplementedError

    @property
    def _trials(self) -> TrialLayout:
        """The trials that each have their own content."""
        raise NotImplementedError

    def _columns(self, form: np.ndarray) -> np.ndarray:
        """A copy of ``_form``, or of a part of it, with the trials that it shows as first axis."""
        raise NotImplementedError

    def _refuse_sharing(self, what: str) -> None:
        """Refuse to hand out memory in which trials lie side by side."""
        raise NotImplementedError

    def _looked_at(self) -> None:
        """Tell the program that Python is about to read the content."""
        raise NotImplementedError

    def _saw(self, value: Any, index: Any = None) -> Any:
        """Tell the program what Python has read, the content or the element at an index; ``value``."""
        raise NotImplementedError

    def _hand_out(self, copy: bool | None) -> None:
        """Export the memory, unless it is a copy, and tell the recorders."""
        if copy is not True:
            _ = self.view

    def _refuse_host_view(self, what: str) -> None:
        """Refuse to show memory to the host that it cannot touch.

        Raises:
            QdrunValueError: it is on a device with memory of its own.
        """
        if self._mirror is not None:
            shared = "; torch.from_dlpack(x) shares it on the device" if self._mirror.link.dlpack is not None else ""
            raise QdrunValueError(
                f"{what} of {self._called()}: it is in device memory, which the host cannot access\n"
                f"  do: x.to_numpy() for a copy and x.from_numpy(array) to write it back{shared}"
            )

    def _as_numpy(self, form: Callable[[], np.ndarray], dtype: Any, copy: bool | None) -> np.ndarray:
        """``to_numpy`` of what ``form`` gives: a view of the memory."""
        self._looked_at()
        array = form()
        found = self._shared(array, copy, lambda array, copy: numpy_of(array, dtype, copy, self._called()))
        if found is None:
            assert self._mirror is not None
            if copy is False:
                self._refuse_host_view("copy=False")
            found = numpy_of(self._mirror.copied(array), dtype, None, self._called())
        return self._saw(found)

    def _as_torch(self, form: Callable[[], np.ndarray], device: Any, copy: bool | None) -> Any:
        """``to_torch`` of what ``form`` gives: a view of the memory."""
        self._looked_at()
        array = form()
        found = self._shared(array, copy, lambda array, copy: torch_of(array, device, copy, self._called()))
        return self._saw(device_arrays.torch_of(self, array, device, copy) if found is None else found)

    def _shared(self, array: np.ndarray, copy: bool | None, convert: Callable[[np.ndarray, bool | None], Any]) -> Any:
        """Memory as an array of another library, by ``convert``; None: it is on a device with memory of its own, and of no trials."""
        if self._trials.batched:
            if copy is False:
                self._refuse_sharing("copy=False")
            return convert(self._columns(array), None)
        if self._mirror is None:
            self._hand_out(copy)
            return convert(array, copy)
        return None

    def _called(self) -> str:
        """The name in messages."""
        return "ndarray"

    def to_numpy(self, dtype: Any = None, *, copy: bool | None = True) -> np.ndarray:
        """The content as a numpy array. In a batched program the first axis are the trials.

        Args:
            dtype: cast to this type.
            copy: True for a copy; False for the memory itself, in which writes are seen by both sides until the program is closed; None
                for the memory itself unless the type differs.

        Raises:
            QdrunValueError: ``copy=False`` with another type, or in a batched program.
        """
        return self._as_numpy(lambda: self._form, dtype, copy)

    def to_torch(self, device: Any = None, *, copy: bool | None = True) -> Any:
        """The content as a torch tensor; ``copy`` as in ``to_numpy``.

        Raises:
            QdrunValueError: ``copy=False`` with another device, or torch cannot show this memory.
        """
        return self._as_torch(lambda: self._form, device, copy)

    def from_torch(self, arr: Any) -> None:
        """Copy a torch tensor of the same shape, from any device; values are cast.

        Raises:
            QdrunTypeError: the shapes differ, or it is no dense tensor.
        """
        self._written(None, arr)
        if self._trials.batched or not device_arrays.assign_near(self, arr, self._form):
            self._assign(host_array(arr, cast=True))

    def _assign(self, array: np.ndarray) -> None:
        """Copy an array of the shape that ``to_numpy`` shows, without a note."""
        raise NotImplementedError

    def to_dlpack(self, versioned: bool = False) -> Any:
        """The memory itself as a DLPack capsule, for ``torch.utils.dlpack.from_dlpack``. ``versioned``: of DLPack 1 instead of 0.

        Raises:
            QdrunValueError: its strides are no multiples of the element's size (records of unequal types).
        """
        self._refuse_sharing("DLPack")
        version, form = (1, 0) if versioned else None, self._form
        if self._mirror is not None:
            return device_arrays.capsule_of(self, form, version)
        return capsule_of(self.view, version, self._called())

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        self._refuse_sharing("DLPack")
        form = self._form
        if self._mirror is not None:
            return device_arrays.dlpack(self, form, max_version, dl_device, copy)
        if dl_device is not None and tuple(dl_device) != (_CPU, 0):
            raise QdrunValueError(f"{self._called()} lies in the memory of the CPU, not on DLPack device {tuple(dl_device)}")
        view = np.array(self._content) if copy else self.view
        return capsule_of(view, max_version, self._called())

    def __dlpack_device__(self) -> tuple[int, int]:
        self._refuse_sharing("DLPack")
        _ = self._form
        return (_CPU, 0) if self._mirror is None else device_arrays.dlpack_device(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        self._looked_at()
        if copy is False:
            return self._saw(numpy_of(self.view, dtype, False, self._called()))
        return self._saw(np.array(self._columns(self._form), dtype))


# ---- out
def numpy_of(view: np.ndarray, dtype: Any, copy: bool | None, name: str) -> np.ndarray:
    """``view``, or a copy of it; see ``ArrayConversions.to_numpy``."""
    wanted = None if dtype is None else resolve(dtype).numpy
    if copy is True:
        return np.array(view, wanted, order="C")
    if wanted is None or wanted == view.dtype:
        return view
    if copy is False:
        raise QdrunValueError(
            f"copy=False cannot change the type of {name} from {view.dtype} to {wanted}; do: copy=None or True"
        )
    return np.array(view, wanted, order="C")


def torch_of(view: np.ndarray, device: Any, copy: bool | None, name: str) -> Any:
    """A torch tensor of the memory, or of a copy; see ``ArrayConversions.to_torch``.

    Raises:
        QdrunRuntimeError: torch is not installed.
    """
    try:
        import torch
    except ImportError as e:
        raise QdrunRuntimeError("torch is not installed; do: pip install torch, or use to_numpy()") from e
    elsewhere = device is not None and torch.device(device).type != "cpu"
    if copy is False and elsewhere:
        raise QdrunValueError(f"copy=False: {name} lies in the memory of the CPU, not on {device}; do: copy=None or True")
    if copy is not True and not elsewhere:
        try:
            return torch.from_numpy(view)
        except (ValueError, TypeError) as e:
            if copy is False:
                raise QdrunValueError(f"torch cannot show the memory of {name}: {e}; do: copy=None or True") from e
    made = torch.from_numpy(np.array(view, order="C"))
    return made.to(device) if elsewhere else made


def capsule_of(view: np.ndarray, version: tuple[int, int] | None, name: str) -> Any:
    """A DLPack capsule that keeps the memory alive."""
    try:
        return view.__dlpack__(max_version=version) if version is not None else view.__dlpack__()
    except (BufferError, RuntimeError) as e:
        raise QdrunValueError(f"the memory of {name} has no DLPack form: {e}; do: use to_numpy() or to_torch()") from e


# ---- in
def host_array(value: Any, cast: bool = False) -> np.ndarray:
    """The memory of a foreign array as a numpy array; a copy of it when it lies on another device.

    Args:
        value: a numpy array, a torch tensor, or an object with ``__dlpack__``.
        cast: a type that numpy does not have (bfloat16) becomes f32; without it, it is refused.

    Raises:
        QdrunTypeError: it is none of these, or has no dense memory.
    """
    if isinstance(value, np.ndarray):
        # Asking numpy for `ma` imports it: tens of milliseconds of a first launch, and an import lock that a forked child would inherit.
        masked = getattr(sys.modules.get("numpy.ma"), "MaskedArray", None)
        if masked is not None and isinstance(value, masked):
            raise QdrunTypeError("a masked array has no place for its mask", hint="pass array.filled(..), or array.data")
        return value
    if is_torch(value):
        return _of_torch(value, cast)
    if hasattr(value, "__dlpack__"):
        try:
            return _of_producer(value)
        except (BufferError, RuntimeError, TypeError) as e:
            raise QdrunTypeError(
                f"this {type(value).__name__} cannot be shown to the CPU: {e}", hint="copy it to the CPU"
            ) from e
    hint = "pass numpy.array(..) of it" if isinstance(value, (list, tuple)) else ""
    raise QdrunTypeError(f"expected an ndarray, a numpy array or a torch tensor, got {type(value).__name__}", hint=hint)


def _of_producer(value: Any) -> np.ndarray:
    """The memory that an object shows by ``__dlpack__``. One that makes a copy each time is read-only: a write to it would be lost."""
    shown, again = np.from_dlpack(value), np.from_dlpack(value)
    if shown.size and shown.__array_interface__["data"][0] != again.__array_interface__["data"][0] and shown.flags.writeable:
        shown.flags.writeable = False
    return shown


def bare(value: Any) -> Any:
    """A tensor of torch itself on the memory of a tensor, outside of autograd, whatever a subclass makes of torch's methods.

    Raises:
        QdrunTypeError: it has no memory of its own.
    """
    torch = sys.modules["torch"]
    with torch._C.DisableTorchFunctionSubclass():
        plain = torch.Tensor.detach(value)
        shares = type(plain) is torch.Tensor and plain.data_ptr() == torch.Tensor.data_ptr(value)
    if not shares and value.numel():
        raise QdrunTypeError(
            f"a {type(value).__name__} has no memory that kernels can use", hint="pass a plain tensor of its content"
        )
    return plain


def _of_torch(value: Any, cast: bool) -> np.ndarray:
    torch = sys.modules["torch"]
    if value.layout is not torch.strided or value.is_quantized or value.is_meta:
        kind = "meta" if value.is_meta else "quantized" if value.is_quantized else str(value.layout)
        raise QdrunTypeError(
            f"a {kind} tensor of torch has no dense memory", hint="use tensor.to_dense(), or a tensor with data"
        )
    plain = bare(value)
    if plain.is_conj() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    if plain.device.type != "cpu":
        plain = plain.cpu()
    try:
        return plain.numpy()
    except TypeError as e:
        if not cast:
            raise QdrunTypeError(f"{value.dtype} has no kernel type", hint="use tensor.float()") from e
        return plain.float().numpy()


def lives_elsewhere(value: Any) -> bool:
    """Whether ``host_array`` of a torch tensor is a copy and not its memory."""
    return value.device.type != "cpu" or value.is_conj() or value.is_neg()


def torch_gradient(value: Any) -> Any:
    """``value.grad`` of a torch tensor that requires one; zeros are made when there is none yet.

    Raises:
        QdrunTypeError: its gradient is not on its device.
    """
    torch = sys.modules["torch"]
    grad = _present_gradient(value)
    if grad is None:
        grad = value.grad = torch.zeros_like(value, memory_format=torch.contiguous_format)
    if not isinstance(grad, torch.Tensor) or grad.device != value.device:
        raise QdrunTypeError("its .grad is not a tensor on the same device", hint="set .grad to None")
    return grad


def _present_gradient(value: Any) -> Any:
    """``value.grad``, without torch's warning about tensors that are no leaves: theirs is where kernels put it."""
    if value.is_leaf:
        return value.grad
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return value.grad


def mark_written(value: Any) -> None:
    """Tell torch's autograd that a kernel has written to a tensor: a graph that had saved its old content then says so."""
    torch = sys.modules["torch"]
    if not value.is_inference():
        torch.autograd.graph.increment_version(value)
