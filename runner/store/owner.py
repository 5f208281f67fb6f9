"""The owner of a run: the process with the highest numbered claim (a fencing token), and requests to it.

A claim is a file that is made once and never changed: ``owners/000002.json`` takes the run over from owner 1. Owner 1 looks whether it
exists before each write to the journal, and stops. What it may have written in between is cut off by the first line of owner 2's
journal, which says how many bytes of each older segment count (journal.py).
"""

from __future__ import annotations

import os
import platform
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote

from ...compiler.errors import QdrunError
from ..processes import gone_from_here, pid_space, started
from .encoding import document, read_document
from .files import Files, escaped
from .layout import BEAT_EVERY_S, LOST_AFTER_S, RunFolder

OWNERS, REQUESTS = "owners", "requests"


class OwnerLost(QdrunError, RuntimeError):
    """Another process has taken the run over; this one must not write any more."""


class RunAlive(QdrunError, RuntimeError):
    """A run cannot be taken over: the process behind it gives signs of life."""


@dataclass(frozen=True)
class Owner:
    """A claim on a run: its number, a token that no other claim has, and the process that made it.

    ``started``: when that process began, and ``where``: the boot and the process ids of which ``pid`` is one; empty where the system does
    not say.
    """

    number: int
    token: str
    pid: int
    host: str
    t: float
    started: str = ""
    where: str = ""

    @property
    def gone(self) -> bool:
        """Whether the process is known to have ended; see ``processes.gone_from_here``."""
        return gone_from_here(self.pid, self.host, self.where, self.started)


def _claim_name(number: int, over: bool = False) -> str:
    return f"{OWNERS}/{number:06}.{'over' if over else 'json'}"


def owner_numbers(files: Files) -> list[int]:
    """The numbers of all claims, lowest first."""
    return [int(name[:6]) for name in files.names(OWNERS) if name[:6].isdigit() and name.endswith(".json")]


def latest_owner(folder: RunFolder) -> Owner | None:
    """The owner of the run; None if it was never claimed."""
    numbers = owner_numbers(folder.files)
    if not numbers:
        return None
    try:
        return Owner(**read_document(folder.files.read(_claim_name(numbers[-1]))))
    except (ValueError, TypeError):  # damaged: it holds nevertheless, for an unknown process
        return Owner(numbers[-1], "", 0, "an unknown host", 0.0)


def take(folder: RunFolder, *, gone: int = 0) -> Owner:
    """Claim a run for this process.

    Args:
        folder: the run.
        gone: the number of an owner that is known to be dead, so that its timeout need not be waited for. That of a later owner must be.

    Raises:
        RunAlive: the owner sends heartbeats, or another process claimed the run at the same time.
        StorageFull: no room for the claim.
    """
    before = latest_owner(folder)
    over = before is None or before.number == gone or folder.files.exists(_claim_name(before.number, over=True))
    if before is not None and not over:
        silent = _silent_s(folder, before)
        if _alive(folder, before, silent):
            raise RunAlive(
                f"{folder.name} is run by process {before.pid} on {before.host}, heard of {max(0.0, silent):.0f} s ago\n"
                f"  do: wait for its end, or stop it with `qdrun cancel {folder.uri}`"
            )
    number = before.number + 1 if before else 1
    here = {"pid": os.getpid(), "host": platform.node(), "started": started(os.getpid()), "where": pid_space()}
    owner = Owner(number, secrets.token_hex(8), t=time.time(), **here)
    if not folder.files.claim(_claim_name(number), document(owner.__dict__)):
        raise RunAlive(f"{folder.name} was taken over by another process at this moment\n  do: `qdrun status {folder.uri}`")
    return owner


def _silent_s(folder: RunFolder, owner: Owner) -> float:
    """Seconds since ``owner`` was heard of; infinite when its process on this host is gone."""
    if owner.gone:
        return float("inf")
    beat = folder.last_beat()
    heard = beat["t"] if beat is not None and beat["owner"] == owner.number else 0.0
    return time.time() - max(heard, owner.t)


