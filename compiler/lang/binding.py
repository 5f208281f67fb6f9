"""From a call to a launch: what each parameter accepts, the key of a specialisation, the words of the argument buffer."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import QdrunSyntaxError, QdrunTypeError
from ..frontend.signature import ArgSpec, ArrayArg, MatrixArg, ScalarArg, TemplateArg
from ..frontend.source import FunctionSource
from ..frontend.syntax import Template, template
from ..ir import types as t
from ..ir.types import DType, from_numpy
from .executable import Call
from .matrix import Matrix
from .ndarray import Ndarray
from .options import Options
from .types import MatrixType, NDArray, NdarrayType

_PACK = {"f16": "<e6x", "f32": "<f4x", "f64": "<d", "u1": "<q"}
_EMPTY = object()


@dataclass(frozen=True)
class Param:
    """A parameter of a kernel: its name and annotation. ``annotation`` is a DType, int/float/bool, a type of ours, or Template."""

    name: str
    annotation: Any
    default: Any = _EMPTY


def parameters(source: FunctionSource) -> list[Param]:
    """The parameters of a kernel, ``self`` as a template.

    Raises:
        QdrunSyntaxError: a parameter without an annotation, or with one that kernels do not take.
    """
    out: list[Param] = []
    for position, p in enumerate(source.parameters):
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            raise QdrunSyntaxError(f"kernel `{source.name}` has a `*` parameter", source.loc(source.tree), "write them out")
        annotation = Template if position == 0 and p.name == "self" else source.annotation(p.name)
        default = _EMPTY if p.default is p.empty else p.default
        out.append(Param(p.name, _accepted(source, p.name, annotation), default))
    return out


def _accepted(source: FunctionSource, name: str, annotation: Any) -> Any:
    if annotation is None:
        hint = f"write `{name}: qd.f32`, `{name}: qd.types.ndarray()` or `{name}: qd.template()`"
        raise QdrunSyntaxError(
            f"parameter `{name}` of kernel `{source.name}` has no annotation", source.loc(source.tree.args), hint
        )
    if annotation is NDArray:
        return NdarrayType(None, None)
    if annotation is Template or annotation is template or isinstance(annotation, Template):
        return Template
    if isinstance(annotation, (DType, MatrixType, NdarrayType)) or annotation in (int, float, bool):
        return annotation
    what = f"parameter `{name}` of kernel `{source.name}` has the annotation {annotation!r}, which kernels do not take"
    raise QdrunSyntaxError(what, source.loc(source.tree.args), "use a qd type, int, float, bool, qd.types.* or qd.template()")


@dataclass
class Bound:
    """A bound call: the key of its specialisation, the specs for the front end, the launch's arguments."""

    key: tuple[Any, ...]
    specs: dict[str, ArgSpec]
    call: Call


class Binder:
    """Binds calls of one kernel."""

    def __init__(self, name: str, params: Sequence[Param]) -> None:
        self.name, self.params = name, list(params)
        self._names = {p.name: k for k, p in enumerate(self.params)}

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Positional order of all arguments, defaults filled in.

        Raises:
            QdrunTypeError: too many, unknown, doubled or missing arguments.
        """
        if len(args) > len(self.params):
            raise QdrunTypeError(f"kernel `{self.name}` takes {len(self.params)} arguments, {len(args)} were given")
        out = [*args, *(p.default for p in self.params[len(args) :])]
        for name, value in kwargs.items():
            at = self._names.get(name)
            if at is None or at < len(args):
                problem = "was given twice" if at is not None else "is not a parameter"
                raise QdrunTypeError(f"kernel `{self.name}`: `{name}` {problem}; parameters: {', '.join(self._names)}")
            out[at] = value
        missing = [p.name for p, value in zip(self.params, out) if value is _EMPTY]
        if missing:
            raise QdrunTypeError(f"kernel `{self.name}` is missing {', '.join(f'`{n}`' for n in missing)}")
        return out

    def bind(self, values: list[Any], options: Options) -> Bound:
        """Bind all arguments.

        Raises:
            QdrunTypeError: an argument does not fit its annotation; names kernel, parameter and what was given.
        """
        bound = Bound((), {}, Call(bytearray(8)))
        key: list[Any] = []
        number = 0
        for p, value in zip(self.params, values):
            try:
                part, spec, number = _bind_one(p.annotation, value, options, bound.call, number)
            except QdrunTypeError as e:
                raise QdrunTypeError(f"kernel `{self.name}`, argument `{p.name}`: {e}") from None
            key.append(part)
            bound.specs[p.name] = spec
        bound.key = tuple(key)
        return bound


def _bind_one(annotation: Any, value: Any, options: Options, call: Call, number: int) -> tuple[Any, ArgSpec, int]:
    """Key, spec, and the number of the next ArgDecl."""
    if annotation is Template:
        return _template_key(value), TemplateArg(value), number
    if isinstance(annotation, NdarrayType):
        return *_bind_array(annotation, value, call, number), number + 1
    if isinstance(annotation, MatrixType):
        return _bind_matrix(annotation, value, options, call, number)
    dtype = _scalar_type(annotation, options)
    call.scalars[number] = _number(value, dtype)
    call.words += pack(call.scalars[number], dtype)
    return dtype, ScalarArg(dtype), number + 1


def _scalar_type(annotation: Any, options: Options) -> DType:
    if annotation is int:
        return options.default_ip
    if annotation is float:
        return options.default_fp
    return t.u1 if annotation is bool else annotation


def _number(value: Any, dtype: DType) -> int | float:
    """A Python number that ``dtype`` can hold."""
    if isinstance(value, (np.generic, np.ndarray)) and getattr(value, "ndim", 0) == 0:
        value = value.item()
    if isinstance(value, bool) or (isinstance(value, int) and dtype.is_real):
        value = float(value) if dtype.is_real else int(value)
    if dtype.is_real and isinstance(value, float):
        return value
    if dtype.is_int and isinstance(value, int):
        low = -(1 << (dtype.bits - 1)) if dtype.kind == "i" else 0
        high = (1 << (dtype.bits - (dtype.kind == "i"))) - 1
        if low <= value <= high:
            return value
        raise QdrunTypeError(f"{value} does not fit {dtype} ({low} to {high})")
    raise QdrunTypeError(f"expected {dtype}, got {value!r} of type {type(value).__name__}")


def pack(value: int | float, dtype: DType) -> bytes:
    """The 8-byte word of a scalar argument; a real too big for its type is infinite, as in numpy."""
    try:
        return struct.pack(_PACK.get(dtype.name, "<q" if dtype.is_signed else "<Q"), value)
    except OverflowError:
        return struct.pack(_PACK[dtype.name], math.copysign(math.inf, value))


def _template_key(value: Any) -> tuple[Any, ...]:
    """Numbers, strings and types by value, everything else by identity (the specialisation keeps it alive)."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return float, value, str(value)  # -0.0 == 0.0
    if isinstance(value, (int, str, bool, DType, type(None))):
        return type(value), value
    return "id", id(value)


