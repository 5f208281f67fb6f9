"""Processes of this machine, from /proc: who descends from whom, what Ray calls itself, who is left. And a small disk that can be filled.

A process that this one has started, in whatever generation, becomes its child when its own parent dies (``adopt_orphans``): nothing that a
killed run leaves behind is missed.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Process:
    """A process: its number, that of its parent, and what it calls itself."""

    pid: int
    parent: int
    title: str


def adopt_orphans():
    """From now on what this process has started stays below it."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _parents():
    """The parent of each process that lives; those that are dead and not waited for are left out."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError):
                state, parent = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[:2]
                if state != "Z":
                    found[int(name)] = int(parent)
    return found


def _process(pid, parent):
    try:
        title = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        title = ""
    return Process(pid, parent, title)


def processes():
    """All that live."""
    return {pid: _process(pid, parent) for pid, parent in _parents().items()}


def below(*roots):
    """What descends from these processes, without them."""
    children = {}
    for pid, parent in _parents().items():
        children.setdefault(parent, []).append(pid)
    out, todo = [], list(roots)
    while todo:
        above = todo.pop()
        for child in children.get(above, ()):
            out.append(_process(child, above))
            todo.append(child)
    return out


def kill(pid):
    """SIGKILL; False: it was gone."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def reap(keep=()):
    """Wait for orphans that this process has inherited and that are dead."""
    me = os.getpid()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in keep:
            with contextlib.suppress(OSError, ValueError):
                state, parent = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[:2]
                if state == "Z" and int(parent) == me:
                    os.waitpid(int(name), os.WNOHANG)


def stacks(pid):
    """What the threads of a Python process do, as far as py-spy is there to say it."""
    try:
        command = [Path(sys.executable).with_name("py-spy"), "dump", "--pid", str(pid)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no stacks: {error}"
    return done.stdout + done.stderr


def until(happens, seconds, every=0.3):
    """Whether it happens within so many seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if happens():
            return True
        time.sleep(every)
    return bool(happens())


class SmallDisk:
    """A tmpfs of so many bytes, that one file can fill. Needs root."""

    def __init__(self, where, size=24 << 20):
        self.where, self._filler = Path(where), Path(where) / "filler"
        self.where.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "chaos", str(self.where)], check=True, stderr=subprocess.DEVNULL
        )

    @staticmethod
    def possible():
        """Whether this user may mount one."""
        if os.geteuid():
            return False
        where = tempfile.mkdtemp(prefix="qc", dir="/tmp")
        try:
            SmallDisk(where, 1 << 20).close()
        except (OSError, subprocess.CalledProcessError):
            return False
        os.rmdir(where)
        return True

    def fill(self, leave=0):
        """Take all room but ``leave`` bytes."""
        with contextlib.suppress(OSError), open(self._filler, "ab", buffering=0) as file:
            while True:
                file.write(b"\0" * 65536)
        with contextlib.suppress(OSError), open(self._filler, "ab", buffering=0) as file:
            while True:
                file.write(b"\0" * 4096)
        if leave:
            os.truncate(self._filler, max(0, self._filler.stat().st_size - leave))

    def free(self):
        """Give the room back."""
        self._filler.unlink(missing_ok=True)

    def close(self):
        """Unmount it."""
        self.unmount(self.where)

    @staticmethod
    def unmount(where):
        """Unmount what is there."""
        subprocess.run(["umount", "-l", str(where)], check=True)
