import math

import numpy as np
import pytest
from emit_harness import emit
from hypothesis import given, settings
from hypothesis import strategies as st

from qdrun.compiler.errors import QdrunTypeError
from qdrun.compiler.frontend.state.builder import FrontBuilder
from qdrun.compiler.frontend.values import ops
from qdrun.compiler.frontend.values.values import MatrixValue
from qdrun.compiler.ir.nodes import Const
from qdrun.compiler.ir.types import f32, f64, i8, i32, i64, u1, u8, u32, u64

F, I, U = np.float32, np.int32, np.uint32


def builder(**kw):
    return FrontBuilder([], **kw)


def binary(op, x, y, **kw):
    return emit(lambda b, p, q: ops.binary(b, op, p, q), x, y, **kw)


def test_a_literal_has_the_default_type_of_its_kind():
    b = builder(default_fp=f64)
    assert ops.to_operand(b, 1) == Const(1, i32)
    assert ops.to_operand(b, 1.5) == Const(1.5, f64)
    assert ops.to_operand(b, True) == Const(True, u1)


def test_an_integer_literal_that_does_not_fit_grows_and_then_is_refused():
    b = builder()
    assert ops.to_operand(b, 2**31).dtype is i64
    assert ops.to_operand(b, 2**63).dtype is u64
    with pytest.raises(QdrunTypeError, match="64 bits"):
        ops.to_operand(b, 2**64)


@pytest.mark.parametrize("op", ["+", "-", "*", "/", "//", "%"])
@pytest.mark.parametrize("x,y", [(7.5, 2.25), (-7.5, 2.25), (7.5, -2.25)])
def test_real_arithmetic_is_pythons(op, x, y):
    expect = eval(f"x {op} y")
    assert binary(op, np.float64(x), np.float64(y)) == pytest.approx(expect)
    b = builder(default_fp=f64)
    assert ops.binary(b, op, x, y) == Const(pytest.approx(expect), f64)


@pytest.mark.parametrize("op", ["+", "-", "*", "//", "%", "&", "|", "^", "<<", ">>"])
@pytest.mark.parametrize("x,y", [(7, 2), (-7, 2)])
def test_integer_arithmetic_is_pythons(op, x, y):
    expect = eval(f"x {op} y")
    assert binary(op, I(x), I(y)) == expect
    assert ops.binary(builder(), op, x, y) == Const(expect, i32)


def test_division_of_integers_is_real():
    out = binary("/", I(7), I(2))
    assert out == 3.5 and out.dtype == F
    assert binary("/", I(7), I(2), fp=f64).dtype == np.float64


@given(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1), st.sampled_from(["+", "-", "*", "&", "|", "^"]))
@settings(max_examples=40, deadline=None)
def test_folded_and_computed_integers_agree(x, y, op):
    folded = ops.binary(builder(), op, x, y)
    assert folded.value == binary(op, I(x), I(y))


@pytest.mark.parametrize(
    "x,y,expect",
    [(F(1), I(2), F), (F(1), np.float64(2), np.float64), (I(1), np.int64(2), np.int64), (I(1), U(2), U), (np.int8(1), I(1), I)],
)
def test_operands_meet_in_the_promoted_type(x, y, expect):
    assert binary("+", x, y).dtype == expect


def test_truth_values_count_as_integers_in_arithmetic_and_stay_truth_values_in_logic():
    assert binary("+", np.True_, np.True_) == 2
    assert binary("&", np.True_, np.False_).dtype == np.bool_
    assert emit(lambda b, x: ops.unary(b, "~", x), np.True_) == np.False_
    assert emit(lambda b, x: ops.unary(b, "-", x), np.True_) == -1


@pytest.mark.parametrize("n", [-3, -1, 0, 1, 2, 3, 7, 10])
def test_a_whole_power_is_multiplied_out(n):
    x = np.float64(-1.7)
    assert binary("**", x, n) == pytest.approx(float(x) ** n)
    b = builder(default_fp=f64)
    out = ops.binary(b, "**", b.op("arg", dtype=f64), n)
    assert "pow" not in {getattr(s, "op", "") for s in b.block}
    assert out.dtype is f64


