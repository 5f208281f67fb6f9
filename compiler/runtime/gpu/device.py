"""A GPU as a program's device: its memory, its one stream, its code, its failures."""

from __future__ import annotations

import ctypes
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np

from ...codegen.abi import (
    CTX_FUNCTIONS,
    CTX_GPU,
    CTX_PRINT,
    CTX_SCRATCH,
    SCRATCH_PARTIALS,
    TABLE_PROCESSORS,
    TABLE_RESIDENT,
    TABLE_SCRATCH,
    TABLE_STREAM,
    Message,
    context_layout,
    messages,
)
from ...codegen.gpu.grid.entry import LAUNCH, MEMSET, TOGETHER
from ...codegen.gpu.grid.kernel import emit_grid
from ...codegen.gpu.grid.rows import tapes_of
from ...codegen.gpu.trials.module import emit_trial_grid
from ...codegen.llvm.report import prints
from ...errors import DeviceError, QdrunRuntimeError
from ...ir.nodes import Kernel
from ...ir.trials import TrialLayout, gpu_layout
from ...ir.walk import walk
from ..base import Allocation, BlockTooLarge, Device, mirrored
from ..compiled import Compiled, CompileOptions
from ..runs import Runs
from .code import GpuKernel, Source, load_code, reclaim, restore_code
from .constants import fills, repeated
from .driver import Driver, Texts
from .failing import Failing
from .find import find
from .graphs import GpuGraphs
from .memory import staging
from .memory.deferred_release import shared
from .memory.device_memory import Holdings, Usage, release_abandoned
from .memory.rows import RowCopies
from .prints import RING_WORDS, Ring

REDUCTIONS = 8
"""Reductions of one task that can use the whole grid: scratch has a word for each block and each of them. More take a smaller grid."""

_ENTRY = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)


