"""Keyword arguments of built-in functions: bound to positions by the function's public signature, in Python and in kernels alike."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import QdrunTypeError


def signature(parameters: str) -> inspect.Signature:
    """The signature of ``"x dtype="`` (``dtype`` may be left out, and is None then) or ``"*args"``."""
    out: list[inspect.Parameter] = []
    for word in parameters.split():
        if word.startswith("*"):
            out.append(inspect.Parameter(word[1:], inspect.Parameter.VAR_POSITIONAL))
        else:
            default = None if word.endswith("=") else inspect.Parameter.empty
            out.append(inspect.Parameter(word.rstrip("="), inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default))
    return inspect.Signature(out)


def signature_of(fn: Any) -> inspect.Signature | None:
    """The public signature of a function, a class or an object that is called; None where Python does not know it."""
    try:
        return inspect.signature(fn)
    except (TypeError, ValueError):
        return None


def positional(fn: Any, args: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call in the order of the function's parameters, and the keywords that have no position.

    Raises:
        QdrunTypeError: they do not fit the signature.
    """
    found = signature_of(fn)
    if found is None:
        return list(args), dict(keywords)
    try:
        bound = found.bind(*args, **keywords)
    except TypeError as e:
        name = getattr(fn, "__name__", type(fn).__name__)
        shown = found.replace(
            parameters=[p.replace(annotation=p.empty) for p in found.parameters.values()],
            return_annotation=inspect.Signature.empty,
        )
        raise QdrunTypeError(f"{name}(): {e}", hint=f"its parameters are {name}{shown}") from None
    if bound.kwargs and not any(p.kind is p.VAR_KEYWORD for p in found.parameters.values()):
        bound.apply_defaults()  # a parameter in between was left out
    return list(bound.args), dict(bound.kwargs)
