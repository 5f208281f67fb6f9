"""Keeps processes at work, and notes what they find, or what ends them."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BATCH = 150
LONGEST = 90.0
"""Seconds that one program may take."""
MOST = 30
"""Kinds of findings after which a search ends."""
KEPT = 3
"""Findings of one kind that are kept; of the others only the number."""
LATE = 20.0
"""Seconds after the end of the time in which a program may still finish."""


@dataclass
class Found:
    """A finding: the number of its program and what is wrong with it."""

    index: int
    kind: str
    detail: str


@dataclass
class Tally:
    """What all processes did."""

    programs: int = 0
    features: Counter[str] = field(default_factory=Counter)
    compared: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    found: list[Found] = field(default_factory=list)
    work: float = 0.0

    @property
    def full(self) -> bool:
        """Whether so much is wrong that a search need not go on."""
        return len(self.kinds) >= MOST

    def add(self, found: Found) -> None:
        """Count a finding. The first ones of its kind are kept and told of."""
        self.kinds[found.kind] += 1
        if self.kinds[found.kind] <= KEPT:
            self.found.append(found)
            print(f"program {found.index}: {found.kind}", file=sys.stderr, flush=True)


class Job(threading.Thread):
    """Numbers ``first``, ``first + step``, ..: one process after the other until the time is over."""

    def __init__(self, tally: Tally, lock: threading.Lock, seed: int, first: int, step: int, devices: str, end: float) -> None:
        super().__init__(daemon=True)
        self.tally, self.lock, self.seed, self.at, self.step, self.devices, self.end = (
            tally,
            lock,
            seed,
            first,
            step,
            devices,
            end,
        )

    def run(self) -> None:
        while not self.over:
            self.batch()

    @property
    def over(self) -> bool:
        """Whether no further program is to be checked."""
        return time.monotonic() >= self.end or self.tally.full

    def batch(self) -> None:
        """One process for some programs."""
        read, write = os.pipe()
        with tempfile.TemporaryFile() as errors:
            args = [
                sys.executable,
                "-m",
                "tests.fuzz.child",
                *map(str, (write, self.seed, self.at, self.step, BATCH)),
                self.devices,
            ]
            process = subprocess.Popen(args, cwd=ROOT, pass_fds=[write], stdout=subprocess.DEVNULL, stderr=errors)
            os.close(write)
            inside = False
            for facts in _lines(read, lambda: min(LONGEST, max(0.0, self.end + LATE - time.monotonic()))):
                if facts is None:
                    process.kill()
                    if time.monotonic() < self.end + LATE:
                        self.found("hang", f"no answer after {LONGEST:.0f} s")
                        self.at += self.step
                    process.wait()
                    return
                inside = "at" in facts
                if not inside:
                    self.note(facts)
                    self.at = facts["done"] + self.step
                    if self.over:
                        process.kill()
                        process.wait()
                        return
            code = process.wait()
            if inside or code:
                errors.seek(0)
                name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
                self.found(f"crash: {name}", errors.read()[-3000:].decode(errors="replace"))
                self.at += self.step

    def found(self, kind: str, detail: str) -> None:
        with self.lock:
            self.tally.programs += 1
            self.tally.add(Found(self.at, kind, detail))

    def note(self, facts: dict[str, Any]) -> None:
        with self.lock:
            t = self.tally
            t.programs += 1
            t.features.update(facts["features"])
            t.compared.update(facts["compared"])
            t.work += facts["seconds"]
            if facts["refused"]:
                t.refused[facts["refused"]] += 1
            if facts["finding"]:
                t.add(Found(facts["done"], **facts["finding"]))


def _lines(pipe: int, patience: Any) -> Iterator[dict[str, Any] | None]:
    """What a process tells, line by line; None when it says nothing for too long."""
    rest = b""
    with os.fdopen(pipe, "rb", buffering=0) as f:
        while True:
            if not select.select([f], [], [], patience())[0]:
                yield None
                return
            data = f.read(65536)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            yield from map(json.loads, lines)


def search(seed: int, seconds: float, jobs: int, devices: list[str], first: int = 0) -> Tally:
    """Let ``jobs`` processes check programs for so long."""
    tally, lock, end = Tally(), threading.Lock(), time.monotonic() + seconds
    threads = [Job(tally, lock, seed, first + k, jobs, ",".join(devices), end) for k in range(jobs)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return tally
