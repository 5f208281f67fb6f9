"""The kernels that plans launch on a GPU: gates, bounds and ends of arrays as PTX, and as machine code where a tool is there."""

import pytest
from ptx_harness import can_link, compile_text

from qdrun.compiler.adstack import reductions
from qdrun.compiler.adstack.gates import Condition, Gate
from qdrun.compiler.adstack.sizeexpr import Bin, Cast, Index, Lit, Range, Read
from qdrun.compiler.codegen.llvm.cuda import cuda_target
from qdrun.compiler.codegen.llvm.grid_kernel import emit_grid
from qdrun.compiler.ir.nodes import ArgDecl, Axis, Buffer, Const, Op, Place
from qdrun.compiler.ir.types import f32, i16, i32, i64, u1, u64
from qdrun.compiler.ir.verify import verify_kernel
from qdrun.compiler.transforms.exits import lower_exits
from qdrun.compiler.transforms.reduce import reduce_kernel
from qdrun.compiler.transforms.simplify import simplify

LEAST = ArgDecl("least", "scalar", f32, index=3)
GIVEN = ArgDecl("given", "ndarray", f32, 2, index=1)
REAL = Place("real", f32, Buffer("field"), 2, (50, 60), (240, 4))
START = Place("start", i32, Buffer("field"), 1, (51,), (4,))
NARROW = Place("narrow", i16, Buffer("field"), 1, (500,), (2,))
OURS = Place("ours", f32, Buffer("arg", GIVEN), 2, None, None, 0, 4)


def gate() -> reductions.Reduction:
    i, j = (Op("index", (), i32) for _ in range(2))
    above = Op("gt", (Op("gload", (i, j), f32, REAL), Op("arg", (), f32, LEAST)), u1)
    other = Op("lt", (Op("gload", (j, i), f32, OURS), Op("mul", (Op("gload", (i, j), f32, REAL), Const(0.1, f32)), f32)), u1)
    axes = (Axis(i, Const(0, i32), Const(50, i32)), Axis(j, Const(0, i32), Const(60, i32)))
    return reductions.passing("gate", Gate((Condition(above, True), Condition(other, False)), (), axes), (0, 1))


def bounds(boxed: bool) -> reductions.Reduction:
    rows = Range(Op("index", (), i32), Lit(0, i32), Lit(50, i32), 1)
    at = Index(rows.index)
    one = Bin("add", (at, Lit(1, i32)), i32)
    inside = Range(Op("index", (), i32), Read(START, (at,)), Read(START, (one,)), 1)
    many = Cast(Read(REAL, (at, Index(inside.index))), i64)
    loop = Range(Op("index", (), i64), Cast(Read(NARROW, (Index(inside.index),)), i64), many, -3)
    return reductions.trips("bounds", loop, (rows, inside), boxed)


CASES = {
    "gate": gate,
    "bounds": lambda: bounds(False),
    "boxed bounds": lambda: bounds(True),
    "ends of i16": lambda: reductions.ends("ends", Read(NARROW, (Lit(0),)), i16),
    "ends of reals": lambda: reductions.ends("ends", Read(REAL, (Lit(0), Lit(0))), u64),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_ptx_and_folds_in_each_block(case):
    made = CASES[case]()
    verify_kernel(made.kernel)
    kernel = reduce_kernel(simplify(lower_exits(made.kernel)))
    assert len(kernel.tasks[0].reductions) == made.results  # and no atomic is left
    done = compile_text(emit_grid(kernel, cuda_target("sm_90")).device, *(["machine"] if can_link() else []))
    assert done.returncode == 0, done.stderr
    assert "bar.sync" in done.stdout and "atom.global.max" not in done.stdout


def test_words_are_read_as_numbers_of_their_type():
    top = (1 << 64) - 1
    assert reductions.decoded([top - (reductions.SIGN - 5), reductions.SIGN + 7], i64) == (-5, 7)
    assert reductions.decoded([top - 5, top], u64) == (5, top)
