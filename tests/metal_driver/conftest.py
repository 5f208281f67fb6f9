import contextlib
import ctypes
import gc
import platform
import sys
import traceback
from dataclasses import replace

import pytest

import qdrun as qd
from qdrun.tests.devices.metal import executor
from qdrun.tests.stand_in_programs import Card

from .stand_in import load


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        pytest.skip("the stand-in is for Linux on x86-64")
    return load(tmp_path_factory.mktemp("metal"))


@pytest.fixture
def apple(library, monkeypatch):
    """A machine with one GPU of 1 GiB. At the end nothing may have been wrong, and the GPU is forgotten."""
    from qdrun.compiler.runtime.gpu import failing
    from qdrun.compiler.runtime.gpu.memory import deferred_release
    from qdrun.compiler.runtime.metal import driver, gpu, objc

    monkeypatch.setattr(objc, "load", lambda: library.objc)
    monkeypatch.setattr(driver, "system_version", lambda: 1504)
    monkeypatch.setattr(deferred_release, "_devices", {})
    monkeypatch.setattr(failing, "_failed", {})
    monkeypatch.setattr(gpu, "_gpus", {})
    gc.collect()  # programs of earlier tests that only the collector can free give their heaps back now, and not during this one
    library.setup()
    yield library
    gc.collect()
    library.forget(gpu._gpus.values())
    library.reset()  # what a program kept of a GPU that has failed goes with that GPU
    assert not library.faults()


@pytest.fixture
def compiled(apple):
    """The stand-in with a GPU that runs what it is given: the source that the driver gives to Metal's compiler goes to clang."""
    with contextlib.suppress(qd.DeviceError):
        executor.clang()
        loaded = {}

        def run(launch):
            found = launch.contents
            try:
                if found.source not in loaded:
                    image = executor.image_of(ctypes.string_at(found.source, found.source_bytes).decode(), "k")
                    loaded[found.source] = executor.MetalExecutor().load(image, "k")
                code = loaded[found.source][found.name.decode()]
                words = found.words[0] if code.facts.by_address else ctypes.addressof(found.words)
                live = executor.ends_of(apple.ranges())
                code.run_on(words, found.blocks, found.threads, found.shared - code.facts.shared // 16 * 16, live)
            except Exception:
                traceback.print_exc()
                return 3
            return 0

        apple.run(run)
        return apple
    pytest.skip("clang is not installed")


@pytest.fixture
def card(apple):
    return Card(
        arch="metal",
        model="Apple Test",
        real=qd.f32,
        library=apple,
        names=apple.calls,
        allocates="newBufferWithLength:options:",
        waits={"waitUntilCompleted"},
        fail_work=lambda: apple.fail_work(3, "Caused GPU Address Fault Error"),
        failure="it read or wrote memory that is not its own (MTLCommandBufferErrorPageFault)",
        refuse_launch=lambda: apple.fail("commandBuffer"),
        refusal="Metal has given no object",
    )


@pytest.fixture
def running(compiled, card):
    return replace(card, library=compiled)
