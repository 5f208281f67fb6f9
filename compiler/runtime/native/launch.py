"""Launching a compiled kernel from Python: a native launcher of a few dozen nanoseconds.

``install`` makes calls of kernels builtins that check and pack the arguments in native code (``launch_ir``), by tables (``make_launch``),
and hand every case that no table describes to Python. They read objects of the interpreter and of numpy by offset, so those offsets are
first checked on objects with known contents; where one differs, calls stay in Python.
"""

from __future__ import annotations

import contextvars
import ctypes
import functools
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...codegen.abi import arg_words
from ...codegen.builder import NativeModule
from ...ir.nodes import ArgDecl
from ...ir.threads import new_lock
from ...ir.types import DType, f32, f64, u1, u64
from .. import jit
from ..cache import is_on_disk, load_cached
from ..compiled import Compiled
from . import launch_ir, pack_ir, slots_ir, walk_ir
from .guard import Guard
from .objects import TYPE_SLOTS, layout_problem, offsets, slot_offset
from .watch import Watch

_METHOD_DESCRIPTOR = 1 << 17  # Py_TPFLAGS_METHOD_DESCRIPTOR
_MAX_WORDS = 4096  # of an argument buffer on the caller's stack
_LEVEL = 1  # of LLVM: 2 takes a third longer, for loops of few turns, and launches are no faster
_lock = new_lock(sys.modules[__name__], "_lock")


@dataclass(frozen=True, slots=True)
class ArgSpec:
    """What the native launcher accepts for an argument besides numpy arrays and Python numbers.

    An object whose exact type is ``Natives.host_type`` and whose ``_key`` is this very ``key`` has, in ``_packed``, the bytes to copy. An
    object whose exact type is ``host_type.wrapper_type`` stands for the one in its slot ``_impl``, one of ``host_type.view_type`` for that
    in its slot ``_part``, which is always filled.
    """

    decl: ArgDecl
    key: object | None = None
    numpy: bool = True  # a numpy array of the declared type may be given: False where the axes are nested in another order


@dataclass(frozen=True)
class Natives:
    """The classes and objects that the native launcher works with. What it reads of instances is in slots.

    Attributes:
        variable: holds the current program.
        program: its class, with the slots ``native_launches`` and ``native_gradients``: dicts from the tokens of kernels to lists of
            launches.
        kernel: it has the slot ``token``; its ``slow_call``, as that of the others, makes a call in Python.
        gradient: of a kernel, which is in the slot ``kernel``.
        taped: launches a kernel although a tape records; the same slot.
        bound_kernel, bound_gradient: of an object, with the slots ``kernel`` and ``instance``.
        gradient_of_bound: stands for the gradient in the class of bound kernels; its ``slow_call`` takes the bound kernel first.
        host_type: the program's array class.
    """

    variable: contextvars.ContextVar[Any]
    program: type
    kernel: type
    gradient: type
    taped: type
    bound_kernel: type
    bound_gradient: type
    gradient_of_bound: type
    host_type: type


@dataclass(frozen=True)
class NativeCalls:
    """The native code of this process.

    Attributes:
        offsets: where it finds what it reads of objects.
        process: see ``pack_ir.P_WORDS``.
    """

    offsets: Mapping[str, int]
    process: ctypes.Array[ctypes.c_int64]

    def load(self, made: NativeModule, name: str) -> Mapping[str, int]:
        """Compile a module, for ever: the addresses of its functions."""
        api = (n for n in made.imports if n.startswith("Py"))
        imports = {n: ctypes.cast(getattr(ctypes.pythonapi, n), ctypes.c_void_p).value or 0 for n in api}
        imports["qd_process"] = ctypes.addressof(self.process)
        code, _ = load_cached(made.text, name, list(made.exports), imports, _LEVEL)
        code.make_immortal()
        return code.addresses

    def log_functions(self) -> Mapping[str, int]:
        """The functions of the logs of tapes; see ``LaunchLog``."""
        return self.load(walk_ir.log_module(self.offsets), "log")


