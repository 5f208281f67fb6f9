"""Kernels that a benchmark writes: the compiler reads their source, so they must stand in a file."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def imported(path: Path, text: str) -> ModuleType:
    """Write a module and import it under the file's name."""
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
