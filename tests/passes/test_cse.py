from hypothesis import given, settings
from irgen import Program, programs
from irtools import axis, body, f, field, kernel, ndarray, on_copy

from qdrun.compiler.ir.builder import const_i32
from qdrun.compiler.ir.nodes import Buffer, Const, Place
from qdrun.compiler.ir.types import f32, i32, u1
from qdrun.compiler.ir.verify import verify_kernel
from qdrun.compiler.passes.simplify.cse import cse_in_place

cse = on_copy(cse_in_place)
x, y = field("x"), field("y")
ZERO, ONE = (const_i32(0),), (const_i32(1),)


def loads(build):
    """How many memory loads stay."""
    return sum("gload" in line for line in body(cse(kernel(build))))


def test_the_same_value_is_computed_once():
    def build(b):
        v = b.gload(x, ZERO)
        b.gstore(y, ZERO, b.op("mul", b.op("add", v, f(1.0)), b.op("add", f(1.0), v)))

    assert body(cse(kernel(build))) == [
        "%0 = gload @x.0[0:i32] : f32",
        "%1 = add %0, 1.0:f32 : f32",
        "%2 = mul %1, %1 : f32",
        "@y.0[0:i32] = %2",
    ]


def test_values_that_only_look_equal_stay_apart():
    def build(b):
        v = b.gload(x, ZERO)
        for value in (b.op("add", v, f(0.0)), b.op("add", v, f(-0.0)), b.op("sub", v, f(1.0)), b.op("sub", f(1.0), v)):
            b.gstore(y, ZERO, value)
        b.gstore(field("i", dtype=i32), ZERO, b.op("select", b.op("lt", v, v), const_i32(1), const_i32(0)))

    k = kernel(build)
    assert body(cse(k)) == body(k)


def test_a_value_of_an_enclosing_block_is_used_but_not_one_of_another_arm():
    def build(b):
        v = b.gload(x, ZERO)
        c = b.op("lt", v, f(0.0))
        outer = b.op("neg", v)
        with b.if_(c) as s:
            b.gstore(y, ZERO, b.op("add", b.op("neg", v), b.op("abs", v)))
        with b.into(s.orelse):
            b.gstore(y, ZERO, b.op("abs", v))
        b.gstore(y, ZERO, outer)

    assert body(cse(kernel(build))) == [
        "%0 = gload @x.0[0:i32] : f32",
        "%1 = lt %0, 0.0:f32 : u1",
        "%2 = neg %0 : f32",
        "if %1:",
        "  %3 = abs %0 : f32",
        "  %4 = add %2, %3 : f32",
        "  @y.0[0:i32] = %4",
        "else:",
        "  %5 = abs %0 : f32",
        "  @y.0[0:i32] = %5",
        "@y.0[0:i32] = %2",
    ]


def twice(between, place=x):
    def build(b):
        first = b.gload(place, ZERO)
        between(b)
        b.gstore(field("out"), ZERO, b.op("add", first, b.gload(place, ZERO)))

    return build


def test_a_load_is_merged_over_writes_to_other_memory_only():
    assert loads(twice(lambda b: b.gstore(y, ZERO, f(1.0)))) == 1
    assert loads(twice(lambda b: b.gstore(x, ONE, f(1.0)))) == 2
    assert loads(twice(lambda b: b.atomic("add", x, ONE, f(1.0)))) == 2


def test_a_write_to_another_component_of_a_buffer_does_not_matter_but_an_overlapping_one_does():
    buffer = Buffer("field")
    p, q = (Place(n, f32, buffer, 1, (4,), (8,), offset=o) for n, o in (("p", 0), ("q", 4)))
    overlapping = Place("r", f32, buffer, 1, (8,), (4,))
    assert loads(twice(lambda b: b.gstore(q, ZERO, f(1.0)), p)) == 1
    assert loads(twice(lambda b: b.gstore(overlapping, ZERO, f(1.0)), p)) == 2


def test_two_arguments_of_one_kind_may_be_the_same_array():
    a, same, matrix, ints = ndarray("a"), ndarray("b"), ndarray("c", 2), ndarray("d", dtype=i32)
    assert loads(twice(lambda b: b.gstore(same, ZERO, f(1.0)), a)) == 2
    assert loads(twice(lambda b: b.gstore(matrix, ZERO + ZERO, f(1.0)), a)) == 1
    assert loads(twice(lambda b: b.gstore(ints, ZERO, const_i32(1)), a)) == 1
    assert loads(twice(lambda b: b.gstore(x, ZERO, f(1.0)), a)) == 1


def test_a_write_in_a_loop_or_an_arm_ends_a_load():
    def in_loop(b):
        with b.loop(const_i32(0), const_i32(2)):
            b.gstore(y, ZERO, b.gload(x, ZERO))
            b.gstore(x, ZERO, f(1.0))

    def in_arm(b):
        with b.if_(Const(True, u1)):
            b.gstore(x, ZERO, f(1.0))

    assert loads(twice(in_loop)) == 3
    assert loads(twice(in_arm)) == 2


def test_a_write_in_one_arm_does_not_end_a_load_in_the_other():
    def arms(b):
        with b.if_(Const(True, u1)) as s:
            b.gstore(x, ZERO, f(1.0))
        with b.into(s.orelse):
            b.gstore(y, ZERO, b.gload(x, ZERO))

    assert loads(twice(arms)) == 2


def test_loads_of_a_local_merge_until_it_is_stored():
    def build(b):
        v = b.local(b.gload(x, ZERO))
        one, two = b.load(v), b.load(v)
        b.store(v, b.op("add", one, two))
        b.gstore(y, ZERO, b.load(v))

    assert body(cse(kernel(build)))[1:] == [
        "$v.0 = %0",
        "%1 = load $v.0 : f32",
        "%2 = add %1, %1 : f32",
        "$v.0 = %2",
        "%3 = load $v.0 : f32",
        "@y.0[0:i32] = %3",
    ]


def test_atomics_are_never_merged():
    def build(b, i):
        for _ in range(2):
            b.atomic("add", x, (i,), f(1.0))

    assert sum("atomic" in line for line in body(cse(kernel(build, axis())))) == 2


@settings(max_examples=60, deadline=None)
@given(programs())
def test_merging_changes_no_result(program: Program):
    out = cse(program.kernel)
    verify_kernel(out)
    assert program.outcome(out) == program.outcome(program.kernel)


@settings(max_examples=60, deadline=None)
@given(programs(exits=True))
def test_merging_changes_no_result_before_exits_are_lowered(program: Program):
    out = cse(program.kernel)
    verify_kernel(out, lowered=False)
    assert program.outcome(out) == program.outcome(program.kernel)
