"""Kernels that a tape launches in parts, between which it keeps what the backward pass needs; see ``passes.parts``."""

from __future__ import annotations

import ast
from typing import Any

from ...errors import QdrunNameError
from ...frontend.markers import atomic_mul, static
from ...frontend.source.parse import FunctionSource
from ...program.memory.device_arrays import NearArray
from ...program.program import Program
from ..data.ndarray import Ndarray

_NUMBERS = frozenset((int, float, bool))


def may_have_parts(source: FunctionSource) -> bool:
    """Whether a tape may launch a kernel in parts: it has more than one statement beside its docstring, a loop around several loops, or a
    product in place.
    """
    idle = [
        isinstance(s, ast.Pass) or (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant)) for s in source.tree.body
    ]
    loops = [sum(isinstance(inner, ast.For) for inner in s.body) for s in source.tree.body if isinstance(s, ast.For)]
    several = idle.count(False) > 1 or any(n > 1 for n in loops)
    return several or any(_may_multiply(source, node) for node in ast.walk(source.tree))


def _may_multiply(source: FunctionSource, node: ast.AST) -> bool:
    """Whether a statement updates an element by a factor, or calls a function that may: one that is neither Python's nor the language's."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        try:
            called = source.peek(node.func.id)
        except QdrunNameError:
            return True
        return called is atomic_mul or getattr(called, "__module__", "") not in ("builtins", static.__module__)
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr == "atomic_mul"
    return isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Mult)


def parts_of(kernel: Any, program: Program, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The kernels that are launched instead of a kernel for these arguments, one after another; none: it is launched as it is.

    Args:
        kernel: the kernel.
        program: the current program.
        args: all arguments, in the order of the parameters.

    Raises:
        DifferentiationError: no correct gradient exists, by name and line, in parts or as a whole.
    """
    if not (kernel.several and program.recorders.reverses):
        return ()
    key, known = _key(kernel, program, args), program.parts.setdefault(kernel, {})
    count = known.get(key)
    if key is None and program.recorders.rehearsal is None and _are_whole(kernel):
        return ()
    if count is None:
        variant, bound = kernel.variant(args, {})
        count = 0 if _keeps_nothing(program, bound) and variant.reverses_whole else len(variant.parts)
        if key is not None:
            known[key] = count
    while len(kernel.parts) < count:
        kernel.parts.append(_part(kernel, len(kernel.parts)))
    return tuple(kernel.parts[:count])


def _are_whole(kernel: Any) -> bool:
    """Whether each variant so far is launched as it is: binding takes longer than a launch. A tape refuses a new one that has parts."""
    variants = kernel.variants().values()
    return bool(variants) and all("parts" in v.__dict__ and not v.parts for v in variants)


def _key(kernel: Any, program: Program, args: tuple[Any, ...]) -> object:
    """Equal for launches of one variant; None: only binding tells."""
    if not all(type(a) in _NUMBERS or type(a) is Ndarray for a in args):
        return None
    if any(kernel.binder.is_template):
        return None
    forms = (type(a) if type(a) in _NUMBERS else a._key for a in args)
    return (program.recorders.second_order is not None, program.recorders.recording is not None, *forms)


def _keeps_nothing(program: Program, bound: Any) -> bool:
    """Whether a tape can keep nothing of a launch: it is captured, or gets memory of another library's device."""
    return program.recorders.recording is not None or any(isinstance(a, NearArray) for a in bound.call.arrays.values())


def _part(kernel: Any, number: int) -> Any:
    made = type(kernel)(kernel.fn)
    made.__dict__["source"] = kernel.source
    made.whole = kernel, number
    return made


def launch_parts(parts: tuple[Any, ...], program: Program, args: tuple[Any, ...]) -> Any:
    """Launch the parts of a kernel, with the random numbers of one launch; what the kernel returns."""
    result = None
    with program.seeds.shared():
        for part in parts:
            found = part(*args)
            result = result if found is None else found  # one of them returns values
    return result
