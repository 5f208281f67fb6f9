"""Lowers the iterators of ``for``, and sequential loops: ranges, nests, ``while``, unrolled loops."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...errors import QdrunSyntaxError, QdrunTypeError
from ...ir.nodes import Const, Exit, If, Local, LocalStore, Loop, Op, Operand
from ...ir.types import DType, i32, i64, limits, u64
from ...passes.exits import leaves
from ..markers import Grouped, NDRange, RangeSpec, static
from ..source.trees import nodes_in, nodes_of
from ..state.context import Context, describe, is_runtime
from ..state.scope import LoopState, assigned_names
from ..values import ops
from ..values.levels import LevelRef, is_active, visited
from ..values.matrix import new_local
from ..values.structs import StructTensor
from ..values.tensor import TensorRef
from ..values.values import MatrixValue
from .conditions import bind_names, emit_condition

LOOP_INDEX = "the index of a loop"


@dataclass(frozen=True, eq=False)
class IterationSpace:
    """A product of ranges: ``axes`` gives (begin, end) of each, ``grouped`` asks for one vector index.

    ``shift``: what the kernel's indices are above those of the axes, for each axis; None: nothing.
    ``order``: which index of the kernel each axis is; None: in their order.
    ``level``: the level whose active cells are visited; None: all.
    """

    axes: list[tuple[Operand, Operand]]
    grouped: bool = False
    step: int = 1
    shift: tuple[int, ...] | None = None
    order: tuple[int, ...] | None = None
    level: LevelRef | None = None

    @contextmanager
    def active(self, cx: Context, indices: list[Operand], parallel: bool = False) -> Iterator[list[Op]]:
        """Emit the loop's body for active cells only; gives the loads that decide, none where all are active."""
        level = self.level
        if level is None or level.deciding is None:
            yield []
            return
        flags = level.deciding.flags
        assert flags is not None
        cond, loads = visited(cx.b, level, tuple(indices)) if parallel else (is_active(cx.b, level, tuple(indices)), [])
        assert cond is not None
        with cx.b.if_(cond), cx.b.visiting(flags, level.extents, tuple(indices)):
            yield loads


def make_range(cx: Context, *args: Any) -> Any:
    """``range(..)``: Python's own when every bound is a Python number, else a ``RangeSpec``.

    Raises:
        QdrunTypeError: wrong number of arguments, or a step that is not a known number but zero.
    """
    args = tuple(
        int(a.value) if k == 2 and isinstance(a, Const) and a.dtype.is_int else bound_of(cx, a) for k, a in enumerate(args)
    )
    if not 1 <= len(args) <= 3:
        raise QdrunTypeError(f"range() takes one to three arguments, not {len(args)}")
    step = args[2] if len(args) == 3 else 1
    if not isinstance(step, int) or step == 0:
        hint = "use a while loop for a step that is only known at run time" if step != 0 else ""
        raise QdrunTypeError("the step of range() is a literal other than zero", hint=hint)
    begin, end = (0, args[0]) if len(args) == 1 else args[:2]
    if isinstance(begin, int) and isinstance(end, int):
        return range(begin, end, step)
    return RangeSpec(begin, end, step)


def bound_of(cx: Context, value: Any) -> Any:
    """A bound as a Python number, if it is known and its type says nothing that the loop must keep.

    A literal with a type, `i64(3)`, decides the type of the index as a value of run time does. Reals are truncated, as by ``int(x)``.
    """
    if isinstance(value, np.integer):
        return int(value)
    if not cx.static and _is_real(value):
        value = ops.cast_scalar(cx.b, ops.to_operand(cx.b, value), cx.b.default_ip)
    if not isinstance(value, Const) or not value.dtype.is_int:
        return value
    low, high = limits(i32)
    fits = low <= value.value <= high and (value.dtype.bits < 64 or cx.b.default_ip.bits == 64)
    return int(value.value) if fits or cx.static else value


def _is_real(value: Any) -> bool:
    if isinstance(value, (float, np.floating)):
        return math.isfinite(value)
    return isinstance(value, (Op, Const)) and value.dtype.is_real


