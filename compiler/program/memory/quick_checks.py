"""Functions that look at one kernel's launches: whether it overwrites no element that an earlier gradient reads again.

A tape asks before each launch, so that the answer must take less time than the launch. A function is made for the types of the numbers
and for the arrays; it says no to all other arguments, and where only a closer look can tell.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ...passes.dependence.argument_forms import Form

if TYPE_CHECKING:
    from .effects import Effects, Part, PendingReads

QuickCheck = Callable[[tuple[Any, ...]], bool]
"""Takes the arguments. True: the launch overwrites nothing that is needed, and what its own gradient reads again was entered."""

_NUMBERS = {int: "int", float: "float", bool: "bool"}
_MOST = 1 << 20  # of an argument that decides an index
_SUMS = {"add": "+", "sub": "-", "mul": "*"}


class _Unknown(Exception):
    """An index that takes more than sums and products of small integers."""


def quick_check(effects: Effects, args: Sequence[Any], at: dict[int, int], pending: PendingReads) -> QuickCheck | None:
    """The function for launches with these types of numbers and these very arrays; None: each launch needs a closer look.

    Valid as long as ``pending.version`` stays the same.

    Args:
        effects: of these launches.
        args: of one of them, numbers and ndarrays.
        at: the position in ``args`` of each argument that decides an index, by ``ArgDecl.index``.
        pending: what launches before them read.
    """
    if effects.before or any(type(args[k]) is not int for k in at.values()):
        return None
    writer = _Writer(effects, at, pending)
    try:
        lines, given = writer.lines(), writer.given
    except _Unknown:
        return None
    guards = [f"-{_MOST} < a{k} < {_MOST}" for k in sorted(set(at.values()))]
    for k, arg in enumerate(args):
        if type(arg) in _NUMBERS:
            guards.insert(0, f"type(a{k}) is {_NUMBERS[type(arg)]}")
        else:
            guards.insert(0, f"a{k} is {given(arg)}")
    head = ["if args: return False"]
    if args:
        names = "".join(f"a{k}, " for k in range(len(args)))
        head = [f"try: {names}= args", "except ValueError: return False", f"if not ({' and '.join(guards)}): return False"]
    body = "".join(f"  {line}\n" for line in [*head, *lines, "return True"])
    return _maker(f"def make({', '.join(writer.names)}):\n def check(args):\n{body} return check")(*writer.objects)


@functools.lru_cache(256)
def _maker(text: str) -> Callable[..., QuickCheck]:
    """Compiled once for all tapes: what differs between them are the sets and arrays."""
    names: dict[str, Any] = {}
    exec(text, names)
    return names["make"]


class _Writer:
    def __init__(self, effects: Effects, at: dict[int, int], pending: PendingReads) -> None:
        self._effects, self._at, self._pending = effects, at, pending
        self.objects: list[Any] = []
        self.names: list[str] = []
        self._known: dict[int, str] = {}
        self._keys: dict[str, str] = {}  # text -> variable
        self._lines: list[str] = []

    def given(self, x: Any) -> str:
        """The name of an object that the function is made with."""
        if id(x) not in self._known:
            self._known[id(x)] = f"s{len(self.objects)}"
            self.objects.append(x)
            self.names.append(self._known[id(x)])
        return self._known[id(x)]

    def lines(self) -> list[str]:
        """The statements."""
        writes = {line: None for part in self._effects.writes for line in self._write(part)}
        for line in writes:
            self._lines.append(f"if {line}: return False")
        checks, self._lines = self._lines, []
        reads = {line: None for part in self._effects.after for line in self._read(part)}
        return [*checks, *self._lines, *reads]

    def _write(self, part: Part) -> list[str]:
        axes, parts = self._axes(part)
        conditions: list[str] = []
        for known, group in self._pending.groups(part.spot):
            shared = tuple(k for k in axes if k in known)
            keys = group.keys if shared == known else self._pending.projected(group, tuple(map(known.index, shared)))
            conditions.append(f"{self._key([parts[axes.index(k)] for k in shared])} in {self.given(keys)}")
        return conditions + [self.given(group.keys) for group in self._pending.overlapping(part.spot)]

    def _read(self, part: Part) -> list[str]:
        axes, parts = self._axes(part)
        group = self._pending.group(part.spot, axes)
        adds = [f"{self.given(group.keys)}.add({self._key(parts)})"]
        for positions, keys in group.projections.items():
            adds.append(f"{self.given(keys)}.add({self._key([parts[k] for k in positions])})")
        return adds

    def _axes(self, part: Part) -> tuple[tuple[int, ...], list[str]]:
        axes = tuple(k for k, form in enumerate(part.forms) if form is not None)
        if part.fixed is not None:
            return axes, [str(i) for i in part.fixed if i is not None]
        return axes, [self._text(form)[0] for form in part.forms if form is not None]

    def _key(self, parts: list[str]) -> str:
        text = f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
        if "a" not in text:
            return text
        if text not in self._keys:
            self._keys[text] = f"k{len(self._keys)}"
            self._lines.append(f"{self._keys[text]} = {text}")
        return self._keys[text]

    def _text(self, form: Form) -> tuple[str, int]:
        """An index as Python, and how large it may be: it stays in 32 bits, where it is the number that the kernel computes."""
        if form.dtype.numpy.kind != "i" or form.dtype.size < 4:
            raise _Unknown
        if form.op == "const":
            text, most = f"{form.leaf[0]}" if form.leaf[0] >= 0 else f"({form.leaf[0]})", abs(form.leaf[0])
        elif form.op == "arg":
            text, most = f"a{self._at[form.leaf[0]]}", _MOST
        elif form.op == "shape":
            most = self._effects.call.arrays[form.leaf[0]].shape[form.leaf[1]]
            text = str(most)
        elif form.op in _SUMS:
            (one, first), (other, second) = map(self._text, form.args)
            text, most = f"({one} {_SUMS[form.op]} {other})", first * second if form.op == "mul" else first + second
        else:
            raise _Unknown
        if most >= 1 << 31:
            raise _Unknown
        return text, most


__all__ = ["QuickCheck", "quick_check"]
