"""Loops over adstacks tell LLVM to leave them rolled; all others are its own business."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import llvmlite.binding as llvm
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "gradients"))

from random_ir import make

from qdrun.compiler.codegen.llvm.kernel import emit_kernel
from qdrun.compiler.codegen.llvm.target import Target
from qdrun.compiler.compile import pipeline
from qdrun.compiler.ir.builder import StatementBuilder, const_i32, const_i64
from qdrun.compiler.ir.nodes import Axis, ClaimRow, Const, Kernel, Loop, Op, Stack, StackPut, Task
from qdrun.compiler.ir.types import f64, i32


def marked(text: str) -> int:
    """Loops that stay rolled; each has a name of its own, and LLVM takes the module."""
    used, made = re.findall(r"!llvm\.loop !(\d+)", text), re.findall(r"!(\d+) = distinct", text)
    assert sorted(used) == sorted(made) and len(set(used)) == len(used)
    with llvm.create_context() as context:
        llvm.parse_assembly(text, context).verify()
    return len(used)


def one_stack(loops_around: int) -> str:
    """A task with a loop without stacks, and a put inside ``loops_around`` loops."""
    task = Task("t", [], [Axis(Op("index", (), i32), const_i32(0), const_i32(4))])
    b = StatementBuilder(task.body)
    v = b.local(Const(1.0, f64), "v")
    with b.loop(const_i32(0), task.axes[0].index):
        b.store(v, b.op("mul", b.load(v), b.load(v)))
    opened = []
    for _ in range(loops_around):
        loop = b.loop(const_i32(0), task.axes[0].index)
        opened.append(loop)
        loop.__enter__()
    task.body.insert(0, ClaimRow())
    stack = Stack(Loop(Op("index", (), i32), const_i32(0), const_i32(1)), "tape", (v,), "tape.0")
    b.put(StackPut(stack, const_i64(0), (b.load(v),)))
    for loop in reversed(opened):
        loop.__exit__(None, None, None)
    task.stacks, task.params = [stack], ["tape.0.f8", "stride.f8", "rows", "threads"]
    return emit_kernel(Kernel("k", [], [task]), Target())


def test_every_loop_around_a_stack_access_is_marked_and_no_other():
    for depth in range(4):
        assert marked(one_stack(depth)) == depth


@pytest.mark.slow
def test_modules_of_random_gradients_are_well_formed():
    count = 0
    for seed in range(3000, 3012):
        kernel = pipeline.gradient(pipeline.simplified(make(seed).kernel)).kernel
        for lanes in (1, 4):
            text = emit_kernel(kernel, Target(lanes=lanes))
            found = marked(text)
            assert bool(found) == any(t.stacks for t in kernel.tasks)
            count += bool(found)
    assert count