def install(natives: Natives) -> NativeCalls | None:
    """Make calls of kernels native: the methods of the classes become builtins.

    None: this interpreter's objects are not laid out as the launcher expects, and calls stay in Python.
    """
    found = _offsets(natives)
    with _lock:
        if found is None:
            return None
        made = NativeCalls(found, _process(natives))
        functions = made.load(_launcher(*found.items()), "launcher")
    _set_slots(natives.kernel, functions["launch"], functions["bind"])
    _set_slots(natives.gradient, functions["reverse"])
    _set_slots(natives.bound_kernel, functions["launch_bound"])
    _set_slots(natives.bound_gradient, functions["reverse_bound"])
    _set_slots(natives.gradient_of_bound, functions["reverse_of"])
    _set_slots(natives.taped, functions["launch_taped"])
    for cls in (natives.kernel, natives.gradient_of_bound):
        _write(cls, "flags", cls.__flags__ | _METHOD_DESCRIPTOR)
    return made


def is_compiled(natives: Natives) -> bool:
    """Whether ``install`` needs no LLVM: the launcher is on disk, or there can be none."""
    found = _offsets(natives)
    if found is None:
        return True
    made = _launcher(*found.items())
    return is_on_disk(made.text, list(made.exports), _LEVEL)


@functools.cache
def _launcher(*found: tuple[str, int]) -> NativeModule:
    return slots_ir.launcher_module(dict(found))


@functools.cache
def _offsets(natives: Natives) -> Mapping[str, int] | None:
    """Where the launcher finds what it reads of objects. None: this interpreter lays them out in another way."""
    wrapper, view = (getattr(natives.host_type, name, None) for name in ("wrapper_type", "view_type"))
    slots = {
        "LAUNCHES_AT": slot_offset(natives.program, "native_launches"),
        "GRADIENTS_AT": slot_offset(natives.program, "native_gradients"),
        "TOKEN_AT": slot_offset(natives.kernel, "token"),
        "GRADIENT_KERNEL_AT": slot_offset(natives.gradient, "kernel"),
        "BOUND_KERNEL_AT": slot_offset(natives.bound_kernel, "kernel"),
        "BOUND_INSTANCE_AT": slot_offset(natives.bound_kernel, "instance"),
        "KEY_AT": slot_offset(natives.host_type, "_key"),
        "PACKED_AT": slot_offset(natives.host_type, "_packed"),
        "INNER_AT": slot_offset(wrapper, "_impl") if wrapper else 0,
        "PART_AT": slot_offset(view, "_part") if view else 0,
    }
    same = slot_offset(natives.taped, "kernel") == slots["GRADIENT_KERNEL_AT"] and all(
        slot_offset(natives.bound_gradient, n) == slots[f"BOUND_{n.upper()}_AT"] for n in ("kernel", "instance")
    )
    found = {name: at for name, at in slots.items() if at is not None}
    with _lock:
        return offsets() | found if same and len(found) == len(slots) and layout_problem() is None else None


def _process(natives: Natives) -> ctypes.Array[ctypes.c_int64]:
    """The addresses of objects that are the same for all launches; kept for ever, as the objects are."""
    objects = {
        pack_ir.P_VAR: natives.variable,
        pack_ir.P_PROGRAM: natives.program,
        pack_ir.P_NONE: None,
        pack_ir.P_NUMPY: np.ndarray,
        pack_ir.P_FLOAT: float,
        pack_ir.P_INT: int,
        pack_ir.P_BOOL: bool,
        pack_ir.P_BYTES: bytes,
        pack_ir.P_TRUE: True,
        pack_ir.P_HOST: natives.host_type,
        pack_ir.P_WRAPPER: getattr(natives.host_type, "wrapper_type", None),
        pack_ir.P_VIEW: getattr(natives.host_type, "view_type", None),
        pack_ir.P_SLOW: sys.intern("slow_call"),
        pack_ir.P_BOUND: natives.bound_kernel,
    }
    words = (ctypes.c_int64 * pack_ir.P_WORDS)(*(id(objects[k]) for k in range(pack_ir.P_WORDS)))
    for one in (words, natives, *objects.values()):
        jit.keep_for_ever(one)
    return words