class GpuDevice(GpuGraphs, Device):
    """One GPU as a program uses it: all work is in order in one stream, and only ``synchronize`` and ``download`` wait for it.

    Attributes:
        driver, info, stream: the driver, the facts about the device, and the program's stream.
        identity: key of the device in this process; loaded code belongs to one device.
        chip_key: key of chip and driver, which determine the machine code.
        table: the words that kernels' entries read of the device (``codegen.abi``).
    """

    native, on_host = True, False

    def __init__(self, driver: Driver, which: int | str | None = None, byte_limit: int | None = None) -> None:
        Device.__init__(self, byte_limit)
        kind = driver.kind
        self.arch, self.process_bytes = kind.arch, kind.process
        Failing.__init__(self, driver, find(driver, which))
        self.driver.open(self.info.index)
        self.name = self.info.name
        self.chip_key = f"{kind.name} {self.info.chip} {self.info.driver_version}"
        self.threads = self.info.sms * self.info.threads_per_sm
        release_abandoned()
        here = shared(self.identity, self.driver)
        self._pinned = here.pinned
        self._holdings = Holdings(self.driver, here, partial(reclaim, here))
        self.stream, self.memory, self._staging = self._holdings.stream, self._holdings.memory, self._holdings.staging
        self._row_copies = RowCopies(self.driver, self.memory)
        self._finalizer = weakref.finalize(self, self._holdings.abandon)  # for a program that is never closed
        self._finalizer.atexit = False  # then everything goes with the process
        self._target = kind.target(self.info)
        self.approximates, self.wide_states = bool(self._target.approximations), self._target.doubles
        self.tapes_on_chip = self._target.tapes_on_chip
        self.lanes, self.grid_barrier = self._target.lanes, self._target.grid_barrier is not None
        self.dlpack: tuple[int, int] | None = None if kind.dlpack is None else (kind.dlpack, self.info.index)
        self.link = self
        self._closed = False
        self._begin_pacing()
        self._begin_graphs()
        self._ring: Ring | None = None
        self._make_table()

    def trial_layout(self, count: int, lanes: int, extent: int) -> TrialLayout:
        """See ``gpu_layout``."""
        return gpu_layout(count, extent)

    def _make_table(self) -> None:
        partials = REDUCTIONS * (self.threads // self._target.block)
        nbytes = 8 * (SCRATCH_PARTIALS + partials)
        self.scratch_address = self._own(nbytes)
        self.table[TABLE_STREAM] = self.stream
        self.table[TABLE_PROCESSORS] = self.info.sms
        self.table[TABLE_RESIDENT] = self.info.threads_per_sm
        self.table[TABLE_SCRATCH] = nbytes

    def _own(self, nbytes: int) -> int:
        """Zeroed memory of the device's own, which no program's category counts."""
        with self._lock, self._failing():
            address = self.memory.allocate(nbytes)
            self.driver.memset(address, 0, nbytes // 4, 4, self.stream)
        return address

    # ---- memory
    def _allocate(self, nbytes: int, category: str) -> Allocation:
        self._alive()
        self._recordable(f"{category} needs {nbytes:,} bytes", "run the function once before it is captured")
        if 0 < self.info.most_bytes < nbytes:
            most = f"{self.info.most_bytes:,} bytes ({self.info.most_bytes_name})"
            raise BlockTooLarge(f"one block on {self.name} has at most {most}")
        with self._failing():
            address = self.memory.allocate(nbytes)
            width = 4 if nbytes % 4 == 0 else 1
            self.driver.memset(address, 0, nbytes // width, width, self.stream)
        return mirrored(address, nbytes, category, self)

    def host_words(self, n: int, category: str) -> Allocation:
        """``n`` zeroed 8-byte words of pinned host memory, which device code has at ``Allocation.device_ptr``.

        Raises:
            OutOfMemory: the program's limit is too small.
        """
        return self._provide(8 * n, category, self._pin)

    def _pin(self, nbytes: int, category: str) -> Allocation:
        self._alive()
        self._recordable(f"{category} needs {nbytes:,} bytes", "run the function once before it is captured")
        with self._failing():
            address = self._pinned.allocate(nbytes, self.stream)
        view = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
        view.fill(0)
        return Allocation(address, nbytes, category, view, shift=self.driver.device_address(address) - address)

    def _free(self, allocation: Allocation) -> None:
        if self._pinned.owns(allocation.ptr):
            self._pinned.free(allocation.ptr)
        elif self._capturing:
            self._postponed.append(allocation.ptr)
        elif self._dead is None:
            with self._failing():
                self.memory.free(allocation.ptr)

    def _refusal(self, nbytes: int, category: str, why: str) -> str:
        text = super()._refusal(nbytes, category, why)
        if not why.startswith("the limit") and self._dead is None:
            free, total = self.driver.memory_info()
            text += f": {free:,} of {total:,} bytes are free, {self.memory.reserved:,} are reserved by this program"
            if self.info.most_bytes:
                text += f", {self.info.most_bytes_name} is {self.info.most_bytes:,} bytes"
        return text

    def occupied(self) -> Usage:
        """Bytes that the device has allocated, for this program and for all."""
        self._alive()
        with self._failing():
            free, total = self.driver.memory_info()
            reserved = self.driver.pool_bytes()[1]
        pinned = self._pinned.reserved + self._staging.nbytes
        return Usage(self.used_bytes, max(reserved, self.memory.reserved), pinned, free, total)

    def usage(self) -> dict[str, int]:
        """See ``Device``; ``staging``: pinned memory of the host for large copies, which no limit counts."""
        held = self._staging.nbytes
        return super().usage() | ({"staging": held} if held else {})

    # ---- copies: what mirrors ask for (``runtime.mirror.Link``)
    @property
    def lock(self) -> Any:
        """Reentrant; held by allocations and copies."""
        return self._lock

    def download(self, to: int, source: int, nbytes: int) -> None:
        """Device to host, after everything that is in the stream; it has ended on return."""
        self._alive()
        self._recordable(
            "the host reads memory of the device, which launches that are not run yet may write",
            "read after the graph was launched",
        )
        with self._lock, self._failing():
            large = nbytes >= staging.THRESHOLD and not self.driver.is_pinned(to)
            if nbytes and not (large and self._staging.download(to, source, nbytes)):
                self.driver.download(to, source, nbytes, self.stream)

    def upload(self, to: int, source: int, nbytes: int) -> None:
        """Host to device, in the order of the stream; the source may change on return."""
        self._alive()
        with self._lock:
            if self._capturing:
                self._upload_constants(to, source, nbytes)
                return
            with self._failing():
                if nbytes:
                    self._upload(to, source, nbytes)

    def _upload(self, to: int, source: int, nbytes: int) -> None:
        large = nbytes >= staging.THRESHOLD
        if not self.driver.is_pinned(source):
            if not (large and self._staging.upload(to, source, nbytes)):
                self.driver.upload(to, source, nbytes, self.stream)
        elif large:
            self.driver.upload(to, source, nbytes, self.stream)
            self.driver.synchronize(self.stream)  # the device reads such memory when the copy's turn comes
        else:
            now = np.frombuffer(ctypes.string_at(source, nbytes), np.uint8)
            self.driver.upload(to, now.ctypes.data, nbytes, self.stream)

    def _upload_constants(self, to: int, source: int, nbytes: int) -> None:
        data = np.frombuffer(ctypes.string_at(source, nbytes), np.uint8)
        found = fills(to, data) if nbytes else []
        rows = repeated(to, data) if found is None and self.trials is None else []
        if found is None and not rows:
            self._recordable(f"the host writes {nbytes:,} bytes of many values to the device", "write before, or in a kernel")
        for at, word, count, width in found or ():
            self.memset(at, word, count, width)
        with self._failing():
            for row in rows:
                self.driver.memset_rows(*row, self.stream)

    def memset(self, to: int, word: int, count: int, width: int) -> None:
        """``count`` words of 1, 2 or 4 bytes, in the order of the stream."""
        self._alive()
        self._refuse_writes()
        with self._failing():
            if count:
                self.driver.memset(to, word, count, width, self.stream)

    def copy(self, to: int, source: int, nbytes: int) -> None:
        """Device to device, in the order of the stream."""
        self._alive()
        self._refuse_writes()
        with self._failing():
            if nbytes:
                self.driver.copy(to, source, nbytes, self.stream)

    def _refuse_writes(self) -> None:
        """Refuse a write in the recorded launches of a batch that is not the same for every trial."""
        if self.trials is not None:
            self._recordable("the host writes to some trials, or to what all of them share", "write before, or in a kernel")

    def download_rows(self, to: int, parts: Sequence[tuple[int, Runs]]) -> None:
        """See ``mirror.Link``."""
        self._alive()
        self._recordable(
            "the host reads memory of the device, which launches that are not run yet may write",
            "read after the graph was launched",
        )
        with self._lock, self._failing():
            self._row_copies.download(to, parts, self._download)

    def _download(self, to: int, source: int, nbytes: int) -> None:
        self.driver.download(to, source, nbytes, self.stream)

    def upload_rows(self, to: int, source: int, runs: Runs) -> None:
        """See ``mirror.Link``."""
        self._alive()
        self._recordable("the host writes many values to the device", "write them before, or in a kernel")
        with self._lock, self._failing():
            self._row_copies.upload(to, source, runs, self._upload)

    def fill_rows(self, to: int, row: bytes, runs: Runs) -> bool:
        """See ``mirror.Link``."""
        self._alive()
        self._refuse_writes()
        found = fills(to, np.frombuffer(row, np.uint8))
        if found is None:
            return False
        with self._failing():
            for at, word, count, width in found:
                self.driver.memset_rows(at, runs.step, word, count, width, runs.rows, self.stream)
        return True

    def join(self) -> None:
        """Memory is shared with another library: the stream is in order with the default one from now on. Until then it is not, as what
        the default stream does waits for all that are. In a graph: once that is recorded, as nothing runs before.
        """
        if self._holdings.ordered:
            return
        self._alive()
        with self.exclusive(), self._lock:
            if self._capturing:
                self._joins = True
            elif not self._holdings.ordered:
                with self._failing():
                    self._holdings.join()
                self.stream = self._holdings.stream
                self.table[TABLE_STREAM] = self.stream
                self._waited, self._joins = self.launches(), False

    def settle(self, stream: int = 0) -> None:
        """Wait for the stream, for what libraries that we share memory with have put into the default one, and for one of their own. In a
        graph: whenever it is launched.
        """
        self._alive()
        if self._capturing:
            self._foreign = True
            return
        with self._failing():
            self.driver.synchronize(self.stream)
            if self._holdings.ordered:
                self.driver.synchronize(0)
            if stream:
                self.driver.synchronize(stream)

    def arrived(self) -> None:
        """The host has waited: raise what launches have reported."""
        if self.client is not None:
            self.client.waited()

    def throttle(self) -> None:
        """Wait until the stream is not too far behind.

        Raises:
            DeviceError: a kernel has failed; names the candidates.
        """
        if self.capturing or self._closed:  # nothing waits in a graph
            return
        self._alive()
        with self._failing():
            self._mark()

    def synchronize(self) -> None:
        """Wait for the stream; write what kernels have printed; raise what they reported.

        Raises:
            DeviceError: a kernel has failed; names the candidates.
        """
        self._alive()
        self._recordable("the host waits for the device", "wait after the graph was launched")
        with self._lock:  # another thread may record
            pass
        release_abandoned()
        releases, launched = self._pinned.waiting(self.stream), self.launches()
        with self._failing():
            self.driver.synchronize(self.stream)
        self._waited = launched
        self._pinned.settled(releases)
        if self._ring is not None:
            with self.exclusive():
                self._ring.drain()
        self.arrived()

    # ---- code
    def compile(self, kernel: Kernel, options: CompileOptions) -> GpuKernel:
        """A verified kernel, which is loaded with its first context. See ``load_code`` for what it raises."""
        return self._compile(kernel, options, frozenset())

    def variant(self, compiled: Compiled, far: frozenset[str], source: Source | None = None) -> GpuKernel:
        """The same kernel with some tapes in the heap; its context fits, but for the words of ``fill_context``.

        Args:
            compiled: the result of ``compile`` or ``restore``.
            far: the names of these tapes, see ``codegen.gpu.grid.rows.name_of``. Empty, or no tape is on chip: ``compiled`` itself.
            source: returns the kernel and the options of its compilation, for a restored one.
        """
        assert isinstance(compiled, GpuKernel)
        if not far or not self.tapes_on_chip:
            return compiled
        known = compiled.gpu.variants.get(far)
        if known is None:
            read = compiled.gpu.source or source
            if read is None:
                raise QdrunRuntimeError(f"kernel `{compiled.name}` was restored, and its IR is not at hand for a variant of it")
            kernel, options = read()
            if self.trials is not None:
                options = replace(options, trials=self.trials.width)
            known = compiled.gpu.variants[far] = self._compile(kernel, options, far)
        # Code is shared by kernels of the same text; lines and names are each kernel's own.
        return replace(compiled, address=known.address, code=known.code, function_names=known.function_names)

    def keep_source(self, compiled: Compiled, source: Source) -> None:
        """The source of a compiled kernel, for walks of recorded launches; see ``variant``."""
        assert isinstance(compiled, GpuKernel)
        if compiled.gpu.source is None:
            compiled.gpu.source = source

    def _compile(self, kernel: Kernel, options: CompileOptions, far: frozenset[str]) -> GpuKernel:
        self._alive()
        self._recordable(f"kernel `{kernel.name}` is compiled", "run the function once before it is captured")
        begin = time.perf_counter()
        target = replace(self._target, fast_math=options.fast_math and self.approximates, trials=options.trials)
        far = far if target.tapes_on_chip else tapes_of(kernel)
        grid = (emit_trial_grid if options.trials else emit_grid)(kernel, target, options.plain, far)
        texts = Texts(kernel.name, grid.device, grid.host, grid.entry, tuple(grid.functions), grid.features)
        with self._failing():
            code, cached = load_code(texts, self.driver, self.info, self._imports(), options, self.identity)
        if any(t.stacks for t in kernel.tasks) or options.trials:
            code.source, code.far = (lambda: (kernel, options)), far
        return GpuKernel(
            kernel.name,
            code.addresses[grid.entry],
            context_layout(kernel),
            messages(kernel),
            [t.name for t in kernel.tasks for s in walk(t.body) if isinstance(s, Message)],
            prints(kernel),
            1,
            time.perf_counter() - begin,
            cached,
            code,
            texts.functions,
        )

    def restore(self, compiled: Compiled, key: str, exports: list[str]) -> GpuKernel | None:
        """A kernel that another process has compiled for the same chip and driver, with its code; None when that is not kept any more."""
        self._alive()
        texts = Texts(compiled.name, "", "", exports[0], compiled.function_names, "")
        with self._failing():
            code = restore_code(key, texts, self.driver, self._imports(), self.identity)
        facts = {f.name: getattr(compiled, f.name) for f in fields(compiled)}
        return None if code is None else GpuKernel(**facts | {"address": code.addresses[exports[0]], "code": code})

    def _imports(self) -> dict[str, int]:
        driver = self.driver
        return {LAUNCH: driver.launch_address, MEMSET: driver.memset_address, TOGETHER: driver.together_address}

    def entry(self, compiled: Compiled) -> Callable[[int], None]:
        """The host's entry as a function: it returns when the launches are in the stream, and keeps the interpreter's lock."""
        return _ENTRY(compiled.address)

    def fill_context(self, words: np.ndarray, compiled: Compiled) -> None:
        """Write the words of a launch context that belong to the device, and load the code.

        Args:
            words: the context, unsigned 8-byte words of host memory that stay where they are.
            compiled: the kernel that the context is for.

        Raises:
            DeviceError: the driver refuses the code; names the kernel.
            OutOfMemory: the device has no room for it.
        """
        assert isinstance(compiled, GpuKernel)
        with self._failing():
            compiled.gpu.load()
        if compiled.prints and self._ring is None:
            address = self._own(8 * (RING_WORDS + 4))
            self._ring = Ring(address, self._read_words, self._write_words, RING_WORDS)
        words[CTX_GPU] = self.table.ctypes.data
        words[CTX_FUNCTIONS] = compiled.gpu.handles
        words[CTX_PRINT] = self._ring.address if compiled.prints and self._ring else 0
        words[CTX_SCRATCH] = self.scratch_address
        self._enter_pace(words, compiled.gpu)
        self._kernels[words.ctypes.data] = compiled.name

    def _read_words(self, address: int, words: np.ndarray) -> None:
        self.download(words.ctypes.data, address, words.nbytes)

    def _write_words(self, address: int, words: np.ndarray) -> None:
        self.upload(address, words.ctypes.data, words.nbytes)

    # ---- the end
    def forked(self) -> None:
        """In a forked child, which cannot use the parent's device."""
        self._finalizer.detach()
        self._dead = DeviceError(
            "a GPU cannot be used by a forked process\n  do: start processes with multiprocessing's `spawn`"
        )

    def close(self) -> None:
        """Wait for the stream and free everything. Nothing is raised."""
        if self._closed:
            return
        self._closed = True
        try:
            self.capturing = False
            if self._dead is None:
                self.driver.synchronize(self.stream)
                for handle in list(self._graphs):
                    self.drop_graph(handle)
                if self._ring is not None:
                    self._ring.drain()
            super().close()
            if self._finalizer.detach() is not None:
                if self._dead is None:
                    with self._marking:  # in which another thread may wait for a mark
                        self._holdings.release()
                else:
                    self._holdings.shared.leave()
        except DeviceError as e:
            self._dead = self._dead or e
            super().close()
