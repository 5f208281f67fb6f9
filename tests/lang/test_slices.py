"""Slices and indices of vectors and matrices, read and written, with ends known now and indices known at run time."""

import linecache

import numpy as np
import pytest

import qdrun as qd

M = np.arange(1.0, 13.0).reshape(3, 4)
SLICES = ["1, :", ":, 2", "0:2, 1:3", "::2, ::-1", "j, :", ":, j", "1:, j", ":2, :", "2:0:-1, 0"]


@pytest.fixture(autouse=True)
def program():
    with qd.init(default_fp=qd.f64, offline_cache=False) as program:
        yield program


def run(body, **space):
    text = "@qd.kernel\ndef k(j: qd.i32):\n" + "".join(f"    {line}\n" for line in body.splitlines())
    name = f"<slices {hash(text)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    space["qd"] = qd
    exec(compile(text, name, "exec"), space)
    space["k"](1)


def as_numpy(index, a):
    return eval(f"a[{index}]", {"a": a, "j": 1})


@pytest.mark.parametrize("index", SLICES)
@pytest.mark.parametrize("base", ["m[0]", "v", "(m[0] * 1.0)"])
def test_a_slice_is_that_of_numpy(index, base):
    want = as_numpy(index, M)
    m = qd.Matrix.field(3, 4, qd.f64, shape=1)
    m.from_numpy(M[None])
    out = qd.Matrix.field(*want.shape, qd.f64, shape=1) if want.ndim == 2 else qd.Vector.field(*want.shape, qd.f64, shape=1)
    run(f"for i in range(1):\n    v = m[0]\n    out[0] = {base}[{index}]", m=m, out=out)
    assert np.array_equal(out.to_numpy()[0], want)


@pytest.mark.parametrize("index", SLICES)
@pytest.mark.parametrize("place", ["m[0]", "v"])
@pytest.mark.parametrize("op", ["=", "+=", "*="])
def test_a_slice_is_a_target(index, place, op):
    want = M.copy()
    part = as_numpy(index, want)
    value = np.arange(100.0, 100.0 + part.size).reshape(part.shape)
    exec(f"want[{index}] {op} value", {"want": want, "value": value, "j": 1})
    m = qd.Matrix.field(3, 4, qd.f64, shape=1)
    m.from_numpy(M[None])
    make = qd.Matrix if value.ndim == 2 else qd.Vector
    back = "\n    m[0] = v" if place == "v" else ""
    run(f"for i in range(1):\n    v = m[0]\n    {place}[{index}] {op} value{back}", m=m, value=make(value))
    assert np.array_equal(m.to_numpy()[0], want)


def test_a_scalar_fills_a_slice_and_one_index_is_a_row():
    m = qd.Matrix.field(3, 4, qd.f64, shape=2)
    m.from_numpy(np.stack([M, M]))
    run("for i in range(1):\n    m[0][:, 1:3] = 5.0\n    m[1][j] = m[1][0] * 2.0\n    m[1][2] += 1.0", m=m)
    want = np.stack([M, M])
    want[0][:, 1:3] = 5
    want[1][1] = M[0] * 2
    want[1][2] += 1
    assert np.array_equal(m.to_numpy(), want)


def test_slices_of_vectors():
    out = qd.Vector.field(3, qd.f64, shape=2)
    run(
        "for i in range(1):\n    v = qd.Vector([1.0, 2.0, 3.0, 4.0])\n    out[0] = v[1:]\n    v[::2] = v[1::2] * 10.0\n    out[1] = v[:3]",
        out=out,
    )
    assert out.to_numpy().tolist() == [[2, 3, 4], [20, 2, 40]]


def test_slices_carry_gradients():
    x = qd.Matrix.field(3, 3, qd.f64, shape=5, needs_grad=True)
    loss = qd.field(qd.f64, shape=(), needs_grad=True)
    a = np.random.default_rng(1).normal(size=(5, 3, 3))
    x.from_numpy(a)

    @qd.kernel
    def k(j: qd.i32):
        for i in x:
            m = x[i]
            m[1, :] = m[:, j] * m[2, ::-1]
            loss[None] += m[1].dot(x[i][0, :]) + m[0:2, 1:].sum()

    def value():
        m = a.copy()
        m[:, 1] = m[:, :, 1] * m[:, 2, ::-1]
        return ((m[:, 1] * a[:, 0]).sum() + m[:, 0:2, 1:].sum()).item()

    with qd.ad.Tape(loss):
        k(1)
    assert np.isclose(loss[None], value())
    g = x.grad.to_numpy()
    for index in np.ndindex(a.shape):
        keep, ends = a[index], []
        for h in (1e-6, -1e-6):
            a[index] = keep + h
            ends.append(value())
        a[index] = keep
        assert abs((ends[0] - ends[1]) / 2e-6 - g[index]) < 1e-7


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        ("v = qd.Vector([1.0, 2.0])\nw = v[2:]", qd.QdrunIndexError, "the slice selects nothing of shape (2,)"),
        ("v = qd.Vector([1.0, 2.0])\nw = v[0:1, 0]", qd.QdrunIndexError, "a vector takes one index, not 2"),
        ("v = qd.Vector([1.0, 2.0, 3.0])\nv[0:2] = v", qd.QdrunTypeError, "2 components are assigned a vector of 3"),
        ("w = x[0:3:2]", qd.QdrunTypeError, "has no step"),
        ("w = x[0:1, 0]", qd.QdrunTypeError, "has no slices in a kernel"),
        ("v = qd.Vector([1.0, 2.0])\nw = v[j:]", qd.QdrunTypeError, "static"),
    ],
)
def test_slices_that_do_not_fit_are_refused(body, error, message):
    x = qd.field(qd.f64, shape=4)
    with pytest.raises(error) as e:
        run(body, x=x)
    assert message in str(e.value)
