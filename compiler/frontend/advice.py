"""What to do instead: the hints of errors about names, attributes and functions that kernels do not have."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import numpy as np

_RANDOM = ("random", "secrets", "numpy.random")
_CLOCKS = ("time", "datetime")


def similar(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """The known name that ``name`` may be a slip of, as a hint."""
    near = difflib.get_close_matches(name, [*known], 1)
    return f"did you mean `{near[0]}`?" if near else otherwise


def missing_attribute(base: Any, name: str) -> str:
    """The hint for an attribute that a Python object has not."""
    if isinstance(base, (list, tuple)):
        return "a list in a kernel has a fixed length and is known at compile time: write to a field, or to a vector, qd.Vector([..])"
    return similar(name, (n for n in dir(base) if not n.startswith("_")))


def described_module(base: ModuleType) -> str:
    """A module as a message names it."""
    return f"the module `{base.__name__}`"


def foreign_function(fn: Any) -> str:
    """The hint for a Python function that cannot take values that are only known at run time."""
    owner, module = getattr(fn, "__self__", None), getattr(fn, "__module__", "") or ""
    if isinstance(owner, (list, dict, set)):
        return "a kernel cannot change a Python object: write to a field or an array"
    if isinstance(fn, np.ufunc) or module.partition(".")[0] in ("numpy", "math", "torch", "builtins"):
        return "use a function of qd or qd.math, or compute it before the launch and pass it as an argument"
    return "decorate it with @func"


def once_only(fn: Any) -> tuple[str, str]:
    """What a function of Python does once, at compile time, that a user means to happen in each launch, and what to do; empty: nothing."""
    module = getattr(fn, "__module__", "") or type(getattr(fn, "__self__", None)).__module__
    owner = type(getattr(fn, "__self__", None)).__module__
    if module in _RANDOM or owner in _RANDOM or owner.startswith("numpy.random"):
        return "draws a number", "use qd.random() or qd.randn()"
    if module in _CLOCKS:
        return "reads the clock", "pass the time as an argument"
    if fn is input or fn is open:
        return "reads", "read it before the launch and pass it as an argument"
    return "", ""


def after_loop(name: str) -> str:
    """The hint for a name that Python would give the last index of a loop."""
    return f"the index ends with its loop: keep the last one in a variable (`last = {name}` in the loop), or give the loop another name"


def missing_value(name: str, outside: Any) -> str:
    """The hint for a variable without a value. ``outside``: what Python has by this name at the top of the file."""
    shape = getattr(outside, "shape", None)
    if hasattr(outside, "__qd_value__") and isinstance(shape, tuple):
        index = ", ".join("ijklmnop"[: len(shape)]) or "None"
        return f"the field of this name is written as `{name}[{index}] = ..`: an assignment to the name alone makes a variable"
    if isinstance(outside, (int, float)):
        return f"a kernel cannot assign a number of Python, and `{name}` is one: keep it in a field, {name}[None] += .."
    return (
        f"assign `{name}` before this line in the same or an enclosing block; a variable that is first assigned inside an if or a loop"
        " ends with that block"
    )
