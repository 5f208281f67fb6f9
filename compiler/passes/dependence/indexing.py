"""Proves about two index tuples that they are the same element, or never the same element; or proves nothing."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from math import gcd

from ...ir.nodes import ArgDecl, Const, Loop, Op, Operand, Place, Task
from ...ir.ops import TABLE
from ...ir.types import limits
from ...ir.walk import is_invariant as walk_is_invariant
from ...ir.walk import walk


@dataclass(frozen=True)
class Linear:
    """sum(coefficient * leaf) + constant, exact on integers. ``leaves`` maps a leaf's key to its coefficient."""

    leaves: tuple[tuple[object, int], ...]
    constant: int

    def plus(self, other: Linear) -> Linear:
        """The sum of two forms."""
        return self.minus(other.times(-1))

    def times(self, factor: int) -> Linear:
        """A multiple."""
        return Linear(tuple((k, c * factor) for k, c in self.leaves if factor), self.constant * factor)

    def minus(self, other: Linear) -> Linear:
        """The difference of two forms."""
        total = dict(self.leaves)
        for key, c in other.leaves:
            total[key] = total.get(key, 0) - c
        return Linear(tuple((k, c) for k, c in total.items() if c), self.constant - other.constant)


def linear(x: Operand) -> Linear:
    """The linear form of an integer value. Whatever is not + - or a product with a literal is a leaf."""
    forms: dict[Operand, Linear] = {}
    todo = [x]
    while todo:  # operands first: a value that is used twice has one form, and a long sum needs no deep recursion
        top = todo[-1]
        missing = [a for a in _summands(top) if a not in forms]
        if missing:
            todo += missing
        else:
            forms[top] = _linear(top, forms)
            todo.pop()
    return forms[x]


def _summands(x: Operand) -> tuple[Operand, ...]:
    """The operands that the form of a value is made of."""
    if isinstance(x, Const) or x.dtype.bits < 32:  # narrow types may wrap
        return ()
    if x.op == "cast":
        return x.args if x.args[0].dtype.is_int and x.dtype.is_int and x.dtype.holds(x.args[0].dtype) else ()
    return x.args if x.op in ("add", "sub", "neg", "mul") else ()


def _linear(x: Operand, forms: Mapping[Operand, Linear]) -> Linear:
    """The form of a value from those of its operands."""
    if isinstance(x, Const):
        return Linear((), int(x.value))
    parts = [forms[a] for a in _summands(x)]
    if parts and x.op == "cast":
        return parts[0]
    if parts and x.op == "neg":
        return parts[0].times(-1)
    if parts and x.op == "mul":
        left, right = parts
        if not (left.leaves and right.leaves):
            form, factor = (left, right.constant) if left.leaves else (right, left.constant)
            return form.times(factor)
    elif parts:
        return parts[0].plus(parts[1]) if x.op == "add" else parts[0].minus(parts[1])
    return Linear(((_leaf_key(x) if x.op in ("arg", "shape") else x, 1),), 0)


def _leaf_key(x: Op) -> object:
    return (x.op, x.attr) if isinstance(x.attr, (ArgDecl, tuple)) else x


def is_invariant(x: Operand, written: Container[Place]) -> bool:
    """Whether a value is the same in every iteration of a task that writes ``written``."""
    return walk_is_invariant(x, lambda s: isinstance(s.attr, Place) and s.attr not in written)


def never_same(a: tuple[Operand, ...], b: tuple[Operand, ...], written: Container[Place]) -> bool:
    """Whether two index tuples can never name the same element, whichever iterations they are evaluated in."""
    return any(is_invariant(x, written) and is_invariant(y, written) and _unequal(x, y) for x, y in zip(a, b, strict=True))


