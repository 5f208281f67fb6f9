"""Parameters that record reads, so that a build cannot depend on the value of an input.

A kernel that takes the value of an input as a constant would keep it when the next trial fills the input with another one. So ``build``
and ``simulate`` are given parameters that refuse to show the values of inputs. The length of a list may be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NoReturn

from pydantic import BaseModel

_READS = "__qd_reads__"
_WHOLE = frozenset(("model_dump", "model_dump_json", "model_copy", "dict", "json", "copy"))
"""Methods of a model that show all of its values."""


class Reads:
    """The recorded reads of parameters.

    Attributes:
        names: the dotted names of the values that were read.
        inputs: parameters that must no longer be read.
    """

    def __init__(self, job: str) -> None:
        self.job, self.names, self.inputs = job, set[str](), set[str]()

    def note(self, name: str) -> None:
        """A value is read.

        Raises:
            ValueError: it is, or holds, the value of an input.
        """
        found = [one for one in self.inputs if one == name or one.startswith(f"{name}.") or name.startswith(f"{one}.")]
        if found:
            self.refuse(found[0])
        self.names.add(name)

    def declare(self, name: str) -> None:
        """A parameter becomes an input.

        Raises:
            ValueError: its value was read already.
        """
        if name in self.names or any(one.startswith(f"{name}.") or name.startswith(f"{one}.") for one in self.names):
            self.refuse(name)
        self.inputs.add(name)

    def refuse(self, name: str) -> NoReturn:
        """Raise: the value of an input is read."""
        raise ValueError(
            f"{self.job} reads the value of `{name}` while it is built, and `{name}` is an input: other trials have other values\n"
            f"  do: use the field that self.input({name!r}) gives, or leave it a parameter that is no input"
        )


def watched(params: BaseModel, reads: Reads, prefix: str = "") -> Any:
    """A copy of parameters whose reads are noted. It is an instance of their class."""
    copy = params.model_copy()
    object.__setattr__(copy, _READS, (reads, prefix))
    object.__setattr__(copy, "__class__", _watched_class(type(params)))
    return copy


@lru_cache(256)
def _watched_class(model: type[BaseModel]) -> type[BaseModel]:
    fields = frozenset(model.model_fields)

    def read(self: Any, name: str) -> Any:
        value = object.__getattribute__(self, name)
        if name not in fields and name not in _WHOLE:
            return value
        reads, prefix = object.__getattribute__(self, _READS)
        if name in fields:
            return _shown(value, reads, prefix + name)
        for one in fields:
            _all_of(object.__getattribute__(self, one), reads, prefix + one)
        return value

    def pairs(self: Any) -> Iterator[tuple[str, Any]]:
        return iter([(name, getattr(self, name)) for name in model.model_fields])

    return type(model.__name__, (model,), {"__getattribute__": read, "__iter__": pairs, "__module__": model.__module__})


def _shown(value: Any, reads: Reads, name: str) -> Any:
    """Wrap a value for the job: models and lists record later reads."""
    if isinstance(value, BaseModel):
        return watched(value, reads, f"{name}.")
    if type(value) is list:
        return _List(value, reads, name)
    reads.note(name)
    return value


def _all_of(value: Any, reads: Reads, name: str) -> None:
    if isinstance(value, BaseModel):
        for one in type(value).model_fields:
            _all_of(getattr(value, one), reads, f"{name}.{one}")
    else:
        reads.note(name)


class _List(list[Any]):
    """A list with a readable length; reads of its items are recorded."""

    def __init__(self, items: list[Any], reads: Reads, name: str) -> None:
        super().__init__(items)
        self._note = lambda: reads.note(name)


def _noting(name: str) -> Any:
    method = getattr(list, name)

    def noted(self: _List, *args: Any, **kwargs: Any) -> Any:
        self._note()
        return method(self, *args, **kwargs)

    return noted


for _name in (
    *("__getitem__", "__iter__", "__reversed__", "__contains__", "__add__", "__mul__", "__rmul__", "__repr__"),
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "index", "count", "copy"),
):
    setattr(_List, _name, _noting(_name))

__all__ = ["Reads", "watched"]
