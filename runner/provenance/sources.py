"""The Python files that a job consists of: its own, and the modules below the root of its imports that it imports, or may import."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

from ..study.target import Target

OURS = __name__.partition(".")[0]
INSTALLED = {"site-packages", "dist-packages"}


def sources_of(target: Target, root: Path) -> Iterator[tuple[Path, bytes]]:
    """The job's file as it was read for the run, the loaded modules below ``root`` that no package manager installed, and what all of
    these name in an ``import`` and has not been loaded yet. Each file once.
    """
    seen, waiting = set[Path](), list[tuple[Path, bytes]]()
    for path, data in _loaded(target, root):
        if path not in seen:
            seen.add(path)
            waiting.append((path, data))
            yield path, data
    while waiting:
        path, data = waiting.pop()
        for other in _named(path, data, root):
            if other in seen:
                continue
            seen.add(other)
            found = _read(other)
            if found is not None:
                waiting.append((other, found))
                yield other, found


def _loaded(target: Target, root: Path) -> Iterator[tuple[Path, bytes]]:
    above, home = str(root), None
    if target.file is not None and target.source is not None:
        home = Path(target.file).resolve()
        yield home, target.source.encode()
    named = sys.modules.get(target.module or "")
    modules = [named] if named is not None else []
    for module in [*modules, *list(sys.modules.values())]:
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py") or not (module is named or file.startswith(above)):
            continue
        path = Path(file).resolve()
        ours = str(getattr(module, "__name__", "")).partition(".")[0] == OURS
        if path != home and (module is named or (_is_local(path, root) and not ours)):
            data = _read(path)
            if data is not None:
                yield path, data


def _is_local(path: Path, root: Path) -> bool:
    return path.is_relative_to(root) and not INSTALLED & set(path.parts)


def _read(path: Path) -> bytes | None:
    """None: the file of a loaded module is gone; what was loaded from it is in no file any more."""
    try:
        return path.read_bytes()
    except OSError:
        return None


def _named(path: Path, data: bytes, root: Path) -> Iterator[Path]:
    """The local files that a file names in its ``import`` statements, wherever they stand."""
    if not path.is_relative_to(root):
        return
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError):
        return
    here = path.relative_to(root).parts[:-1]
    for node in ast.walk(tree):
        names: list[tuple[str, ...]] = []
        if isinstance(node, ast.Import):
            names = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = here[: len(here) - node.level + 1] if node.level else ()
            base = (*above, *(node.module.split(".") if node.module else ()))
            names = [base, *((*base, alias.name) for alias in node.names)]
        for parts in names:
            for count in range(1, len(parts) + 1):
                yield from _files_of(root, parts[:count])


def _files_of(root: Path, parts: tuple[str, ...]) -> Iterator[Path]:
    place = root.joinpath(*parts)
    for path in (place.with_name(f"{place.name}.py"), place / "__init__.py"):
        if path.is_file() and _is_local(path.resolve(), root) and parts[0] != OURS and not _hidden(parts[0], root):
            yield path.resolve()


def _hidden(name: str, root: Path) -> bool:
    """Whether an import of this name finds another module than one below ``root``, which comes last among the places of imports."""
    module = sys.modules.get(name)
    try:
        spec = importlib.util.find_spec(name) if module is None else module.__spec__
    except (ImportError, ValueError):
        return False
    if spec is None:
        return False
    places = [*(spec.submodule_search_locations or ()), *([spec.origin] if spec.origin else [])]
    return not any(Path(place).is_relative_to(root) for place in places)


__all__ = ["sources_of"]
