"""Store-to-load forwarding: a load of what was stored before, with nothing written in between, is the stored value.

A local that is stored once thereby becomes a plain value wherever the store dominates. Locals that a loop carries stay as they
are: what a loop or an arm may write is unknown in it and after it. Memory is forwarded within one iteration and for equal
indices only; a write to anything that may be the same memory ends it.
"""

from __future__ import annotations

from ..ir.alias import Aliases
from ..ir.nodes import Block, GlobalStore, If, Kernel, Local, LocalStore, Loop, Op, Operand, Place, Stmt, Task
from ..ir.verify import verified
from ..ir.walk import place_of, stored_locals, task_blocks, written_places
from .clone import clone_kernel, replace_head, replace_operands
from .cse import key_of

Index = tuple[object, ...]


def forward(kernel: Kernel) -> Kernel:
    """The kernel with loads replaced by the values that were stored."""
    out = clone_kernel(kernel)
    for task in out.tasks:
        forward_in_place(task)
    return out


@verified(lowered=False)
def forward_in_place(task: Task) -> bool:
    """Forward the stores of one task; whether any load went."""
    forwarder = _Forwarder(task)
    forwarder.block(task.prologue)
    replace_head(task, forwarder.value)
    forwarder.locals.clear()
    forwarder.cells.clear()
    forwarder.block(task.body)
    return bool(forwarder.known)


class _Forwarder:
    def __init__(self, task: Task) -> None:
        self.aliases = Aliases(p for p in map(place_of, task_blocks(task)) if p is not None)
        self.known: dict[Op, Operand] = {}  # a load and the value that it is
        self.locals: dict[Local, Operand] = {}
        self.cells: dict[Place, dict[Index, Operand]] = {}

    def value(self, x: Operand) -> Operand:
        """What an operand became."""
        return self.known.get(x, x) if isinstance(x, Op) else x

    def block(self, block: Block) -> None:
        """Forward within a block."""
        block[:] = [s for s in block if self.stays(s)]

    def arm(self, block: Block) -> None:
        """Forward into a nested block; what is stored in it is not known outside."""
        locals_before = self.locals.copy()
        cells_before = {place: cells.copy() for place, cells in self.cells.items()}
        self.block(block)
        self.locals, self.cells = locals_before, cells_before

    def wrote(self, block: Block) -> None:
        """Forget what a nested block may write."""
        for local in stored_locals(block):
            self.locals.pop(local, None)
        for place in written_places(block):
            self.clobber(place)

    def clobber(self, place: Place) -> None:
        """Forget what may share memory with ``place``."""
        for other in self.aliases.of(place):
            self.cells.pop(other, None)

    def stays(self, s: Stmt) -> bool:
        """Process a statement; False when it is a load of a known value."""
        replace_operands(s, self.value)
        match s:
            case Op():
                return self.op(s)
            case LocalStore():
                self.locals[s.local] = s.value
            case GlobalStore():
                index = tuple(map(key_of, s.index))
                apart = {i: v for i, v in self.cells.get(s.place, {}).items() if _differ(i, index)}
                self.clobber(s.place)
                self.cells[s.place] = {**apart, index: s.value}
            case If():
                self.arm(s.then)
                self.arm(s.orelse)
                self.wrote(s.then)
                self.wrote(s.orelse)
            case Loop():
                self.wrote(s.body)
                self.arm(s.body)
        return True

    def op(self, s: Op) -> bool:
        """Replace a load; an atomic ends what is known of its place."""
        found: Operand | None = None
        if s.op == "load":
            assert isinstance(s.attr, Local)
            found = self.locals.get(s.attr)
        elif s.op == "gload":
            assert isinstance(s.attr, Place)
            found = self.cells.get(s.attr, {}).get(tuple(map(key_of, s.args)))
        elif s.op == "atomic":
            place = place_of(s)
            assert place is not None
            self.clobber(place)
        if found is None:
            return True
        self.known[s] = found
        return False


def _differ(a: Index, b: Index) -> bool:
    """Whether two indices are certainly different elements: different literals on some axis."""
    return any(x != y and not isinstance(x, Op) and not isinstance(y, Op) for x, y in zip(a, b))
