from hypothesis import given, settings
from irgen import Program, programs
from irtools import body, f, field, kernel, on_copy

from qdrun.compiler.ir.builder import const_i32
from qdrun.compiler.ir.nodes import Const
from qdrun.compiler.ir.types import i8, i32, i64, u1, u8, u64
from qdrun.compiler.ir.verify import verify_kernel
from qdrun.compiler.passes.simplify.forwarding import forward_in_place

forward = on_copy(forward_in_place)
x, y, flags = field("x"), field("y"), field("c", dtype=u1)
ZERO, ONE = (const_i32(0),), (const_i32(1),)


def last(build):
    """The last statement after forwarding."""
    return body(forward(kernel(build)))[-1].strip()


def test_a_local_stored_once_becomes_a_value_also_in_nested_blocks():
    def build(b):
        v = b.local(b.gload(x, ZERO))
        with b.loop(const_i32(0), const_i32(3)), b.if_(b.gload(flags, ZERO)):
            b.gstore(y, ZERO, b.load(v))

    assert last(build) == "@y.0[0:i32] = %0"


def test_a_local_that_a_loop_carries_stays():
    def build(b):
        v = b.local(f(1.0))
        with b.loop(const_i32(0), const_i32(3)):
            b.store(v, b.op("add", b.load(v), f(1.0)))
        b.gstore(y, ZERO, b.load(v))

    k = kernel(build)
    assert body(forward(k)) == body(k)


def test_a_value_stored_in_a_loop_is_known_in_the_rest_of_its_body_only():
    def build(b):
        v = b.local(f(1.0))
        with b.loop(const_i32(0), const_i32(3)):
            b.store(v, b.gload(x, ZERO))
            b.gstore(y, ZERO, b.load(v))
        b.gstore(y, ONE, b.load(v))

    lines = body(forward(kernel(build)))
    assert "  @y.0[0:i32] = %1" in lines and lines[-2:] == ["%2 = load $v.0 : f32", "@y.0[1:i32] = %2"]


def test_what_an_arm_may_store_is_unknown_after_it():
    def build(b):
        v, w = b.local(f(1.0)), b.local(f(5.0), "w")
        with b.if_(b.gload(flags, ZERO)) as s:
            b.store(v, f(2.0))
            b.gstore(x, ZERO, b.load(v))
        with b.into(s.orelse):
            b.gstore(x, ZERO, b.load(v))
        b.gstore(y, ZERO, b.load(w))
        b.gstore(y, ONE, b.load(v))

    stores = [line.strip() for line in body(forward(kernel(build))) if line.strip().startswith("@")]
    assert stores == ["@x.0[0:i32] = 2.0:f32", "@x.0[0:i32] = 1.0:f32", "@y.0[0:i32] = 5.0:f32", "@y.0[1:i32] = %1"]


def test_what_only_the_other_arm_may_store_is_unknown_too():
    def build(b):
        v = b.local(f(1.0))
        with b.if_(b.gload(flags, ZERO)) as s:
            pass
        with b.into(s.orelse):
            b.store(v, f(2.0))
        b.gstore(y, ONE, b.load(v))

    k = kernel(build)
    assert body(forward(k)) == body(k)


def test_memory_is_forwarded_for_an_equal_index():
    def build(b):
        i = b.gload(field("n", dtype=i32), ZERO)
        b.gstore(x, (i,), f(3.0))
        b.gstore(y, ZERO, b.gload(x, (i,)))

    assert last(build) == "@y.0[0:i32] = 3.0:f32"


def test_memory_is_not_forwarded_over_a_write_that_may_be_to_the_same_element():
    def over(write, index=ZERO):
        def build(b):
            b.gstore(x, ZERO, f(3.0))
            write(b)
            b.gstore(y, ZERO, b.gload(x, index))

        return last(build)

    unknown = field("n", dtype=i32)
    assert over(lambda b: b.gstore(y, ZERO, f(1.0))) == "@y.0[0:i32] = 3.0:f32"
    assert over(lambda b: b.gstore(x, ONE, f(1.0))) == "@y.0[0:i32] = 3.0:f32"
    assert over(lambda b: b.gstore(x, ONE, f(1.0)), ONE) == "@y.0[0:i32] = 1.0:f32"
    assert over(lambda b: b.gstore(x, (b.gload(unknown, ZERO),), f(1.0))).endswith("= %1")
    assert over(lambda b: b.atomic("add", x, ONE, f(1.0))).endswith("= %1")
    for dtype in (i8, u8, i64, u64):  # the element that a literal names does not depend on its type
        assert over(lambda b, d=dtype: b.gstore(x, (Const(0, d),), f(1.0))) == "@y.0[0:i32] = 1.0:f32"
        assert over(lambda b, d=dtype: b.gstore(x, (Const(1, d),), f(1.0))) == "@y.0[0:i32] = 3.0:f32"


@settings(max_examples=60, deadline=None)
@given(programs())
def test_forwarding_changes_no_result(program: Program):
    out = forward(program.kernel)
    verify_kernel(out)
    assert program.outcome(out) == program.outcome(program.kernel)


@settings(max_examples=60, deadline=None)
@given(programs(exits=True))
def test_forwarding_changes_no_result_before_exits_are_lowered(program: Program):
    out = forward(program.kernel)
    verify_kernel(out, lowered=False)
    assert program.outcome(out) == program.outcome(program.kernel)
