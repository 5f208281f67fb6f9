"""What can be proven about two index tuples: the same element, never the same element, or nothing."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.nodes import ArgDecl, Const, Op, Operand, Place


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
    if x.op == "cast" and x.args[0].dtype.kind in "iu" and x.dtype.kind in "iu":
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


def same_element(a: tuple[Operand, ...], b: tuple[Operand, ...]) -> bool:
    """Whether two index tuples of one iteration name the same element."""
    return all(linear(x).minus(linear(y)) == Linear((), 0) for x, y in zip(a, b, strict=True))
