"""The entry of the front end: a Python function and its argument types in, a kernel of the IR out."""

from __future__ import annotations

import ast
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from ..ir.nodes import Kernel
from ..ir.verify import verified
from .arguments import bind_arguments
from .pools import plan_pools
from .regions import lower_with, top_with
from .signature import ArgSpec, LowerOptions
from .source.inputs import Inputs
from .source.parse import FunctionSource
from .state.builder import FrontBuilder
from .state.context import Context, ExprHandler, StmtHandler
from .state.scope import Frame
from .syntax import calls, conditions, expressions, inline, loops, messages, offload, statements
from .syntax.stopped import stop_reads
from .syntax.tasks import Tasks


@verified(lowered=False)
def lower(
    source: FunctionSource, args: dict[str, ArgSpec], options: LowerOptions | None = None, inputs: Inputs | None = None
) -> Kernel:
    """Lower a kernel: every function inlined, every type known, top-level loops as parallel tasks.

    Args:
        source: the kernel's function.
        args: the known properties of each parameter.
        options: default types, checks, the kernel's name.
        inputs: records the values that are looked up outside of the kernel.

    Raises:
        QdrunSyntaxError: Python that kernels do not have.
        QdrunTypeError: types or shapes do not fit; a read-only name is assigned.
        QdrunNameError: a name is used where it has no value.
        QdrunIndexError: wrong number of indices, or a constant out of range.
    """
    options = options or LowerOptions()
    options = options if options.name else replace(options, name=source.name)
    kernel = Kernel(options.name, [], [], loc=source.loc(source.tree, options.name))
    b = FrontBuilder(
        *([], options.default_fp, options.default_ip, options.debug),
        check_bounds=options.debug or options.check_out_of_bound,
        overflow="wrap" if source.wraps else options.overflow,
        nan_check=options.nan_check,
    )
    cx = Context(b, options, Tasks(kernel, b), EXPRESSIONS, STATEMENTS, TOP_STATEMENTS, inputs=inputs)
    frame = Frame(source, top=True)
    with nullcontext() if inputs is None else inputs.recording():
        bind_arguments(cx, frame, source, args)
        cx.frames.append(frame)
        left = cx.top_block(source.tree.body)
        cx.tasks.close(cx.frames)
        if left != "return":
            with cx.at(source.tree):
                inline.refuse_missing_value(source, None)
    stop_reads(kernel, cx.stops)
    plan_pools(kernel, b.pools)
    return kernel


def _nothing(cx: Context, node: Any) -> None:
    """A statement without effect."""


EXPRESSIONS: dict[type[ast.AST], ExprHandler] = {
    ast.Constant: expressions.lower_constant,
    ast.Name: expressions.lower_name,
    ast.Tuple: expressions.lower_tuple,
    ast.List: expressions.lower_tuple,
    ast.Dict: expressions.lower_dict,
    ast.BinOp: expressions.lower_binary,
    ast.UnaryOp: expressions.lower_unary,
    ast.Subscript: expressions.lower_subscript,
    ast.Attribute: expressions.lower_attribute,
    ast.Compare: conditions.lower_compare,
    ast.BoolOp: conditions.lower_bool,
    ast.IfExp: conditions.lower_if_exp,
    ast.ListComp: conditions.lower_comprehension,
    ast.GeneratorExp: conditions.lower_comprehension,
    ast.DictComp: conditions.lower_dict_comprehension,
    ast.NamedExpr: statements.lower_named,
    ast.Call: calls.lower_call,
    ast.JoinedStr: messages.lower_format,
}
STATEMENTS: dict[type[ast.AST], StmtHandler] = {
    ast.Pass: _nothing,
    ast.Expr: calls.lower_expression_statement,
    ast.Assign: statements.lower_assign,
    ast.AnnAssign: statements.lower_annotated,
    ast.AugAssign: statements.lower_augmented,
    ast.If: statements.lower_if,
    ast.For: loops.lower_for,
    ast.While: loops.lower_while,
    ast.With: lower_with,
    ast.Break: statements.lower_break,
    ast.Continue: statements.lower_continue,
    ast.Return: inline.lower_return,
    ast.Assert: messages.lower_assert,
}
TOP_STATEMENTS: dict[type[ast.AST], StmtHandler] = {
    ast.Pass: _nothing,
    ast.For: offload.top_for,
    ast.With: top_with,
    ast.If: offload.top_if,
    ast.Expr: calls.top_expression,
}
