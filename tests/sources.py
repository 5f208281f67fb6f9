"""The Python files of the project as syntax trees. Tests of the code's form share them, so that each process parses a file once."""

import ast
import functools
import gc
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ("compiler", "library", "runner", "jobs")
"""The folders of the package itself."""


def files(*folders: str) -> list[Path]:
    """The Python files of folders, in order."""
    return [p for name in folders for p in _files(name)]


@functools.cache
def _files(folder: str) -> tuple[Path, ...]:
    return tuple(sorted((ROOT / folder).rglob("*.py")))


def tree(path: Path) -> ast.Module:
    """The tree of a file; it must not be changed."""
    if not path.is_relative_to(ROOT):  # a test's own file, which it may write again
        return ast.parse(path.read_bytes())
    return _tree(path)


@functools.cache
def _tree(path: Path) -> ast.Module:
    enabled = gc.isenabled()
    gc.disable()  # a tree has no cycles: to collect while it grows doubles the time
    try:
        return ast.parse(path.read_bytes())
    finally:
        if enabled:
            gc.enable()


def statements(path: Path) -> tuple[ast.stmt, ...]:
    """Every statement of a file, at any depth. Expressions, which are most of a tree, are not visited."""
    return _statements(path) if path.is_relative_to(ROOT) else tuple(inside(tree(path)))


@functools.cache
def _statements(path: Path) -> tuple[ast.stmt, ...]:
    return tuple(inside(_tree(path)))


def inside(node: ast.AST) -> Iterator[ast.stmt]:
    """Every statement inside a node, at any depth."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for inner in getattr(node, name, ()):
            if isinstance(inner, ast.stmt):
                yield inner
            yield from inside(inner)
