"""The recorder of a device: its machine code, linked to the driver's functions."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ... import jit
from ...cache import load_cached
from ..results import NOT_PERMITTED, VALIDATION_FAILED
from . import words
from .command_ir import HOST, commands
from .launch_ir import LAUNCH
from .submit_ir import HEAD, SUBMIT

DRIVER = (
    *("vkBeginCommandBuffer", "vkEndCommandBuffer", "vkQueueSubmit", "vkGetSemaphoreCounterValue"),
    *("vkCmdBindPipeline", "vkCmdPushConstants", "vkCmdDispatch", "vkCmdPipelineBarrier", "vkCmdFillBuffer"),
    *("vkCmdCopyBuffer", "vkCmdUpdateBuffer", "vkCmdResetQueryPool", "vkCmdWriteTimestamp", "vkCmdExecuteCommands"),
)
"""The functions of the driver that the code calls."""

_WORD, _INT, _POINTER = ctypes.c_uint64, ctypes.c_uint32, ctypes.c_void_p
SERVE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, _POINTER, _POINTER, _INT, _INT)

Call = Callable[..., int]


@dataclass(frozen=True, slots=True)
class Recorder:
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


def text() -> str:
    """The module."""
    numbers = {name: value for name, value in vars(words).items() if name.isupper() and isinstance(value, int)}
    numbers |= {"NOT_PERMITTED": NOT_PERMITTED, "VALIDATION_FAILED": VALIDATION_FAILED}
    return re.sub(r"\$(\w+)", lambda m: str(numbers[m[1]]), "".join([HEAD, SUBMIT, LAUNCH, *commands(), HOST]))


def make_recorder(address_of: Callable[[str], int], serve: Any) -> Recorder:
    """The recorder of a device. Its code is never unloaded: kernels call it until the process ends.

    Args:
        address_of: of a function of the driver.
        serve: a ``SERVE`` that lives as long as the process.
    """
    wait = ctypes.WinDLL("kernel32").SwitchToThread if os.name == "nt" else jit.libc().sched_yield
    imports = {name: address_of(name) for name in DRIVER}
    imports |= {name: ctypes.cast(f, ctypes.c_void_p).value or 0 for name, f in (("qd_serve", serve), ("qd_yield", wait))}
    code = load_cached(text(), "recorder", [f"qd_{name}" for name in _ARGUMENTS], imports)[0]
    code.make_immortal()
    calls: dict[str, Any] = {}
    for name, arguments in _ARGUMENTS.items():
        result = ctypes.c_uint64 if name == "pending" else ctypes.c_int
        calls[name] = ctypes.PYFUNCTYPE(result, *arguments)(code.addresses[f"qd_{name}"])
    return Recorder(code.addresses["qd_launch"], code.addresses["qd_memset"], **calls)
