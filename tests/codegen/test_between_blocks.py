"""What blocks leave for each other in memory, on a GPU whose plain accesses do not see what other blocks have written."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from codegen_harness import field, parallel
from grid_harness import GridCompiled

from qdrun.compiler.codegen import abi
from qdrun.compiler.codegen.gpu.grid.kernel import emit_grid
from qdrun.compiler.ir.builder import const_i32
from qdrun.compiler.ir.nodes import Assert, Const, Kernel, Print, Reduction
from qdrun.compiler.ir.types import f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from qdrun.tests.devices.processor.hardware import emulated_target

INCOHERENT = replace(emulated_target(), coherent=False)


def sums(dtype, n=137, printing=True):
    """Three reductions of an array; an iteration whose element is 99 fails, after it has printed."""
    x, out = field("x", dtype, n), field("out", dtype, 3)
    task, i, b = parallel(n)
    value = b.gload(x, (i,))
    if printing:
        b.put(Print(("at ", i)))
    b.put(Assert(b.op("ne", value, Const(99, dtype)), "no: {} at {}", (value, i)))
    for k, code in enumerate(("add", "min", "max")):
        r = b.local(value, "r")
        task.body.remove(b.block[-1])
        b.store(r, b.op(code, b.load(r), value))
        task.reductions.append(Reduction(r, out, (const_i32(k),), code))
    return Kernel("k", [], [task], []), x, out


@pytest.mark.parametrize("dtype", [f16, f32, f64, i8, u8, i16, u16, i32, u32, i64, u64])
def test_reductions_have_the_same_bits_by_atomics_of_four_bytes(dtype):
    kernel, x, out = sums(dtype)
    rng = np.random.default_rng()
    data = rng.integers(-9 if dtype.is_signed else 0, 9, 137).astype(dtype.numpy)
    if dtype.bits == 64:  # both halves of a word
        data *= dtype.numpy.type(1 << 40)
    if dtype.is_real:
        data /= dtype.numpy.type(7)
    left = []
    for target in (emulated_target(), INCOHERENT):
        memory = {x.buffer: data, out.buffer: rng.permutation(data[:3]).copy() * 0}
        assert not GridCompiled(kernel, target=target, processors=7)(fields=memory).any()
        left.append(memory[out.buffer])
    assert left[0].tobytes() == left[1].tobytes() and left[0].any()


def test_the_first_failure_is_reported_by_atomics_of_four_bytes():
    kernel, x, out = sums(f32)
    data = np.ones(137, "f4")
    for first in np.sort(np.random.default_rng().choice(137, 3, replace=False))[::-1]:
        data[first] = 99
        run = GridCompiled(kernel, target=INCOHERENT)
        status = run(fields={x.buffer: data, out.buffer: np.zeros(3, "f4")})
        assert status[abi.STATUS_ITERATION] == ~first and status[abi.STATUS_LOCK] & 0xFFFFFFFF == 0
        assert status[0] == 1 and status[abi.STATUS_VALUES + 1] == first


def test_what_is_accessed_by_atomics_is_never_accessed_otherwise():
    text = emit_grid(sums(f64, printing=False)[0], INCOHERENT).device
    root: dict[str, str] = {}  # the parameter that an address comes from
    atomics, plain = set(), set()
    for line in text.splitlines():
        if found := re.match(r"  (%p\d+) = load ptr, ptr", line):
            root[found[1]] = found[1]
        elif (found := re.match(r"  (%\w+) = getelementptr \w+, ptr (%\w+), ", line)) and found[2] in root:
            root[found[1]] = root[found[2]]
        elif (found := re.search(r"\b(load|store|atomicrmw|cmpxchg)\b.*ptr (%\w+)", line)) and found[2] in root:
            is_atomic = re.search("atomic|cmpxchg", line)
            (atomics if is_atomic else plain).add(root[found[2]])
            assert not is_atomic or not re.search(r"\bi(8|16|64)\b|double", line), line
    assert len(atomics) == 2 and len(plain) == 2 and not atomics & plain  # the status and the scratch memory; x and out
