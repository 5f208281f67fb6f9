"""Loops whose ends have any integer type need nothing that NVIDIA's GPUs lack; found by what the emulated device is asked to compile."""

from __future__ import annotations

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.codegen.llvm import nvptx_table
from qdrun.compiler.codegen.llvm.cuda import cuda_target
from qdrun.compiler.runtime.cuda import device

INTEGERS = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")


@pytest.mark.parametrize("name", INTEGERS)
def test_loops_with_ends_of_any_integer_type_have_instructions(monkeypatch, name):
    emit, faults = device.emit_grid, []

    def emit_both(kernel, target, *options):
        faults.extend(nvptx_table.faults(emit(kernel, cuda_target(), *options).device))
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
