"""Shows findings: the program, made small, as a file that runs and prints the two values."""

from __future__ import annotations

import select
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from .parent import ROOT, Found, Tally
from .shrink import shrink

LEAST = 10.0
"""Seconds that are worth spending on one finding."""
FOOTER = """

if __name__ == "__main__":
    # {kind}: {detail}
    import sys

    sys.path.insert(0, "{root}")
    from pathlib import Path
    from tests.fuzz.again import show

    show(Path(__file__))
"""


def shrunk(found: Found, seed: int, devices: list[str], seconds: float) -> tuple[str, str]:
    """The smallest program found in this time that fails alike, and a note if it is the whole program.

    Each attempt runs in a process of its own only if the fault ends processes.
    """
    from .child import program_of

    if found.kind == "the generator failed":
        return "", ""
    end = time.monotonic() + seconds
    text = program_of(seed, found.index).text
    if found.kind == "hang" or seconds < 1.0:  # an attempt at a program that hangs takes longer than all others may
        return text, "not made smaller"
    with _Asker(seed, found, devices, end) as asker:
        if asker.fails(text):
            return shrink(text, asker.fails, end - time.monotonic()), ""
    return text, "not seen again in a process of its own" if time.monotonic() < end else "not made smaller"


class _Asker:
    """A process that is asked whether a text fails alike, and a new one where that ends it."""

    def __init__(self, seed: int, found: Found, devices: list[str], end: float) -> None:
        self.args = [sys.executable, "-m", "tests.fuzz.again", str(seed), str(found.index), found.kind, ",".join(devices)]
        self.crashes, self.end = found.kind.startswith("crash"), end
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> _Asker:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def fails(self, text: str) -> bool:
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen(
                self.args, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        assert self.process.stdin and self.process.stdout
        data = text.encode()
        try:
            self.process.stdin.write(b"%d\n" % len(data) + data)
            self.process.stdin.flush()
            if not select.select([self.process.stdout], [], [], max(0.0, self.end - time.monotonic()))[0]:
                self.process.kill()
                return False
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = b""
        if not answer:
            self.process.wait()
            return self.crashes
        return answer.strip() == b"yes"


def write_all(tally: Tally, seed: int, devices: list[str], out: Path | None, seconds: float) -> None:
    """Print the findings, the first of each kind first; write them to a folder if there is one. ``seconds``: for making them small."""
    end, seen = time.monotonic() + seconds, Counter[str]()
    ranks: list[tuple[int, Found]] = []
    for f in tally.found:
        ranks.append((seen[f.kind], f))
        seen[f.kind] += 1
    for done, (rank, f) in enumerate(sorted(ranks, key=lambda r: r[0])):
        remaining = max(0.0, end - time.monotonic())
        text, note = shrunk(f, seed, devices, min(remaining, max(LEAST, remaining / (len(ranks) - done))))
        notes = (f"found {tally.kinds[f.kind]} times" if rank == 0 else "", note)
        title = ", ".join((f"program {f.index} of seed {seed}: {f.kind}", *filter(None, notes)))
        whole = f"python -m tests.fuzz --seed {seed} --only {f.index}  # prints it"
        print(f"\n==== {title}\n{f.detail[:1500]}\n\n{whole if rank and note else text}", flush=True)
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            detail = " ".join(f.detail.split())[:300]
            (out / f"finding_{seed}_{f.index}.py").write_text(text + FOOTER.format(kind=f.kind, detail=detail, root=ROOT))
