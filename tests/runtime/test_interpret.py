import numpy as np
import pytest

from qdrun.compiler.errors import AdStackOverflow, QdrunAssertionError
from qdrun.compiler.ir.builder import StatementBuilder, const_i32, const_i64
from qdrun.compiler.ir.meaning import evaluate, scalar
from qdrun.compiler.ir.nodes import (
    ArgDecl,
    Assert,
    Axis,
    Buffer,
    ClaimRow,
    Const,
    Exit,
    Kernel,
    Local,
    Op,
    Overflow,
    Place,
    Print,
    Reduction,
    Stack,
    StackPut,
    Task,
)
from qdrun.compiler.ir.types import ALL, f16, f32, f64, i8, i32, i64, u1, u8, u32
from qdrun.compiler.ir.verify import verify_kernel
from qdrun.compiler.runtime.python.interpret import InterpreterError, Memory, run_kernel


def compute(code, *values, of, to=None):
    return evaluate(code, [scalar(v, of) for v in values], to or of)


def field(name, shape, dtype):
    strides = tuple(dtype.size * int(np.prod(shape[k + 1 :])) for k in range(len(shape)))
    return Place(name, dtype, Buffer("field"), len(shape), shape, strides)


def one_task(build, axes=None, lowered=True, args=(), **kw):
    task = Task("t", [], axes=axes or [], **kw)
    build(StatementBuilder(task.body))
    kernel = Kernel("k", list(args), [task])
    verify_kernel(kernel, lowered)
    return kernel


def axis(n):
    return Axis(Op("index", (), i32), const_i32(0), const_i32(n))


@pytest.mark.parametrize(
    ("code", "args", "dtype", "expect"),
    [
        ("add", (2**31 - 1, 1), i32, -(2**31)),
        ("sub", (0, 1), u8, 255),
        ("mul", (16, 16), i8, 0),
        ("floordiv", (-7, 2), i32, -4),
        ("mod", (-7, 2), i32, 1),
        ("mod", (7, -2), i32, -1),
        ("cdiv", (-7, 2), i32, -3),
        ("crem", (-7, 2), i32, -1),
        ("cdiv", (-128, -1), i8, -128),
        ("floordiv", (5, 0), i32, 0),
        ("mod", (5, 0), i32, 0),
        ("cdiv", (5, 0), u32, 0),
        ("crem", (5, 0), i32, 0),
        ("shl", (1, 33), i32, 2),
        ("shr", (-1, 28), i32, 15),
        ("sar", (-16, 2), i32, -4),
        ("bitnot", (0,), u8, 255),
        ("bitnot", (0,), u1, True),
        ("popcnt", (-1,), i32, 32),
        ("clz", (1,), i32, 31),
        ("clz", (0,), i8, 8),
        ("pow", (3, 4), i32, 81),
        ("pow", (2, 40), i32, 0),
        ("pow", (-1, -3), i32, -1),
        ("pow", (5, -1), i32, 0),
        ("abs", (-(2**31),), i32, -(2**31)),
        ("floordiv", (-7.0, 2.0), f32, -4.0),
        ("mod", (-7.0, 2.0), f32, 1.0),
        ("div", (1.0, 0.0), f32, np.inf),
        ("round", (2.5,), f64, 3.0),
        ("sgn", (-0.5,), f32, -1.0),
        ("not", (True,), u1, False),
    ],
)
def test_an_operation_gives_the_documented_result(code, args, dtype, expect):
    out = compute(code, *args, of=dtype)
    assert out == expect and out.dtype == dtype.numpy


def test_floats_are_rounded_after_every_operation():
    assert compute("add", 1.0, 2.0**-11, of=f16) == 1.0
    assert compute("add", 0.1, 0.2, of=f32) == np.float32(0.1) + np.float32(0.2)
    assert compute("mul", 300.0, 300.0, of=f16) == np.inf


@pytest.mark.parametrize("swapped", (False, True))
def test_min_and_max_order_zeros_by_sign_and_keep_nan(swapped):
    def computed(code, *args):
        return compute(code, *(args[::-1] if swapped else args), of=f32)

    assert np.signbit(computed("min", 0.0, -0.0)) and not np.signbit(computed("max", -0.0, 0.0))
    assert np.isnan(computed("min", np.nan, 1.0)) and np.isnan(computed("max", 1.0, np.nan))


def test_a_float_becomes_an_integer_by_truncation_with_saturation():
    values = [(-1.9, -1), (300.0, 127), (-1e9, -128), (np.nan, 0), (-np.inf, -128)]
    assert all(compute("cast", v, of=f32, to=i8) == e for v, e in values)
    assert compute("cast", -1.0, of=f32, to=u8) == 0
    assert compute("cast", 0.5, of=f32, to=u1) == np.True_
    assert compute("cast", True, of=u1, to=f32) == 1.0
    assert compute("cast", -1, of=i32, to=u8) == 255
    assert compute("cast", 1e300, of=f64, to=f32) == np.inf


