"""The files that are shipped to a cluster with a run: its config, its job's file or package, and the files beside them. Nothing is pickled.

The parcel is a folder in which everything lies as it did at home, below the folder that all of it has in common. A worker there finds it
below its own working directory, so that the places in ``Shipped`` are relative.
"""

from __future__ import annotations

import os
import shutil
import site
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .plan import Prepared

FOLDER = "shipped"
"""Below the working directory of the cluster's processes: Python looks there first, and no file of the user is to hide a module."""
FILE_BYTES, ALL_BYTES, MOST_FILES, MOST_SEEN = 8 << 20, 32 << 20, 2000, 20_000
NEVER = frozenset({"__pycache__", "node_modules", "site-packages", "venv", "env", "build", "dist"})
OURS = __name__.partition(".")[0]
SHOWN = 3


@dataclass(frozen=True)
class Shipped:
    """The paths in a parcel, relative to the working directory: the config, and what was the root of imports. Modules are imported from
    the run's folder; files beside them are found below that root.
    """

    config: str
    root: str

    def words(self) -> list[str]:
        """As arguments of ``remote.entry``."""
        return ["--config", self.config, "--root", self.root]

    def overrides(self, config: Mapping[str, Any]) -> list[str]:
        """The backend that the resolved ``config`` has chosen."""
        return [f"device.backend={config['device']['backend']}"]


@dataclass
class Parcel:
    """A folder that is ready to be shipped.

    Attributes:
        folder: its path; the caller removes it.
        shipped: the paths in it.
        files, bytes: their numbers.
        left_out: files that were not taken, each with the reason.
    """

    folder: Path
    shipped: Shipped
    files: int = 0
    bytes: int = 0
    left_out: list[tuple[str, str]] = field(default_factory=list)

    def text(self) -> str:
        """The taken and the omitted files, as short text."""
        lines = [f"shipped {self.files} files, {self.bytes} bytes"]
        lines += [f"  not shipped: {name}: {why}" for name, why in self.left_out[:SHOWN]]
        rest = len(self.left_out) - SHOWN
        return "\n".join([*lines, f"  not shipped: {rest} more"] if rest > 0 else lines)


def pack(prepared: Prepared, into: Path) -> Parcel:
    """Make the parcel of a run in the empty folder ``into``.

    Taken are the folder of the config, and that of the job's file or the package of its module where it is another one and not installed:
    without hidden files, caches, environments, runs and links that lead out of it. Files above 8 MiB are left out; beyond 32 MiB or 2,000
    files in all, Python's go first, then the small ones. The home folder is no folder of a sweep: of it goes the config alone.

    Raises:
        OSError: a file cannot be read, or not copied.
    """
    config = Path(prepared.loaded.document.file).resolve()
    must = {config: prepared.loaded.document.text}
    target = prepared.target
    if target.file is not None:
        must[Path(target.file)] = target.source or ""
        root = Path(target.import_root)
        homes = [config.parent, root]
    else:
        home = home_of(target.module or "")
        root = config.parent if home is None else home[1]
        homes = [config.parent] if home is None else [config.parent, home[0]]
    homes = [home for home in homes if not any(home != other and home.is_relative_to(other) for other in homes)]
    common = Path(os.path.commonpath([*homes, root, *(path.parent for path in must)]))

    def place(path: Path) -> str:
        return os.path.normpath(os.path.join(FOLDER, os.path.relpath(path, common)))

    parcel = Parcel(into, Shipped(place(config), place(root)))
    for path, text in must.items():  # as they were read, whatever has become of them since
        _make(parcel, into / place(path), text.encode())
    found: dict[Path, int] = {}
    for home in dict.fromkeys(homes):
        found |= _found(home, parcel, os.path.abspath(prepared.loaded.config.uri))
    for path in must:
        found.pop(path, None)
    for path, size in sorted(found.items(), key=lambda item: (item[0].suffix != ".py", item[1], str(item[0]))):
        if parcel.files >= MOST_FILES or parcel.bytes + size > ALL_BYTES:
            why = f"beyond {MOST_FILES} files" if parcel.files >= MOST_FILES else f"beyond {ALL_BYTES >> 20} MiB in all"
            parcel.left_out.append((str(path), why))
        else:
            _make(parcel, into / place(path), path)
    return parcel


def _make(parcel: Parcel, place: Path, what: bytes | Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(what, Path):
        shutil.copyfile(what, place)
    else:
        place.write_bytes(what)
    parcel.files += 1
    parcel.bytes += place.stat().st_size


def _found(home: Path, parcel: Parcel, runs: str) -> dict[Path, int]:
    """The files of a folder that may be taken, with their bytes."""
    if home in (Path(os.path.expanduser("~")), Path(home.anchor)):
        parcel.left_out.append((str(home), "no folder of a sweep; put the config and its job into one of their own"))
        return {}
    out: dict[Path, int] = {}
    for seen, path in enumerate(_walk(home, runs)):
        if seen >= MOST_SEEN:
            parcel.left_out.append((str(home), f"more than {MOST_SEEN} files; the first ones alone were looked at"))
            break
        if not path.resolve().is_relative_to(home):
            parcel.left_out.append((str(path), "a link that leads out of the folder"))
        elif path.is_file():
            size = path.stat().st_size
            if size > FILE_BYTES:
                parcel.left_out.append((str(path), f"{size} bytes, more than {FILE_BYTES >> 20} MiB"))
            else:
                out[path] = size
    return out


def _walk(home: Path, runs: str) -> Iterator[Path]:
    for folder, folders, files in os.walk(home):
        folders[:] = sorted(name for name in folders if _wanted(folder, name, runs))
        yield from (Path(folder, name) for name in sorted(files) if not name.startswith(".") and not name.endswith(".pyc"))


def _wanted(folder: str, name: str, runs: str) -> bool:
    """Whether a folder is shipped: it is not hidden, no cache, no environment, no run and no folder of runs."""
    path = os.path.join(folder, name)
    if name.startswith(".") or name in NEVER or name.endswith(".egg-info") or os.path.abspath(path) == runs:
        return False
    return not any(os.path.exists(os.path.join(path, mark)) for mark in ("pyvenv.cfg", "run.json"))


def home_of(module: str) -> tuple[Path, Path] | None:
    """The folder of a loaded module's package, and the root of its import; None for an installed module."""
    source = getattr(sys.modules.get(module), "__file__", None)
    if source is None or module.partition(".")[0] == OURS:
        return None
    path = Path(source).resolve()
    if any(path.is_relative_to(place) for place in _installed()):
        return None
    parts = module.split(".")
    up = len(parts) if path.name == "__init__.py" else len(parts) - 1
    root = path.parents[up]
    return (root / parts[0] if up else root), root


def _installed() -> list[Path]:
    paths = {sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return [Path(path).resolve() for path in [*paths, site.getusersitepackages()]]


__all__ = ["FOLDER", "Parcel", "Shipped", "home_of", "pack"]
