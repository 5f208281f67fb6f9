"""The ``callbacks`` section of a config: what is called when a trial has its row, and when the run is over."""

from __future__ import annotations

import shlex
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from .axes import Section
from .values import TARGET, Seconds, refuse

CALL_S = 60.0


def _parse_call(value: Any) -> Any:
    allowed = ("package.module:function", "path/to/file.py:function", "a command with its arguments", "a list of its words")
    if isinstance(value, list) and value and all(isinstance(word, str) and word and "\0" not in word for word in value):
        return value
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise refuse(f"`{value}` is neither a command nor a function", allowed=allowed)
    if TARGET.fullmatch(value):
        return value
    try:
        return shlex.split(value)
    except ValueError as error:
        raise refuse(
            f"`{value}` is no command: {str(error).lower()}", allowed=allowed, hint="write its words as a list"
        ) from None


Call = Annotated[
    str | list[str],
    BeforeValidator(_parse_call),
    WithJsonSchema(
        {"anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}
    ),
]
"""A function (text), or the words of a command (a list)."""


class CallbacksSection(Section):
    """What is called with a JSON document, by a thread of the runner, in processes of their own.

    Attributes:
        trial_end: when a trial has its row: with that row.
        run_end: when the run is over: with its state and the number of trials by status.
        timeout: seconds that one call may take.
    """

    trial_end: Call | None = None
    run_end: Call | None = None
    timeout: Seconds = Field(CALL_S)

    @model_validator(mode="after")
    def _one_of_them(self) -> CallbacksSection:
        if self.trial_end is None and self.run_end is None:
            raise refuse(
                "`callbacks` names nothing to call", allowed=("trial_end", "run_end"), hint="name one, or leave it out"
            )
        return self


__all__ = ["CallbacksSection"]
