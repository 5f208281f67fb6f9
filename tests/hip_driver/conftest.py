import ctypes
import functools
import os
import shutil
import traceback
from collections import Counter

import pytest

import qdrun as qd
from qdrun.tests.devices.amdgpu import executor
from qdrun.tests.devices.amdgpu.memory import Region
from qdrun.tests.stand_in_programs import Card

from .stand_in import load


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    pytest.importorskip("hip")
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    if os.path.exists("/dev/kfd"):
        pytest.skip("this machine has an AMD GPU: hip-python is to load ROCm's library")
    before = os.environ.get("ROCM_PATH")
    found = load(tmp_path_factory.mktemp("rocm"))
    yield found
    found.setup(devices=0)
    os.environ.pop("ROCM_PATH")
    if before is not None:
        os.environ["ROCM_PATH"] = before


@pytest.fixture
def rocm(library, monkeypatch):
    """A machine with one AMD device, as far as hip-python sees it."""
    from qdrun.compiler.runtime.gpu import failing
    from qdrun.compiler.runtime.gpu.memory import deferred_release

    monkeypatch.setattr(failing, "_failed", {})
    monkeypatch.setattr(deferred_release, "_devices", {})
    library.setup()
    yield library
    library.setup(devices=0)


@pytest.fixture
def card(rocm):
    return Card(
        arch="amdgpu",
        model="AMD Test Card",
        real=qd.f64,
        library=rocm,
        names=lambda: [call.name for call in rocm.calls()],
        allocates="hipMallocFromPoolAsync",
        frees="hipFreeAsync",
        waits={"hipStreamSynchronize", "hipFree"},
        fail_work=lambda: rocm.run(lambda launch: 719),
        failure="it was stopped by the device (a trap, or a fault without a name) (hipErrorLaunchFailure)",
        refuse_launch=lambda: rocm.fail("hipModuleLaunchKernel", 701),
        refusal=r".*\(hipErrorLaunchOutOfResources\)",
    )


@pytest.fixture
def running(rocm, card, monkeypatch):
    """The stand-in with a gfx942 that runs what it is given: each launch goes to the emulator of AMD's instructions."""
    from qdrun.compiler.runtime.amdgpu import build, driver

    loaded = {}

    def region(machine, address):
        base, nbytes = rocm.block(address)
        return Region.at(base, nbytes) if nbytes else None

    def run(launch):
        found = launch.contents
        try:
            if found.image not in loaded:
                data = ctypes.string_at(found.image, found.image_bytes)
                loaded[found.image] = executor.AmdExecutor("gfx942", Counter()).load(data, "k")
            code = loaded[found.image][found.name.decode()]
            code.run(ctypes.addressof(found.words), found.blocks, found.threads, found.shared)
        except Exception:
            traceback.print_exc()
            return 719
        return 0

    monkeypatch.setattr(executor, "_region", region)
    # The emulator reads the instructions from LLVM's text, which lies beside them in a section that is not loaded.
    monkeypatch.setattr(driver.build, "build", functools.partial(build.build, listing=True))
    rocm.run(run)
    return card
