"""Jumps as loops and conditions: random control flow goes through the same blocks either way, whatever the conditions are."""

from __future__ import annotations

import random

import pytest

from qdrun.compiler.codegen.text import structure
from qdrun.compiler.codegen.text.control_flow import Unstructured
from qdrun.compiler.codegen.text.lines import Alloca, Branch, Jump, Load, Return, Store
from qdrun.compiler.codegen.text.read import ENTRY, TextFunction, read
from qdrun.compiler.codegen.text.structure import (
    BeginIf,
    BeginLoop,
    Break,
    Continue,
    Else,
    EndIf,
    EndLoop,
    StraightCode,
    structured,
)
from qdrun.compiler.errors import QdrunRuntimeError

STEPS = 400


class Programs:
    """Random functions in the forms that the code generator writes, and some that it does not."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.n = 0

    def text(self) -> str:
        """A function with conditions ``%c..``; each block has a line of its own, which names it."""
        tail = self.random.random() < 0.5  # something follows the label that failed iterations go to
        self.say()
        self.body(3, ["finish"])
        self.lines += ["  br label %finish", "finish:"]
        if tail:
            self.say()
            self.condition(1, [])
        head = ['define void @f(ptr %p0) "threads"="any" {', "entry:"]
        return "\n".join([*head, *self.lines, "  ret void", "}"])

    def label(self) -> str:
        self.n += 1
        return f"b{self.n}"

    def say(self) -> None:
        self.n += 1
        self.lines.append(f"  %v{self.n} = add i32 0, {self.n}")

    def flag(self) -> str:
        self.n += 1
        return f"%c{self.n}"

    def at(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.say()

    def body(self, depth: int, ways_out: list[str]) -> None:
        for _ in range(self.random.randint(1, 3)):
            choices = [self.say]
            if depth:
                choices += [lambda: self.condition(depth - 1, ways_out)] * 2
                choices += [lambda: self.loop(depth - 1, ways_out), lambda: self.spin(depth - 1, ways_out)]
                choices += [lambda: self.region(depth - 1, ways_out), lambda: self.chain(depth - 1, ways_out)]
            if ways_out:
                choices.append(lambda: self.failure(depth, ways_out))
            self.random.choice(choices)()

    def condition(self, depth: int, ways_out: list[str]) -> None:
        then, other, end = self.label(), self.label(), self.label()
        both = self.random.random() < 0.5
        self.lines.append(f"  br i1 {self.flag()}, label %{then}, label %{other if both else end}")
        for arm in (then, other) if both else (then,):
            self.at(arm)
            self.body(depth, ways_out)
            self.lines.append(f"  br label %{end}")
        self.at(end)

    def loop(self, depth: int, ways_out: list[str]) -> None:
        """Tested before and after, with a way out in between."""
        body, out = self.label(), self.label()
        first = f"br i1 {self.flag()}, label %{body}, label %{out}" if self.random.random() < 0.7 else f"br label %{body}"
        self.lines.append(f"  {first}")
        self.at(body)
        self.body(depth, ways_out)
        if self.random.random() < 0.4:
            stay = self.label()
            self.lines.append(f"  br i1 {self.flag()}, label %{out}, label %{stay}")
            self.at(stay)
        self.lines.append(f"  br i1 {self.flag()}, label %{body}, label %{out}")
        self.at(out)

    def spin(self, depth: int, ways_out: list[str]) -> None:
        """Left at its head, with several ways back."""
        head, take, out = self.label(), self.label(), self.label()
        self.lines.append(f"  br label %{head}")
        self.at(head)
        self.lines.append(f"  br i1 {self.flag()}, label %{out}, label %{take}")
        self.at(take)
        again = self.label()
        self.lines.append(f"  br i1 {self.flag()}, label %{again}, label %{head}")
        self.at(again)
        self.body(depth, ways_out)
        self.lines.append(f"  br label %{head}")
        self.at(out)

    def failure(self, depth: int, ways_out: list[str]) -> None:
        """An iteration that fails, perhaps after a loop."""
        bad, fine = self.label(), self.label()
        self.lines.append(f"  br i1 {self.flag()}, label %{bad}, label %{fine}")
        self.at(bad)
        if depth:
            self.body(depth - 1, [])
        self.lines.append(f"  br label %{self.random.choice(ways_out)} ; leaves")
        self.at(fine)

    def region(self, depth: int, ways_out: list[str]) -> None:
        """Code that only some threads run, and that failed ones leave."""
        inside, skip = self.label(), self.label()
        self.lines.append(f"  br i1 {self.flag()}, label %{inside}, label %{skip}")
        self.at(inside)
        self.body(depth, [skip, *ways_out[:1]] if self.random.random() < 0.3 else [skip])
        self.lines.append(f"  br label %{skip}")
        self.at(skip)

    def chain(self, depth: int, ways_out: list[str]) -> None:
        """One of several ways, chosen one after the other."""
        joined = self.label()
        for _ in range(self.random.choice((2, 3, structure.CHAIN + 2))):
            mine, other = self.label(), self.label()
            self.lines.append(f"  br i1 {self.flag()}, label %{mine}, label %{other}")
            self.at(mine)
            if self.random.random() < 0.3:
                self.body(depth, ways_out)
            self.lines += [f"  br label %{joined}", f"{other}:"]
        self.lines.append(f"  br label %{joined}")
        self.at(joined)


class Flags:
    """What each condition is, in the order in which they are asked."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.odds = self.random.choice((0.2, 0.5, 0.8))

    def next(self) -> bool:
        return self.random.random() < self.odds


