"""The arguments of a kernel: entries of the IR, and what their names stand for in its body."""

from __future__ import annotations

from typing import Any

from ..errors import QdrunTypeError
from ..ir.nodes import ArgDecl, Kernel, Op
from .signature import ArgSpec, ArrayArg, RecordArg, ScalarArg, TemplateArg
from .source.parse import FunctionSource
from .state.context import Context
from .state.scope import Frame, Rematerialized
from .values.tensor import from_ndarray_arg
from .values.values import MatrixValue, StructValue, count


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
        return StructValue(spec.form, {key: _declare(cx, f"{name}.{key}", member) for key, member in spec.members.items()})
    if isinstance(spec, TemplateArg):
        for path, objects, type_ in spec.arrays:
            ref = _declare(cx, name + path, type_)
            cx.arrays |= {id(x): ref for x in objects}
        for path, owner, key, number in spec.numbers:
            cx.numbers[id(owner), key] = _declare(cx, name + path, number)
        return cx.python(spec.value)
    if isinstance(spec, ArrayArg):
        decl = ArgDecl(name, "ndarray", spec.dtype, spec.ndim, spec.element, spec.needs_grad)
        decl.needs_dual, decl.per_trial = spec.needs_dual, spec.per_trial
        return from_ndarray_arg(_entry(kernel, decl), spec.layout)
    if isinstance(spec, ScalarArg):
        return Rematerialized(_read(_entry(kernel, ArgDecl(name, "scalar", spec.dtype, per_trial=spec.per_trial))))
    entries = [_entry(kernel, ArgDecl(f"{name}.{k}", "scalar", spec.dtype)) for k in range(count(spec.shape))]
    return Rematerialized(MatrixValue(spec.shape, tuple(_read(e) for e in entries)))


def _entry(kernel: Kernel, decl: ArgDecl) -> ArgDecl:
    decl.index = len(kernel.args)
    kernel.args.append(decl)
    return decl


def _read(decl: ArgDecl) -> Op:
    """The reading of a scalar argument; never listed itself, each use emits a copy."""
    return Op("arg", (), decl.dtype, decl)
