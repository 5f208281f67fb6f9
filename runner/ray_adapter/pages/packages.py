"""The packages that Ray's dashboard needs, found without importing Ray or them."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path


def missing_packages() -> list[str]:
    """The modules that the dashboard needs and that are not installed.

    Without one, Ray starts no dashboard, says nothing, and waits for it for more than a minute.
    """
    return [name for name in _packages() if not _is_installed(name)]


def _packages() -> list[str]:
    """The modules that Ray tries to import before it starts the dashboard."""
    ray = importlib.util.find_spec("ray")
    listed = Path(ray.origin or "").parent / "dashboard" / "optional_deps.py" if ray is not None else Path()
    if not listed.is_file():
        return []
    tree = ast.parse(listed.read_bytes())
    plain = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    return sorted({*plain, *(node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module)})


def _is_installed(name: str) -> bool:
    """Whether a module is there. Of a package with code of its own, which would be imported, only the package is looked for."""
    found = importlib.util.find_spec(name.partition(".")[0])
    if found is None or found.origin is not None:
        return found is not None
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
