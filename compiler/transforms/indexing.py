"""What can be proven about two index tuples: the same element, never the same element, or nothing."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from ..ir.nodes import ArgDecl, Const, Op, Operand, Place, Task


@dataclass(frozen=True)
class Linear:
    """sum(coefficient * leaf) + constant, exact on integers. ``leaves`` maps a leaf's key to its coefficient."""

    leaves: tuple[tuple[object, int], ...]
    constant: int

    def minus(self, other: Linear) -> Linear:
        """The difference of two forms."""
        total = dict(self.leaves)
        for key, c in other.leaves:
            total[key] = total.get(key, 0) - c
        return Linear(tuple((k, c) for k, c in total.items() if c), self.constant - other.constant)


def linear(x: Operand) -> Linear:
    """The linear form of an integer value. Whatever is not + - or a product with a literal is a leaf."""
    if isinstance(x, Const):
        return Linear((), int(x.value))
    if x.dtype.bits < 32:  # may wrap
        return Linear(((x, 1),), 0)
    if x.op == "cast" and x.args[0].dtype.is_int and x.dtype.is_int and x.dtype.holds(x.args[0].dtype):
        return linear(x.args[0])
    if x.op in ("add", "sub"):
        left, right = linear(x.args[0]), linear(x.args[1])
        zero = Linear((), 0)
        return left.minus(zero.minus(right)) if x.op == "add" else left.minus(right)
    if x.op == "neg":
        return Linear((), 0).minus(linear(x.args[0]))
    if x.op == "mul":
        left, right = linear(x.args[0]), linear(x.args[1])
        if left.leaves and right.leaves:
            return Linear(((x, 1),), 0)
        form, factor = (left, right.constant) if left.leaves else (right, left.constant)
        return Linear(tuple((k, c * factor) for k, c in form.leaves if c * factor), form.constant * factor)
    if x.op in ("arg", "shape"):
        return Linear(((_leaf_key(x), 1),), 0)
    return Linear(((x, 1),), 0)


def _leaf_key(x: Op) -> object:
    return (x.op, x.attr) if isinstance(x.attr, (ArgDecl, tuple)) else x


def is_invariant(x: Operand, written: set[Place]) -> bool:
    """Whether a value is the same in every iteration of a task that writes ``written``."""
    if isinstance(x, Const):
        return True
    if x.op in ("arg", "shape", "param", "seed"):
        return True
    if x.op == "gload":
        return x.attr not in written and all(is_invariant(a, written) for a in x.args)
    return x.op not in ("index", "iter", "load", "atomic", "stack_get") and all(is_invariant(a, written) for a in x.args)


def never_same(a: tuple[Operand, ...], b: tuple[Operand, ...], written: set[Place]) -> bool:
    """Whether two index tuples can never name the same element, whichever iterations they are evaluated in."""
    for x, y in zip(a, b, strict=True):
        if is_invariant(x, written) and is_invariant(y, written):
            difference = linear(x).minus(linear(y))
            if not difference.leaves and difference.constant != 0:
                return True
    return False


Extents = dict[Op, int | None]


def extents(task: Task) -> Extents:
    """For each axis index of a task, the number of its values (None: known only at launch)."""
    out: Extents = {}
    for axis in task.axes:
        literal = isinstance(axis.begin, Const) and isinstance(axis.end, Const)
        out[axis.index] = int(axis.end.value) - int(axis.begin.value) if literal else None  # type: ignore[union-attr]
    return out


def own_element(a: tuple[Operand, ...], b: tuple[Operand, ...], written: set[Place], ranges: Extents) -> bool:
    """Whether ``a`` in one iteration and ``b`` in another iteration of a parallel loop never name the same element.

    The proof: some positions of the two tuples differ by a constant that no two iterations make up for, or together they hold every axis
    in the same way, so that equal elements mean equal iterations. ``ranges``: the axes.
    """
    known: set[Op] = set()
    for x, y in zip(a, b, strict=True):
        left, right = _over_axes(x, written, ranges), _over_axes(y, written, ranges)
        if left is None or right is None or left[0] != right[0]:
            continue
        difference = left[1].minus(right[1])
        coefficients = left[0]
        if difference.leaves or not coefficients:
            continue
        if difference.constant % gcd(*coefficients.values()):
            return True
        if difference.constant == 0 and _positional(coefficients, ranges):
            known |= coefficients.keys()
    return known == ranges.keys()


def _over_axes(x: Operand, written: set[Place], ranges: Extents) -> tuple[dict[Op, int], Linear] | None:
    """A value as a sum of axis indices and a form that is the same in every iteration, if it is one."""
    form = linear(x)
    axes = {leaf: c for leaf, c in form.leaves if isinstance(leaf, Op) and leaf in ranges}
    rest = tuple((leaf, c) for leaf, c in form.leaves if leaf not in axes)
    if all(not isinstance(leaf, Op) or is_invariant(leaf, written) for leaf, _ in rest):
        return axes, Linear(rest, form.constant)
    return None


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
