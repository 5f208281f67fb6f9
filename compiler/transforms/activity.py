"""What the gradient flows through: which values depend on a differentiable array, and which statements have backward code."""

from __future__ import annotations

from ..errors import DifferentiationError
from ..ir.nodes import GlobalStore, If, Local, LocalStore, Loop, Op, Operand, Place, Stmt, Task
from ..ir.walk import atomic_of, operands, walk
from .derivatives import FLAT, NEEDS, carries

REFUSED_ATOMICS = {
    "min": "give each iteration its own element and take the minimum in a serial loop with `min()`",
    "max": "give each iteration its own element and take the maximum in a serial loop with `max()`",
    "xchg": "store to an element of its own",
}


class Activity:
    """Activity of one task. ``varied`` holds the values and locals that depend on a differentiable array."""

    def __init__(self, task: Task) -> None:
        self.varied: set[Op | Local] = set()
        self._active: dict[int, bool] = {}
        self._propagate(list(walk(task.body)))
        self._refuse(task)

    def is_varied(self, x: Operand | Local) -> bool:
        """Whether an adjoint of ``x`` can be other than zero."""
        return x in self.varied

    def _propagate(self, statements: list[Stmt]) -> None:
        size = -1
        while size != len(self.varied):
            size = len(self.varied)
            for s in statements:
                if isinstance(s, LocalStore):
                    if s.value in self.varied:
                        self.varied.add(s.local)
                elif isinstance(s, Op) and s.dtype.is_real and self._depends(s):
                    self.varied.add(s)

    def _depends(self, s: Op) -> bool:
        if s.op == "gload":
            return isinstance(s.attr, Place) and s.attr.differentiable
        if s.op == "load":
            return s.attr in self.varied
        return carries(s) and any(a in self.varied for a in s.args)

    def is_active(self, s: Stmt) -> bool:
        """Whether the statement has backward code."""
        known = self._active.get(id(s))
        if known is None:
            known = self._active[id(s)] = self._compute_active(s)
        return known

    def _compute_active(self, s: Stmt) -> bool:
        match s:
            case Op(op="atomic"):
                return atomic_of(s)[0].differentiable and (s.args[-1] in self.varied or atomic_of(s)[1] == "mul")
            case Op():
                return s in self.varied
            case LocalStore():
                return s.local in self.varied
            case GlobalStore():
                return s.place.differentiable
            case If():
                return any(map(self.is_active, s.then)) or any(map(self.is_active, s.orelse))
            case Loop():
                return any(map(self.is_active, s.body))
        return False

    def needs(self, s: Stmt) -> list[Operand]:
        """The values that the backward code of a statement without blocks reads."""
        if isinstance(s, GlobalStore):
            return list(s.index)
        if not isinstance(s, Op) or s.op == "load":
            return []
        if s.op == "gload":
            return list(s.args)
        if s.op == "atomic":
            return list(s.args if atomic_of(s)[1] == "mul" else s.args[:-1])
        out: list[Operand] = []
        for operand, names in zip(s.args, NEEDS[s.op], strict=True):
            if operand in self.varied:
                out += [s if n == "r" else s.args[n] for n in names]  # type: ignore[index]
        return out

    def _refuse(self, task: Task) -> None:
        """Refuse what has no correct gradient, by name and line."""
        returned: dict[Op, Op] = {}
        for s in walk(task.body):
            if isinstance(s, Op) and s.op == "atomic" and atomic_of(s)[0].differentiable:
                self._refuse_atomic(s)
                returned[s] = s
            if isinstance(s, Op) and s.dtype.is_real and s.op == "bitcast" and any(a in self.varied for a in s.args):
                self._no_derivative(s)
            for x in operands(s):
                if x in returned:
                    place = atomic_of(returned[x])[0]  # type: ignore[index]
                    raise DifferentiationError(
                        f"the value returned by an atomic on `{place.name}` is used, and `{place.name}` has a gradient",
                        returned[x].loc,  # type: ignore[index]
                        "read the element in a kernel of its own, before or after the update",
                    )

    def _refuse_atomic(self, s: Op) -> None:
        place, code = atomic_of(s)
        value_varies = s.args[-1] in self.varied
        if code in REFUSED_ATOMICS and (value_varies or code == "xchg"):
            what = f"atomic {code} on `{place.name}` has no gradient here: the winner is not recorded"
            raise DifferentiationError(what, s.loc, REFUSED_ATOMICS[code])
        if code in REFUSED_ATOMICS:
            what = f"atomic {code} overwrites `{place.name}`, whose gradient would have to be cut where it wins"
            raise DifferentiationError(what, s.loc, REFUSED_ATOMICS[code])
        if code == "mul" and value_varies:
            what = f"`{place.name}[..] *= value` overwrites the factor that its own gradient needs"
            raise DifferentiationError(what, s.loc, f"store the product elsewhere: `out[..] = {place.name}[..] * value`")

    @staticmethod
    def _no_derivative(s: Op) -> None:
        raise DifferentiationError(f"`{s.op}` has no derivative", s.loc, "keep it out of what the loss depends on")


def stops_gradient(s: Op) -> bool:
    """Whether ``s`` is real but flat: its derivative is zero wherever it exists."""
    return s.op in FLAT
