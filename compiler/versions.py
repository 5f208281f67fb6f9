"""Packages that are older than qdrun works with, named where importing them or importing with them fails.

Looking up what is installed takes 20 ms, so it is done after a failure only. Two packages tell their version when they are imported:
those are compared each time, since an old one may import and then compile wrong machine code.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from .errors import QdrunImportError

_COMPARED = ("llvmlite>=0.48", "numpy>=1.26")
"""As ``pyproject.toml`` declares them, which a test compares. llvmlite 0.47 has LLVM 20, which lacks intrinsics that are used."""
_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(?:\[[^]]*\])?[^;]*?>=(?P<lowest>[\w.]+)")


@contextmanager
def new_enough() -> Iterator[None]:
    """Around imports: what fails there is put down to the packages that are too old, if there are any.

    Raises:
        QdrunImportError: it names each package, its version, the lowest that works, and the command that installs it.
    """
    try:
        yield
    except (ImportError, AttributeError) as error:
        old = too_old(_declared(), _installed)
        if not old or isinstance(error, QdrunImportError):
            raise
        raise _refusal(old, f" ({type(error).__name__}: {error})") from error


def compare_loaded() -> None:
    """Compare the versions of the packages that are loaded and known to break.

    Raises:
        QdrunImportError: as ``new_enough``.
    """
    if old := too_old(_COMPARED, lambda name: getattr(sys.modules.get(name), "__version__", None)):
        raise _refusal(old, "")


def too_old(requirements: Iterable[str], found: Callable[[str], str | None]) -> list[tuple[str, str, str, str]]:
    """The packages older than their requirement says: name, version, lowest version, requirement. One that is not there is none of them."""
    old = []
    for requirement in requirements:
        match = _REQUIREMENT.match(requirement)
        version = found(match["name"]) if match else None
        if match and version and _release(version) < _release(match["lowest"]):
            old.append((match["name"], version, match["lowest"], requirement.split(";")[0].strip()))
    return old


def _release(version: str) -> tuple[int, ...]:
    numbers = re.match(r"\d+(?:\.\d+)*", version)
    parts = [int(n) for n in numbers[0].split(".")] if numbers else []
    return tuple(parts + [0] * (4 - len(parts)))


def _refusal(old: list[tuple[str, str, str, str]], because: str) -> QdrunImportError:
    said = ", ".join(
        f"{name} {version} is installed, and {lowest} is the lowest version that works" for name, version, lowest, _ in old
    )
    command = " ".join(f"'{requirement}'" for *_, requirement in old)
    return QdrunImportError(f"a package is too old for qdrun: {said}{because}\n  do: pip install {command}")


def _declared() -> list[str]:
    """What the installed qdrun requires, without its extras. Nothing where it is used without being installed: then the two above."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        return [line for line in requires("qdrun") or () if "extra ==" not in line]
    except PackageNotFoundError:
        return list(_COMPARED)


def _installed(name: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return None
