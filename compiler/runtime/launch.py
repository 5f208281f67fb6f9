"""Launching a compiled kernel from Python: a native launcher of a few dozen nanoseconds, and a plain one that always works.

``make_fast`` gives a builtin callable that checks and packs the arguments in native code (``launch_ir``) and hands every case that it
does not know to a Python fallback. It reads objects of the interpreter and of numpy by offset, so ``native_launcher`` first checks
those offsets on objects with known contents; where one differs there is no native launcher. ``PackedLauncher`` needs nothing but ctypes.
"""

from __future__ import annotations

import contextvars
import ctypes
import functools
import math
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..codegen.abi import CTX_STATUS, arg_words
from ..errors import QdrunRuntimeError
from ..ir.nodes import ArgDecl
from ..ir.threads import new_lock
from ..ir.types import DType, f16, f32, f64, u1, u64
from . import jit, launch_ir
from .cache import load_cached
from .cpu import Compiled
from .guard import Guard
from .status import Capacity, raise_status

_METH_FASTCALL_KEYWORDS = 0x80 | 0x02
_HEAD = object.__basicsize__
_MAX_WORDS = 4096  # of an argument buffer on the caller's stack
_FLOAT_WORDS = {f64: "<d", f32: "<f4x", f16: "<e6x"}
_lock = new_lock(sys.modules[__name__], "_lock")


@dataclass(frozen=True, slots=True)
class ArgSpec:
    """What the native launcher accepts for an argument besides numpy arrays and Python numbers.

    An object whose exact type is ``host_type`` and whose ``_key`` is this very ``key`` has, in ``_packed``, the bytes to copy. An object
    whose exact type is ``host_type.wrapper_type`` stands for the one in its slot ``_impl``.
    """

    decl: ArgDecl
    key: object | None = None
    host_type: type | None = None
    numpy: bool = True  # a numpy array of the declared type may be given: False where the axes are nested in another order


