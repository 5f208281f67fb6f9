"""The tests of this folder run on Mesa's llvmpipe, or on the device that ``QDRUN_TEST_VULKAN`` names."""

import ctypes

import numpy as np
import pytest

import qdrun as qd
from qdrun.tests.on_gpus import VULKAN as NAME
from qdrun.tests.on_gpus import keep_tapes_in_heap, need_vulkan

LAUNCH = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3)
MEMSET = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_uint, ctypes.c_size_t, ctypes.c_void_p)
COPY = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p)


class Rig:
    """A driver with one stream, and what tests do with it."""

    def __init__(self):
        from qdrun.compiler.runtime.gpu.find import find
        from qdrun.compiler.runtime.vulkan.driver import VulkanDriver

        self.driver = VulkanDriver()
        self.info = find(self.driver, NAME)
        self.driver.open(self.info.index)
        self.stream = self.driver.stream(ordered=False)
        self.inner = self.driver._streams[self.stream]

    def block(self, values):
        """Memory of the device with these values."""
        data = np.ascontiguousarray(values)
        address = self.driver.allocate(data.nbytes, self.stream)
        self.driver.upload(address, data.ctypes.data, data.nbytes, self.stream)
        return address

    def read(self, address, count, kind=np.uint32):
        """Values at an address, after all that is in the stream."""
        out = np.zeros(count, kind)
        self.driver.download(out.ctypes.data, address, out.nbytes, self.stream)
        return out

    def function(self, text, name, kernel="k", keep=False):
        """A function of a module of device text, and the module."""
        from qdrun.compiler.runtime.gpu.driver import Texts

        image = self.driver.build(Texts(kernel, text, "", name, (name,), ""), self.info, keep)
        module = self.driver.load_module(image.data, kernel)
        return self.driver.function(module, name), module

    def launch(self, function, words, blocks=1, block=32):
        """The result of launching a function, whose words may change afterwards."""
        given, size = (ctypes.c_uint64 * len(words))(*words), ctypes.c_uint64(8 * len(words))
        extra = (ctypes.c_uint64 * 5)(1, ctypes.addressof(given), 2, ctypes.addressof(size), 0)
        launch = LAUNCH(self.driver.launch_address)
        result = launch(function.handle, blocks, 1, 1, block, 1, 1, 0, self.stream, None, ctypes.addressof(extra))
        given[:] = [0] * len(words)
        return result

    def close(self):
        """Give the stream back."""
        for event in list(self.driver._events):
            self.driver.event_free(event)
        for address in list(self.driver._blocks):
            self.driver.free(address, self.stream)
        self.driver.close(self.stream)


def add_text(words, packed=False):
    """A function that adds its other words to the number at the address that its first word is."""
    params = ", ".join(["ptr %p0", *(f"i64 %p{k}" for k in range(1, words))])
    lines = [f'define void @add({params}) "threads"="any" {{', "entry:", "  %s0 = load i64, ptr %p0"]
    lines += [f"  %s{k} = add i64 %s{k - 1}, %p{k}" for k in range(1, words)]
    return "\n".join([*lines, f"  store i64 %s{words - 1}, ptr %p0", "  ret void", "}", ""])


@pytest.fixture(scope="session")
def has_device():
    need_vulkan()


@pytest.fixture
def heap_tapes(monkeypatch):
    keep_tapes_in_heap(monkeypatch)


@pytest.fixture
def rig(has_device):
    made = Rig()
    yield made
    made.close()


@pytest.fixture
def start(has_device):
    """Makes programs on the device."""
    yield lambda **options: qd.init(arch=qd.vulkan, device=NAME, **options)
    qd.reset()
