"""The kernels that plans launch on a GPU: gates, bounds and ends of arrays as PTX, and as machine code where a tool is there."""

import pytest
from ptx_harness import can_link, compile_text

from qdrun.compiler.codegen.cuda.hardware import cuda_target
from qdrun.compiler.codegen.gpu.grid.kernel import emit_grid
from qdrun.compiler.compile import pipeline
from qdrun.compiler.ir.nodes import ArgDecl, Buffer, Op, Place
from qdrun.compiler.ir.types import f32, i16, i32, i64, u1, u64
from qdrun.compiler.ir.verify import verify_kernel
from qdrun.compiler.tape.bounds import reductions
from qdrun.compiler.tape.bounds.row_predicates import Condition, RowPredicate
from qdrun.compiler.tape.bounds.sizeexpr import Bin, Cast, ElementRead, Index, Lit, Range, ScalarArgument

LEAST = ArgDecl("least", "scalar", f32, index=3)
GIVEN = ArgDecl("given", "ndarray", f32, 2, index=1)
REAL = Place("real", f32, Buffer("field"), 2, (50, 60), (240, 4))
START = Place("start", i32, Buffer("field"), 1, (51,), (4,))
NARROW = Place("narrow", i16, Buffer("field"), 1, (500,), (2,))
OURS = Place("ours", f32, Buffer("arg", GIVEN), 2, None, None, 0, 4)


def gate() -> reductions.ReductionKernel:
    i, j = (Op("index", (), i32) for _ in range(2))
    real = ElementRead(REAL, (Index(i), Index(j)))
    above = Bin("gt", (real, ScalarArgument(LEAST)), u1)
    other = Bin("lt", (ElementRead(OURS, (Index(j), Index(i))), Bin("mul", (real, Lit(0.1, f32)), f32)), u1)
    axes = tuple(Range(op, Lit(0, i32), Lit(n, i32), 1) for op, n in ((i, 50), (j, 60)))
    return reductions.passing("gate", RowPredicate((Condition(above, True), Condition(other, False)), (), axes), (0, 1))


def bounds() -> reductions.ReductionKernel:
    rows = Range(Op("index", (), i32), Lit(0, i32), Lit(50, i32), 1)
    at = Index(rows.index)
    one = Bin("add", (at, Lit(1, i32)), i32)
    inside = Range(Op("index", (), i32), ElementRead(START, (at,)), ElementRead(START, (one,)), 1)
    many = Cast(ElementRead(REAL, (at, Index(inside.index))), i64)
    loop = Range(Op("index", (), i64), Cast(ElementRead(NARROW, (Index(inside.index),)), i64), many, -3)
    return reductions.trips("bounds", loop, (rows, inside))


CASES = {
    "gate": gate,
    "bounds": bounds,
    "ends of i16": lambda: reductions.ends("ends", ElementRead(NARROW, (Lit(0),)), i16),
    "ends of reals": lambda: reductions.ends("ends", ElementRead(REAL, (Lit(0), Lit(0))), u64),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_ptx_and_folds_in_each_block(case):
    made = CASES[case]()
    verify_kernel(made.kernel)
    kernel = pipeline.reduced(pipeline.simplified(made.kernel))
    assert len(kernel.tasks[0].reductions) == made.results  # and no atomic is left
    done = compile_text(emit_grid(kernel, cuda_target("sm_90")).device, *(["machine"] if can_link() else []))
    assert done.returncode == 0, done.stderr
    assert "bar.sync" in done.stdout and "atom.global.max" not in done.stdout


def test_words_are_read_as_numbers_of_their_type():
    top = (1 << 64) - 1
    assert reductions.decoded([top - (reductions.SIGN - 5), reductions.SIGN + 7], i64) == (-5, 7)
    assert reductions.decoded([top - 5, top], u64) == (5, top)
