"""The files of a job: those that it reads, as parameters of the type ``pathlib.Path`` or by ``Job.data``, and those that it leaves.

In a sweep relative paths begin in the folder of the config. The parameters of a trial keep the paths as they were written, so that its id
is the same on every machine; a job gets absolute ones.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, PrivateAttr

P = TypeVar("P", bound=BaseModel)

_DOWNLOADS: dict[Path, Lock] = {}
"""A lock for each download of this process: file systems of fsspec may share the position in an open file between threads."""


class InputMissing(FileNotFoundError):
    """A file that a trial reads is not where its worker runs."""


@dataclass(frozen=True)
class InputFiles:
    """Where the files of a job lie.

    Attributes:
        folder: of the config, in which relative paths begin; where it is relative itself, it begins in the working directory.
        copies: files and folders that are read from another place, by the name that the config or the job has for them.
        cache: a folder on this machine for what URIs name; empty: one that goes with the process.
    """

    folder: str = ""
    copies: Mapping[str, str] = field(default_factory=dict)
    cache: str = field(default="", compare=False)

    @classmethod
    def of(cls, spec: Mapping[str, Any], cache: str = "") -> InputFiles:
        """Those that the spec of a trial names, see ``as_spec``."""
        return cls(str(spec.get("folder", "")), dict(spec.get("copies", {})), cache)

    def as_spec(self) -> dict[str, Any]:
        """As members of the spec of a trial."""
        return {"folder": self.folder} | ({"copies": dict(self.copies)} if self.copies else {})

    def find(self, name: PurePath | str) -> Path:
        """The absolute path of a file or a folder; ``~`` is the home folder. What a URI names is downloaded, once for each version of it.

        Raises:
            InputMissing: nothing is at the URI, or it cannot be read.
        """
        copy = self.copies.get(str(name))
        if copy is not None:
            return Path(os.path.abspath(copy))
        if isinstance(name, str) and "://" in name:
            return fetched(name, self.cache)
        return Path(os.path.abspath(os.path.join(self.folder, os.path.expanduser(name))))


def fetched(uri: str, cache: str = "") -> Path:
    """A file, or a folder, of any file system of fsspec as one of this machine. ``cache``: see ``InputFiles``.

    Raises:
        InputMissing: nothing is there, or it cannot be read.
    """
    import fsspec
    from fsspec.implementations.local import LocalFileSystem

    try:
        system, path = fsspec.core.url_to_fs(uri)
        if isinstance(system, LocalFileSystem):
            return Path(path)
        names = {found: found[len(path) :].lstrip("/") for found in system.find(path)} if system.isdir(path) else {path: ""}
        version = hashlib.sha256("".join([uri, *(f"\0{name}\0{system.ukey(name)}" for name in sorted(names))]).encode())
        place = Path(cache or _process_cache().name, version.hexdigest()[:24])
        name = path.rstrip("/").rpartition("/")[2]
        with _DOWNLOADS.setdefault(place, Lock()):
            if not place.is_dir():
                _download(system, {found: Path(name, below) for found, below in names.items()}, place)
        os.utime(place)  # the last use: what is not used any more is removed
    except Exception as error:  # each of fsspec's file systems has its own ways to fail
        raise InputMissing(
            f"{uri} cannot be read: {type(error).__name__}: {error}\n"
            "  do: check the URI and the credentials, or install its file system: `pip install s3fs` for s3://"
        ) from error
    return place / name


def _download(system: Any, files: Mapping[str, Path], place: Path) -> None:
    """Download files to a folder that is not there before it is whole.

    Raises:
        OSError: a file has another size than its file system says.
    """
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    partial = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    try:
        for found, below in files.items():
            (partial / below).parent.mkdir(parents=True, exist_ok=True)
            system.get_file(found, str(partial / below))
            size, got = system.size(found), (partial / below).stat().st_size
            if size is not None and size != got:
                raise OSError(f"{got} of {size} bytes of {found} came")
        try:
            os.rename(partial, place)
        except OSError:  # another process, or another lane, was faster
            if not place.is_dir():
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@cache
def _process_cache() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="qdrun-data-", ignore_cleanup_errors=True)


class JobParams(BaseModel):
    """Base of a job's parameters: frozen, unknown names refused. Give each field a default and a description with its unit."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    _files: InputFiles = PrivateAttr(default_factory=InputFiles)


