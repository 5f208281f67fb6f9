"""Functions that kernels call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..errors import QdrunSyntaxError
from ..frontend.source.parse import FunctionSource, read_function
from ..ir.threads import once


class Function:
    """A function that is inlined into the kernels that call it."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn

    @once
    def __qd_func__(self) -> FunctionSource:
        return read_function(self.fn)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise QdrunSyntaxError(f"func `{self.fn.__name__}` can only be called in a kernel", None, "call it from a @qd.kernel")

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else BoundFunction(self, instance)


class BoundFunction:
    """A func that is a method."""

    def __init__(self, function: Function, instance: Any) -> None:
        self.function, self.__self__ = function, instance

    @property
    def __qd_func__(self) -> FunctionSource:
        return self.function.__qd_func__
