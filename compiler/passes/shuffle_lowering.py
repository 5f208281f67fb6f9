"""Lowers shuffles and votes to shared memory, on GPUs without instructions for them: a store, a barrier, a load, a barrier.

The front end marks them (``shuffles.group_of``). Until here they are operations as on other GPUs, so that derivatives know them.
"""

from __future__ import annotations

from ..ir.builder import StatementBuilder, const_i64
from ..ir.nodes import Block, Buffer, Const, If, Kernel, Loop, Op, Operand, Place, Stmt, Task
from ..ir.types import DType, i32, i64, u1, u8, u32
from ..ir.walk import LANE_VALUES, has_op, walk
from .clone import clone_kernel
from .shuffles import in_memory


def through_memory(kernel: Kernel) -> Kernel:
    """The kernel without marked operations; itself if it has none."""
    if not has_op(kernel, "shuffle", "ballot") or not any([_marked(s) for task in kernel.tasks for s in walk(task.body)]):
        return kernel
    out = clone_kernel(kernel)
    for task in out.tasks:
        _ShuffleLowering(task).block(task.body)
    return out


def _marked(s: Stmt) -> bool:
    return isinstance(s, Op) and s.op in ("shuffle", "ballot") and in_memory(s)


class _ShuffleLowering:
    """Rewrites one task. ``places``: an array for the values of each type, which all operations share."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.places: dict[tuple[DType, int], Place] = {}

    def block(self, block: Block) -> None:
        """Rewrite a block, in place."""
        out: Block = []
        for s in block:
            if isinstance(s, If):
                self.block(s.then)
                self.block(s.orelse)
            elif isinstance(s, Loop):
                self.block(s.body)
            elif isinstance(s, Op) and _marked(s):
                b = StatementBuilder(out)
                b.loc = s.loc
                (self._shuffle if s.op == "shuffle" else self._ballot)(b, s, int(str(s.attr).split()[0]))
                continue
            out.append(s)
        block[:] = out

    def _place(self, dtype: DType, n: int) -> Place:
        key = dtype, n
        if key not in self.places:
            name = f"{LANE_VALUES} {len(self.places)}"
            self.places[key] = Place(name, dtype, Buffer("block"), 1, (n,), (dtype.size,), 0, dtype.size)
        return self.places[key]

    def _thread(self, b: StatementBuilder) -> Operand:
        """The number of this thread in its block."""
        size = self.task.block
        power = size & (size - 1) == 0
        return b.op("and" if power else "crem", b.op("iter", dtype=i64), const_i64(size - power))

    def _shuffle(self, b: StatementBuilder, s: Op, size: int) -> None:
        value, lane = s.args
        narrow, mine = s.dtype is u1, self._thread(b)
        place = self._place(u8 if narrow else s.dtype, -(-self.task.block // size) * size)
        b.gstore(place, (mine,), b.cast(value, u8) if narrow else value)
        _meet(b)
        index = (b.op("add", b.op("and", mine, const_i64(-size)), b.cast(lane, i64)),)
        if narrow:
            s.op, s.args, s.attr = "ne", (b.gload(place, index), Const(0, u8)), None
        else:
            s.op, s.args, s.attr = "gload", index, place
        b.put(s)
        _meet(b)  # before the next value comes to the same place

    def _ballot(self, b: StatementBuilder, s: Op, size: int) -> None:
        mine = self._thread(b)
        place, index = self._place(u32, -(-self.task.block // size)), (b.op("sar", mine, const_i64(size.bit_length() - 1)),)
        lane = b.op("and", mine, const_i64(size - 1))
        with b.if_(b.op("eq", lane, const_i64(0))):
            b.gstore(place, index, Const(0, u32))
        _meet(b)
        b.atomic("or", place, index, b.op("shl", b.cast(s.args[0], u32), b.cast(lane, u32)))
        _meet(b)
        s.op, s.args, s.attr = "cast", (b.gload(place, index),), None
        b.put(s)
        _meet(b)


def _meet(b: StatementBuilder) -> None:
    b.op("barrier", dtype=i32, attr="exchange")
