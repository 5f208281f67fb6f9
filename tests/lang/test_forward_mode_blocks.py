"""``qd.ad.FwdMode``: the launches inside, exceptions, blocks in blocks, several programs."""

from __future__ import annotations

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.runtime.native.launch_ir import F_SLOW


@pytest.fixture(autouse=True, params=["cpu", "python"])
def program(request):
    with qd.init(arch=request.param, default_fp=qd.f64, offline_cache=False) as program:
        yield program


def vector_of(values, **how):
    out = qd.field(qd.f64, shape=len(values), **how)
    out.from_numpy(np.array(values, float))
    return out


def squares():
    """Fields x, y and the kernel y[i] = x[i] ** 2."""
    x, y = vector_of([1, 2, 3], needs_dual=True), vector_of([0, 0, 0], needs_dual=True)

    @qd.kernel
    def square():
        for i in x:
            y[i] = x[i] ** 2

    return x, y, square


# ---- around the block
def test_a_kernel_runs_in_both_modes_in_turn():
    x, y, square = squares()
    square()
    for direction in ([1, 0, 0], [0, 1, 0]):
        with qd.ad.FwdMode(loss=y, param=x, seed=direction):
            square()
        np.testing.assert_array_equal(y.dual.to_numpy(), 2 * x.to_numpy() * direction)
        square()
        np.testing.assert_array_equal(y.dual.to_numpy(), 2 * x.to_numpy() * direction)


def test_a_kernel_without_duals_is_compiled_once():
    x, y, _ = squares()
    n = qd.field(qd.i32, shape=3)

    @qd.kernel
    def count():
        for i in n:
            n[i] += 1

    with qd.ad.FwdMode(loss=y, param=x, seed=[1, 1, 1]):
        count()
        count()
    variant = count.variant((), {})[0]
    assert variant.tangent is variant.executable and list(n.to_numpy()) == [2, 2, 2]


def test_kernels_return_their_values():
    x, y, _ = squares()

    @qd.kernel
    def norm(scale: qd.f64) -> qd.f64:
        total = 0.0
        for i in x:
            total += scale * x[i] ** 2
        return total

    @qd.kernel
    def both(t: qd.template()) -> qd.types.vector(2, qd.f64):
        y[0] = t[1] * 2.0
        return qd.Vector([t[0], t[1]])

    with qd.ad.FwdMode(loss=y, param=x, seed=[1, 1, 1]):
        assert norm(2.0) == 28
        assert list(both(x)) == [1, 2]
    assert y.dual[0] == 2 and norm(1.0) == 14


def test_an_exception_ends_forward_mode(program):
    x, y, square = squares()
    with pytest.raises(ValueError, match="mine"), qd.ad.FwdMode(loss=y, param=x, seed=[1, 1, 1]):
        square()
        raise ValueError("mine")
    assert program.recorders.forward is None and program.admission.flags[F_SLOW] == 0
    assert not x.dual.to_numpy().any() and list(y.dual.to_numpy()) == [2, 4, 6]
    y.dual.fill(0.0)
    square()
    assert not y.dual.to_numpy().any()


def test_an_assert_that_fails_in_a_kernel_ends_forward_mode(program):
    with qd.init(arch=program.arch, debug=True, default_fp=qd.f64, offline_cache=False) as inner:
        x, y, _ = squares()

        @qd.kernel
        def bad(i: qd.i32):
            y[i] = x[i]

        with pytest.raises(AssertionError, match="index out of range"), qd.ad.FwdMode(loss=y, param=x, seed=[1, 1, 1]):
            bad(1)
            bad(7)
        assert inner.recorders.forward is None and list(y.dual.to_numpy()) == [0, 1, 0]


def test_a_block_is_entered_once():
    x, y, _ = squares()
    mode = qd.ad.FwdMode(loss=y, param=x, seed=[1, 1, 1])
    with mode:
        pass
    with pytest.raises(qd.QdrunRuntimeError, match="FwdMode can be entered only once; do: make a new one"), mode:
        pass


def test_blocks_do_not_nest(program):
    x, y, square = squares()
    with qd.ad.FwdMode(loss=y, param=x, seed=[1, 1, 1]):
        with pytest.raises(qd.QdrunRuntimeError, match="a second FwdMode inside of FwdMode is not possible"):
            qd.ad.FwdMode(loss=y, param=x, seed=[1, 1, 1]).__enter__()
        square()
    assert list(y.dual.to_numpy()) == [2, 4, 6]