class _MethodDef(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


# ---- the layout of objects, checked ----


def _pointer(address: int) -> int:
    return ctypes.c_void_p.from_address(address).value or 0


def slot_offset(cls: type, name: str) -> int | None:
    """Where instances keep a slot: one is made, of a subclass without a destructor, and searched. None: no such plain slot."""
    probe_type: Any = type("Probe", (cls,), {"__slots__": (), "__del__": lambda self: None})
    probe, mark = object.__new__(probe_type), object()
    setattr(probe, name, mark)
    hits = [k for k in range(_HEAD, cls.__basicsize__, 8) if _pointer(id(probe) + k) == id(mark)]
    return hits[0] if len(hits) == 1 else None


def _offsets() -> dict[str, int]:
    """Where this interpreter keeps what the launcher reads, as far as its headers' layout is the known one."""
    names = ("ARRAY_ND", "ARRAY_DIMS", "ARRAY_DESCR", "ARRAY_FLAGS_AT")
    known = dict(zip(names, (_HEAD + 8, _HEAD + 16, _HEAD + 40, _HEAD + 48)))
    return known | {
        "HEAD": _HEAD,
        "TYPE": _HEAD - 8,
        "TUPLE_ITEMS": tuple.__basicsize__,
        "BYTES_DATA": bytes.__basicsize__ - 1,
    }


def layout_problem() -> str | None:
    """Which object does not look as the native launcher expects; None when all do."""
    at = _offsets()
    array, text, number = np.zeros((3, 5), np.float32), b"known bytes", 1.5
    pair = (text, array)

    def i64(address: int) -> int:
        return ctypes.c_int64.from_address(address).value

    array_flags = launch_ir.ARRAY_FLAGS
    checks: dict[str, Callable[[], bool]] = {
        "pointer size": lambda: struct.calcsize("P") == 8 and _HEAD == 16,
        "ob_type": lambda: all(_pointer(id(x) + at["TYPE"]) == id(type(x)) for x in (array, text, number, pair, True, 7)),
        "float": lambda: ctypes.c_double.from_address(id(number) + _HEAD).value == number,
        "bytes": lambda: (
            i64(id(text) + _HEAD) == len(text) and ctypes.string_at(id(text) + at["BYTES_DATA"], len(text)) == text
        ),
        "tuple": lambda: [_pointer(id(pair) + at["TUPLE_ITEMS"] + 8 * k) for k in (0, 1)] == [id(text), id(array)],
        "ndarray.data": lambda: _pointer(id(array) + _HEAD) == array.ctypes.data,
        "ndarray.nd": lambda: ctypes.c_int.from_address(id(array) + at["ARRAY_ND"]).value == 2,
        "ndarray.dims": lambda: [i64(_pointer(id(array) + at["ARRAY_DIMS"]) + 8 * k) for k in (0, 1)] == [3, 5],
        "ndarray.descr": lambda: _pointer(id(array) + at["ARRAY_DESCR"]) == id(array.dtype) == id(np.dtype(np.float32)),
        "ndarray.flags": lambda: (
            ctypes.c_int.from_address(id(array) + at["ARRAY_FLAGS_AT"]).value & array_flags == array_flags
            and ctypes.c_int.from_address(id(_read_only()) + at["ARRAY_FLAGS_AT"]).value & array_flags != array_flags
        ),
    }
    return next((name for name, check in checks.items() if not check()), None)


@functools.cache
def _read_only() -> np.ndarray:
    array = np.zeros(1, np.float32)
    array.flags.writeable = False
    return array


# ---- the native launcher ----


@functools.cache
def native_launcher(host_type: type | None = None) -> int | None:
    """The address of the native launcher, or None when this interpreter's objects are not laid out as it expects.

    Args:
        host_type: the program's own array class; where its slots, and that of its ``wrapper_type``, lie is part of the code.
    """
    with _lock:
        if layout_problem() is not None:
            return None
        key_at = slot_offset(host_type, "_key") if host_type else 0
        packed_at = slot_offset(host_type, "_packed") if host_type else 0
        wrapper = getattr(host_type, "wrapper_type", None)
        inner_at = slot_offset(wrapper, "_impl") if wrapper else 0
        if key_at is None or packed_at is None or inner_at is None:
            return None
        text = launch_ir.launcher_text(_offsets() | {"KEY_AT": key_at, "PACKED_AT": packed_at, "INNER_AT": inner_at})
        imports = {n: ctypes.cast(getattr(ctypes.pythonapi, n), ctypes.c_void_p).value or 0 for n in launch_ir.IMPORTS}
        code, _ = load_cached(text, "launcher", ["launch"], imports)
        code.make_immortal()
        return code.addresses["launch"]


@functools.cache
def _method_def(name: str, function: int) -> _MethodDef:
    """Builtins point to their definition, so it is kept for ever: one for each kernel name."""
    definition = _MethodDef(name.encode(), function, _METH_FASTCALL_KEYWORDS, None)
    jit.keep_for_ever(definition)
    return definition


def _int_range(dtype: DType) -> tuple[int, int]:
    if dtype.kind == "u":
        return 0, min((1 << dtype.bits) - 1, (1 << 63) - 1)
    return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1


def _scalar_kind(dtype: DType) -> int:
    """How a Python number becomes this type. 0: never natively (f16 needs a rounding that not every processor has)."""
    if dtype.is_real:
        return {f32: launch_ir.KIND_F32, f64: launch_ir.KIND_F64}.get(dtype, 0)
    return {u1: launch_ir.KIND_BOOL, u64: launch_ir.KIND_U64}.get(dtype, launch_ir.KIND_INT)


def _arg_row(spec: ArgSpec) -> list[int]:
    row = [0] * launch_ir.A_WORDS
    d = spec.decl
    row[launch_ir.A_SIZE] = arg_words(d)
    if d.kind == "scalar":
        row[launch_ir.A_KIND] = _scalar_kind(d.dtype)
        if d.dtype.is_int:
            row[launch_ir.A_LOW], row[launch_ir.A_HIGH] = _int_range(d.dtype)
        return row
    row[launch_ir.A_KIND] = launch_ir.KIND_ARRAY
    plain = spec.numpy and not d.needs_grad and not d.needs_dual  # a numpy array has neither
    row[launch_ir.A_DESCR] = id(d.dtype.numpy) if plain else 0
    row[launch_ir.A_NDIM], row[launch_ir.A_ELEMENT] = d.ndim, len(d.element)
    row[launch_ir.A_E0 : launch_ir.A_E0 + len(d.element)] = d.element
    row[launch_ir.A_KEY] = id(spec.key)  # id(None) for no key: then no host type is given either
    return row


def make_fast(
    compiled: Compiled,
    context_ptr: int,
    args: Sequence[ArgSpec],
    fallback: Callable[..., Any],
    on_status: Callable[[], Any],
    slow_flag_ptr: int,
    contextvar: contextvars.ContextVar[Any],
    program: object,
    *,
    keep_gil: bool = False,
    state_ptr: int = 0,
    shares: bool = True,
    guard: Guard | None = None,
    prepare: Callable[[bytes], object] | None = None,
    ahead: int = 0,
    on_ahead: Callable[[], object] | None = None,
) -> Callable[..., Any] | None:
    """A builtin that launches the kernel, or None where there is no native launcher. Returns what the fallback would, or None.

    Args:
        compiled: the kernel; it returns nothing (returned values are fetched in Python).
        context_ptr: its context, whose first word points to the status record.
        args: one for each argument.
        fallback: called with the same arguments when anything is not as the table says.
        on_status: called without arguments when the status record is not zero after the launch; it raises.
        slow_flag_ptr: address of a 64-bit word; while it is not zero every call goes to the fallback.
        contextvar: holds the current program.
        program: the kernel's program; with another one current, the fallback decides.
        keep_gil: for launches so short that giving up the interpreter (27 ns; where other threads want it, tens of microseconds until
            it comes back) costs more than it brings. Refused for kernels that print, whose pool threads would wait for the
            interpreter for ever.
        state_ptr: address of the program's state, ``launch_ir.S_WORDS`` 64-bit words; 0: there is none, and launches are not counted.
        shares: launches share memory: while one of the program runs on another thread, the fallback decides.
        guard: launches pass while it is armed and all is as it says.
        prepare: called with the words of the arguments when the guard stops a launch. None: the launch is tried again, once; anything else:
            the fallback decides.
        ahead: after launches that count as much together (``abi.CTX_WEIGHT``) ``on_ahead`` is called, which may give the lock up; 0: never.
        on_ahead: called without arguments; what it raises is raised by the launch.

    The callable holds references to all of these; memory at the two addresses is the caller's to keep.
    """
    host_types = {s.host_type for s in args if s.host_type is not None}
    if len(host_types) > 1:
        raise QdrunRuntimeError("arguments of one kernel must share one array class")
    host_type = host_types.pop() if host_types else None
    function = native_launcher(host_type)
    words = 1 + sum(arg_words(s.decl) for s in args)
    if function is None or words > _MAX_WORDS:
        return None
    ids = map(id, (contextvar, program, fallback, on_status, None))
    head = [compiled.address, context_ptr, slow_flag_ptr, *ids, len(args), int(not keep_gil or bool(compiled.prints)), words]
    wrapper = getattr(host_type, "wrapper_type", None)
    types = (np.ndarray, float, int, bool, bytes, True)
    own_state = (ctypes.c_int64 * launch_ir.S_WORDS)()
    state = (state_ptr, int(shares)) if state_ptr else (ctypes.addressof(own_state), 0)
    head += [*map(id, types), id(host_type) if host_type else 0, id(wrapper) if wrapper else 0, *state]
    head += [guard.address if guard is not None else 0, id(prepare) if prepare is not None else 0]
    head += [ahead if on_ahead is not None else 0, id(on_ahead)]
    rows = [word for spec in args for word in _arg_row(spec)]
    table = struct.pack(f"{len(head) + len(rows)}q", *head, *rows)
    # the table comes first; the rest is held because the table names it by address
    held = (
        table,
        compiled,
        fallback,
        on_status,
        contextvar,
        program,
        host_type,
        wrapper,
        guard,
        prepare,
        on_ahead,
        *(s.key for s in args),
        *map(_descr, args),
    )
    create = ctypes.pythonapi.PyCFunction_NewEx
    create.restype, create.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object, ctypes.py_object]
    return create(ctypes.addressof(_method_def(compiled.name, function)), held, "qdrun")


