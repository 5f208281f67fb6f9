"""Answers whether a changed program fails alike (a process of ``report``), and shows the values of one that was written to a file."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from .check import modelled
from .child import examine_text, program_of
from .execute import INTERPRETER, OTHERS, SCALAR, run, use_libm


def answer(seed: int, index: int, kind: str, devices: list[str]) -> None:
    """Texts come on stdin, each after its length; ``yes`` or ``no`` goes back."""
    use_libm()
    like = program_of(seed, index)
    with tempfile.TemporaryDirectory() as folder:
        while length := sys.stdin.buffer.readline():
            text = sys.stdin.buffer.read(int(length)).decode()
            result = examine_text(replace(like, text=text), seed, index, devices, Path(folder))
            same = result.finding is not None and result.finding.kind == kind
            print("yes" if same else "no", flush=True)


def show(path: Path) -> None:
    """Run a written program in every way and print what each gives."""
    use_libm()
    text = path.read_text()
    want = modelled(text)
    print("model", want)
    for way in (INTERPRETER, SCALAR, *OTHERS):
        out = run(path, text, way)
        print(way.name, out.error or out.values)


if __name__ == "__main__":
    answer(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4].split(","))
