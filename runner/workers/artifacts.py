"""The files that a trial leaves in ``Job.artifacts``: moved into the run folder, below its attempt, when it ends."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from ...compiler.errors import QdrunError
from ..store.files import Files

MOST_BYTES, MOST_FILES = 1 << 30, 10_000
"""The limits of an attempt's folder."""
LISTED = 32
"""The row of a trial names so many of its files."""


class TooManyArtifacts(QdrunError):
    """A trial has left more files than a run folder takes."""


def keep(files: Files, where: str, own: Path, before: Callable[[], None]) -> dict[str, object] | None:
    """Copy the files of an attempt into the run folder; what its row says of them, None where there are none.

    Regular files alone are kept: links and empty folders are not.

    Args:
        files: of the run.
        where: to put them, below the run's folder.
        own: the folder that the job wrote to.
        before: is called before the first file.

    Raises:
        TooManyArtifacts: nothing was copied.
        StorageFull: no room; call it again.
    """
    found = dict(_files(own))
    size = sum(found.values())
    if size > MOST_BYTES or len(found) > MOST_FILES:
        raise TooManyArtifacts(
            f"its artifacts are {size:,} bytes in {len(found):,} files, and a trial may leave {MOST_BYTES:,} bytes in {MOST_FILES:,}:"
            " none was kept\n  do: let the trial write less, or write to a place of your own that a parameter names"
        )
    if not found:
        return None
    before()
    for path in found:
        with open(own / path, "rb") as source, files.writing(f"{where}/{path}") as target:
            shutil.copyfileobj(source, target, 1 << 20)
    return {"path": where, "files": len(found), "bytes": size, "names": sorted(found)[:LISTED]}


def _files(own: Path) -> Iterator[tuple[str, int]]:
    """The regular files below a folder, with their bytes."""
    for where, folders, names in os.walk(own):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(where, name)
            about = os.lstat(path)
            if stat.S_ISREG(about.st_mode):
                yield os.path.relpath(path, own), about.st_size


__all__ = ["MOST_BYTES", "MOST_FILES", "TooManyArtifacts", "keep"]
