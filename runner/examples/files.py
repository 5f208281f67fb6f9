"""Files that ``qdrun new`` and ``qdrun examples copy`` write. None of them overwrites a file."""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Mapping
from importlib.metadata import packages_distributions
from pathlib import Path

from .catalog import SKELETON, Example, ExampleError, of_name

NAME = re.compile(r"[a-z][a-z0-9_]*")


def copied(name: str, folder: Path) -> list[Path]:
    """Copy the job of an example with all its configs into a folder, where they refer to each other. Returns the files.

    Raises:
        ExampleError: there is no such example, or one of the files exists.
    """
    found = of_name(name)
    texts = {f"{found[0].job}.py": found[0].source().read_text(encoding="utf-8")}
    return _written(folder, texts | {one.config.name: _beside_its_job(one) for one in found})


def new_job(name: str, folder: Path) -> list[Path]:
    """Write ``name.py``, a job with parameters, kernel, loss and gradient check, and ``name.yaml``, which sweeps it. Returns the files.

    Raises:
        ExampleError: the name cannot be that of a module, or one of the files exists.
    """
    require_name(name)
    if not (folder / f"{name}.py").exists():
        _require_free(name)
    (skeleton,) = of_name(SKELETON)
    words = {SKELETON.title(): "".join(part.title() for part in name.split("_")), SKELETON: name}
    texts = {
        f"{name}.py": _renamed(skeleton.source().read_text(encoding="utf-8"), words),
        f"{name}.yaml": _renamed(_beside_its_job(skeleton), words),
    }
    return _written(folder, texts)


def new_sweep(name: str, folder: Path, text: str) -> list[Path]:
    """Write ``name.yaml`` with this text. Returns the file.

    Raises:
        ExampleError: the name is not one of lower-case letters, digits and ``_``, or the file exists.
    """
    require_name(name)
    return _written(folder, {f"{name}.yaml": text})


def require_name(name: str) -> None:
    """Require a name of lower-case letters, digits and ``_``, which a job's file, a config and a run can have.

    Raises:
        ExampleError: it is another one.
    """
    if not NAME.fullmatch(name) or keyword.iskeyword(name):
        raise ExampleError(
            f"`{name}` cannot be the name of a module\n  do: use lower-case letters, digits and `_`, as in mass_spring"
        )


def _require_free(name: str) -> None:
    """Require that no installed module has the name."""
    if name in sys.stdlib_module_names or name in packages_distributions():
        raise ExampleError(f"{name}.py would have the name of a module that is installed\n  do: choose another name")


def _beside_its_job(example: Example) -> str:
    """The text of a config whose job lies in the same folder."""
    text = example.config.read_text(encoding="utf-8")
    target = f"{example.module}:{example.job_class}"
    return text.replace(target, f"{example.job}.py:{example.job_class}").replace(" configs/", " ")


def _renamed(text: str, words: Mapping[str, str]) -> str:
    for word, other in words.items():
        text = text.replace(word, other)
    return text


def _written(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write files by name, all of them or none."""
    paths = {folder / name: text for name, text in texts.items()}
    there = [str(path) for path in paths if path.exists()]
    if there:
        verb = "exists" if len(there) == 1 else "exist"
        raise ExampleError(f"{', '.join(there)} {verb} already, and nothing was written\n  do: choose another name or folder")
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in paths.items():
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    return list(paths)