def _set_slots(cls: type, call: int, get: int = 0) -> None:
    """Give a class builtins for ``__call__`` and ``__get__``, as a class in C has them: there is no Python frame around a launch."""
    _write(cls, "call", call)
    if get:
        _write(cls, "descr_get", get)


def _write(cls: type, slot: str, value: int) -> None:
    ctypes.c_ulong.from_address(id(cls) + TYPE_SLOTS[slot]).value = value
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(cls))


def _int_range(dtype: DType) -> tuple[int, int]:
    if dtype.kind == "u":
        return 0, min((1 << dtype.bits) - 1, (1 << 63) - 1)
    return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1


def _scalar_kind(dtype: DType) -> int:
    """The conversion of a Python number to this type. 0: never natively (f16 needs a rounding that not every processor has)."""
    if dtype.is_real:
        return {f32: pack_ir.KIND_F32, f64: pack_ir.KIND_F64}.get(dtype, 0)
    return {u1: pack_ir.KIND_BOOL, u64: pack_ir.KIND_U64}.get(dtype, pack_ir.KIND_INT)


def arg_row(spec: ArgSpec) -> list[int]:
    """How the launcher packs a number or an array (``pack_ir.A_*``)."""
    row = [0] * pack_ir.A_WORDS
    d = spec.decl
    row[pack_ir.A_SIZE] = arg_words(d)
    if d.kind == "scalar":
        row[pack_ir.A_KIND] = _scalar_kind(d.dtype)
        if d.dtype.is_int:
            row[pack_ir.A_LOW], row[pack_ir.A_HIGH] = _int_range(d.dtype)
        return row
    row[pack_ir.A_KIND] = pack_ir.KIND_ARRAY
    plain = spec.numpy and not d.needs_grad and not d.needs_dual  # a numpy array has neither
    row[pack_ir.A_DESCR] = id(d.dtype.numpy) if plain else 0
    row[pack_ir.A_NDIM], row[pack_ir.A_ELEMENT] = d.ndim, len(d.element)
    row[pack_ir.A_E0 : pack_ir.A_E0 + len(d.element)] = d.element
    row[pack_ir.A_KEY] = id(spec.key)  # that of None for no key, which no array has
    return row


@dataclass(frozen=True)
class Same:
    """An argument that must be this very object; it has no words.

    Attributes:
        key: the object's ``id``.
        kept: the object, unless the launch goes when it ends.
    """

    key: int
    kept: object = None


@dataclass(frozen=True)
class WatchedArg:
    """An argument that must be this very object, and is watched. ``words``: of its arrays and numbers."""

    watch: Watch
    words: int


class Members(NamedTuple):
    """An argument of this very type, whose attributes are packed in this order; see ``members``.

    Attributes:
        table: see ``pack_ir.KIND_MEMBERS``.
        words: of all attributes.
        held: how many attributes there are, those of attributes included.
    """

    cls: type
    parts: tuple[tuple[str, Any], ...]
    table: ctypes.Array[ctypes.c_int64]
    words: int
    held: int


def members(cls: type, parts: Sequence[tuple[str, ArgSpec | Same | Members]]) -> Members:
    """How an object is packed by its attributes. ``parts``: the name of each, and how it is packed."""
    known = tuple((sys.intern(name), part) for name, part in parts)
    table = [len(known)]
    for name, part in known:
        table += [id(name), *_row(part)]
    held = sum(1 + (part.held if isinstance(part, Members) else 0) for _, part in known)
    return Members(cls, known, (ctypes.c_int64 * len(table))(*table), sum(_words_of(part) for _, part in known), held)


class NativeLaunch(NamedTuple):
    """The data of a kernel for a native launch. The launcher reads the table, which contains the addresses of the rest.

    Attributes:
        owner: the compiled kernel, and the address of its code.
        watches: the watches of its arguments.
    """

    table: bytes
    owner: tuple[object, int]
    watches: tuple[Watch, ...]
    held: tuple[object, ...]


Packed = ArgSpec | Same | WatchedArg | Members
"""How an argument is packed."""


