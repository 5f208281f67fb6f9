"""Short loops that are written out several times, as NVIDIA's driver gets them: lavapipe gets them here, too."""

from dataclasses import replace

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.codegen.llvm.task_emitter import TaskEmitter
from qdrun.compiler.runtime.vulkan import kind

N = 24


def program(start, copies):
    """A program whose code has so many copies, and a kernel with loops of 0 to 11 iterations."""
    target = kind.spirv_target
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "spirv_target", lambda *args: replace(target(*args), loop_copies=copies))
        start(offline_cache=False, default_fp=qd.f64)
    x, y = (qd.field(qd.f64, shape=N, needs_grad=True) for _ in range(2))
    begin, end = (qd.field(qd.i32, shape=N) for _ in range(2))

    tag = float(copies)

    @qd.kernel
    def k():
        for i in x:
            v = x[i]
            for j in range(begin[i], end[i]):
                if v > 0.6:
                    v = qd.sin(v) + 0.01 * j
                else:
                    v = 1.5 * v * v + 0.1
            y[i] = tag * v  # another text for each: a process keeps what it has compiled

    return x, y, begin, end, k


def test_loops_that_are_written_out_compute_what_others_do(start, monkeypatch):
    written, several = [], TaskEmitter._several
    monkeypatch.setattr(
        TaskEmitter, "_several", lambda e, s, index, times, *to: (written.append(times), several(e, s, index, times, *to))
    )
    rng = np.random.default_rng()
    values, first = rng.uniform(0.3, 1.2, N), rng.integers(-5, 5, N)
    last = first + np.arange(N) % 13 - 1  # also loops without an iteration, and ranges that end before they begin
    found = []
    for copies in (1, 4):
        x, y, begin, end, k = program(start, copies)
        x.from_numpy(values)
        begin.from_numpy(first.astype(np.int32))
        end.from_numpy(last.astype(np.int32))
        y.grad.fill(1.0)
        k()
        k.grad()
        found.append((y.to_numpy() / copies, x.grad.to_numpy() / copies))
        assert set(written) == ({4} if copies == 4 else set())
    want, slope = values.copy(), np.ones(N)
    for i in range(N):
        for j in range(first[i], last[i]):
            v = want[i]
            slope[i] *= np.cos(v) if v > 0.6 else 3.0 * v
            want[i] = np.sin(v) + 0.01 * j if v > 0.6 else 1.5 * v * v + 0.1
    for y, gradient in found:
        np.testing.assert_allclose(y, want, rtol=1e-12)
        np.testing.assert_allclose(gradient, slope, rtol=1e-10)
    np.testing.assert_array_equal(found[0][0], found[1][0])
