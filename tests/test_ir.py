"""The IR: stable text, one failing program for each rule of the verifier, promotion, literals."""

import numpy as np
import pytest

from qdrun.compiler.ir.builder import StatementBuilder, const_i32, convert
from qdrun.compiler.ir.nodes import (
    Axis,
    Buffer,
    Const,
    Op,
    Place,
    Task,
)
from qdrun.compiler.ir.nodes import Kernel as IrKernel
from qdrun.compiler.ir.ops import TABLE
from qdrun.compiler.ir.printer import print_block, print_kernel
from qdrun.compiler.ir.types import ALL, f16, f32, f64, from_numpy, i8, i16, i32, i64, promote, u1, u8, u16, u32, u64
from qdrun.compiler.ir.verify import verify_kernel
from qdrun.compiler.ir.walk import fills_blocks, kernel_places, walk


def field(name: str, dtype=f32, shape=(8,)) -> Place:
    return Place(name, dtype, Buffer("field"), len(shape), shape, tuple(dtype.size for _ in shape))


def square(name: str = "square") -> IrKernel:
    """``for i in range(8): y[i] = x[i] * x[i]``, made anew at each call."""
    x, y = field("x"), field("y")
    task = Task(name, [], [Axis(Op("index", (), i32), const_i32(0), const_i32(8))])
    b, i = StatementBuilder(task.body), task.axes[0].index
    v = b.gload(x, (i,))
    total = b.local(v, "total")
    with b.if_(b.op("lt", v, Const(0.0, f32))) as s:
        b.store(total, b.op("neg", v))
    with b.into(s.orelse), b.loop(const_i32(0), const_i32(2)) as lp:
        b.store(total, b.op("mul", b.load(total), b.cast(lp.index, f32)))
    b.gstore(y, (i,), b.load(total))
    return IrKernel(name, [], [task])


TEXT = """\
kernel square() -> []
  place @x.0: f32 field #0 ndim=1 shape=(8,) strides=(4,) offset=0 elem=0
  place @y.0: f32 field #1 ndim=1 shape=(8,) strides=(4,) offset=0 elem=0
task square:
  axis %0 in [0:i32, 8:i32)
    %1 = gload @x.0[%0] : f32
    $total.0 = %1
    %2 = lt %1, 0.0:f32 : u1
    if %2:
      %3 = neg %1 : f32
      $total.0 = %3
    else:
      for %4 in range(0:i32, 2:i32, 1):
        %5 = load $total.0 : f32
        %6 = cast %4 : f32
        %7 = mul %5, %6 : f32
        $total.0 = %7
    %8 = load $total.0 : f32
    @y.0[%0] = %8
"""


def test_the_printer_numbers_by_appearance_and_not_by_history():
    kernel = square()
    assert print_kernel(kernel) == TEXT
    assert print_kernel(kernel) == TEXT  # printing leaves no trace
    assert print_kernel(square()) == TEXT  # other nodes, other ids, the same text


def test_places_are_numbered_in_order_of_first_use():
    assert [p.name for p in kernel_places(square())] == ["x", "y"]


def test_walk_goes_into_every_block():
    assert [s.op for s in walk(square().tasks[0].body) if isinstance(s, Op)] == "gload lt neg load cast mul load".split()


def test_a_well_formed_kernel_passes():
    verify_kernel(square())


@pytest.mark.parametrize(
    "a, b, out",
    [
        *[(i32, f32, f32), (i64, f32, f32), (f32, f64, f64), (f16, i64, f16)],
        *[(i32, i64, i64), (u8, i16, i16), (i32, u32, u32), (u64, i8, u64), (u1, i8, i8), (u1, u1, u1)],
    ],
)
def test_promotion(a, b, out):
    assert promote(a, b) is out and promote(b, a) is out


def test_every_type_has_its_numpy_type():
    assert all(from_numpy(t.numpy) is t and t.numpy.itemsize == t.size for t in ALL.values())
    with pytest.raises(KeyError):
        from_numpy(np.dtype(np.complex64))


@pytest.mark.parametrize(
    "dtype, plane", [(f16, "f4"), (f32, "f4"), (f64, "f8"), (i8, "i4"), (u16, "i4"), (u1, "i4"), (u64, "i8")]
)
def test_narrow_types_widen_to_a_plane_of_four_bytes(dtype, plane):
    assert dtype.plane == plane


@pytest.mark.parametrize(
    "value, dtype, out", [(300, u8, 44), (200, i8, -56), (-1, u32, 2**32 - 1), (2.9, i32, 2), (3, u1, True), (0.1, f32, 0.1)]
)
def test_convert_wraps_integers_and_rounds_no_float(value, dtype, out):
    assert convert(value, dtype) == out


def test_cast_of_a_literal_emits_nothing():
    block = []
    b = StatementBuilder(block)
    assert b.cast(const_i32(3), i32) == const_i32(3)
    assert b.cast(const_i32(3), f64) == Const(3.0, f64) and not block
    value = b.gload(field("x"), (const_i32(0),))
    assert b.cast(value, f32) is value
    assert b.cast(value, f64).op == "cast" and len(block) == 2  # type: ignore[union-attr]


def test_result_types_follow_the_table():
    b = StatementBuilder([])
    one, yes = Const(1.0, f64), Const(True, u1)
    assert b.op("lt", one, one).dtype is u1 and b.op("select", yes, one, one).dtype is f64 and b.op("sin", one).dtype is f64
    assert all(info.result in ("same", "bool", "given") for info in TABLE.values())


def test_a_block_prints_alone():
    block = []
    StatementBuilder(block).op("add", const_i32(1), const_i32(2))
    assert print_block(block) == "%0 = add 1:i32, 2:i32 : i32"


@pytest.mark.parametrize(
    ("end", "block", "filled"),
    [
        (Const(512, i32), 256, True),
        (Const(500, i32), 256, False),
        (Op("mul", (Op("arg", (), i32), Const(512, i32)), i32), 256, True),
        (Op("cast", (Op("mul", (Const(64, i32), Op("arg", (), i32)), i32),), i64), 64, True),
        (Op("shl", (Op("arg", (), i32), Const(8, i32)), i32), 256, True),
        (Op("shl", (Op("arg", (), i32), Const(7, i32)), i32), 256, False),
        (Op("mul", (Op("arg", (), i32), Const(384, i32)), i32), 256, False),
        (Op("mul", (Op("arg", (), i32), Const(96, i32)), i32), 96, False),  # modulo 2**32 no multiple
        (Op("add", (Op("arg", (), i32), Const(256, i32)), i32), 256, False),
    ],
)
def test_a_loop_whose_length_is_a_product_fills_its_blocks(end, block, filled):
    task = Task("loop", [], axes=[Axis(Op("index", (), i32), Const(0, i32), end)], block=block)
    assert fills_blocks(task) == filled
    task.axes[0].begin = Const(1, i32)
    assert not fills_blocks(task)
