"""Calls what ``callbacks`` of a config names, with the rows of a run as its journal has them.

The row is written first. A call that fails, or takes too long, is a note for the user; it costs no row and no trial.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

from ...compiler.errors import QdrunError
from ..config.callbacks_section import CALL_S, CallbacksSection
from ..observe.table import row_of
from ..stops import Stops, join
from ..store.columns import ROWS
from ..store.encoding import plain
from ..store.follower import Detail, Follower, JournalEntry, each_trial
from ..store.layout import RunFolder
from ..store.trial_state import FINAL
from ..study.target import TargetError, laid_out, resolve

LOOK_EVERY_S = 0.5
TAIL_BYTES, TAIL_SHOWN, TAIL_S = 1 << 16, 500, 1.0
"""Bytes of the output of a call that are kept, characters that are shown, and seconds for the last of it."""
SHOWN = 5
"""Failures of calls that the user is told of one by one; the others are counted."""
CHILD = """
import json, sys, traceback
from qdrun.runner.jobcode.store import imported
module, name, place = sys.argv[1:]
call, failed = getattr(imported(module, place), name), 0
for line in sys.stdin:
    try:
        call(json.loads(line))
    except Exception:
        failed += 1
        traceback.print_exc()
sys.exit(3 if failed else 0)
"""
"""Calls a function with each document on its stdin: one process for all rows that have come at once. It imports the copy of the function's
files that was made when the run began, and nothing from the working directory."""


class CallbackMissing(QdrunError, ValueError):
    """A config names a callback that is not there; nothing was run."""

    exit_code = 2


class Calls:
    """The callbacks of one run. Rows that were there before are not told again: an earlier process of the run has told them.

    Args:
        folder: the run.
        section: of its config.
        base: the folder of the config, where the paths of files begin.
        note: takes a sentence for the user.

    Raises:
        CallbackMissing: the program of a command, or the file of a function, is not there.
    """

    def __init__(
        self, folder: RunFolder, section: CallbacksSection, base: os.PathLike[str], note: Callable[[str], None]
    ) -> None:
        self._folder, self._section, self._note = folder, section, note
        self._words = commands_of(section, base)
        self._journal, self._counts = Follower(folder, Detail.FULL, settled=True), Counter[str]()
        self._trials = folder.found_trials().trials.named
        self._ids = list(self._trials)
        self._failed, self._told = 0, set[str]()
        for entry in self._journal.look().entries:
            self._rows(entry)

    def look(self, *, last: bool = False) -> None:
        """Call with what is new in the journal. ``last``: nothing more is waited for."""
        for entry in self._journal.look(last=last).entries:
            event, rows = entry.event, self._rows(entry)
            if rows:
                self._call("trial_end", rows)
            if event["event"] == "finished":
                self._call("run_end", [{"state": event.get("state"), "counts": dict(sorted(self._counts.items()))}])

    def close(self) -> None:
        """A last look; say how many calls have failed without a note."""
        self.look(last=True)
        if self._failed > SHOWN:
            self._note(f"{self._failed} calls of callbacks have failed")

    def _rows(self, entry: JournalEntry) -> list[dict[str, Any]]:
        """The rows that an entry of the journal has."""
        event = entry.event
        if event["event"] == ROWS:
            ends = [(str(one.event["trial"]), one.event) for one in each_trial(entry, self._ids)]
        elif event["event"] == "ended" and event.get("status") in FINAL:
            ends = [(str(event["trial"]), event)]
        else:
            if event["event"] == "requeued":  # `qdrun resume --failed`: the row before does not count
                self._told.discard(str(event["trial"]))
            return []
        ends = [(name, end) for name, end in ends if name not in self._told]  # the first one is the row
        self._told.update(name for name, _ in ends)
        self._counts.update(str(end.get("status") or "done") for _, end in ends)
        return [row_of(self._trials[name], end) for name, end in ends if name in self._trials]

    def _call(self, name: str, documents: Sequence[Mapping[str, Any]]) -> None:
        words, target = self._words.get(name), getattr(self._section, name)
        if not words:
            return
        head = {"event": name, "run": self._folder.name, "folder": self._folder.uri}
        lines = [json.dumps(plain({**head, **document}), allow_nan=False) + "\n" for document in documents]
        about = [str(document.get("trial") or document.get("state")) for document in documents]
        if isinstance(target, str):  # a function: one process for all of them
            lines, about = ["".join(lines)], [about[0] if len(about) == 1 else f"{len(about)} trials from {about[0]} on"]
        for text, what in zip(lines, about):
            why = run(words, text, self._section.timeout * text.count("\n"))
            if why:
                self._failed += 1
                if self._failed <= SHOWN:
                    self._note(f"callbacks.{name} has failed for {what}: {why}")


def commands_of(section: CallbacksSection | None, base: os.PathLike[str]) -> dict[str, list[str]]:
    """The command lines of the callbacks of a config, by name; a function is called by a Python of its own.

    Raises:
        CallbackMissing: the program of one, its file or its function, is not there.
    """
    named = {name: getattr(section, name, None) for name in ("trial_end", "run_end")}
    timeout_s = CALL_S if section is None else section.timeout
    return {name: _words(name, call, base, timeout_s) for name, call in named.items() if call is not None}


def _words(name: str, call: str | list[str], base: os.PathLike[str], timeout_s: float) -> list[str]:
    if isinstance(call, list):
        if shutil.which(call[0]) is None:
            raise CallbackMissing(
                f"callbacks.{name}: there is no program `{call[0]}`\n"
                "  do: write its path, or package.module:function or path/to/file.py:function for a function"
            )
        return call
    try:
        target = resolve(call, Path(base))
    except TargetError as error:
        raise CallbackMissing(f"callbacks.{name}: {str(error).replace('the job', 'the function')}") from error
    module, place = laid_out(target)
    words = [sys.executable, "-P", "-c", CHILD, module, target.name, str(place)]
    _check_function(name, call, tuple(words), timeout_s)
    return words


@cache
def _check_function(name: str, call: str, words: tuple[str, ...], timeout_s: float) -> None:
    """Look a function up without calling it, once in a process: a run that ends well must not end with "no such function"."""
    why = run(words, "", timeout_s)
    if why:
        raise CallbackMissing(
            f"callbacks.{name}: `{call}` cannot be called: {why}\n  do: see that the file can be imported, and defines that function"
        )


def run(words: Sequence[str], text: str, timeout_s: float) -> str:
    """Run a command with a text on its stdin; why it has failed, empty where it has not. The end of its output is kept.

    It ends after ``timeout_s`` at the latest, with the processes that it has started.
    """
    try:
        process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
    except OSError as error:
        return f"{words[0]}: {error.strerror or error}"
    assert process.stdin is not None and process.stdout is not None
    said, writer = _OutputTail(process.stdout), threading.Thread(target=_write, args=(process.stdin, text), daemon=True)
    writer.start()
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"not over after {timeout_s:g} s; killed"
    if not process.returncode:
        return ""
    said.join(TAIL_S)  # what it has started may print on
    last = next((line for line in reversed(said.text.splitlines()) if line.strip()), "")
    return f"exit code {process.returncode}" + (f": {last.strip()[:TAIL_SHOWN]}" if last else "")


class _OutputTail(threading.Thread):
    """Reads what a process prints, and keeps its end alone."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__(name="output", daemon=True)
        self._stream, self._kept = stream, b""
        self.start()

    def run(self) -> None:
        """Read to the end."""
        with suppress(OSError, ValueError), self._stream:
            while chunk := os.read(self._stream.fileno(), TAIL_BYTES):
                self._kept = (self._kept + chunk)[-TAIL_BYTES:]

    @property
    def text(self) -> str:
        """The end of the output."""
        return self._kept.decode("utf-8", "replace")