def iterable(cx: Context, node: ast.expr) -> tuple[Any, bool]:
    """The iterator of a ``for``, and whether the loop is unrolled: ``static(..)``, either side of a static conditional."""
    with cx.at(node):
        if isinstance(node, ast.IfExp):
            cond = cx.static_truth(node.test)
            return iterable(cx, node.body if cond else node.orelse)
        if isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute)) and cx.expr(node.func) is static:
            over = cx.expr(node)
            cx.consumed(node, over)
            return _space(over), True
        over = _space(cx.expr(node))
        if isinstance(over, Grouped) and _has_no_axes(over.space):
            return over, True  # one element: nothing to loop over
        return over, False


def _has_no_axes(space: Any) -> bool:
    """Whether a space has one element, with an empty index: a field without axes, ``ndrange()``."""
    return space.ndim == 0 if isinstance(space, TensorRef) else isinstance(space, NDRange) and not space.bounds


def _space(over: Any) -> Any:
    """A field of structs has the index space of its members."""
    if isinstance(over, Grouped):
        return Grouped(_space(over.space))
    return over.first if isinstance(over, StructTensor) else over


def bound_type(b: Any, *bounds: Any) -> DType:
    """The type of a loop's index: i64 when a bound needs it, else i32.

    Raises:
        QdrunTypeError: a bound is not an integer.
    """
    values = [ops.to_operand(b, x) for x in bounds]
    for v in values:
        if not v.dtype.is_int:
            raise QdrunTypeError(f"a loop bound is an integer, not {v.dtype}", hint="convert it: int(x)")
    return i64 if any(v.dtype.bits == 64 for v in values) else i32


def space_of(cx: Context, over: Any) -> IterationSpace:
    """The ranges behind what a ``for`` runs over; bounds are emitted in the current block.

    Raises:
        QdrunTypeError: kernels cannot run over it, or a literal bound is beyond i64.
    """
    if isinstance(over, range):
        over = RangeSpec(over.start, over.stop, over.step)
    if isinstance(over, RangeSpec):
        dtype = bound_type(cx.b, over.begin, over.end)
        return IterationSpace([_bounds(cx, over.begin, over.end, dtype)], step=over.step)
    if isinstance(over, NDRange):
        nested = (over.bounds[axis] for axis in over.order)
        return IterationSpace([_bounds(cx, lo, hi, bound_type(cx.b, lo, hi)) for lo, hi in nested], order=over.order)
    if isinstance(over, TensorRef):
        bounds = [_bounds(cx, 0, n, i32) for n in over.shape(cx.b)]
        return IterationSpace(bounds, shift=over.offset, level=over.level)
    if isinstance(over, LevelRef):
        return IterationSpace([_bounds(cx, 0, n, i32) for n in over.extents], level=over)
    if isinstance(over, Grouped):
        return replace(space_of(cx, over.space), grouped=True, step=1)
    if isinstance(over, (tuple, list, zip, enumerate)) or is_runtime(over):
        raise QdrunTypeError(f"a loop cannot run over {describe(over)} at run time", hint="unroll it: `for .. in static(..)`")
    hint = "loop over range(), ndrange(), a field, grouped(), or static(..)"
    raise QdrunTypeError(f"a loop cannot run over {describe(over)}", hint=hint)


def _bounds(cx: Context, begin: Any, end: Any, dtype: DType) -> tuple[Operand, Operand]:
    """The ends of a range in the index's type, which is signed.

    Where both are u64 the end is brought to the side of 2**63 on which the range begins: beyond it indices wrap, and keep their order.
    """
    first, last = ops.to_operand(cx.b, begin), ops.to_operand(cx.b, end)
    if u64 in (first.dtype, last.dtype) and all(
        x.dtype is u64 or (isinstance(x, Const) and x.value >= 0) for x in (first, last)
    ):
        most = limits(dtype)[1]
        from_first, to_last = (cx.b.cast(x, u64) for x in (first, last))
        below = cx.b.op("min", to_last, Const(most, u64))
        above = cx.b.op("max", to_last, Const(most + 1, u64))
        last = cx.b.op("select", cx.b.op("gt", from_first, Const(most, u64)), above, below)
    return bound_as(cx, first, dtype), bound_as(cx, last, dtype)


