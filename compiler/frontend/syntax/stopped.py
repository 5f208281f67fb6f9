"""``stop_grad``: of a field, what the block around the call reads of it contributes nothing to a gradient; of a value, a copy without one.

A read that is stopped goes through the operation ``detach``: the operand itself, with derivative zero.
"""

from __future__ import annotations

import ast
from typing import Any

from ...errors import QdrunSyntaxError, QdrunTypeError
from ...ir.nodes import Block, Kernel, Op, Place
from ...ir.walk import walk
from ...passes.clone import substitute
from ..markers import stop_grad
from ..source.keywords import positional
from ..state.context import Context, Stop, describe, is_runtime
from ..values import ops
from ..values.structs import StructTensor, rebuild, scalars, shape_of
from ..values.tensor import TensorRef
from ..values.values import StructValue


def lower_stop_grad(cx: Context, node: ast.Call) -> Any:
    """``stop_grad(x)`` of a field or an array notes that reads of it stop here; of a value it is that value, detached.

    Raises:
        QdrunSyntaxError: at the top level of a function that is inlined at the kernel's top level.
        QdrunTypeError: not one argument, or one that is no field, array or value.
    """
    (argument,), _ = positional(stop_grad, node.args, {str(k.arg): k.value for k in node.keywords})
    value = cx.expr(argument)
    if isinstance(value, (TensorRef, StructTensor)):
        _stop_reads(cx, real_places(value))
        return None
    if isinstance(value, StructValue) and value.is_data:
        return rebuild(shape_of(value), [ops.detached(cx.b, x) for x in scalars(value)])
    if is_runtime(value) or ops.is_number(value):
        return ops.elementwise(lambda x: ops.detached(cx.b, x), ops.as_value(cx.b, value))
    raise no_gradient(describe(value))


def no_gradient(what: str) -> QdrunTypeError:
    """The error of ``stop_grad`` of something else."""
    return QdrunTypeError(f"{what} has no gradient to stop", hint="give stop_grad() a field, an array or a value")


def real_places(value: TensorRef | StructTensor) -> frozenset[Place]:
    """The places of a field or an array that may have a gradient."""
    return frozenset(p for p in value.places if p.dtype.is_real)


def _stop_reads(cx: Context, places: frozenset[Place]) -> None:
    top = is_top(cx)
    if top and len(cx.frames) > 1:
        raise in_parts()
    cx.stops.append((None if top else cx.b.block, places))


def is_top(cx: Context) -> bool:
    """Whether loops that stand here are parallel, and become tasks of their own."""
    return cx.frame.top and cx.where == "serial" and cx.frame.depth == 0


def in_parts() -> QdrunSyntaxError:
    """The error of a function of which the reads are those of several tasks."""
    hint = "call it in the kernel, or inside the loop"
    return QdrunSyntaxError("stop_grad() of a field at the top level of a function with parallel loops", hint=hint)


def stop_reads(kernel: Kernel, stops: list[Stop]) -> None:
    """Detach the reads that ``stops`` names, in the whole kernel, in place: those before a call in the same block, too."""
    loads: set[Op] = set()
    for block, places in stops:
        where = [block] if block is not None else [t.body for t in kernel.tasks]
        for s in (s for b in where for s in walk(b)):
            if isinstance(s, Op) and s.op == "gload" and s.attr in places:
                loads.add(s)
    if not loads:
        return
    for task in kernel.tasks:
        known: dict[Op, Op] = {}
        task.body = _detach(task.body, loads, known)


def _detach(block: Block, loads: set[Op], known: dict[Op, Op]) -> Block:
    """The block with a ``detach`` behind each of the loads, which later statements read instead."""
    out: Block = []
    for s in block:
        substitute(s, known)
        out.append(s)
        for inner in ("then", "orelse", "body"):
            if hasattr(s, inner):
                setattr(s, inner, _detach(getattr(s, inner), loads, known))
        if isinstance(s, Op) and s in loads:
            known[s] = Op("detach", (s,), s.dtype, None, s.loc)
            out.append(known[s])
    return out
