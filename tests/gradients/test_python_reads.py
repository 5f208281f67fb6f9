"""Numbers that Python reads in a tape: one that comes back as a constant is told, and those of logs and decisions are not."""

import warnings
from dataclasses import dataclass

import numpy as np
import pytest

import qdrun as qd

N = 3


@pytest.fixture(params=[qd.f64, qd.f32], ids=str)
def names(request):
    """Fields and kernels, by the names that the lines of the cases use."""
    real = request.param
    with qd.init(default_fp=real, offline_cache=False):
        a, loss = (qd.field(real, shape=(), needs_grad=True, name=n) for n in ("a", "loss"))
        b, c = (qd.field(real, shape=N, needs_grad=True, name=n) for n in "bc")
        plain, vectors = qd.field(real, shape=N), qd.Vector.field(2, real, shape=N, needs_grad=True)
        nd = qd.ndarray(real, (N,), needs_grad=True)
        rng = np.random.default_rng()
        a[None] = 2.0  # other numbers have the same digits
        for x in (b, plain, nd):
            drawn = (rng.random(9 * N) + 0.5).astype(request.param.numpy)
            x.from_numpy(np.array([d for d in drawn if d != type(d)(f"{d:.5g}")][:N]))  # all digits are needed
        vectors.from_numpy(rng.random((N, 2)))

        @qd.kernel
        def scale(v: real):
            loss[None] += v * a[None]

        @qd.kernel
        def scale_vector(v: qd.types.vector(2, real)):
            loss[None] += v[0] * v[1] * a[None]

        @qd.kernel
        def outside(x: qd.types.ndarray(dtype=real, ndim=1)):
            for i in x:
                loss[None] += x[i] * a[None]

        @dataclass
        class Factor:
            value: real

        @qd.kernel
        def scale_by(f: Factor):
            loss[None] += f.value * a[None]

        @qd.kernel
        def by_template(v: qd.template()):
            loss[None] += v * a[None]

        @qd.kernel
        def log(v: real):
            plain[0] = v

        @qd.kernel
        def select(v: real):
            for i in b:
                if b[i] > v:
                    loss[None] += b[i]

        @qd.kernel
        def total() -> real:
            s = 0.0
            for i in range(N):
                s += b[i]
            return s

        @qd.kernel
        def total_of_plain() -> real:
            return plain[0] + plain[1]

        @qd.kernel
        def use():
            for i in b:
                loss[None] += a[None] * b[i] + c[i]

        yield {**locals(), "qd": qd, "np": np}


def told(names, line, validation=False):
    """What is told of a line in a tape, of what Python reads."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with qd.ad.Tape(names["loss"], validation=validation):
            exec(compile(line, "user.py", "exec"), names)
            names["use"]()
    return [text for w in found if "is read in Python and" in (text := str(w.message))]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("scale(a[None])", "`a[None]`"),
        ("scale(v=float(b[1]))", "`b[1]`"),
        ("scale(max(b[2], 0.0))", "`b[2]`"),
        ("scale(nd[1])", "`ndarray[1]`"),
        ("scale(b.to_numpy()[1])", "the content of `b`"),
        ("scale(b.to_numpy()[1].item())", "the content of `b`"),
        ("outside(b.to_numpy())", "the content of `b`"),
        ("outside(np.asarray(b)[1:])", "the content of `b`"),
        ("scale(total())", "what kernel `total` returns"),
        ("scale_vector(vectors[1])", "`vectors[1]`"),
        ("scale_vector([vectors[1][0], b[0]])", "`vectors[1]`"),
        ("scale_vector(qd.Vector([b[0], 1.0]))", "`b[0]`"),
        ("scale(np.float64(b[1]))", "`b[1]`"),
        ("scale_by(Factor(a[None]))", "`a[None]`"),
        ("by_template(a[None])", "`a[None]`"),
        ("for _ in range(9): scale(a[None])", "`a[None]`"),
    ],
)
def test_a_number_that_is_passed_on_is_told_once(names, line, what):
    names["vectors"].name = "vectors"
    (text,) = told(names, line)
    assert text.startswith(f"{what} is read in Python and passed to kernel `")
    assert "at user.py:1, as a constant: a part of the gradient is lost; do: " in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("line", "do"),
    [
        ("c[0] = b[0]", "or `c.copy_from(b)` for all of it, or qd.stop_grad(..)"),
        ("c.from_numpy(b.to_numpy())", "or `c.copy_from(b)` for all of it, or qd.stop_grad(..)"),
        ("c.fill(a[None])", "do: assign in a kernel, or qd.stop_grad(..)"),
        ("c[1] = total()", "do: assign in a kernel, or qd.stop_grad(..)"),
    ],
)
def test_a_number_that_is_assigned_is_told(names, line, do):
    (text,) = told(names, line)
    assert "is read in Python and assigned to `c` at user.py:1, as a constant" in text
    assert do in text


@pytest.mark.parametrize(
    "line",
    [
        "str(a[None]); b.to_numpy().sum(); total(); scale(2.0)",
        "if a[None] > 1.0: scale(1.0)",
        "str(b[1]); scale(float(str(b[1])))",  # the same number, from elsewhere
        "log(a[None]); log(total())",
        "select(b[0])",
        "scale(plain[0]); scale(total_of_plain()); c.from_numpy(plain.to_numpy())",
        "scale(qd.stop_grad(a[None])); scale(qd.stop_grad(b.to_numpy()[1])); outside(qd.stop_grad(b.to_numpy()))",
        "c.copy_from(b)",
        "b[0] = min(b[0], 5.0)",
        "plain[0] = b[0]; plain.from_numpy(b.to_numpy())",
    ],
)
def test_what_is_not_passed_on_is_not_told(names, line):
    assert told(names, line) == []


def test_it_is_an_error_with_validation(names):
    with pytest.raises(
        qd.DifferentiationError, match=r"`a\[None\]` is read in Python and passed to kernel `scale` at user.py:1"
    ):
        told(names, "scale(a[None])", validation=True)


def test_a_step_of_checkpointed_steps_tells_it(names):
    names["state"] = qd.field(qd.f32, shape=(4, 1), needs_grad=True)
    (text,) = told(names, "qd.ad.checkpointed_steps(lambda t, k: scale(a[None]), 3, state=[state])")
    assert "passed to kernel `scale`" in text


def test_a_stopped_number_is_the_same_number(names):
    assert qd.stop_grad(0.1) == 0.1
    assert qd.stop_grad(3) == 3
    assert isinstance(qd.stop_grad(0.1), float)
