"""Dotted paths into a job's parameters: ``material.stiffness``, ``layers.1.width``, ``actuation.0``.

They work on parameters as plain data. A part that the data does not have is filled with the default of its model first, so that one
item of a list can be set without writing out the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, TypeAdapter
from pydantic_core import to_jsonable_python


class PathError(LookupError):
    """A path that leads nowhere; ``allowed`` holds the names or indices there are, ``hint`` what to do."""

    def __init__(self, what: str, allowed: Sequence[str] = (), hint: str = "") -> None:
        super().__init__(what)
        self.what, self.allowed, self.hint = what, tuple(allowed), hint


def get(values: Any, path: str) -> Any:
    """The value at ``path``.

    Raises:
        PathError: there is none.
    """
    here = values
    for number, part in enumerate(path.split(".")):
        here = here[_key(here, part, path, number)]
    return here


def value_of(params: BaseModel, path: str) -> Any:
    """The value at ``path`` of a model of parameters, as it is held; None where there is none."""
    here: Any = params
    for part in path.split("."):
        if isinstance(here, BaseModel):
            here = getattr(here, part, None) if part in type(here).model_fields else None
        elif isinstance(here, dict):
            here = here.get(part)
        elif isinstance(here, (list, tuple)) and part.isdecimal() and int(part) < len(here):
            here = here[int(part)]
        else:
            return None
    return here


def has(values: Any, path: str) -> bool:
    """Whether there is a value at ``path``."""
    try:
        get(values, path)
    except PathError:
        return False
    return True


def put(values: dict[str, Any], path: str, value: Any, model: type[BaseModel] | None = None) -> None:
    """Set the value at ``path`` in place. A name that the model does not have is set all the same: validation refuses it.

    Args:
        values: parameters as plain data; some may be missing.
        path: the dotted path.
        value: the new value.
        model: the parameters' model, for defaults of what is missing on the way.

    Raises:
        PathError: an index is not in its list, a name is applied to a list or a plain value, or a list on the path has no default.
    """
    *outer, last = path.split(".")
    here: Any = values
    kind: Any = model
    for number, part in enumerate(outer):
        if isinstance(here, dict) and part not in here:
            here[part] = _default(kind, part, path, [*outer[number + 1 :], last])
        kind = _inner(kind, part)
        here = here[_key(here, part, path, number)]
    if isinstance(here, dict):
        here[last] = value
    else:
        here[_key(here, last, path, len(outer))] = value


def replaced(values: Any, path: str, value: Any) -> Any:
    """Parameters as plain data with another value at ``path``. They are not changed; what does not lie on the path is shared with them.

    Raises:
        PathError: there is no such path.
    """

    def at(here: Any, parts: list[str], number: int) -> Any:
        if number == len(parts):
            return value
        key, copied = _key(here, parts[number], path, number), here.copy()
        copied[key] = at(here[key], parts, number + 1)
        return copied

    return at(values, path.split("."), 0)


def _key(here: Any, part: str, path: str, number: int) -> Any:
    """The part as a key of ``here``: a name of a map, an index of a list."""
    before = ".".join(path.split(".")[:number]) or "the parameters"
    if isinstance(here, list):
        if not here:
            raise PathError(f"`{before}` is empty, it has no item {part}", hint="set the whole list")
        if not part.isdecimal() or int(part) >= len(here):
            known = tuple(str(i) for i in range(len(here)))
            shown = known if len(known) <= 12 else (*known[:2], "..", known[-1])
            raise PathError(f"`{before}` has {len(here)} items and no `{part}`", shown, "use an index, 0 the first")
        return int(part)
    if isinstance(here, dict):
        if part not in here:
            raise PathError(f"`{before}` has no `{part}`", tuple(here))
        return part
    raise PathError(f"`{before}` is one value and has no `{part}`", hint=f"set `{before}` itself")


def _default(kind: Any, part: str, path: str, rest: list[str]) -> Any:
    """The default of a parameter as plain data; an empty map where a model is to be filled by its validation."""
    field = kind.model_fields.get(part) if isinstance(kind, type) and issubclass(kind, BaseModel) else None
    if field is not None and not field.is_required():
        return to_jsonable_python(field.get_default(call_default_factory=True, validated_data={}))
    if rest[0].isdecimal():
        raise PathError(
            f"`{part}` has no default, so `{path}` has no list to change", hint=f"give the whole `{part}` in job.params"
        )
    return {}


def _inner(kind: Any, part: str) -> Any:
    """The type of what ``part`` names inside of a type; None where that is not known."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        field = kind.model_fields.get(part)
        return None if field is None else _plain(field.annotation)
    arguments = get_args(kind)
    if get_origin(kind) is tuple and part.isdecimal() and int(part) < len(arguments) and Ellipsis not in arguments:
        return _plain(arguments[int(part)])
    if get_origin(kind) in (list, tuple) and arguments:
        return _plain(arguments[0])
    return _plain(arguments[1]) if get_origin(kind) is dict and len(arguments) == 2 else None


def _plain(kind: Any) -> Any:
    """A type without ``Annotated`` and without ``None``."""
    while get_origin(kind) in (Annotated, Union, UnionType):
        kind = next((arg for arg in get_args(kind) if arg is not type(None)), None)
    return kind


def plain_params(params: BaseModel) -> dict[str, Any]:
    """Parameters as plain data: maps, lists, texts, numbers, None. Floats that are not finite stay floats, whatever the model's config."""
    data = params.model_dump(mode="json")
    if params.model_config.get("ser_json_inf_nan") == "constants":
        return data
    return _with_floats(data, params.model_dump())


def plain_lists(params: list[Any], of: TypeAdapter[list[Any]]) -> list[dict[str, Any]]:
    """``plain_params`` of each of many. ``of``: the type of the list."""
    kinds = set(map(type, params))
    if len(kinds) != 1 or next(iter(kinds)).model_config.get("ser_json_inf_nan") != "constants":
        return [plain_params(one) for one in params]
    return of.dump_python(params, mode="json")


def _with_floats(data: Any, values: Any) -> Any:
    """``data`` with the floats of ``values`` where pydantic has put None in the place of one that is not finite."""
    if data is None and isinstance(values, float):
        return values
    if isinstance(data, dict) and isinstance(values, dict):
        return {key: _with_floats(item, value) for (key, item), value in zip(data.items(), values.values(), strict=True)}
    if isinstance(data, list) and isinstance(values, list | tuple):
        return [_with_floats(item, value) for item, value in zip(data, values, strict=True)]
    return data


__all__ = ["PathError", "get", "has", "plain_lists", "plain_params", "put", "value_of"]