def _unequal(x: Operand, y: Operand) -> bool:
    """Whether two values that are made of the same unknown numbers differ for each of these, as values that wrap."""
    if _incongruent(x, y, 1 << min(_bits(x), _bits(y))):
        return True
    for n in {n for n in (_modulus(x), _modulus(y)) if n}:  # t % 3 and (t % 3 + 1) % 3
        for left, right in product(_residues(x, n), _residues(y, n)):
            if _incongruent(left, right, n):
                return True
    (left, flips), (right, others) = _flipped(x), _flipped(y)
    return left is right and flips != others


def differ_unless_wrapped(a: tuple[Operand, ...], b: tuple[Operand, ...]) -> int:
    """``n`` where two index tuples have positions ``(t + 1) % n`` and ``(t + 2) % n``, equal only where a sum wraps around; else 0."""
    for x, y in zip(a, b, strict=True):
        n = _modulus(x)
        if n and n == _modulus(y):
            assert isinstance(x, Op) and isinstance(y, Op)
            if _incongruent(x.args[0], y.args[0], n, exact=True):
                return n
    return 0


def _incongruent(x: Operand, y: Operand, modulus: int, exact: bool = False) -> bool:
    """Whether two sums never differ by a multiple of a number, although they may wrap: ``1 - t`` and ``t`` are not congruent modulo 2."""
    difference = linear(x).minus(linear(y))
    wraps = 0 if exact or (limits_of(x) and limits_of(y)) else 1 << min(_bits(x), _bits(y))
    common = gcd(modulus, wraps, *(c for _, c in difference.leaves))
    return difference.constant % common != 0


def _modulus(x: Operand) -> int:
    """``n`` of a value ``t % n``, or ``t & (n - 1)`` for a power of two; 0: it is no such value."""
    if not isinstance(x, Op) or x.op not in ("mod", "and") or not isinstance(x.args[1], Const):
        return 0
    n = int(x.args[1].value) + (x.op == "and")
    return n if n > 0 and (x.op == "mod" or not n & (n - 1)) else 0


def _residues(x: Operand, n: int) -> list[Operand]:
    """The values known to be congruent to ``x`` modulo ``n``, if ``x`` is from 0 to ``n - 1``."""
    limits = limits_of(x)
    if limits is None or limits[0] < 0 or limits[1] >= n:
        return []
    return [x, x.args[0]] if isinstance(x, Op) and _modulus(x) == n else [x]


def limits_of(x: Operand) -> tuple[int, int] | None:
    """The least and the largest value of an integer made of remainders and literals without wrap-around; None: not known."""
    if isinstance(x, Const):
        return int(x.value), int(x.value)
    if not x.dtype.is_int:
        return None
    if _modulus(x):
        return 0, _modulus(x) - 1
    parts = [limits_of(a) for a in x.args] if x.op in ("add", "sub", "neg") else []
    known = [p for p in parts if p is not None]
    if not parts or len(known) < len(parts):
        return None
    if x.op != "add":
        low, high = known[-1]
        known[-1] = (-high, -low)
    low, high = sum(p[0] for p in known), sum(p[1] for p in known)
    least, largest = limits(x.dtype)
    return (low, high) if least <= low and high <= largest else None


def _flipped(x: Operand) -> tuple[Operand, int]:
    """A value without the bits that are flipped last, and these: ``t ^ 1``."""
    if isinstance(x, Op) and x.op == "xor":
        for value, mask in (x.args, x.args[::-1]):
            if isinstance(mask, Const):
                return value, int(mask.value)
    return x, 0


def most_trips(begin: Operand, end: Operand) -> int | None:
    """The most iterations of a loop, as far as its text says; ``range(k, k + 1)`` has one, or none where ``k + 1`` wraps."""
    length = linear(end).minus(linear(begin))
    literal = isinstance(begin, Const) and isinstance(end, Const)
    return max(0, length.constant) if not length.leaves and (literal or length.constant >= 0) else None


