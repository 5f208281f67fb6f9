from hypothesis import given, settings
from irgen import Program, programs
from irtools import axis, body, f, field, kernel, on_copy

from qdrun.compiler.ir.builder import const_i32
from qdrun.compiler.ir.nodes import Assert, Const, Exit, Local, Loop, Print, Reduction, Stack
from qdrun.compiler.ir.types import f32, i32, u1
from qdrun.compiler.ir.verify import verify_kernel
from qdrun.compiler.passes.simplify.dce import dce_in_place

dce = on_copy(dce_in_place)
x, y = field("x"), field("y")
ZERO = (const_i32(0),)


def test_unused_values_and_loads_go_and_effects_stay():
    def build(b):
        b.op("neg", b.gload(x, ZERO))
        b.atomic("add", x, ZERO, f(1.0))
        b.put(Assert(b.op("lt", const_i32(0), const_i32(1)), "no"))
        b.put(Print(("text",)))

    assert body(dce(kernel(build))) == [
        "%0 = atomic add @x.0[0:i32], 1.0:f32 : f32",
        "%1 = lt 0:i32, 1:i32 : u1",
        "assert %1, 'no' ()",
        "print 'text'",
    ]


def test_a_local_that_nobody_reads_goes_with_what_feeds_it():
    def build(b):
        v = b.local(b.gload(x, ZERO))
        with b.loop(const_i32(0), const_i32(3)):
            b.store(v, b.op("add", b.load(v), f(1.0)))
            b.gstore(y, ZERO, f(1.0))

    assert body(dce(kernel(build))) == ["for %0 in range(0:i32, 3:i32, 1):", "  @y.0[0:i32] = 1.0:f32"]


def test_a_store_that_is_overwritten_before_it_is_read_goes():
    def build(b):
        v = b.local(f(1.0))
        with b.if_(b.gload(field("c", dtype=u1), ZERO)) as s:
            b.store(v, f(2.0))
        with b.into(s.orelse):
            b.store(v, f(3.0))
        b.gstore(y, ZERO, b.load(v))
        b.store(v, f(4.0))

    lines = body(dce(kernel(build)))
    assert [line.strip() for line in lines if "$v" in line] == ["$v.0 = 2.0:f32", "$v.0 = 3.0:f32", "%1 = load $v.0 : f32"]


def test_a_store_that_the_next_iteration_reads_stays():
    def build(b):
        v = b.local(f(1.0))
        with b.loop(const_i32(0), const_i32(3)):
            b.gstore(y, ZERO, b.load(v))
            b.store(v, f(2.0))

    k = kernel(build)
    assert body(dce(k)) == body(k)


def test_a_store_before_a_break_stays():
    def build(b):
        v = b.local(f(1.0))
        with b.loop(const_i32(0), const_i32(3)):
            b.store(v, f(2.0))
            with b.if_(b.gload(field("c", dtype=u1), ZERO)):
                b.put(Exit("break"))
            b.store(v, f(3.0))
        b.gstore(y, ZERO, b.load(v))

    lines = body(dce(kernel(build, lowered=False)), lowered=False)
    assert sum("$v.0 =" in line for line in lines) == 3


def test_a_finite_loop_without_effect_goes_and_an_endless_one_stays():
    def finite(b):
        v = b.local(f(1.0))
        with b.loop(const_i32(0), b.gload(field("n", dtype=i32), ZERO)):
            b.store(v, b.op("mul", b.load(v), f(2.0)))

    def endless(b):
        with b.loop(const_i32(0), None):
            b.gload(x, ZERO)

    assert body(dce(kernel(finite))) == [""]
    assert body(dce(kernel(endless))) == ["for %0 in range(0:i32, inf, 1):"]


def test_an_exit_local_lives_as_long_as_its_loop():
    flag = Local(i32, "exit")

    def build(b):
        with b.loop(const_i32(0), const_i32(9)) as lp:
            b.store(flag, const_i32(0))
            with b.if_(b.gload(field("c", dtype=u1), ZERO)):
                b.store(flag, const_i32(1))
            b.gstore(x, (lp.index,), f(1.0))
        lp.exit = flag

    k = kernel(build)
    assert body(dce(k)) == body(k)


def test_a_loop_that_owns_an_adstack_and_the_local_of_a_reduction_stay():
    total = Local(f32, "sum")

    def build(b, i):
        b.store(total, b.op("add", f(1.0), f(1.0)))
        with b.loop(const_i32(0), const_i32(3)):
            b.op("neg", i)

    k = kernel(build, axis())
    task = k.tasks[0]
    task.reductions.append(Reduction(total, y, ZERO, "add"))
    assert isinstance(task.body[2], Loop)
    task.stacks.append(Stack(task.body[2], "tape", (), "st"))
    assert body(dce(k)) == ["%0 = add 1.0:f32, 1.0:f32 : f32", "$sum.0 = %0", "for %1 in range(0:i32, 3:i32, 1):"]


def test_an_empty_branch_goes_with_its_condition():
    def build(b):
        with b.if_(b.op("lt", b.gload(x, ZERO), f(0.0))):
            b.op("neg", Const(1.0, f32))

    assert body(dce(kernel(build))) == [""]


@settings(max_examples=60, deadline=None)
@given(programs())
def test_dropping_dead_code_changes_no_result(program: Program):
    out = dce(program.kernel)
    verify_kernel(out)
    assert program.outcome(out) == program.outcome(program.kernel)


@settings(max_examples=60, deadline=None)
@given(programs(exits=True))
def test_dropping_dead_code_changes_no_result_before_exits_are_lowered(program: Program):
    out = dce(program.kernel)
    verify_kernel(out, lowered=False)
    assert program.outcome(out) == program.outcome(program.kernel)
