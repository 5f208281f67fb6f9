"""The CPU device: memory from numpy, code from LLVM, loops on the thread pool."""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TextIO

from ...codegen.abi import Message, context_layout, messages
from ...codegen.llvm.kernel import emit_kernel, exports_of
from ...codegen.llvm.report import prints
from ...codegen.llvm.target import Target, Unsupported
from ...ir.nodes import Kernel, Print
from ...ir.threads import new_lock
from ...ir.trials import TrialLayout, group_width
from ...ir.walk import walk
from .. import jit
from ..base import Allocation, host_bytes
from ..cache import load_cached, load_known
from ..compiled import Compiled, CompileOptions
from ..status import OUTPUT, print_text
from .graphs import CpuGraphs
from .pool import ThreadPool, get_pool, parallel_for_addresses

_contexts: dict[int, tuple[Sequence[Print], TextIO | None, set[int]]] = {}
"""Live contexts by address: whose print statements a site number means, where they print, and which reports were printed."""
_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_PRINT = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.POINTER(ctypes.c_int64), ctypes.c_int64)


class CpuDevice(CpuGraphs):
    """The processor, with up to ``max_threads`` threads (all that are available when None)."""

    name, arch = "cpu", "cpu"

    def __init__(self, max_threads: int | None = None, byte_limit: int | None = None) -> None:
        super().__init__(byte_limit)
        self.pool: ThreadPool = get_pool(max_threads)
        self.threads = self.pool.workers
        self._begin_graphs()

    @property
    def pool_address(self) -> int:
        """The address of the thread pool's state."""
        return self.pool.address

    def trial_layout(self, count: int, lanes: int, extent: int) -> TrialLayout:
        """Groups of as many trials as a vector register holds numbers of 8 bytes, at most."""
        return TrialLayout(count, group_width(count, lanes, 8 if "+avx512f" in jit.host().features else 4))

    def _allocate(self, nbytes: int, category: str) -> Allocation:
        self._recordable(f"{category} needs {nbytes:,} bytes", "run the function once before it is captured")
        return host_bytes(nbytes, category)

    def _free(self, allocation: Allocation) -> None:
        """The bytes go with the last view of them."""

    def synchronize(self) -> None:
        self._recordable("Python waits for what was launched", "wait after the graph was launched")

    def compile(self, kernel: Kernel, options: CompileOptions) -> Compiled:
        """Machine code of a kernel, from this process, the disk cache, or LLVM.

        A kernel that cannot run several iterations side by side (it prints, say) is compiled with one lane.

        Raises:
            QdrunRuntimeError: LLVM refuses the code; names the kernel.
        """
        begin = time.perf_counter()
        lanes, exports = options.lanes, exports_of(kernel, bool(options.trials and kernel.tasks))
        facts = options.plain, options.ordered, options.rows, options.loops
        try:
            text = emit_kernel(kernel, self._target(lanes, options.trials, options.narrow), *facts)
        except Unsupported:
            if lanes == 1:
                raise
            lanes = 1
            text = emit_kernel(kernel, self._target(1, options.trials), *facts)
        code, cached = load_text(text, kernel.name, exports, options)
        return Compiled(
            kernel.name,
            code.addresses[exports[0]],
            context_layout(kernel),
            messages(kernel),
            [t.name for t in kernel.tasks for s in walk(t.body) if isinstance(s, Message)],
            prints(kernel),
            lanes,
            time.perf_counter() - begin,
            cached,
            code,
            chunk=code.addresses[exports[1]] if len(exports) > 1 else 0,
            narrow=options.narrow,
            ordered=bool(options.ordered),
        )

    def restore(self, compiled: Compiled, key: str, exports: list[str]) -> Compiled | None:
        code = load_known(key, compiled.name, exports, _imports())
        if code is None:
            return None
        address, chunk = (*(code.addresses[name] for name in exports), 0)[:2]
        return replace(compiled, address=address, chunk=chunk, code=code)

    def entry(self, compiled: Compiled) -> Callable[[int], None]:
        """The machine code as a function; other Python threads go on while it runs."""
        return _ENTRY(compiled.address)

    def _target(self, lanes: int, trials: int, narrow: frozenset[int] = frozenset()) -> Target:
        machine = jit.host()
        return Target("cpu", machine.triple, machine.cpu, machine.features, lanes, narrow, trials=trials)


def load_text(text: str, name: str, exports: list[str], options: CompileOptions) -> tuple[jit.LoadedCode, bool]:
    """A kernel module's code, and whether it came from this process or the disk instead of LLVM."""
    return load_cached(text, name, exports, _imports(), options.opt_level, options.offline_cache)


def _imports() -> dict[str, int]:
    return {**parallel_for_addresses(), "qd_print": ctypes.cast(_on_print, ctypes.c_void_p).value or 0}


def register_context(address: int, compiled: Compiled) -> None:
    """Make a context's print statements known. A program does this when it fills the context, before the first launch."""
    _contexts[address] = compiled.prints, OUTPUT.get(), set()


def unregister_context(address: int) -> None:
    """Forget a context, before its memory is freed."""
    _contexts.pop(address, None)


_print_lock = new_lock(sys.modules[__name__], "_print_lock")


@_PRINT
def _on_print(context: int, site: int, values: ctypes._Pointer[ctypes.c_int64], n: int) -> None:
    """Called by kernels, from any thread."""
    print_record(context, site, values[:n])


def print_record(context: int, site: int, values: Sequence[int]) -> None:
    """Write what a print statement of the kernel with this context printed.

    Args:
        context: the address of the launch context.
        site: the statement's position among those of the kernel.
        values: the 8 bytes of each value, as signed integers.
    """
    sites, output, reported = _contexts.get(context, ((), None, set()))
    if not 0 <= site < len(sites) or site in reported:
        return  # or the program was closed during its launch
    if sites[site].once:
        reported.add(site)
    text = print_text(sites[site], values)
    with _print_lock:
        (output or sys.stdout).write(text)