class Extents(dict[Op, "int | None"]):
    """For each axis index of a task, the most values that it takes (None: known only at launch).

    ``bounds``: its first value and its end; ``loops``: the task's inner loops by their indices; ``several``: the axes of more than one
    iteration. ``inside``: of a task that stands for a serial loop, the operations in it; all others have one value in the loop.
    """

    def __init__(self, task: Task, inside: frozenset[Op] | None = None) -> None:
        super().__init__()
        self._inside = inside
        self.bounds: dict[Op, tuple[Linear, Linear]] = {}
        self.loops = {s.index: s for s in walk(task.body) if isinstance(s, Loop)}
        for axis in task.axes:
            self[axis.index] = most_trips(axis.begin, axis.end)
            self.bounds[axis.index] = linear(axis.begin), linear(axis.end)
        self.several = {axis for axis, n in self.items() if n is None or n > 1}

    def axis_of(self, x: Op) -> Op | None:
        """The axis whose index a value is; perhaps as a narrower type that has all numbers between literal bounds."""
        if x in self:
            return x
        axis = x.args[0] if x.op == "cast" and x.dtype.is_int else None
        if not isinstance(axis, Op) or axis not in self:
            return None
        (first, end), (least, largest) = self.bounds[axis], limits(x.dtype)
        fits = not (first.leaves or end.leaves) and least <= first.constant and end.constant <= largest
        return axis if fits else None

    def is_fixed(self, x: Op, written: Container[Place]) -> bool:
        """Whether a value is the same in every iteration."""
        return (self._inside is not None and x not in self._inside) or is_invariant(x, written)

    def span(self, form: _IndexForm) -> tuple[Linear, Linear]:
        """The interval of a sum of axis indices and further terms."""
        low, high = form.rest.plus(Linear((), form.low)), form.rest.plus(Linear((), form.high))
        for axis, c in form.axes.items():
            first, end = self.bounds[axis]
            last = end.minus(Linear((), 1))
            low = low.plus((first if c > 0 else last).times(c))
            high = high.plus((last if c > 0 else first).times(c))
        return low, high

    def limits(self, x: Op) -> tuple[int, int] | None:
        """The least and the largest value of an integer: of a remainder, or of the index of a loop with literal bounds."""
        loop = self.loops.get(x)
        if loop is not None and isinstance(loop.begin, Const) and isinstance(loop.end, Const):
            first, end = int(loop.begin.value), int(loop.end.value)
            return (first, max(first, end - 1)) if loop.step > 0 else (min(first, end + 1), first)
        return limits_of(x)


def extents(task: Task) -> Extents:
    """The extents of a task's axes."""
    return Extents(task)


def own_element(a: tuple[Operand, ...], b: tuple[Operand, ...], written: Container[Place], ranges: Extents) -> bool:
    """Whether ``a`` in one iteration and ``b`` in another iteration of a parallel loop never name the same element.

    The proof: some positions of the two tuples differ by what no two iterations make up for, or together they hold every axis in the same
    way, so that equal elements mean equal iterations (``i * 4 + j % 4`` and ``i * 4 + k % 4``). ``ranges``: the axes.
    """
    return held_axes(a, b, written, ranges) >= ranges.several


def held_axes(
    a: tuple[Operand, ...], b: tuple[Operand, ...], written: Container[Place], ranges: Extents, gaps: bool = False
) -> set[Op]:
    """The axes whose indices are certainly equal where ``a`` in one iteration and ``b`` in another name the same element.

    All axes where they never do. An index wraps as its type does: what is said of sums holds as long as they stay in a range of half
    the type, which an access within its array makes sure of. ``gaps``: not every iteration makes the access, so that it may leave out
    those that lie outside; then loops of unknown length must be held without that.
    """
    known: set[Op] = set()
    for x, y in zip(a, b, strict=True):
        if x is y and not gaps:
            known |= _rows(x, written, ranges)
        left, right = _over_axes(x, written, ranges), _over_axes(y, written, ranges)
        if left is None or right is None:
            continue
        bits = min(_bits(x), _bits(y))
        whole = _Whole(ranges, bits, gaps)
        if whole.apart(left, right):
            return set(ranges)
        rest = left.rest.minus(right.rest)
        if left.axes != right.axes or rest.leaves or not left.axes:
            continue
        if len(left.axes) == 1 and left == right and left.low == left.high and whole.turns(*left.axes.items()):
            known |= left.axes.keys()
            continue
        if not whole.holds(left, right):
            continue
        step = gcd(*left.axes.values())  # what the axes add to the difference is a multiple of it
        low, high = rest.constant + left.low - right.high, rest.constant + left.high - right.low
        if high // step < -(-low // step):
            return set(ranges)
        if max(abs(low), abs(high)) < step and _positional(left.axes, ranges):
            known |= left.axes.keys()
    return known


