"""Private folders of this user on this machine: what a run's folder, which others may have made, must not decide lies there.

``state_folder`` outlives a boot, ``session_folder`` is made for one Ray, ``machine_folder`` is shared by all processes of the user.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from ..compiler.errors import QdrunError
from ..compiler.runtime.cache import home_folder

LONGEST_PATH = 40
"""Maximum length of the folder of Ray's sockets: their paths must fit into 107 bytes."""
SESSION, LOCK = "qdrun-ray-", "lock"
STALE_S = 600.0
MACHINE_VARIABLE, SHARED_FOLDER = "QDRUN_MACHINE_DIR", "/tmp/qdrun-{}"


class NotPrivate(QdrunError, PermissionError):
    """A folder that must be this user's alone is not."""

    exit_code = 4


def private(path: Path) -> Path:
    """Create a folder that only its owner can access, or check an existing one.

    Raises:
        NotPrivate: it is a link or no folder, belongs to another user, or cannot be created.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
        found = path.lstat()
    except OSError as error:
        raise NotPrivate(f"the folder {path} cannot be made: {error.strerror}\n  do: see who owns {path.parent}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise NotPrivate(f"{path} is not a folder of yours: others could replace what lies in it\n  do: {_remedy(path, found)}")
    if found.st_mode & 0o777 != 0o700:
        path.chmod(0o700)
    return path


def _remedy(path: Path, found: os.stat_result) -> str:
    """What a user can do about a path that is no private folder: in a folder such as ``/tmp``, none but the owner can remove it."""
    above = path.parent.stat()
    others = found.st_uid != os.getuid() and above.st_uid != os.getuid() and os.getuid() != 0
    if others and (above.st_mode & stat.S_ISVTX or not os.access(path.parent, os.W_OK)):
        return f"ask its owner (user {found.st_uid}) to remove it, or set the variable that names its place to another folder"
    return f"remove it: `rm -r {path}`"


def state_folder() -> Path:
    """The folder of this user's records on this machine: ``$XDG_STATE_HOME/qdrun`` or ``~/.local/state/qdrun``."""
    above = os.environ.get("XDG_STATE_HOME") or home_folder() / ".local" / "state"
    return private(Path(above) / "qdrun")


def machine_folder() -> Path:
    """The folder that all processes of this user on this machine share until the next boot: ``/tmp/qdrun-<user id>``, or
    ``$QDRUN_MACHINE_DIR``.

    Not in ``$TMPDIR`` or ``$XDG_RUNTIME_DIR``: two shells may have two of them. Anybody can make the one in ``/tmp`` first; then all
    processes of this user find that it is not theirs, and share one in their home folder, named after this boot of this machine.

    Raises:
        NotPrivate: the folder that ``$QDRUN_MACHINE_DIR`` names is not private.
        NoHome: there is none in ``/tmp``, and no home folder.
    """
    if named := os.environ.get(MACHINE_VARIABLE):
        return private(Path(named))
    try:
        return private(Path(SHARED_FOLDER.format(os.getuid())))
    except NotPrivate:
        return private(private(state_folder() / "machines") / _boot())


def _boot() -> str:
    """A name of this boot of this machine: home folders may be those of several machines."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return platform.node() or "machine"


def write_private(path: Path, data: bytes) -> None:
    """Write a file that its owner alone can read, from its first byte on; an older one is replaced as a whole."""
    made, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)  # with the mode 0600
    try:
        with os.fdopen(made, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def make_private(path: Path, data: bytes) -> bool:
    """Make a file that its owner alone can read, from its first byte on. False: there is one already, which stays as it is."""
    made, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(made, "wb") as file:
            file.write(data)
        os.link(name, path)
    except FileExistsError:
        return False
    finally:
        Path(name).unlink(missing_ok=True)
    return True


class SessionFolder:
    """A folder for one Ray that this process starts. Ray makes its own folders writable for all, so they lie in one that is not.

    A lock is held while this process lives; ``clean`` removes folders whose process has died without removing its own.

    Attributes:
        path: what Ray is told.
    """

    def __init__(self) -> None:
        above = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
        if len(above) > LONGEST_PATH - len(SESSION) - 12:
            above = "/tmp"
        os.makedirs(above, exist_ok=True)  # as Ray does with RAY_TMPDIR
        clean(Path(above))
        self._folder = Path(tempfile.mkdtemp(prefix=SESSION, dir=above))  # with the mode 0700
        self._lock = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.path = self._folder / "ray"
        self.path.mkdir(mode=0o700)

    def remove(self) -> None:
        """Remove the session folder of a Ray that has ended."""
        for _ in range(3):  # its agents may write a last line
            shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._lock)


def clean(above: Path) -> None:
    """Remove the session folders whose process is gone; Ray's own processes need a minute to notice that, so young ones are left."""
    for folder in above.glob(f"{SESSION}*"):
        with suppress(OSError):
            if folder.lstat().st_uid != os.getuid() or time.time() - folder.stat().st_mtime < STALE_S:
                continue
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


__all__ = ["NotPrivate", "SessionFolder", "clean", "machine_folder", "make_private", "private", "state_folder", "write_private"]
