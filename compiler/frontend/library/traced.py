"""A value with Python's operators, so that one definition of a function serves kernels and Python alike.

``qd.math.mix(x, y, a)`` is written once as ``x * (1 - a) + y * a``. From Python it computes with numbers; inside a kernel its
arguments are wrapped in ``Traced`` and every operator emits. So does a plain Python function that a kernel calls with values that
are only known at run time: Python runs it once, while the kernel is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ...errors import QdrunCompilationError, QdrunTypeError
from ...ir.nodes import Const, Op
from ..values import matrix, ops
from ..values.values import MatrixValue, Value
from .methods import MatrixMethod, attribute

if TYPE_CHECKING:
    from ..state.builder import FrontBuilder


def _operator(op: str) -> Callable[[Traced, Any], Traced]:
    return lambda self, other: Traced(self.b, ops.binary(self.b, op, self.value, unwrap(other)))


def _reflected(op: str) -> Callable[[Traced, Any], Traced]:
    return lambda self, other: Traced(self.b, ops.binary(self.b, op, unwrap(other), self.value))


def _comparison(op: str) -> Callable[[Traced, Any], Traced]:
    return lambda self, other: Traced(self.b, ops.compare(self.b, op, self.value, unwrap(other)))


class Traced:
    """A kernel value and the builder that it is computed by."""

    __slots__ = ("b", "value")
    __array_ufunc__ = None  # numpy scalars must not take over `np.float64(2) * traced`

    def __init__(self, b: FrontBuilder, value: Any) -> None:
        self.b = b
        self.value: Value = ops.as_value(b, value)

    __add__, __sub__, __mul__, __truediv__, __floordiv__ = map(_operator, ("+", "-", "*", "/", "//"))
    __radd__, __rsub__, __rmul__, __rtruediv__, __rfloordiv__ = map(_reflected, ("+", "-", "*", "/", "//"))
    __mod__, __pow__, __matmul__ = map(_operator, ("%", "**", "@"))
    __rmod__, __rpow__, __rmatmul__ = map(_reflected, ("%", "**", "@"))
    __and__, __or__, __xor__, __lshift__, __rshift__ = map(_operator, ("&", "|", "^", "<<", ">>"))
    __rand__, __ror__, __rxor__, __rlshift__, __rrshift__ = map(_reflected, ("&", "|", "^", "<<", ">>"))
    __lt__, __le__, __gt__, __ge__ = map(_comparison, ("<", "<=", ">", ">="))
    __eq__, __ne__ = map(_comparison, ("==", "!="))  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]

    def __neg__(self) -> Traced:
        return Traced(self.b, ops.unary(self.b, "-", self.value))

    def __pos__(self) -> Traced:
        return self

    def __invert__(self) -> Traced:
        return Traced(self.b, ops.unary(self.b, "~", self.value))

    def __qd_stop_grad__(self) -> Traced:
        return Traced(self.b, ops.elementwise(lambda x: ops.detached(self.b, x), self.value))

    def __abs__(self) -> Traced:
        return Traced(self.b, ops.absolute(self.b, self.value))

    def __bool__(self) -> bool:
        raise QdrunTypeError(
            "a Python function that a kernel calls runs while the kernel is compiled: `if`, `while`, `and`, `or`, `not`, min() and max() "
            "in it cannot look at a value that is only known at run time",
            hint="decorate the function with @func; or use select(), qd.min() and qd.max()",
        )

    def __len__(self) -> int:
        if not isinstance(self.value, MatrixValue):
            raise TypeError("a scalar has no components")
        return self.value.n

    def __getitem__(self, index: Any) -> Traced:
        if not isinstance(self.value, MatrixValue):
            raise IndexError("a scalar has no components")
        return Traced(self.b, matrix.get_item(self.b, self.value, index))

    def __iter__(self) -> Iterator[Traced]:
        if not isinstance(self.value, MatrixValue):
            raise TypeError("a scalar has no components")
        return (self[k] for k in range(self.value.n))

    def __getattr__(self, name: str) -> Any:
        """An attribute of a matrix; a method comes as a function of traced values."""
        found = attribute(self.b, ops.as_matrix(self.b, self.value, "this function"), name)
        if isinstance(found, MatrixMethod):
            return lambda *args, **kw: call(self.b, found, args, kw)
        return found if name in ("n", "m", "shape", "dtype") else Traced(self.b, found)


def unwrap(x: Any) -> Any:
    """The kernel value behind a traced one; lists and tuples are unwrapped inside; everything else is itself."""
    if isinstance(x, Traced):
        return x.value
    if isinstance(x, (list, tuple)):
        return type(x)(unwrap(e) for e in x)
    return x


def builder_of(args: tuple[Any, ...]) -> FrontBuilder | None:
    """The builder of the first traced value among ``args`` (lists and tuples are searched), or None outside of kernels."""
    for x in args:
        if isinstance(x, Traced):
            return x.b
        if isinstance(x, (list, tuple)):
            found = builder_of(tuple(x))
            if found is not None:
                return found
    return None


def call(b: FrontBuilder, lowering: Callable[..., Any], args: tuple[Any, ...], kw: dict[str, Any]) -> Any:
    """Call a lowering with traced values; its result is traced again."""
    out = lowering(b, *(unwrap(a) for a in args), **{k: unwrap(v) for k, v in kw.items()})
    return tuple(Traced(b, x) for x in out) if isinstance(out, tuple) else Traced(b, out)


def traced(b: FrontBuilder, x: Any) -> Any:
    """What a lowering or a func gives, for Python: kernel values as traced ones, also inside of lists and tuples."""
    return _wrap(b, x)


def lower_by_tracing(f: Callable[..., Any]) -> Callable[..., Any]:
    """The lowering of a function that is written with operators: its arguments are wrapped, its result unwrapped."""

    def lowering(b: FrontBuilder, *args: Any, **kw: Any) -> Any:
        wrapped = [Traced(b, a) for a in args]
        return unwrap(f(*wrapped, **{k: Traced(b, v) for k, v in kw.items()}))

    return lowering


def trace_call(b: FrontBuilder, fn: Callable[..., Any], args: list[Any], keywords: dict[str, Any]) -> Any:
    """Run a plain Python function on traced values; what it computes is emitted where it is called.

    Raises:
        QdrunTypeError: Python raised something in it.
    """
    try:
        out = fn(*(_wrap(b, a) for a in args), **{k: _wrap(b, v) for k, v in keywords.items()})
    except QdrunCompilationError:
        raise
    except Exception as e:
        name = getattr(fn, "__name__", type(fn).__name__)
        raise QdrunTypeError(
            f"{name}() is a Python function and runs while the kernel is compiled, where it raised {type(e).__name__}: {e}",
            hint="decorate it with @func",
        ) from e
    return unwrap(out)


def _wrap(b: FrontBuilder, x: Any) -> Any:
    """Kernel values as traced ones, also inside of lists and tuples."""
    if isinstance(x, (Op, Const, MatrixValue)):
        return Traced(b, x)
    if isinstance(x, (list, tuple)):
        return type(x)(_wrap(b, e) for e in x)
    return x
