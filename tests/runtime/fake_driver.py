"""A driver with memory of the host and nothing that runs: it notes calls, and fails when it is told to."""

import ctypes
import itertools
from dataclasses import replace

import numpy as np

from qdrun.compiler.runtime.cuda.kind import CUDA
from qdrun.compiler.runtime.cuda.results import device_error as failure
from qdrun.compiler.runtime.gpu.driver import DeviceInfo, LoadedFunction, text_image
from qdrun.tests.devices.processor.hardware import emulated_target

INFOS = (
    DeviceInfo(
        0,
        "Test GPU",
        "GPU-0aaa0000-0000-0000-0000-000000000000",
        "0000:3b:00.0",
        "sm_90",
        4,
        256,
        1 << 30,
        13000,
    ),
    DeviceInfo(
        1,
        "Test GPU",
        "GPU-0bbb0000-0000-0000-0000-000000000000",
        "0001:af:00.0",
        "sm_120",
        4,
        256,
        1 << 30,
        13000,
    ),
)


FAKE = replace(CUDA, name="fake", target=lambda info: emulated_target(), dlpack=None, stays=False)


class FakeDriver:
    """``limit``: bytes that can be allocated; ``kept``: bytes that were freed and only ``trim`` makes room of."""

    kind = FAKE
    launch_address = memset_address = together_address = 0

    def __init__(self, limit=1 << 30, infos=INFOS):
        self.limit, self.kept, self.infos = limit, 0, infos
        self.calls, self.failures = [], {}
        self.blocks = {}
        self._numbers = itertools.count(1)

    def _note(self, call, *args):
        self.calls.append((call, *args))
        code = self.failures.pop(call, 0)
        if code:
            raise failure(code, f"{call} failed")

    def names(self):
        return [c[0] for c in self.calls]

    def device_count(self):
        return len(self.infos)

    def describe(self, index):
        return self.infos[index]

    def open(self, index):
        self._note("open", index)

    def explain(self):
        return ""

    def stream(self, ordered):
        return next(self._numbers)

    def stream_free(self, stream):
        self._note("stream_free", stream)

    def close(self, stream):
        self._note("close", stream)

    def synchronize(self, stream):
        self._note("synchronize", stream)

    def allocate(self, nbytes, stream):
        self._note("allocate", nbytes)
        if nbytes + self.kept + sum(b.size for b in self.blocks.values()) > self.limit:
            raise failure(2, f"allocating {nbytes:,} bytes failed")
        raw = np.full(nbytes + 256, 0xFF, np.uint8)
        skip = -raw.ctypes.data % 256
        block = self.blocks[raw.ctypes.data + skip] = raw[skip : skip + nbytes]
        return block.ctypes.data

    def free(self, ptr, stream):
        self._note("free", ptr)
        self.kept += self.blocks.pop(ptr).size

    def trim(self):
        self._note("trim")
        self.kept = 0

    def pool_bytes(self):
        used = sum(b.size for b in self.blocks.values())
        return used, used + self.kept

    def memory_info(self):
        return self.limit - self.pool_bytes()[1], self.limit

    def host_allocate(self, nbytes):
        self._note("host_allocate", nbytes)
        return self.allocate(nbytes, 0)

    def device_address(self, address):
        return address

    def host_free(self, ptr):
        self._note("host_free", ptr)

    def is_pinned(self, address):
        return False

    def memset(self, ptr, word, count, width, stream):
        self._note("memset", ptr, word, count, width)
        ctypes.memmove(ptr, word.to_bytes(width, "little") * count, width * count)

    def upload(self, dst, src_host, nbytes, stream):
        self._note("upload", nbytes)
        ctypes.memmove(dst, src_host, nbytes)

    def download(self, dst_host, src, nbytes, stream):
        self._note("download", nbytes)
        ctypes.memmove(dst_host, src, nbytes)

    def copy(self, dst, src, nbytes, stream):
        self._note("copy", nbytes)
        ctypes.memmove(dst, src, nbytes)

    def copy_rows(self, dst, dst_step, src, src_step, nbytes, rows, stream):
        for k in range(rows):
            self.copy(dst + k * dst_step, src + k * src_step, nbytes, stream)

    def memset_rows(self, ptr, step, word, count, width, rows, stream):
        for k in range(rows):
            self.memset(ptr + k * step, word, count, width, stream)

    def build(self, texts, info, keep):
        return text_image(texts, keep)

    def assemble(self, text, name):
        self._note("assemble", text)
        return b"\x7fELF" + text

    def load_module(self, image, name):
        self._note("load_module", image)
        return next(self._numbers)

    def function(self, module, name):
        self._note("function", name)
        return LoadedFunction(next(self._numbers), 2048 if name.endswith("1") else 0, 40, 0)

    def unload(self, module):
        self._note("unload", module)

    def capture_begin(self, stream):
        self._note("capture_begin", stream)

    def capture_end(self, stream):
        self._note("capture_end", stream)
        return next(self._numbers)

    def graph_free(self, graph):
        self._note("graph_free", graph)
