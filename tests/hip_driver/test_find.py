"""What a machine has of AMD's, and what it lacks: hip-python, ROCm, a device."""

import builtins
import subprocess
import sys
from dataclasses import replace
from enum import IntEnum
from types import SimpleNamespace

import pytest

from qdrun.compiler.errors import DeviceError
from qdrun.compiler.runtime import registry
from qdrun.compiler.runtime.amdgpu import driver

Code = IntEnum("Code", {"hipSuccess": 0, "hipErrorNoDevice": 100, "hipErrorInvalidDevice": 101})


def detects(monkeypatch, what):
    """The machine has this of AMD's."""
    monkeypatch.setitem(registry.BACKENDS, "amdgpu", replace(registry.BACKENDS["amdgpu"], detect=lambda: what))


def rows():
    return [b for b in registry.devices() if b.name == "amdgpu"]


@pytest.mark.parametrize(
    "error, text",
    [
        (ImportError("No module named 'hip'"), "hip-python is not installed for this Python (No module named 'hip')"),
        (OSError("bad ELF"), "hip-python cannot be imported (OSError: bad ELF)"),
    ],
    ids=["missing", "broken"],
)
def test_without_hip_python_the_error_says_how_to_install_it(monkeypatch, error, text):
    real = builtins.__import__

    def without(name, *rest):
        if name == "hip":
            raise error
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(DeviceError) as e:
        driver.initialise()
    assert str(e.value) == (f"AMDGPU cannot be used: {text}\n  do: pip install 'hip-python>=10.0' (the extra `amd` of qdrun)")


def run(code, tmp_path):
    """A process of its own, in which hip-python has loaded nothing, and finds no ROCm."""
    env = {"PATH": "/usr/bin:/bin", "ROCM_PATH": str(tmp_path), "QDRUN_CACHE_DIR": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120, env=env)
    assert not done.stderr, done.stderr
    return done.stdout


def test_hip_python_without_rocm_is_one_clear_line(tmp_path):
    pytest.importorskip("hip")
    code = "import qdrun as qd\ntry: qd.init(arch=qd.amdgpu)\nexcept qd.DeviceError as e: print(e)"
    first, second = run(code, tmp_path).splitlines()
    assert first.startswith("AMDGPU cannot be used: ROCm's HIP library (libamdhip64.so) cannot be loaded (failed to dlopen")
    assert second == "  do: install ROCm 7.0 or newer, or set ROCM_PATH to where it is, and see that `rocminfo` works"


def test_importing_the_backend_loads_no_hip_python(tmp_path):
    code = "import sys, qdrun, qdrun.compiler.runtime.amdgpu.backend, qdrun.compiler.runtime.gpu.device;"
    code += " print(sorted(m for m in sys.modules if m.split('.')[0] in ('hip', 'rocm')))"
    assert run(code, tmp_path) == "[]\n"


def with_bindings(monkeypatch, init=lambda flags: (Code(0),), version=71_500_000):
    fake = SimpleNamespace(hipInit=init, hipRuntimeGetVersion=lambda: (Code(0), version))
    monkeypatch.setattr(driver, "bindings", lambda: fake)


@pytest.mark.parametrize("code, what", [(100, "ROCm has no device that it can use"), (101, "there is no such device")])
def test_a_rocm_that_does_not_start_says_why(monkeypatch, code, what):
    with_bindings(monkeypatch, lambda flags: (Code(code),))
    with pytest.raises(DeviceError, match=what) as e:
        driver.initialise()
    assert (
        e.value.code == code and str(e.value).startswith("AMDGPU cannot be used: ") and "\n  do: see `rocminfo`" in str(e.value)
    )


def test_a_rocm_that_is_too_old_is_refused(monkeypatch):
    with_bindings(monkeypatch, version=60_443_482)
    with pytest.raises(DeviceError, match=r"ROCm's HIP has version 6\.4, and 7\.0 is needed\n  do: install ROCm 7\.0 or newer"):
        driver.initialise()


def test_a_function_that_this_rocm_lacks_is_named(rocm):
    made = driver.HipDriver()

    def missing():
        raise RuntimeError("failed to dlsym 'hipMemPoolCreate'")

    with pytest.raises(DeviceError, match=r"opening failed: failed to dlsym 'hipMemPoolCreate'\n  do: install ROCm 7.0"):
        made._call("opening failed", missing)


def test_a_machine_without_the_driver(monkeypatch):
    detects(monkeypatch, "")
    (row,) = rows()
    assert (row.usable, row.present) == (False, False)
    assert row.detail == "no such device on this machine: no AMD GPU driver is loaded (no /dev/kfd)"


def test_the_inventory_has_a_row_for_each_device(monkeypatch, rocm):
    detects(monkeypatch, "an AMD GPU driver is loaded")
    rocm.setup(devices=2)
    found = rows()
    assert [(b.usable, b.present, b.index, b.uuid) for b in found] == [
        (True, True, 0, "GPU-00000000000012ab"),
        (True, True, 1, "GPU-00000000000012cd"),
    ]
    assert found[0].detail == "AMD Test Card, gfx942, 1.0 GiB, HIP 7.15, GPU-00000000000012ab, 0000:c0:00.0"
    assert found[0].memory_bytes == 1 << 30 and found[0].threads == 8192


def test_the_inventory_says_what_a_present_device_lacks(monkeypatch):
    detects(monkeypatch, "an AMD GPU driver is loaded")

    def refuse():
        raise DeviceError("AMDGPU cannot be used: hip-python is not installed\n  do: pip install 'hip-python>=10.0'")

    monkeypatch.setattr(driver, "initialise", refuse)
    (row,) = rows()
    assert (row.usable, row.present) == (False, True)
    assert row.detail == "AMDGPU cannot be used: hip-python is not installed do: pip install 'hip-python>=10.0'"


def test_a_chip_that_no_code_is_made_for_is_in_the_list_and_not_usable(monkeypatch, rocm):
    detects(monkeypatch, "an AMD GPU driver is loaded")
    rocm.setup(arch="gfx803")
    (row,) = rows()
    assert (row.usable, row.present) == (False, True)
    assert row.detail.startswith("AMD Test Card cannot be used: it is a gfx803, and this version makes code for gfx90")


@pytest.mark.parametrize("name, index", [(1, 1), ("GPU-00000000000012cd", 1), ("gpu-00000000000012ab", 0), ("0000:c1:00.0", 1)])
def test_a_device_is_chosen_by_number_uuid_or_address(rocm, name, index):
    from qdrun.compiler.runtime.gpu.find import find

    rocm.setup(devices=2)
    assert find(driver.HipDriver(), name).index == index