def _descr(spec: ArgSpec) -> np.dtype:
    return spec.decl.dtype.numpy


# ---- the plain launcher ----


def scalar_bytes(value: int | float | bool, dtype: DType) -> bytes:
    """A scalar's word: its own bytes, low end first. A float beyond the type's range becomes infinite, as in C.

    Raises:
        QdrunRuntimeError: an integer does not fit.
    """
    if dtype.is_real:
        try:
            return struct.pack(_FLOAT_WORDS[dtype], value)
        except OverflowError:
            return struct.pack(_FLOAT_WORDS[dtype], math.copysign(math.inf, value))
    if dtype is u1:
        return int(bool(value)).to_bytes(8, "little")
    try:
        return int(value).to_bytes(dtype.size, "little", signed=dtype.is_signed).ljust(8, b"\0")
    except OverflowError:
        raise QdrunRuntimeError(f"{value} does not fit into {dtype}") from None


def array_bytes(array: np.ndarray, decl: ArgDecl, grad: np.ndarray | None = None) -> bytes:
    """An array's words: address, extents, and the address of its gradient when the kernel wants one.

    Raises:
        QdrunRuntimeError: dtype, rank, element or layout is not what the kernel was compiled for.
    """
    for a, what in ((array, f"argument `{decl.name}`"), *(((grad, f"gradient of `{decl.name}`"),) if grad is not None else ())):
        _check_array(a, decl, what)
    if decl.needs_grad and grad is None:
        raise QdrunRuntimeError(f"argument `{decl.name}` needs a gradient array")
    words = [array.ctypes.data, *array.shape[: decl.ndim]]
    if decl.needs_grad and grad is not None:
        if grad.shape != array.shape:
            raise QdrunRuntimeError(f"gradient of `{decl.name}` has shape {grad.shape}, the array {array.shape}")
        words.append(grad.ctypes.data)
    return struct.pack(f"{len(words)}q", *words)


