"""Compiles and drives the stand-in for Objective-C's run time and Metal (``metal.c``), which the true driver then sends its messages to."""

import ctypes
import subprocess
from collections import Counter, namedtuple
from pathlib import Path

from qdrun.compiler.runtime.metal.objc import Objc

GIB = 1 << 30
KINDS = (
    "class string array error device descriptor options heap buffer queue commands encoder fence library function pipeline"
).split()


class Launch(ctypes.Structure):
    """A launch: ``words`` are what the kernel gets, ``bytes`` how many of them there are."""

    _fields_ = (
        ("name", ctypes.c_char * 120),
        ("source", ctypes.c_uint64),
        ("source_bytes", ctypes.c_uint64),
        *((name, ctypes.c_uint32) for name in ("blocks", "threads", "shared", "bytes")),
        ("words", ctypes.c_uint64 * 4096),
    )


Live = namedtuple("Live", "heap_bytes objects launches waits")
RUN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Launch))


class StandIn:
    """The library of this process."""

    def __init__(self, path):
        self.library = ctypes.CDLL(str(path))
        self.library.standin_live.restype = ctypes.c_uint64
        self.objc = Objc(ctypes.PyDLL(str(path)), ctypes.PyDLL(str(path)))
        self._keep = None

    def setup(self, devices=1, total=GIB, longest=GIB, family=8, unified=True, threads=1024):
        """The machine has so many GPUs of a family, with so many bytes."""
        size = ctypes.c_uint64
        self.library.standin_setup(devices, size(total), size(longest), family, int(unified), size(threads))
        self.library.standin_sweep()
        self.run(None)

    def forget(self, gpus):
        """Give back what belongs to GPUs as long as the process lives."""
        for gpu in gpus:
            gpu.release()

    def reset(self):
        """Take what is left of heaps, queues and fences away."""
        self.library.standin_reset()

    def run(self, function):
        """Kernels are done by ``function(launch)``, which gives an MTLCommandBufferError. None: those that fill and copy do that, others
        nothing.
        """
        self._keep = RUN(function) if function else ctypes.cast(None, RUN)
        self.library.standin_run(self._keep)

    def fail(self, name, code=0, text="", error=True, stays=False):
        """The next message of this name gives nil, with an NSError if it can."""
        self.library.standin_fail(name.encode(), code, text.encode(), int(error), int(stays))

    def fail_work(self, code, text="", stays=False):
        """The next command buffer ends with this error."""
        self.library.standin_fail_work(code, text.encode(), int(stays))

    def others(self, nbytes):
        """Other processes hold so many bytes."""
        self.library.standin_others(ctypes.c_uint64(nbytes))

    def _texts(self, function, count, width):
        raw = ctypes.create_string_buffer(count * width)
        n = function(raw)
        return [raw.raw[k * width : (k + 1) * width].split(b"\0")[0].decode() for k in range(n)]

    def faults(self):
        """What real Metal would not have told, since the last time."""
        return self._texts(self.library.standin_faults, 64, 200)

    def calls(self, *names):
        """The messages since the last time, of these names if any are given."""
        found = self._texts(self.library.standin_calls, 65536, 64)
        return [c for c in found if not names or c in names]

    def last(self):
        """The last kernel that ran."""
        out = Launch()
        self.library.standin_last(ctypes.byref(out))
        return out

    def ranges(self):
        """Begin and bytes of each live buffer, as kernels see it."""
        raw = (ctypes.c_uint64 * 8192)()
        n = self.library.standin_ranges(raw)
        return [(raw[2 * k], raw[2 * k + 1]) for k in range(n)]

    def live(self):
        """What there is now, the kernels that have run, and the waits."""
        counts, launches, waits = (ctypes.c_uint64 * len(KINDS))(), ctypes.c_uint64(), ctypes.c_uint64()
        nbytes = self.library.standin_live(counts, ctypes.byref(launches), ctypes.byref(waits))
        return Live(nbytes, Counter(dict(zip(KINDS, counts))), launches.value, waits.value)


def load(folder: Path) -> StandIn:
    """Compile the library."""
    path = folder / "metal.so"
    source = Path(__file__).with_name("metal.c")
    command = ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", path, source]
    subprocess.run(command, check=True, timeout=120)
    return StandIn(path)
