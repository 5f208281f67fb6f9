"""The recorder of a device: its machine code, linked to the driver's functions."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ....codegen.builder import NativeModule
from ... import jit
from ...cache import load_cached
from .command_ir import EXPORTS

_WORD, _INT, _POINTER = ctypes.c_uint64, ctypes.c_uint32, ctypes.c_void_p
SERVE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, _POINTER, _POINTER, _INT, _INT)

Call = Callable[..., int]


@dataclass(frozen=True, slots=True)
class RecorderLibrary:
    """The functions, which keep the interpreter's lock, and the addresses of those that kernels call. All but ``pending`` return 0 or the
    code of a failure.

    Attributes:
        fill: a stream, a buffer, offset and bytes in it, the word.
        copy: a stream, a buffer and offset to read, a buffer and offset to write, bytes.
        update: a stream, a buffer, offset and bytes in it, the address of at most 64 KiB.
        stamp: a stream, a query pool, the number of a query.
        execute: a stream, a secondary command buffer, how many commands it counts as.
        submit: a stream.
        pending: a stream: the value of its semaphore when all that is in it has run.
        exchange: a stream, the address of ``SAVED`` words.
        room: a stream, the address of room for words on the host, and on the device.
    """

    launch_address: int
    memset_address: int
    launch: Call
    memset: Call
    fill: Call
    copy: Call
    update: Call
    stamp: Call
    execute: Call
    submit: Call
    pending: Call
    exchange: Call
    room: Call


_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "launch": (_POINTER, *[_INT] * 7, _POINTER, _POINTER, _POINTER),
    "memset": (_WORD, _INT, _WORD, _POINTER),
    "fill": (_POINTER, _WORD, _WORD, _WORD, _INT),
    "copy": (_POINTER, _WORD, _WORD, _WORD, _WORD, _WORD),
    "update": (_POINTER, _WORD, _WORD, _WORD, _POINTER),
    "stamp": (_POINTER, _WORD, _INT),
    "execute": (_POINTER, _WORD, _WORD),
    "submit": (_POINTER,),
    "pending": (_POINTER,),
    "exchange": (_POINTER, _POINTER),
    "room": (_POINTER, _WORD, _WORD),
}


def make_recorder(address_of: Callable[[str], int], serve: Any) -> RecorderLibrary:
    """The recorder of a device. Its code is never unloaded: kernels call it until the process ends.

    Args:
        address_of: of a function of the driver.
        serve: a ``SERVE`` that lives as long as the process.
    """
    wait = ctypes.WinDLL("kernel32").SwitchToThread if os.name == "nt" else jit.libc().sched_yield
    own = {name: ctypes.cast(f, ctypes.c_void_p).value or 0 for name, f in (("qd_serve", serve), ("qd_yield", wait))}
    made = NativeModule(EXPORTS)
    imports = {name: own[name] if name in own else address_of(name) for name in made.imports}
    code = load_cached(made.text, "recorder", list(made.exports), imports, opt_level=1)[0]
    code.make_immortal()
    calls: dict[str, Any] = {}
    for name, arguments in _ARGUMENTS.items():
        result = ctypes.c_uint64 if name == "pending" else ctypes.c_int
        calls[name] = ctypes.PYFUNCTYPE(result, *arguments)(code.addresses[f"qd_{name}"])
    return RecorderLibrary(code.addresses["qd_launch"], code.addresses["qd_memset"], **calls)
