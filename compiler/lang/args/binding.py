"""From a call to a launch: what each parameter accepts, the key of a specialisation, the words of the argument buffer."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np

from ...errors import QdrunFitError, QdrunSyntaxError, QdrunTypeError
from ...frontend.markers import Template
from ...frontend.signature import ArgSpec, MatrixArg, ScalarArg, TemplateArg
from ...frontend.source.parse import FunctionSource
from ...ir import types as t
from ...ir.types import DType
from ...options import Options
from ...program.call import Call
from ..data.element_types import MatrixType, NdarrayType, Optional
from ..data.field import Field
from ..data.matrix import Matrix
from ..data.ndarray import Ndarray
from ..data.struct import StructType
from ..data.tensor import Tensor, unwrap
from .annotations import is_dataclass_type, meaning
from .arrays import ANY_ARRAY, bind_array, is_array
from .columns import bind_column
from .records import bind_dataclass, bind_struct, bind_template, check_marked, kept

_PACK = {"f16": "<e6x", "f32": "<f4x", "f64": "<d", "u1": "<q"}
_EMPTY = object()


@dataclass(frozen=True)
class Param:
    """A parameter of a kernel.

    Attributes:
        annotation: see ``annotations.meaning``.
        is_self: it is the object of a method.
    """

    name: str
    annotation: Any
    default: Any = _EMPTY
    is_self: bool = False


def parameters(source: FunctionSource) -> list[Param]:
    """The parameters of a kernel, ``self`` as a template.

    Raises:
        QdrunSyntaxError: a parameter without an annotation, or with one that kernels do not take.
    """
    out: list[Param] = []
    for position, p in enumerate(source.parameters):
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            raise QdrunSyntaxError(f"kernel `{source.name}` has a `*` parameter", source.loc(source.tree), "write them out")
        implicit = position == 0 and source.annotation(p.name) is None and (p.name in ("self", "cls") or _of_a_class(source))
        annotation = Template if implicit else source.annotation(p.name)
        default = _EMPTY if p.default is p.empty else p.default
        out.append(Param(p.name, _accepted(source, p.name, annotation), default, implicit and p.name != "cls"))
    return out


def _of_a_class(source: FunctionSource) -> bool:
    """Whether a function was defined in the body of a class: its first parameter is the object, whatever its name."""
    around = source.fn.__qualname__.rpartition(".")[0]
    return bool(around) and not around.endswith("<locals>")


def _accepted(source: FunctionSource, name: str, annotation: Any) -> Any:
    if annotation is None:
        hint = f"write `{name}: qd.f32`, `{name}: qd.types.ndarray()` or `{name}: qd.template()`"
        raise QdrunSyntaxError(
            f"parameter `{name}` of kernel `{source.name}` has no annotation", source.loc(source.tree.args), hint
        )
    found = meaning(annotation)
    if found is not None:
        return found
    what = f"parameter `{name}` of kernel `{source.name}` has the annotation {annotation!r}, which kernels do not take"
    raise QdrunSyntaxError(
        what,
        source.loc(source.tree.args),
        "use a qd type, int, float, bool, qd.types.*, qd.Tensor, a dataclass or qd.template()",
    )


@dataclass
class Bound:
    """A bound call: the key of its specialisation, the specs for the front end, the launch's arguments, and what was given for each
    parameter.
    """

    key: tuple[Any, ...]
    specs: dict[str, ArgSpec]
    call: Call
    values: list[Any]

    def keeps(self) -> list[object]:
        """The objects that its specialisation must keep alive, because it is known by their identity."""
        return [x for spec in self.specs.values() for x in kept(spec)]


class Binder:
    """Binds calls of one kernel.

    Attributes:
        is_template: of each parameter, whether its value is compiled in.
        is_record: of each parameter, whether its value may have other members in each launch.
    """

    def __init__(self, name: str, params: Sequence[Param]) -> None:
        self.name, self.params = name, list(params)
        self._names = {p.name: k for k, p in enumerate(self.params)}
        self._orders: dict[tuple[Any, ...], itemgetter[Any]] = {}
        self._defaults = tuple(p.default for p in self.params)
        hints = [p.annotation for p in self.params]
        self.is_template = tuple(hint is Template for hint in hints)
        self.is_record = tuple(isinstance(hint, MatrixType) or is_dataclass_type(hint) for hint in hints)

    def has(self, name: str) -> bool:
        """Whether the kernel has a parameter of this name."""
        return name in self._names

    def in_order(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
        """What ``arguments`` gives. The order of each form of a call is kept."""
        form = (len(args), *kwargs)
        order = self._orders.get(form)
        if order is None:
            self.arguments(args, kwargs)  # raises
            named = {name: len(args) + k for k, name in enumerate(kwargs)}
            first = len(args) + len(kwargs)  # of the defaults
            places = [k if k < len(args) else named.get(p.name, first + k) for k, p in enumerate(self.params)]
            order = self._orders[form] = itemgetter(slice(0, 0), *places)  # of one place it gives no tuple
        return order((*args, *kwargs.values(), *self._defaults))[1:]

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
            hint = f"call {self.name}({', '.join(p.name for p in self.params if not p.is_self)})"
            raise QdrunTypeError(f"kernel `{self.name}` is missing {', '.join(f'`{n}`' for n in missing)}", hint=hint)
        return out

    def bind(self, values: list[Any], options: Options) -> Bound:
        """Bind all arguments.

        Raises:
            QdrunTypeError: an argument does not fit its annotation; names kernel, parameter and what was given.
            QdrunSyntaxError: the object of a method is not marked with ``data_oriented``.
        """
        if self.params and self.params[0].is_self:
            check_marked(values[0])
        bound = Bound((), {}, Call(bytearray(8)), values)
        key: list[Any] = []
        number = 0
        for p, value in zip(self.params, values):
            try:
                part, spec, number = _bind_one(p.annotation, value, options, bound.call, number)
            except QdrunTypeError as e:
                raise type(e)(f"kernel `{self.name}`, argument `{p.name}`: {e}") from None
            key.append(part)
            bound.specs[p.name] = spec
        bound.key = tuple(key)
        return bound


def _bind_one(annotation: Any, value: Any, options: Options, call: Call, number: int) -> tuple[Any, ArgSpec, int]:
    """Key, spec, and the number of the next ArgDecl."""

    def bind(annotation: Any, value: Any, number: int) -> tuple[Any, ArgSpec, int]:
        return _bind_one(annotation, value, options, call, number)

    if value is None and (isinstance(annotation, Optional) or annotation is Tensor):
        return ("absent",), TemplateArg(None), number
    if isinstance(annotation, Optional):
        annotation = annotation.inner
    if isinstance(annotation, StructType):
        return bind_struct(annotation, value, bind, number)
    if is_dataclass_type(annotation):
        return bind_dataclass(annotation, value, bind, number)
    if annotation is Template or annotation is Tensor:
        value = unwrap(value)
        if isinstance(value, Ndarray) or (annotation is Tensor and is_array(value)):
            return *bind_array(ANY_ARRAY, value, call, number), number + 1
        if annotation is Tensor and not isinstance(value, Field):
            raise QdrunTypeError(f"expected a tensor, a field, an ndarray, a numpy or torch array, got {type(value).__name__}")
        if options.raise_on_templated_floats and isinstance(value, (float, np.floating)):
            raise QdrunTypeError(
                f"the real number {value} is a template argument, so that each value compiles the kernel again",
                hint="annotate the parameter with qd.f32 or float; or leave out raise_on_templated_floats=True",
            )
        return bind_template(value, bind, ANY_ARRAY, number)
    if isinstance(annotation, NdarrayType):
        return *bind_array(annotation, value, call, number), number + 1
    if isinstance(annotation, MatrixType):
        return _bind_matrix(annotation, value, options, call, number)
    dtype = _scalar_type(annotation, options)
    if options.batch is not None and isinstance(value, (np.ndarray, list, tuple)) and np.ndim(value):
        bind_column(np.asarray(value), dtype, call, number)
        return (dtype, "per trial"), ScalarArg(dtype, per_trial=True), number + 1
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
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):  # of numpy or torch
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
        raise QdrunFitError(f"{value} does not fit {dtype} ({low} to {high})")
    hint = "pass a number; arrays, fields and objects need `qd.types.ndarray()` or `qd.template()` as annotation"
    if isinstance(value, float):
        hint = f"pass an integer, as int(x), or annotate the parameter with {'qd.f32' if dtype.bits < 64 else 'qd.f64'}"
    raise QdrunTypeError(f"expected {dtype}, got {value!r} of type {type(value).__name__}", hint=hint)


def pack(value: int | float, dtype: DType) -> bytes:
    """The 8-byte word of a scalar argument; a real too big for its type is infinite, as in numpy."""
    try:
        return struct.pack(_PACK.get(dtype.name, "<q" if dtype.is_signed else "<Q"), value)
    except OverflowError:
        return struct.pack(_PACK[dtype.name], math.copysign(math.inf, value))


def _bind_matrix(annotation: MatrixType, value: Any, options: Options, call: Call, number: int) -> tuple[Any, ArgSpec, int]:
    data = np.asarray(value.to_numpy() if isinstance(value, Matrix) else value)
    if data.shape != annotation.shape:
        raise QdrunFitError(f"expected {annotation}, got a value of shape {data.shape}")
    dtype = annotation.dtype or options.default_fp
    for item in data.reshape(-1).tolist():
        call.scalars[number] = _number(item, dtype)
        call.words += pack(call.scalars[number], dtype)
        number += 1
    return (dtype, annotation.shape), MatrixArg(dtype, annotation.shape), number
