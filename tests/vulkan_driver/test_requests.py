"""What a peer project was asked for on Vulkan alone, on llvmpipe. ``tests/gpus`` has what every GPU is asked for."""

import mmap
from dataclasses import replace

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.program.plans import device_reducer
from qdrun.compiler.program.plans.device_reducer import DeviceReducers
from qdrun.compiler.runtime.base import Allocation
from qdrun.compiler.runtime.gpu.device import GpuDevice

from .conftest import NAME

pytestmark = pytest.mark.usefixtures("heap_tapes")
GPU = {"arch": qd.vulkan, "device": NAME}
NO_RESERVE = 0x4000  # MAP_NORESERVE, which the module does not name


def test_a_gate_of_doubles_on_a_device_without_them_is_planned_and_refused_with_its_line(has_device, monkeypatch):
    """Row 23: numpy counts the iterations, as the device cannot. A gate of f32 in the same program is counted on the device."""
    from qdrun.compiler.runtime.vulkan import instance

    found = instance.instance()
    lean = tuple(replace(device, features=device.features - {"shaderFloat64"}) for device in found.devices)
    monkeypatch.setattr(found, "devices", lean, raising=False)
    monkeypatch.setattr(device_reducer, "SMALL_ARRAY", 0)
    asked, run = [], DeviceReducers.run
    monkeypatch.setattr(DeviceReducers, "run", lambda *args: (asked.append(1), run(*args))[1])
    with qd.init(default_fp=qd.f32, **GPU):
        x = qd.field(qd.f32, shape=300, needs_grad=True)
        gate, narrow_gate = qd.field(qd.f64, shape=300), qd.field(qd.f32, shape=300)
        y = qd.field(qd.f32, shape=(), needs_grad=True)

        @qd.kernel
        def wide(m: qd.i32):
            for i in x:
                if gate[i] > 0.5:
                    v = x[i]
                    for _ in range(m):
                        v = v * (1.4 - v)
                    y[None] += v

        @qd.kernel
        def narrow(m: qd.i32):
            for i in x:
                if narrow_gate[i] > 0.5:
                    v = x[i]
                    for _ in range(m):
                        v = v * (1.4 - v)
                    y[None] += v

        x.fill(0.5)
        gate.from_numpy(np.linspace(0.0, 1.0, 300))
        narrow_gate.from_numpy(np.linspace(0.0, 1.0, 300, dtype=np.float32))
        assert wide.grad.plan(3).bytes == 150 * 3 * 4 and not asked
        with pytest.raises(qd.QdrunTypeError, match=r"kernel `wide` computes in f64, and the device .* has no f64") as e:
            wide.grad(3)
        assert "if gate[i] > 0.5:" in str(e.value)
        y.grad.fill(1.0)
        narrow.grad(3)
        assert asked and np.count_nonzero(x.grad.to_numpy()) == 150


@pytest.mark.skipif(NAME != "llvmpipe", reason="the memory of this process is not the device's")
def test_a_heap_of_more_than_4_gib_is_addressed_in_64_bits(has_device, monkeypatch):
    """Row 3: bytes and words of the second loop's tape lie beyond 2**32. No driver here allocates so much: it is memory of the process,
    which takes pages where it is written.
    """
    kept, allocate, free = [], GpuDevice._allocate, GpuDevice._free

    def sparse(device, nbytes, category):
        if category != "adstack":
            return allocate(device, nbytes, category)
        memory = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
        kept.append(np.frombuffer(memory, np.uint8))
        return Allocation(kept[-1].ctypes.data, nbytes, category, kept[-1])

    monkeypatch.setattr(GpuDevice, "_allocate", sparse)
    monkeypatch.setattr(GpuDevice, "_free", lambda self, x: None if x.category == "adstack" else free(self, x))
    rows, slots = 65_536, 66_000
    start = np.random.default_rng().uniform(0.2, 0.9, rows).astype(np.float32)

    def work():
        x, y = (qd.field(qd.f32, shape=rows, needs_grad=True) for _ in range(2))

        @qd.kernel
        def k(n: qd.i32):
            for i in x:
                v = x[i]
                while v > 0.7:
                    v = v * (1.4 - v)
                w = x[i]
                for _ in range(n):
                    w = w * (1.4 - w)
                y[i] = v + w

        x.from_numpy(start)
        y.grad.fill(1.0)
        k.grad(3)
        return x.grad.to_numpy(), k.grad.plan(3).bytes

    with qd.init(default_fp=qd.f64, **GPU, ad_stack_size=slots):
        gpu, size = work()
    with qd.init(default_fp=qd.f64, ad_stack_size=slots):
        cpu, _ = work()
    assert size == rows * (slots + 3) * 4 > 4 * 2**32
    assert (gpu == cpu).all() and np.count_nonzero(cpu) == rows
    written = np.flatnonzero(kept[0][4 * rows * slots :].view(np.uint32))
    assert written.size == 3 * rows, "the tape of the second loop lies at the end"
