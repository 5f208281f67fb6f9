import pytest
from hypothesis import given, settings
from irgen import Program, programs
from irtools import axis, body, f, field, kernel, on_copy

from qdrun.compiler.ir.builder import const_i32, const_i64
from qdrun.compiler.ir.nodes import Assert, Const, Exit, Local, LocalStore, Loop, Op, Stack
from qdrun.compiler.ir.types import f32, f64, i8, i32, i64, u1
from qdrun.compiler.ir.verify import verify_kernel
from qdrun.compiler.passes.simplify.fold import fold_in_place

fold = on_copy(fold_in_place)
x, n, truth = field("x"), field("n", dtype=i32), field("t", dtype=u1)
ZERO = (const_i32(0),)


def folded(build):
    """The last line of a kernel that loads xf, xi, xb and stores what ``build(b, xf, xi, xb)`` makes."""

    def whole(b):
        loads = [b.gload(p, ZERO) for p in (x, n, truth)]
        out = build(b, *loads)
        b.gstore(field("out", dtype=out.dtype), ZERO, out)

    return body(fold(kernel(whole)))[3:]


@pytest.mark.parametrize(
    ("build", "result"),
    [
        (lambda b, xf, xi, xb: b.op("add", const_i32(2), const_i32(3)), "5:i32"),
        (lambda b, xf, xi, xb: b.op("add", f(0.1), f(0.2)), "0.30000001192092896:f32"),
        (lambda b, xf, xi, xb: b.op("add", xi, const_i32(0)), "%1"),
        (lambda b, xf, xi, xb: b.op("add", const_i32(0), xi), "%1"),
        (lambda b, xf, xi, xb: b.op("mul", xi, const_i32(0)), "0:i32"),
        (lambda b, xf, xi, xb: b.op("sub", xi, xi), "0:i32"),
        (lambda b, xf, xi, xb: b.op("xor", xi, xi), "0:i32"),
        (lambda b, xf, xi, xb: b.op("and", xi, const_i32(-1)), "%1"),
        (lambda b, xf, xi, xb: b.op("or", xb, Const(True, u1)), "True:u1"),
        (lambda b, xf, xi, xb: b.op("shl", xi, const_i32(0)), "%1"),
        (lambda b, xf, xi, xb: b.op("mod", xi, const_i32(1)), "0:i32"),
        (lambda b, xf, xi, xb: b.op("pow", xi, const_i32(0)), "1:i32"),
        (lambda b, xf, xi, xb: b.op("lt", xi, xi), "False:u1"),
        (lambda b, xf, xi, xb: b.op("eq", xi, xi), "True:u1"),
        (lambda b, xf, xi, xb: b.op("eq", xb, Const(True, u1)), "%2"),
        (lambda b, xf, xi, xb: b.op("mul", f(1.0), xf), "%0"),
        (lambda b, xf, xi, xb: b.op("div", xf, f(1.0)), "%0"),
        (lambda b, xf, xi, xb: b.op("sub", xf, f(0.0)), "%0"),
        (lambda b, xf, xi, xb: b.op("add", xf, f(-0.0)), "%0"),
        (lambda b, xf, xi, xb: b.op("neg", b.op("neg", xf)), "%0"),
        (lambda b, xf, xi, xb: b.op("select", xb, xf, xf), "%0"),
        (lambda b, xf, xi, xb: b.op("select", Const(False, u1), xf, f(2.0)), "2.0:f32"),
        (lambda b, xf, xi, xb: b.op("not", b.op("not", xb)), "%2"),
        (lambda b, xf, xi, xb: b.op("cast", b.op("cast", xi, dtype=i64), dtype=i32), "%1"),
        (lambda b, xf, xi, xb: b.op("cast", b.op("cast", xf, dtype=f64), dtype=f32), "%0"),
        (lambda b, xf, xi, xb: b.op("cast", f(300.0), dtype=i8), "127:i8"),
        (lambda b, xf, xi, xb: b.op("sqrt", f(4.0)), "2.0:f32"),
    ],
)
def test_an_exact_identity_is_applied(build, result):
    assert folded(build)[-1].endswith(f"= {result}")


@pytest.mark.parametrize(
    "build",
    [
        lambda b, xf, xi, xb: b.op("add", xf, f(0.0)),
        lambda b, xf, xi, xb: b.op("sub", xf, f(-0.0)),
        lambda b, xf, xi, xb: b.op("sub", f(0.0), xf),
        lambda b, xf, xi, xb: b.op("mul", xf, f(0.0)),
        lambda b, xf, xi, xb: b.op("sub", xf, xf),
        lambda b, xf, xi, xb: b.op("div", xf, xf),
        lambda b, xf, xi, xb: b.op("eq", xf, xf),
        lambda b, xf, xi, xb: b.op("not", b.op("lt", xf, f(1.0))),
        lambda b, xf, xi, xb: b.op("add", b.op("add", xf, f(1.0)), f(2.0)),
        lambda b, xf, xi, xb: b.op("sin", f(1.0)),
        lambda b, xf, xi, xb: b.op("sub", f(float("inf")), f(float("inf"))),
        lambda b, xf, xi, xb: b.op("cast", b.op("cast", xi, dtype=i8), dtype=i32),
        lambda b, xf, xi, xb: b.op("cast", b.op("cast", xi, dtype=f64), dtype=i8),
        lambda b, xf, xi, xb: b.op("floordiv", xi, xi),
    ],
)
def test_what_is_not_exact_stays(build):
    def whole(b):
        out = build(b, *[b.gload(p, ZERO) for p in (x, n, truth)])
        b.gstore(field("out", dtype=out.dtype), ZERO, out)

    k = kernel(whole)
    assert body(fold(k)) == body(k)