def make_launch(
    compiled: Compiled,
    context_ptr: int,
    args: Sequence[Packed],
    on_status: Callable[[], Any],
    flags_ptr: int,
    owner: object,
    *,
    keep_gil: bool = False,
    state_ptr: int = 0,
    shares: bool = True,
    guard: Guard | None = None,
    prepare: Callable[[bytes], object] | None = None,
    ahead: int = 0,
    on_ahead: Callable[[], object] | None = None,
    answer: Callable[[], object] | None = None,
) -> NativeLaunch | None:
    """Create a native launch, or return None if there can be none. It is added to the list of its kernel in its program.

    Args:
        compiled: the kernel.
        context_ptr: its context, whose first word points to the status record.
        args: one for each argument.
        on_status: called without arguments when the status record is not zero after the launch; it raises.
        flags_ptr: address of ``launch_ir.F_WORDS`` 64-bit words; while one of them is not zero the calls that it counts for go to Python.
        owner: what was compiled; kept.
        keep_gil: for launches so short that giving up the interpreter (27 ns; where other threads want it, tens of microseconds until
            it comes back) costs more than it brings. Refused for kernels that print, whose pool threads would wait for the
            interpreter for ever.
        state_ptr: address of the program's state, ``launch_ir.S_WORDS`` 64-bit words; 0: there is none, and launches are not counted.
        shares: launches share memory: while one of the program runs on another thread, Python decides.
        guard: launches pass while it is armed and all is as it says.
        prepare: called with the words of the arguments when the guard stops a launch. None: the launch is tried again, once; anything else:
            it is for another launch of the list, or for Python.
        ahead: after launches that count as much together (``abi.CTX_WEIGHT``) ``on_ahead`` is called, which may give the lock up; 0: never.
        on_ahead: called without arguments; what it raises is raised by the launch.
        answer: called without arguments after a launch, before another one that shares memory may begin: what the call gives. None: None.

    Memory at the addresses is the caller's to keep.
    """
    words = 1 + sum(map(_words_of, args))
    if words > _MAX_WORDS:
        return None
    own_state = (ctypes.c_int64 * launch_ir.S_WORDS)()
    state = (state_ptr, int(shares)) if state_ptr else (ctypes.addressof(own_state), 0)
    release = int(not keep_gil or bool(compiled.prints))
    head = [compiled.address, context_ptr, flags_ptr, id(on_status), len(args), release, words, *state]
    head += [guard.address if guard is not None else 0, id(prepare) if prepare is not None else 0]
    watched = tuple(a.watch for a in args if isinstance(a, WatchedArg))
    holds = sum(w.arrays for w in watched) + sum(a.held for a in args if isinstance(a, Members))
    head += [ahead if on_ahead is not None else 0, id(on_ahead), holds]
    head += [id(answer) if answer is not None else 0]
    rows = [word for arg in args for word in _row(arg)]
    table = struct.pack(f"{len(head) + len(rows)}q", *head, *rows)
    held = (compiled, on_status, own_state, guard, prepare, on_ahead, answer, *args)
    return NativeLaunch(table, (owner, compiled.address), watched, held)


def _words_of(arg: Packed) -> int:
    if isinstance(arg, ArgSpec):
        return arg_words(arg.decl)
    return 0 if isinstance(arg, Same) else arg.words


def _row(arg: Packed) -> list[int]:
    """How the launcher packs an argument."""
    if isinstance(arg, ArgSpec):
        return arg_row(arg)
    row = [0] * pack_ir.A_WORDS
    if isinstance(arg, WatchedArg):
        row[pack_ir.A_KIND], row[pack_ir.A_SIZE] = pack_ir.KIND_WATCHED, arg.words
        row[pack_ir.A_KEY], row[pack_ir.A_WATCH] = arg.watch.owner, arg.watch.address
    elif isinstance(arg, Members):
        row[pack_ir.A_KIND], row[pack_ir.A_SIZE] = pack_ir.KIND_MEMBERS, arg.words
        row[pack_ir.A_KEY], row[pack_ir.A_WATCH] = id(arg.cls), ctypes.addressof(arg.table)
    else:
        row[pack_ir.A_KIND], row[pack_ir.A_KEY] = pack_ir.KIND_SAME, arg.key
    return row
