"""Forward mode of kernels in IR: what is emitted, and that it is the derivative, on the interpreter in f64."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "gradients"))
from harness import PLANS, numeric, run_gradient
from irtools import axis, field, kernel
from random_ir import make

from qdrun.compiler.errors import DifferentiationError
from qdrun.compiler.ir.builder import StatementBuilder, const_i32
from qdrun.compiler.ir.nodes import Buffer, Const, Kernel, Place, Task
from qdrun.compiler.ir.ops import TABLE
from qdrun.compiler.ir.printer import print_block
from qdrun.compiler.ir.types import f32, f64, i64
from qdrun.compiler.ir.verify import verify_kernel
from qdrun.compiler.passes.exits import lower_exits
from qdrun.compiler.passes.forward.tangent import Tangent, forward_kernel
from qdrun.compiler.passes.reverse.derivatives import FLAT, RULES
from qdrun.compiler.passes.reverse.gradient import reverse_kernel
from qdrun.compiler.passes.simplify.simplify import simplify
from qdrun.compiler.runtime.python.interpret import Memory, run_kernel

ZERO, ONE, TWO = (const_i32(k) for k in range(3))


def dual_field(name: str, shape: tuple[int, ...] = (4,), dtype=f64) -> Place:
    place = field(name, shape, dtype)
    place.dual = field(f"{name}.dual", shape, dtype)
    return place


def forward(k: Kernel) -> Tangent:
    """The verified forward-mode kernel, simplified."""
    found = forward_kernel(k)
    verify_kernel(found.kernel)
    out = simplify(found.kernel)
    verify_kernel(out)
    return Tangent(out, found.lost, found.read, found.broken)


def body(k: Kernel) -> list[str]:
    return print_block(forward(k).kernel.tasks[0].body).split("\n")


def run(k: Kernel, values: dict[Place, list[float]]) -> Memory:
    memory = Memory.of({p: np.array(v, float) for p, v in values.items()})
    run_kernel(forward(k).kernel, memory)
    return memory


# ---- what is emitted
def printed(k: Kernel) -> list[str]:
    return print_block(k.tasks[0].body).split("\n")


def test_a_store_is_followed_by_the_store_of_its_tangent():
    x, y = dual_field("x"), dual_field("y")
    three = Const(3.0, f64)

    def expected(b, i):
        value, tangent = b.gload(x, (i,)), b.gload(x.dual, (i,))
        value, tangent = b.op("mul", value, three), b.op("mul", tangent, three)
        b.gstore(y, (i,), value)
        b.gstore(y.dual, (i,), tangent)

    k = kernel(lambda b, i: b.gstore(y, (i,), b.op("mul", b.gload(x, (i,)), three)), axis())
    assert body(k) == printed(kernel(expected, axis()))


def test_a_store_of_a_constant_clears_the_tangent():
    y = dual_field("y")

    def expected(b):
        b.gstore(y, (ONE,), Const(5.0, f64))
        b.gstore(y.dual, (ONE,), Const(0.0, f64))

    assert body(kernel(lambda b: b.gstore(y, (ONE,), Const(5.0, f64)))) == printed(kernel(expected))


def test_without_a_dual_nothing_is_added():
    x, y = field("x", (4,), f64), field("y", (4,), f64)
    k = kernel(lambda b, i: b.gstore(y, (i,), b.op("sin", b.gload(x, (i,)))), axis())
    assert body(k) == printed(simplify(k))


def test_the_primal_is_left_as_it_is():
    x, y = dual_field("x"), dual_field("y")
    k = kernel(lambda b, i: b.atomic("max", y, (ZERO,), b.gload(x, (i,))), axis())
    before = print_block(k.tasks[0].body)
    forward_kernel(k)
    assert print_block(k.tasks[0].body) == before and not k.tasks[0].serialize


@pytest.mark.parametrize(
    "code, read, serial",
    [
        ("add", False, False),
        ("sub", False, False),
        ("add", True, True),
        ("mul", False, True),
        ("min", False, True),
        ("max", False, True),
        ("xchg", False, True),
    ],
)
def test_a_loop_runs_in_order_when_value_and_tangent_must_change_together(code, read, serial):
    x, y, old = dual_field("x"), dual_field("y"), dual_field("old")

    def build(b, i):
        before = b.atomic(code, y, (ZERO,), b.gload(x, (i,)))
        if read:
            b.gstore(old, (i,), before)

    assert forward(kernel(build, axis())).kernel.tasks[0].serialize == serial


def test_a_loop_runs_in_order_when_several_iterations_store_to_one_element():
    x, y = dual_field("x"), dual_field("y")
    same = kernel(lambda b, i: b.gstore(y, (ZERO,), b.gload(x, (i,))), axis())
    own = kernel(lambda b, i: b.gstore(y, (i,), b.gload(x, (i,))), axis())
    constant = kernel(lambda b, i: b.gstore(y, (ZERO,), Const(1.0, f64)), axis())
    assert [forward(k).kernel.tasks[0].serialize for k in (same, own, constant)] == [True, False, False]


def test_a_product_with_a_constant_needs_no_order():
    y = dual_field("y")
    k = kernel(lambda b, i: b.atomic("mul", y, (ZERO,), Const(2.0, f64)), axis())
    assert not forward(k).kernel.tasks[0].serialize
    assert list(run(k, {y: [3, 0, 0, 0], y.dual: [1, 0, 0, 0]}).array(y.dual)) == [16, 0, 0, 0]


def test_an_unknown_atomic_is_refused_by_name():
    y = dual_field("y")
    task = Task("t", [])
    StatementBuilder(task.body).atomic("and", y, (ZERO,), Const(1.0, f64))
    with pytest.raises(DifferentiationError, match="atomic and on `y` has no tangent in forward mode"):
        forward_kernel(Kernel("k", [], [task]))


def test_the_bits_of_a_varied_number_cannot_become_a_number_again():
    x, y = dual_field("x"), dual_field("y")

    def build(b):
        bits = b.op("bitcast", b.gload(x, (ZERO,)), dtype=i64)
        b.gstore(y, (ZERO,), b.op("bitcast", bits, dtype=f64))

    with pytest.raises(DifferentiationError, match="bit_cast"):
        forward_kernel(kernel(build))


def test_temporaries_carry_tangents_only_when_a_task_gives_them_one():
    x, y = dual_field("x"), dual_field("y")
    buffers = Buffer("tmp"), Buffer("tmp_dual")
    tmps = [Place(f"t{k}", f64, buffers[0], 0, (), (), 8 * k, 8) for k in range(2)]
    for k, t in enumerate(tmps):
        t.dual = Place(f"t{k}_dual", f64, buffers[1], 0, (), (), 8 * k, 8)
    first, second = Task("a", []), Task("b", [], [axis()])
    b = StatementBuilder(first.body)
    b.gstore(tmps[0], (), b.op("mul", b.gload(x, (ZERO,)), b.gload(x, (ONE,))))
    b.gstore(tmps[1], (), Const(4.0, f64))
    b = StatementBuilder(second.body)
    i = second.axes[0].index
    b.gstore(y, (i,), b.op("mul", b.gload(tmps[0], ()), b.gload(tmps[1], ())))
    k = Kernel("k", [], [first, second], tmps=tmps)
    printed = print_block(forward(k).kernel.tasks[0].body) + print_block(forward(k).kernel.tasks[1].body)
    assert "t0_dual" in printed and "t1_dual" not in printed
    memory = Memory.of(
        {x: np.array([2.0, 5.0, 0, 0]), x.dual: np.array([1.0, 10.0, 0, 0]), y: np.zeros(4), y.dual: np.zeros(4)}
    )
    run_kernel(forward(k).kernel, memory)
    assert list(memory.array(y.dual)) == [4 * (5 + 20)] * 4


# ---- lost tangents
def test_what_is_lost_and_read_again_is_reported():
    x, y, plain = dual_field("x"), dual_field("y"), field("plain", (4,), f64)

    def build(b, i):
        b.gstore(plain, (i,), b.op("sin", b.gload(x, (i,))))
        b.gstore(y, (i,), b.gload(plain, (b.op("sub", const_i32(3), i),)))

    found = forward_kernel(kernel(build, axis()))
    assert [a[0].name for a in found.lost] == ["plain"] == [a[0].name for a in found.read]
    assert [(r[0].name, w[0].name) for r, w in found.broken] == [("plain", "plain")]


def test_a_load_before_the_store_or_of_another_element_is_not_broken():
    x, y, plain = dual_field("x"), dual_field("y"), field("plain", (4,), f64)

    def build(b):
        b.gstore(y, (ZERO,), b.gload(plain, (ZERO,)))
        b.gstore(plain, (ZERO,), b.gload(x, (ZERO,)))
        b.gstore(y, (ONE,), b.gload(plain, (ONE,)))

    found = forward_kernel(kernel(build))
    assert len(found.read) == 2 and len(found.lost) == 1 and not found.broken


def test_a_load_that_only_decides_something_is_no_read():
    x, y, plain = dual_field("x"), dual_field("y"), field("plain", (4,), f64)

    def build(b):
        b.gstore(plain, (ZERO,), b.gload(x, (ZERO,)))
        with b.if_(b.op("gt", b.gload(plain, (ZERO,)), Const(0.0, f64))):
            b.gstore(y, (ZERO,), b.op("floor", b.gload(plain, (ONE,))))

    found = forward_kernel(kernel(build))
    assert found.lost and not found.read and not found.broken


# ---- that it is the derivative
REAL = sorted(op for op in RULES if TABLE[op].domain in ("real", "number"))


@pytest.mark.parametrize("code", [op for op in REAL if op != "attach"])
def test_the_tangent_of_every_operation_is_its_derivative(code):
    x, y = dual_field("x"), dual_field("y")
    arity = TABLE[code].arity
    k = kernel(lambda b: b.gstore(y, (ZERO,), b.op(code, *(b.gload(x, (const_i32(n),)) for n in range(arity)))))
    for seed in range(4):
        r = np.random.default_rng(seed)
        point, direction = r.uniform(0.1, 0.9, 4), r.uniform(-1, 1, 4)
        memory = run(k, {x: list(point), x.dual: list(direction), y: [0] * 4, y.dual: [7] * 4})

        def value(h: float, point=point, direction=direction) -> float:
            inner = Memory.of({x: point + h * direction, y: np.zeros(4)})
            run_kernel(k, inner)
            return float(inner.array(y)[0])

        expected = (value(1e-6) - value(-1e-6)) / 2e-6
        assert memory.array(y.dual)[0] == pytest.approx(expected, rel=1e-7, abs=1e-8)


@pytest.mark.parametrize("code", sorted(op for op in FLAT if TABLE[op].result == "same"))
def test_the_tangent_of_a_step_is_zero(code):
    x, y = dual_field("x"), dual_field("y")
    arity = TABLE[code].arity
    k = kernel(lambda b: b.gstore(y, (ZERO,), b.op(code, *(b.gload(x, (const_i32(n),)) for n in range(arity)))))
    memory = run(k, {x: [2.7, 1.3, 0, 0], x.dual: [1, 1, 1, 1], y: [0] * 4, y.dual: [7] * 4})
    assert memory.array(y.dual)[0] == 0 and memory.array(y)[0] != 0


def test_a_cast_carries_the_tangent_into_the_other_type():
    x, y = dual_field("x"), dual_field("y", (4,), f32)
    k = kernel(lambda b: b.gstore(y, (ZERO,), b.op("cast", b.op("sin", b.gload(x, (ZERO,))), dtype=f32)))
    memory = Memory.of({x: np.full(4, 0.5), x.dual: np.full(4, 2.0), y: np.zeros(4, "f4"), y.dual: np.zeros(4, "f4")})
    run_kernel(forward(k).kernel, memory)
    assert memory.array(y.dual)[0] == np.float32(2 * np.cos(0.5))


def test_an_arm_that_is_not_taken_contributes_nothing():
    x, y = dual_field("x"), dual_field("y")

    def build(b):
        v = b.gload(x, (ZERO,))
        safe = b.op("gt", v, Const(0.0, f64))
        b.gstore(y, (ZERO,), b.op("select", safe, b.op("log", v), v))
        b.gstore(y, (ONE,), b.op("max", b.op("sqrt", v), v))
        b.gstore(y, (TWO,), b.op("sqrt", b.op("mul", b.gload(x, (ONE,)), b.gload(x, (ONE,)))))

    memory = run(kernel(build), {x: [-2, 0, 0, 0], x.dual: [3, 1, 0, 0], y: [0] * 4, y.dual: [7] * 4})
    assert list(memory.array(y.dual)[:3]) == [3, 3, 0]  # max(nan, v) is v, and the norm at 0 has tangent 0


@pytest.mark.parametrize("code", ["mul", "div", "cos", "exp", "abs", "atan2"])
def test_a_factor_of_zero_cuts_off_an_infinite_tangent_as_in_reverse_mode(code):
    x, y = dual_field("x"), dual_field("y")
    x.grad, y.grad = field("x.grad", (4,), f64), field("y.grad", (4,), f64)
    zero = Const(0.0, f64)

    def build(b):
        v = b.op("sqrt", b.gload(x, (ZERO,)))  # its derivative at 0 is infinite
        made = {
            "mul": lambda: b.op("mul", v, b.gload(x, (ONE,))),
            "div": lambda: b.op("div", b.gload(x, (ONE,)), b.op("add", v, Const(1.0, f64))),
            "cos": lambda: b.op("cos", v),
            "exp": lambda: b.op("exp", b.op("sub", v, Const(1e9, f64))),
            "abs": lambda: b.op("abs", v),
            "atan2": lambda: b.op("atan2", b.gload(x, (ONE,)), b.op("add", v, Const(1.0, f64))),
        }[code]()
        b.gstore(y, (ZERO,), made)

    k = kernel(build)
    memory = run(k, {x: [0] * 4, x.dual: [1, 0, 0, 0], y: [0] * 4, y.dual: [7] * 4})
    other = Memory.of({x: np.zeros(4), x.grad: np.zeros(4), y.grad: np.array([1.0, 0, 0, 0])})
    run_gradient(reverse_kernel(k), other, PLANS["L1"])
    assert memory.array(y.dual)[0] == other.array(x.grad)[0] == zero.value


def test_atomics_change_value_and_tangent_together():
    x, y, old = dual_field("x"), dual_field("y"), dual_field("old")
    data = {x: [3, 1, 2, 1], x.dual: [0.3, 0.1, 0.2, 0.11], y: [9.0] * 4, y.dual: [0.9] * 4, old: [0] * 4, old.dual: [0] * 4}

    def build(b, i):
        b.atomic("min", y, (ZERO,), b.gload(x, (i,)))
        b.atomic("max", y, (ONE,), b.gload(x, (i,)))
        b.atomic("mul", y, (TWO,), b.gload(x, (i,)))
        b.gstore(old, (i,), b.atomic("xchg", y, (const_i32(3),), b.gload(x, (i,))))

    memory = run(kernel(build, axis()), data)
    np.testing.assert_allclose(memory.array(y), [1, 9, 54, 1])
    # the minimum is reached twice: the last one counts; the maximum stays; d(y x0 x1 x2 x3)
    product = 54 * (0.9 / 9 + 0.3 / 3 + 0.1 / 1 + 0.2 / 2 + 0.11 / 1)
    np.testing.assert_allclose(memory.array(y.dual), [0.11, 0.9, product, 0.11])
    np.testing.assert_allclose(memory.array(old.dual), [0.9, 0.3, 0.1, 0.2])


def test_the_old_value_of_a_sum_has_the_old_tangent():
    x, y, old = dual_field("x"), dual_field("y"), dual_field("old")
    k = kernel(lambda b, i: b.gstore(old, (i,), b.atomic("add", y, (ZERO,), b.gload(x, (i,)))), axis())
    memory = run(k, {x: [1] * 4, x.dual: [1, 2, 3, 4], y: [0] * 4, y.dual: [0] * 4, old: [0] * 4, old.dual: [0] * 4})
    assert list(memory.array(old.dual)) == [0, 1, 3, 6] and memory.array(y.dual)[0] == 10


def test_a_local_that_is_set_to_a_constant_has_no_tangent_left():
    x, y = dual_field("x"), dual_field("y")

    def build(b, i):
        v = b.local(b.gload(x, (i,)))
        with b.if_(b.op("gt", i, ONE)):
            b.store(v, Const(2.0, f64))
        b.gstore(y, (i,), b.op("mul", b.load(v), b.load(v)))

    memory = run(kernel(build, axis()), {x: [1, 2, 3, 4], x.dual: [1] * 4, y: [0] * 4, y.dual: [9] * 4})
    assert list(memory.array(y.dual)) == [2, 4, 0, 0]


# ---- random kernels
def check_random(seed: int) -> None:
    """Values as without tangents; u.Jv == v.J'u; and Jv is the slope in direction v."""
    p = make(seed)
    for place in (p.x, p.out, p.own):
        place.dual = dual_field(place.name, place.shape or ()).dual
    k = simplify(lower_exits(p.kernel))
    found = forward_kernel(k).kernel
    verify_kernel(found)
    found = simplify(found) if seed % 2 else found
    verify_kernel(found)
    memory = p.memory(seed)
    weights = memory.array(p.out.grad).copy(), memory.array(p.own.grad).copy()
    try:
        run_gradient(reverse_kernel(k), memory, PLANS["L1"])
        gradient = memory.array(p.x.grad).copy()
    except DifferentiationError:  # reverse mode refuses what forward mode can do
        gradient = None
    direction = np.random.default_rng(seed).uniform(-1, 1, p.x.shape or ())

    memory = p.memory(seed)
    for place in (p.x, p.out, p.own):
        memory.bind(place.dual.buffer, np.zeros(place.shape))
    memory.array(p.x.dual)[:] = direction
    run_kernel(found, memory)
    plain = p.memory(seed)
    run_kernel(k, plain)
    for place in (p.out, p.own):
        np.testing.assert_array_equal(memory.array(place), plain.array(place))
    product = sum(float((memory.array(q.dual) * w).sum()) for q, w in zip((p.out, p.own), weights))
    if gradient is not None:
        assert product == pytest.approx(float(gradient @ direction), rel=1e-9, abs=1e-9)

    def value(at: np.ndarray) -> float:
        inner = p.memory(seed)
        inner.array(p.x)[:] += at[0] * direction
        run_kernel(k, inner)
        return float((inner.array(p.out) * weights[0]).sum() + (inner.array(p.own) * weights[1]).sum())

    step = np.zeros(1)
    coarse, fine = (numeric(lambda: value(step), [step], h)[0][0] for h in (1e-5, 1e-6))
    scale = max(1.0, abs(fine))
    if abs(coarse - fine) <= 1e-5 * scale:  # no branch flips between the points
        assert abs(product - coarse) <= 1e-4 * scale


@pytest.mark.parametrize("seed", range(5000, 5024))
def test_forward_and_reverse_mode_agree_on_random_kernels(seed):
    check_random(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6000, 6100))
def test_forward_and_reverse_mode_agree_on_many_random_kernels(seed):
    check_random(seed)
