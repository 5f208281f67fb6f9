"""Shows findings: the program, made small, as a file that runs and prints the two values."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from .parent import ROOT, Found
from .shrink import shrink

MOST = 12
FOOTER = """

if __name__ == "__main__":
    # {kind}: {detail}
    import sys

    sys.path.insert(0, "{root}")
    from pathlib import Path
    from tests.fuzz.again import show

    show(Path(__file__))
"""


def shrunk(found: Found, seed: int, devices: list[str], seconds: float) -> str:
    """The smallest program found that fails alike. Each attempt runs in a process of its own only if the fault ends processes."""
    from .child import program_of

    text = program_of(seed, found.index).text
    with _Asker(seed, found, devices) as asker:
        return shrink(text, asker.fails, seconds)


class _Asker:
    """A process that is asked whether a text fails alike, and a new one where that ends it."""

    def __init__(self, seed: int, found: Found, devices: list[str]) -> None:
        self.args = [sys.executable, "-m", "tests.fuzz.again", str(seed), str(found.index), found.kind, ",".join(devices)]
        self.crashes = found.kind.startswith(("crash", "hang"))
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
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = b""
        if not answer:
            self.process.wait()
            return self.crashes
        return answer.strip() == b"yes"


def write_all(found: list[Found], seed: int, devices: list[str], out: Path | None) -> None:
    """Print the findings, one of each kind made small; write them to a folder if there is one."""
    seen: dict[str, int] = {}
    for f in found:
        seen[f.kind] = seen.get(f.kind, 0) + 1
        if seen[f.kind] > 3 or len(seen) > MOST:
            continue
        text = shrunk(f, seed, devices, 60.0) if f.kind != "the generator failed" else ""
        print(f"\n==== program {f.index} of seed {seed}: {f.kind}\n{f.detail[:1500]}\n\n{text}", flush=True)
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            detail = " ".join(f.detail.split())[:300]
            whole = text + FOOTER.format(kind=f.kind, detail=detail, root=ROOT)
            (out / f"finding_{seed}_{f.index}.py").write_text(whole)
