"""Functions that kernels call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, overload

from ..frontend.python_calls import call_func
from ..frontend.source.parse import FunctionSource, read_function
from ..ir.threads import once


class Function:
    """A function that is inlined into the kernels that call it.

    Attributes:
        fn: the function.
        requires_top_level: calls are allowed at the top level of a kernel only, where its loops are parallel.
    """

    def __init__(self, fn: Callable[..., Any], requires_top_level: bool = False) -> None:
        functools.update_wrapper(self, fn)
        self.fn, self.requires_top_level = fn, requires_top_level

    @once
    def __qd_func__(self) -> FunctionSource:
        return read_function(self.fn)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return call_func(self, self.fn.__name__, args, kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else BoundFunction(self, instance)


class BoundFunction:
    """A func that is a method."""

    def __init__(self, function: Function, instance: Any) -> None:
        self.function, self.__self__ = function, instance

    @property
    def __qd_func__(self) -> FunctionSource:
        return self.function.__qd_func__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return call_func(self, self.function.fn.__name__, args, kwargs)

    @property
    def requires_top_level(self) -> bool:
        """See ``Function``."""
        return self.function.requires_top_level


@overload
def func(fn: Callable[..., Any]) -> Function: ...
@overload
def func(*, is_real_function: bool = False, requires_top_level: bool = False) -> Callable[[Callable[..., Any]], Function]: ...
def func(fn: Any = None, *, is_real_function: bool = False, requires_top_level: bool = False) -> Any:
    """Make a function callable from kernels; it is inlined.

    Args:
        fn: the function; left out when options are given.
        is_real_function: a hint of Quadrants that means nothing here: every function is inlined.
        requires_top_level: refuse calls that are not statements at the top level of a kernel, or of a function that is called there: in
            a loop, a branch or an expression the parallel loops of the function would run one after another, in one thread.
    """
    del is_real_function
    make = functools.partial(Function, requires_top_level=requires_top_level)
    return make if fn is None else make(fn)
