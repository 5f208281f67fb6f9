"""What a job uses and its run does not keep: installed packages, and files that its code names. A resume names what has changed."""

from __future__ import annotations

import ast
import hashlib
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypedDict

from .modules import JobCode
from .places import find

READ_BYTES = 4 << 20
"""Of the sources of a larger package the paths and sizes are compared, and not the text."""
FILE_BYTES, MOST_FILES, NAME_CHARS = 64 << 20, 200, 300


class Checksums(TypedDict):
    """Checksums of packages by name, and of files by path."""

    packages: dict[str, str]
    files: dict[str, str]


def live_of(code: JobCode) -> Checksums:
    """What a job uses now. The installed packages are those of its ``import`` statements; the files are those that strings in its code
    name, beside the module or by a whole path: programs, scripts, data.
    """
    names = sorted({*code.installed, *code.live.get("packages", {})})
    packages = {name: found for name in names if (found := _package(_origin(name)))}
    kept = {os.path.realpath(one.origin) for one in list(code.modules.values())}
    files: dict[str, str] = {}
    for path in _named_files(code):
        if len(files) < MOST_FILES and path not in files and os.path.realpath(path) not in kept:
            files |= {path: found} if (found := _file(path)) else {}
    return Checksums(packages=packages, files=files)


def live_changes(then: Mapping[str, Mapping[str, str]], kept: Collection[str] = ()) -> list[str]:
    """How that differs from what a run was made with, as text. ``then``: as ``live_of``. ``kept``: where files were that the run keeps."""
    kept = {os.path.realpath(path) for path in kept}
    found = []
    for name, was in then.get("packages", {}).items():
        now = _package(_origin(name))
        if now != was:
            found.append(
                f"the installed package {name} {'was changed' if now else 'is gone'}; every worker uses the present one"
            )
    for path, was in then.get("files", {}).items():
        now = _file(path)
        if now != was and os.path.realpath(path) not in kept:
            found.append(f"{path} {'was edited' if now else 'is gone'}; the run keeps no copy of it")
    return found


def _origin(name: str) -> str:
    """The file of an installed module; empty where there is none."""
    try:
        spec = find(name, "")
    except (ImportError, ValueError):
        return ""
    return spec.origin or "" if spec is not None else ""


def _package(origin: str) -> str:
    """The checksum of the sources of a package or module; empty where there is none."""
    sources = sorted(_sources(origin))
    text = sum(size for _, size in sources) <= READ_BYTES
    made = hashlib.sha256()
    for path, size in sources:
        made.update(f"{os.path.relpath(path, os.path.dirname(origin))}\0{size}\0".encode())
        if text:
            with suppress(OSError):
                made.update(Path(path).read_bytes())
    return made.hexdigest() if sources else ""


def _sources(origin: str) -> Iterator[tuple[str, int]]:
    """The Python files of a package with their sizes, from that of its `__init__`; of a module its one file."""
    if os.path.basename(origin).partition(".")[0] != "__init__":
        with suppress(OSError):
            yield origin, os.stat(origin).st_size
        return
    for folder, folders, names in os.walk(os.path.dirname(origin)):
        folders[:] = [name for name in folders if name not in ("__pycache__", "tests")]
        for name in names:
            if name.endswith((".py", ".so", ".pyd")):
                with suppress(OSError):
                    yield os.path.join(folder, name), os.stat(os.path.join(folder, name)).st_size


def _named_files(code: JobCode) -> Iterator[str]:
    for one in list(code.modules.values()):
        with suppress(SyntaxError, ValueError):
            for node in ast.walk(ast.parse(one.data)) if one.is_source else ():
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and 2 < len(node.value) <= NAME_CHARS:
                    yield from _places(node.value, os.path.dirname(one.origin))


def _places(text: str, folder: str) -> Iterator[str]:
    if "\n" not in text and "\0" not in text and not text.isidentifier():
        with suppress(UnicodeEncodeError):  # a lone surrogate, which no path has
            yield os.fsdecode(os.fsencode(os.path.normpath(os.path.join(folder, text))))


def _file(path: str) -> str:
    """The checksum of a file; empty where there is none, or a large one."""
    with suppress(OSError):
        about = os.stat(path)
        if stat.S_ISREG(about.st_mode) and about.st_size <= FILE_BYTES:
            return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    return ""


__all__ = ["Checksums", "live_changes", "live_of"]
