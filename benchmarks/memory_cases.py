"""Kernels for ``benchmarks.memory``, written once for both packages: ``lib`` is ``qdrun`` or ``quadrants``.

A case gives one gradient launch. Everything is f32 and runs on two threads; what differs is what a gradient must remember.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

THREADS = 2


@dataclass
class Case:
    """A kernel, its arguments, and one gradient of it. ``x``: the field whose gradient is the result."""

    kernel: Any
    args: tuple[Any, ...]
    x: Any
    y: Any

    def gradient(self) -> None:
        """Clear and launch the reverse kernel."""
        self.x.grad.fill(0.0)
        self.y.grad.fill(1.0)
        self.kernel.grad(*self.args)

    def result(self) -> np.ndarray:
        """The gradient of the last launch, in f64."""
        return self.x.grad.to_numpy().astype(float)


def _data(lib: Any, n: int) -> tuple[Any, Any]:
    x, y = (lib.field(lib.f32, shape=n, needs_grad=True) for _ in range(2))
    x.from_numpy(np.random.default_rng(1).uniform(0.2, 1.0, n).astype(np.float32))
    return x, y


def _ints(lib: Any, values: Any) -> Any:
    out = lib.field(lib.i32, shape=np.shape(values))
    out.from_numpy(np.asarray(values, np.int32))
    return out


def sin_recurrence(lib: Any) -> Case:
    """v += 0.01 sin(v), 1,024 times."""
    x, y = _data(lib, 4096)
    count = lib.field(lib.i32, shape=())
    count[None] = 1024

    @lib.kernel
    def run():
        for i in x:
            v = x[i]
            for _ in range(count[None]):
                v += 0.01 * lib.sin(v)
            y[i] = v

    return Case(run, (), x, y)


def all_pass_gate(lib: Any) -> Case:
    """200,000 iterations that all pass a gate, range(200) in each."""
    x, y = _data(lib, 200_000)
    gate = lib.field(lib.f32, shape=200_000)
    gate.fill(1.0)

    @lib.kernel
    def run():
        for i in x:
            if gate[i] > 0.5:
                v = x[i]
                for _ in range(200):
                    v += 0.01 * lib.sin(v)
                y[i] = v

    return Case(run, (), x, y)


def narrow_gate(lib: Any) -> Case:
    """1 of 4,096 iterations passes a gate, range(400) in it; the bound is a constant."""
    x, y = _data(lib, 4096)
    gate = lib.field(lib.f32, shape=4096)
    gate[77] = 1.0

    @lib.kernel
    def run():
        for i in x:
            if gate[i] > 0.5:
                v = x[i]
                for _ in range(400):
                    v += 0.01 * lib.sin(v)
                y[i] = v

    return Case(run, (), x, y)


def narrow_gate_field_bound(lib: Any) -> Case:
    """The same with the bound in a field."""
    x, y = _data(lib, 4096)
    gate = lib.field(lib.f32, shape=4096)
    gate[77] = 1.0
    count = lib.field(lib.i32, shape=())
    count[None] = 400

    @lib.kernel
    def run():
        for i in x:
            if gate[i] > 0.5:
                v = x[i]
                for _ in range(count[None]):
                    v += 0.01 * lib.sin(v)
                y[i] = v

    return Case(run, (), x, y)


def minimum(lib: Any) -> Case:
    """range(min(n, 3)) with n = 1,000 in a field."""
    x, y = _data(lib, 4096)
    count = lib.field(lib.i32, shape=())
    count[None] = 1000

    @lib.kernel
    def run():
        for i in x:
            v = x[i]
            for _ in range(lib.min(count[None], 3)):
                v += 0.01 * lib.sin(v)
            y[i] = v

    return Case(run, (), x, y)


def exclusive_branches(lib: Any) -> Case:
    """One variable, changed in both arms of an if, in range(n[None]) with n = 100."""
    x, y = _data(lib, 4096)
    count = lib.field(lib.i32, shape=())
    count[None] = 100

    @lib.kernel
    def run():
        for i in x:
            v = x[i]
            for j in range(count[None]):
                if (i + j) % 2 == 0:
                    v += 0.01 * lib.sin(v)
                else:
                    v += 0.02 * lib.cos(v)
            y[i] = v

    return Case(run, (), x, y)


def accumulator(lib: Any) -> Case:
    """acc += sin(x[i] * j) in range(n[None]) with n = 400."""
    x, y = _data(lib, 4096)
    count = lib.field(lib.i32, shape=())
    count[None] = 400

    @lib.kernel
    def run():
        for i in x:
            acc = 0.0
            for j in range(count[None]):
                acc += lib.sin(x[i] * j)
            y[i] = acc

    return Case(run, (), x, y)


def csr_rows(lib: Any) -> Case:
    """Ragged rows, start[i] to start[i + 1]: 4,095 short ones and one of 2,000."""
    x, y = _data(lib, 4096)
    lengths = np.random.default_rng(2).integers(0, 8, 4096)
    lengths[1234] = 2000
    start = _ints(lib, np.concatenate([[0], np.cumsum(lengths)]))

    @lib.kernel
    def run():
        for i in range(4096):
            v = x[i]
            for _ in range(start[i], start[i + 1]):
                v += 0.01 * lib.sin(v)
            y[i] = v

    return Case(run, (), x, y)


def triangle(lib: Any) -> Case:
    """range(n[None] - i): a bound that falls with the parallel index."""
    x, y = _data(lib, 64)
    count = lib.field(lib.i32, shape=())
    count[None] = 64

    @lib.kernel
    def run():
        for i in range(64):
            v = x[i]
            for _ in range(count[None] - i):
                v += 0.01 * lib.sin(v)
            y[i] = v

    return Case(run, (), x, y)


def nest(lib: Any) -> Case:
    """A loop of 50 around one of 40: 90 states, not 2,000."""
    x, y = _data(lib, 4096)
    count = _ints(lib, [50, 40])

    @lib.kernel
    def run():
        for i in x:
            v = x[i]
            for _ in range(count[0]):
                for _k in range(count[1]):
                    v += 0.01 * lib.sin(v)
            y[i] = v

    return Case(run, (), x, y)


CASES: dict[str, Callable[[Any], Case]] = {
    f.__name__: f
    for f in (sin_recurrence, all_pass_gate, narrow_gate, narrow_gate_field_bound, minimum, exclusive_branches, accumulator,
              csr_rows, triangle, nest)
}  # fmt: skip
PEER_IS_UNSAFE = ("triangle",)
"""The peer's heap is too small for these: its gradient writes past the end. Only its first report is read, in a process that may crash."""
