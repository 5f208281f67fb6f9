"""The control flow of a function as nested loops and conditions, for printers of languages that have no jumps.

``structured`` gives a list of events. A printer goes through it once, in order:

================================  ====================================================================================
``StraightCode(lines, numbers)``  instructions, one after the other
``BeginIf(condition, when)``      what follows runs where the condition (an ``i1``) is ``when``
``Else()``, ``EndIf()``           the other arm, which may be missing; the end of the condition
``BeginLoop()``, ``EndLoop()``    a loop without an end: ``EndLoop`` is never reached from above
``Break()``, ``Continue()``       of the innermost loop; nothing follows in its arm
``Return(type, value)``           return from the function, from any depth; nothing follows in its arm
================================  ====================================================================================

Every block of the text is in one event. Values are defined before they are used on every path, as in the text: a printer whose language
has scopes declares them at the top of the function.

A jump that would leave more than a loop, or a condition, becomes several steps: a slot (``%leaves..``, of type ``i1``) is set, the loop
is left, and what follows the loop looks at the slot and goes on leaving. A label that is reached from inside conditions gets a loop
around what precedes it, which runs once and is left by ``Break``. So it is with iterations that fail (``; leaves``), where something
follows the end of the function's loops.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from .control_flow import ControlFlow, Unstructured, control_flow, returns
from .lines import Alloca, Branch, Jump, Line, Load, Return, Store
from .read import ENTRY, TextFunction

CHAIN = 8
"""Jumps to one label from which on the label gets a loop of its own: a long chain of choices is not nested."""


class StraightCode(NamedTuple):
    """Instructions with the numbers of their lines in the text (0: of no line)."""

    lines: list[Line]
    numbers: list[int]


class BeginIf(NamedTuple):
    """Begin of what runs where the condition is ``when``."""

    condition: str
    when: bool


class Else(NamedTuple):
    """Begin of the other arm."""


class EndIf(NamedTuple):
    """End of a condition."""


class BeginLoop(NamedTuple):
    """Begin of a loop."""


class EndLoop(NamedTuple):
    """End of a loop; it is never reached from above."""


class Break(NamedTuple):
    """Go on after the innermost loop."""


class Continue(NamedTuple):
    """Go on at the begin of the innermost loop."""


ControlEvent = StraightCode | BeginIf | Else | EndIf | BeginLoop | EndLoop | Break | Continue | Return


def structured(function: TextFunction) -> list[ControlEvent]:
    """The events of a function.

    Raises:
        Unstructured: its control flow has no form of loops and conditions.
    """
    graph = control_flow(function)
    own: set[str] = set()  # labels that need a loop around what precedes them
    while True:
        try:
            return _Structure(function, graph, own).events()
        except _OwnLoop as e:
            if e.label in own:
                raise Unstructured(f"the jump to `{e.label}`") from None
            own.add(e.label)


class _OwnLoop(Exception):
    """A jump to a label behind other code: the label needs a loop around what precedes it."""

    def __init__(self, label: str) -> None:
        super().__init__(label)
        self.label = label


@dataclass(slots=True)
class _OpenLoop:
    """A loop that is being written.

    Attributes:
        follow: the label after it.
        header: the label at its begin; "": it runs once.
        before: the event before it, to which stores are added.
        flags: the slot of each jump to a label of this loop from inside an inner one.
        passing: such jumps, of outer loops, that leave this one: the slot, the frame and the label.
    """

    follow: str
    header: str
    before: StraightCode
    flags: dict[str, str] = field(default_factory=dict)
    passing: dict[str, tuple[_OpenLoop, str]] = field(default_factory=dict)


class _Structure:
    """Writes the events of a function."""

    def __init__(self, function: TextFunction, graph: ControlFlow, own: set[str]) -> None:
        self.function, self.graph = function, graph
        self.out: list[ControlEvent] = []
        self.frames: list[_OpenLoop] = []
        self.pending: list[str] = []  # where the conditions end that are being written
        self.visited: set[str] = set()
        self.slots, self.made = StraightCode([], []), 0
        self.opened = self._own_loops(own)

    def events(self) -> list[ControlEvent]:
        """All of them."""
        self.out.append(self.slots)
        self._region(ENTRY, None)
        if len(self.visited) != len(self.graph.order):
            raise Unstructured(f"blocks that nothing reaches: {sorted(set(self.graph.order) - self.visited)[:3]}")
        return [e for e in self.out if not isinstance(e, StraightCode) or e.lines]

    # -- which labels get a loop of their own
    def _own_loops(self, own: set[str]) -> dict[str, list[str]]:
        """By the block whose end they are reached from: labels that get a loop around what precedes them, the last one first."""
        g = self.graph
        targets = set(own)
        for name in g.order:
            end = g.blocks[name].end
            if isinstance(end, Jump) and end.leaves and not returns(self.function, g.blocks[name]):
                targets.add(end.to)
        out: dict[str, list[str]] = {}
        for name in g.order:
            joined = [x for x in g.below[name] if len(g.before[x]) > 1 and g.around[x] == g.around[name]]
            targets |= {x for x in joined if len(g.before[x]) > CHAIN}
            targets |= set(joined[1:])
        for label in sorted(targets, key=g.number.__getitem__, reverse=True):
            above = g.above[label]
            while g.around[above] is not None and label not in g.loops[str(g.around[above])]:
                above = g.above[str(g.around[above])]
            out.setdefault(above, []).append(label)
        return out

    # -- code from a label on
    def _region(self, name: str, stop: str | None, inside: bool = False) -> bool:
        """Write what runs from a label on until ``stop``; whether that is reached from above. ``inside``: of a loop that begins here."""
        while True:
            if not inside:
                ended = self._jump(name, stop)
                if ended is not None:
                    return ended
                if name in self.graph.loops:
                    follow = self._loop(name)
                    if follow is None:
                        return False
                    name = follow
                    continue
            inside = False
            following = self._block(name, stop)
            if isinstance(following, bool):
                return following
            name = following

    def _jump(self, to: str, stop: str | None) -> bool | None:
        """Go to a label that code exists for, or will: whether it is ``stop``. None: its code comes here."""
        if to == stop:
            return True
        for depth, frame in enumerate(reversed(self.frames)):
            if to not in (frame.header, frame.follow):
                continue
            if depth:
                self._go_far(len(self.frames) - 1 - depth, to)
            else:
                self.out.append(Continue() if to == frame.header else Break())
            return False
        if to in self.pending:
            raise _OwnLoop(to)
        return None

    def _block(self, name: str, stop: str | None) -> str | bool:
        """Write a block and its end: where to go on, or whether ``stop`` is reached from above."""
        if name in self.visited:
            raise _OwnLoop(name)
        self.visited.add(name)
        block = self.graph.blocks[name]
        self.out.append(StraightCode(block.lines, block.numbers))
        return self._within(name, self.opened.get(name, []), stop)

    def _within(self, name: str, labels: list[str], stop: str | None) -> str | bool:
        """The end of a block, inside of loops that run once, up to their labels."""
        if not labels:
            return self._end(name, stop)
        self._open(labels[0], "")
        following = self._within(name, labels[1:], None)
        if isinstance(following, str):
            self._region(following, None)
        self._close()
        return labels[0]

    def _end(self, name: str, stop: str | None) -> str | bool:
        end = self.graph.blocks[name].end
        match end:
            case Return(type=ty, value=value):
                self.out.append(Return(ty, value))
                return False
            case Jump(to=to):
                if returns(self.function, self.graph.blocks[name]):
                    self.out.append(Return("", ""))
                    return False
                return to
            case Branch():
                return self._choose(name, end, stop)
        raise Unstructured(f"the block `{name}` has no end")

    # -- conditions
    def _choose(self, name: str, end: Branch, stop: str | None) -> str | bool:
        """A condition, up to where its arms meet."""
        known = {label for frame in self.frames for label in (frame.follow, frame.header)}
        merge = next((x for x in self.graph.below[name] if len(self.graph.before[x]) > 1 and x not in known), None)
        until = merge or stop
        when = self._first_arm(end, until, known)
        first, other = (end.yes, end.no) if when else (end.no, end.yes)
        if merge is not None:
            self.pending.append(merge)
        self.out.append(BeginIf(end.condition, when))
        falls = self._region(first, until)
        if not falls and merge is None:
            self.out.append(EndIf())
            return other
        if falls and other != until:
            self.out.append(Else())
            self._region(other, until)
        self.out.append(EndIf())
        if not falls:
            self._region(other, until)
        if merge is not None:
            self.pending.pop()
            return merge
        return True

    def _first_arm(self, end: Branch, until: str | None, known: set[str]) -> bool:
        """Which arm is written first: not one that is empty, rather one that does not come to where the arms meet."""
        if end.yes == until:
            return False
        if end.no == until:
            return True
        if end.yes in known or end.no in known:
            return end.yes in known
        return end.no in self.graph.ends or end.yes not in self.graph.ends

    # -- loops
    def _loop(self, header: str) -> str | None:
        """A loop; the label after it, if there is one."""
        follow = self._follow(header)
        self._open(follow or "", header)
        self._region(header, None, True)
        self._close(follow is None)
        return follow

    def _follow(self, header: str) -> str | None:
        """The label after a loop: of all that it is left to, the last one that goes on; the others are conditions inside of it."""
        g = self.graph
        body = g.loops[header]
        exits = {to for name in body for to in g.to[name] if to not in body}
        return max(exits & g.ends or exits, key=g.number.__getitem__, default=None)

    def _open(self, follow: str, header: str) -> None:
        frame = _OpenLoop(follow, header, StraightCode([], []))
        self.frames.append(frame)
        self.out += [frame.before, BeginLoop()]

    def _close(self, endless: bool = False) -> None:
        """End the innermost loop, and go on leaving where a jump has passed it. ``endless``: nothing else comes behind it."""
        frame = self.frames.pop()
        self.out.append(EndLoop())
        for flag, (target, label) in frame.passing.items():
            value = self._name()
            self.out.append(StraightCode([Load(value, "i1", 1, flag, 1)], [0]))
            self.out.append(BeginIf(value, True))
            if target is self.frames[-1] and label == target.header:
                self.out += [StraightCode([Store("i1", 1, "false", flag, 1)], [0]), Continue()]
            else:
                self.out.append(Break())
            self.out.append(EndIf())
        if endless and frame.passing:
            self.out.append(Break())

    def _go_far(self, place: int, to: str) -> None:
        """Leave the loops inside of a frame, to go to a label of that."""
        target = self.frames[place]
        flag = target.flags.get(to)
        if flag is None:
            flag = target.flags[to] = self._name()
            self.slots.lines.append(Alloca(flag, "i1"))
            self.slots.numbers.append(0)
            target.before.lines.append(Store("i1", 1, "false", flag, 1))
            target.before.numbers.append(0)
        for frame in self.frames[place + 1 :]:
            frame.passing[flag] = target, to
        self.out += [StraightCode([Store("i1", 1, "true", flag, 1)], [0]), Break()]

    def _name(self) -> str:
        self.made += 1
        return f"%leaves{self.made}"
