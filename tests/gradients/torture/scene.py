"""The scene of a torture case: common fields at random values, kernels from source, and everything a gradient is compared with."""

from __future__ import annotations

import hashlib
import linecache
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import qdrun as qd

sys.path.insert(0, str(Path(__file__).parents[1]))
from replay import Replay

N = 4
Launch = tuple[str, tuple]
FUNCTIONS = """
@qd.func
def blend(e, p):
    return (1.0 - e) * p + e

@qd.func
def first_above(p, q):
    for j in range(6):
        if p * (1.0 + 0.3 * j) > q:
            return qd.sin(p * j)
    return p * q
"""


@dataclass(frozen=True)
class Case:
    """One thread as kernels.

    Attributes:
        thread: where the problem was reported.
        source: lines of the body of ``for i in x:`` in ``k(n)``, or whole kernels if it starts with ``@qd.kernel``.
        launches: names and arguments, in order.
        values: content of some fields instead of random numbers in [low, high).
        refused: words of the message if there is no right gradient; else the case must be right.
        inputs: names of the fields that are differentiated; default: all with a gradient.
        options: of ``qd.init``.
        h: step of the differences.
    """

    thread: str
    source: str
    launches: Sequence[Launch] = (("k", (5,)),)
    values: dict[str, Any] = field(default_factory=dict)
    refused: str = ""
    inputs: Sequence[str] = ("x", "w", "grid", "v2", "v3", "m2", "s")
    low: float = 0.2
    high: float = 1.2
    options: dict[str, Any] = field(default_factory=dict)
    h: float = 1e-6


