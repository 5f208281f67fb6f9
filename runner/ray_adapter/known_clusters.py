"""Records the cluster of each run that this user submitted from this machine, outside of the run's folder, which other users may have
written.

The token of Ray goes to these addresses, and to those that the user names, and to no other.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path

from ...compiler.errors import QdrunError
from ..private import private, state_folder, write_private
from ..store.layout import RunFolder

JOB, DASHBOARD, SLURM = "job", "dashboard", "slurm"


def remember(folder: RunFolder, address: str, what: str) -> None:
    """Note that a run was handed to the cluster at ``address``.

    Args:
        folder: of the run.
        address: ``http://host:port`` of the dashboard, as the user gave it or as Ray told a run that has joined; of ``SLURM`` the number of
            the job.
        what: ``JOB`` where the run is a job there, ``DASHBOARD`` where its process has joined, ``SLURM`` where it is a job of Slurm.
    """
    with suppress(QdrunError, OSError):  # then `--address` must be given again
        write_private(_file(folder), json.dumps(remembered(folder) | {"run": _name(folder), what: address}).encode())


def remembered(folder: RunFolder) -> dict[str, str]:
    """The addresses that ``remember`` was told of a run, by what they are."""
    with suppress(QdrunError, OSError, ValueError):
        found = json.loads(_file(folder).read_bytes())
        if found.get("run") == _name(folder):
            return {what: found[what] for what in (JOB, DASHBOARD, SLURM) if isinstance(found.get(what), str)}
    return {}


def trusted(folder: RunFolder, *addresses: str | None) -> list[str]:
    """Addresses that may be sent the token for a run: those that the user gives now, ``RAY_ADDRESS``, and those that are remembered."""
    own = [*addresses, os.environ.get("RAY_ADDRESS"), *remembered(folder).values()]
    return list(dict.fromkeys(address for address in own if address and address.startswith(("http://", "https://"))))


def _name(folder: RunFolder) -> str:
    return folder.uri if "://" in folder.uri else os.path.realpath(folder.uri)


def _file(folder: RunFolder) -> Path:
    return private(state_folder() / "runs") / f"{hashlib.sha256(_name(folder).encode()).hexdigest()[:32]}.json"


__all__ = ["DASHBOARD", "JOB", "SLURM", "remember", "remembered", "trusted"]
