"""GPUs that lack types, or atomics of 8 bytes: what needs them is refused by name, and the rest computes the same without."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from codegen_harness import field, parallel
from grid_harness import GridCompiled

import qdrun as qd
from qdrun.compiler.codegen.gpu.grid.kernel import emit_grid
from qdrun.compiler.ir.builder import StatementBuilder, const_i32
from qdrun.compiler.ir.nodes import Axis, Const, Kernel, Op, Print, Reduction, Task
from qdrun.compiler.ir.types import f16, f32, f64, i8, i16, i32, i64, u1, u32, u64
from qdrun.tests.devices.processor import driver
from qdrun.tests.devices.processor.hardware import emulated_target

POOR = replace(emulated_target(), missing=frozenset([f64]), wide_atomics=False, coherent=False, i128=False)


def doubled(dtype, atomic=False):
    x, y = field("x", dtype, 8), field("y", dtype, 8)
    task, i, b = parallel(8)
    value = b.gload(x, (i,))
    if atomic:
        b.atomic("add", y, (const_i32(0),), value)
    else:
        b.gstore(y, (i,), value if dtype is u1 else b.op("add", value, value))
    return Kernel("double", [], [task])


@pytest.mark.parametrize(
    "dtype, lacks, message",
    [
        (f64, f64, "computes in f64, and the device (emulated) has no f64\n  do: use f32: qd.init(default_fp=qd.f32)"),
        (f16, f16, "computes in f16, and the device (emulated) has no f16\n  do: use f32 for the fields"),
        (i16, i16, "computes in i16, and the device (emulated) has no i16\n  do: use i32 for the fields"),
        (u1, i8, "keeps u1 values in memory, which takes integers of 8 bits, and the device (emulated) has no i8"),
    ],
)
def test_a_type_that_a_gpu_lacks_is_refused(dtype, lacks, message):
    target = replace(emulated_target(), missing=frozenset([lacks]))
    with pytest.raises(qd.QdrunTypeError) as e:
        emit_grid(doubled(dtype), target)
    assert f"kernel `double` {message}" in str(e.value) and "or another backend" in str(e.value)
    assert emit_grid(doubled(f32), target).device


def test_bounds_that_the_host_computes_may_have_any_type():
    x = field("x", i32, 8)
    task = Task("t", [])
    b = StatementBuilder(task.prologue)
    end = b.op("cast", b.op("add", Const(3.0, f64), b.op("cast", const_i32(2), dtype=f64)), dtype=i32)
    task.axes.append(Axis(Op("index", (), i32), const_i32(0), end))
    StatementBuilder(task.body).gstore(x, (task.axes[0].index,), const_i32(1))
    out = np.zeros(8, "i4")
    GridCompiled(Kernel("k", [], [task]), target=POOR)(fields={x.buffer: out})
    assert out.tolist() == [1] * 5 + [0] * 3


@pytest.mark.parametrize("dtype", [i64, u64, f64])
def test_atomics_of_8_bytes_are_refused_where_they_are_needed(dtype):
    target, kernel = replace(emulated_target(), wide_atomics=False), doubled(dtype, atomic=True)
    text = f"changes `y` by an atomic of 8 bytes \\({dtype.name}\\), and the device \\(emulated\\) has none\n  do: use {dtype.name[0]}32"
    with pytest.raises(qd.QdrunTypeError, match=text):
        emit_grid(kernel, target)
    assert emit_grid(
        kernel, target, frozenset(s for s in kernel.tasks[0].body if isinstance(s, Op) and s.op == "atomic")
    ).device
    assert emit_grid(doubled(i32, atomic=True), target).device
    x, total = field("x", dtype, 8), field("total", dtype)
    task, i, b = parallel(8)
    r = b.local(b.gload(x, (i,)), "r")
    task.reductions.append(Reduction(r, total, (), "add"))
    assert emit_grid(Kernel("k", [], [task]), target).device


def test_floats_are_reported_as_f64_without_f64():
    rng = np.random.default_rng()
    data = rng.integers(0, 1 << 32, 4000, dtype="u4").view("f4")
    data[:400] = rng.integers(0, 1 << 23, 400, dtype="u4").view("f4")  # subnormal
    data[400:408] = [0.0, -0.0, np.inf, -np.inf, 1e-45, -1e-45, 3.4028235e38, 1.1754944e-38]
    for dtype in (f32, f16):
        x = field("x", dtype, len(data))
        task, i, b = parallel(len(data))
        b.put(Print((i, b.gload(x, (i,)))))
        run = GridCompiled(Kernel("k", [], [task]), target=POOR)
        assert "double" not in run.code.device
        with np.errstate(all="ignore"):
            given = data.astype(dtype.numpy)
        for first in range(0, len(data), 500):  # as many as the ring holds
            part = np.roll(given, -first)
            run.ring[:] = 0
            run.ring[1] = len(run.ring) - 4
            run(fields={x.buffer: part})
            for _, (k, bits) in run.printed():
                want = np.float64(part[k])
                assert np.isnan(want) or bits & (2**64 - 1) == int(want.view("u8"))


def test_integers_become_f16_with_one_rounding_without_f64():
    rng = np.random.default_rng()
    for dtype in (i32, u32, i64, u64):
        x, y = field("x", dtype, 3000), field("y", f16, 3000)
        task, i, b = parallel(3000)
        b.gstore(y, (i,), b.op("cast", b.gload(x, (i,)), dtype=f16))
        info = np.iinfo(dtype.numpy)
        data = np.concatenate(
            [
                rng.integers(max(info.min, -70000), 70000, 2000).astype(dtype.numpy),
                rng.integers(info.min, info.max, 990, dtype=dtype.numpy),
                np.array([info.min, info.max, 0, 1, 65519, 65520, 65504, 131073, 33554433, 2049], dtype.numpy),
            ]
        )
        out = np.zeros(3000, "f2")
        GridCompiled(Kernel("k", [], [task]), target=POOR)(fields={x.buffer: data, y.buffer: out})
        with np.errstate(all="ignore"):
            assert np.array_equal(out, data.astype("f8").astype("f2"))


def test_the_message_names_the_line_before_anything_is_launched(monkeypatch):
    monkeypatch.setattr(driver, "emulated_target", lambda: POOR)
    with qd.init(arch=qd.cuda, device="emulated", default_fp=qd.f32, offline_cache=False):
        x, y = qd.field(qd.f32, 8), qd.field(qd.f64, 8)

        @qd.kernel
        def mixed():
            for i in x:
                x[i] = 1.0
            for i in y:
                y[i] = x[i] * 2.0

        with pytest.raises(qd.QdrunTypeError, match="kernel `mixed` computes in f64") as e:
            mixed()
        assert "y[i] = x[i] * 2.0" in str(e.value) and "test_abilities.py:" in str(e.value)
        assert not x.to_numpy().any()


def test_a_trial_whose_sums_have_8_bytes_has_one_thread(monkeypatch):
    found = []
    for wide in (True, False):
        monkeypatch.setattr(driver, "emulated_target", lambda wide=wide: replace(emulated_target(), wide_atomics=wide))
        with qd.init(arch=qd.cuda, device="emulated", batch=3, gpu_lanes=4, offline_cache=False):
            x, total = qd.field(qd.i64, 8), qd.field(qd.i64, ())

            @qd.kernel
            def add():
                for i in x:  # noqa: B023
                    x[i] = i * i  # noqa: B023
                for i in x:  # noqa: B023
                    total[None] += x[i]  # noqa: B023

            add()
            graph = qd.capture(lambda add=add: add())
            graph()
            found.append((graph.threads[0], total.to_numpy().tolist()))
    assert found == [(4, [280] * 3), (1, [280] * 3)]
