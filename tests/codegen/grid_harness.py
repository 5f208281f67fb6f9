"""Runs the code made for a GPU on the processor: blocks of one thread, launched in a random order by a fake driver."""

from __future__ import annotations

import ctypes as C
import random

import numpy as np
from codegen_harness import native_machine

from qdrun.compiler.codegen import abi
from qdrun.compiler.codegen.gpu.grid.kernel import emit_grid
from qdrun.compiler.ir.verify import verify_kernel
from qdrun.compiler.runtime import cache
from qdrun.tests.devices.processor.hardware import REG_BLOCK, REG_BLOCKS, REG_SHARED, REG_THREADS, REG_WORDS, emulated_target

_LAUNCH = C.CFUNCTYPE(C.c_int, C.c_void_p, *[C.c_uint] * 7, C.c_void_p, C.c_void_p, C.POINTER(C.c_uint64))
_MEMSET = C.CFUNCTYPE(C.c_int, C.c_void_p, C.c_uint, C.c_size_t, C.c_void_p)
_FUNCTION = C.CFUNCTYPE(None, C.c_void_p, C.c_void_p)
SCRATCH_WORDS, RING_WORDS = 512, 4096
__all__ = ["GridCompiled", "native_machine"]


class FakeDriver:
    """``qd_launch`` and ``qd_memset`` that act at once. ``refuse``: the code that the next launches return."""

    def __init__(self) -> None:
        self.launches: list[tuple[int, int, int]] = []  # blocks, threads of a block, bytes of parameters
        self.refuse, self.random = 0, random.Random(0)
        self.on_launch, self.on_memset = _LAUNCH(self._launch), _MEMSET(self._memset)
        self.imports = {
            "qd_launch": C.cast(self.on_launch, C.c_void_p).value or 0,
            "qd_memset": C.cast(self.on_memset, C.c_void_p).value or 0,
        }

    def _launch(self, function, gx, gy, gz, bx, by, bz, shared, stream, params, extra) -> int:
        if self.refuse:
            return self.refuse
        assert (gy, gz, by, bz) == (1, 1, 1, 1) and gx > 0 and not params and stream == 77
        data = b""
        if extra:
            assert extra[0] == 1 and extra[2] == 2 and extra[4] == 0
            size = C.c_uint64.from_address(extra[3]).value
            data = C.string_at(extra[1], size)
        words, on_chip = np.frombuffer(data, np.int64).copy(), np.zeros(shared + 8, np.uint8)
        self.launches.append((gx, bx, len(data)))
        if not function:
            return 0
        assert bx == 1
        self.run(function, gx, words, on_chip)
        return 0

    def run(self, function: int, blocks: int, words: np.ndarray, on_chip: np.ndarray) -> None:
        """Run the blocks of one thread, one after the other, in a random order."""
        order = list(range(blocks))
        self.random.shuffle(order)
        for block in order:
            on_chip[:] = 0xA5
            regs = np.zeros(REG_WORDS, np.int64)
            regs[REG_BLOCK], regs[REG_BLOCKS], regs[REG_THREADS], regs[REG_SHARED] = block, blocks, 1, on_chip.ctypes.data
            _FUNCTION(function)(regs.ctypes.data, words.ctypes.data)

    def _memset(self, at, value, count, stream) -> int:
        np.ctypeslib.as_array((C.c_uint32 * count).from_address(at))[:] = value
        return 0


class GridCompiled:
    """A kernel ready to run; the interface of ``codegen_harness.Compiled``. With another ``target``, its host's side alone runs.

    ``imports``: what the device's code calls.
    """

    def __init__(
        self, kernel, plain=frozenset(), processors=3, resident=2, opt_level=2, target=None, driver=None, imports=None
    ) -> None:
        verify_kernel(kernel)
        self.kernel, self.driver = kernel, driver or FakeDriver()
        self.code = code = emit_grid(kernel, target or emulated_target(), plain)
        addresses = dict.fromkeys(code.functions, 0)  # of another target: it is launched, and does not run
        if target is None or target.name == "emulated":
            self.device, _ = cache.load_cached(code.device, kernel.name, code.functions, imports or {}, opt_level)
            addresses = self.device.addresses
        self.host, _ = cache.load_cached(code.host, kernel.name, [code.entry], self.driver.imports, opt_level)
        self.entry = C.CFUNCTYPE(None, C.c_void_p)(self.host.addresses[code.entry])
        self.handles = np.array([addresses[n] for n in code.functions], np.int64)
        self.table = np.zeros(abi.TABLE_WORDS, np.int64)
        self.table[:5] = 77, processors, resident, 0, 8 * SCRATCH_WORDS
        self.layout = abi.context_layout(kernel)
        self.status = np.zeros(abi.STATUS_WORDS, np.int64)
        self.returned = np.zeros(max(1, len(kernel.returns)), np.int64)
        self.tmp = np.zeros(4096, np.int64)
        self.scratch = np.zeros(SCRATCH_WORDS, np.int64)
        self.ring = np.zeros(RING_WORDS, np.int64)
        self.ring[abi.RING_SIZE] = RING_WORDS - abi.RING_RECORDS

    def __call__(self, *args, fields=None, params=None, heap=None, seed=0):
        ctx = np.zeros(self.layout.words, np.int64)
        ctx[abi.CTX_STATUS] = ctx[abi.CTX_STATUS_DEVICE] = self.status.ctypes.data
        ctx[abi.CTX_GPU] = self.table.ctypes.data
        ctx[abi.CTX_TMP], ctx[abi.CTX_RET] = self.tmp.ctypes.data, self.returned.ctypes.data
        ctx[abi.CTX_FUNCTIONS], ctx[abi.CTX_PRINT] = self.handles.ctypes.data, self.ring.ctypes.data
        ctx[abi.CTX_SCRATCH], ctx[abi.CTX_SEED] = self.scratch.ctypes.data, np.uint64(seed).astype(np.int64)
        for number, plane in enumerate(abi.PLANES):
            if heap and plane in heap:
                ctx[abi.CTX_HEAP + number] = heap[plane].ctypes.data
        for key, word in self.layout.params.items():
            ctx[word] = (params or {})[key]
        for buffer, word in self.layout.buffers.items():
            ctx[word] = fields[buffer].ctypes.data
        words = [ctx.ctypes.data]
        for decl, value in zip(self.kernel.args, args):
            if decl.kind == "scalar":
                words.append(int.from_bytes(np.array(value, decl.dtype.numpy).tobytes().ljust(8, b"\0"), "little"))
            else:
                words += [value.ctypes.data, *value.shape[: decl.ndim]]
        packed = np.array(words, np.uint64)
        self.status[:] = 0
        self.driver.launches.clear()
        self.context = ctx
        self.entry(packed.ctypes.data)
        assert self.scratch[abi.SCRATCH_ARRIVED] == 0  # the last block of a reduction leaves it so
        return self.status

    def printed(self) -> list[tuple[int, list[int]]]:
        """Site numbers and values of the records in the ring."""
        out, at, records = [], 0, self.ring[abi.RING_RECORDS :]
        end = min(self.ring[abi.RING_USED], self.ring[abi.RING_SIZE])
        while at < end and records[at]:
            assert records[at] == self.context.ctypes.data
            n = int(records[at + abi.RECORD_COUNT])
            first = at + abi.RECORD_VALUES
            out.append((int(records[at + abi.RECORD_SITE]), records[first : first + n].tolist()))
            at = first + n
        return out
