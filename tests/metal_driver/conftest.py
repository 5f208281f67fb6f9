import gc
import platform
import sys

import pytest

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
    assert not library.faults()
