"""The readable form of the IR. Nothing parses it; tests of passes compare it and the kernel cache hashes it.

Names are numbered in order of appearance, so the text does not depend on what was compiled before.
"""

from __future__ import annotations

from .nodes import (
    Assert,
    Block,
    ClaimRow,
    Const,
    Exit,
    GlobalStore,
    If,
    Kernel,
    Local,
    LocalStore,
    Loop,
    Op,
    Operand,
    Overflow,
    Place,
    Print,
    Stack,
    StackPut,
    Task,
)
from .walk import kernel_places


class Printer:
    """Collects lines; remembers the number that each value, local and place was given."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._names: dict[object, str] = {}
        self._counts: dict[str, int] = {}

    def name(self, node: object, prefix: str) -> str:
        """The stable name of a node: prefix and number."""
        if node not in self._names:
            n = self._counts[prefix] = self._counts.get(prefix, -1) + 1
            self._names[node] = f"{prefix}{n}"
        return self._names[node]

    def value(self, x: Operand) -> str:
        """An operand as text."""
        if isinstance(x, Const):
            return f"{x.value!r}:{x.dtype}"
        if x.op == "param":
            return f"param.{x.attr}"
        return self.name(x, "%")

    def local(self, x: Local) -> str:
        """A local as text."""
        return self.name(x, f"${x.name}.")

    def place(self, p: Place) -> str:
        """A place as text."""
        return self.name(p, f"@{p.name}.")

    def _index(self, index: tuple[Operand, ...]) -> str:
        return "[" + ", ".join(map(self.value, index)) + "]"

    def _attr(self, s: Op) -> str:
        if isinstance(s.attr, Local):
            return " " + self.local(s.attr)
        if isinstance(s.attr, tuple) and s.attr and isinstance(s.attr[0], Stack):
            return f" {s.attr[0].name}.{s.attr[1]}"
        if isinstance(s.attr, tuple):
            return f" {getattr(s.attr[0], 'name', s.attr[0])}.{s.attr[1]}"
        return "" if s.attr is None else f" {getattr(s.attr, 'name', s.attr)}"

    def _op(self, s: Op) -> str:
        if s.op == "gload":
            assert isinstance(s.attr, Place)
            text = f"gload {self.place(s.attr)}{self._index(s.args)}"
        elif s.op == "atomic":
            assert isinstance(s.attr, tuple)
            place, code = s.attr
            values = ", ".join(map(self.value, s.args[place.ndim :]))
            text = f"atomic {code} {self.place(place)}{self._index(s.args[: place.ndim])}, {values}"
        else:
            text = f"{s.op}{self._attr(s)} {', '.join(map(self.value, s.args))}".rstrip()
        return f"{self.value(s)} = {text} : {s.dtype}"

    def block(self, block: Block, depth: int) -> None:
        """Print every statement, indented."""
        for s in block:
            self._stmt(s, depth)

    def _stmt(self, s: object, depth: int) -> None:
        def add(text: str) -> None:
            self.lines.append("  " * depth + text)

        match s:
            case Op():
                add(self._op(s))
            case LocalStore():
                add(f"{self.local(s.local)} = {self.value(s.value)}")
            case GlobalStore():
                add(f"{self.place(s.place)}{self._index(s.index)} = {self.value(s.value)}")
            case If():
                site = f"  # leaves through {s.site}" if s.site else ""
                add(f"if {self.value(s.cond)}:{site}")
                self.block(s.then, depth + 1)
                if s.orelse:
                    add("else:")
                    self.block(s.orelse, depth + 1)
            case Loop():
                self._loop(s, depth)
            case Exit():
                add(s.kind)
            case Assert():
                add(f"assert {self.value(s.cond)}, {s.message!r} ({', '.join(map(self.value, s.args))})")
            case Print():
                head = f"print{' once' * s.once} " if s.stop is None else f"breakpoint {s.stop} "
                head += f"{s.formats} " if s.formats else ""
                add(head + ", ".join(repr(p) if isinstance(p, str) else self.value(p) for p in s.parts))
            case StackPut():
                add(f"put {s.stack.name}[{self.value(s.slot)}] = {', '.join(map(self.value, s.values))}")
            case Overflow():
                add(f"overflow {s.code}")
            case ClaimRow():
                add("claim row")

    def _loop(self, s: Loop, depth: int) -> None:
        end = "inf" if s.end is None else self.value(s.end)
        leave = f" until {self.local(s.exit)} > 0" if s.exit else ""
        head = f"for {self.value(s.index)} in range({self.value(s.begin)}, {end}, {s.step}){leave}:"
        self.lines.append("  " * depth + head)
        self.block(s.body, depth + 1)

    def task(self, t: Task) -> None:
        """Print a task: its prologue, its axes, its body."""
        block = f" block {t.block}" if t.block else ""
        self.lines.append(f"task {t.name}{' serialize' if t.serialize else ''}{block}:")
        self.block(t.prologue, 1)
        for a in t.axes:
            self.lines.append(f"  axis {self.value(a.index)} in [{self.value(a.begin)}, {self.value(a.end)})")
        for r in t.reductions:
            some = "" if r.sure else " if any"
            self.lines.append(f"  reduce{some} {r.code} {self.local(r.local)} into {self.place(r.place)}{self._index(r.index)}")
        self.block(t.body, 2)


def print_block(block: Block) -> str:
    """A block alone, for tests and debugging."""
    p = Printer()
    p.block(block, 0)
    return "\n".join(p.lines)


def print_kernel(kernel: Kernel) -> str:
    """The whole kernel, its places with their layout included: equal text means equal machine code."""
    p = Printer()
    args = ", ".join(
        f"{a.name}:{a.kind}:{a.dtype}:{a.ndim}:{a.element}:{a.needs_grad}{':dual' if a.needs_dual else ''}"
        + (":trials" if a.per_trial else "")
        for a in kernel.args
    )
    p.lines.append(f"kernel {kernel.name}({args}) -> {kernel.returns}")
    buffers: dict[object, int] = {}
    for place in kernel_places(kernel):
        number = buffers.setdefault(place.buffer, len(buffers))
        owner = getattr(place.buffer.owner, "index", "") if place.buffer.kind.startswith("arg") else ""
        trials = f" trial={place.trial_bytes}" if place.trial_bytes else ""
        pool = place.pool
        in_blocks = f" blocks={p.place(pool.slots)} {pool.sizes} {pool.axes} {pool.blocks} {pool.stride}" if pool else ""
        p.lines.append(
            f"  place {p.place(place)}: {place.dtype} {place.buffer.kind}{owner} #{number} ndim={place.ndim} shape={place.shape}"
            f" strides={place.strides} offset={place.offset} elem={place.elem_bytes}{trials}{in_blocks}"
        )
    for t in kernel.tasks:
        p.task(t)
    return "\n".join(p.lines) + "\n"
