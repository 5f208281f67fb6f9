"""The rules of well-formed IR: one violating program or more for each number, the same list in docs/ir.md, a check after every pass."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

from qdrun.compiler import passes
from qdrun.compiler.frontend.lower import lower
from qdrun.compiler.ir.builder import StatementBuilder, const_i32, const_i64
from qdrun.compiler.ir.nodes import (
    ArgDecl,
    Assert,
    Axis,
    Buffer,
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
    Place,
    Print,
    Reduction,
    Stack,
    StackPut,
    Task,
)
from qdrun.compiler.ir.types import f32, f64, i32, i64, u1, u64
from qdrun.compiler.ir.verify import RULES, VerifyError, verified, verify_kernel, verify_task

ONE, ZERO = Const(1.0, f32), const_i32(0)


def field(dtype=f32, ndim=1, kind="field") -> Place:
    return Place("x", dtype, Buffer(kind), ndim, (8,) * ndim, (4,) * ndim)


def axis() -> Axis:
    return Axis(Op("index", (), i32), const_i32(0), const_i32(8))


def loop(**given) -> Loop:
    return Loop(Op("index", (), i32), ZERO, const_i32(3), **given)


def stack(dtype=f32) -> Stack:
    return Stack(loop(), "tape", (Local(dtype),), "t")


def body(*statements, **task) -> Task:
    return Task("some_task", list(statements), **task)


def built(build, **task) -> Task:
    out = body(**task)
    build(StatementBuilder(out.body))
    return out


def escaped(b: StatementBuilder) -> None:
    with b.if_(Const(True, u1)):
        inner = b.op("neg", ONE)
    b.op("neg", inner)


def twice(b: StatementBuilder) -> None:
    b.put(b.op("neg", ONE))


def prologue_read() -> Task:
    value = Op("arg", (), i32, ArgDecl("n", "scalar", i32))
    return body(Op("neg", (value,), i32), prologue=[value])


def reduction(code="add", dtype=f32, parallel=True, index=(ZERO,)) -> Task:
    axes = [Axis(Op("index", (), i32), ZERO, const_i32(4))] if parallel else []
    return body(axes=axes, reductions=[Reduction(Local(dtype), field(), index, code)])


def kernel(task: Task, *args: ArgDecl) -> Kernel:
    return Kernel("some_task", list(args), [task])


def of_an_array(task_args=()) -> Kernel:
    place = Place("a", f32, Buffer("arg", ArgDecl("a", "ndarray", f32, 1)), 1, None, None, elem_bytes=4)
    return kernel(built(lambda b: b.gload(place, (ZERO,))), *task_args)


def unclaimed(write: bool, claim: bool = False) -> Task:
    """A stack access whose row is claimed nowhere, or in an ``if`` before it."""
    local = Local(f32)
    kept = Stack(loop(), "tape", (local,), "t")
    out = body(stacks=[kept], params=["rows"])
    b = StatementBuilder(out.body)
    if claim:
        with b.if_(Const(True, u1)):
            b.put(ClaimRow())
    if write:
        b.put(StackPut(kept, const_i64(0), (ONE,)))
    else:
        b.op("stack_get", const_i64(0), dtype=f32, attr=(kept, 0))
    return out


def two_with_one_number() -> Kernel:
    decls = [ArgDecl(n, "scalar", i32, index=k) for n, k in (("a", 0), ("b", 1), ("c", 1))]
    return kernel(body(), *decls)


SCALAR, ARRAY = ArgDecl("n", "scalar", i32), ArgDecl("a", "ndarray", f32, 2)
UNLOWERED = "unlowered"
BROKEN = [
    (1, "not defined here", lambda: built(lambda b: b.op("neg", Op("arg", (), f32)))),
    (1, "not defined here", lambda: built(escaped)),
    (1, "does not list", lambda: built(lambda b: b.op("neg", Op("param", (), i64, "S.0")), params=["C1.0"])),
    (2, "listed twice", lambda: built(twice)),
    (3, "unknown operation 'sine'", lambda: body(Op("sine", (ONE,), f32))),
    (3, "takes 2 operands", lambda: body(Op("add", (ZERO,), i32))),
    (4, "never listed", lambda: body(Op("index", (), i32))),
    (4, "never listed", lambda: body(Op("param", (), i64, "S.0"))),
    (5, "differ in type", lambda: built(lambda b: b.op("add", ZERO, const_i64(2)))),
    (5, "does not take i32", lambda: built(lambda b: b.op("sin", ZERO))),
    (6, "has type i64, should be i32", lambda: built(lambda b: b.op("add", ZERO, ZERO, dtype=i64))),
    (6, "should be f32", lambda: built(lambda b: b.op("select", Const(True, u1), ONE, ONE, dtype=f64))),
    (7, "not a truth value", lambda: body(If(const_i32(1)))),
    (7, "not a truth value", lambda: body(Assert(const_i32(1), "no"))),
    (7, "what selects", lambda: built(lambda b: b.op("select", ZERO, ZERO, ZERO))),
    (8, "before any store", lambda: built(lambda b: b.load(Local(f32)))),
    (8, "in another type", lambda: built(lambda b: b.put(Op("load", (), f64, b.local(ONE))))),
    (9, "stores i32 to a local of type f32", lambda: body(LocalStore(Local(f32), ZERO))),
    (10, "indices differs", lambda: body(GlobalStore(field(), (), ONE))),
    (10, "indices differs", lambda: built(lambda b: b.gload(field(), (ONE,)))),
    (11, "differs from the place", lambda: body(GlobalStore(field(), (ZERO,), Const(1.0, f64)))),
    (11, "differs from the place", lambda: body(Op("gload", (ZERO,), f64, field()))),
    (12, "unknown atomic 'div'", lambda: built(lambda b: b.atomic("div", field(), (ZERO,), ONE))),
    (12, "takes 2 values", lambda: body(Op("atomic", (ONE,), f32, (field(ndim=0), "cas")))),
    (13, "differ in type", lambda: body(Loop(Op("index", (), i32), ZERO, const_i64(3)))),
    (13, "differ in type", lambda: body(axes=[Axis(Op("index", (), f32), ONE, ONE)])),
    (13, "step 0", lambda: body(loop(step=0))),
    (14, "exit local", lambda: body(loop(exit=Local(i32, "exit")))),
    (15, "left after lowering", lambda: body(Exit("return"))),
    (15, UNLOWERED, lambda: body(Exit("break"))),
    (16, "wrong number of words", lambda: body(StackPut(stack(), const_i64(0), ()))),
    (16, "another type, or a stack of another", lambda: body(StackPut(stack(f64), const_i64(0), (ONE,)))),
    (16, "wrong stack", lambda: built(lambda b: b.op("stack_get", const_i64(0), dtype=f64, attr=(stack(), 0)))),
    (16, "a stack of another task", lambda: built(lambda b: b.op("stack_get", const_i64(0), dtype=f32, attr=(stack(), 0)))),
    (17, "an axis bound", lambda: body(axes=[Axis(Op("index", (), i32), ZERO, Op("arg", (), i32, SCALAR))])),
    (17, "the index of a reduction", lambda: reduction(index=(Op("arg", (), i32, SCALAR),))),
    (1, "not defined here", prologue_read),
    (18, "a write in a prologue", lambda: body(prologue=[GlobalStore(field(), (ZERO,), ONE)])),
    (19, "a reduction mul", lambda: reduction("mul")),
    (19, "a reduction add of f64 into f32", lambda: reduction(dtype=f64)),
    (19, "a reduction add", lambda: reduction(parallel=False)),
    (20, "arg in another type", lambda: body(Op("arg", (), f32, SCALAR))),
    (20, "shape in another type", lambda: body(Op("shape", (), i32, (ARRAY, 2)))),
    (20, "iter in another type", lambda: body(Op("iter", (), i32))),
    (20, "seed in another type", lambda: body(Op("seed", (), i64))),
    (21, "1 values for a message with 2 places", lambda: body(Assert(Const(True, u1), "{} {}", (ZERO,)))),
    (21, "2 formats for 1 parts", lambda: body(Print(("text",), formats=("", "")))),
    (22, "no argument of this kernel", of_an_array),
    (22, "no argument of this kernel", lambda: kernel(body(Op("arg", (), i32, SCALAR)))),
    (22, "one number", two_with_one_number),
    (23, "writes to a stack before", lambda: unclaimed(write=True)),
    (23, "writes to a stack before", lambda: unclaimed(write=True, claim=True)),
    (23, "reads a stack before", lambda: unclaimed(write=False)),
    (23, "a task without rows", lambda: body(ClaimRow())),
    (23, "a claim in a loop", lambda: body(loop(body=[ClaimRow()]), params=["rows"])),
    (24, "there are no blocks here", lambda: body(Op("barrier", (), i32))),
    (24, "there are no blocks here", lambda: body(Op("barrier", (), i32), axes=[axis()])),
    (24, "there are no blocks here", lambda: body(prologue=[Op("barrier", (), i32)], axes=[axis()], block=32)),
    (24, "there are no blocks here", lambda: body(Op("ballot", (Const(True, u1),), u64))),
    (25, "operands or result", lambda: body(Op("ballot", (ZERO,), u64), axes=[axis()], block=32)),
    (25, "operands or result", lambda: body(Op("shuffle", (ZERO, const_i64(0)), i32), axes=[axis()], block=32)),
    (25, "neither those of the block", lambda: body(Op("fence", (), i32))),
    (24, "there are no blocks here", lambda: body(GlobalStore(field(kind="block"), (ZERO,), ONE), axes=[axis()])),
]


@pytest.mark.parametrize("rule, words, make", BROKEN, ids=[f"{r}-{w}" for r, w, _ in BROKEN])
def test_the_verifier_names_the_task_and_the_rule(rule, words, make):
    broken = make()
    lowered = words is not UNLOWERED
    with pytest.raises(VerifyError) as e:
        (verify_kernel if isinstance(broken, Kernel) else verify_task)(broken, lowered)
    message = str(e.value)
    assert message.startswith(f"some_task: rule {rule}: ")
    assert lowered is False or words in message
    assert RULES[rule] in message


def test_each_rule_is_violated_once():
    assert {rule for rule, _, _ in BROKEN} == set(RULES)


def test_the_page_lists_the_same_rules():
    page = (Path(__file__).parents[1] / "docs" / "ir.md").read_text(encoding="utf-8")
    assert dict((int(n), text) for n, text in re.findall(r"^\| (\d+) \| (.*?) \|", page, re.M)) == RULES
    assert list(RULES) == list(range(1, len(RULES) + 1))


def test_exits_are_allowed_before_they_are_lowered():
    task = body(loop(body=[Exit("break")]), Exit("continue"))
    verify_task(task, lowered=False)
    with pytest.raises(VerifyError, match="rule 15"):
        verify_task(task)


def test_a_value_of_the_prologue_bounds_an_axis():
    bound = Op("arg", (), i32, SCALAR)
    axes = [Axis(Op("index", (), i32), ZERO, bound)]
    verify_task(body(axes=axes, prologue=[bound]))
    with pytest.raises(VerifyError, match="prologue"):
        verify_task(body(axes=axes))


def pass_functions():
    """Every function of ``compiler.passes`` that makes a kernel or edits a task, by its name."""
    for module in pkgutil.walk_packages(passes.__path__, f"{passes.__name__}."):
        loaded = importlib.import_module(module.name)
        for name, f in inspect.getmembers(loaded, inspect.isfunction):
            if f.__module__ == loaded.__name__ and re.fullmatch(r"\w+_(in_place|kernel)|lower_exits|simplify", name):
                yield name, f


HELPERS = {"clone_kernel", "simplify_in_place", "reduce_in_place"}  # a copy; loops over passes that are checked one by one


def test_every_pass_is_checked():
    found = {**dict(pass_functions()), "lower": lower}
    assert {"lower_exits", "simplify", "reverse_kernel", "reduce_kernel", "forward_kernel", "dce_in_place", "lower"} <= set(
        found
    )
    assert {name for name, f in found.items() if not hasattr(f, "__verified__")} == HELPERS


def test_a_pass_that_breaks_the_ir_is_stopped(monkeypatch):
    @verified()
    def careless(kernel: Kernel) -> Kernel:
        kernel.tasks[0].body.append(Op("sine", (ONE,), f32))
        return kernel

    @verified(lowered=False)
    def careless_in_place(task: Task) -> bool:
        task.body.append(Op("sine", (ONE,), f32))
        return True

    for run, argument in ((careless, kernel(body())), (careless_in_place, body())):
        monkeypatch.setenv("QDRUN_VERIFY", "1")
        with pytest.raises(VerifyError, match="rule 3"):
            run(argument)
        monkeypatch.delenv("QDRUN_VERIFY")
        run(argument)
