"""Each test of this folder runs on every GPU of ``tests/on_gpus.py``."""

import pytest

from qdrun.tests.on_gpus import GPUS, keep_tapes_in_heap


@pytest.fixture(params=[gpu.name for gpu in GPUS])
def gpu(request, monkeypatch):
    found = next(gpu for gpu in GPUS if gpu.name == request.param)
    found.need()
    if found.name == "vulkan":
        keep_tapes_in_heap(monkeypatch)
    return found


@pytest.fixture
def program(gpu):
    with gpu.init() as made:
        yield made
