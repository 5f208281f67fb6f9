"""Which statements each copy of a block keeps, and which variables a loop must remember.

A reverse program holds up to three copies of a loop body, each its own backward slice (dead-code elimination from what it is for):

- the forward sweep: the state, what later code reads, and how the loop was left;
- the refill sweep: recomputes the states of one segment from a checkpoint;
- the last replay: runs once per iteration, right before that iteration's backward code, which reads its values.

``T`` (tape) is what a last replay needs of the variables that the loop carries; ``X`` (checkpoints) is T closed over what a refill
sweep needs to recompute it. See docs/adstack.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...errors import DifferentiationError
from ...ir.nodes import Assert, Block, Const, GlobalStore, If, Local, LocalStore, Loop, Op, Operand, Stmt, Task
from ...ir.walk import atomic_of, stored_locals, walk
from .activity import Activity

Keep = set[int]  # ids of kept statements


@dataclass
class LoopInfo:
    """The facts about one loop with backward work."""

    tape: list[Local] = field(default_factory=list)
    ck: list[Local] = field(default_factory=list)
    inv: list[Local] = field(default_factory=list)  # read at entry by a replay, not modified by the loop
    sweep: bool = False  # a forward sweep is needed at all
    keep_fwd: Keep = field(default_factory=set)
    keep_refill: Keep = field(default_factory=set)


class PlainSlicer:
    """Backward slices of blocks that only run forward. ``roots``: ids of side effects that a copy must repeat."""

    def __init__(self, roots: frozenset[int] = frozenset()) -> None:
        self._roots = roots
        self._modified: dict[int, set[Local]] = {}

    def modified(self, loop: Loop) -> set[Local]:
        """The locals that the loop's body stores to."""
        if loop.id not in self._modified:
            self._modified[loop.id] = stored_locals(loop.body)
        return self._modified[loop.id]

    def _simple(self, s: Stmt, live: set[Local], vals: set[Operand], keep: Keep) -> None:
        """Op and LocalStore: keep if needed, then its operands are needed."""
        if isinstance(s, LocalStore):
            if s.local not in live:
                return
            live.discard(s.local)
            need: tuple[Operand, ...] = (s.value,)
        elif isinstance(s, Op) and s in vals:
            if s.op == "atomic":
                place, _ = atomic_of(s)
                raise DifferentiationError(
                    f"the backward pass needs the value returned by an atomic on `{place.name}`, and cannot repeat the update",
                    s.loc,
                    "store the returned value in a field in one kernel and read it in the next",
                )
            need = s.args
            if s.op == "load":
                live.add(s.attr)  # type: ignore[arg-type]
        else:
            return
        keep.add(id(s))
        vals.update(need)

    def slice_plain(
        self, block: Block, live: set[Local], vals: set[Operand], keep: Keep, inside: Local | None = None
    ) -> set[Local]:
        """Backward slice for ``live`` at the exit. Returns the locals that are live at the entry.

        ``inside``: the exit local of the loop being refilled. A refill never runs the iteration that left the loop, so each of
        its exit sites is known not to be taken and its condition is not needed.
        """
        live, guarded = set(live), False
        for s in reversed(block):
            if isinstance(s, Assert):
                self._guard(s, guarded, vals, keep)
                continue
            if isinstance(s, If):
                live = self._plain_if(s, live, vals, keep, inside)
            elif isinstance(s, Loop):
                if live & self.modified(s) or any(id(x) in self._roots for x in walk(s.body)):
                    live = self._loop_fixpoint(s, live, vals, keep)
            elif id(s) in self._roots:
                self._root(s, vals, keep)
            elif not isinstance(s, GlobalStore):
                self._simple(s, live, vals, keep)
            guarded = id(s) in keep
        return live

    def _guard(self, s: Assert, guarded: bool, vals: set[Operand], keep: Keep) -> None:
        """A bounds check is kept when the access behind it is, or when it is asked for."""
        if s.kind == "bounds" and (guarded or id(s) in self._roots):
            keep.add(id(s))
            vals.update((s.cond, *s.args))

    def _root(self, s: Stmt, vals: set[Operand], keep: Keep) -> None:
        """A side effect that must be repeated (a temporary that later tasks read)."""
        keep.add(id(s))
        vals.update(s.args if isinstance(s, Op) else (*s.index, s.value))  # type: ignore[union-attr]

    def _plain_if(self, s: If, live: set[Local], vals: set[Operand], keep: Keep, inside: Local | None) -> set[Local]:
        known = bool(s.site) and inside is not None and s.site_local is inside
        at_then = live if known else self.slice_plain(s.then, live, vals, keep, inside)
        at_else = self.slice_plain(s.orelse, live, vals, keep, inside)
        if _any_kept(s.orelse, keep) or (not known and _any_kept(s.then, keep)):
            keep.add(id(s))
            live = at_else if known else at_then | at_else
            if not known:
                vals.add(s.cond)
        return live

    def _loop_fixpoint(self, s: Loop, live: set[Local], vals: set[Operand], keep: Keep) -> set[Local]:
        out = set(live)
        while True:
            at_exit = out | ({s.exit} if s.exit else set())
            new = out | self.slice_plain(s.body, at_exit, vals, keep)
            if new == out:
                break
            out = new
        keep.add(id(s))
        vals.update(x for x in (s.begin, s.end) if x is not None)
        return out