def _write(stream: IO[bytes], text: str) -> None:
    with suppress(OSError, ValueError), stream:  # it may end without reading
        stream.write(text.encode("utf-8", "surrogateescape"))


@contextmanager
def calling(
    folder: RunFolder,
    section: CallbacksSection | None,
    base: os.PathLike[str],
    note: Callable[[str], None],
    stops: Stops | None = None,
) -> Iterator[None]:
    """Call from a thread while the block runs. At its end the calls that are left are waited for: each has its own time limit.

    They are not waited for once ``stops`` says to end at once.

    Raises:
        CallbackMissing: see ``Calls``.
    """
    if section is None:
        yield
        return
    calls, over = Calls(folder, section, base, note), threading.Event()

    def work() -> None:
        while not over.wait(LOOK_EVERY_S):
            _try(calls.look, note)
        _try(calls.close, note)

    thread = threading.Thread(target=work, name="callbacks", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        if not join(thread, stops or Stops()):
            note("some rows were not told to the callbacks: the run was asked to end at once")


def _try(look: Callable[[], None], note: Callable[[str], None]) -> None:
    try:
        look()
    except (OSError, ValueError) as error:  # a store that is away comes back; the next look goes on
        note(f"callbacks wait: {str(error).partition(chr(10))[0]}")


__all__ = ["CallbackMissing", "Calls", "calling", "commands_of", "run"]
