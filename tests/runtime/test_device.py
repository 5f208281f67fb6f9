import sys
from dataclasses import replace

import numpy as np
import pytest

from qdrun.compiler.errors import AdStackOverflow, OutOfMemory, QdrunAssertionError, QdrunRuntimeError
from qdrun.compiler.ir.nodes import (
    Assert,
    Buffer,
    Const,
    GlobalStore,
    Kernel,
    Loc,
    Local,
    LocalStore,
    Loop,
    Op,
    Overflow,
    Place,
    Print,
    Task,
)
from qdrun.compiler.ir.types import f32, f64, i32, u1, u8, u64
from qdrun.compiler.runtime import registry
from qdrun.compiler.runtime.compiled import CompileOptions
from qdrun.compiler.runtime.cpu.device import CpuDevice, register_context, unregister_context
from qdrun.compiler.runtime.registry import devices
from qdrun.compiler.runtime.status import raise_status, read_word

from .helpers_runtime import compiled, context, run_plainly

LOC = Loc("user.py", 3, 4, 8, "    for i in range(n):", "k")


def test_memory_is_zeroed_aligned_and_counted_by_category():
    d = CpuDevice()
    a, b = d.allocate(1000, "fields"), d.allocate(24, "adstack")
    assert a.ptr % 64 == b.ptr % 64 == 0 and a.view.ctypes.data == a.ptr and not a.view.any() and a.view.nbytes == 1000
    assert d.usage() == {"fields": 1000, "adstack": 24} and d.used_bytes == d.peak_bytes == 1024
    d.free(a)
    d.free(a)
    assert d.usage() == {"adstack": 24} and d.peak_bytes == 1024 and a.ptr == 0
    d.close()
    assert d.usage() == {} and d.used_bytes == 0 and b.ptr == 0


def test_no_bytes_allocate_nothing():
    d = CpuDevice(byte_limit=0)
    a = d.allocate(0, "fields")
    assert (a.ptr, a.view.nbytes, d.usage()) == (0, 0, {})
    d.free(a)


def test_the_limit_names_the_bytes():
    d = CpuDevice(byte_limit=5000)
    keep = d.allocate(4000, "fields")
    with pytest.raises(OutOfMemory, match=r"adstack needs 1,001 bytes; 4,000 are in use \(fields 4,000\); the limit is 5,000"):
        d.allocate(1001, "adstack")
    assert d.usage() == {"fields": 4000}
    d.free(keep)
    assert d.allocate(5000, "adstack").nbytes == 5000


def test_more_than_the_machine_has_is_out_of_memory():
    with pytest.raises(OutOfMemory, match="has no more"):
        CpuDevice().allocate(1 << 60, "fields")
    with pytest.raises(QdrunRuntimeError):
        CpuDevice().allocate(-1, "fields")


def detects(monkeypatch, name, what):
    """The machine has this of a backend's hardware."""
    monkeypatch.setitem(registry.BACKENDS, name, replace(registry.BACKENDS[name], detect=lambda: what))


def test_the_inventory_tells_missing_hardware_from_hardware_that_cannot_be_used(monkeypatch):
    found = {b.name: b for b in devices()}
    assert found["cpu"].usable and found["cpu"].threads >= 1 and found["cpu"].memory_bytes > 0
    assert set(found) == {"cpu", "cuda", "amdgpu", "vulkan", "metal"}
    detects(monkeypatch, "vulkan", "")
    detects(monkeypatch, "metal", "something")
    found = {b.name: b for b in devices()}
    assert not found["vulkan"].present and found["vulkan"].detail.startswith("no such device on this machine")
    if sys.platform != "darwin":
        assert found["metal"].present and not found["metal"].usable and "Metal cannot be used" in found["metal"].detail


def kernel_of(*body):
    return Kernel("k", [], [Task("k_0", list(body))])


def run(kernel):
    d, c = CpuDevice(), context()
    k = d.compile(kernel, CompileOptions(offline_cache=False))
    c.words[1] = d.pool.address
    register_context(c.address, k)
    try:
        run_plainly(k, c)
    finally:
        unregister_context(c.address)


def test_a_kernel_of_the_ir_compiles_runs_and_is_found_again():
    d, c, data = CpuDevice(), context(), np.zeros(4, np.float32)
    buffer = Buffer("field")
    place = Place("x", f32, buffer, 1, (4,), (4,))
    kernel = kernel_of(GlobalStore(place, (Const(2, i32),), Const(1.5, f32)))
    k = d.compile(kernel, CompileOptions())
    c.words[1], c.words[k.layout.buffers[buffer]] = d.pool.address, data.ctypes.data
    run_plainly(k, c)
    assert data.tolist() == [0, 0, 1.5, 0] and k.object_bytes and k.seconds > 0
    assert d.compile(kernel, CompileOptions()).from_cache


def test_prints_go_to_standard_output(capsys):
    run(kernel_of(Print(("x = ", Const(1.5, f64), ", ", Const(-3, i32), "\n"))))
    assert capsys.readouterr().out == "x = 1.5, -3\n"


def test_a_failed_assert_names_values_and_place():
    x = Local(u1)
    failing = Op("load", (), u1, x)
    kernel = kernel_of(
        LocalStore(x, Const(False, u1)), failing, Assert(failing, "n is {}, k {}", (Const(7, i32), Const(0.5, f32)), LOC)
    )
    with pytest.raises(QdrunAssertionError, match=r"n is 7, k 0\.5") as e:
        run(kernel)
    assert "user.py:3" in str(e.value) and "^^^^" in str(e.value)


def test_an_overflow_names_kernel_task_line_and_capacity():
    loop = Loop(Op("index", (), i32), Const(0, i32), None, loc=LOC)
    k, c = compiled("define void @qd_k(ptr %a) { ret void }", [Overflow(loop, 1)]), context()
    raise_status(k, c.status_address)
    c.status[0] = 1
    with pytest.raises(AdStackOverflow) as e:
        raise_status(k, c.status_address, lambda x: 128 if x is loop else None)
    assert all(part in str(e.value) for part in ("`k`", "`task`", "user.py:3", "128")) and c.status[0] == 0
    c.status[0] = 99
    with pytest.raises(QdrunRuntimeError, match="status 99"):
        raise_status(k, c.status_address)


@pytest.mark.parametrize(
    "word, dtype, value", [(-1, i32, -1), (-1, u64, 2**64 - 1), (-1, u8, 255), (1, u1, True), (4609434218613702656, f64, 1.5)]
)
def test_words_become_values(word, dtype, value):
    assert read_word(word, Const(0, dtype)) == value