class Slicer(PlainSlicer):
    """Slices of one task. ``keep`` marks the statements of the last-replay copies (each statement has one such copy)."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.activity = Activity(task)
        self.info: dict[Loop, LoopInfo] = {}
        self.keep: Keep = set()
        self._exits: set[Local] = set()
        self.slice_reverse(task.body, set(), set())

    def kept(self) -> Keep:
        """Statements that some copy keeps."""
        return self.keep.union(*(i.keep_fwd | i.keep_refill for i in self.info.values()))

    def slice_reverse(self, block: Block, live: set[Local], vals: set[Operand]) -> set[Local]:
        """As ``slice_plain``, but the backward code of the block may read its values."""
        live, guarded = set(live), False
        for s in reversed(block):
            if isinstance(s, Assert):
                self._guard(s, guarded, vals, self.keep)
                continue
            if isinstance(s, If):
                at_then, at_else = self.slice_reverse(s.then, live, vals), self.slice_reverse(s.orelse, live, vals)
                if self.activity.is_active(s) or _any_kept(s.then, self.keep) or _any_kept(s.orelse, self.keep):
                    self.keep.add(id(s))
                    live = at_then | at_else
                    if not self.site_known(s):
                        vals.add(s.cond)
            elif isinstance(s, Loop):
                if self.activity.is_active(s):
                    live = self._reverse_loop(s, live, vals)
                elif live & self.modified(s):
                    live = self._loop_fixpoint(s, live, vals, self.keep)
            else:
                if self.activity.is_active(s):
                    vals.update(a for a in self.activity.needs(s) if not isinstance(a, Const))
                if not isinstance(s, GlobalStore):
                    self._simple(s, live, vals, self.keep)
            guarded = id(s) in self.keep or self.activity.is_active(s)
        return live

    def site_known(self, s: If) -> bool:
        """In a last replay the loop's exit site is a recorded number, so the condition of an exit is not recomputed."""
        return bool(s.site) and s.site_local in self._exits

    def _reverse_loop(self, s: Loop, live: set[Local], vals: set[Operand]) -> set[Local]:
        info = self.info[s] = LoopInfo()
        if s.exit:
            self._exits.add(s.exit)
        changed = self.modified(s)
        # 1. the last replay: nothing is live after it but the values that its backward code reads
        at_entry = self.slice_reverse(s.body, set(), vals)
        info.tape = _by_id(at_entry & changed)
        inv = at_entry - changed
        # 2. the refill sweep: close T over what recomputes it
        x = set(info.tape)
        own: set[Operand] = set()  # not ``vals``: a sweep must not keep what only the last replay needs
        while x:
            got = self.slice_plain(s.body, x, own, info.keep_refill, s.exit)
            if got & changed <= x:
                inv |= got - changed
                break
            x |= got & changed
        info.ck = _by_id(x)
        info.inv = _by_id(inv)
        # 3. the forward sweep: the state, what later code reads, how the loop was left
        info.sweep = bool(x or s.exit or live & changed)
        out = live | inv
        if info.sweep:
            out = self._loop_fixpoint(s, live | inv | x, own, info.keep_fwd)
        vals |= own
        vals.update(a for a in (s.begin, s.end) if a is not None)
        self.keep.add(id(s))
        return out


def _any_kept(block: Block, keep: Keep) -> bool:
    return any(id(s) in keep for s in block)


def _by_id(locals_: set[Local]) -> list[Local]:
    return sorted(locals_, key=lambda v: v.id)
