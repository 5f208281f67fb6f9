"""Functions that kernels call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, overload

from ..errors import QdrunRuntimeError
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
        self.own_gradient: Function | None = None

    def vjp(self, product: Any) -> Function:
        """Make a function the gradient of this one, in kernels that are differentiated: ``@f.vjp``.

        Args:
            product: takes the arguments of the function and ``g``, the gradient of its result, and returns a gradient for each argument,
                or None for a constant. It is linear in ``g``. Forward mode and second derivatives follow from it.

        Raises:
            QdrunRuntimeError: the function has one already, or a kernel with it was compiled.
        """
        if self.own_gradient is not None:
            raise QdrunRuntimeError(
                f"`{self.fn.__name__}` has a gradient of its own already\n  do: one gradient for one function"
            )
        if "__qd_func__" in self.__dict__:
            raise QdrunRuntimeError(
                f"a kernel that calls `{self.fn.__name__}` was compiled before its gradient was given\n"
                "  do: define the gradient right behind the function"
            )
        self.own_gradient = product if isinstance(product, Function) else Function(product)
        return self.own_gradient

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
    def own_gradient(self) -> BoundFunction | None:
        """See ``Function.vjp``."""
        found = self.function.own_gradient
        return None if found is None else BoundFunction(found, self.__self__)

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
