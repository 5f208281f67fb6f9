"""The control flow of a function: dominators and loops. Nothing here is quadratic in the length of a text."""

from __future__ import annotations

from dataclasses import dataclass, field

from .lines import Jump, Return
from .read import ENTRY, BasicBlock, TextFunction, successors


class Unstructured(Exception):
    """The control flow of a function has no form of loops and conditions; says where."""


@dataclass(slots=True)
class ControlFlow:
    """Facts about the blocks of a function.

    Attributes:
        blocks: by label.
        to: where each goes.
        order: the labels in reverse postorder; ``number``: the place of each.
        before: the blocks from which each is reached, but for jumps back to the begin of a loop.
        above: the immediate dominator of each.
        below: the other way round, in order.
        loops: the blocks of each loop by its first one, the header.
        around: the header of the innermost loop of a block, or None.
        outside: of a header, that of the loop around its loop.
        ends: blocks from which the function's end is reached without leaving.
    """

    blocks: dict[str, BasicBlock]
    to: dict[str, tuple[str, ...]] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    number: dict[str, int] = field(default_factory=dict)
    before: dict[str, list[str]] = field(default_factory=dict)
    above: dict[str, str] = field(default_factory=dict)
    below: dict[str, list[str]] = field(default_factory=dict)
    loops: dict[str, set[str]] = field(default_factory=dict)
    around: dict[str, str | None] = field(default_factory=dict)
    outside: dict[str, str | None] = field(default_factory=dict)
    ends: set[str] = field(default_factory=set)


def control_flow(function: TextFunction) -> ControlFlow:
    """The control flow of a function.

    Raises:
        Unstructured: a loop has two begins.
    """
    g = ControlFlow(function.blocks)
    for name, block in function.blocks.items():
        g.to[name] = () if returns(function, block) else successors(block.end)
    g.order = _reverse_postorder(g)
    g.number = {name: k for k, name in enumerate(g.order)}
    sources: dict[str, list[str]] = {name: [] for name in g.order}
    for name in g.order:
        for to in g.to[name]:
            sources[to].append(name)
    _find_dominators(g, sources)
    _find_loops(g, sources)
    g.ends = _reached_back(sources, g, [n for n in g.order if isinstance(g.blocks[n].end, Return)])
    return g


def returns(function: TextFunction, block: BasicBlock) -> bool:
    """Whether a block leaves to a block that does nothing but return: it returns itself."""
    end = block.end
    if not isinstance(end, Jump) or not end.leaves:
        return False
    target = function.blocks[end.to]
    return not target.lines and isinstance(target.end, Return)


def _reverse_postorder(g: ControlFlow) -> list[str]:
    seen, out = {ENTRY}, []
    stack = [(ENTRY, iter(g.to[ENTRY]))]
    while stack:
        name, rest = stack[-1]
        for to in rest:
            if to not in seen:
                seen.add(to)
                stack.append((to, iter(g.to[to])))
                break
        else:
            out.append(name)
            stack.pop()
    return out[::-1]


def _find_dominators(g: ControlFlow, sources: dict[str, list[str]]) -> None:
    """Cooper, Harvey and Kennedy: a second pass over the blocks changes nothing, but where loops have several begins."""
    number, above = g.number, {ENTRY: ENTRY}
    changed = True
    while changed:
        changed = False
        for name in g.order[1:]:
            found = ""
            for source in sources[name]:
                if source not in above:
                    continue
                if not found:
                    found = source
                    continue
                a, b = found, source
                while a != b:
                    while number[a] > number[b]:
                        a = above[a]
                    while number[b] > number[a]:
                        b = above[b]
                found = a
            if above.get(name) != found:
                above[name] = found
                changed = True
    g.above = above
    g.below = {name: [] for name in g.order}
    for name in g.order[1:]:
        g.below[above[name]].append(name)


def _find_loops(g: ControlFlow, sources: dict[str, list[str]]) -> None:
    g.before = {name: [] for name in g.order}
    for name in g.order:
        for to in g.to[name]:
            if g.number[to] > g.number[name]:
                g.before[to].append(name)
                continue
            if not _dominates(g, to, name):
                raise Unstructured(f"the loop from `{name}` to `{to}` has another begin")
            body = g.loops.setdefault(to, {to})
            left = [name]
            while left:
                here = left.pop()
                if here not in body:
                    body.add(here)
                    left += sources[here]
    g.around = dict.fromkeys(g.order, None)
    for header in sorted(g.loops, key=g.number.__getitem__):  # outer loops first
        g.outside[header] = g.around[header]
        for name in g.loops[header]:
            g.around[name] = header


def _dominates(g: ControlFlow, a: str, b: str) -> bool:
    while g.number[b] > g.number[a]:
        b = g.above[b]
    return a == b


def _reached_back(sources: dict[str, list[str]], g: ControlFlow, begin: list[str]) -> set[str]:
    """What reaches some blocks by jumps that do not leave."""
    out, left = set(begin), list(begin)
    while left:
        for source in sources[left.pop()]:
            end = g.blocks[source].end
            if source not in out and not (isinstance(end, Jump) and end.leaves):
                out.add(source)
                left.append(source)
    return out
