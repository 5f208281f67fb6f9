"""``HeapPlan``: the memory of a gradient launch, to the byte; as data, JSON, a table and text.

bytes = sum over planes of (max over tasks of rows * words), where the words of a row are
slots(K, L, S) * width, summed over loops that are live together (see ``docs/adstack.md``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from io import StringIO
from typing import TYPE_CHECKING

from ..ir.nodes import Loc
from ..ir.threads import once
from ..ir.types import PLANES
from .levels import LoopPlan
from .sizing import StackSizing

if TYPE_CHECKING:
    from rich.table import Table

KINDS = {"ck1": "checkpoints", "ck2": "inner checkpoints", "tape": "tape"}
PLANE_NAMES = {"f4": "4-byte reals", "f8": "8-byte reals", "i4": "4-byte integers", "i8": "8-byte integers"}


@dataclass(frozen=True)
class PlannedLoop:
    """One loop of a plan: its parameters, its location, the bytes of its stacks in a heap row, and these stacks."""

    number: int
    plan: LoopPlan
    loc: Loc | None
    row_bytes: int
    stacks: tuple[StackSizing, ...] = ()
    shared_bytes: int = 0  # bytes of a thread in on-chip memory


@dataclass(frozen=True)
class TaskPlan:
    """The plan of one task: ``rows`` adstack rows of ``words[plane]`` words. ``params`` are its launch parameters.

    Attributes:
        shared: names of the stacks in on-chip memory. Their offsets among the ``params`` are in bytes of a thread.
        shared_bytes: bytes of on-chip memory per thread.
        block: threads that share on-chip memory; 0: the device has none for adstacks.
        lanes: iterations of a worker that have rows at a time.
    """

    position: int
    name: str
    rows: int
    rows_source: str
    parallel: bool
    loops: tuple[PlannedLoop, ...]
    words: Mapping[str, int]
    params: Mapping[str, int]
    workers: int = 1
    seconds: float = field(default=0.0, compare=False)  # predicted by ``cost.py``
    shared: frozenset[str] = frozenset()
    shared_bytes: int = 0
    block: int = 0
    lanes: int = 1

    @property
    def stride(self) -> Mapping[str, int]:
        """The stride of rows in words, by plane."""
        return self.words

    @property
    def bytes(self) -> int:
        """Bytes of the heap while this task runs."""
        return sum(self.rows * n * PLANES[p] for p, n in self.stride.items())


@dataclass(frozen=True)
class HeapPlan:
    """The heap of one gradient launch. Its tasks run one after another on the same heap."""

    kernel: str
    tasks: tuple[TaskPlan, ...]

    @once
    def planes(self) -> dict[str, int]:
        """Bytes by plane."""
        return {p: size * max((t.rows * t.stride.get(p, 0) for t in self.tasks), default=0) for p, size in PLANES.items()}

    @once
    def bytes(self) -> int:
        """Bytes that the launch allocates."""
        return sum(self.planes.values())

    @property
    def far(self) -> frozenset[str]:
        """The names of the tapes in the heap, see ``codegen.gpu.grid.rows.name_of``. Without on-chip memory: all tapes."""
        tapes = ((t, k.name) for t in self.tasks for p in t.loops for k in p.stacks if k.kind == "tape")
        return frozenset(f"{t.position}:{name}" for t, name in tapes if name not in t.shared)

    @property
    def seconds(self) -> float:
        """Predicted nanoseconds of the tasks that keep states. Comparable between plans of one launch only."""
        return sum(t.seconds for t in self.tasks)

    def rows(self) -> list[dict[str, object]]:
        """The plan as table rows: one per loop with stacks, with its slots, its bytes and the source of its bound.

        ``shared_bytes``, on devices with on-chip memory: bytes per thread, which are no part of ``row_bytes``.
        """
        out: list[dict[str, object]] = []
        for t in self.tasks:
            for p in t.loops:
                row: dict[str, object] = {
                    "task": t.name,
                    "line": f"{p.loc.file}:{p.loc.line}" if p.loc else "",
                    "rows": t.rows,
                    "rows_from": t.rows_source,
                    "lanes": t.lanes,
                    "bound": p.plan.bound,
                    "bound_from": p.plan.source,
                    "levels": p.plan.levels,
                    "segment": p.plan.S,
                    "slots": {k.kind: p.plan.slots(k.kind) for k in p.stacks},
                    "row_bytes": p.row_bytes,
                    "bytes": t.rows * p.row_bytes,
                }
                if t.block:
                    row["shared_bytes"] = p.shared_bytes
                out.append(row)
        return out

    def to_json(self) -> dict[str, object]:
        """The plan as plain data: total bytes and bytes by plane, each with its formula, and ``rows()`` as ``loops``."""
        planes = [
            {"plane": p, "bytes": n, "words": n // PLANES[p], "formula": formula(self, p), "where": _largest(self, p)}
            for p, n in self.planes.items()
            if n
        ]
        out: dict[str, object] = {"kernel": self.kernel, "bytes": self.bytes, "planes": planes, "loops": self.rows()}
        if any(t.block for t in self.tasks):
            out["shared"] = [
                {"task": t.name, "bytes": t.shared_bytes * t.block, "thread_bytes": t.shared_bytes, "formula": on_chip(t)}
                for t in self.tasks
                if t.shared_bytes
            ]
        return out

    def table(self) -> Table:
        """The plan as a table for ``rich``: ``rich.print(plan)`` shows it, ``print(plan)`` shows it as plain text."""
        return _table(self)

    __rich__ = table

    def __str__(self) -> str:
        return _text(self)


@dataclass(frozen=True)
class StackSpace:
    """The words of one stack of a loop in a row: ``slots`` times ``width``."""

    loop: PlannedLoop
    kind: str
    slots: int
    width: int

    @property
    def words(self) -> int:
        """Words of the plane."""
        return self.slots * self.width

    @property
    def where(self) -> str:
        """``file:line`` of the loop, without folders."""
        return place(self.loop)


def place(loop: PlannedLoop, folders: bool = False) -> str:
    """``file:line`` of a loop; empty if the source is unknown."""
    if loop.loc is None:
        return ""
    text = str(loop.loc)
    return text if folders else text.rpartition("/")[2]


def spaces(task: TaskPlan, plane: str) -> tuple[StackSpace, ...]:
    """The stacks that are live together at the point where a row of ``task`` is fullest, in order of their words.

    Their words add up to ``task.words[plane]``. Other stacks (of the other arm of an ``if``, of loops in the body of a sibling) overlap
    them.
    """
    placed = [
        (task.params[f"{stack.name}.{plane}"], StackSpace(loop, stack.kind, loop.plan.slots(stack.kind), width))
        for loop in task.loops
        for stack in loop.stacks
        if stack.name not in task.shared
        for own, width in stack.widths
        if own == plane
    ]
    out: list[StackSpace] = []
    end = task.words.get(plane, 0)
    while end:
        at, space = next((at, s) for at, s in placed if s.words and at + s.words == end)
        out.append(space)
        end = at
    return tuple(reversed(out))


def owner(plan: HeapPlan, plane: str) -> TaskPlan | None:
    """The task that determines the size of a plane; None if no task uses the plane."""
    using = [t for t in plan.tasks if t.words.get(plane, 0)]
    return max(using, key=lambda t: plane_words(plan, t, plane), default=None)


def plane_words(plan: HeapPlan, task: TaskPlan, plane: str) -> int:
    """Words of a plane while a task runs."""
    return task.rows * task.stride.get(plane, 0)


def formula(plan: HeapPlan, plane: str) -> str:
    """The formula of the bytes of a plane, term by term; empty for an unused plane."""
    task = owner(plan, plane)
    if task is None or not plan.planes[plane]:
        return ""
    terms = [f"{s.slots} x {s.width} ({KINDS.get(s.kind, s.kind)} of {s.where or 'a loop'})" for s in spaces(task, plane)]
    sums = terms[0] if len(terms) == 1 else f"({' + '.join(terms)})"
    row = "row" if task.rows == 1 else "rows"
    return f"{task.rows} {row} ({task.rows_source}) x {sums} x {PLANES[plane]} bytes"


def on_chip(task: TaskPlan) -> str:
    """The formula of the on-chip bytes of a block of threads; empty for a task without any."""
    if not task.shared_bytes:
        return ""
    where = [f"{p.plan.tape_slots} slots of {place(p) or 'a loop'}" for p in task.loops if p.shared_bytes]
    whole = task.shared_bytes * task.block
    return f"{whole:,} = {task.block} threads x {task.shared_bytes} bytes ({task.name}: {' + '.join(where)})"


def _largest(plan: HeapPlan, plane: str) -> str:
    """``file:line`` of the loop with the most bytes of a plane."""
    task = owner(plan, plane)
    words: dict[str, int] = {}
    for space in spaces(task, plane) if task else ():
        where = place(space.loop, folders=True)
        words[where] = words.get(where, 0) + space.words
    return max(words, key=lambda where: words[where], default="")


def capacity(loop: PlannedLoop) -> str:
    """The iterations that the stacks of a loop hold, with the formula and the source of the bound."""
    p = loop.plan
    if p.C1 == 0:
        return f"{p.capacity:,} ({p.source})"
    doubled = f" x {p.capacity // (p.C1 * p.D1)}" if p.capacity > p.C1 * p.D1 else ""
    return f"{p.capacity:,} = {p.C1} checkpoints x {p.D1} iterations{doubled} ({p.source})"


def needs(plan: HeapPlan) -> list[str]:
    """One line per plane of a heap: the loop with the most bytes, and the formula."""
    lines = []
    for plane, amount in plan.planes.items():
        if amount:
            where = _largest(plan, plane)
            loop = next(p for t in plan.tasks for p in t.loops if place(p, folders=True) == where)
            bound = "an unknown number of" if loop.plan.bound is None else loop.plan.bound
            lines.append(f"at {where}: {amount:,} = {formula(plan, plane)}; {bound} iterations ({loop.plan.source})")
    return lines


def _table(plan: HeapPlan) -> Table:
    from rich.table import Table

    out = Table(title=f"adstack of {plan.kernel}: {plan.bytes:,} bytes", title_justify="left", caption_justify="left")
    for name in ("loop", "task", "rows", "iterations", "levels", "slots", "bytes a row", "bytes"):
        out.add_column(name, justify="right" if name.startswith("bytes") else "left")
    chip = any(t.block for t in plan.tasks)
    if chip:
        out.add_column("on chip a thread", justify="right")
    for row in plan.rows():
        slots = row["slots"]
        assert isinstance(slots, dict)
        cells = [str(row["line"]).rpartition("/")[2], row["task"], f"{row['rows']} ({row['rows_from']})"]
        cells += [f"{'unknown' if row['bound'] is None else row['bound']} ({row['bound_from']})", row["levels"]]
        cells += [" + ".join(str(n) for n in slots.values() if n), f"{row['row_bytes']:,}", f"{row['bytes']:,}"]
        cells += [f"{row.get('shared_bytes', 0):,}"] if chip else []
        out.add_row(*map(str, cells))
    out.caption = "\n".join(_sums(plan))
    return out


def _sums(plan: HeapPlan) -> list[str]:
    sums = [f"{PLANE_NAMES[p]}: {n:,} = {formula(plan, p)}" for p, n in plan.planes.items() if n]
    return sums + [f"on chip, a block: {line}" for line in map(on_chip, plan.tasks) if line]


def _text(plan: HeapPlan) -> str:
    """The table as plain text without colours, at its natural width."""
    from rich.console import Console

    stream, rows = StringIO(), _table(plan)
    rows.caption = None  # it would be folded at the width of the table
    Console(file=stream, width=1000, no_color=True, force_terminal=False).print(rows)
    return "\n".join([line.rstrip() for line in stream.getvalue().rstrip("\n").splitlines()] + _sums(plan))


def debug_lines(plan: HeapPlan) -> Iterator[str]:
    """One line per task and plane of a bound heap, as printed under ``QDRUN_DEBUG_ADSTACK=1``."""
    for task in plan.tasks:
        for plane, words in task.words.items():
            if not words or not task.rows:
                continue
            parts = spaces(task, plane)
            bounds = dict.fromkeys(f"{s.loop.plan.source} at {s.where}" for s in parts)
            facts = {"kernel": plan.kernel, "task": task.name, "plane": plane, "rows": task.rows}
            facts |= {
                "slots": sum(s.slots for s in parts),
                "words": words,
                "bytes": plane_words(plan, task, plane) * PLANES[plane],
            }
            head = " ".join(f"{name}={value}" for name, value in facts.items())
            yield f'[adstack] {head} source="{task.rows_source}; {"; ".join(bounds)}"'
        if task.shared_bytes:
            yield f"[adstack] kernel={plan.kernel} task={task.name} plane=on-chip bytes={on_chip(task)}"
    if not plan.bytes:
        yield f'[adstack] kernel={plan.kernel} bytes=0 source="no stack"'
