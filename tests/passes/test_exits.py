"""Break, continue and return against their lowered form: the same memory for random structured programs."""

import random

import numpy as np
import pytest

from qdrun.compiler.ir.builder import StatementBuilder, const_i32
from qdrun.compiler.ir.nodes import Axis, Buffer, Const, Exit, If, Kernel, Local, LocalStore, Loop, Op, Place, Task
from qdrun.compiler.ir.printer import print_block, print_kernel
from qdrun.compiler.ir.types import i32
from qdrun.compiler.ir.verify import verify_kernel
from qdrun.compiler.ir.walk import walk
from qdrun.compiler.passes.exits import CONTINUE, RETURN_SITES, lower_block, lower_exits
from qdrun.compiler.runtime.python.interpret import Memory, run_kernel

LOG = 64


class Program:
    """A random task: each statement that runs leaves its own mark in memory, so a wrong path shows."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.place = Place("log", i32, Buffer("field"), 1, (LOG,), (4,))
        self.marks = 0
        self.index = Op("index", (), i32)
        self.task = Task("t", [], [Axis(self.index, const_i32(0), const_i32(4))])
        self.b = StatementBuilder(self.task.body)
        self.hash = self.b.local(self.index, "hash")
        self.block(0, 0, returns=True)
        self.b.gstore(self.place, (self.index,), self.b.load(self.hash))
        self.kernel = Kernel("k", [], [self.task])

    def mark(self):
        self.marks += 1
        mixed = self.b.op("mul", self.b.load(self.hash), const_i32(31))
        self.b.store(self.hash, self.b.op("add", mixed, const_i32(self.marks)))

    def condition(self):
        modulus = self.random.choice((2, 3, 5))
        rest = self.b.op("mod", self.b.load(self.hash), const_i32(modulus))
        return self.b.op("eq", rest, const_i32(self.random.randrange(modulus)))

    def block(self, depth, loops, returns):
        for _ in range(self.random.randint(1, 4)):
            kind = self.random.random()
            if kind < 0.3 or depth >= 5:
                self.mark()
            elif kind < 0.6:
                s = If(self.condition())
                self.b.put(s)
                with self.b.into(s.then):
                    self.block(depth + 1, loops, returns)
                if self.random.random() < 0.6:
                    with self.b.into(s.orelse):
                        self.block(depth + 1, loops, returns)
            elif kind < 0.8:
                self.loop(depth, loops)
            elif loops:
                self.b.put(Exit(self.random.choice(("break", "continue", "return"))))
            else:
                self.b.put(Exit(self.random.choice(("return", "continue"))))

    def loop(self, depth, loops):
        endless = self.random.random() < 0.3
        with self.b.loop(const_i32(0), None if endless else const_i32(self.random.randint(0, 4))) as s:
            self.b.store(self.hash, self.b.op("xor", self.b.load(self.hash), s.index))
            if endless:  # an endless loop must end: a bound on its own counter comes first
                with self.b.if_(self.b.op("ge", s.index, const_i32(5))):
                    self.mark()
                    self.b.put(Exit("break"))
            self.block(depth + 1, loops + 1, returns=True)


def outcome(kernel, place):
    memory = Memory()
    array = np.zeros(LOG, np.int32)
    memory.bind(place.buffer, array)
    run_kernel(kernel, memory)
    return array


@pytest.mark.parametrize("first", [100, *(pytest.param(n, marks=pytest.mark.slow) for n in range(0, 1000, 100) if n != 100)])
def test_random_programs_mean_the_same_before_and_after(first):
    for seed in range(first, first + 100):
        program = Program(seed)
        verify_kernel(program.kernel, lowered=False)
        before = outcome(program.kernel, program.place)
        lower_exits(program.kernel)
        verify_kernel(program.kernel)
        np.testing.assert_array_equal(before, outcome(program.kernel, program.place), err_msg=f"seed {seed}")


def check_sites(block):
    """Marked ifs: the arm always ends with the store of its site."""
    for s in walk(block):
        if isinstance(s, If) and s.site:
            stores = [t for t in walk(s.then) if isinstance(t, LocalStore) and t.local is s.site_local]
            assert [t.value.value for t in stores] == [s.site], print_block([s])
        if isinstance(s, Loop) and s.exit is not None:
            assert isinstance(s.body[0], LocalStore) and s.body[0].local is s.exit and s.body[0].value == Const(0, i32)


def test_a_mark_says_the_one_site_through_which_its_arm_leaves():
    for seed in range(400):
        program = Program(seed)
        lower_exits(program.kernel)
        check_sites(program.task.body)


def test_each_exit_has_its_own_site():
    for seed in range(400):
        program = Program(seed)
        lower_exits(program.kernel)
        by_local = {}
        for s in walk(program.task.body):
            if isinstance(s, LocalStore) and s.local.name == "exit":
                by_local.setdefault(s.local, []).append(s.value.value)
        for codes in by_local.values():
            positive = [c for c in codes if c > 0]
            assert len(positive) == len(set(positive))


def test_blocks_without_exits_are_not_touched():
    body = []
    b = StatementBuilder(body)
    v = b.local(const_i32(1))
    with b.loop(const_i32(0), const_i32(3)), b.if_(b.op("eq", b.load(v), const_i32(1))):
        b.store(v, const_i32(2))
    kernel = Kernel("k", [], [Task("t", body)])
    text = print_kernel(kernel)
    assert lower_exits(kernel).tasks[0].body is body and print_kernel(kernel) == text


def test_an_arm_that_always_leaves_takes_the_rest_into_the_other_arm():
    body = []
    b = StatementBuilder(body)
    v = b.local(const_i32(1))
    with b.loop(const_i32(0), const_i32(3)) as s:
        with b.if_(b.op("eq", b.load(v), s.index)):
            b.put(Exit("break"))
        b.store(v, const_i32(2))
    lower_exits(Kernel("k", [], [Task("t", body)]))
    inner = s.body[-1]
    assert isinstance(inner, If) and inner.site == 1 and inner.site_local is s.exit
    assert isinstance(inner.orelse[0], LocalStore) and inner.orelse[0].local is v


def test_an_arm_that_leaves_sometimes_guards_the_rest():
    """``if a: {if b: break} else: break`` and more: the shape that two earlier versions of this pass had wrong."""
    body = []
    b = StatementBuilder(body)
    v = b.local(const_i32(1))
    with b.loop(const_i32(0), const_i32(3)) as s:
        with b.if_(b.op("eq", b.load(v), s.index)) as outer:
            with b.if_(b.op("eq", b.load(v), const_i32(0))):
                b.put(Exit("break"))
        with b.into(outer.orelse):
            b.put(Exit("break"))
        b.store(v, const_i32(2))
    lower_exits(Kernel("k", [], [Task("t", body)]))
    guards = [t for t in walk(s.body) if isinstance(t, If) and any(isinstance(u, LocalStore) and u.local is v for u in t.then)]
    assert len(guards) == 1 and guards[0].site == 0


def test_a_return_inside_two_loops_leaves_both():
    body = []
    b = StatementBuilder(body)
    v = b.local(const_i32(0))
    with b.loop(const_i32(0), const_i32(3)) as outer:
        with b.loop(const_i32(0), const_i32(3)) as inner:
            b.put(Exit("return"))
        b.store(v, const_i32(1))
    b.store(v, const_i32(2))
    lowered = lower_block(body)
    assert inner.exit is not None and outer.exit is not None
    codes = [s.value.value for s in walk(lowered) if isinstance(s, LocalStore) and s.local.name == "exit"]
    assert sum(c >= RETURN_SITES for c in codes) == 3 and CONTINUE not in codes
    assert not any(isinstance(s, Exit) for s in walk(lowered)) and isinstance(v, Local)
