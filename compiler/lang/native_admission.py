"""The admission policy of native launches: which calls of a kernel are launched without Python.

Each program has a list of native launches for each kernel. A call looks the kernel up in the current program
(``runtime.native.launch_ir``) and tries its launches in order. If none matches, it goes to ``KernelFunction.slow_call``, which adds a
native launch for the compiled variant, or rearms one that waits for new values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from itertools import islice
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..codegen.abi import arg_words
from ..frontend.signature import ArrayArg, RecordArg, ScalarArg, TemplateArg
from ..ir.nodes import ArgDecl
from ..ir.types import DType
from ..program.memory.lifetimes import is_mortal
from ..runtime.native.launch import ArgSpec, Members, NativeLaunch, Packed, Same, WatchedArg, arg_row, members
from ..runtime.native.watch import ITSELF, Watch, WatchEntry, WatchRow, dict_offset
from ..runtime.native.watch_ir import (
    ENTRY_AGAIN,
    ENTRY_ANY,
    ENTRY_ARRAY,
    ENTRY_NUMBER,
    ENTRY_SAME,
    ENTRY_TYPE,
    ROW_DICT,
    ROW_FIRST,
    ROW_LIST,
)
from .args.binding import Bound
from .args.records import Frozen, HeldBy, field_names, held_by, is_container, template_key
from .buffer_view import BufferView
from .data.ndarray import Ndarray
from .data.tensor import Tensor, unwrap

if TYPE_CHECKING:
    from ..program.executable import Executable

Answer = Callable[[], Any]

MOST = 64
"""Launches of one kernel in one program, each tried in its turn."""

FIRST = 64
"""Items of a list without ndarrays that a launch looks at, and the last one: it may be long, and grow from launch to launch."""

PATIENCE = 8
"""Calls in Python after which a launch takes the place of the oldest one, where there are more: else each call might cost two launches."""


def enter(
    lists: dict[object, list[NativeLaunch]], kernel: object, executable: Executable, bound: Bound, answer: Answer | None = None
) -> None:
    """Launch calls like this one natively from now on, where that can be.

    Args:
        lists: those of the program, for kernels or for gradients.
        kernel: the token of the one that is called.
        executable: what was compiled for the call.
        bound: the call.
        answer: gives what the launch returned; None: nothing.
    """
    if not executable.native or any(isinstance(value, Frozen) for value in bound.values):
        return  # never, or not what a tape has kept
    launches, owner = lists.setdefault(kernel, []), (executable, executable.compiled.address)
    known = next((x for x in launches if x.owner == owner), None)
    if known is None:
        with executable.program.admission.alone():
            _add(launches, owner, executable, bound, answer)
    elif any(watch.missed for watch in known.watches):
        with executable.program.admission.alone():
            if _args(executable, bound, {w.owner: w for w in known.watches}) is None:
                launches[:] = [x for x in launches if x is not known]


def _add(
    launches: list[NativeLaunch], owner: tuple[Executable, int], executable: Executable, bound: Bound, answer: Answer | None
) -> None:
    if any(x.owner == owner for x in launches) or executable.program.admission.closed:
        return
    if len(launches) >= MOST:
        executable.passed_over += 1
        if executable.passed_over < PATIENCE:
            return
        launches.pop(0)
    args = _args(executable, bound, {})
    launch = None if args is None else executable.native_launch(args, owner, answer)
    if launch is None:
        executable.refused += 1
        executable.native = executable.refused < PATIENCE  # another call may be given the same in another way
        return
    executable.passed_over = 0
    launches.append(launch)


# ---- what a launch looks at


def _args(executable: Executable, bound: Bound, watches: dict[int, Watch]) -> list[Packed] | None:
    """How each argument is packed natively; None: one cannot be.

    ``watches``: the watches of the launch by object, which are filled anew.
    """
    decls, keys, direct = iter(executable.args), bound.call.keys, executable.takes_numpy
    out: list[Packed] = []
    for value, spec in zip(bound.values, bound.specs.values()):
        if isinstance(spec, ScalarArg) and spec.per_trial:
            return None
        if isinstance(spec, (ScalarArg, ArrayArg)):
            d = next(decls)
            out.append(_plain(d, keys.get(d.index), direct))
        elif isinstance(spec, TemplateArg):
            mine = list(islice(decls, len(spec.arrays) + len(spec.numbers)))
            found = _template(value, spec, mine, keys, watches)
            if found is None:
                return None
            out.append(found)
        elif isinstance(spec, RecordArg):
            found = _record(value, spec, decls, keys, direct)
            if found is None:
                return None
            out.append(found)
        else:
            return None
    return out


def _record(value: Any, spec: RecordArg, decls: Iterator[ArgDecl], keys: dict[int, object], direct: bool) -> Members | None:
    """How a Python dataclass is packed: by its attributes, which another object of the class has, too. None: it cannot be."""
    cls = type(value)
    if not is_dataclass(value) or not all(_is_read(cls, name) for name in spec.members):
        return None
    parts: list[tuple[str, ArgSpec | Same | Members]] = []
    for name, member in spec.members.items():
        part: ArgSpec | Same | Members | WatchedArg | None = None
        if isinstance(member, (ScalarArg, ArrayArg)):
            d = next(decls)
            part = None if isinstance(member, ScalarArg) and member.per_trial else _plain(d, keys.get(d.index), direct)
        elif isinstance(member, RecordArg):
            part = _record(getattr(value, name), member, decls, keys, direct)
        elif isinstance(member, TemplateArg) and not (member.arrays or member.numbers):
            part = _template(getattr(value, name), member, [], keys, {})
        if part is None or isinstance(part, WatchedArg):
            return None
        parts.append((name, part))
    return members(cls, parts)


def _plain(d: ArgDecl, key: object, direct: bool) -> ArgSpec:
    """How a number or an array is packed."""
    return ArgSpec(d, key, direct and getattr(key, "layout", None) is None)


def _is_read(cls: type, name: str) -> bool:
    """Whether reading an attribute runs nothing of the user's: it is in a dict or a slot."""
    if cls.__getattribute__ is not object.__getattribute__ or hasattr(cls, "__getattr__"):
        return False
    found = next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)
    return isinstance(found, MemberDescriptorType) or not hasattr(type(found), "__get__")