def _check_array(array: np.ndarray, decl: ArgDecl, what: str) -> None:
    if array.dtype != decl.dtype.numpy:
        raise QdrunRuntimeError(f"{what} has dtype {array.dtype}, the kernel wants {decl.dtype}")
    if array.ndim != decl.ndim + len(decl.element) or array.shape[decl.ndim :] != decl.element:
        element = f" of elements {decl.element}" if decl.element else ""
        raise QdrunRuntimeError(f"{what} has shape {array.shape}, the kernel wants {decl.ndim} dimensions{element}")
    if not (array.flags.c_contiguous and array.flags.aligned and array.flags.writeable):
        raise QdrunRuntimeError(f"{what} must be C-contiguous, aligned and writeable")


def pack_args(values: Sequence[Any], decls: Sequence[ArgDecl]) -> bytes:
    """The argument buffer after its first word. An ndarray is a numpy array, or a pair (array, gradient)."""
    if len(values) != len(decls):
        raise QdrunRuntimeError(f"{len(decls)} arguments are wanted, {len(values)} were given")
    parts: list[bytes] = []
    for value, decl in zip(values, decls):
        if decl.kind == "scalar":
            parts.append(scalar_bytes(value, decl.dtype))
        elif isinstance(value, tuple):
            parts.append(array_bytes(value[0], decl, value[1]))
        else:
            parts.append(array_bytes(value, decl))
    return b"".join(parts)


class PackedLauncher:
    """Launches through ctypes from packed words. Any number of threads may use one; the interpreter is free during the launch."""

    def __init__(
        self, compiled: Compiled, context_address: int, arg_decls: Sequence[ArgDecl], capacity: Capacity | None = None
    ) -> None:
        self.compiled, self.decls, self._capacity = compiled, tuple(arg_decls), capacity
        self._context = struct.pack("q", context_address)
        self._status = _pointer(context_address + 8 * CTX_STATUS)
        self._code = ctypes.c_int64.from_address(self._status)
        self._size = 8 * sum(map(arg_words, arg_decls))
        self._call = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(compiled.address)

    def launch(self, words: bytes | bytearray | memoryview) -> None:
        """Run the kernel on the argument buffer ``words`` (all but its first word, the context).

        Raises:
            QdrunRuntimeError: the buffer has the wrong size, or the kernel failed (``QdrunAssertionError``, ``AdStackOverflow``).
        """
        if len(words) != self._size:
            raise QdrunRuntimeError(f"kernel `{self.compiled.name}` takes {self._size} bytes of arguments, not {len(words)}")
        self._call(self._context + words)
        if self._code.value:
            raise_status(self.compiled, self._status, self._capacity)

    def __call__(self, *values: Any) -> None:
        """Pack the values and launch."""
        self.launch(pack_args(values, self.decls))