def _bind_matrix(annotation: MatrixType, value: Any, options: Options, call: Call, number: int) -> tuple[Any, ArgSpec, int]:
    data = np.asarray(value.to_numpy() if isinstance(value, Matrix) else value)
    if data.shape != annotation.shape:
        raise QdrunTypeError(f"expected {annotation}, got a value of shape {data.shape}")
    dtype = annotation.dtype or options.default_fp
    for item in data.reshape(-1).tolist():
        call.scalars[number] = _number(item, dtype)
        call.words += pack(call.scalars[number], dtype)
        number += 1
    return (dtype, annotation.shape), MatrixArg(dtype, annotation.shape), number


def _bind_array(annotation: NdarrayType, value: Any, call: Call, number: int) -> tuple[Any, ArgSpec]:
    if isinstance(value, Ndarray):
        dtype, ndim, element, has_grad = value._key
        call.arrays[number] = value.view
        call.keys[number] = value._key
        call.words += value._packed
    elif isinstance(value, np.ndarray):
        dtype, ndim, element, has_grad = _numpy_type(annotation, value)
        passed = _contiguous(value, call, number)
        call.arrays[number] = passed
        call.words += struct.pack(f"<Q{ndim}q", passed.ctypes.data, *passed.shape[:ndim])
    else:
        raise QdrunTypeError(f"expected an ndarray or a numpy array, got {type(value).__name__}")
    _check_array(annotation, dtype, ndim, element, has_grad)
    return (dtype, ndim, element, has_grad), ArrayArg(dtype, ndim, element, has_grad)


def _numpy_type(annotation: NdarrayType, value: np.ndarray) -> tuple[DType, int, tuple[int, ...], bool]:
    try:
        dtype = from_numpy(value.dtype)
    except KeyError:
        raise QdrunTypeError(f"numpy dtype {value.dtype} has no kernel type") from None
    element = annotation.element or ()
    if value.shape[value.ndim - len(element) :] != element:
        raise QdrunTypeError(f"expected elements of shape {element}, got an array of shape {value.shape}")
    return dtype, value.ndim - len(element), element, False


def _contiguous(value: np.ndarray, call: Call, number: int) -> np.ndarray:
    """The array itself, or a copy that is written back after the launch."""
    if value.flags.c_contiguous and value.flags.writeable and value.flags.aligned:
        return value
    copy = np.ascontiguousarray(value).copy() if not value.flags.writeable else np.ascontiguousarray(value)
    if value.flags.writeable:
        call.after.append((number, lambda: np.copyto(value, copy)))
    return copy


def _check_array(annotation: NdarrayType, dtype: DType, ndim: int, element: tuple[int, ...], has_grad: bool) -> None:
    checks = (
        ("dtype", annotation.dtype, dtype),
        ("number of axes", annotation.ndim, ndim),
        ("element shape", annotation.element, element),
        ("needs_grad", annotation.needs_grad, has_grad),
    )
    for what, wanted, got in checks:
        if wanted is not None and wanted != got:
            raise QdrunTypeError(f"expected {what} {wanted}, got {got}")
