"""Threads about what happens between launches: changed inputs, broken paths, the built-in check of gradients."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qdrun as qd

sys.path.insert(0, str(Path(__file__).parent))
from scene import Case, Scene

SQUARE = """
@qd.kernel
def k(n: qd.i32):
    for i in x:
        y[i] = x[i] * x[i] * w[i]

@qd.kernel
def scale(f: qd.f64):
    for i in x:
        x[i] = x[i] * f

@qd.kernel
def keep():
    for i in x:
        plain[i] = x[i] * x[i]

@qd.kernel
def total():
    for i in x:
        loss[None] += plain[i]
"""


def scene(**options: Any) -> Scene:
    return Scene(Case("", SQUARE), 0, **options)


def changes(s: Scene) -> dict[str, Any]:
    return {
        "a kernel": lambda: s.kernels["scale"](2.0),
        "one element from Python": lambda: s.fields["x"].__setitem__(1, 3.0),
        "an array from Python": lambda: s.fields["x"].from_numpy(np.ones(4)),
        "fill": lambda: s.fields["x"].fill(0.5),
    }


@pytest.mark.parametrize("how", ["a kernel", "one element from Python", "an array from Python", "fill"])
def test_an_input_changed_before_the_gradient_is_refused(how: str, record_property: Any) -> None:
    record_property("torture", ("warp#1350", f"an input changed between launch and gradient by {how}", "refused"))
    s = scene(debug=True)
    s.kernels["k"](5)
    changes(s)[how]()
    with pytest.raises(qd.DataAccessError, match="`x`"):
        s.kernels["k"].grad(5)


@pytest.mark.parametrize("validation", [False, True])
@pytest.mark.parametrize("how", ["a kernel", "one element from Python", "an array from Python", "fill"])
def test_an_input_changed_on_a_tape_is_put_back(how: str, validation: bool, record_property: Any) -> None:
    checked = ", validated" if validation else ""
    record_property("torture", ("warp#1350", f"an input changed on a tape by {how}{checked}", "right"))
    s = scene()
    x, w = (s.fields[n].to_numpy() for n in "xw")
    with qd.ad.Tape(validation=validation):
        s.kernels["k"](5)
        changes(s)[how]()
        s.fields["y"].grad.fill(1.0)
    np.testing.assert_allclose(s.fields["x"].grad.to_numpy(), 2 * x * w)


def test_an_unchanged_input_is_no_fault() -> None:
    s = scene(debug=True)
    s.kernels["k"](5)
    s.fields["y"].grad.fill(1.0)
    s.kernels["k"].grad(5)
    x, w = (s.fields[n].to_numpy() for n in "xw")
    np.testing.assert_allclose(s.fields["x"].grad.to_numpy(), 2 * x * w)


def test_a_path_that_breaks_between_launches_is_an_error_under_validation(record_property: Any) -> None:
    record_property("torture", ("taichi#1966", "a field without a gradient between two launches, validated", "refused"))
    s = scene()
    with pytest.raises(qd.DifferentiationError, match="plain"):
        with qd.ad.Tape(loss=s.fields["loss"], validation=True):
            s.kernels["keep"]()
            s.kernels["total"]()


def test_the_check_of_gradients_is_built_in(record_property: Any) -> None:
    record_property("torture", ("taichi#6172", "Tape(grad_check=[x])", "right"))
    s = Scene(Case("", "y[i] = qd.sin(x[i]) * w[i]\nloss[None] += y[i] * y[i]"), 3)
    with qd.ad.Tape(loss=s.fields["loss"], grad_check=[s.fields["x"], s.fields["w"]]):
        s.kernels["k"](5)
    x, w = (s.fields[name].to_numpy() for name in "xw")
    np.testing.assert_allclose(s.fields["x"].grad.to_numpy(), 2 * np.sin(x) * np.cos(x) * w**2, rtol=1e-13)
    np.testing.assert_allclose(s.fields["w"].grad.to_numpy(), 2 * np.sin(x) ** 2 * w, rtol=1e-13)


def test_the_check_of_gradients_finds_a_wrong_one(record_property: Any) -> None:
    record_property("torture", ("taichi#6172", "Tape(grad_check=[x]) of a wrong custom gradient", "refused"))
    s = Scene(Case("", "loss[None] += x[i] * x[i]"), 3)

    @qd.ad.grad_replaced
    def forward() -> None:
        s.kernels["k"](5)

    @qd.ad.grad_for(forward)
    def backward() -> None:
        s.fields["x"].grad.fill(1.0)

    with pytest.raises(qd.QdrunError, match="x"):
        with qd.ad.Tape(loss=s.fields["loss"], grad_check=[s.fields["x"]]):
            forward()