def test_other_powers():
    assert binary("**", np.float64(2.0), np.float64(0.3)) == pytest.approx(2**0.3)
    assert binary("**", np.float64(2.0), 0.5) == pytest.approx(math.sqrt(2))
    assert binary("**", I(3), 4) == 81
    assert binary("**", F(2), I(3)) == 8 and binary("**", I(2), 3.0).dtype == F
    with pytest.raises(QdrunTypeError, match="integer to the power -1"):
        binary("**", I(3), -1)


def test_a_shift_keeps_the_type_and_the_sign_rule_of_its_left_side():
    assert binary(">>", I(-8), 1) == -4
    assert binary(">>", U(2**32 - 8), 1) == 2**31 - 4
    assert binary(">>", I(-8), U(1)) == -4
    assert binary("<<", np.uint8(255), I(1)) == 254
    with pytest.raises(QdrunTypeError, match="takes integers"):
        binary("<<", F(1), 1)


@pytest.mark.parametrize("op", ["<", "<=", ">", ">=", "==", "!="])
def test_comparisons_give_truth_values(op):
    for x, y in [(1, 2), (2, 1), (1, 1)]:
        out = emit(lambda b, p, q: ops.compare(b, op, p, q), I(x), F(y))
        assert out == eval(f"x {op} y") and out.dtype == np.bool_
        assert ops.compare(builder(), op, x, y).value == eval(f"x {op} y")


def test_select_meets_in_one_type_and_folds_a_known_condition():
    out = emit(ops.select, np.True_, I(1), F(2))
    assert out == 1 and out.dtype == F
    b = builder()
    assert ops.select(b, True, 1, 2.0) == Const(1.0, f32) and not b.block
    assert emit(ops.select, np.array([True, False]), F(1), np.array([5, 6], F)).tolist() == [1, 6]


def test_a_cast_rounds_a_literal_but_promotion_does_not():
    b = builder()
    assert ops.cast(b, 0.1, f32).value == float(np.float32(0.1))
    assert ops.binary(b, "*", 0.1, Const(1.0, f64)).value == 0.1
    assert ops.convert_value(b, 300, u8) == Const(44, u8) and ops.cast(b, -1.7, i8) == Const(-1, i8)
    with pytest.raises(QdrunTypeError, match=r"the literal 300 does not fit u8 \(0 to 255\)"):
        ops.cast(b, 300, u8)
    assert emit(lambda b, x: ops.cast(b, x, u1), F(0.5)) == np.True_


def test_scalars_are_broadcast_and_shapes_are_checked():
    m = np.arange(6, dtype=F).reshape(2, 3)
    assert np.array_equal(binary("*", m, F(2)), m * 2)
    assert np.array_equal(binary("-", 1.0, m), 1 - m)
    with pytest.raises(QdrunTypeError, match="do not fit"):
        binary("+", m, np.zeros(2, F))
    with pytest.raises(QdrunTypeError, match="ambiguous"):
        ops.truth(builder(), MatrixValue((2,), (Const(1, i32), Const(2, i32))))


def test_division_by_an_integer_zero_is_left_to_the_machine():
    b = builder()
    ops.binary(b, "//", 1, 0)
    assert [s.op for s in b.block] == ["floordiv"]
    assert ops.binary(b, "/", 1.0, 0.0).value == math.inf


def test_what_is_no_number_is_refused():
    with pytest.raises(QdrunTypeError, match="a number or a matrix"):
        ops.binary(builder(), "+", "text", 1)
    with pytest.raises(QdrunTypeError, match="no binary operator"):
        ops.binary(builder(), "<>", 1, 1)
    with pytest.raises(QdrunTypeError, match="not f32"):
        ops.index_operand(builder(), 1.5)


def test_indices_become_i32_or_i64():
    b = builder()
    assert [ops.index_operand(b, b.op("arg", dtype=t)).dtype for t in (i8, u8, u1, i32, u32, i64, u64)] == [
        i32, i32, i32, i32, i64, i64, i64,
    ]  # fmt: skip
