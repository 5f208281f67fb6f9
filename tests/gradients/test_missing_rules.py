"""An operation without a derivative rule cannot be differentiated: the tables of rules are the only way to a derivative."""

from __future__ import annotations

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.errors import DifferentiationError
from qdrun.compiler.ir.builder import StatementBuilder
from qdrun.compiler.ir.nodes import Buffer, Kernel, Op, Place, Task
from qdrun.compiler.ir.ops import TABLE, OpInfo
from qdrun.compiler.ir.types import f64, i32
from qdrun.compiler.passes.dependence.array_flow import flows_of
from qdrun.compiler.passes.forward.tangent import forward_kernel
from qdrun.compiler.passes.reverse import derivatives
from qdrun.compiler.passes.reverse.gradient import reverse_kernel

MISSING = "has no derivative rule, so neither a gradient nor a tangent passes through it"


@pytest.mark.parametrize("code", TABLE)
def test_every_operation_has_one_entry_that_says_its_derivative(code):
    where = [code in derivatives.RULES, code in derivatives.ZERO, code in derivatives.MEMORY, code == "shuffle"]
    assert where.count(True) == 1
    if code in derivatives.RULES:
        assert len(derivatives.RULES[code]) == TABLE[code].arity
    if TABLE[code].pure and TABLE[code].result == "same" and TABLE[code].domain in ("real", "number"):
        assert code in derivatives.RULES or code in derivatives.FLAT


def test_each_operation_without_a_derivative_has_a_reason():
    assert derivatives.FLAT <= set(derivatives.ZERO) and all(derivatives.ZERO.values())


def place(name: str, dtype=f64, differentiable: bool = True) -> Place:
    made = Place(name, dtype, Buffer("field"), 0, (), ())
    if differentiable:
        made.grad = Place(f"{name}_grad", dtype, Buffer("field"), 0, (), (), is_grad=True)
        made.dual = Place(f"{name}_dual", dtype, Buffer("field"), 0, (), ())
    return made


def kernel_of(build, source: Place, target: Place) -> Kernel:
    task = Task("t", [])
    b = StatementBuilder(task.body)
    b.gstore(target, (), build(b, b.gload(source, ())))
    return Kernel("k", [], [task])


FORMS = {
    "real to real": (OpInfo(1, "same", "real"), lambda b, x: b.op("bessel", x)),
    "real to integer": (OpInfo(1, "given", "real"), lambda b, x: b.cast(b.op("bessel", x, dtype=i32), f64)),
    "from memory": (OpInfo(0, "given", "any", pure=False), lambda b, x: b.put(Op("bessel", (), f64))),
}


@pytest.mark.parametrize("make", [reverse_kernel, forward_kernel], ids=["reverse", "forward"])
@pytest.mark.parametrize("form", FORMS)
def test_a_new_operation_is_refused_until_it_has_a_rule(monkeypatch, form, make):
    info, build = FORMS[form]
    monkeypatch.setitem(TABLE, "bessel", info)
    with pytest.raises(DifferentiationError, match=f"the operation `bessel` {MISSING}"):
        make(kernel_of(build, place("x"), place("y")))


def test_a_new_operation_on_constants_is_no_obstacle(monkeypatch):
    monkeypatch.setitem(TABLE, "bessel", OpInfo(1, "same", "real"))
    constant = place("c", differentiable=False)
    made = reverse_kernel(kernel_of(lambda b, x: b.op("mul", x, b.op("bessel", b.gload(constant, ()))), place("x"), place("y")))
    assert any(isinstance(s, Op) and s.op == "bessel" for s in made.kernel.tasks[-1].body)


def test_values_are_followed_through_a_new_operation_between_launches(monkeypatch):
    monkeypatch.setitem(TABLE, "bessel", OpInfo(1, "same", "real"))
    kept = place("kept", differentiable=False)
    assert flows_of(kernel_of(lambda b, x: b.op("bessel", x), place("x"), kept)).loses


@pytest.fixture
def rules():
    """The table of the rules. At the end it has its order again, which pages show."""
    before = dict(derivatives.RULES)
    yield derivatives.RULES
    derivatives.RULES.clear()
    derivatives.RULES.update(before)


@pytest.mark.parametrize("mode", ["reverse", "forward", "second order"])
@pytest.mark.parametrize("code", ["tanh", "atan2", "sqrt", "min"])
def test_a_rule_that_is_taken_away_is_refused_in_each_mode(rules, mode, code):
    qd.init(arch=qd.python, default_fp=qd.f64, offline_cache=False)
    x, loss = (qd.field(qd.f64, shape=()) for _ in range(2))
    qd.root.lazy_hessian()
    x[None] = float(np.random.default_rng().uniform(0.2, 0.8))

    @qd.kernel
    def apply():
        v = x[None]
        if qd.static(code == "tanh"):
            loss[None] = qd.tanh(v)
        if qd.static(code == "atan2"):
            loss[None] = qd.atan2(1.5, v)
        if qd.static(code == "sqrt"):
            loss[None] = qd.sqrt(v)
        if qd.static(code == "min"):
            loss[None] = qd.min(v, 2.0)

    del rules[code]
    apply()  # the value needs no rule
    with pytest.raises(DifferentiationError, match=rf"`{code}` {MISSING}\n  at .*in kernel `apply`"):
        if mode == "reverse":
            apply.grad()
        elif mode == "forward":
            with qd.ad.FwdMode(loss=loss, param=x):
                apply()
        else:
            qd.ad.hvp(apply, loss, x, np.ones(()))