def test_a_bitcast_keeps_the_bits():
    assert compute("bitcast", 1.0, of=f32, to=i32) == 0x3F800000
    with pytest.raises(TypeError):
        compute("bitcast", 1.0, of=f32, to=i64)


@pytest.mark.parametrize("dtype", ALL.values(), ids=str)
def test_memory_round_trips_every_type(dtype):
    place = field("x", (2, 3), dtype)
    memory = Memory()
    kernel = one_task(lambda b: b.gstore(place, (const_i32(1), const_i32(2)), Const(1, dtype)))
    run_kernel(kernel, memory)
    assert memory.array(place)[1, 2] == 1 and memory.array(place).sum() == 1


def test_components_of_one_buffer_interleave_by_offset_and_stride():
    buffer = Buffer("field")
    x, y = (Place(n, f32, buffer, 1, (4,), (8,), offset=o) for n, o in (("x", 0), ("y", 4)))
    memory = Memory()

    def build(b):
        b.gstore(x, (const_i32(3),), Const(1.0, f32))
        b.gstore(y, (const_i32(3),), Const(2.0, f32))

    run_kernel(one_task(build), memory)
    assert memory.bytes(buffer).view(np.float32).tolist() == [0, 0, 0, 0, 0, 0, 1, 2]


def test_an_ndarray_argument_is_row_major_with_extents_from_the_launch():
    decl = ArgDecl("a", "ndarray", f32, ndim=2, element=(2,))
    place = Place("a", f32, Buffer("arg", decl), 2, None, None, offset=4, elem_bytes=8)
    data = np.zeros((2, 3, 2), np.float32)
    memory = Memory({decl: (2, 3)})
    memory.bind(place.buffer, data)
    kernel = one_task(lambda b: b.gstore(place, (const_i32(1), const_i32(0)), Const(5.0, f32)), args=[decl])
    run_kernel(kernel, memory)
    assert data[1, 0].tolist() == [0, 5] and data.sum() == 5
    outside = one_task(lambda b: b.gload(place, (const_i32(2), const_i32(0))), args=[decl])
    with pytest.raises(InterpreterError, match="outside its shape"):
        run_kernel(outside, memory)


def test_a_parallel_task_visits_every_point_and_numbers_it():
    place = field("x", (2, 3), i32)
    axes = [axis(2), axis(3)]

    def build(b):
        number = b.cast(b.op("iter", dtype=i64), i32)
        b.gstore(place, (axes[0].index, axes[1].index), number)

    memory = Memory()
    run_kernel(one_task(build, axes), memory)
    assert memory.array(place).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_the_prologue_gives_the_bounds_from_a_scalar_argument():
    decl, place = ArgDecl("n", "scalar", i32), field("x", (8,), i32)
    task = Task("t", [])
    n = StatementBuilder(task.prologue).op("arg", dtype=i32, attr=decl)
    task.axes = [Axis(Op("index", (), i32), const_i32(2), n)]
    StatementBuilder(task.body).gstore(place, (task.axes[0].index,), const_i32(1))
    memory = Memory()
    run_kernel(Kernel("k", [decl], [task]), memory, {decl: 5})
    assert memory.array(place).tolist() == [0, 0, 1, 1, 1, 0, 0, 0]


def test_loops_step_break_continue_and_return():
    place = field("x", (8,), i32)

    def build(b):
        with b.loop(const_i32(7), const_i32(0), step=-1) as lp:
            with b.if_(b.op("eq", lp.index, const_i32(5))):
                b.put(Exit("continue"))
            with b.if_(b.op("lt", lp.index, const_i32(3))):
                b.put(Exit("break"))
            b.gstore(place, (lp.index,), const_i32(1))
        with b.loop(const_i32(0), None) as lp:
            with b.if_(b.op("gt", lp.index, const_i32(1))):
                b.put(Exit("return"))
            b.gstore(place, (lp.index,), const_i32(2))
        b.gstore(place, (const_i32(0),), const_i32(99))

    memory = Memory()
    run_kernel(one_task(build, lowered=False), memory)
    assert memory.array(place).tolist() == [2, 2, 0, 1, 1, 0, 1, 1]


def test_an_exit_local_leaves_its_loop_after_the_body():
    place = field("x", (8,), i32)
    flag = Local(i32, "exit")

    def build(b):
        with b.loop(const_i32(0), None) as lp:
            lp_node = b
            b.store(flag, const_i32(0))
            with b.if_(b.op("eq", lp.index, const_i32(2))):
                b.store(flag, const_i32(1))
            b.gstore(place, (lp.index,), const_i32(1))
        lp_node.block[-1].exit = flag

    memory = Memory()
    run_kernel(one_task(build), memory)
    assert memory.array(place).tolist() == [1, 1, 1, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("code", "value", "expect"),
    [
        ("add", 3, 9),
        ("sub", 2, 4),
        ("mul", 2, 12),
        ("min", 4, 4),
        ("max", 4, 6),
        ("and", 3, 2),
        ("or", 1, 7),
        ("xor", 2, 4),
        ("xchg", 1, 1),
    ],
)
def test_an_atomic_updates_memory_and_returns_the_old_content(code, value, expect):
    place, old = field("x", (1,), i32), field("old", (1,), i32)
    zero = (const_i32(0),)
    memory = Memory.of({place: np.array([6], np.int32)})
    run_kernel(one_task(lambda b: b.gstore(old, zero, b.atomic(code, place, zero, const_i32(value)))), memory)
    assert memory.array(place)[0] == expect and memory.array(old)[0] == 6


