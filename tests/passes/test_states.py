"""Counters in closed form and short loops written out: the same effects, to the last bit; printed before and after."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "gradients"))

from harness import PLANS, run_gradient
from irtools import axis, body, f, field, kernel
from random_ir import make

from qdrun.compiler.ir.builder import StatementBuilder, const_i32
from qdrun.compiler.ir.nodes import Const, Exit, Kernel, Loop, Op, Task
from qdrun.compiler.ir.types import i8, i32, i64
from qdrun.compiler.ir.verify import verify_kernel
from qdrun.compiler.ir.walk import walk
from qdrun.compiler.passes.exits import lower_exits
from qdrun.compiler.passes.reverse.gradient import reverse_kernel
from qdrun.compiler.passes.reverse.induction import restated
from qdrun.compiler.passes.reverse.slices import Slicer
from qdrun.compiler.passes.reverse.unroll import MOST_TRIPS, unrolled
from qdrun.compiler.passes.simplify.simplify import simplify
from qdrun.compiler.runtime.python.interpret import Memory, run_kernel

OUT = field("out", (64,), i32)


def counting(b: StatementBuilder, i: Op, begin=0, end: int | None = 6, step: int = 1, dtype=i32, add: int = 3) -> Loop:
    """``c = i; for k in ..: out[7 * i + k] = c; c += add``, and ``out[7 * i + 6] = c`` behind it."""
    c = b.local(b.cast(i, dtype), "c")
    at = b.local(b.op("mul", i, const_i32(7)), "at")
    with b.loop(const_i32(begin), None if end is None else const_i32(end), step) as loop:
        b.gstore(OUT, (b.load(at),), b.cast(b.load(c), i32))
        b.store(at, b.op("add", b.load(at), const_i32(1)))
        b.store(c, b.op("add", b.load(c), Const(add, dtype)))
    b.gstore(OUT, (b.op("add", b.op("mul", i, const_i32(7)), const_i32(6)),), b.cast(b.load(c), i32))
    return loop


def effects(k: Kernel) -> bytes:
    """What a kernel of ``counting`` leaves in memory."""
    memory = Memory.of({OUT: np.full(64, -1, np.int32)})
    run_kernel(k, memory)
    return memory.array(OUT).tobytes()


def changed(k: Kernel) -> Kernel:
    """The kernel with its counters restated; there must be some."""
    new = restated(k.tasks[0])
    assert new is not None
    out = Kernel(k.name, k.args, [new])
    verify_kernel(out)
    return out


def test_a_counter_is_said_at_the_top_of_the_body_and_behind_the_loop():
    def build(b: StatementBuilder, i: Op) -> None:
        v = b.local(const_i32(5), "v")
        with b.loop(const_i32(2), i):
            b.store(v, b.op("add", b.load(v), const_i32(4)))
        b.gstore(OUT, (i,), b.load(v))

    k = changed(kernel(build, axis()))
    assert body(Kernel(k.name, k.args, [simplified(k)])) == [
        "%1 = cast %0 : i64",
        "%2 = add %1, -2:i64 : i64",
        "%3 = max %2, 0:i64 : i64",
        "%4 = cast %3 : i32",
        "%5 = mul %4, 4:i32 : i32",
        "%6 = add %5, 5:i32 : i32",
        "@out.0[%0] = %6",
    ]


def simplified(k: Kernel):
    return simplify(k).tasks[0]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"begin": -3, "end": 3},
        {"begin": 5, "end": -1, "step": -1},
        {"begin": 1, "end": 12, "step": 2},
        {"begin": 11, "end": 0, "step": -2},
        {"end": 0},
        {"dtype": i8, "add": 100},
        {"dtype": i8, "add": 100, "begin": 11, "end": 0, "step": -2},
        {"dtype": i64, "add": -(2**40) - 1},
        {"add": 2**31 - 1},
    ],
)
def test_a_restated_counter_has_the_same_values(options):
    k = kernel(lambda b, i: counting(b, i, **options) and None, axis())
    assert effects(changed(k)) == effects(k)


def test_a_64_bit_counter_of_an_endless_loop_with_a_32_bit_index_is_left_alone():
    def build(dtype):
        def fill(b: StatementBuilder, i: Op) -> None:
            c = b.local(Const(0, dtype), "c")
            with b.loop(const_i32(0), None):
                b.store(c, b.op("add", b.load(c), Const(1, dtype)))
                with b.if_(b.op("gt", b.load(c), Const(5, dtype))):
                    b.put(Exit("break"))
            b.gstore(OUT, (i,), b.cast(b.load(c), i32))

        return lower_exits(kernel(fill, axis(), lowered=False))

    assert restated(build(i64).tasks[0]) is None
    k = build(i32)
    assert effects(changed(k)) == effects(k)


def same_effects(rewritten: Callable[[Task], Task | None], seeds: range) -> int:
    """Run random kernels as they are and rewritten, and compare all of memory; how many were rewritten."""
    count = 0
    for seed in seeds:
        p = make(seed)
        k = simplify(lower_exits(p.kernel)) if seed % 2 else lower_exits(p.kernel)
        new = rewritten(k.tasks[0])
        if new is None:
            continue
        count += 1
        results = []
        for task in (k.tasks[0], new):
            verify_kernel(Kernel(k.name, k.args, [task]))
            memory = p.memory(seed)
            run_kernel(Kernel(k.name, k.args, [task]), memory)
            results.append((memory.array(p.out).tobytes(), memory.array(p.own).tobytes()))
        assert results[0] == results[1], f"seed {seed}"
    return count


def test_random_kernels_do_the_same_with_their_counters_restated():
    assert same_effects(restated, range(2000, 2060)) >= 15


@pytest.mark.slow
def test_random_kernels_do_the_same_with_their_short_loops_written_out():
    assert same_effects(lambda task: unrolled(task, Slicer(task)), range(2000, 2150)) >= 15


@pytest.mark.parametrize("seed", range(2100, 2112))
def test_written_out_or_not_the_gradient_is_the_same(seed):
    p = make(seed)
    k = simplify(lower_exits(p.kernel))
    found = []
    for trips in (0, MOST_TRIPS):
        gradient = reverse_kernel(k, unroll=trips)
        memory = p.memory(seed)
        run_gradient(gradient, memory, PLANS["L2"])
        found.append(memory.array(p.x.grad).copy())
    np.testing.assert_allclose(found[0], found[1], rtol=1e-9, atol=1e-9 * max(1.0, np.abs(found[0]).max()))


def test_a_loop_that_keeps_nothing_is_not_written_out():
    x = field("x")

    def build(b: StatementBuilder, i: Op) -> None:
        v = b.local(f(0.0), "v")
        with b.loop(const_i32(0), const_i32(4)):
            b.store(v, b.op("add", b.load(v), b.gload(x, (i,))))
        b.gstore(x, (i,), b.load(v))

    task = kernel(build, axis()).tasks[0]
    assert unrolled(task, Slicer(task)) is None
    assert any(isinstance(s, Loop) for s in walk(task.body))
