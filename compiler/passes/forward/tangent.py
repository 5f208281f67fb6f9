"""Forward mode of a kernel: every value together with its tangent, in one kernel. The primal's effects happen too.

The tangent of an operation is the sum over its operands of the adjoint rule (``derivatives``) applied to the operand's tangent: the
rules are linear in it. A local that can have a tangent gets a second local, a place with a ``dual`` keeps its tangents there:

- a plain store stores the tangent, 0 where there is none: a second store replaces the first;
- an atomic sum adds the tangent;
- an atomic product, minimum, maximum or exchange, and any atomic whose old value is used, changes value and tangent together. No machine
  does that atomically, so the loop around it runs in order, on one thread. At a tie the last one wins. So it does when several iterations
  may store to one element: value and tangent must be those of one of them.

What is stored to a place without a dual has lost its tangent (``Tangent.lost``); ``FwdMode`` warns when it is read again on the way to
a place with a dual.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...errors import DifferentiationError
from ...ir.builder import StatementBuilder
from ...ir.nodes import Block, Const, GlobalStore, If, Kernel, Local, LocalStore, Loop, Op, Operand, Place, Stmt, Task
from ...ir.verify import verified
from ...ir.walk import atomic_of, operands, walk
from ..clone import clone_kernel
from ..dependence.access import Access
from ..dependence.blocks import refuse_blocks, refuse_order
from ..dependence.collisions import Collision, collisions
from ..reverse.derivatives import RULES, rules_of, zero_stays_zero
from .attached import renew_slopes, settle
from .tangent_flow import TangentFlow

ARMS = {"min": "lt", "max": "gt"}  # the comparison by which the first operand wins
_KNOWN_ATOMICS = ("add", "sub", "mul", "min", "max", "xchg")


@dataclass(frozen=True)
class Tangent:
    """A forward-mode kernel.

    Attributes:
        kernel: computes values and tangents.
        lost: stores of values that can have a tangent to places without a dual.
        read: loads from places without a dual whose value reaches a place with one.
        broken: (load, store) of one place in this kernel: the tangent is lost between them.
    """

    kernel: Kernel
    lost: tuple[Access, ...] = ()
    read: tuple[Access, ...] = ()
    broken: tuple[tuple[Access, Access], ...] = ()


@verified()
def forward_kernel(kernel: Kernel, smooth: bool = False) -> Tangent:
    """The kernel that does what ``kernel`` does and carries tangents along, from the duals of what it reads to those of what it writes.

    Args:
        kernel: lowered (no ``Exit``) and simplified; it is not changed.
        smooth: the tangents will be differentiated again. Then none is set to 0 where a factor of it is 0: that may have a derivative.
            Slopes that are attached depend on results that have a derivative, too (``attached``).

    Raises:
        DifferentiationError: something has no tangent, by name and line.
    """
    refuse_blocks(kernel, "tangent")
    out = clone_kernel(kernel)
    out.name = f"{kernel.name}_tangent"
    flow = TangentFlow(out.tasks)
    later = renew_slopes(out.tasks, flow.varied) if smooth else {}
    if later:
        flow = TangentFlow(out.tasks)
    for task in out.tasks:
        _Rewriter(out, task, flow, smooth).block(task.body)
    settle(out.tasks, later)
    return Tangent(out, flow.lost(), flow.read(), flow.broken())


class _Rewriter:
    """Puts the tangent of each statement of a task behind it, in place."""

    def __init__(self, kernel: Kernel, task: Task, flow: TangentFlow, smooth: bool) -> None:
        self.flow = flow
        self.used = {x for s in walk(task.body) for x in operands(s) if isinstance(x, Op) and x.op == "atomic"}
        self.tangent: dict[Op, Operand] = {}  # of every varied value so far
        self._locals: dict[Local, Local] = {}
        self.b = StatementBuilder([], smooth=flow.varied if smooth else None)
        found = collisions(kernel, task, flow.varied, lambda place: flow.dual(place) is not None)
        collide = any(isinstance(x, Collision) or not x.reads for x in found)
        if collide or any(map(self._needs_order, walk(task.body))):
            task.serialize = bool(task.axes)
            refuse_order(task)

    def _of(self, x: Operand) -> Operand | None:
        """The tangent of an operand; None when it is zero."""
        return self.tangent.get(x) if isinstance(x, Op) else None

    def _or_zero(self, x: Operand) -> Operand:
        found = self._of(x)
        return Const(0.0, x.dtype) if found is None else found

    def _local(self, local: Local) -> Local:
        if local not in self._locals:
            self._locals[local] = Local(local.dtype, f"{local.name}_dual")
        return self._locals[local]

    def block(self, block: Block) -> None:
        """Rewrite a block."""
        out: Block = []
        with self.b.into(out):
            for s in block:
                loc = getattr(s, "loc", None)
                self.b.loc = None if loc is None else replace(loc, mode="tangent")
                out.append(s)
                self._stmt(s)
        block[:] = out

    def _stmt(self, s: Stmt) -> None:
        match s:
            case If():
                self.block(s.then)
                self.block(s.orelse)
            case Loop():
                self.block(s.body)
            case LocalStore() if s.local in self.flow.varied:
                self.b.store(self._local(s.local), self._or_zero(s.value))
            case GlobalStore():
                dual = self.flow.dual(s.place)
                if dual is not None:
                    self.b.gstore(dual, s.index, self._or_zero(s.value))
            case Op(op="atomic"):
                self._atomic(s)
            case Op() if s in self.flow.varied:
                self.tangent[s] = self._value(s)

    # ---- values
    def _value(self, s: Op) -> Operand:
        b = self.b
        if s.op == "load":
            assert isinstance(s.attr, Local)
            return b.load(self._local(s.attr))
        if s.op == "gload":
            assert isinstance(s.attr, Place)
            dual = self.flow.dual(s.attr)
            assert dual is not None
            return b.gload(dual, s.args)
        if s.op == "shuffle":
            return b.op("shuffle", self._or_zero(s.args[0]), s.args[1], dtype=s.dtype, attr=s.attr)
        if s.op == "cast":
            return b.cast(self._or_zero(s.args[0]), s.dtype)
        if s.op == "select":
            return b.op("select", s.args[0], self._or_zero(s.args[1]), self._or_zero(s.args[2]))
        if s.op in ARMS:
            return b.op("select", b.op(ARMS[s.op], *s.args), self._or_zero(s.args[0]), self._or_zero(s.args[1]))
        total: Operand | None = None
        for number in range(len(s.args)):
            part = self._part(s, number)
            if part is not None:
                total = part if total is None else b.op("add", total, part)
        assert total is not None
        return total

    def _part(self, s: Op, number: int) -> Operand | None:
        """The contribution of one operand's tangent."""
        t, rule = self._of(s.args[number]), rules_of(s)[number]
        if t is None or rule is None:
            return None
        value, factor = rule(self.b, t, s.args, s), self._factor(s, number)
        return value if factor is None else zero_stays_zero(self.b, factor, value)

    def _factor(self, s: Op, number: int) -> Operand | None:
        """The factor of the tangent, if it may be 0: a zero factor then removes an infinite tangent, as a zero adjoint does."""
        partial = RULES[s.op][number] if s.op in RULES else None
        if partial is None or partial.factor is None or partial.adjoint is None:
            return None
        if partial.factor == "r":
            return s
        if isinstance(partial.factor, int):
            other = s.args[partial.factor]
            return None if isinstance(other, Const) and other.value != 0 else other
        found = partial.adjoint(self.b, Const(1.0, s.dtype), s.args, s)
        return None if isinstance(found, Const) else found

    # ---- atomics
    def _needs_order(self, s: Stmt) -> bool:
        """Whether value and tangent must change together, which no atomic does."""
        if not isinstance(s, Op) or s.op != "atomic" or self.flow.dual(atomic_of(s)[0]) is None:
            return False
        code = atomic_of(s)[1]
        return s in self.used or code in ("min", "max", "xchg") or (code == "mul" and s.args[-1] in self.flow.varied)

    def _atomic(self, s: Op) -> None:
        place, code = atomic_of(s)
        dual, b = self.flow.dual(place), self.b
        if dual is None:
            return
        if code not in _KNOWN_ATOMICS:
            hint = "read and store the element in a loop of one thread: qd.loop_config(serialize=True)"
            raise DifferentiationError(f"atomic {code} on `{place.name}` has no tangent in forward mode", s.loc, hint)
        index, value, t = s.args[:-1], s.args[-1], self._of(s.args[-1])
        before = self.tangent[s] = b.gload(dual, index)
        if t is None and code in ("add", "sub"):
            return
        if t is None and code == "mul":
            b.atomic("mul", dual, index, value)
        elif t is not None and code in ("add", "sub"):
            b.atomic(code, dual, index, t)
        elif t is not None and code == "mul":
            product = zero_stays_zero(b, value, b.op("mul", before, value))
            b.gstore(dual, index, b.op("add", product, zero_stays_zero(b, s, b.op("mul", s, t))))
        elif code == "xchg":
            b.gstore(dual, index, self._or_zero(value))
        else:  # min and max
            with b.if_(b.op("not", b.op(ARMS[code], s, value))):
                b.gstore(dual, index, self._or_zero(value))
