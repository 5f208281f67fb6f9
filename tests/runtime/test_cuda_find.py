"""What a machine has, and what it lacks: the driver, cuda-python, a device."""

import builtins
import subprocess
import sys
from dataclasses import replace
from enum import IntEnum
from types import SimpleNamespace

import pytest

from qdrun.compiler.errors import DeviceError
from qdrun.compiler.runtime import registry
from qdrun.compiler.runtime.cuda import driver
from qdrun.compiler.runtime.cuda.backend import BACKEND
from qdrun.compiler.runtime.gpu import find

from .fake_driver import INFOS, FakeDriver

Code = IntEnum("Code", {"CUDA_SUCCESS": 0, "CUDA_ERROR_NO_DEVICE": 100, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": 803})


def with_bindings(monkeypatch, init=lambda flags: (Code(0),), version=13000):
    fake = SimpleNamespace(cuInit=init, cuDriverGetVersion=lambda: (Code(0), version))
    monkeypatch.setattr(driver, "bindings", lambda: fake)
    return fake


def detects(monkeypatch, what):
    """The machine has this of NVIDIA's."""
    monkeypatch.setitem(registry.BACKENDS, "cuda", replace(registry.BACKENDS["cuda"], detect=lambda: what))


def test_without_cuda_python_the_error_says_how_to_install_it(monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("cuda"):
            raise ImportError("No module named 'cuda'")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(DeviceError) as e:
        driver.initialise()
    assert str(e.value) == (
        "CUDA cannot be used: cuda-python is not installed for this Python (No module named 'cuda')\n"
        "  do: pip install 'cuda-python>=12.4'"
    )


def test_without_a_driver_the_error_says_what_to_install(monkeypatch):
    def init(flags):
        raise RuntimeError("Failed to dlopen libcuda.so.1")

    with_bindings(monkeypatch, init)
    with pytest.raises(
        DeviceError, match=r"NVIDIA's driver is not installed on this machine \(libcuda.so.1 was not found\)\n  do: install"
    ):
        driver.initialise()


@pytest.mark.parametrize("code, what", [(100, "the driver has no device that it can use"), (803, "have different versions")])
def test_a_driver_that_does_not_start_says_why(monkeypatch, code, what):
    with_bindings(monkeypatch, lambda flags: (Code(code),))
    with pytest.raises(DeviceError, match=what) as e:
        driver.initialise()
    assert e.value.code == code and str(e.value).startswith("CUDA cannot be used: ")


def test_a_driver_that_is_too_old_is_refused(monkeypatch):
    with_bindings(monkeypatch, version=11080)
    with pytest.raises(
        DeviceError, match=r"the driver speaks CUDA 11\.8, and 12\.0 is needed\n  do: install NVIDIA's driver, 525 or newer"
    ):
        driver.initialise()


def test_the_inventory_has_a_row_for_each_device(monkeypatch):
    detects(monkeypatch, "an NVIDIA driver is loaded")
    monkeypatch.setattr(driver, "CudaDriver", FakeDriver)
    rows = [b for b in registry.devices() if b.name == "cuda"]
    assert [(b.usable, b.present, b.index, b.uuid) for b in rows] == [(True, True, i.index, i.uuid) for i in INFOS]
    assert rows[0].detail == f"Test GPU, sm_90, 1.0 GiB, CUDA 13.0, {INFOS[0].uuid}, 0000:3b:00.0"
    assert rows[0].memory_bytes == 1 << 30 and rows[0].threads == 1024


def test_the_inventory_says_what_a_present_device_lacks(monkeypatch):
    detects(monkeypatch, "an NVIDIA driver is loaded")

    def refuse():
        raise DeviceError("CUDA cannot be used: cuda-python is not installed\n  do: pip install 'cuda-python>=12.4'")

    monkeypatch.setattr(driver, "CudaDriver", refuse)
    (row,) = (b for b in registry.devices() if b.name == "cuda")
    assert (row.usable, row.present) == (False, True)
    assert row.detail == "CUDA cannot be used: cuda-python is not installed do: pip install 'cuda-python>=12.4'"


def test_a_machine_without_a_driver(monkeypatch):
    detects(monkeypatch, "")
    (row,) = (b for b in registry.devices() if b.name == "cuda")
    assert (row.usable, row.present) == (False, False) and row.detail.startswith("no such device on this machine")


def test_a_device_that_is_too_old_is_in_the_list_and_not_usable(monkeypatch):
    old = INFOS[0].__class__(0, "Old GPU", "GPU-1", "0000:01:00.0", "sm_61", 4, 256, 1 << 30, 13000)
    monkeypatch.setattr(driver, "CudaDriver", lambda: FakeDriver(infos=(old, INFOS[1])))
    first, second = find.rows(BACKEND)
    assert (first.usable, first.present, second.usable) == (False, True, True)
    assert "compute capability 6.1, and 7.0 is needed" in first.detail


def test_importing_the_backend_loads_no_cuda_python():
    code = "import sys, qdrun, qdrun.compiler.runtime.cuda.backend, qdrun.compiler.runtime.gpu.device;"
    code += " sys.exit(any(m.split('.')[0] == 'cuda' for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0
