"""The walks of docs/layout.md: each step names a function that exists, and a gradient launch takes them in this order."""

import ast
import functools
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import pytest

import qdrun as qd
from qdrun.compiler.runtime import jit
from qdrun.tests.sources import ROOT, tree

PAGE = (ROOT / "docs" / "layout.md").read_text(encoding="utf-8")
# Makes properties once and takes their locks: it stands between any two files.
BETWEEN = "compiler/ir/threads.py"


@dataclass(frozen=True)
class Step:
    """A row of a walk: its number, its file, and the function with its classes, by dots."""

    number: str
    file: str
    function: str

    @property
    def where(self) -> tuple[str, str]:
        """The file and the function."""
        return self.file, self.function


def steps(title: str) -> list[Step]:
    """The rows of the table below a title of the page."""
    part = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return [Step(*row) for row in re.findall(r"^\| (\d+) \| `([\w/]+\.py)` \| `([\w.]+)` \|", part, re.M)]


GRADIENT, TAPE, SWEEP = map(steps, ("A gradient launch", "A tape", "A sweep"))


@functools.cache
def defined(file: str) -> frozenset[str]:
    """The functions of a file with their classes."""

    def names(node: ast.AST, prefix: str) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
                yield prefix + child.name
                yield from names(child, f"{prefix}{child.name}.")

    return frozenset(names(tree(ROOT / file), ""))


def test_all_walks_are_on_the_page():
    for walk in (GRADIENT, TAPE, SWEEP):
        assert len(walk) >= 15 and [step.number for step in walk] == [str(k + 1) for k in range(len(walk))]


@pytest.mark.parametrize("step", [*GRADIENT, *TAPE, *SWEEP], ids=lambda step: f"{step.file}:{step.function}")
def test_each_step_names_a_function_of_its_file(step):
    assert step.function in defined(step.file)


def test_a_function_that_is_gone_is_noticed():
    assert "Runner.gone" not in defined("compiler/compile/pipeline.py") and "gradient" in defined(
        "compiler/compile/pipeline.py"
    )


def our_file(frame: FrameType) -> str | None:
    path = Path(frame.f_code.co_filename)
    own = path.is_relative_to(ROOT / "compiler") and path.relative_to(ROOT).as_posix()
    return own or None


def callers(frame: FrameType | None) -> list[str]:
    """Our files that wait for a call, the innermost first; each run of calls within one file counts once."""
    files: list[str] = []
    while frame is not None:
        own = our_file(frame)
        if own not in (None, BETWEEN, *files[-1:]):
            files.append(own)
        frame = frame.f_back
    return files


def test_a_gradient_launch_takes_the_steps_in_order_and_returns_to_no_file_that_waits_for_it(monkeypatch):
    # Another function of the same effect: the tests' own cache of object code leaves it alone.
    monkeypatch.setattr(jit, "compile_text", functools.partial(jit.compile_text))
    qd.init(arch=qd.cpu, default_fp=qd.f64, offline_cache=False)
    x = qd.field(qd.f64, shape=4, needs_grad=True)
    loss = qd.field(qd.f64, shape=(), needs_grad=True)

    @qd.kernel
    def walked():
        for i in x:
            y = x[i]
            for _ in range(i + 2):
                y = qd.sin(y) * x[i]
            loss[None] += 3.0625 * y

    loss.grad[None] = 1.0
    wanted, taken, back = {step.where for step in GRADIENT[1:]}, [], []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and (here := (our_file(frame), frame.f_code.co_qualname)) in wanted:
            files = callers(frame)
            if here not in taken:
                taken.append(here)
            if len(files) != len(set(files)):
                back.append((here, files))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        walked.grad()
    finally:
        sys.setprofile(before)
    assert taken == [step.where for step in GRADIENT[1:]]
    assert not back
