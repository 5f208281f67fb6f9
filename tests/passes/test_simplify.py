from hypothesis import given, settings
from irgen import Program, generate, programs
from irtools import body, f, field, kernel

from qdrun.compiler.ir.builder import const_i32, const_i64
from qdrun.compiler.ir.nodes import Buffer, Kernel, Local, Op, Place, Stack, StackPut, Task
from qdrun.compiler.ir.printer import print_kernel
from qdrun.compiler.ir.types import f32, i64
from qdrun.compiler.ir.verify import verify_kernel
from qdrun.compiler.ir.walk import walk
from qdrun.compiler.passes.clone import clone_kernel
from qdrun.compiler.passes.exits import lower_exits
from qdrun.compiler.passes.simplify.simplify import simplify, simplify_in_place
from qdrun.tests.call_count import calls

x, y = field("x"), field("y")
ZERO = (const_i32(0),)


def test_the_passes_feed_each_other():
    def build(b):
        scale = b.local(f(1.0))
        steps = b.local(const_i32(2))
        with b.if_(b.op("gt", b.load(steps), const_i32(1))) as s:
            b.gstore(y, ZERO, b.op("mul", b.gload(x, ZERO), b.load(scale)))
        with b.into(s.orelse):
            b.gstore(y, ZERO, f(0.0))

    assert body(simplify(kernel(build))) == ["%0 = gload @x.0[0:i32] : f32", "@y.0[0:i32] = %0"]


def test_the_kernel_itself_is_left_as_it_is():
    program = generate(7, 40)
    before = print_kernel(program.kernel)
    assert len(print_kernel(simplify(program.kernel))) < len(before)
    assert print_kernel(program.kernel) == before


def test_a_clone_prints_the_same_and_shares_no_statement():
    program = generate(3, 60, exits=True)
    copy = clone_kernel(program.kernel)
    assert print_kernel(copy) == print_kernel(program.kernel)
    assert not {id(s) for s in walk(copy.tasks[0].body)} & {id(s) for s in walk(program.kernel.tasks[0].body)}


def test_a_clone_takes_its_stacks_along():
    task = Task("t", [], params=["st"])
    from qdrun.compiler.ir.builder import StatementBuilder

    b = StatementBuilder(task.body)
    with b.loop(const_i32(0), const_i32(2)) as lp:
        pass
    stack = Stack(lp, "tape", (Local(f32),), "st")
    task.stacks.append(stack)
    lp.body.append(StackPut(stack, const_i64(0), (f(1.0),)))
    b.op("stack_get", Op("param", (), i64, "st"), dtype=f32, attr=(stack, 0))
    new = clone_kernel(Kernel("k", [], [task])).tasks[0]
    loop, get = new.body
    assert new.stacks[0].loop is loop and new.stacks[0] is not stack
    assert loop.body[0].stack is new.stacks[0] and get.attr == (new.stacks[0], 0)


def test_simplifying_twice_changes_nothing_more():
    for seed in range(20):
        once = simplify(generate(seed, 40).kernel)
        assert print_kernel(simplify(once)) == print_kernel(once)


@settings(max_examples=80, deadline=None)
@given(programs())
def test_simplifying_changes_no_result(program: Program):
    out = simplify(program.kernel)
    verify_kernel(out)
    assert program.outcome(out) == program.outcome(program.kernel)


@settings(max_examples=80, deadline=None)
@given(programs(exits=True))
def test_simplifying_before_or_after_lowering_exits_changes_no_result(program: Program):
    expect = program.outcome(program.kernel)
    early = simplify(program.kernel)
    verify_kernel(early, lowered=False)
    assert program.outcome(early) == expect
    for version in (lower_exits(early), simplify(lower_exits(clone_kernel(program.kernel)))):
        verify_kernel(version)
        assert program.outcome(version) == expect


def simulation(statements: int) -> Kernel:
    """Simulation-like code: straight lines, one if per 16 statements, one loop per 64, locals that are loaded and stored."""
    buffer = Buffer("field")
    fields = [Place(f"p{c}", f32, buffer, 1, (64,), (64,), offset=4 * c) for c in range(16)]

    def build(b):
        known = [b.gload(p, ZERO) for p in fields]
        variables = [b.local(v) for v in known]
        step = 0
        while step * 5 < statements:
            local = variables[step % 16]
            value = b.op("add", b.op("mul", b.load(local), known[step % 7]), b.load(variables[(step * 5 + 1) % 16]))
            if step % 16 == 3:
                with b.if_(b.op("lt", value, f(1.0))):
                    b.store(local, value)
            elif step % 64 == 5:
                with b.loop(const_i32(0), const_i32(4)):
                    b.store(local, b.op("mul", b.load(local), value))
            else:
                b.store(local, value)
            if step % 8 == 0:
                b.gstore(fields[step % 16], (const_i32(step % 64),), value)
            step += 1
        for p, local in zip(fields, variables):
            b.gstore(p, ZERO, b.load(local))

    return kernel(build)


def test_work_grows_nearly_linearly_with_the_statements():
    def each(statements):
        k = simulation(statements)
        before = sum(1 for _ in walk(k.tasks[0].body))
        return calls(lambda: simplify_in_place(clone_kernel(k).tasks[0]))[1] / before

    assert each(3_000) < 1.35 * each(300)