def test_integer_literals_gather_on_the_right():
    lines = folded(lambda b, xf, xi, xb: b.op("add", const_i32(4), b.op("sub", xi, const_i32(1))))
    assert lines[1] == "%4 = add %1, 3:i32 : i32"


def test_a_negated_integer_comparison_is_turned_around():
    assert folded(lambda b, xf, xi, xb: b.op("not", b.op("lt", xi, const_i32(3))))[1] == "%4 = ge %1, 3:i32 : u1"


def test_a_branch_on_a_literal_takes_its_arm():
    def build(b):
        with b.if_(b.op("lt", const_i32(1), const_i32(2))) as s:
            b.gstore(x, ZERO, f(1.0))
        with b.into(s.orelse):
            b.gstore(x, ZERO, f(2.0))

    assert body(fold(kernel(build))) == ["@x.0[0:i32] = 1.0:f32"]


def test_inside_an_arm_the_condition_is_known():
    def build(b):
        c = b.gload(truth, ZERO)
        turned = b.op("not", c)
        with b.if_(turned) as s:
            with b.if_(c):
                b.gstore(x, ZERO, f(1.0))
            b.gstore(truth, ZERO, turned)
        with b.into(s.orelse):
            b.gstore(truth, ZERO, c)

    assert body(fold(kernel(build)))[2:] == [
        "if %1:",
        "  @t.0[0:i32] = True:u1",
        "else:",
        "  @t.0[0:i32] = True:u1",
    ]


def test_an_arm_that_contradicts_the_one_around_it_does_not_confuse_the_rest():
    def build(b):
        c = b.gload(truth, ZERO)
        turned = b.op("not", c)
        with b.if_(c):
            with b.if_(turned):
                b.gstore(x, ZERO, f(1.0))
            b.gstore(truth, ZERO, c)

    assert body(fold(kernel(build)))[-1] == "  @t.0[0:i32] = True:u1"


def test_a_branch_that_marks_an_exit_keeps_its_mark():
    flag = Local(i32, "exit")

    def build(b):
        with b.if_(Const(True, u1)) as s:
            b.store(flag, const_i32(1))
        s.site, s.site_local = 1, flag

    assert body(fold(kernel(build)))[0] == "if True:u1:  # leaves through 1"


def test_a_loop_without_iterations_goes_unless_it_owns_an_adstack():
    def build(b):
        with b.loop(const_i32(3), const_i32(3)):
            b.gstore(x, ZERO, f(1.0))

    k = kernel(build)
    assert body(fold(k)) == [""]
    loop = k.tasks[0].body[0]
    assert isinstance(loop, Loop)
    k.tasks[0].stacks.append(Stack(loop, "tape", (), "st"))
    assert len(body(fold(k))) == 2


def test_nothing_is_reached_after_an_exit_and_a_true_assert_goes():
    def build(b):
        b.put(Assert(Const(True, u1), "never"))
        with b.loop(const_i32(0), const_i32(3)):
            with b.if_(Const(True, u1)):
                b.put(Exit("break"))
            b.gstore(x, ZERO, f(1.0))

    lines = body(fold(kernel(build, lowered=False)), lowered=False)
    assert lines == ["for %0 in range(0:i32, 3:i32, 1):", "  break"]


def test_bounds_in_the_prologue_are_folded_too():
    a = axis()
    k = kernel(lambda b, i: b.gstore(x, (i,), f(1.0)), a)
    task = k.tasks[0]
    bound = Op("add", (const_i32(2), const_i32(3)), i32)
    task.prologue, task.axes[0].end = [bound], bound
    out = fold(k)
    verify_kernel(out)
    assert out.tasks[0].prologue == [] and out.tasks[0].axes[0].end == const_i32(5)
    assert task.axes[0].end is bound  # the original is left as it is


def test_stores_and_i64_slots_take_folded_values():
    v = Local(i64)
    k = kernel(lambda b: b.put(LocalStore(v, b.op("mul", const_i64(3), const_i64(4)))))
    assert body(fold(k)) == ["$v.0 = 12:i64"]


@settings(max_examples=60, deadline=None)
@given(programs())
def test_folding_changes_no_result(program: Program):
    out = fold(program.kernel)
    verify_kernel(out)
    assert program.outcome(out) == program.outcome(program.kernel)


@settings(max_examples=60, deadline=None)
@given(programs(exits=True))
def test_folding_changes_no_result_before_exits_are_lowered(program: Program):
    out = fold(program.kernel)
    verify_kernel(out, lowered=False)
    assert program.outcome(out) == program.outcome(program.kernel)