@pytest.mark.parametrize("chunk", [None, 1, 3])
def test_a_reduction_combines_its_chunks_with_the_place(chunk):
    place, low = field("sum", (1,), f32), field("low", (1,), i32)
    total, least = Local(f32, "sum"), Local(i32, "low")
    axes = [axis(7)]

    def build(b):
        i = axes[0].index
        b.store(total, b.op("add", b.load(total), b.cast(i, f32)))
        b.store(least, b.op("min", b.load(least), b.op("neg", i)))

    zero = (const_i32(0),)
    reductions = [Reduction(total, place, zero, "add"), Reduction(least, low, zero, "min")]
    memory = Memory.of({place: np.array([100], np.float32), low: np.array([-2], np.int32)})
    run_kernel(one_task(build, axes, reductions=reductions), memory, chunk=chunk)
    assert memory.array(place)[0] == 121 and memory.array(low)[0] == -6


def test_asserts_prints_overflows_and_returns_reach_the_caller():
    ret = Place("ret", f32, Buffer("ret"), 0, (), (), offset=8)

    def build(b):
        b.put(Print(("x = ", Const(0.5, f32), " ", Const(True, u1))))
        b.gstore(ret, (), Const(2.5, f32))

    kernel = one_task(build)
    kernel.returns = [i32, f32]
    result = run_kernel(kernel, Memory())
    assert result.prints == ["x = 0.5 True"] and result.returns == [0, 2.5]
    with pytest.raises(QdrunAssertionError, match="i is 3"):
        run_kernel(one_task(lambda b: b.put(Assert(Const(False, u1), "i is {}", (const_i32(3),)))), Memory())

    def overflow(b):
        with b.loop(const_i32(0), const_i32(1)):
            pass
        b.block.append(Overflow(b.block[0], 1))

    with pytest.raises(AdStackOverflow):
        run_kernel(one_task(overflow), Memory())


def test_an_adstack_slot_gives_back_what_was_put_and_nothing_else():
    place, local = field("x", (1,), f32), Local(f32)
    task = Task("t", [], params=["st", "rows"])
    b = StatementBuilder(task.body)
    b.put(ClaimRow())
    with b.loop(const_i32(0), const_i32(2)):
        pass
    stack = Stack(task.body[1], "tape", (local,), "st")
    b.block.append(StackPut(stack, const_i64(0), (Const(4.0, f32),)))
    slot = b.op("cast", b.op("sub", Op("param", (), i64, "st"), const_i64(7)), dtype=i64)
    b.gstore(place, (const_i32(0),), b.op("stack_get", slot, dtype=f32, attr=(stack, 0)))
    kernel, memory = Kernel("k", [], [task]), Memory()
    run_kernel(kernel, memory, params={(0, "st"): 7, (0, "rows"): 1})
    assert memory.array(place)[0] == 4.0
    with pytest.raises(InterpreterError, match="slot 1 word 0"):
        run_kernel(kernel, memory, params={(0, "st"): 8, (0, "rows"): 1})
    with pytest.raises(AdStackOverflow, match="none was planned"):
        run_kernel(kernel, memory, params={(0, "st"): 7, (0, "rows"): 0})
    task.body.pop(0)
    with pytest.raises(InterpreterError, match="before a row is claimed"):
        run_kernel(kernel, memory, params={(0, "st"): 7, (0, "rows"): 1})


def test_a_local_is_forgotten_between_iterations():
    axes, local, place = [axis(2)], Local(i32), field("x", (2,), i32)

    def build(b):
        with b.if_(b.op("eq", axes[0].index, const_i32(0))):
            b.store(local, const_i32(1))
        b.gstore(place, (axes[0].index,), b.load(local))

    with pytest.raises(InterpreterError, match="before it is written"):
        run_kernel(one_task(build, axes), Memory())


def test_arguments_shapes_and_the_seed_are_values():
    n, a = ArgDecl("n", "scalar", f32), ArgDecl("a", "ndarray", f32, ndim=2, index=1)
    out = field("out", (3,), f64)

    def build(b):
        for k, x in enumerate(
            (b.op("arg", dtype=f32, attr=n), b.op("shape", dtype=i32, attr=(a, 1)), b.op("seed", dtype=ALL["u64"]))
        ):
            b.gstore(out, (const_i32(k),), b.cast(x, f64))

    memory = Memory()
    kernel = one_task(build, args=[n, a])
    run_kernel(kernel, memory, {n: 0.5}, {a: (3, 4)}, seed=9)
    assert memory.array(out).tolist() == [0.5, 4, 9]
