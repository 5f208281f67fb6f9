"""Which devices there are, which of them a program gets, and what is said where there is none."""

import os
import sys
from dataclasses import replace

import pytest

import qdrun as qd
from qdrun.compiler.errors import DeviceError
from qdrun.compiler.runtime import registry

from .conftest import NAME


@pytest.fixture
def device(has_device):
    """The description of a device as Vulkan gives it."""
    from qdrun.compiler.runtime.gpu.find import find
    from qdrun.compiler.runtime.vulkan.driver import VulkanDriver
    from qdrun.compiler.runtime.vulkan.instance import instance

    return instance().devices[find(VulkanDriver(), NAME).index]


@pytest.mark.skipif(NAME != "llvmpipe", reason="about a software driver")
def test_a_program_on_the_processor_is_listed_and_used_only_by_name(device):
    (row,) = [b for b in registry.devices() if b.name == "vulkan" and b.index == device.index]
    assert not row.usable and row.present and row.uuid.startswith("GPU-")
    assert "only for programs that name it: it is a program on the processor" in row.detail
    others = [b for b in registry.devices() if b.name == "vulkan" and b.usable]
    if not others:
        with pytest.raises(
            DeviceError, match=r"(?s)only devices that programs must name\n  0: llvmpipe.*\n  do: .*device=\.\."
        ):
            qd.init(arch=qd.vulkan)
    for name in ("llvmpipe", device.index, row.uuid, row.uuid[:14], device.name.upper(), f"vulkan:{device.index}"):
        program = qd.init(arch=qd.vulkan, device=name)
        assert program.device.name == device.name and program.device.info.uuid == row.uuid
        qd.reset()
    with pytest.raises(DeviceError, match="no Vulkan device is called 'radeon'"):
        qd.init(arch=qd.vulkan, device="radeon")


def test_a_device_is_refused_for_what_it_lacks(device):
    from qdrun.compiler.runtime.vulkan.kind import describe, only_named, refusal

    gpu = replace(device, software=False, driver="a driver 1.0")
    assert not refusal(gpu) and not only_named(gpu) and not describe(gpu).only_named
    cases = {
        "it speaks Vulkan 1.1, and 1.2 is needed": {"version": 1 << 22 | 1 << 12},
        "addresses of memory in code (bufferDeviceAddress)": {"features": gpu.features - {"bufferDeviceAddress"}},
        "64-bit integers (shaderInt64)": {"features": gpu.features - {"shaderInt64"}},
        "timeline semaphores": {"features": gpu.features - {"timelineSemaphore"}},
        "a queue that computes": {"family": -1},
        "time stamps": {"time_bits": 0},
        "128 bytes of push constants": {"limits": replace(gpu.limits, push_bytes=64)},
    }
    for said, change in cases.items():
        assert said in refusal(replace(gpu, **change)) and said in describe(replace(gpu, **change)).only_named
    for driver in ("MoltenVK 1.4.0", "KosmicKrisp Mesa 26.0"):
        assert "stands on Metal" in refusal(replace(gpu, driver=driver)), "listed, and not used"


def test_a_refused_device_cannot_be_opened_by_name_either(device, monkeypatch):
    from qdrun.compiler.runtime.vulkan import instance as module

    lacking = replace(device, features=device.features - {"shaderInt64"})
    monkeypatch.setattr(module.instance(), "devices", (lacking,), raising=False)
    with pytest.raises(DeviceError, match=r"cannot be used with Vulkan: it lacks 64-bit integers \(shaderInt64\)\n  do: "):
        qd.init(arch=qd.vulkan, device=0)
    assert "shaderInt64" in next(b.detail for b in registry.devices() if b.name == "vulkan")


def test_a_type_that_the_device_lacks_is_refused_by_name_and_the_program_goes_on(device, start, monkeypatch):
    program = start()
    opened = program.device.driver._here
    monkeypatch.setattr(opened, "features", replace(opened.features, float64=False))
    x, y = qd.field(qd.f64, shape=4), qd.field(qd.f32, shape=4)

    @qd.kernel
    def wide():
        for i in x:
            x[i] = x[i] * 1.2345678

    @qd.kernel
    def narrow():
        for i in y:
            y[i] = y[i] + 1.0

    with pytest.raises(
        qd.QdrunTypeError, match=r"kernel qd_wide uses 64-bit floats, which this device does not have \(shaderFloat64"
    ):
        wide()
    narrow()
    assert y.to_numpy().tolist() == [1.0] * 4


def test_processors_and_the_address_come_from_extensions():
    from types import SimpleNamespace as Found

    from qdrun.compiler.runtime.vulkan import instance

    sm = {"VkPhysicalDeviceShaderSMBuiltinsPropertiesNV": Found(shaderSMCount=132, shaderWarpsPerSM=64)}
    amd = {
        "VkPhysicalDeviceShaderCorePropertiesAMD": Found(
            shaderEngineCount=4,
            shaderArraysPerEngineCount=2,
            computeUnitsPerShaderArray=10,
            simdPerComputeUnit=2,
            wavefrontsPerSimd=16,
            wavefrontSize=64,
        )
    }
    assert (
        instance._processors(sm) == (132, 2048)
        and instance._processors(amd) == (80, 2048)
        and instance._processors({}) == (0, 0)
    )
    bus = Found(pciDomain=0, pciBus=0x3B, pciDevice=0, pciFunction=0)
    assert instance._pci(bus) == "0000:3b:00.0" and instance._pci(None) == ""


@pytest.fixture
def nothing_loaded():
    """The package is looked for again, during a test and after it."""
    from qdrun.compiler.runtime.vulkan import library

    library.library.cache_clear()
    yield
    library.library.cache_clear()


def test_without_the_package_or_the_loader_one_line_says_what_to_install(monkeypatch, nothing_loaded, tmp_path):
    from qdrun.compiler.runtime.vulkan import instance, library

    monkeypatch.setattr(instance, "_instance", None)
    monkeypatch.setitem(sys.modules, "vulkan", None)
    with pytest.raises(DeviceError, match=r"the package `vulkan` is not installed .*\n  do: pip install 'vulkan>=1.3'"):
        qd.init(arch=qd.vulkan)
    monkeypatch.delitem(sys.modules, "vulkan")
    (tmp_path / "vulkan.py").write_text("raise OSError('Cannot find Vulkan SDK version.')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(DeviceError, match=r"its loader was not found on this machine\n  do: install the Vulkan loader"):
        library.library()
    (tmp_path / "vulkan.py").write_text("x = 1\n")
    with pytest.raises(DeviceError, match=r"another module is called `vulkan`"):
        library.library()
    sys.modules.pop("vulkan", None)


def test_a_fork_is_told_to_spawn(device, monkeypatch):
    from qdrun.compiler.runtime.vulkan import instance

    monkeypatch.setattr(instance.instance(), "pid", os.getpid() + 1)
    with pytest.raises(
        DeviceError, match="cannot be used by a forked process\n  do: start processes with multiprocessing's `spawn`"
    ):
        qd.init(arch=qd.vulkan, device=NAME)
