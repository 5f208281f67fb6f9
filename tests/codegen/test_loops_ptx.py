"""Loops as NVIDIA's GPUs get them; found by what the emulated device is asked to compile."""

from __future__ import annotations

import re

import numpy as np
import pytest
from ptx_harness import compile_text

import qdrun as qd
from qdrun.compiler.codegen.cuda import nvptx_table
from qdrun.compiler.codegen.cuda.hardware import cuda_target
from qdrun.compiler.runtime.gpu import device

INTEGERS = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")


@pytest.mark.parametrize("name", INTEGERS)
def test_loops_with_ends_of_any_integer_type_have_instructions(monkeypatch, name):
    emit, faults = device.emit_grid, []

    def emit_both(kernel, target, *options):
        faults.extend(nvptx_table.NVPTX.faults(emit(kernel, cuda_target(), *options).device))
        return emit(kernel, target, *options)

    monkeypatch.setattr(device, "emit_grid", emit_both)
    qd.init(arch=qd.cuda, device="emulated", offline_cache=False)
    ends, count = qd.field(getattr(qd, name), shape=2), qd.field(qd.i32, shape=3)

    @qd.kernel
    def k():
        for _ in range(ends[0], ends[1]):
            count[0] += 1
        for _ in range(1, ends[1]):
            count[1] += 1
        for _, _ in qd.ndrange((ends[0], ends[1]), (2, ends[1])):
            count[2] += 1

    ends.from_numpy(np.array([3, 7], np.dtype(name.replace("i", "int") if name[0] == "i" else name.replace("u", "uint"))))
    k()
    assert count.to_numpy().tolist() == [4, 6, 20]
    assert faults == []


def wrapping_latches(ptx: str) -> list[str]:
    """Unsigned comparisons with a negative number by which a loop goes on."""
    found: list[str] = []
    labels: set[str] = set()
    compared: dict[str, str] = {}
    for line in ptx.splitlines():
        if m := re.match(r"(\$L\w+):", line):
            labels.add(m[1])
        elif m := re.match(r"\s+setp\.\w+\.u\d+ \s*(%p\d+), %\w+, -\d+;", line):
            compared[m[1]] = line
        elif (m := re.match(r"\s+@!?(%p\d+) bra \s*(\$L\w+);", line)) and m[2] in labels and m[1] in compared:
            found.append(compared[m[1]])
    return found


@pytest.mark.parametrize("step", [-2, -3, -7, 2, 3])
@pytest.mark.parametrize("name", ["i32", "i64"])
def test_a_loop_with_a_step_is_not_left_by_a_comparison_that_wraps(monkeypatch, name, step):
    """``range(n, -1, -2)`` went on ``while (unsigned)i < -3``: NVIDIA's assembler unrolled that too far, and it ran 2**31 times."""
    emit, texts = device.emit_grid, []

    def emit_both(kernel, target, *options):
        texts.append(emit(kernel, cuda_target(), *options).device)
        return emit(kernel, target, *options)

    monkeypatch.setattr(device, "emit_grid", emit_both)
    qd.init(arch=qd.cuda, device="emulated", offline_cache=False)
    n, seen, unseen = qd.field(getattr(qd, name), shape=20), qd.field(qd.f32, shape=(20, 9)), qd.field(qd.f16, shape=(20, 9))

    @qd.kernel
    def k():
        for i in range(20):
            for e in qd.static(range(-4, 5)):
                for j in range(n[i], e, step):
                    seen[i, e + 4] = seen[i, e + 4] * 3.0 + j
                for _ in range(n[i] % 4, e, step):
                    unseen[i, e + 4] = unseen[i, e + 4] + 1.0

    n.from_numpy(np.arange(-10, 10))
    k()
    for i, e in np.ndindex(20, 9):
        want = np.float32(0.0)
        for j in range(i - 10, e - 4, step):
            want = want * np.float32(3.0) + np.float32(j)
        assert seen[i, e] == want
        assert unseen[i, e] == len(range((i - 10) % 4, e - 4, step))
    done = compile_text(texts[0])
    assert done.returncode == 0, done.stderr[-800:]
    assert wrapping_latches(done.stdout) == []


def test_blocks_of_a_grid_wait_for_each_other_by_a_count(monkeypatch):
    """Thread 0 of each block counts and waits, between two barriers of the block, with fences of the device around."""
    emit, texts = device.emit_grid, []

    def emit_both(kernel, target, *options):
        texts.append(emit(kernel, cuda_target(), *options))
        return emit(kernel, target, *options)

    monkeypatch.setattr(device, "emit_grid", emit_both)
    qd.init(arch=qd.cuda, device="emulated", offline_cache=False)
    x = qd.field(qd.f32, shape=64)

    @qd.kernel
    def k():
        for i in x:
            x[i] += 1.0
            qd.simt.grid.sync()
            x[i] *= x[63 - i]

    k()
    assert "call i32 @qd_launch_together(" in texts[0].host and "call i32 @qd_launch(" not in texts[0].host
    found = compile_text(texts[0].device)
    assert not found.returncode, found.stderr
    order = re.findall(r"bar\.sync|fence\.sc\.gpu|atom\.\S+\.u64|ld\.relaxed\.gpu", found.stdout)
    assert [w.split(".")[0] for w in order] == ["bar", "fence", "atom", "ld", "fence", "bar"]
