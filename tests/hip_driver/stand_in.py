"""Compiles and drives the stand-in for ROCm's library (``libamdhip64.c``), which the true hip-python then loads."""

import ctypes
import os
import subprocess
from collections import namedtuple
from pathlib import Path

GIB = 1 << 30
UUIDS = ("00000000000012ab", "00000000000012cd", "", "")
NAME_AT, UUID_AT, ARCH_AT = 0, 256, 1160  # in hipDeviceProp_t, whose texts hip-python does not let us write


class RawCall(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char * 40), ("args", ctypes.c_uint64 * 6))


class Launch(ctypes.Structure):
    """A launch: ``words`` are its arguments, ``bytes`` how many of them there are."""

    _fields_ = (
        ("name", ctypes.c_char * 120),
        ("image", ctypes.c_uint64),
        ("image_bytes", ctypes.c_uint64),
        *((name, ctypes.c_uint32) for name in ("blocks", "threads", "shared", "bytes")),
        ("words", ctypes.c_uint64 * 512),
    )


Call = namedtuple("Call", "name args")
Live = namedtuple("Live", "device_bytes host_blocks modules streams launches")
RUN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Launch))


class StandIn:
    """The library of this process."""

    def __init__(self, path):
        self.library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        for name in ("last", "live", "block"):
            getattr(self.library, f"standin_{name}").restype = ctypes.c_uint64
        self._keep = None

    def setup(self, devices=1, total=GIB, pools=True, hip=71_500_000, arch="gfx942:sramecc+:xnack-"):
        """The machine has so many devices of so many bytes."""
        from hip import hip as bindings

        self.library.standin_forget()
        self.library.standin_setup(devices, ctypes.c_uint64(total), int(pools), hip)
        for k in range(max(devices, 1)):
            row = bindings.hipDeviceProp_t()
            row.totalGlobalMem, row.multiProcessorCount, row.maxThreadsPerMultiProcessor = total, 4, 2048
            data = bytearray(ctypes.string_at(int(row.as_c_void_p().value), row.c_sizeof()))
            for at, text in ((NAME_AT, b"AMD Test Card"), (UUID_AT, UUIDS[k].encode() or b"XX"), (ARCH_AT, arch.encode())):
                data[at : at + len(text) + 1] = text + b"\0"
            self.library.standin_properties(k, bytes(data), ctypes.c_uint64(len(data)))
        self.heal()
        self.others(0)
        self.run(None)
        self.calls()

    def run(self, function):
        """Kernels are done by ``function(launch)``, which gives a hipError_t; None: they do nothing."""
        self._keep = RUN(function) if function else ctypes.cast(None, RUN)
        self.library.standin_run(self._keep)

    def fail(self, name, code, stays=False):
        """The next call of this name fails; with ``stays`` every later call does."""
        self.library.standin_fail(name.encode(), code, int(stays))

    def heal(self):
        self.library.standin_heal()

    def others(self, nbytes):
        """Other processes hold so many bytes of the device."""
        self.library.standin_others(ctypes.c_uint64(nbytes))

    def calls(self, *names):
        """The calls since the last time, of these names if any are given."""
        raw = (RawCall * 65536)()
        count = self.library.standin_calls(raw)
        found = [Call(c.name.decode(), tuple(c.args)) for c in raw[:count]]
        return [c for c in found if not names or c.name in names]

    def block(self, address):
        """The address and the bytes of the live block that holds an address; bytes are 0 if none does."""
        base = ctypes.c_uint64()
        nbytes = self.library.standin_block(ctypes.c_uint64(address), ctypes.byref(base))
        return base.value, nbytes

    def last(self):
        """The last kernel that ran."""
        out = Launch()
        self.library.standin_last(ctypes.byref(out))
        return out

    def live(self):
        """What is allocated now, and the kernels that have run."""
        out = [ctypes.c_uint64() for _ in range(4)]
        launches = self.library.standin_live(*map(ctypes.byref, out))
        return Live(*(x.value for x in out), launches)


def load(folder: Path) -> StandIn:
    """Compile the library, and have hip-python find it: where it looks first, and by its name if it has looked before."""
    (folder / "lib").mkdir()
    path = folder / "lib" / "libamdhip64.so"
    source = Path(__file__).with_name("libamdhip64.c")
    command = ["cc", "-shared", "-fPIC", "-O0", "-Wall", "-Werror", "-Wl,-soname,libamdhip64.so", "-o", path, source]
    subprocess.run(command, check=True, timeout=120)
    os.environ["ROCM_PATH"] = str(folder)
    return StandIn(path)
