"""Kernels for a device that another process has compiled: nothing is lowered again, and the bits are the same."""

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, sys
import numpy as np
import qdrun as qd
from qdrun.compiler.compile.cache import CACHE

qd.init(arch=qd.cuda, device="emulated", offline_cache=True)
x, loss = qd.field(qd.f64, shape=(30,), needs_grad=True), qd.field(qd.f64, shape=(), needs_grad=True)

@qd.kernel
def k(n: qd.i32):
    for i in x:
        v = x[i]
        for j in range(n):
            v = qd.sin(v) + 0.1 * v
        loss[None] += v

x.from_numpy(np.linspace(0, 1, 30))
out = []
for n in (4, 900):  # tapes on chip, then in the heap: another variant of the code
    with qd.ad.Tape(loss):
        k(n)
    out += x.grad.to_numpy().tolist()
print(json.dumps([CACHE.lowered, out]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("first", ["emulated", pytest.param("cpu", marks=pytest.mark.slow)])
def test_the_second_process_lowers_nothing(first, tmp_path, monkeypatch):
    monkeypatch.setenv("QDRUN_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "program.py"
    path.write_text(PROGRAM if first == "emulated" else PROGRAM.replace('arch=qd.cuda, device="emulated"', "arch=qd.cpu"))

    def run():
        done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True)
        return json.loads(done.stdout.splitlines()[-1])

    lowered, result = run()
    assert lowered == 1
    path.write_text(PROGRAM)  # a kernel of the CPU is none of the device
    assert run()[0] == (0 if first == "emulated" else 1)
    again = run()
    assert again[0] == 0 and again[1] == pytest.approx(result, rel=1e-12)
