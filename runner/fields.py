"""Describes the fields of result types, for the JSON schema of documents and for docs/cli.md."""

from __future__ import annotations

from typing import Any

from pydantic import Field

Data = dict[str, Any]


def about(text: str) -> Any:
    """Describe a field, as part of its ``Annotated`` type."""
    return Field(description=text)
