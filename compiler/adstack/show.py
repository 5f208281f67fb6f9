"""A heap plan for people and for programs: which stack takes which words, the formula behind each plane, a table, JSON, debug lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING

from ..ir.types import PLANES

if TYPE_CHECKING:
    from rich.table import Table

    from .plan import HeapPlan, PlannedLoop, TaskPlan

KINDS = {"ck1": "checkpoints", "ck2": "inner checkpoints", "tape": "tape"}
PLANE_NAMES = {"f4": "4-byte reals", "f8": "8-byte reals", "i4": "4-byte integers", "i8": "8-byte integers"}


@dataclass(frozen=True)
class Space:
    """Words of a row that one stack of one loop takes: ``slots`` times ``width``."""

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
    """``file:line`` of a loop; empty where the source is not known."""
    if loop.loc is None:
        return ""
    text = str(loop.loc)
    return text if folders else text.rpartition("/")[2]


def spaces(task: TaskPlan, plane: str) -> tuple[Space, ...]:
    """The stacks that are live together where a row of ``task`` is fullest, from its first word to its last.

    Their words add up to ``task.words[plane]``: what stands beside them (the other arm of an ``if``, loops in the body of a sibling)
    lies in the same words.
    """
    placed = [
        (task.params[f"{stack.name}.{plane}"], Space(loop, stack.kind, loop.plan.slots(stack.kind), width))
        for loop in task.loops
        for stack in loop.stacks
        if stack.name not in task.shared
        for own, width in stack.widths
        if own == plane
    ]
    out: list[Space] = []
    end = task.words.get(plane, 0)
    while end:
        at, space = next((at, s) for at, s in placed if s.words and at + s.words == end)
        out.append(space)
        end = at
    return tuple(reversed(out))


def owner(plan: HeapPlan, plane: str) -> TaskPlan | None:
    """The task that decides how large a plane is; None when none needs it."""
    using = [t for t in plan.tasks if t.words.get(plane, 0)]
    return max(using, key=lambda t: plane_words(plan, t, plane), default=None)


def plane_words(plan: HeapPlan, task: TaskPlan, plane: str) -> int:
    """Words of a plane while a task runs."""
    return task.rows * task.stride.get(plane, 0)


def formula(plan: HeapPlan, plane: str) -> str:
    """How the bytes of a plane are counted, term by term; empty for a plane that nothing needs."""
    task = owner(plan, plane)
    if task is None or not plan.planes[plane]:
        return ""
    terms = [f"{s.slots} x {s.width} ({KINDS.get(s.kind, s.kind)} of {s.where or 'a loop'})" for s in spaces(task, plane)]
    sums = terms[0] if len(terms) == 1 else f"({' + '.join(terms)})"
    row = "row" if task.rows == 1 else "rows"
    return f"{task.rows} {row} ({task.rows_source}) x {sums} x {PLANES[plane]} bytes"


def on_chip(task: TaskPlan) -> str:
    """How the on-chip memory of a block of threads is counted; empty for a task that uses none."""
    if not task.shared_bytes:
        return ""
    where = [f"{p.plan.tape_slots} slots of {place(p) or 'a loop'}" for p in task.loops if p.shared_bytes]
    whole = task.shared_bytes * task.block
    return f"{whole:,} = {task.block} threads x {task.shared_bytes} bytes ({task.name}: {' + '.join(where)})"


def _largest(plan: HeapPlan, plane: str) -> str:
    """``file:line`` of the loop that takes most of a plane."""
    task = owner(plan, plane)
    words: dict[str, int] = {}
    for space in spaces(task, plane) if task else ():
        where = place(space.loop, folders=True)
        words[where] = words.get(where, 0) + space.words
    return max(words, key=lambda where: words[where], default="")


def capacity(loop: PlannedLoop) -> str:
    """How many iterations a loop's stacks hold, how that is counted, and where the plan has it from."""
    p = loop.plan
    if p.C1 == 0:
        return f"{p.capacity:,} ({p.source})"
    doubled = f" x {p.capacity // (p.C1 * p.D1)}" if p.capacity > p.C1 * p.D1 else ""
    return f"{p.capacity:,} = {p.C1} checkpoints x {p.D1} iterations{doubled} ({p.source})"


def needs(plan: HeapPlan) -> list[str]:
    """A line for each plane of a heap: where most of it comes from, and how it is counted."""
    lines = []
    for plane, amount in plan.planes.items():
        if amount:
            where = _largest(plan, plane)
            loop = next(p for t in plan.tasks for p in t.loops if place(p, folders=True) == where)
            bound = "an unknown number of" if loop.plan.bound is None else loop.plan.bound
            lines.append(f"at {where}: {amount:,} = {formula(plan, plane)}; {bound} iterations ({loop.plan.source})")
    return lines


def as_json(plan: HeapPlan) -> dict[str, object]:
    """See ``HeapPlan.to_json``."""
    planes = [
        {"plane": p, "bytes": n, "words": n // PLANES[p], "formula": formula(plan, p), "where": _largest(plan, p)}
        for p, n in plan.planes.items()
        if n
    ]
    out: dict[str, object] = {"kernel": plan.kernel, "bytes": plan.bytes, "planes": planes, "loops": plan.rows()}
    if any(t.block for t in plan.tasks):
        out["shared"] = [
            {"task": t.name, "bytes": t.shared_bytes * t.block, "thread_bytes": t.shared_bytes, "formula": on_chip(t)}
            for t in plan.tasks
            if t.shared_bytes
        ]
    return out


def table(plan: HeapPlan) -> Table:
    """See ``HeapPlan.table``."""
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


def text(plan: HeapPlan) -> str:
    """The table as plain text without colours, as wide as it needs to be."""
    from rich.console import Console

    stream, rows = StringIO(), table(plan)
    rows.caption = None  # it would be folded at the width of the table
    Console(file=stream, width=1000, no_color=True, force_terminal=False).print(rows)
    return "\n".join([line.rstrip() for line in stream.getvalue().rstrip("\n").splitlines()] + _sums(plan))


def debug_lines(plan: HeapPlan) -> Iterator[str]:
    """One line for each task and plane of a heap that is bound, as ``QDRUN_DEBUG_ADSTACK=1`` prints them."""
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
