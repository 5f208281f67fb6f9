"""Describes the fields of result types, for the JSON schema of documents and for docs/cli.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Data = dict[str, Any]


@dataclass(frozen=True)
class about:
    """Describe a field, as part of its ``Annotated`` type. Loads no pydantic, which a command that prints its help does not need."""

    text: str

    def __get_pydantic_json_schema__(self, schema: Any, handler: Callable[[Any], Data]) -> Data:
        return handler(schema) | {"description": self.text}
