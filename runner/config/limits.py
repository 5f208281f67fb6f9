"""Finds values that a job's parameters certainly allow, all rows at once, by the limits that their pydantic schema declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from pydantic import BaseModel

from ...jobs.base import JobParams

_COMPARES = {"gt": np.greater, "ge": np.greater_equal, "lt": np.less, "le": np.less_equal}
_KNOWN = {"type", "ref", "metadata", "strict", "allow_inf_nan", *_COMPARES}


def _name_of(model: type[BaseModel]) -> tuple[str, str]:
    """The function that pydantic calls after validation: its own makes private attributes, and is another object for each model."""
    return model.model_post_init.__module__, model.model_post_init.__name__


_PLAIN = {_name_of(BaseModel), _name_of(JobParams)}


class _NotPlainError(Exception):
    """Only validation can tell: the schema has code of the job, or a kind of value that is not known here."""


class Limit(NamedTuple):
    """What is declared of the numbers of a parameter.

    Attributes:
        kind: what they are after validation.
        compare: what all of them fulfil, as names of ``_COMPARES`` and bounds.
    """

    kind: type[float] | type[int]
    compare: Sequence[tuple[str, float]]


@dataclass(frozen=True)
class Limits:
    """What is declared of some parameters, by their dotted paths. The lengths of lists are not looked at."""

    of: Mapping[str, Limit]

    def certainly_allow(self, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """Mask of the rows that validation accepts. Rows with numbers that are not finite are left to it.

        Args:
            columns: numbers of each parameter, (rows, ..).
        """
        allowed: np.ndarray = np.array(True)
        for name, column in columns.items():
            for compare, bound in [("lt", np.inf), ("gt", -np.inf), *self.of[name].compare]:
                rows = _COMPARES[compare](column, bound)
                allowed = allowed & rows.reshape(len(column), -1).all(axis=1)
        return allowed


def limits_of(model: type[BaseModel], names: Sequence[str]) -> Limits | None:
    """The limits of parameters, by their dotted paths; None where validators of the job or other schemas decide."""
    schema: Any = model.__pydantic_core_schema__
    if not isinstance(schema, dict):  # not complete yet
        return None
    try:
        _refuse_code(schema)
        return Limits({name: _number(schema, name.split("."), {}) for name in names})
    except _NotPlainError:
        return None


def as_numbers(column: Sequence[Any] | np.ndarray, kind: type[float] | type[int]) -> np.ndarray | None:
    """Values of one shape as they are after validation, (rows, ..); None: not all of them are numbers, of one shape and as large as f64
    and i64 hold exactly.
    """
    if isinstance(column, np.ndarray):
        return column.astype(np.float64) if kind is float else column if column.dtype.kind == "i" else None
    kinds, parts = {kind, int}, column
    while {list}.issuperset(map(type, parts)):
        if len(set(map(len, parts))) != 1:
            return None
        parts = list(chain.from_iterable(parts))
    if not kinds.issuperset(map(type, parts)):
        return None
    try:
        return np.array(column, np.float64 if kind is float else np.int64)
    except OverflowError:
        return None


def _refuse_code(schema: Any) -> None:
    """Functions of validation, of serialisation and of defaults may look at several parameters, or give another value each time."""
    if isinstance(schema, dict):
        kind, factory = str(schema.get("type", "")), schema.get("default_factory")
        makes = factory is not None and (schema.get("default_factory_takes_data") or not isinstance(factory, type))
        own = kind == "model" and (schema.get("custom_init") or _name_of(schema["cls"]) not in _PLAIN)
        if makes or own or kind.startswith("function-") or schema.get("computed_fields"):
            raise _NotPlainError
        for key, value in schema.items():
            if key not in ("metadata", "default"):
                _refuse_code(value)
    elif isinstance(schema, (list, tuple)):
        for value in schema:
            _refuse_code(value)


def _number(schema: Any, path: Sequence[str], known: Mapping[str, Any]) -> Limit:
    """The limit of the number at the end of a path, or of all numbers in the lists there."""
    match schema["type"]:
        case "definitions":
            return _number(schema["schema"], path, {one["ref"]: one for one in schema["definitions"]})
        case "definition-ref" if schema["schema_ref"] in known:
            return _number(known[schema["schema_ref"]], path, known)
        case "default" | "nullable" | "model":
            return _number(schema["schema"], path, known)
        case "model-fields" if path and path[0] in schema["fields"]:
            return _number(schema["fields"][path[0]]["schema"], path[1:], known)
        case "list" if "items_schema" in schema and not schema.get("fail_fast"):
            return _number(schema["items_schema"], path[1:], known)
        case "tuple" if schema.get("variadic_item_index") == 0 and len(schema["items_schema"]) == 1:
            return _number(schema["items_schema"][0], path[1:], known)
        case "float" | "int" if not path and not schema.keys() - _KNOWN:
            compare = [(name, schema[name]) for name in _COMPARES if schema.get(name) is not None]
            return Limit(float if schema["type"] == "float" else int, compare)
    raise _NotPlainError


__all__ = ["Limit", "Limits", "as_numbers", "limits_of"]