def bound_as(cx: Context, bound: Any, dtype: DType) -> Operand:
    """A bound in the index's type.

    Raises:
        QdrunTypeError: a literal that does not fit.
    """
    value = ops.to_operand(cx.b, bound)
    if isinstance(value, Const) and not limits(dtype)[0] <= value.value <= limits(dtype)[1]:
        hint = "" if dtype is i64 else f"give the bound the type of a wider index: `i64({value.value})`"
        raise QdrunTypeError(f"the index of a loop has type {dtype}: the bound {value.value} does not fit", hint=hint)
    return ops.cast_scalar(cx.b, value, dtype)


def bind_index(cx: Context, node: ast.For, space: IterationSpace, indices: list[Operand]) -> None:
    """Bind the loop's names to its indices. A name that the body assigns is a variable of the iteration.

    Raises:
        QdrunTypeError: the number of names differs from the number of axes.
    """
    target = node.target
    if space.order is not None:
        indices = [indices[space.order.index(axis)] for axis in range(len(indices))]
    if space.shift is not None:
        indices = [cx.b.op("add", x, Const(by, x.dtype)) if by else x for x, by in zip(indices, space.shift)]
    if space.grouped:
        value: Any = MatrixValue((len(indices),), tuple(indices))
        if not isinstance(target, ast.Name):
            raise QdrunTypeError("grouped() gives one index vector", hint="write `for I in grouped(..)` and use I[0], I[1]")
    elif isinstance(target, ast.Name):
        if len(indices) != 1:
            names = f"write {len(indices)} names, or " if indices else "write "
            hint = f"{names}`for {target.id} in grouped(..)`"
            raise QdrunTypeError(f"1 name for {len(indices)} axes", hint=hint)
        value = indices[0]
    else:
        value = tuple(indices)
    cx.frame.hide(node)
    bind_names(cx, target, value, LOOP_INDEX)
    assigned = assigned_names(node.body)
    for name in [n.id for n in nodes_of(target) if isinstance(n, ast.Name) and n.id in assigned]:
        binding = cx.frame.find(name)
        assert binding is not None
        first = binding.value
        cx.frame.bind(name, new_local(cx.b, first, name) if isinstance(first, MatrixValue) else cx.b.local(first, name))


def lower_for(cx: Context, node: ast.For) -> str | None:
    """A ``for`` that is not at the top level of the kernel: unrolled, or run by one thread.

    Raises:
        QdrunSyntaxError: it has an ``else``.
    """
    no_else(node)
    over, unroll = iterable(cx, node.iter)
    if unroll:
        return unrolled(cx, node, over, cx.block)
    cx.next_loop.clear()
    serial_for(cx, node, over)
    return None


def no_else(node: ast.For | ast.While) -> None:
    """Refuse ``for .. else``.

    Raises:
        QdrunSyntaxError: there is one.
    """
    if node.orelse:
        raise QdrunSyntaxError(
            "a loop with `else` cannot be used in a kernel", hint="set a variable before `break`, test it afterwards"
        )


def unrolled(cx: Context, node: ast.For, over: Any, run: Callable[[list[ast.stmt]], str | None]) -> str | None:
    """Lower the body once for each value, while compiling."""
    if isinstance(over, Grouped) and isinstance(over.space, TensorRef):
        over = _static_space(cx, over.space, True)
    elif isinstance(over, TensorRef):
        over = _static_space(cx, over, False)
    grouped = isinstance(over, Grouped)
    if isinstance(over, MatrixValue):
        over = over.items
    if not hasattr(over, "__iter__"):
        raise QdrunTypeError(
            f"static() of {describe(over)} cannot be unrolled", hint="give it range(..), ndrange(..) or a tuple"
        )
    broken: Local | None = None
    for value in list(over):
        value = ops_vector(cx, value) if grouped else cx.python(value)
        with _iteration(cx, run == cx.block, broken) as loop:
            cx.frame.hide(node)
            bind_names(cx, node.target, value, LOOP_INDEX)
            left = run(node.body)
        broken = loop.broken
        if left == "break":
            break
        if left == "return":
            return left
    return None