def _template(
    value: Any, spec: TemplateArg, decls: list[ArgDecl], keys: dict[int, object], watches: dict[int, Watch]
) -> Same | WatchedArg | None:
    """How a compile-time object is packed: by identity, if that determines its meaning."""
    if value is not spec.value:
        return None  # a tensor is around it
    if isinstance(value, (int, float, str, DType, type(None))):
        return Same(id(value), value)
    if template_key(value) != ("id", id(value)):
        return None  # it is known by its content
    if not is_container(value):
        return Same(id(value), None if is_mortal(value) else value)
    if not is_mortal(value):
        return None
    found = held_by(value)
    arrays = {id(unwrap(x)): unwrap(x) for _, x in found.arrays}
    if any(isinstance(x, BufferView) for x in arrays.values()):
        return None  # what stands for a part may come to lie where that of another part lay
    rows = _WatchRows(found, list(arrays)).made()
    if rows is None or list(arrays) != [id(objects[0]) for _, objects, _ in spec.arrays]:
        return None
    hows = [arg_row(ArgSpec(d, keys.get(d.index))) for d in decls]
    watch = watches.get(id(value)) or Watch(value)
    watch.fill(rows, list(zip(arrays.values(), hows)), hows[len(arrays) :])
    return WatchedArg(watch, sum(map(arg_words, decls)))


