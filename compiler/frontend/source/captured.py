"""Ndarrays that a kernel refers to by a name or an attribute: each launch finds out whether one was replaced.

Ndarrays among the arguments, and in the objects that are searched (``lang.args.records``), come with each launch. Any other is part of the
compiled kernel. A launch follows the paths that led to it again, and refuses to write to an array that Python no longer finds there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from .inputs import READ, Inputs
from .parse import FunctionSource
from .tokens import Path

_CONTAINERS = (list, tuple, dict)


class Captured:
    """The paths of one specialisation that lead to ndarrays.

    Args:
        inputs: the record of the lowering, or of the lookups in its place.
        memory: the memory (``Buffer.owner``) of the ndarrays that the kernel refers to.
    """

    def __init__(self, inputs: Inputs, memory: Collection[object]) -> None:
        self._sources: list[FunctionSource] = inputs.known.sources
        self._found: list[tuple[Path, list[Any]]] = []
        owners = set(map(id, memory))
        for path, value in inputs.found():
            leaves = [x for x in _leaves(value, set()) if owners.intersection(_memory_of(x))]
            if leaves:
                self._found.append((path, leaves))

    def __bool__(self) -> bool:
        return bool(self._found)

    def replaced(self, args: Mapping[str, Any]) -> str | None:
        """The first path that leads to another ndarray now, as the user writes it; None: all are as they were.

        Args:
            args: the specs of this launch's arguments.
        """
        return next((_written(path) for path, leaves in self._found if not self._holds(path, leaves, args)), None)

    def _holds(self, path: Path, leaves: list[Any], args: Mapping[str, Any]) -> bool:
        try:
            now = list(_leaves(self._follow(path, args), set()))
        except (AttributeError, LookupError, NameError):  # it is gone
            return False
        present = set(map(id, now))
        return all(id(x) in present for x in leaves)

    def _follow(self, path: Path, args: Mapping[str, Any]) -> Any:
        kind, last = path[0], path[-1]
        if isinstance(last, tuple):
            base = self._follow(path[:-1], args)
            return getattr(base, last[1]) if last[0] == "attr" else base[last[1]]
        return args[path[1]] if kind == "arg" else READ[kind](self._sources[path[1]], path[2])


def _leaves(value: Any, seen: set[int]) -> Iterator[Any]:
    """What containers and dataclasses hold, at any depth; another value itself."""
    if not isinstance(value, _CONTAINERS) and not (is_dataclass(value) and not hasattr(type(value), "__qd_value__")):
        yield value
    elif id(value) not in seen and not isinstance(value, type):
        seen.add(id(value))
        for x in _items(value):
            yield from _leaves(x, seen)


def _items(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, _CONTAINERS):
        yield from value
    else:
        yield from (getattr(value, f.name) for f in fields(value) if hasattr(value, f.name))


def _memory_of(value: Any) -> set[int]:
    """By identity, the owners of the memory that a value has inside kernels."""
    offer = getattr(type(value), "__qd_value__", None)
    places = getattr(offer(value), "places", ()) if offer is not None else ()
    return {id(place.buffer.owner) for place in places if hasattr(place, "buffer")}


def _written(path: Path) -> str:
    """A path as it stands in the source."""
    name = str(path[1] if path[0] == "arg" else path[2])
    steps = [step for step in path if isinstance(step, tuple)]
    for step, key in steps[path[0] == "arg" and bool(steps) :]:  # the first leads from the argument's description to its value
        name += f".{key}" if step == "attr" else f"[{key!r}]"
    return name
