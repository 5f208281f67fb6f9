"""The files that the trials of a run read: their checksums, and copies of those that are not too large."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from ...jobs.base import Job
from ...jobs.core.inputs import InputFiles
from ..store.files import Files
from ..study.plan import Prepared
from ..study.prepare import named_paths

INPUTS, INPUT_BYTES = "inputs", 64 << 20


class RecordedFile(BaseModel):
    """A file that a run depends on, as it was when the run began.

    Attributes:
        path: of a copied source, below ``source/``; of an input, as the config or ``Job.data`` names it.
        origin: where it was: a path, or a URI.
        sha256: of its bytes; of a folder, of the names and bytes of all files below it.
        kept: of an input, its copy below the run's folder; empty: there is none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    origin: str
    sha256: str
    kept: str = ""


def contents(prepared: Prepared, job: type[Job]) -> tuple[RecordedFile, ...]:
    """The present checksums of the files that parameters of trials name; files on other machines are left out."""
    return recorded(prepared.inputs, dict.fromkeys(str(path) for _, _, path in named_paths(job, prepared.trials)))


def recorded(inputs: InputFiles, names: Iterable[str]) -> tuple[RecordedFile, ...]:
    """The present checksums of files by their names; those that are not there are left out."""
    found = [(name, inputs.find(name), name if "://" in name else "") for name in names]
    return tuple(
        RecordedFile(path=name, origin=uri or str(where), sha256=digest(where).hex())
        for name, where, uri in found
        if where.exists()
    )


def changed(inputs: InputFiles, before: Sequence[RecordedFile]) -> list[str]:
    """The files, as the config names them, that do not hold what they did."""
    now = {one.path: inputs.find(one.path) for one in before}
    return [one.path for one in before if not now[one.path].exists() or digest(now[one.path]).hex() != one.sha256]


def keep(
    files: Files, inputs: InputFiles, found: Sequence[RecordedFile], before: Sequence[RecordedFile] = ()
) -> tuple[tuple[RecordedFile, ...], list[str]]:
    """Copy input files into a run folder, up to ``INPUT_BYTES`` in all.

    Args:
        files: of the run.
        inputs: where the files lie now.
        found: the files.
        before: those that were copied already.

    Returns:
        The files, each with the place of its copy, and a note on each that was not copied.

    Raises:
        StorageFull: no room.
    """
    room, kept, notes = INPUT_BYTES - sum(files.below(INPUTS).values()), list[RecordedFile](), list[str]()
    for number, one in enumerate(found, len(before)):
        origin = inputs.find(one.path)
        size = sum(path.stat().st_size for path, _ in files_below(origin))
        if size > room:
            notes.append(f"{one.path} is not copied: {size:,} bytes, and all inputs may take {INPUT_BYTES >> 20} MiB")
            kept.append(one)
            continue
        room -= size
        place = f"{INPUTS}/{number}/{origin.name}"
        for path, below in files_below(origin):
            with open(path, "rb") as source, files.writing(f"{place}/{below}" if below else place) as target:
                shutil.copyfileobj(source, target, 1 << 20)
        kept.append(one.model_copy(update={"kept": place}))
    return tuple(kept), notes


def files_below(path: Path) -> Iterator[tuple[Path, str]]:
    """A file, or all files below a folder, in order; each with its path below that folder."""
    if not path.is_dir():
        yield path, ""
        return
    for below in sorted(one for one in path.rglob("*") if one.is_file()):
        yield below, below.relative_to(path).as_posix()


def digest(path: Path) -> bytes:
    """The SHA-256 of a file, or of the names and contents of all files below a folder."""
    if path.is_dir():
        found = hashlib.sha256()
        for below, name in files_below(path):
            found.update(f"{name}\0".encode(errors="surrogateescape"))
            found.update(digest(below))
        return found.digest()
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").digest()


__all__ = ["INPUTS", "RecordedFile", "changed", "contents", "digest", "files_below", "keep", "recorded"]
