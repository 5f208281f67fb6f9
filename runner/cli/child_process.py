"""Runs a command in a child process, so that a signal that kills it is reported instead of killing the caller."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import IO, TextIO

MAIN = "from qdrun.runner.cli.app import main; main()"


def run_apart(words: Sequence[str]) -> int:
    """Run ``qdrun WORDS`` in another process; what it prints appears where this one prints.

    Returns:
        Its exit code; of one that died by a signal, minus the number of the signal. 130 when the user has interrupted both.
    """
    streams = [_descriptor(sys.stdout), _descriptor(sys.stderr)]
    sys.stdout.flush()
    command = [sys.executable, "-P", "-X", "faulthandler", "-c", MAIN, *words]
    process = subprocess.Popen(command, stdin=None, stdout=streams[0], stderr=streams[1])
    copies = [
        threading.Thread(target=_copy, args=(source, to), daemon=True)
        for source, to in ((process.stdout, sys.stdout), (process.stderr, sys.stderr))
        if source is not None
    ]
    for copy in copies:
        copy.start()
    try:
        code = process.wait()
    except KeyboardInterrupt:  # the terminal has sent it to both
        process.wait()
        code = 130
    for copy in copies:
        copy.join()
    return code


def signal_name(code: int) -> str:
    """The name and the meaning of the signal in an exit code of ``run_apart``; empty if the process exited normally."""
    if code >= 0:
        return ""
    try:
        name = signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
    return f"{name} ({signal.strsignal(-code)})"


def _descriptor(stream: TextIO) -> int | None:
    """None: the process inherits ours; a pipe for a stream that is in memory."""
    try:
        stream.fileno()
    except (io.UnsupportedOperation, AttributeError):
        return subprocess.PIPE
    return None


def _copy(source: IO[bytes], to: TextIO) -> None:
    for line in source:
        to.write(line.decode("utf-8", "replace"))


__all__ = ["MAIN", "run_apart", "signal_name"]
