"""Names of ``qd`` that are other names, hints or small helpers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from enum import StrEnum
from typing import Any, TypeVar

from ...errors import QdrunRuntimeError, QdrunTypeError
from ...options import Options
from ...peer_options import PEER_ONLY
from ...program.program import CURRENT, current_program
from ..function import Function
from ..function import func as _func

F = TypeVar("F", bound=Callable[..., Any])


class PyFunction(Function):
    """A func that Python may call, too: then it is the function that was decorated."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else _BoundPyFunction(self, instance)


class _BoundPyFunction:
    """A pyfunc that is a method."""

    def __init__(self, function: PyFunction, instance: Any) -> None:
        self.__qd_func__, self.__self__, self._fn = function.__qd_func__, instance, function.fn

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._fn(self.__self__, *args, **kwargs)


def pyfunc(fn: Callable[..., Any]) -> PyFunction:
    """A function for kernels, where it is inlined, and for Python, where it runs as it is."""
    return PyFunction(fn)


def real_func(fn: Callable[..., Any]) -> Function:
    """``func``: every func is inlined here."""
    return _func(fn)


def pure(fn: F) -> F:
    """A promise of Quadrants that a kernel reads nothing from around it. It changes nothing here."""
    return fn


class extension(StrEnum):
    """Optional features of a backend; see ``is_extension_enabled``."""

    adstack = "adstack"
    assertion = "assertion"
    bls = "bls"
    data64 = "data64"
    extfunc = "extfunc"
    mesh = "mesh"
    quant = "quant"
    quant_basic = "quant_basic"
    sparse = "sparse"


def is_extension_enabled(ext: extension) -> bool:
    """Whether the current program's backend can do it: asserts, 64-bit data, sparse fields, and gradients of dynamic loops."""
    return ext in (extension.adstack, extension.assertion, extension.data64, extension.sparse)


class Config:
    """``qd.cfg``: the options of the program that is current when they are read, and its ``arch``. They are fixed when it is made.

    Without a program every option is None, and ``qd.cfg`` is false.
    """

    def __bool__(self) -> bool:
        return CURRENT.get() is not None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        program = CURRENT.get()
        if name == "arch":
            return None if program is None else program.arch
        if name in PEER_ONLY:
            raise QdrunTypeError(f"`cfg.{name}` is not available: the option means nothing here", hint="leave it out")
        known = [f.name for f in fields(Options)]
        if name not in known:
            raise AttributeError(f"qd.cfg has no option `{name}`; it has arch, {', '.join(known)}")
        return None if program is None else getattr(program.options, name)

    def __setattr__(self, name: str, value: Any) -> None:
        raise QdrunRuntimeError(
            f"qd.cfg.{name} cannot be set: the options of a program are fixed\n  do: qd.init({name}={value!r})"
        )

    def __repr__(self) -> str:
        return "qd.cfg"


cfg = Config()


def dump_compile_config() -> None:
    """Print the options of the current program, one a line."""
    options = current_program().options
    print("\n".join(f"{f.name}={getattr(options, f.name)}" for f in sorted(fields(options), key=lambda f: f.name)))
