"""Runs the tests on a device and writes one file about it: ``python -m tests.report --arch amdgpu``.

For people who have a card that we have not: the file says what the machine is, what has failed and how, and nothing else of the machine.
Each file of tests runs in a process of its own, as a fault on some devices ends the process. The report is written after each of them.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

TESTS = Path(__file__).parent
FOLDERS = ("lang", "gradients", "jobs", "cuda", "frontend")
"""Folders whose tests ask for the processor and run on the device instead (``tests/conftest.py``)."""

PACKAGES = ("qdrun", "numpy", "llvmlite", "hip-python", "cuda-python", "pytest")
LINES = 24
"""Lines of a failure that the report has."""

PROBE = """
import time
import numpy as np
import qdrun as qd

begun = time.perf_counter()
real = getattr(qd, "REAL")
tight, loose = (1e-13, 1e-12) if "REAL" == "f64" else (1e-5, 1e-5)
with qd.init(arch=ARCH, device=DEVICE, default_fp=real) as program:
    print(f"opened in {time.perf_counter() - begun:.2f} s: {program.device.name}, {program.device.chip_key}")
    free, total = program.device.driver.memory_info()
    print(f"device memory that is not free after opening: {total - free:,} of {total:,} bytes")
    n = 4096
    x, y = qd.field(real, shape=n, needs_grad=True), qd.field(real, shape=(), needs_grad=True)

    @qd.kernel
    def swing(steps: qd.i32):
        for i in x:
            v = x[i]
            for _ in range(steps):
                v = v + 0.05 * v * (1.0 - v)
            y[None] += v

    start = np.random.default_rng(7).uniform(0.0, 1.0, n).astype("REAL".replace("f", "float")).astype(float)
    x.from_numpy(start.astype("REAL".replace("f", "float")))
    begun = time.perf_counter()
    with qd.ad.Tape(loss=y):
        swing(20)
    found = x.grad.to_numpy()
    print(f"a gradient, compiled and run, in {time.perf_counter() - begun:.2f} s")
    v, slope = start.copy(), np.ones(n)
    for _ in range(20):
        slope *= 1.05 - 0.1 * v
        v = v + 0.05 * v * (1.0 - v)
    error = float(np.abs(found - slope).max())
    print(f"largest error of the gradient, whose values are at most {np.abs(slope).max():.2f}: {error:.1e}")
    assert error <= tight, "the gradient is wrong"
    graph = qd.capture(lambda: swing(1))
    y[None] = 0.0
    graph()
    assert abs(y[None] - float((start + 0.05 * start * (1.0 - start)).sum())) < loose * n, "the recorded graph is wrong"
    print("a recorded graph gives the right sum")
    begun, count = time.perf_counter(), 200
    for _ in range(count):
        swing(1)
    qd.sync()
    print(f"a launch, one after the other: {1e6 * (time.perf_counter() - begun) / count:.1f} us")