class _WatchRows:
    """The parts of an object that must stay the same for the result of ``held_by`` to be valid.

    Args:
        found: what it has found.
        arrays: the addresses of its arrays, in the order of the words.
    """

    def __init__(self, found: HeldBy, arrays: list[int]) -> None:
        self._visited, self._arrays, self._placed = found.visited, {x: k for k, x in enumerate(arrays)}, set[int]()
        self._numbers = {(id(owner), name): k for k, (_, owner, name, _) in enumerate(found.numbers)}

    def made(self) -> list[WatchRow] | None:
        """The rows; None: the launcher cannot see all of it."""
        rows: list[WatchRow] = []
        for owner, whole in self._visited:
            if isinstance(owner, list):
                entries = [self._entry(x) for x in (owner if whole else owner[:FIRST])]
                rows.append(WatchRow(ROW_LIST if whole else ROW_FIRST, owner, tuple(entries)))
            elif isinstance(owner, dict):
                if type(owner) is not dict or not all(isinstance(key, (str, int)) for key in owner):
                    return None
                entries = [self._entry(x, key) for key, x in owner.items()]
                rows.append(WatchRow(ROW_DICT, owner, tuple(entries), ITSELF))
            elif isinstance(owner, tuple):  # which cannot change; what it holds has rows of its own
                if not _is_leaf(owner):
                    return None  # keeping it may keep the object alive
            else:
                members = self._members(owner)
                at = None if members is None else dict_offset(owner)
                if members is None or at is None:
                    return None
                rows.append(WatchRow(ROW_DICT, owner, tuple(members), at))
        return rows

    def _members(self, owner: Any) -> list[WatchEntry] | None:
        """The entries of an object whose attributes are those of its dict; None: it has others."""
        fields, held = field_names(owner), _dict_of(owner)
        if held is None or (fields is not None and not (fields <= held.keys() and _are_plain(type(owner), fields))):
            return None
        out: list[WatchEntry] = []
        for name, value in held.items():
            number = self._numbers.get((id(owner), name))
            if fields is not None and name not in fields:
                out.append(WatchEntry(ENTRY_ANY, name))
            elif number is None:
                out.append(self._entry(value, name))
            elif type(value) in (int, float, bool):
                out.append(WatchEntry(ENTRY_NUMBER, name, number))
            else:
                return None  # a number of numpy's
        return out

    def _entry(self, value: Any, name: object = None) -> WatchEntry:
        array = unwrap(value)
        if isinstance(array, Ndarray):
            kind = ENTRY_AGAIN if id(array) in self._placed else ENTRY_ARRAY
            self._placed.add(id(array))
            return WatchEntry(kind, name, self._arrays[id(array)])
        if isinstance(value, (list, tuple, dict, Tensor)) or is_container(value):
            return WatchEntry(ENTRY_SAME, name, value)
        return WatchEntry(ENTRY_TYPE, name, type(value))  # objects of this type are not searched


def _is_leaf(value: Any) -> bool:
    """Whether a value cannot refer to the object that holds it."""
    if isinstance(value, tuple):
        return all(map(_is_leaf, value))
    return value is None or isinstance(value, (int, float, str, DType, np.generic)) or isinstance(unwrap(value), Ndarray)


def _dict_of(owner: Any) -> dict[str, Any] | None:
    """The dict of an object that has its attributes there and nowhere else."""
    cls = type(owner)
    slots = {n for base in cls.__mro__ for n in vars(base).get("__slots__", ())} - {"__dict__", "__weakref__"}
    usual = cls.__getattribute__ is object.__getattribute__ and cls.__dictoffset__ and not hasattr(owner, "_asdict")
    own = any(isinstance(vars(base).get("__dict__"), property) for base in cls.__mro__)
    return vars(owner) if usual and not slots and not own else None


def _are_plain(cls: type, names: frozenset[str]) -> bool:
    """Whether attributes of these names are what the dict has: the class has no property for one."""
    return not any(hasattr(type(vars(base).get(n)), "__set__") for n in names for base in cls.__mro__)