def test_tapes_and_gradients_do_not_mix_with_forward_mode(program):
    x = vector_of([1, 2, 3], needs_dual=True, needs_grad=True)
    loss = qd.field(qd.f64, shape=(), needs_grad=True, needs_dual=True)

    @qd.kernel
    def k():
        for i in x:
            loss[None] += x[i] ** 2

    with qd.ad.FwdMode(loss=loss, param=x, seed=[1, 1, 1]):
        with pytest.raises(qd.QdrunRuntimeError, match="a Tape inside of FwdMode is not possible"):
            qd.ad.Tape(loss=loss).__enter__()
        with pytest.raises(
            qd.QdrunRuntimeError, match="the gradient of kernel `k` inside of FwdMode is not possible: second derivatives"
        ):
            k.grad()
        k()
    assert loss.dual[None] == 12
    with qd.ad.Tape(loss=loss):
        with pytest.raises(qd.QdrunRuntimeError, match="FwdMode inside of a Tape is not possible"):
            qd.ad.FwdMode(loss=loss, param=x, seed=[1, 1, 1]).__enter__()
        k()
    assert list(x.grad.to_numpy()) == [2, 4, 6]
    k.grad()
    with pytest.raises(qd.QdrunRuntimeError, match="second derivatives"), qd.ad.FwdMode(loss=loss, param=x, seed=[1, 1, 1]):
        k.grad()  # launched natively before


# ---- several programs
def test_each_program_has_its_own_mode(program):
    x, y, square = squares()
    with qd.ad.FwdMode(loss=y, param=x, seed=[1, 1, 1]):
        with qd.init(arch=program.arch, default_fp=qd.f64, offline_cache=False) as other:
            u, v, other_square = squares()
            assert other.recorders.forward is None
            with pytest.raises(qd.QdrunRuntimeError, match="`square` is launched in another program while"):
                other_square()
            assert not v.dual.to_numpy().any()
            with qd.ad.FwdMode(loss=v, param=u, seed=[0, 0, 1]):
                other_square()
            assert list(v.dual.to_numpy()) == [0, 0, 6]
        square()
    assert list(y.dual.to_numpy()) == [2, 4, 6]


def test_programs_share_compiled_kernels_and_keep_their_duals_apart(program):
    def once(scale):
        with qd.init(arch=program.arch, default_fp=qd.f64, offline_cache=False):
            x, y, square = squares()
            with qd.ad.FwdMode(loss=y, param=x, seed=[scale, 0, 0]):
                square()
            return y.dual.to_numpy().tolist(), square.variant((), {})[0].compiled_kernel

    first, second = once(1.0), once(3.0)
    assert first[0] == [2, 0, 0] and second[0] == [6, 0, 0] and first[1] is second[1]


def test_a_field_without_a_dual_makes_another_compiled_kernel(program):
    def compiled(needs_dual):
        with qd.init(arch=program.arch, default_fp=qd.f64, offline_cache=False):
            x = vector_of([1, 2, 3], needs_dual=needs_dual)

            @qd.kernel
            def k():
                for i in x:
                    x[i] = 2 * x[i]

            k()
            return k.variant((), {})[0].compiled_kernel

    assert compiled(True) is not compiled(False)


def test_a_field_of_another_program_is_refused(program):
    x = squares()[0]
    with qd.init(arch=program.arch, default_fp=qd.f64, offline_cache=False):
        y = squares()[1]
        with pytest.raises(qd.QdrunRuntimeError, match="the param of FwdMode belongs to another program"):
            qd.ad.FwdMode(loss=y, param=x, seed=[1, 1, 1]).__enter__()


def test_another_program_that_becomes_current_is_refused(program):
    x, y, _ = squares()
    with pytest.raises(qd.QdrunRuntimeError, match="another program became current inside of FwdMode"):
        with qd.ad.FwdMode(loss=y, param=x, seed=[1, 1, 1]):
            other = qd.init(arch=program.arch)
    other.close()
    assert program.recorders.forward is None


def test_a_program_that_is_closed_inside(program):
    x, y, _ = squares()
    with pytest.raises(ZeroDivisionError), qd.ad.FwdMode(loss=y, param=x, seed=[1, 1, 1]):
        program.close()
        1 / 0


def test_forward_mode_runs_with_version_counters(program):
    with qd.init(arch=program.arch, debug=True, default_fp=qd.f64, offline_cache=False):
        x, y, square = squares()
        with qd.ad.FwdMode(loss=y, param=x, seed=[1, 1, 1]):
            square()
        assert list(y.dual.to_numpy()) == [2, 4, 6]
