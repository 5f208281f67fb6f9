"""The first submit of a job runs its first trial once more, with every index checked: in a process of its own, on the CPU.

An index out of bounds writes to other memory without a word, and shows as a gradient of zero or a wrong number. The check changes no
row and no timing that is reported. It is made once for each version of the job's code and each shape of trials. A job with a ``run`` of
its own runs once more, too, as it does after any lost attempt.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...compiler.errors import QdrunAssertionError
from ...compiler.runtime.cache import cache_dir
from ...jobs.base import Job
from ...jobs.core.debug import BOUNDS
from ...jobs.core.inputs import InputFiles, located
from ..study.plan import Prepared
from ..study.target import Target, load

LIMIT_S = 30.0
"""A trial that takes longer is not checked."""
AFTER_S = 10.0
"""The end of a run waits so long for the check."""
OFF = "QDRUN_FIRST_CHECK"
"""The environment variable that switches the check off when it is 0."""
FOLDER = "checked"
MAIN = "from qdrun.runner.checks.first_check import main; main()"


class FirstCheck:
    """A check that runs beside a run.

    Args:
        spec: of the first trial, see ``Prepared.spec``.
        run: the folder or URI of the run, which keeps the code.
        known: the file that keeps the result.
        note: is called with a line for people when there is something to tell.
        told: gets the warning, if there is one.
    """

    def __init__(self, spec: Mapping[str, Any], run: str, known: Path, note: Callable[[str], None], told: list[str]) -> None:
        self._spec, self._where, self._known, self._note, self._told = spec, run, known, note, told
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="first check", daemon=True)
        self._thread.start()

    def end(self, wait: bool, stopped: Callable[[], bool]) -> None:
        """End the process; ``wait`` for the result before, unless the user stops that."""
        until = time.monotonic() + (AFTER_S if wait else 0.0)
        while self._thread.is_alive() and time.monotonic() < until and not stopped():
            self._thread.join(0.05)
        process = self._process
        if self._thread.is_alive() and process is not None:
            process.kill()
            self._thread.join()

    def _run(self) -> None:
        with suppress(OSError):
            said = json.loads(self._known.read_text(encoding="utf-8")) if self._known.exists() else self._checked()
            if said.get("found"):
                self._told.append(said["found"])
                self._note(f"warning: {said['found']}")
            elif said.get("skipped"):
                self._note(f"indices were not checked: {said['skipped']}")

    def _checked(self) -> dict[str, str]:
        """Run the trial in a child process, and keep the result for later submits."""
        self._known.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="qdrun-check-") as folder:
            answer = Path(folder) / "answer"
            order = json.dumps({"spec": dict(self._spec), "run": self._where, "answer": str(answer)})
            command = [sys.executable, "-P", "-c", MAIN]
            void = subprocess.DEVNULL
            self._process = process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=void, stderr=void)
            try:
                process.communicate(order.encode(), timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if answer.exists():
                said: dict[str, str] = json.loads(answer.read_text(encoding="utf-8"))
                if "skipped" in said:
                    return said  # the next submit tries again: memory may have run out, say
            elif time.monotonic() - began >= LIMIT_S:
                said = {
                    "skipped": f"the first trial takes longer than {LIMIT_S:g} s so; `qdrun check` checks them on a short horizon"
                }
            else:
                return {}  # it was ended with the run, or died: the next submit tries again
        self._known.write_text(json.dumps(said), encoding="utf-8")
        return said


def first_check(
    prepared: Prepared, job: type[Job[Any]], run: str, note: Callable[[str], None], told: list[str]
) -> FirstCheck | None:
    """Begin the check of a sweep; None where there is nothing to check, or its trials check their indices themselves.

    Args:
        prepared: the sweep.
        job: its job.
        run: see ``FirstCheck``.
        note: see ``FirstCheck``.
        told: see ``FirstCheck``.
    """
    debug = prepared.loaded.config.debug
    if os.environ.get(OFF) == "0" or not job.needs_compiler:
        return None
    if debug is not None and (debug.bounds or debug.asserts):
        return None
    trial = prepared.trials[0]
    with suppress(OSError, TypeError, ValueError):
        key = _key(prepared.target, job.shape_key(job.Params.model_validate(trial.params)))
        return FirstCheck(
            prepared.spec(trial), os.path.abspath(run) if "://" not in run else run, cache_dir() / FOLDER / key, note, told
        )
    return None


def _key(target: Target, shape: Mapping[str, Any]) -> str:
    """A hash of the code of a job, the shape of its trials, and the version of this package."""
    from importlib.metadata import version

    said = json.dumps([version("qdrun"), target.name, target.code, shape], sort_keys=True, default=str)
    return hashlib.sha256(said.encode()).hexdigest()[:32]


def main() -> None:
    """The child process: run the trial of the order on stdin, and write down what happened."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C goes to the command, too: the trial did not fail
    order = json.loads(sys.stdin.read())
    with suppress(OSError):
        os.nice(10)
    try:
        said = _run(order["spec"], order["run"])
    except BaseException as error:  # of the job: its trials meet it again
        said = {"skipped": f"the first trial raised {type(error).__name__}"}
    partial = Path(order["answer"] + ".partial")
    partial.write_text(json.dumps(said), encoding="utf-8")
    partial.rename(order["answer"])


def _run(spec: Mapping[str, Any], run: str) -> dict[str, str]:
    kind = load(Target.model_validate(spec["target"]), run)
    params = located(kind.Params.model_validate(spec["params"]), InputFiles.of(spec))
    made = kind(params, wanted=spec["gradients"], seed=spec["seed"])
    limits: dict[str, Any] = {name: spec.get(name) for name in ("memory_limit_bytes", "memory_budget_bytes")}
    try:
        with made.opened(backend="cpu", threads=1, debug=BOUNDS, **limits) as job:
            job.run()
            if job.program is not None:
                job.program.synchronize()
    except QdrunAssertionError as error:
        return {"found": _line(str(error))}
    return {}


def _line(message: str) -> str:
    """A message of a failed check in one line."""
    what, _, rest = message.partition("\n  at ")
    where, _, text = rest.partition("\n")
    file, _, inside = where.partition(" in kernel ")
    place, code = os.path.basename(file), text.strip().splitlines()[0] if text.strip() else ""
    return f"{what} at {place} (`{code}`); do: correct the index" + (f" in kernel {inside}" if inside else "")


__all__ = ["FirstCheck", "first_check", "main"]
