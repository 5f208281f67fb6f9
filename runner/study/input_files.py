"""Where a process of this machine finds the files that a job reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...compiler.runtime.cache import cache_dir
from ...jobs.core.inputs import InputFiles

DATA = "data"
"""Below the user's cache: what URIs name."""


def input_files(spec: Mapping[str, Any]) -> InputFiles:
    """The files of the spec of a trial."""
    return InputFiles.of(spec, str(cache_dir() / DATA))


__all__ = ["DATA", "input_files"]
