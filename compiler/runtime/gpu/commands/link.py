"""The recorder of a device: its machine code, linked to the API's functions."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ....codegen.builder import NativeFunction, NativeModule
from ... import jit
from ...cache import load_cached
from .record_ir import EXPORTS

SERVE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, *[ctypes.c_uint64] * 3)
"""``qd_serve``: what is asked for (``words.SERVE_..``), stream, row, arguments. Returns 0, or the code of a failure."""
_TYPES = {"ptr": ctypes.c_uint64, "i64": ctypes.c_uint64, "i32": ctypes.c_uint32}

Call = Callable[..., int]


@dataclass(frozen=True, slots=True)
class Recorder:
    """Functions of machine code; all but ``pending`` return 0 or the code of a failure. See ``record_ir`` for their arguments.

    Attributes:
        launch_address, memset_address: for kernels.
        copy_address: for logs.
        replay: lets other threads run Python meanwhile.
        own: functions of the encoder, by their names without ``qd_``.
    """

    launch_address: int
    memset_address: int
    copy_address: int
    put: Call
    replay: Call
    submit: Call
    done: Call
    pending: Call
    room: Call
    own: Mapping[str, Call]


def make_recorder(
    encoder: Sequence[NativeFunction], address_of: Callable[[str], int], serve: int, constants: Mapping[str, int] | None = None
) -> Recorder:
    """The recorder of a device. Its code is never unloaded: kernels call it until the process ends.

    Args:
        encoder: defines what ``record_ir`` declares, and functions of the encoder's own.
        address_of: of a function or an object that the encoder imports.
        serve: the address of a ``SERVE`` that lives as long as the process.
        constants: of the module.
    """
    wait = ctypes.WinDLL("kernel32").SwitchToThread if os.name == "nt" else jit.libc().sched_yield
    ours = {"qd_serve": serve, "qd_yield": ctypes.cast(wait, ctypes.c_void_p).value or 0}
    made = NativeModule((*EXPORTS, *encoder), constants)
    imports = {name: ours[name] if name in ours else address_of(name) for name in made.imports}
    code = load_cached(made.text, "recorder", list(made.exports), imports, opt_level=1)[0]
    code.make_immortal()

    def call(function: NativeFunction) -> Call:
        kind = ctypes.CFUNCTYPE if function.name == "qd_replay" else ctypes.PYFUNCTYPE
        return kind(_TYPES[function.result], *[_TYPES[t] for t in function.types])(code.addresses[function.name])

    calls = {x.name.removeprefix("qd_"): call(x) for x in EXPORTS}
    launch, memset, copy = (calls.pop(name) and code.addresses[f"qd_{name}"] for name in ("launch", "memset", "copy_run"))
    return Recorder(launch, memset, copy, **calls, own={x.name.removeprefix("qd_"): call(x) for x in encoder})