class Scene:
    """A program with the fields of all cases and the kernels of one."""

    def __init__(self, case: Case, seed: int, size: int = N, **options: Any) -> None:
        self.case = case
        options = {"cpu_max_num_threads": 1, "cpu_lanes": 1, **case.options, **options}
        self.program = qd.init(arch=qd.cpu, default_fp=qd.f64, offline_cache=False, **options)

        def real(*shape: int) -> Any:
            return qd.field(qd.f64, shape=shape, needs_grad=True)

        self.fields = {
            **{n: real(size) for n in ("x", "w", "y", "z")},
            "s": real(),
            "loss": real(),
            "grid": real(size, size),
            "v2": qd.Vector.field(2, qd.f64, shape=size, needs_grad=True),
            "v3": qd.Vector.field(3, qd.f64, shape=size, needs_grad=True),
            "m2": qd.Matrix.field(2, 2, qd.f64, shape=size, needs_grad=True),
        }
        plain = {
            "count": qd.field(qd.i32, shape=size),
            "start": qd.field(qd.i32, shape=size + 1),
            "plain": qd.field(qd.f64, shape=size),
        }
        plain["count"].from_numpy(np.resize([3, 0, 6, 1], size).astype(np.int32))
        plain["start"].from_numpy(np.cumsum(np.resize([0, 3, 0, 5, 1], size + 1)).astype(np.int32))
        self.names = {**self.fields, **plain, "N": size}
        self.kernels = self._compile()
        self.inputs = [self.fields[n] for n in case.inputs]
        self.outputs = [self.fields[n] for n in ("y", "z", "s", "grid")]
        self.all = list(self.fields.values())
        self.draw(seed)

    def draw(self, seed: int) -> None:
        """Other values in the fields, and other weights: the kernels stay as they were compiled."""
        r = np.random.default_rng(seed)
        case = self.case
        for name, f in self.fields.items():
            given = case.values.get(name)
            f.from_numpy(np.asarray(r.uniform(case.low, case.high, f.to_numpy().shape) if given is None else given, float))
        for name in ("y", "loss"):
            self.fields[name].fill(case.values.get(name, 0.0) if name == "y" else 0.0)
        self.before = [f.to_numpy().copy() for f in self.all]
        self.weights = [r.uniform(0.5, 1.5, f.to_numpy().shape) for f in self.outputs]

    def _compile(self) -> dict[str, Any]:
        body = self.case.source
        if not body.lstrip().startswith("@qd.kernel"):
            lines = textwrap.indent(textwrap.dedent(body).strip("\n"), "        ")
            body = f"@qd.kernel\ndef k(n: qd.i32):\n    for i in x:\n{lines}\n"
        source = FUNCTIONS + body
        filename = f"<torture {hashlib.sha256(source.encode()).hexdigest()[:16]}>"
        linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
        space = {"qd": qd, **self.names}
        exec(compile(source, filename, "exec"), space)
        return space

    # ---- running
    def restore(self) -> None:
        for f, a in zip(self.all, self.before):
            f.from_numpy(a)

    def launches(self) -> list[tuple[Any, tuple]]:
        return [(self.kernels[name], args) for name, args in self.case.launches]

    def value(self) -> float:
        self.restore()
        for k, args in self.launches():
            k(*args)
        return float(sum((f.to_numpy() * w).sum() for f, w in zip(self.outputs, self.weights)))

    def seed(self) -> None:
        for f in self.all:
            f.grad.fill(0.0)
        for f, w in zip(self.outputs, self.weights):
            f.grad.from_numpy(w)

    def read(self) -> np.ndarray:
        return np.concatenate([f.grad.to_numpy().reshape(-1) for f in self.inputs])

    def gradient(self) -> np.ndarray:
        """By ``k.grad`` of each launch, last to first."""
        self.value()
        self.seed()
        for k, args in reversed(self.launches()):
            k.grad(*args)
        return self.read()

    def tape_gradient(self) -> np.ndarray:
        """By a tape over the same launches and a weighted sum as loss."""
        self.restore()
        total = _weighted_sum(self)
        with qd.ad.Tape(loss=self.fields["loss"]):
            for k, args in self.launches():
                k(*args)
            total()
        return self.read()

    def differences(self) -> np.ndarray:
        out: list[float] = []
        for f in self.inputs:
            at = next(k for k, other in enumerate(self.all) if other is f)
            keep = self.before[at]
            for index in np.ndindex(keep.shape):
                ends = []
                for step in (self.case.h, -self.case.h):
                    self.before[at] = keep.copy()
                    self.before[at][index] += step
                    ends.append(self.value())
                self.before[at] = keep
                out.append((ends[0] - ends[1]) / (2 * self.case.h))
        return np.array(out)

    def interpreted(self) -> None:
        """Each launch, forward and reverse, on the interpreter: the same bits as the machine code."""
        self.restore()
        for k, args in self.launches():
            replay = Replay(k, args)
            keep = [f.to_numpy().copy() for f in self.all]
            replay.compare_forward(raw=True)
            for f, a in zip(self.all, keep):
                f.from_numpy(a)
            replay.compare_forward()
        self.seed()
        for k, args in reversed(self.launches()):
            Replay(k, args).compare_reverse()

    def close(self) -> None:
        self.program.close()


def _weighted_sum(scene: Scene) -> Callable[[], None]:
    """A kernel that adds the weighted outputs to the loss."""
    weights = {}
    lines = ["@qd.kernel", "def total():"]
    for name, w in zip(("y", "z", "s", "grid"), scene.weights):
        held = qd.field(qd.f64, shape=w.shape)
        held.from_numpy(w)
        weights[f"w_{name}"] = held
        if w.shape == ():
            lines.append(f"    loss[None] += {name}[None] * w_{name}[None]")
        else:
            lines += [f"    for I in qd.grouped({name}):", f"        loss[None] += {name}[I] * w_{name}[I]"]
    source = "\n".join(lines) + "\n"
    filename = f"<torture {hashlib.sha256(source.encode()).hexdigest()[:16]}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    space = {"qd": qd, **scene.fields, **weights}
    exec(compile(source, filename, "exec"), space)
    return space["total"]
