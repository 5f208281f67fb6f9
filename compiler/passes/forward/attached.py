"""Second derivatives of what has its derivative attached: eigenvalues, singular values, inverses.

``attach(v, s)`` has the value v and the derivative of s. In s the results of the same decomposition stand as numbers without a derivative
(``d(inv(A)) = -X dA X`` with ``X = inv(A)`` as it was computed), which is right for a first derivative only: the tangent must be
differentiated as a function of X, too. So, before tangents are made, each slope is written a second time, with ``detach(attach(v, s))``
where v stood, and the tangent is made from that. Afterwards these ``detach`` go: the tangent depends on results whose derivatives are
attached. A coefficient that is neither a result with a derivative nor marked by the front end (``detach`` with the attribute ``AGAIN``)
has no second derivative here, and is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from ...errors import DifferentiationError
from ...ir.nodes import Block, Local, LocalStore, Op, Operand, Stmt, Task
from ...ir.walk import inner_blocks, operands, walk
from ..clone import substitute

AGAIN = "again"
"""The attribute of a ``detach`` whose operand has a derivative that a second one must see."""

Varied = set["Op | Local"]


def renew_slopes(tasks: Iterable[Task], varied: Varied) -> dict[Op, Operand]:
    """Write slopes a second time, in place, for tangents that will be differentiated again.

    Returns:
        What to put in the place of the new operations when the tangents are there; see ``settle``.

    Raises:
        DifferentiationError: a slope has a coefficient whose derivative is not known.
    """
    later: dict[Op, Operand] = {}
    for task in tasks:
        fresh: dict[Op, Operand] = {}  # attached values, as what follows shall read them
        fixed: Varied | None = None
        for block in _blocks(task.body):
            found = [s for s in block if isinstance(s, Op) and _computed(s, varied)]
            if found:
                fixed = _without_derivative(task) if fixed is None else fixed
                _Renewal(block, found, varied, fixed, fresh, later).run()
        _replace((s for s in walk(task.body) if not (isinstance(s, Op) and s.attr == AGAIN)), fresh)
    return later


def settle(tasks: Iterable[Task], later: dict[Op, Operand]) -> None:
    """Replace the operations of ``renew_slopes``, in place."""
    for block in (block for task in tasks for block in _blocks(task.body)):
        block[:] = [s for s in block if s not in later]
        _replace(block, later)


def _replace(statements: Iterable[Stmt], by: dict[Op, Operand]) -> None:
    for s in statements:
        substitute(s, by)


def _blocks(block: Block) -> Iterable[Block]:
    yield block
    for s in block:
        for inner in inner_blocks(s):
            yield from _blocks(inner)


def _computed(s: Op, varied: Varied) -> bool:
    """Whether an operation attaches a derivative to a number that has none itself (that of ``norm`` has)."""
    return s.op == "attach" and s.args[0] not in varied and s.args[1] in varied


def _without_derivative(task: Task) -> Varied:
    """What is computed from detached numbers."""
    out: Varied = set()
    size = -1
    while size != len(out):
        size = len(out)
        for s in walk(task.body):
            if isinstance(s, LocalStore):
                if s.value in out:
                    out.add(s.local)
            elif isinstance(s, Op) and s.dtype.is_real and s.op != "attach" and s.attr != AGAIN:
                if s.op == "detach" or (s.op == "load" and s.attr in out) or any(a in out for a in s.args):
                    out.add(s)
    return out


class _Renewal:
    """The attached values of one block."""

    def __init__(
        self, block: Block, found: list[Op], varied: Varied, fixed: Varied, fresh: dict[Op, Operand], later: dict[Op, Operand]
    ) -> None:
        self._block, self._found, self._varied, self._fixed = block, found, varied, fixed
        self._fresh, self._later = fresh, later
        self._by_value = {a.args[0]: a for a in reversed(found) if isinstance(a.args[0], Op)}
        self._copies: dict[Operand, Op] = {}
        self._at: dict[object, int] = {s: k for k, s in enumerate(block)}
        self._added: list[Block] = [[] for _ in block]  # behind each statement
        self._dependent: set[Operand] = {*self._by_value}  # what the block computes from results, and these
        for s in block:
            if isinstance(s, Op) and s.dtype.is_real and s.op != "attach":
                if s.attr == AGAIN or any(a in self._dependent for a in s.args):
                    self._dependent.add(s)

    def run(self) -> None:
        """Add the second slopes, and values that have them, each behind what it needs."""
        for a in self._found:
            self._copy_slope(a)
            slope = self._copies.get(a.args[1], a.args[1])
            new = self._add(Op("attach", (a.args[0], slope), a.dtype, None, a.loc))
            self._fresh[a], self._later[new] = new, a
        for s in self._block:
            if not (isinstance(s, Op) and s.attr == AGAIN):
                early = (x for x in operands(s) if isinstance(x, Op) and self._at.get(self._fresh.get(x), -1) >= self._at[s])
                if (x := next(early, None)) is not None:
                    raise _refusal(x)
        self._block[:] = chain.from_iterable([s, *added] for s, added in zip(self._block, self._added, strict=True))

    def _add(self, new: Op) -> Op:
        at = self._at[new] = max((self._at.get(x, -1) for x in new.args), default=-1)
        if at < 0:  # all of it comes from outside of the block
            raise _refusal(new)
        self._added[at].append(new)
        return new

    def _copy_slope(self, a: Op) -> None:
        work = [a.args[1]]
        while work:
            x = work[-1]
            todo = [y for y in self._reads(x) if y not in self._copies and self._is_copied(y)]
            work += todo
            if not todo:
                work.pop()
                if isinstance(x, Op) and x not in self._copies and self._is_copied(x):
                    self._copies[x] = self._copy(x, a)

    def _reads(self, x: Operand) -> tuple[Operand, ...]:
        return () if not isinstance(x, Op) or x in self._by_value or x.attr == AGAIN else x.args

    def _is_copied(self, x: Operand) -> bool:
        """What depends on results, and what has other detached factors: these are looked for."""
        if not isinstance(x, Op) or x.op == "attach":
            return False
        return x in self._dependent or (x in self._fixed and x in self._varied)

    def _copy(self, x: Op, a: Op) -> Op:
        if x in self._by_value or x.attr == AGAIN:
            target = self._by_value[x] if x in self._by_value else x.args[0]
            new = Op("detach", (target,), x.dtype, AGAIN, x.loc)
            self._later[new] = target
            return self._add(new)
        if any(y in self._fixed and y not in self._varied and y not in self._dependent for y in x.args):
            raise _refusal(a)
        args = (self._copies.get(y, y) for y in x.args)
        return self._add(
            Op(x.op, tuple(self._fresh.get(y, y) if isinstance(y, Op) else y for y in args), x.dtype, x.attr, x.loc)
        )


def _refusal(a: Op) -> DifferentiationError:
    return DifferentiationError(
        "this function of a matrix has no second derivative here",
        a.loc,
        "use svd, sym_eig, polar_decompose or A.inverse() @ b, of a matrix that nothing is detached in",
    )
