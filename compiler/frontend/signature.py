"""What ``lower`` is told about a kernel's arguments, and how each becomes a binding and entries of the argument buffer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import QdrunTypeError
from ..ir.nodes import ArgDecl, Kernel, Op
from ..ir.types import DType, f32, i32
from .scope import Frame, Recipe
from .source import FunctionSource
from .tensor import from_ndarray_arg
from .values import Matrix, Struct, StructForm, count

if TYPE_CHECKING:
    from .context import Context


@dataclass(frozen=True)
class ScalarArg:
    """A number that comes with each launch."""

    dtype: DType


@dataclass(frozen=True)
class MatrixArg:
    """A vector ``(n,)`` or matrix ``(n, m)`` that comes with each launch: one scalar entry a component, ``v.0``, ``v.1``, .."""

    dtype: DType
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ArrayArg:
    """An ndarray that comes with each launch. ``element`` is ``()``, ``(n,)`` or ``(n, m)``; ``layout`` as in ``TensorRef``."""

    dtype: DType
    ndim: int
    element: tuple[int, ...] = ()
    needs_grad: bool = False
    needs_dual: bool = False
    layout: tuple[int, ...] | None = None


@dataclass(frozen=True, eq=False)
class TemplateArg:
    """Any Python object, known at compile time: a number, a field, the ``self`` of a method.

    Attributes:
        arrays: the ndarrays that it holds, which come with each launch: the path of each, the objects that stand for it now, its type.
        numbers: its numbers that come with each launch: the path of each, the object that has it, its name there, its type.
    """

    __qd_held__ = True  # ``tokens``: the arrays and numbers are not part of what is known

    value: Any
    arrays: tuple[tuple[str, list[Any], ArrayArg], ...] = ()
    numbers: tuple[tuple[str, Any, str, ScalarArg], ...] = ()


@dataclass(frozen=True, eq=False)
class RecordArg:
    """A struct, or a Python dataclass: an argument for each member."""

    form: StructForm
    members: dict[str, ArgSpec]


ArgSpec = ScalarArg | MatrixArg | ArrayArg | TemplateArg | RecordArg


@dataclass(frozen=True)
class LowerOptions:
    """How to lower.

    Attributes:
        name: the kernel's name; default the function's.
        debug: compile asserts and check every index.
        check_out_of_bound: check every index.
        overflow_check: check integer operations.
        nan_check: leave literals that make a NaN or an infinity to the machine, where that is found.
        breakpoints: ``breakpoint()`` is allowed: the kernel will be interpreted.
        blocks: threads meet in blocks: the kernel is for a GPU.
        returns: the types of the returned scalars, row-major; None: as they come.
    """

    name: str = ""
    default_fp: DType = f32
    default_ip: DType = i32
    debug: bool = False
    check_out_of_bound: bool = False
    overflow_check: bool = False
    nan_check: bool = False
    returns: tuple[DType, ...] | None = None
    breakpoints: bool = False
    blocks: bool = True


def bind_arguments(cx: Context, frame: Frame, source: FunctionSource, args: dict[str, ArgSpec]) -> None:
    """Declare the arguments in the order of the parameters and bind their names, read-only.

    Raises:
        QdrunTypeError: a parameter has no argument, or an argument no parameter.
    """
    names = [p.name for p in source.parameters]
    missing = [n for n in names if n not in args]
    unknown = [n for n in args if n not in names]
    if missing or unknown:
        what = f"is missing the argument `{missing[0]}`" if missing else f"has no parameter `{unknown[0]}`"
        raise QdrunTypeError(f"kernel `{source.name}` {what}", source.loc(source.tree.args, source.name))
    for name in names:
        spec = args[name]
        kind = "a template argument" if isinstance(spec, TemplateArg) else "an argument"
        frame.bind(name, _declare(cx, name, spec), f"{kind} of the kernel")


def _declare(cx: Context, name: str, spec: ArgSpec) -> Any:
    """Add the entries of one argument; its value."""
    kernel = cx.tasks.kernel
    if isinstance(spec, RecordArg):
        return Struct(spec.form, {key: _declare(cx, f"{name}.{key}", member) for key, member in spec.members.items()})
    if isinstance(spec, TemplateArg):
        for path, objects, type_ in spec.arrays:
            ref = _declare(cx, name + path, type_)
            cx.arrays |= {id(x): ref for x in objects}
        for path, owner, key, number in spec.numbers:
            cx.numbers[id(owner), key] = _declare(cx, name + path, number)
        return cx.python(spec.value)
    if isinstance(spec, ArrayArg):
        decl = ArgDecl(name, "ndarray", spec.dtype, spec.ndim, spec.element, spec.needs_grad, needs_dual=spec.needs_dual)
        return from_ndarray_arg(_entry(kernel, decl), spec.layout)
    if isinstance(spec, ScalarArg):
        return Recipe(_read(_entry(kernel, ArgDecl(name, "scalar", spec.dtype))))
    entries = [_entry(kernel, ArgDecl(f"{name}.{k}", "scalar", spec.dtype)) for k in range(count(spec.shape))]
    return Recipe(Matrix(spec.shape, tuple(_read(e) for e in entries)))


def _entry(kernel: Kernel, decl: ArgDecl) -> ArgDecl:
    decl.index = len(kernel.args)
    kernel.args.append(decl)
    return decl


def _read(decl: ArgDecl) -> Op:
    """The reading of a scalar argument; never listed itself, each use emits a copy."""
    return Op("arg", (), decl.dtype, decl)
