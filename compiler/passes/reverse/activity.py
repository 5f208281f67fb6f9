"""Activity analysis: the values that depend on a differentiable array, and the statements that have backward code."""

from __future__ import annotations

from ...errors import DifferentiationError
from ...ir.nodes import GlobalStore, If, Local, LocalStore, Loop, Op, Operand, Place, Stmt, Task
from ...ir.ops import TABLE
from ...ir.walk import atomic_of, operands, walk
from .derivatives import carries, is_known, needs_of, refusal, rules_of
from .final_values import CLAIMS, find_finals

_WITH_VALUE = (*CLAIMS, "mul")  # atomics whose backward code reads their value


class Activity:
    """Activity of one task.

    ``varied`` holds the values and locals that depend on a differentiable array, ``active`` those of them that a differentiable array
    depends on: only these have an adjoint. ``masked`` holds those that a ``select``, ``min`` or ``max`` may drop: their adjoint may be
    zero at a point where they themselves are infinite or NaN. ``finals``: see ``passes.reverse.final_values``.
    """

    def __init__(self, task: Task) -> None:
        self.varied: set[Op | Local] = set()
        self.active: set[Op | Local] = set()
        self._active: dict[int, bool] = {}
        self.masked: set[Op | Local] = set()
        statements = list(walk(task.body))
        self._propagate(statements)
        refuse_unknown(statements, self.varied)
        self.finals = find_finals(task, self.varied)
        statements.reverse()
        self._keep_useful(statements)
        self._mask(statements)
        self._refuse(task)

    def is_varied(self, x: Operand | Local) -> bool:
        """Whether an adjoint of ``x`` can be other than zero."""
        return x in self.active

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
        return carries(s) and any(a in self.varied for a, rule in zip(s.args, rules_of(s)) if rule is not None)

    def _keep_useful(self, backwards: list[Stmt]) -> None:
        """Values that only steer control flow, or are never stored, have no adjoint."""
        useful: set[Operand | Local] = set()
        size = -1
        while size != len(useful):
            size = len(useful)
            for s in backwards:
                if isinstance(s, LocalStore):
                    if s.local in useful:
                        useful.add(s.value)
                elif isinstance(s, GlobalStore):
                    if s.place.differentiable:
                        useful.add(s.value)
                elif isinstance(s, Op):
                    useful.update(self._passes_on(s, useful))
        self.active = {x for x in self.varied if x in useful}

    def _passes_on(self, s: Op, useful: set[Operand | Local]) -> list[Operand | Local]:
        """The operands that receive a part of an operation's adjoint."""
        if s.op == "atomic":
            return [s.args[-1]] if atomic_of(s)[0].differentiable else []
        if s not in useful or s not in self.varied:
            return []
        if s.op == "load":
            return [s.attr]  # type: ignore[list-item]
        return [a for a, rule in zip(s.args, rules_of(s)) if rule is not None] if carries(s) else []

    def _mask(self, backwards: list[Stmt]) -> None:
        size = -1
        while size != len(self.masked):
            size = len(self.masked)
            for s in backwards:
                if isinstance(s, LocalStore) and s.local in self.masked and isinstance(s.value, Op):
                    self.masked.add(s.value)
                elif isinstance(s, Op) and s.op == "load" and s in self.masked:
                    self.masked.add(s.attr)  # type: ignore[arg-type]
                elif isinstance(s, Op) and (s.op in ("select", "min", "max") or s in self.masked or s in self.finals.claims):
                    self.masked.update(a for a in s.args if isinstance(a, Op) and a in self.active)

    def is_active(self, s: Stmt) -> bool:
        """Whether the statement has backward code."""
        known = self._active.get(id(s))
        if known is None:
            known = self._active[id(s)] = self._compute_active(s)
        return known

    def _compute_active(self, s: Stmt) -> bool:
        match s:
            case Op(op="atomic"):
                return atomic_of(s)[0].differentiable and (s.args[-1] in self.varied or self._scales(s))
            case Op():
                return s in self.active
            case LocalStore():
                return s.local in self.active
            case GlobalStore():
                return s.place.differentiable
            case If():
                return any(map(self.is_active, s.then)) or any(map(self.is_active, s.orelse))
            case Loop():
                return any(map(self.is_active, s.body))
        return False

    def _scales(self, s: Op) -> bool:
        """Whether an atomic changes the adjoint of its element where it stands, even when its value does not vary."""
        return s in self.finals.claims or (atomic_of(s)[1] == "mul" and s not in self.finals.deferred)

    def needs(self, s: Stmt) -> list[Operand]:
        """The values that the backward code of a statement without blocks reads."""
        if isinstance(s, GlobalStore):
            return list(s.index)
        if not isinstance(s, Op) or s.op == "load":
            return []
        if s.op == "gload":
            return list(s.args)
        if s.op == "atomic":
            return list(s.args if atomic_of(s)[1] in _WITH_VALUE else s.args[:-1])
        out: list[Operand] = []
        for operand, names in zip(s.args, needs_of(s), strict=True):
            if operand in self.active:
                out += [s if n == "r" else s.args[n] for n in names]  # type: ignore[index]
        return out

    def _refuse(self, task: Task) -> None:
        """Raise for a statement that has no correct gradient, with its name and line."""
        refuse_bits(list(walk(task.body)), self.varied)
        returned: dict[Op, Op] = {}
        for s in walk(task.body):
            if isinstance(s, Op) and s.op == "atomic" and atomic_of(s)[0].differentiable:
                self._refuse_atomic(s)
                returned[s] = s
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
        if code not in (*_WITH_VALUE, "add", "sub"):
            raise DifferentiationError(
                f"atomic {code} on `{place.name}` has no gradient here: which iteration comes last is not recorded",
                s.loc,
                "store to an element of the iteration's own",
            )


def refuse_unknown(statements: list[Stmt], varied: set[Op | Local]) -> None:
    """Refuse an operation that the tables of derivatives do not list, where a varied value meets it or it may read one from memory.

    Raises:
        DifferentiationError: there is one.
    """
    for s in statements:
        if isinstance(s, Op) and not is_known(s.op):
            if any(a in varied for a in s.args) or (s.dtype.is_real and not TABLE[s.op].pure):
                raise refusal(s)


def refuse_bits(statements: list[Stmt], varied: set[Op | Local]) -> None:
    """Refuse a real number that is made of the bits of a varied one. Bits that only decide something are harmless.

    Raises:
        DifferentiationError: there is one.
    """
    bits: set[Op | Local] = set()
    size = -1
    while size != len(bits):
        size = len(bits)
        for s in statements:
            if isinstance(s, LocalStore) and s.value in bits:
                bits.add(s.local)
            elif isinstance(s, Op) and _holds_bits(s, bits, varied):
                if s.dtype.is_real:
                    raise DifferentiationError(
                        "the bits of a value that has a gradient become a number again (`bit_cast`), which has no derivative",
                        s.loc,
                        "compute the number with arithmetic, or keep it out of what the loss depends on",
                    )
                bits.add(s)


def _holds_bits(s: Op, bits: set[Op | Local], varied: set[Op | Local]) -> bool:
    if s.op == "load":
        return s.attr in bits
    if s.op == "bitcast" and s.args[0] in varied:
        return True
    values = s.args[1:] if s.op == "select" else s.args
    return s.dtype.kind != "b" and s.op not in ("gload", "atomic") and any(a in bits for a in values)