@contextmanager
def _iteration(cx: Context, joined: bool, broken: Local | None) -> Iterator[LoopState]:
    """One iteration of an unrolled loop. Where a run-time condition may leave it, its statements become a loop of one iteration, in which
    an exit is a ``break``.

    Args:
        cx: where to emit.
        joined: whether all iterations stand in one block.
        broken: whether an earlier iteration has left the loop; None: none can.
    """
    with ExitStack() as stack:
        if broken is not None:
            going = cx.b.op("eq", cx.b.load(broken), Const(0, i32))
            stack.enter_context(cx.b.if_(going))
            stack.enter_context(cx.frame.scope())
        stack.enter_context(cx.frame.scope(runtime=False))
        loop = stack.enter_context(cx.frame.loop("static"))
        loop.joined, loop.broken = joined, broken
        block = cx.b.block
        start = len(block)
        yield loop
        if loop.left:
            body, block[start:] = block[start:], []
            if broken is None and loop.broken is not None:
                cx.b.put(LocalStore(loop.broken, Const(0, i32)))
            cx.b.put(Loop(Op("index", (), i32), Const(0, i32), Const(1, i32), body, loc=cx.b.loc))


def _static_space(cx: Context, ref: TensorRef, grouped: bool) -> Any:
    """Every index of a field, known while compiling."""
    if ref.level is not None:
        raise QdrunTypeError(
            f"which cells of `{ref.name}` are active is not known at compile time", hint="loop without static()"
        )
    if ref.extents is None:
        raise QdrunTypeError(f"the shape of `{ref.name}` is not known at compile time", hint="loop over it without static()")
    space = NDRange(tuple((lo, lo + n) for lo, n in zip(ref.begins, ref.extents)))
    if grouped:
        return Grouped(space)
    return range(*space.bounds[0]) if ref.ndim == 1 else space


def ops_vector(cx: Context, index: tuple[int, ...]) -> MatrixValue:
    """A Python index as a vector."""
    return MatrixValue((len(index),), tuple(Const(i, i32) for i in index))


def serial_for(cx: Context, node: ast.For, over: Any) -> None:
    """A loop, or a nest of loops, run by one thread."""
    with cx.at(node.iter):
        space = space_of(cx, over)
    if len(space.axes) > 1:
        _refuse_break_of_nest(cx, node)
    with ExitStack() as stack:
        indices: list[Operand] = []
        for begin, end in space.axes:
            indices.append(stack.enter_context(cx.b.loop(begin, end, space.step)).index)
        stack.enter_context(cx.frame.scope())
        stack.enter_context(cx.frame.loop("serial"))
        with space.active(cx, indices):
            bind_index(cx, node, space, indices)
            cx.block(node.body)


def own_breaks(body: list[ast.stmt]) -> bool:
    """Whether a loop body has a ``break`` of its own loop."""
    return own_exits(body, (ast.Break,))


def own_exits(body: list[ast.stmt], kinds: tuple[type[ast.stmt], ...] = (ast.Break, ast.Continue)) -> bool:
    """Whether a loop body has a ``break`` or a ``continue`` of its own loop."""
    for s in body:
        if isinstance(s, kinds) or (isinstance(s, ast.If) and (own_exits(s.body, kinds) or own_exits(s.orelse, kinds))):
            return True
    return False


def own_returns(body: list[ast.stmt]) -> bool:
    """Whether a loop body has a ``return``."""
    return any([isinstance(n, ast.Return) for n in nodes_in(body)])


def _refuse_break_of_nest(cx: Context, node: ast.For) -> None:
    if own_breaks(node.body):
        hint = "write the loops one inside the other and say which one to leave"
        raise QdrunSyntaxError("`break` in a loop over several axes cannot be used in a kernel", hint=hint)


def lower_while(cx: Context, node: ast.While) -> str | None:
    """``while cond``: an endless loop that begins with ``if not cond: break``. One that only a ``return`` leaves certainly returns.

    Raises:
        QdrunSyntaxError: it has an ``else``.
    """
    no_else(node)
    cx.next_loop.clear()
    with cx.b.loop(Const(0, i32), None) as loop, cx.frame.scope(), cx.frame.loop("serial"):
        cond = emit_condition(cx, node.test)
        if cond is not True:
            stop = ops.to_operand(cx.b, ops.unary(cx.b, "not", cond)) if not isinstance(cond, bool) else ops.literal(cx.b, True)
            cx.b.put(If(stop, [Exit("break", cx.b.loc)]))
        cx.block(node.body)
    return "return" if leaves(loop.body, "return") and not leaves(loop.body, "break") else None
