"""Blocks and loops that give a kernel stages: what users write, and what the front end makes of it.

``lang.launches.stages`` splits a graph kernel at its stages before it is lowered. What is lowered here are ``with`` blocks that say which
loops may overlap; they run in their order. Stages in other places are refused.
"""

from __future__ import annotations

import ast
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

from ..errors import QdrunSyntaxError
from .state.context import Context


def graph_do_while(condition: Any) -> bool:
    """``while qd.graph.do_while(c):`` at the top level of a graph kernel, or directly in another: run the body, and again while the number
    in ``c`` is not zero. ``c`` is an integer ndarray or field without axes. In plain Python: whether ``condition`` is true.
    """
    return bool(condition)


def graph_parallel_context() -> AbstractContextManager[None]:
    """``with qd.graph.parallel_context():`` around ``with qd.graph.parallel():`` blocks: these may overlap. They run in order."""
    return nullcontext()


def graph_parallel() -> AbstractContextManager[None]:
    """One of the blocks of ``graph_parallel_context``."""
    return nullcontext()


def stream_parallel() -> AbstractContextManager[None]:
    """``with qd.stream_parallel():`` in a kernel says that its loops may overlap those of the next such block. They run in order."""
    return nullcontext()


def checkpoint(cp_id: int, yield_on: Any) -> AbstractContextManager[None]:
    """``with qd.checkpoint(1, yield_on=flag):`` in a kernel with ``graph=True, checkpoints=True``: the kernel pauses after the block if the
    number in ``flag`` is not zero then. In plain Python it does nothing.

    Args:
        cp_id: a number or a member of an ``IntEnum`` that no other checkpoint of the kernel has.
        yield_on: an integer ndarray or field without axes. It is read, never written.
    """
    del cp_id, yield_on
    return nullcontext()


IN_ORDER = (graph_parallel_context, graph_parallel, stream_parallel)


def top_with(cx: Context, node: ast.With) -> str | None:
    """A ``with`` at the top level: its loops are parallel, one after another."""
    _check(cx, node)
    return cx.top_block(node.body)


def lower_with(cx: Context, node: ast.With) -> NoReturn:
    """A ``with`` elsewhere.

    Raises:
        QdrunSyntaxError: always.
    """
    name = _check(cx, node)
    raise QdrunSyntaxError(
        f"`{name}` stands inside of a loop or a branch", hint="put it at the top level of the kernel: its loops may run at once"
    )


def _check(cx: Context, node: ast.With) -> str:
    """The name of the region that a ``with`` opens.

    Raises:
        QdrunSyntaxError: kernels have no such ``with``, or not here.
    """
    call = node.items[0].context_expr
    found = cx.expr(call.func) if isinstance(call, ast.Call) else None
    if found is checkpoint:
        with cx.at(call):
            refuse_stage(cx, checkpoint)
    if found not in IN_ORDER or len(node.items) > 1 or node.items[0].optional_vars is not None:
        raise cx.refuse(node)
    assert isinstance(call, ast.Call)
    if call.args or call.keywords:
        raise QdrunSyntaxError(f"{ast.unparse(call.func)}() takes no arguments", hint="leave them out")
    return ast.unparse(call)


def refuse_stage(cx: Context, stage: Any) -> NoReturn:
    """Refuse a stage in a kernel that is not split there.

    Raises:
        QdrunSyntaxError: always.
    """
    checked = stage is checkpoint
    name = "qd.checkpoint" if checked else "qd.graph.do_while"
    options = "graph=True, checkpoints=True" if checked else "graph=True"
    form = f"with {name}(..):" if checked else f"while {name}(..):"
    raise QdrunSyntaxError(
        f"`{name}` is not possible here: a stage stands at the top level of a kernel with {options}, or directly in the body of"
        " `while qd.graph.do_while(..)`",
        hint=f"decorate the kernel with @qd.kernel({options}), and write `{form}` outside of other loops and branches",
    )
