"""The caches of files on this machine: what inputs named by URIs were, and the code of runs that ran again, or came from notebooks.

Each entry is a folder below the user's cache. The time of its last use is the time of the folder. All of it can be made again.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ...compiler.runtime.cache import cache_dir
from ..fields import about

KINDS = {
    "data": "inputs that were downloaded",
    "kept": "code and inputs of runs that ran again",
    "cells": "jobs of notebooks",
}
AGE_S, BYTES = 30 * 86_400.0, 20 << 30
"""Entries that were not used for so long go, and the longest unused ones beyond so many bytes in all."""
EVERY_S = 3600.0
IN_USE_S = 86_400.0
"""An entry that was used since then may be in use now."""


@dataclass(frozen=True)
class CacheEntry:
    """An entry of a cache."""

    kind: Annotated[str, about("data: downloaded inputs; kept: code of runs that ran again; cells: jobs of notebooks")]
    path: Annotated[Path, about("its folder")]
    bytes: Annotated[int, about("its size")]
    age_s: Annotated[float, about("seconds since its last use")]


def entries() -> list[CacheEntry]:
    """All entries, the longest unused first."""
    found, at = list[CacheEntry](), time.time()
    for kind in KINDS:
        with suppress(FileNotFoundError):
            for path in (cache_dir() / kind).iterdir():
                with suppress(FileNotFoundError):
                    found.append(CacheEntry(kind, path, sum(_sizes(path)), at - path.lstat().st_mtime))
    return sorted(found, key=lambda entry: -entry.age_s)


def unwanted(found: Sequence[CacheEntry], age_s: float = AGE_S, most: int = BYTES) -> list[CacheEntry]:
    """The entries that go, the longest unused first: the old ones, and those beyond ``most`` bytes in all. What was used within a day
    stays.
    """
    gone, held = list[CacheEntry](), sum(entry.bytes for entry in found)
    for entry in sorted(found, key=lambda entry: -entry.age_s):
        if entry.age_s >= IN_USE_S and (entry.age_s >= age_s or held > most):
            gone.append(entry)
            held -= entry.bytes
    return gone


def remove_entries(gone: Sequence[CacheEntry]) -> None:
    """Remove entries. They are renamed before, so that no process finds half of one."""
    for entry in gone:
        partial = entry.path.with_name(f".gone-{os.getpid()}-{entry.path.name}")
        with suppress(FileNotFoundError):
            os.rename(entry.path, partial)
            shutil.rmtree(partial)


def trim() -> None:
    """Hold the caches within their limits, at most once in ``EVERY_S``. What cannot be removed stays."""
    # A look at many files takes time, which not every submit should pay.
    with suppress(OSError, RuntimeError):  # no room, no home folder
        stamp = cache_dir() / "trimmed"
        if stamp.exists() and 0.0 <= time.time() - stamp.stat().st_mtime < EVERY_S:
            return
        stamp.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        stamp.touch()
        remove_entries(unwanted(entries()))


def _sizes(path: Path) -> Iterator[int]:
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(FileNotFoundError):
                yield os.lstat(os.path.join(folder, name)).st_size


__all__ = ["AGE_S", "BYTES", "IN_USE_S", "KINDS", "CacheEntry", "entries", "remove_entries", "trim", "unwanted"]
