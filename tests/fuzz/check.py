"""What is asked of one program: that every way to run it gives what the model and the interpreter give."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from . import model
from .compare import Values, apart, differences, unexplained
from .execute import CUDA, INTERPRETER, OTHERS, SCALAR, VULKAN, Config, Outcome, flat, flushing, options_of, run
from .program import Program
from .sparse import UNABLE

DOCUMENTED = (
    "an integer to the power",
    "at compile time: (integer|ZeroDivisionError|negative shift count|ValueError: negative shift|float|division)",
    "ZeroDivisionError at compile time",
    "ValueError at compile time: negative shift count",
    "a parallel loop with a step cannot start at a value that is read from memory",
    "bit_cast keeps the number of bits",
    r"the integer -?\d+ needs more than 64 bits",
    r"the literal -?[\d.e+]+ does not fit [iu]\d+ \(",
    r"the index of a loop has type i64: the bound 1844674407370955\d{4} does not fit",  # a sum that wrapped around, of literals alone
    r"the index of a loop has type i32: the bound 42949672\d\d does not fit",
    r"a shift by -?\d+ leaves the \d+ bits of ",
)
"""Refusals that the pages tell of, or that Python has for the same text."""
CHECKED = "of a singular matrix, or nearly so"
"""What ``debug=True`` refuses of the algebra of random numbers."""


@dataclass
class Finding:
    """Something wrong: what kind, between which ways to run the program, and the two values."""

    kind: str
    detail: str


@dataclass
class Result:
    """What became of one program."""

    refused: str = ""
    finding: Finding | None = None
    compared: list[str] = field(default_factory=list)
    lost: bool = False


def reason(error: str) -> str:
    """A refusal without the names and numbers of its program."""
    first = error.splitlines()[0]
    return re.sub(r"`[^`]*`", "`..`", re.sub(r"-?\d+(\.\d+)?(e[-+]?\d+)?", "N", first))[:110]


def choose(seed: int, index: int, devices: list[str]) -> list[Config]:
    """The ways, beside scalar machine code, in which a program is run: the same for the same seed."""
    rng = random.Random(f"{seed}:{index}:ways")
    pool = [c for c in OTHERS if c.name != "emulated"]
    out = rng.sample(pool, rng.choice((0, 1, 1, 2)))
    if "emulated" in devices and rng.random() < 0.3:
        out += [c for c in OTHERS if c.name == "emulated"]
    if "cuda" in devices:
        out.append(CUDA)
    if "vulkan" in devices and rng.random() < 0.3:
        out.append(VULKAN)
    return out


def modelled(text: str) -> dict[str, Any] | None:
    """What the model says, or None where it knows no meaning."""
    try:
        return flat(model.run(text, options_of(text)))
    except model.Unsupported:
        return None


def check(program: Program, path: Path, ways: list[Config], interpret: bool) -> Result:
    """Run a program in all these ways and compare."""
    text = program.text
    base = run(path, text, SCALAR)
    if base.error:
        return _failed(base, SCALAR)
    out = Result()
    want = modelled(text)
    if want is not None:
        out.compared.append("model")
        if text_ := differences(want, base.values):
            return _wrong(out, "model", SCALAR.name, text_)
    reference: Outcome | None = None
    if interpret or want is None or program.inexact:
        out.compared.append("python")
        reference = run(path, text, INTERPRETER)
        if reference.error:
            return _failed(reference, INTERPRETER, True)
        if text_ := differences(reference.values, base.values):
            return _wrong(out, "python", SCALAR.name, text_)
    for way in ways:
        out.compared.append(way.name)
        got = run(path, text, way)
        if got.error and way.sparse and any(part in got.error for part in UNABLE):
            continue
        if CHECKED in got.error and way.options.get("debug"):
            continue
        if got.error:
            return _failed(got, way, True)
        if program.inexact and not way.exact:
            text_ = unexplained(base.values, got.values, lambda: run(path, text, INTERPRETER).values, str(path.stem))
        else:
            text_ = differences(base.values, got.values)
        if text_ and way is CUDA:
            text_ = _beyond_flushing(path, text, base.values, got.values)
        if text_:
            return _wrong(out, SCALAR.name, way.name, text_)
    return out


def _beyond_flushing(path: Path, text: str, want: Values, got: Values) -> str:
    """What differs where atomic sums of f32 lose their subnormal numbers, as the GPU's do: its values must be those with this loss, or
    those without it (updates that no other iteration can disturb are no atomics there).
    """
    with flushing():
        flushed = run(path, text, INTERPRETER)
    if flushed.error:
        return flushed.error
    return differences({name: np.where(apart(a, got[name]), flushed.values[name], a) for name, a in want.items()}, got)


def _wrong(out: Result, a: str, b: str, text: str) -> Result:
    out.finding = Finding(f"{a} != {b}", text)
    return out


def _failed(o: Outcome, way: Config, elsewhere: bool = False) -> Result:
    """An error: fine if it is a refusal that is documented, and every way refuses."""
    if o.refused and not elsewhere and any(re.search(p, o.error) for p in DOCUMENTED):
        return Result(refused=reason(o.error))
    kind = "refused" if o.refused else "raised"
    return Result(
        finding=Finding(f"{kind}{' only' if elsewhere else ''} on {way.name}: {reason(o.error)}", o.error), lost=o.lost
    )
