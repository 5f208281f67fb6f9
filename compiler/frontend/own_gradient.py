"""Calls of a func whose gradient the user wrote (``@f.vjp``).

The body runs on detached arguments, and each number of the result gets a slope: the sum of the arguments times the coefficients that the
vector-Jacobian product gives for it. So the call has a gradient, a tangent and second derivatives as any other operation has, in loops,
branches and batches, and kernels that are not differentiated drop the slopes. A product that is linear in ``g`` is all that needs; one
that is not is refused, as is a body that writes, or reads what has a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..errors import QdrunSyntaxError, QdrunTypeError
from ..ir.nodes import Assert, Block, Const, GlobalStore, If, Local, LocalStore, Loop, Op, Operand, Place, Stmt
from ..ir.walk import atomic_of, walk
from ..passes.forward.attached import AGAIN
from .state.context import Context, describe, is_runtime, rounded
from .values import ops
from .values.structs import rebuild, scalars, shape_of
from .values.values import StructValue

Call = Callable[[Any, Sequence[Any]], Any]
"""Inlines a function with values as its arguments."""


def call_with_gradient(cx: Context, fn: Any, values: list[Any], call: Call) -> Any:
    """The value of a call.

    Args:
        cx: where the kernel calls it.
        fn: the function, which has ``own_gradient``.
        values: its arguments.
        call: inlines a function without a gradient of its own.

    Raises:
        QdrunSyntaxError: the function writes or reads what it must not, or its gradient is not linear in ``g``.
        QdrunTypeError: the gradient returns other things than one value for each argument.
    """
    name, product = fn.__qd_func__.name, fn.own_gradient
    values = [rounded(cx.b, ops.as_value(cx.b, v)) if is_runtime(v) or ops.is_number(v) else v for v in values]
    with cx.scratch() as body:
        result = call(fn, [_each(v, lambda x: _detached(cx, x)) for v in values])
    _refuse_effects(body, name, reads=True)
    cx.splice(body)
    parts, like = _scalars(result), shape_of(result)
    real = [k for k, x in enumerate(parts) if isinstance(x, Op) and x.dtype.is_real]
    if not real or not any(isinstance(x, Op) and x.dtype.is_real for v in values for x in _scalars(v)):
        return result
    _refuse_nonlinear(cx, name, product, call, values, parts, like)
    for k in real:
        unit = [Const(float(n == k), x.dtype) if x.dtype.is_real else Const(0, x.dtype) for n, x in enumerate(parts)]
        slope = _slope(cx, values, _given(name, call(product, [*values, rebuild(like, unit)]), values), parts[k])
        if slope is not None:
            parts[k] = cx.b.op("attach", parts[k], slope)
    return rebuild(like, parts)


def _detached(cx: Context, x: Operand) -> Operand:
    return cx.b.op("detach", x) if isinstance(x, Op) and x.dtype.is_real else x


def _scalars(value: Any) -> list[Any]:
    """The numbers of a value that a kernel computes; of anything else none."""
    if isinstance(value, (tuple, list)):
        return [x for v in value for x in _scalars(v)]
    if isinstance(value, StructValue):
        return scalars(value) if value.is_data else []
    return scalars(value) if is_runtime(value) else []


def _each(value: Any, f: Callable[[Operand], Operand]) -> Any:
    parts = _scalars(value)
    return rebuild(shape_of(value), [f(x) for x in parts]) if parts else value


def _given(name: str, out: Any, values: list[Any]) -> list[Any]:
    """What the product gives to each argument; None: nothing."""
    found = list(out) if isinstance(out, (tuple, list)) else [out]
    if len(found) != len(values):
        what = f"the vjp of `{name}` returns {len(found)} values, and the function has {len(values)} arguments"
        raise QdrunTypeError(what, hint="return one gradient for each argument, in their order: None for a constant")
    for k, (w, x) in enumerate(zip(found, values)):
        if w is not None and _reals(x) and len(_scalars(w)) not in (0, len(_scalars(x))):
            what = f"the vjp of `{name}` returns {describe(w)} for argument {k + 1}, which is {describe(x)}"
            raise QdrunTypeError(what, hint="return a gradient of the shape of the argument")
    return found


def _reals(x: Any) -> bool:
    return any(p.dtype.is_real for p in _scalars(x))


def _slope(cx: Context, values: list[Any], weights: list[Any], result: Operand) -> Operand | None:
    """The sum of all numbers of the arguments times their coefficients, of the type of the result."""
    b, total = cx.b, None
    for value, weight in zip(values, weights, strict=True):
        if weight is None or not _reals(value):
            continue
        weight = ops.as_value(b, weight) if ops.is_number(weight) else weight
        for x, w in zip(_scalars(value), _scalars(weight), strict=True):
            if isinstance(x, Op) and x.dtype.is_real:
                w = ops.cast_scalar(b, w, result.dtype)
                if isinstance(w, Op):
                    w = Op("detach", (w,), w.dtype, AGAIN, b.loc)
                    b.put(w)
                term = b.op("mul", w, ops.cast_scalar(b, x, result.dtype))
                total = term if total is None else b.op("add", total, term)
    return total


def _refuse_effects(body: Block, name: str, reads: bool) -> None:
    for s in walk(body):
        if isinstance(s, GlobalStore) or (isinstance(s, Op) and s.op == "atomic"):
            place = s.place if isinstance(s, GlobalStore) else atomic_of(s)[0]
            what = f"`{name}` has a gradient of its own and writes `{place.name}`"
            raise QdrunSyntaxError(what, s.loc, "return the value, and store it in the kernel")
        if not isinstance(s, Op):
            continue
        if reads and s.op == "gload" and isinstance(s.attr, Place) and s.attr.grad is not None:
            what = f"`{name}` has a gradient of its own and reads `{s.attr.name}`, whose gradient would be lost"
            raise QdrunSyntaxError(what, s.loc, f"pass the element as an argument: {name}(.., {s.attr.name}[..])")


def _refuse_nonlinear(cx: Context, name: str, product: Any, call: Call, values: list[Any], parts: list[Any], like: Any) -> None:
    """Lower the product once for a ``g`` that is not known, and look where it goes."""
    with cx.scratch() as body:
        g = [cx.b.local(Const(0, x.dtype), "g") for x in parts]
        out = call(product, [*values, rebuild(like, [cx.b.load(x) for x in g])])
    _refuse_effects(body, name, reads=False)
    linear = _LinearityCheck(set(g), name)
    linear.follow(body[len(g) :])
    for x in _scalars(_given(name, out, values)):
        if not (x in linear.values or linear.is_zero(x)):
            raise linear.error(None)


class _LinearityCheck:
    """What is a linear function of ``g``, by the statements that compute it."""

    def __init__(self, g: set[Local], name: str) -> None:
        self.values: set[object] = set()
        self._zeros: set[object] = set()
        self._locals, self._name = g, name

    def is_zero(self, x: object) -> bool:
        """Whether a number is 0 whatever ``g`` is."""
        return x in self._zeros or (isinstance(x, Const) and x.value == 0)

    def error(self, s: Any) -> QdrunSyntaxError:
        """The refusal, at a statement."""
        what = f"the vjp of `{self._name}` is not linear in its last argument, the gradient of the result"
        hint = "return sums of products with it; clip gradients in the tape's kernels or in the optimiser"
        return QdrunSyntaxError(what, getattr(s, "loc", None), hint)

    def follow(self, body: Block) -> None:
        """Find what depends on ``g``, then look at how.

        Raises:
            QdrunSyntaxError: at the first statement that is not linear.
        """
        size = -1
        while size != len(self.values) + len(self._locals):  # loops go round
            size = len(self.values) + len(self._locals)
            for s in walk(body):
                if isinstance(s, LocalStore) and s.value in self.values:
                    self._locals.add(s.local)
                elif isinstance(s, Op) and (
                    s.attr in self._locals if s.op == "load" else any(x in self.values for x in s.args)
                ):
                    self.values.add(s)
        self._find_zeros(body)
        for s in walk(body):
            self._statement(s)

    def _find_zeros(self, body: Block) -> None:
        """Products with a literal 0, and what is made of them: of locals that get nothing else, in any order."""
        stores = [s for s in walk(body) if isinstance(s, LocalStore)]
        empty = {s.local for s in stores} - self._locals
        while True:
            self._zeros = set()
            for s in walk(body):
                if isinstance(s, Op) and self._makes_zero(s, empty):
                    self._zeros.add(s)
            filled = {s.local for s in stores if s.local in empty and not self.is_zero(s.value)}
            if not filled:
                return
            empty -= filled

    def _makes_zero(self, s: Op, empty: set[Local]) -> bool:
        if s.op == "load":
            return s.attr in empty
        if s.op == "mul":
            return any(map(self.is_zero, s.args))
        return s.op in ("neg", "cast", "add", "sub") and all(map(self.is_zero, s.args))

    def _statement(self, s: Stmt) -> None:
        if isinstance(s, LocalStore):
            if s.local in self._locals and s.value not in self.values and not self.is_zero(s.value):
                raise self.error(s)
        elif isinstance(s, Op):
            self._operation(s)
        elif isinstance(s, If):
            self._refuse(s, s.cond)
        elif isinstance(s, Loop):
            self._refuse(s, s.begin, s.end)
        elif isinstance(s, Assert):
            self._refuse(s, s.cond)

    def _refuse(self, s: Stmt, *values: object) -> None:
        if any(x in self.values for x in values if x is not None):
            raise self.error(s)

    def _operation(self, s: Op) -> None:
        of_g = [x in self.values for x in s.args]
        if s.op == "load" or not any(of_g):
            return
        whole = [y or self.is_zero(x) for x, y in zip(s.args, of_g)]
        fits = {
            "neg": True,
            "cast": s.dtype.is_real,
            "add": all(whole),
            "sub": all(whole),
            "mul": not all(of_g),
            "div": not of_g[-1],
            "select": not of_g[0] and all(whole[1:]),
        }
        if not fits.get(s.op, False):
            raise self.error(s)
