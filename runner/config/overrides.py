"""``--set a.b=3``: values that replace those of a config file, typed as YAML types them, before the config is validated."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from .axes import AXIS_FORMS, BESIDE
from .yaml_lines import ConfigError, ConfigProblem, Document, KeyPath, parse_document

FREE = (("job", "params"), ("sweep", "params"))
"""Maps with the job's parameters as keys: the rest of a key is one dotted name, unless its first part exists already."""
ENDS = frozenset((*AXIS_FORMS, *BESIDE))
"""Last parts of a path below ``sweep.params`` that are a form, and no part of the parameter's name."""


def overridden(document: Document, overrides: Sequence[str]) -> Document:
    """The document with the values of ``overrides`` set, in their order. Problems with them name the override, not a line of the file.

    Raises:
        ConfigError: one is not KEY=VALUE, its value is not YAML, or its key leads into a value or to an item that a list does not have.
    """
    if not overrides:
        return document
    data: dict[str, Any] = copy.deepcopy(document.data)
    sources = dict(document.sources)
    marks = dict(document.marks)
    for text in overrides:
        source = f"--set {text}"
        key, value = _parsed(source, text)
        path = _put(source, data, key, value)
        for known in [known for known in (*sources, *marks) if known[: len(path)] == path]:
            sources.pop(known, None)
            marks.pop(known, None)
        for above in [path[:n] for n in range(1, len(path)) if path[:n] not in marks]:  # maps that this override has made
            sources[above], marks[above] = source, (0, 0)
        sources[path] = source
        marks |= dict.fromkeys([path, *(_paths(value, path))], (0, 0))
    return Document(document.file, document.text, data, marks, sources)


def _refused(source: str, key: str, what: str, allowed: Sequence[str] = (), hint: str = "") -> ConfigError:
    return ConfigError("", "", [ConfigProblem(what, path=key, allowed=tuple(allowed), hint=hint, source=source)])


def _parsed(source: str, text: str) -> tuple[list[str], Any]:
    """The parts of the key, and the value."""
    key, equals, value = text.partition("=")
    parts = key.strip().replace("[", ".").replace("]", "").split(".")
    if not equals or not all(part.strip() for part in parts):
        raise _refused(source, "", f"`{text}` is not KEY=VALUE", ("limits.memory=1GiB", "job.params.steps=50"), "name a key")
    if not value.strip():
        raise _refused(source, key, "there is no value after `=`", hint='write null for none, "" for an empty text')
    try:
        return parts, parse_document(value, "").data
    except ConfigError as error:
        raise _refused(source, key, error.problems[0].what, hint=error.problems[0].hint or "quote the value") from error


def _put(source: str, data: dict[str, Any], parts: list[str], value: Any) -> KeyPath:
    """Set a value in place, making maps on the way; returns its path."""
    here: Any = data
    path: list[str | int] = []
    rest = _joined(data, parts)
    if len(rest) == 4 and tuple(rest[:2]) == FREE[1] and rest[3] in AXIS_FORMS:
        rest, value = rest[:3], {rest[3]: value}  # another form takes the place of the one in the file
    while True:
        key = _key(source, here, rest[0], path)
        path.append(key)
        rest = rest[1:]
        if not rest:
            here[key] = value
            return tuple(path)
        if isinstance(here, dict) and here.get(key) is None:
            here[key] = {}
        here = here[key]


def _joined(data: dict[str, Any], parts: list[str]) -> list[str]:
    """The parts with dotted names of parameters put together again."""
    head, rest = tuple(parts[:2]), parts[2:]
    if head not in FREE or len(rest) < 2:
        return parts
    there = (data.get(head[0]) or {}).get(head[1]) if isinstance(data.get(head[0]), dict) else None
    if head == ("sweep", "params"):
        last = [rest.pop()] if rest[-1] in ENDS else []
        known = isinstance(there, dict) and next((n for n in range(len(rest), 0, -1) if ".".join(rest[:n]) in there), 0)
        if known and known < len(rest):
            return [*head, ".".join(rest[:known]), *rest[known:], *last]
        return [*head, ".".join(rest), *last]
    return parts if isinstance(there, dict) and isinstance(there.get(rest[0]), dict | list) else [*head, ".".join(rest)]


def _key(source: str, here: Any, part: str, path: list[str | int]) -> str | int:
    """A part of the path as the key of a map or the index of a list."""
    whole = ".".join(map(str, [*path, part]))
    name = ".".join(map(str, path))
    if isinstance(here, dict):
        return part
    if isinstance(here, list):
        if part.isdecimal() and int(part) < len(here):
            return int(part)
        known = [str(i) for i in range(len(here))]
        raise _refused(source, whole, f"`{name}` has {len(here)} items and no `{part}`", known, f"set the whole `{name}`")
    raise _refused(source, whole, f"`{name}` is one value and has no `{part}`", hint=f"set `{name}` itself")


def _paths(value: Any, path: KeyPath) -> list[KeyPath]:
    """The paths of everything inside a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [inner for key, item in items for inner in ((*path, key), *_paths(item, (*path, key)))]