def _alive(folder: RunFolder, owner: Owner, silent_s: float) -> bool:
    """Whether an owner lives that was heard of so long ago. Clocks jump, and those of two machines may differ by more than a run may be
    silent: where the time of a heartbeat says too much or too little to be true, it is looked whether the heart beats now.
    """
    if 0.0 <= silent_s + BEAT_EVERY_S and silent_s < LOST_AFTER_S:
        return True
    before = folder.last_beat()
    if silent_s == float("inf") or before is None or before["owner"] != owner.number:
        return silent_s < LOST_AFTER_S
    return bool(beating((folder,), WATCH_S if silent_s > 0.0 else LOST_AFTER_S))


def give_up(folder: RunFolder, owner: Owner) -> None:
    """Say that ``owner`` writes no more, so that the next one need not wait for its silence.

    Raises:
        StorageFull: no room; the next owner waits.
        FolderGone: the folder of the run was removed.
    """
    folder.files.check_there(_claim_name(owner.number))
    folder.files.put(_claim_name(owner.number, over=True), b"{}", durable=False)


def check_owner(folder: RunFolder, owner: Owner) -> None:
    """Check that no process has taken the run over from ``owner``, by the existence of one file.

    Raises:
        OwnerLost: another process has.
        FolderGone: the folder of the run was removed.
    """
    folder.files.check_there(_claim_name(owner.number))  # a folder may be there again, or be removed in part
    if folder.files.exists(_claim_name(owner.number + 1)):
        now = latest_owner(folder)
        who = f"process {now.pid} on {now.host}" if now else "another process"
        raise OwnerLost(
            f"{who} has taken {folder.name} over from this process, which writes nothing more\n"
            f"  do: `qdrun status {folder.uri}` shows the state of the run"
        )


@dataclass(frozen=True)
class CancelRequests:
    """Requests to stop: the whole run, or single trials."""

    whole: bool = False
    trials: frozenset[str] = frozenset()


def ask_to_cancel(folder: RunFolder, trial: str | None = None) -> None:
    """Leave a request for the owner to stop the run, or one trial. Asking twice is asking once; the next owner is not asked.

    Raises:
        StorageFull: no room for the request.
    """
    numbers = owner_numbers(folder.files)
    what = "run" if trial is None else f"trial-{escaped(trial)}"
    request = {"t": time.time(), "trial": trial, "pid": os.getpid(), "host": platform.node()}
    folder.files.put(f"{REQUESTS}/{numbers[-1] if numbers else 1:06}-cancel-{what}.json", document(request))


def cancel_requests(folder: RunFolder, owner: Owner | None = None) -> CancelRequests:
    """The stop requests to ``owner``, by default the latest owner. Lists one folder and reads no file: the names contain the requests."""
    names = folder.files.names(REQUESTS)
    if not names:
        return CancelRequests()
    number = owner.number if owner else max(owner_numbers(folder.files), default=1)
    mine = [name for name in names if name.startswith(f"{number:06}-cancel-")]
    trials = [name for name in mine if "-cancel-trial-" in name]
    asked = (name.partition("-cancel-trial-")[2].removesuffix(".json") for name in trials)
    return CancelRequests(len(mine) > len(trials), frozenset(unquote(name) for name in asked))


WATCH_S, WATCH_EVERY_S = 2.5 * BEAT_EVERY_S, 0.25
MOST_SKEW_S = 86_400.0
"""Clocks of machines that share a store differ by less: a heartbeat that is older than a day is of a run that is lost."""


def seems(folder: RunFolder) -> bool | None:
    """Whether a run lives by its last heartbeat alone; None where that is too old or too new for the clock of this machine."""
    silent_s = folder.silent_s()
    if -BEAT_EVERY_S <= silent_s < LOST_AFTER_S:
        return True
    return False if silent_s > MOST_SKEW_S else None


def beating(folders: Iterable[RunFolder], seconds: float) -> list[RunFolder]:
    """The runs with a heartbeat within so many seconds. All are watched at once; returns as soon as all have beaten."""
    before = [(folder, folder.last_beat()) for folder in folders]
    found, end = list[RunFolder](), time.monotonic() + seconds
    while before and time.monotonic() < end:
        time.sleep(WATCH_EVERY_S)
        found += [folder for folder, beat in before if folder.last_beat() != beat]
        before = [(folder, beat) for folder, beat in before if folder not in found]
    return found


def lives(folder: RunFolder) -> bool:
    """Whether a run lives; watches it for some seconds where its last heartbeat does not say."""
    known = seems(folder)
    return bool(beating((folder,), WATCH_S)) if known is None else known
