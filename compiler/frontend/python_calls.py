"""Plain Python functions that a kernel calls: Python runs them while the kernel is compiled.

They may call funcs of kernels, whose bodies are emitted where the kernel calls the Python function. What else they do happens once, at
compile time: so a read or a write of a field's element and a launch, which a user means to happen in each launch, are refused.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from ..errors import QdrunSyntaxError
from ..ir.nodes import Place
from .advice import once_only
from .library.traced import trace_call, traced, unwrap
from .markers import in_python
from .state.context import Context
from .syntax.expressions import compile_time
from .syntax.inline import inline_values
from .syntax.stopped import in_parts, is_top, no_gradient, real_places
from .values.structs import StructTensor
from .values.tensor import TensorRef
from .values.values import resolve


@dataclass(frozen=True)
class _Open:
    """A Python function that runs now, and the lowering that called it. ``stopped``: what its ``stop_grad`` calls name."""

    cx: Context
    fn: Any
    stopped: set[Place] = field(default_factory=set)

    @property
    def name(self) -> str:
        """Of the function."""
        return str(getattr(self.fn, "__name__", type(self.fn).__name__))

    def stop(self, x: Any) -> None:
        """Stop the gradient of a field or an array in the function.

        Raises:
            QdrunTypeError: it is something else.
            QdrunSyntaxError: the call stands in another function, of which it is not known where it begins and ends.
        """
        value = resolve(x)
        if not isinstance(value, (TensorRef, StructTensor)):
            raise no_gradient(type(x).__name__)
        caller = sys._getframe(2).f_code  # of ``stop_grad``
        if caller is not getattr(inspect.unwrap(getattr(self.fn, "__func__", self.fn)), "__code__", None):
            raise QdrunSyntaxError(
                f"stop_grad() of a field in {caller.co_name}(), which {self.name}() calls: plain Python functions of the kernel stop"
                " gradients, those that they call do not",
                hint=f"call it in {self.name}(); or decorate {caller.co_name}() with @qd.func",
            )
        if is_top(self.cx):
            raise in_parts()
        self.stopped.update(real_places(value))


_open: ContextVar[_Open | None] = ContextVar("qdrun_python_call", default=None)


@contextmanager
def _running(cx: Context, fn: Any) -> Iterator[None]:
    running, block, begin = _Open(cx, fn), cx.b.block, len(cx.b.block)
    tokens = _open.set(running), in_python.set(running.stop)
    try:
        yield
    finally:
        _open.reset(tokens[0])
        in_python.reset(tokens[1])
    if running.stopped:  # all that the funcs read that it has called
        cx.stops.append((block[begin:], frozenset(running.stopped)))


def call_python(cx: Context, fn: Any, args: list[Any], keywords: dict[str, Any]) -> Any:
    """The result of a plain Python function of values that are known now.

    Raises:
        QdrunTypeError: Python raised something in it.
    """
    does, instead = once_only(fn)
    if does and not cx.static:
        what = f"{getattr(fn, '__name__', fn)}() {does} once, while the kernel is compiled, and not in each launch"
        raise QdrunSyntaxError(what, hint=f"{instead}; or call it in qd.static(..), if it is meant to happen now")
    emitted = len(cx.b.block)

    def call() -> Any:
        with _running(cx, fn):
            value = unwrap(fn(*args, **keywords))
        if cx.inputs is None:
            return value
        if len(cx.b.block) != emitted:
            cx.inputs.refuse(f"`{getattr(fn, '__name__', fn)}` is a Python function that calls a func")
            return value
        return cx.inputs.called(fn, args, keywords, value)

    return compile_time(call, hint="decorate the function with @func, if it shall run with the kernel; Python evaluates it now")


def trace_python(cx: Context, fn: Callable[..., Any], args: list[Any], keywords: dict[str, Any]) -> Any:
    """The result of a plain Python function of values of which some are known at run time only.

    Raises:
        QdrunTypeError: Python raised something in it.
    """
    with _running(cx, fn):
        return trace_call(cx.b, fn, args, keywords)


def call_func(fn: Any, name: str, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    """A call of a func by Python: its body is emitted, if a kernel that is being compiled has called the Python function.

    Raises:
        QdrunSyntaxError: no kernel is being compiled.
    """
    found = _open.get()
    if found is None:
        raise QdrunSyntaxError(f"func `{name}` can only be called in a kernel", None, "call it from a @qd.kernel")
    cx = found.cx
    given = [resolve(unwrap(x)) for x in args], {k: resolve(unwrap(x)) for k, x in keywords.items()}
    return traced(cx.b, inline_values(cx, fn, *given))


def refuse_at_compile_time(what: str, hint: str = "") -> None:
    """Refuse what a Python function does at compile time that a user means to happen in each launch. Nothing, outside of such functions
    and in ``static(..)``.

    Args:
        what: what it does, as "reads `x`".
        hint: what to do; empty: make it a func.

    Raises:
        QdrunSyntaxError: at the kernel's line.
    """
    found = _open.get()
    if found is not None and not found.cx.static:
        raise QdrunSyntaxError(
            f"{found.name}() {what} once, while the kernel is compiled, and not in each launch",
            hint=hint
            or f"it is plain Python: decorate {found.name}() with @qd.func; or call it in qd.static(..), if it is meant so",
        )