def by_jumps(function: TextFunction, seed: int) -> list[str]:
    """The lines that a run goes through, block by block."""
    flags, name, out = Flags(seed), ENTRY, []
    while len(out) < STEPS:
        block = function.blocks[name]
        out += [line.result for line in block.lines]
        match block.end:
            case Return():
                return [*out, "end"]
            case Jump(to=to):
                name = to
            case Branch(yes=yes, no=no):
                name = yes if flags.next() else no
    return out[:STEPS]


def by_events(function: TextFunction, seed: int) -> list[str]:
    """The same, event by event."""
    events, flags, at = structured(function), Flags(seed), 0
    ends, slots, values, out = matching(events), {}, {}, []
    while len(out) < STEPS:
        event = events[at]
        at += 1
        match event:
            case StraightCode(lines=lines):
                for line in lines:
                    match line:
                        case Alloca():
                            pass
                        case Store(value=value, address=address):
                            slots[address] = value == "true"
                        case Load(result=result, address=address):
                            values[result] = slots[address]
                        case _:
                            out.append(line.result)
            case BeginIf(condition=condition, when=when):
                holds = values[condition] if condition in values else flags.next()
                if holds != when:
                    at = ends[at - 1] + 1
            case Else():
                at = ends[at - 1]  # the end of the first arm
            case EndLoop() | Continue():
                assert not isinstance(event, EndLoop), "the end of a loop is reached from above"
                at = ends[at - 1]
            case Break():
                at = ends[ends[at - 1]] + 1
            case Return():
                return [*out, "end"]
    return out[:STEPS]


def matching(events: list) -> dict[int, int]:
    """Where each ``BeginIf`` and ``Else`` goes on, the end of each ``BeginLoop``, the loop of each ``Break`` and ``Continue``."""
    found, opened = {}, []
    for k, event in enumerate(events):
        match event:
            case BeginIf() | BeginLoop():
                opened.append(k)
            case Else():
                found[opened.pop()] = k
                opened.append(k)
            case EndIf():
                found[opened.pop()] = k
            case EndLoop():
                found[opened.pop()] = k
            case Break() | Continue():
                found[k] = next(x for x in reversed(opened) if isinstance(events[x], BeginLoop))
    assert not opened
    return found


@pytest.mark.parametrize("seed", range(80))
def test_events_go_through_the_blocks_that_jumps_go_through(seed):
    function = read(Programs(seed).text()).functions["f"]
    for k in range(20):
        assert by_events(function, 1000 * seed + k) == by_jumps(function, 1000 * seed + k)


def nesting(events: list) -> int:
    """How deep the events are nested."""
    depth = deepest = 0
    for event in events:
        depth += isinstance(event, (BeginIf, BeginLoop)) - isinstance(event, (EndIf, EndLoop))
        deepest = max(deepest, depth)
    return deepest


def test_a_long_chain_of_choices_is_not_nested():
    lines = ['define void @f(ptr %p0) "threads"="any" {', "entry:"]
    for k in range(300):
        lines += [f"  br i1 %c{k}, label %mine{k}, label %other{k}", f"mine{k}:", "  br label %joined", f"other{k}:"]
    lines += ["  br label %joined", "joined:", "  ret void", "}"]
    assert nesting(structured(read("\n".join(lines)).functions["f"])) == 2


def test_a_failed_iteration_returns_where_nothing_follows():
    text = """define void @f(ptr %p0) "threads"="any" {
entry:
  br label %body
body:
  br i1 %c1, label %failed, label %fine
failed:
  br label %finish ; leaves
fine:
  br i1 %c2, label %body, label %finish
finish:
  ret void
}"""
    events = structured(read(text).functions["f"])
    kinds = [type(e).__name__ for e in events]
    assert kinds == ["BeginLoop", "BeginIf", "Return", "EndIf", "BeginIf", "Continue", "EndIf", "Break", "EndLoop", "Return"]


def test_a_loop_with_two_begins_is_refused():
    text = """define void @f(ptr %p0) "threads"="any" {
entry:
  br i1 %c1, label %a, label %b
a:
  br label %b
b:
  br i1 %c2, label %a, label %out
out:
  ret void
}"""
    with pytest.raises(Unstructured, match="has another begin"):
        structured(read(text).functions["f"])


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("  %v = freeze i32 %w", "it has no form of docs/device-text.md"),
        ("  switch i64 %r1, label %next []", "it has no form of docs/device-text.md"),
        ("  %v = fadd <4 x float> %a, %b", "it has no form of docs/device-text.md"),
    ],
)
def test_a_line_of_no_known_form_is_refused_with_its_number(line, why):
    text = f'; kernel k\ndefine void @f(ptr %p0) "threads"="any" {{\nentry:\n{line}\n  ret void\n}}'
    with pytest.raises(QdrunRuntimeError) as e:
        read(text)
    assert str(e.value).splitlines()[0] == f"line 4 of a device text cannot be translated, as {why}: {line.strip()}"


def test_a_line_behind_the_end_of_a_block_is_refused():
    text = 'define void @f(ptr %p0) "threads"="any" {\nentry:\n  ret void\n  %v = add i32 0, 1\n}'
    with pytest.raises(QdrunRuntimeError, match=r"line 4 .* stands outside of a block"):
        read(text)
