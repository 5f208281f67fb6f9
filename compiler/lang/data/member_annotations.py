"""Annotations of the members of classes, when these are text."""

from __future__ import annotations

import inspect
import sys
from typing import Any

from ...errors import QdrunTypeError


def evaluated(cls: type, name: str, annotation: Any) -> Any:
    """The annotation of a member; text (``from __future__ import annotations``) means what it means where the class was defined.

    Raises:
        QdrunTypeError: it names something unknown.
    """
    if not isinstance(annotation, str):
        return annotation
    module = sys.modules.get(cls.__module__)
    spaces = [(vars(module) if module is not None else {}, dict(vars(cls)))]
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == cls.__module__:
            spaces.append((frame.f_globals, dict(frame.f_locals)))
        frame = frame.f_back
    for names, local in spaces:
        try:
            return eval(annotation, names, local)
        except (NameError, AttributeError):
            continue
    hint = "put what it names at the top of the module"
    raise QdrunTypeError(f"the annotation `{annotation}` of `{name}` in {cls.__name__} cannot be evaluated", hint=hint)