def distance(
    a: tuple[Operand, ...],
    b: tuple[Operand, ...],
    last: Op,
    written: Container[Place],
    ranges: Extents,
    gaps: bool,
    exact: bool,
) -> int | str | None:
    """How many iterations of a row ``b`` comes after ``a`` where they name the same element. A row differs in its ``last`` axis alone.

    None: they never do; "unknown": that is not known, or with ``exact`` whether they do at that distance. ``gaps``: see ``held_axes``.
    """
    if never_same(a, b, written):
        return None
    found, unknown = set[int](), False
    for x, y in zip(a, b, strict=True):
        left, right = _over_axes(x, written, ranges), _over_axes(y, written, ranges)
        rest = left.rest.minus(right.rest) if left and right else Linear((), 0)
        if (
            left is None
            or right is None
            or left.axes != right.axes
            or rest.leaves
            or left.low < left.high
            or right.low < right.high
        ):
            unknown = True
            continue
        moved, c = rest.constant + left.low - right.low, left.axes.get(last, 0)
        if not _Whole(ranges, min(_bits(x), _bits(y)), gaps).holds(left, right):
            unknown = True
        elif moved % c if c else moved:
            return None
        elif c:
            found.add(moved // c)
    if len(found) > 1:
        return None
    return "unknown" if not found or (exact and unknown) else found.pop()


def _rows(x: Operand, written: Container[Place], ranges: Extents) -> set[Op]:
    """The axes of a flat index whose factors are the lengths of axes: ``(i * m + j) * n + k`` in a nest of .., m and n iterations.

    It counts without gaps, so that it does not wrap within an array. Empty: it is none.
    """
    if not isinstance(x, Op):
        return set()
    if x in ranges:
        return {x}
    if x.op == "sub" and is_invariant(x.args[1], written):
        return _rows(x.args[0], written, ranges)
    if x.op != "add":
        return set()
    for row, column in (x.args, x.args[::-1]):
        if is_invariant(column, written):
            return _rows(row, written, ranges)
        if not (isinstance(row, Op) and row.op == "mul" and isinstance(column, Op) and column in ranges):
            continue
        for inner, length in (row.args, row.args[::-1]):
            whole = ranges.bounds[column] == (Linear((), 0), linear(length))
            axes = _rows(inner, written, ranges) if whole and is_invariant(length, written) else set()
            if axes and column not in axes:
                return axes | {column}
    return set()


def _bits(x: Operand) -> int:
    """The fewest bits that a sum is computed in on its way."""
    bits, todo, seen = 64, [x], set[Operand]()
    while todo:
        value = todo.pop()
        if isinstance(value, Op) and value not in seen:
            seen.add(value)
            parts = _summands(value)
            if parts and value.op != "cast":
                bits = min(bits, value.dtype.bits)
            todo += parts
    return bits if isinstance(x, Const) or bits < 64 else x.dtype.bits


class _Whole:
    """What holds of sums that are taken modulo 2 to the power of ``bits``; see ``held_axes``."""

    def __init__(self, ranges: Extents, bits: int, gaps: bool) -> None:
        self._ranges, self._modulus, self._gaps = ranges, 1 << bits, gaps

    def reach(self, form: _IndexForm) -> int:
        """How far the values of a form lie from each other, at most. Of an axis of unknown length, those of two neighbouring iterations."""
        total = form.high - form.low
        for axis, c in form.axes.items():
            n = self._ranges[axis]
            total += abs(c) * (1 if n is None and not self._gaps else (1 << 31) - 1 if n is None else max(0, n - 1))
        return total

    def holds(self, left: _IndexForm, right: _IndexForm) -> bool:
        """Whether two sums over the same axes are equal as integers where they are equal as values of their type."""
        return self.reach(left) + self.reach(right) + abs(left.rest.minus(right.rest).constant) < self._modulus

    def apart(self, left: _IndexForm, right: _IndexForm) -> bool:
        """Whether one of two sums always lies behind the other."""
        return self.holds(left, right) and _beyond(self._ranges.span(left), self._ranges.span(right))

    def turns(self, one: tuple[Op, int]) -> bool:
        """Whether the multiples of a factor by the indices of an axis are all different."""
        axis, c = one
        n = self._ranges[axis]
        if n is None and not self._gaps:
            return abs(c) < self._modulus // 2
        return c % 2 == 1 or abs(c) * ((1 << 31) - 1 if n is None else max(0, n - 1)) < self._modulus


def _beyond(a: tuple[Linear, Linear], b: tuple[Linear, Linear]) -> bool:
    """Whether one of two ranges certainly lies behind the other."""
    gaps = (a[0].minus(b[1]), b[0].minus(a[1]))
    return any(not gap.leaves and gap.constant > 0 for gap in gaps)


def axes_of(values: Iterable[Operand], written: Container[Place], ranges: Extents) -> set[Op] | None:
    """The axis indices that some values depend on; None when that is not known."""
    out: set[Op] = set()
    todo, seen = list(values), set()
    while todo:
        x = todo.pop()
        if isinstance(x, Const) or x in seen:
            continue
        seen.add(x)
        if x in ranges:
            out.add(x)
        elif x in ranges.loops:
            loop = ranges.loops[x]
            if loop.end is None:
                return None
            todo += [loop.begin, loop.end]
        elif x.op == "gload" and isinstance(x.attr, Place) and x.attr not in written:
            todo += x.args
        elif x.op in ("arg", "shape", "param", "seed"):
            continue
        elif TABLE[x.op].pure and TABLE[x.op].arity > 0:
            todo += x.args
        else:
            return None
    return out


@dataclass(frozen=True)
class _IndexForm:
    """A sum of axis indices, a form that is the same in every iteration, and something from ``low`` to ``high``."""

    axes: dict[Op, int]
    rest: Linear
    low: int
    high: int


def _over_axes(x: Operand, written: Container[Place], ranges: Extents) -> _IndexForm | None:
    """A value as such a sum, if it is one."""
    form = linear(x)
    axes: dict[Op, int] = {}
    rest: list[tuple[object, int]] = []
    low = high = 0
    for leaf, c in form.leaves:
        axis = ranges.axis_of(leaf) if isinstance(leaf, Op) else None
        if not isinstance(leaf, Op):
            rest.append((leaf, c))
        elif axis is not None:
            axes[axis] = axes.get(axis, 0) + c
        elif ranges.is_fixed(leaf, written):
            rest.append((leaf, c))
        else:
            ends = ranges.limits(leaf)
            if ends is None:
                return None
            low, high = low + min(c * e for e in ends), high + max(c * e for e in ends)
    return _IndexForm(axes, Linear(tuple(rest), form.constant), low, high)


def _positional(coefficients: dict[Op, int], ranges: Extents) -> bool:
    """Whether a sum of axis indices takes each value once: ``i * 4 + j`` with j below 4."""
    reach = 0
    for axis, c in sorted(coefficients.items(), key=lambda item: abs(item[1])):
        if abs(c) <= reach:
            return False
        extent = ranges[axis]
        if extent is None:
            reach = 1 << 63
        else:
            reach += abs(c) * max(0, extent - 1)
    return True
