"""What stops a native launch: a guard that is not armed, other words, counters that moved, arrays that overlap."""

from __future__ import annotations

import ctypes
import struct
import sys

import numpy as np
import pytest

from qdrun.compiler.ir.nodes import ArgDecl
from qdrun.compiler.ir.types import f32, i32
from qdrun.compiler.runtime.native.guard import Guard, word_numbers
from qdrun.compiler.runtime.native.launch import ArgSpec, make_launch
from qdrun.compiler.runtime.native.launch_ir import F_WORDS

from .helpers_runtime import compiled, context
from .native_rig import VARIABLE, Kernel, Program

# counts its launches in word 20 of the context
COUNT = """
define void @qd_k(ptr %args) {
  %context = load ptr, ptr %args
  %at = getelementptr i64, ptr %context, i64 20
  %n = load i64, ptr %at
  %m = add i64 %n, 1
  store i64 %m, ptr %at
  ret void
}
"""
DECLS = (
    ArgDecl("n", "scalar", i32, index=0),
    ArgDecl("a", "ndarray", f32, 2, (3,), index=1),
    ArgDecl("b", "ndarray", f32, 1, index=2),
    ArgDecl("m", "scalar", i32, index=3),
)


class Rig:
    def __init__(self, apart=(), prepare=True):
        self.context, self.flags, self.program = context(), (ctypes.c_int64 * F_WORDS)(), Program()
        VARIABLE.set(self.program)
        self.slow, self.asked, self.then = 0, [], lambda words: False
        self.guard, self.call = Guard(DECLS, apart), Kernel(self.fallback)
        specs, address = [ArgSpec(d) for d in DECLS], ctypes.addressof(self.flags)
        made = make_launch(
            *(compiled(COUNT, ()), self.context.address, specs, lambda: None, address, self),
            guard=self.guard,
            prepare=self.prepare if prepare else None,
        )
        assert made is not None
        self.program.native_launches[self.call.token] = [made]

    def fallback(self, *args):
        self.slow += 1
        return "slow"

    def prepare(self, words):
        self.asked.append(words)
        return self.then(words)

    @property
    def launched(self):
        return self.context.words[20]


A, B = np.zeros((2, 5, 3), np.float32), np.zeros(7, np.float32)


def test_words_are_numbered_as_the_launcher_packs_them():
    assert word_numbers(DECLS) == {0: 1, 1: 2, 2: 5, 3: 7}


def test_a_guard_that_is_not_armed_stops_every_launch():
    r = Rig(prepare=False)
    assert r.call(1, A, B, 2) == "slow" and not r.guard.armed
    r.guard.arm([], [])
    assert r.call(1, A, B, 2) is None
    r.guard.disarm()
    assert r.call(1, A, B, 2) == "slow" and (r.launched, r.slow) == (1, 2)


def test_words_that_count_must_be_what_they_were():
    r = Rig(prepare=False)
    r.guard.arm([(1, -4), (4, 5), (6, 7)], [])  # n, an extent of a, that of b
    assert r.call(-4, A, B, 1) is None and r.call(-4, A, B, 99) is None
    assert r.call(-5, A, B, 1) == "slow" and r.call(-4, np.zeros((2, 6, 3), np.float32), B, 1) == "slow"
    assert r.call(-4, A, np.zeros(8, np.float32), 1) == "slow"
    assert r.call(-4, np.zeros((9, 5, 3), np.float32), B, 1) is None, "an extent that does not count"
    r.guard.arm([(1, 3)], [])
    assert r.call(3, A, np.zeros(8, np.float32), 1) is None and r.call(-4, A, B, 1) == "slow"


def test_counters_that_moved_stop_a_launch():
    r = Rig(prepare=False)
    one, two = ctypes.c_int64(5), ctypes.c_int64(-1)
    r.guard.arm([(7, 2)], [(ctypes.addressof(one), 5), (ctypes.addressof(two), -1)])
    assert r.call(1, A, B, 2) is None
    two.value += 1
    assert r.call(1, A, B, 2) == "slow"
    two.value, one.value = -1, 6
    assert r.call(1, A, B, 2) == "slow"
    one.value = 5
    assert r.call(1, A, B, 2) is None and r.launched == 2


def test_arrays_that_must_lie_apart():
    r = Rig(apart=[(1, 2)])
    r.guard.arm([], [])
    whole = np.zeros(100, np.float32)

    def given(first_a, first_b):  # 12 elements, 10 elements
        return whole[first_a : first_a + 12].reshape(2, 2, 3), whole[first_b : first_b + 10]

    for first_a, first_b, meets in [
        (0, 12, False),
        (0, 11, True),
        (10, 0, False),
        (9, 0, True),
        (30, 32, True),
        (30, 28, True),
    ]:
        assert (r.call(1, *given(first_a, first_b), 2) == "slow") == meets
    assert r.call(1, whole[:0].reshape(0, 2, 3), whole[:10], 2) is None, "an empty array meets nothing"
    assert not r.asked, "that is nothing to prepare"


def test_a_stopped_launch_is_prepared_once_from_its_words():
    r = Rig()

    def agree(words):
        r.guard.arm([(1, 8)], [])

    r.then = agree
    assert r.call(8, A, B, -2) is None and (r.launched, r.slow, len(r.asked)) == (1, 0, 1)
    words = struct.unpack("7q", r.asked[0])
    assert words == (8, A.ctypes.data, 2, 5, B.ctypes.data, 7, -2)
    assert r.call(8, A, B, 0) is None and len(r.asked) == 1
    assert r.call(9, A, B, 0) == "slow", "it is not as the guard says even then"
    assert len(r.asked) == 2
    r.then = lambda words: False
    assert r.call(10, A, B, 0) == "slow" and r.launched == 2


def test_errors_of_preparing_reach_the_caller_and_a_program_that_it_closed_is_seen():
    r = Rig()
    r.then = lambda words: 1 / 0
    with pytest.raises(ZeroDivisionError):
        r.call(8, A, B, 0)

    def close(words):
        r.guard.arm([], [])
        r.flags[0] = 1

    r.then = close
    assert r.call(8, A, B, 0) == "slow" and r.launched == 0


def test_no_reference_is_lost_or_kept():
    r = Rig()
    answer = object()
    r.then = lambda words: answer
    for _ in range(100):
        r.call(8, A, B, 0)
    r.asked.clear()
    before = sys.getrefcount(answer), sys.getrefcount(A), sys.getrefcount(r.guard)
    for _ in range(2000):
        r.call(8, A, B, 0)
    held = sys.getrefcount(r.asked[0])
    assert held == 2, "the list and the call"
    r.asked.clear()
    assert (sys.getrefcount(answer), sys.getrefcount(A), sys.getrefcount(r.guard)) == before
