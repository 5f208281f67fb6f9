"""Adstacks in PTX: tapes on chip at immediate offsets, unrolled, nothing in local memory; bytes of on-chip memory of a launch."""

from __future__ import annotations

import re

import pytest

import qdrun as qd
from qdrun.compiler.codegen.cuda.hardware import cuda_target
from qdrun.compiler.codegen.gpu.grid.kernel import emit_grid
from qdrun.compiler.codegen.gpu.grid.rows import name_of
from qdrun.compiler.compile import pipeline
from qdrun.compiler.runtime.cuda.ptx import compile_ptx


def gradient(dtype, gated=False, serial=False):
    """The reverse kernel of a recurrence."""
    qd.init(arch=qd.cpu, cpu_max_num_threads=1, default_fp=dtype)
    x, y = qd.field(dtype, 64, needs_grad=True), qd.field(dtype, 64, needs_grad=True)
    gate = qd.field(qd.i32, 64)

    @qd.kernel
    def open_(n: qd.i32):
        for i in x:
            v = x[i]
            for _ in range(n):
                v = v * v * 0.3 + 0.1
            y[i] = v

    @qd.kernel
    def behind(n: qd.i32):
        for i in x:
            if gate[i] == 1:
                v = x[i]
                for _ in range(n):
                    v = v * v * 0.3 + 0.1
                y[i] = v

    @qd.kernel
    def alone(n: qd.i32):
        if n >= 0:
            v = x[0]
            for _ in range(n):
                v = v * v * 0.3 + 0.1
            y[0] = v

    kernel = alone if serial else behind if gated else open_
    ir = kernel.variant((3,), {})[0].compiled_kernel.ir
    return pipeline.reduced(pipeline.gradient(ir, segmented=True).kernel)


def tapes(kernel) -> frozenset[str]:
    return frozenset(name_of(n, s.name) for n, t in enumerate(kernel.tasks) for s in t.stacks if s.kind == "tape")


def ptx(kernel, far=frozenset()) -> tuple[str, str, str]:
    code = emit_grid(kernel, cuda_target(), far=far)
    return code.device, code.host, compile_ptx(code.device, kernel.name, "sm_90", code.features)


@pytest.mark.parametrize("dtype,bits", [(qd.f32, 32), (qd.f64, 64)], ids=str)
def test_a_tape_on_chip_is_read_and_written_eight_at_a_time_at_immediate_offsets(dtype, bits):
    device, host, text = ptx(gradient(dtype))
    assert ".local" not in text and "minnctapersm" in text
    step = 128 * bits // 8
    for what in ("st", "ld"):
        offsets = {int(n or 0) for n in re.findall(rf"{what}\.shared\.b{bits}[^\[]*\[%\w+\+?(-?\d+)?\]", text)}
        assert len({n for n in offsets if n % step == 0}) >= 8, f"{what}: offsets {sorted(offsets)}"
    assert device.count('"llvm.loop.unroll.count", i32 8') == 1 and "i32 4}" not in device
    assert re.search(r"call i32 @qd_launch\(.*i32 %\w+, ptr %\w+, ptr null", host), "it asks for on-chip memory"


def test_a_tape_in_the_heap_is_read_eight_at_a_time():
    kernel = gradient(qd.f32)
    device, host, text = ptx(kernel, tapes(kernel))
    assert ".shared" not in text and ".local" not in text
    assert '"llvm.loop.unroll.count", i32 8' in device
    assert re.search(r"call i32 @qd_launch\(.*i32 0, ptr %\w+, ptr null", host), "it asks for none"


def test_rows_behind_a_gate_are_claimed_and_others_are_not():
    for gated in (False, True):
        device, host, text = ptx(gradient(qd.f32, gated=gated))
        assert ("atom.relaxed.gpu.global.add.u32" in text or "atom.global.add.u32" in text) == gated
        assert ("qd_memset" in host) == gated
        assert ("atomicrmw add ptr" in device) == gated


def test_a_serial_task_has_one_row_and_a_part_on_chip():
    device, _, text = ptx(gradient(qd.f64, serial=True))
    assert "ld.shared" in text and "atomicrmw" not in device
