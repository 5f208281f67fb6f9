"""Programs of several threads side by side in one process, launching through the same kernel objects, in a cold process."""

import subprocess
import sys

import pytest

PROGRAM = '''
import sys
import threading

import numpy as np
import qdrun as qd

ARCH, OPTIONS = {arch!r}, {options!r}


@qd.kernel
def advance(t: qd.i32, x: qd.template(), k: qd.template()):
    for i in range(x.shape[1]):
        a = x[t, i]
        for _ in range(i % 3 + 1):
            a += 0.1 * qd.sin(k[None] * a)
        x[t + 1, i] = a


@qd.kernel
def total(x: qd.template(), loss: qd.template(), t: qd.i32):
    for i in range(x.shape[1]):
        loss[None] += x[t, i] ** 2


def gradient(case):
    """Loss, gradient, bytes by category, in a program of its own."""
    n, steps, budget = case
    with qd.init(arch=ARCH, cpu_max_num_threads=1, memory_budget=budget, offline_cache={cache}, **OPTIONS) as program:
        x = qd.field(qd.f64, shape=(steps + 1, n), needs_grad=True)
        k = qd.field(qd.f64, shape=(), needs_grad=True)
        loss = qd.field(qd.f64, shape=(), needs_grad=True)
        start = np.zeros((steps + 1, n))
        start[0] = np.linspace(0.1, 1, n)
        x.from_numpy(start)
        k[None] = 1.5
        for t in range(steps):  # without a tape: the native launcher
            advance(t, x, k)
        with qd.ad.Tape(loss=loss):
            for t in range(steps):
                advance(t, x, k)
            total(x, loss, steps)
        return float(loss[None]).hex(), float(k.grad[None]).hex(), x.grad.to_numpy().tobytes(), program.peaks()


CASES = [(3 + c % 3, 4 + c % 2, 0 if c % 4 else "64KiB") for c in range(6)]
sys.setswitchinterval(1e-5)
found = {{}}


def thread(first):
    for c in range(len(CASES)):
        c = (first * 5 + c) % len(CASES)
        found[first, c] = gradient(CASES[c])


threads = [threading.Thread(target=thread, args=(first,)) for first in range(3)]
for one in threads:
    one.start()
for one in threads:
    one.join()
assert len(found) == 3 * len(CASES)  # none has raised
sys.setswitchinterval(0.005)
alone = [gradient(case) for case in CASES]
assert all(value == alone[c] for (_, c), value in found.items()), [key for key, value in found.items() if value != alone[key[1]]]
assert len({{a[0] for a in alone}}) == 6
print("equal")
'''


@pytest.mark.parametrize(
    ("arch", "options", "cache"),
    [
        ("cpu", {}, True),
        pytest.param("cpu", {}, False, marks=pytest.mark.slow),
        pytest.param("cuda", {"device": "emulated"}, False, marks=pytest.mark.slow),
    ],
    ids=["disk", "no disk", "emulated"],
)
def test_threads_compute_what_one_does(tmp_path, monkeypatch, arch, options, cache):
    """Losses, gradients and bytes to the bit, while all of them compile the same kernels for the first time."""
    monkeypatch.setenv("QDRUN_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "side.py"
    path.write_text(PROGRAM.format(arch=arch, options=options, cache=cache))
    ended = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=240, check=False)
    assert (ended.returncode, ended.stdout) == (0, "equal\n"), ended.stderr