"""


@dataclass
class Outcome:
    """What became of one process. ``failed``: names of tests with the end of their messages; ``crashed``: why there are no results;
    ``said``: what the first steps printed.
    """

    name: str
    passed: int = 0
    skipped: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    crashed: str = ""
    seconds: float = 0.0
    said: str = ""

    @property
    def fine(self) -> bool:
        return not self.failed and not self.crashed


def read(path: Path, name: str) -> Outcome:
    """The results that pytest has written as JUnit XML."""
    out = Outcome(name)
    for case in ET.parse(path).getroot().iter("testcase"):
        wrong = case.find("failure") if case.find("failure") is not None else case.find("error")
        if wrong is not None:
            text = (wrong.text or wrong.get("message") or "").strip().splitlines()
            out.failed[f"{case.get('classname')}::{case.get('name')}"] = "\n".join(text[-LINES:])
        elif case.find("skipped") is not None:
            out.skipped += 1
        else:
            out.passed += 1
    return out


def process(command: Sequence[str], limit_s: float) -> tuple[str, str]:
    """Run a command: how it ended, empty for exit status 0 or 1, and what it has printed."""
    try:
        done = subprocess.run(
            command, cwd=TESTS.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired as e:
        return f"stopped after {limit_s:.0f} s", (e.stdout or b"").decode(errors="replace")
    if done.returncode < 0:
        return f"ended by {signal.Signals(-done.returncode).name}", done.stdout
    return f"exit status {done.returncode}" if done.returncode > 1 else "", done.stdout


def run_file(path: Path, options: Sequence[str], limit_s: float) -> Outcome:
    """One file of tests on the device."""
    name = path.relative_to(TESTS).as_posix() if path.is_relative_to(TESTS) else path.name
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "results.xml"
        ended, said = process([sys.executable, "-m", "pytest", "-v", f"--junitxml={found}", *options, str(path)], limit_s)
        out = read(found, name) if found.exists() else Outcome(name)
    if ended and not (out.passed or out.skipped or out.failed) and ended != "exit status 5":  # 5: no test was chosen
        out.crashed = "\n".join([ended, *said.strip().splitlines()[-LINES:]])
    out.seconds = time.perf_counter() - begun
    return out


def probe(arch: str, device: str) -> Outcome:
    """The first steps: open, a gradient beside its closed form, a graph, the time of a launch."""
    code = PROBE.replace("ARCH", repr(arch)).replace("DEVICE", repr(int(device) if device.isdecimal() else device))
    code = code.replace("REAL", "f32" if arch == "metal" else "f64")
    with tempfile.TemporaryDirectory() as folder:  # kernels are read from their file
        path = Path(folder) / "probe.py"
        path.write_text(code, encoding="utf-8")
        begun = time.perf_counter()
        ended, said = process([sys.executable, str(path)], 600)
    out = Outcome("first steps", seconds=time.perf_counter() - begun)
    right = not ended and "a launch, one after the other" in said
    out.passed, out.crashed = int(right), "" if right else f"{ended or 'failed'}\n{said.strip()}"
    out.said = said.strip()
    return out


def machine() -> Iterator[str]:
    """What the machine is, a line for each fact."""
    from qdrun.compiler.runtime.registry import devices

    yield f"- {platform.platform()}, Python {platform.python_version()}"
    for name in PACKAGES:
        try:
            yield f"- {name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            yield f"- {name}: not installed"
    git = shutil.which("git")
    commit = process([git, "rev-parse", "HEAD"], 10)[1].strip() if git else ""
    yield f"- commit {commit or 'unknown'}"
    for row in devices():
        yield f"- {row.name} {'usable' if row.usable else 'not usable'}: {row.detail}"
    for name, value in sorted(os.environ.items()):
        if name.endswith("_VISIBLE_DEVICES") or name in ("ROCM_PATH", "HIP_LAUNCH_BLOCKING", "CUDA_LAUNCH_BLOCKING"):
            yield f"- {name}={value}"


def text(title: str, facts: Sequence[str], found: Sequence[Outcome], whole: int) -> str:
    """The report, in Markdown. ``whole``: how many files of tests there are."""
    rows = [f"| {o.name} | {o.passed} | {len(o.failed)} | {o.skipped} | {o.seconds:.0f} |" for o in found]
    passed, failed, skipped = (sum(o.passed for o in found), sum(len(o.failed) for o in found), sum(o.skipped for o in found))
    crashed = [o for o in found if o.crashed]
    parts = [
        f"# {title}",
        "\n".join(facts),
        f"{passed} passed, {failed} failed, {skipped} skipped, {len(crashed)} crashed; {len(found) - 1} of {whole} files.",
        "\n".join(f"    {line}" for o in found[:1] for line in o.said.splitlines()),
        "\n".join(["| file | passed | failed | skipped | s |", "| --- | --- | --- | --- | --- |", *rows]),
        *(f"## {o.name} crashed\n\n```text\n{o.crashed}\n```" for o in crashed),
        *(f"## {name}\n\n```text\n{said}\n```" for o in found for name, said in o.failed.items()),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Returns 0 if nothing has failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.report", description=__doc__.splitlines()[0])
    parser.add_argument("--arch", choices=("amdgpu", "cuda", "metal", "vulkan"), default="amdgpu")
    parser.add_argument(
        "--device", default="0", help="its number, UUID or PCI address; emulated:gfx942 tries the command without a card"
    )
    parser.add_argument("--out", type=Path, default=None, help="the report; default: qdrun-report-<arch>.md")
    parser.add_argument(
        "--files", nargs="*", type=Path, default=None, help="files of tests; default: all that can run on a device"
    )
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds that a file may take")
    given = parser.parse_args(arguments)
    emulated = given.device.startswith("emulated")
    facts = list(machine())
    usable = emulated or any(line.startswith(f"- {given.arch} usable") for line in facts)
    if not usable:
        print("\n".join(facts), "", f"no {given.arch} device can be used: the lines above say why; send them to us", sep="\n")
        return 2
    options = ["--arch", "emulated"] if emulated and given.arch == "cuda" else ["--arch", given.arch, "--device", given.device]
    files = given.files or [path for folder in FOLDERS for path in sorted((TESTS / folder).rglob("test_*.py"))]
    out = given.out or Path(f"qdrun-report-{given.arch}.md")
    title = f"qdrun on {given.arch}, device {given.device}, {time.strftime('%Y-%m-%d')}"
    found: list[Outcome] = []
    for step in (
        lambda: probe(given.arch, given.device),
        *(lambda p=p: run_file(p.resolve(), options, given.limit) for p in files),
    ):
        found.append(step())
        last = found[-1]
        print(f"{last.name}: {last.passed} passed, {len(last.failed)} failed{', crashed' if last.crashed else ''}", flush=True)
        out.write_text(text(title, facts, found, len(files)), encoding="utf-8")
    print(f"the report is {out.resolve()}: send it to us")
    return 0 if all(o.fine for o in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