class JobFiles:
    """The part of a job that has to do with files. ``asked``: the files that ``data`` was asked for."""

    params: Any
    _made: bool
    asked: dict[str, Path]

    def _begin_files(self) -> None:
        self._artifacts: TemporaryDirectory[str] | None = None
        self._artifacts_used = False  # by ``build``
        self.asked = {}
        self._inputs = getattr(self.params, "_files", None)

    def data(self, name: str | PurePath) -> Path:
        """The path of a file or a folder that the job reads; call it in ``build``.

        Args:
            name: a path, relative to the folder of the config, or without a runner to the working directory; or a URI of fsspec, as in
                ``s3://bucket/target.npy``, which is downloaded once for each machine and each version of it.

        Raises:
            InputMissing: it is not there, or cannot be read.
            RuntimeError: the job is built already: a run records the files that it reads before it begins.
        """
        said = f"{type(self).__name__}.data({str(name)!r})"
        if self._made:
            raise RuntimeError(f"{said} is called after build()\n  do: call it in build() and keep the path")
        if self._inputs is None:
            raise TypeError(f"{said}: {type(self.params).__name__} does not know the config\n  do: derive it from JobParams")
        found = self._inputs.find(name)
        if not found.exists():
            begin = self._inputs.folder or os.getcwd()
            raise InputMissing(
                f"{said} names {found}, which is not on {platform.node()}\n"
                f"  do: put it there (relative paths begin in {begin}), on a storage that all machines share, or name a URI"
            )
        self.asked[str(name)] = found
        return found

    @property
    def artifacts(self) -> Path:
        """An empty folder for files of this trial, such as videos, meshes and arrays; it is made when it is first asked for.

        In a sweep its files are moved into the run folder when the attempt ends, and another attempt begins with an empty one. Without a
        runner it is a temporary folder that goes with the job. A job that asks for it in ``build`` is built for each trial.
        """
        if self._artifacts is None:
            self._artifacts = TemporaryDirectory(prefix="qdrun-", ignore_cleanup_errors=True)
        self._artifacts_used = self._artifacts_used or not self._made
        return Path(self._artifacts.name)

    @contextmanager
    def picture(self, name: str, *, size: tuple[float, float] = (4.0, 4.0), **options: Any) -> Iterator[Any]:
        """In ``save``: the axes of a figure of matplotlib, which becomes the file ``name`` of ``artifacts`` at the end of the block.

        Args:
            name: of the file; its ending chooses the format.
            size: of the figure, inches.
            options: of the axes, as of matplotlib's ``add_subplot``: ``xlabel="x, m"``, ``aspect="equal"``, ``projection="3d"``.

        Raises:
            ImportError: matplotlib is not installed; it comes with the extra `pictures`.
        """
        from matplotlib.figure import Figure

        figure = Figure(figsize=size, layout="constrained")
        yield figure.add_subplot(**options)
        figure.savefig(self.artifacts / name)

    def take_artifacts(self) -> TemporaryDirectory[str] | None:
        """The folder, where the trial has asked for it; from now on it is the caller's, and the job has another one."""
        taken, self._artifacts = self._artifacts, None
        return taken


@lru_cache(256)
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
    """Parameters with absolute paths, which know where the files of a job lie.

    Raises:
        InputMissing: one of them names nothing that is here.
    """
    if isinstance(params, JobParams):
        params._files = files
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


__all__ = ["InputFiles", "InputMissing", "JobFiles", "JobParams", "fetched", "located", "paths_in", "takes_files"]
