"""Compares gradients of compiled kernels with central differences in f64, plans with allocated bytes, and levels with each other."""

from __future__ import annotations

import hashlib
import linecache
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from replay import same

import qdrun as qd

Build = Callable[[np.random.Generator], tuple[Any, tuple, Sequence[Any], Sequence[Any]]]


def start(**options: Any) -> qd.Program:
    """A fresh program in f64."""
    return qd.init(**{"arch": qd.cpu, "default_fp": qd.f64, "cpu_max_num_threads": 2, **options})


def compile_source(source: str, **names: Any) -> dict[str, Any]:
    """Run source so that ``inspect`` finds it. Equal sources have one file name, so their kernels are compiled once."""
    filename = f"<gradient check {hashlib.sha256(source.encode()).hexdigest()[:16]}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    space = {"qd": qd, **names}
    exec(compile(source, filename, "exec"), space)
    return space


def field(*shape: int, values: Any = None, low: float = 0.2, high: float = 1.2, rng: Any = None, name: str = "") -> Any:
    """An f64 field with a gradient, filled with given or random values."""
    out = qd.field(qd.f64, shape=shape, name=name, needs_grad=True)
    if values is not None or rng is not None:
        out.from_numpy(np.asarray(values, float) if values is not None else rng.uniform(low, high, shape))
    return out


def ints(values: Any, name: str = "") -> Any:
    """An i32 field."""
    out = qd.field(qd.i32, shape=np.shape(values), name=name)
    out.from_numpy(np.asarray(values, np.int32))
    return out


class Point:
    """A kernel at a point: ``inputs`` are differentiated, ``outputs`` weighted and summed; both start each run as they are now."""

    def __init__(self, k: Any, args: tuple, inputs: Sequence[Any], outputs: Sequence[Any], seed: int = 0) -> None:
        self.k, self.args, self.inputs, self.outputs = k, args, list(inputs), list(outputs)
        self.tensors = list({id(t): t for t in (*inputs, *outputs)}.values())
        self.initial = [t.to_numpy().copy() for t in self.tensors]
        r = np.random.default_rng(seed)
        self.weights = [r.uniform(0.5, 1.5, t.to_numpy().shape) for t in self.outputs]

    def restore(self) -> None:
        for t, a in zip(self.tensors, self.initial):
            t.from_numpy(a)

    def value(self, run: Callable[[], None] | None = None) -> float:
        (run or (lambda: self.k(*self.args)))()
        return float(sum((t.to_numpy() * w).sum() for t, w in zip(self.outputs, self.weights)))

    def gradient(self, run: Callable[[], None] | None = None) -> np.ndarray:
        """From reverse mode, after one forward run."""
        self.restore()
        self.value()
        for t in self.tensors:
            t.grad.fill(0)
        for t, w in zip(self.outputs, self.weights):
            t.grad.from_numpy(w)
        (run or (lambda: self.k.grad(*self.args)))()
        return np.concatenate([t.grad.to_numpy().reshape(-1) for t in self.inputs])

    def differences(self, h: float = 1e-6) -> np.ndarray:
        out = []
        for t in self.inputs:
            base = next(a for other, a in zip(self.tensors, self.initial) if other is t)
            others = [(other, a) for other, a in zip(self.tensors, self.initial) if other is not t]
            for index in np.ndindex(base.shape):
                ends = []
                for step in (h, -h):
                    for other, a in others:
                        other.from_numpy(a)
                    moved = base.copy()
                    moved[index] += step
                    t.from_numpy(moved)
                    ends.append(self.value())
                out.append((ends[0] - ends[1]) / (2 * h))
        self.restore()
        return np.array(out)

    def check(self, tolerance: float = 1e-6) -> np.ndarray:
        """The gradient, after comparing it with differences."""
        with np.errstate(all="ignore"):
            got, want = self.gradient(), self.differences()
        scale = max(1.0, float(np.abs(want).max(initial=0)))
        np.testing.assert_allclose(got / scale, want / scale, rtol=tolerance, atol=tolerance)
        return got


def right_at_all_levels(build: Build, tolerance: float = 1e-6, **options: Any) -> np.ndarray:
    """Build the kernel in a program for 1, 2 and 3 levels: right, the same bits, and exactly the planned bytes each time."""
    options = {"cpu_max_num_threads": 1, **options}  # with several, atomic sums come in any order
    first: np.ndarray | None = None
    for levels in (1, 2, 3):
        program = start(ad_checkpoint_levels=levels, **options)
        k, args, inputs, outputs = build(np.random.default_rng(7))
        point = Point(k, args, inputs, outputs)
        planned = k.grad.plan(*args).bytes
        assert program.usage().get("adstack", 0) == 0, "a plan allocates nothing"
        got = point.gradient()
        assert program.usage().get("adstack", 0) == planned
        if first is None:
            first = point.check(tolerance)
        assert np.isfinite(got).all()
        assert same(got, first), f"{levels} levels give other bits"
        program.close()
    assert first is not None
    return first
