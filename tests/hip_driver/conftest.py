import os
import shutil

import pytest

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
