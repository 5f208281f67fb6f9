"""Parameters of the type ``pathlib.Path``: the files that a job reads. In a sweep they are relative to the folder of the config.

The parameters of a trial keep the paths as they were written, so that its id is the same on every machine; a job gets absolute ones.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePath
from typing import Any, TypeVar, get_args

from pydantic import BaseModel

P = TypeVar("P", bound=BaseModel)


class InputMissing(FileNotFoundError):
    """A file that a trial reads is not where its worker runs."""


@dataclass(frozen=True)
class InputFiles:
    """Where the files of a job lie.

    Attributes:
        folder: of the config, in which relative paths begin; where it is relative itself, it begins in the working directory.
        copies: files and folders that are read from another place, by the name that the config has for them.
    """

    folder: str = ""
    copies: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> InputFiles:
        """Those that the spec of a trial names, see ``as_spec``."""
        return cls(str(spec.get("folder", "")), dict(spec.get("copies", {})))

    def as_spec(self) -> dict[str, Any]:
        """As members of the spec of a trial."""
        return {"folder": self.folder} | ({"copies": dict(self.copies)} if self.copies else {})

    def find(self, path: PurePath) -> Path:
        """The absolute path of a file; ``~`` is the home folder."""
        copy = self.copies.get(str(path))
        return Path(os.path.abspath(os.path.join(self.folder, os.path.expanduser(path)) if copy is None else copy))


@cache
def takes_files(model: type[BaseModel]) -> bool:
    """Whether some parameter is a path, at any depth."""
    return _has_path(model, set())


def _has_path(annotation: Any, seen: set[type]) -> bool:
    if isinstance(annotation, type) and issubclass(annotation, PurePath):
        return True
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if annotation in seen:
            return False
        seen.add(annotation)
        return any(_has_path(field.annotation, seen) for field in annotation.model_fields.values())
    return any(_has_path(argument, seen) for argument in get_args(annotation))


def paths_in(value: Any, name: str = "") -> Iterator[tuple[str, Path]]:
    """The paths among parameters, each with its dotted name, as they were written."""
    if isinstance(value, PurePath):
        yield name, Path(value)
    elif isinstance(value, BaseModel):
        for key in type(value).model_fields:
            yield from paths_in(getattr(value, key), f"{name}.{key}" if name else key)
    elif isinstance(value, dict | list | tuple):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from paths_in(item, f"{name}.{key}")


def located(params: P, files: InputFiles) -> P:
    """Parameters with absolute paths.

    Raises:
        InputMissing: one of them names nothing that is here.
    """
    if not takes_files(type(params)):
        return params
    found = _located(params, files)
    for name, path in paths_in(found):
        if not path.exists():
            raise InputMissing(
                f"the parameter `{name}` names {path}, which is not on {platform.node()}\n"
                "  do: put it on a storage that all machines of the cluster share, or beside the config"
            )
    return found


def _located(value: Any, files: InputFiles) -> Any:
    if isinstance(value, PurePath):
        return files.find(value)
    if isinstance(value, BaseModel):
        return value.model_copy(update={name: _located(getattr(value, name), files) for name in type(value).model_fields})
    if isinstance(value, dict):
        return {key: _located(item, files) for key, item in value.items()}
    return type(value)(_located(item, files) for item in value) if type(value) in (list, tuple) else value


__all__ = ["InputFiles", "InputMissing", "located", "paths_in", "takes_files"]
