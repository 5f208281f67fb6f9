"""Axes that several dense levels split: indices, loops, gradients and copies are those of one array, however memory is nested."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

import qdrun as qd

AXES = {"i": 0, "j": 1, "k": 2}


@pytest.fixture(params=["cpu", "batch"])
def program(request):
    with qd.init(arch=qd.cpu, default_fp=qd.f64, batch=3 if request.param == "batch" else None) as p:
        yield p


def one(program, array):
    """The content of a trial."""
    return array[1] if program.trials is not None else array


# levels from the outside: axes and extents
TREES = [
    [("ij", (2, 3)), ("ij", (4, 2))],
    [("ij", (2, 3)), ("ji", (4, 2))],
    [("i", (2,)), ("j", (3,)), ("i", (4,))],
    [("ijk", (2, 1, 2)), ("ik", (3, 2)), ("j", (2,))],
    [("i", (2,)), ("i", (3,)), ("j", (2,)), ("i", (2,))],
    [("ij", (2, 2)), ("ij", (2, 2)), ("ij", (2, 2))],
]


def grown(parent, levels):
    for axes, extents in levels:
        parent = parent.dense(qd.axes(*map(AXES.get, axes)), extents)
    return parent


def shape_of(levels):
    found: dict[int, int] = {}
    for axes, extents in levels:
        for a, e in zip(axes, extents):
            found[AXES[a]] = found.get(AXES[a], 1) * e
    return tuple(found[a] for a in sorted(found))


@pytest.mark.parametrize("levels", TREES, ids=str)
def test_a_field_in_blocks_is_a_field_like_others(program, levels):
    x, y, v = qd.field(qd.f64), qd.field(qd.f64), qd.Vector.field(2, qd.f64)
    cell = grown(qd.root, levels)
    cell.place(x, x.grad, v)
    grown(qd.root, levels).place(y, y.grad)
    loss = qd.field(qd.f64, shape=(), needs_grad=True)
    shape = shape_of(levels)
    assert x.shape == y.shape == v.shape == cell.shape == shape

    @qd.kernel
    def fill():
        for I in qd.grouped(x):
            n = 0
            for a in qd.static(range(len(shape))):
                n = n * shape[a] + I[a]
            x[I] = n
            v[I] = qd.Vector([n + 0.25, n + 0.5])

    @qd.kernel
    def cube():
        for I in qd.grouped(y):
            y[I] = x[I] ** 3

    @qd.kernel
    def total():
        for I in qd.grouped(y):
            loss[None] += y[I] * v[I][1]

    fill()
    wanted = np.arange(prod(shape), dtype=float).reshape(shape)
    assert np.array_equal(one(program, x.to_numpy()), wanted)
    assert np.array_equal(one(program, v.to_numpy()), np.stack([wanted + 0.25, wanted + 0.5], -1))
    values = np.random.default_rng().normal(size=shape)
    x.from_numpy(values)
    assert np.array_equal(one(program, x.to_numpy()), values)
    with qd.ad.Tape(loss=loss):
        cube()
        total()
    assert np.allclose(one(program, loss.to_numpy()), (values**3 * (wanted + 0.5)).sum())
    assert np.allclose(one(program, x.grad.to_numpy()), 3 * values**2 * (wanted + 0.5), rtol=1e-12)
    if program.trials is None:
        index = tuple(int(np.random.default_rng().integers(n)) for n in shape)
        x[index] = 7.5
        assert x[index] == 7.5 and x.to_numpy()[index] == 7.5 and (x.to_numpy() != values).sum() == 1


def test_levels_with_fields_at_several_depths_and_offsets(program):
    rng = np.random.default_rng()
    a, b, c = qd.field(qd.i32), qd.field(qd.i8), qd.field(qd.f64)
    top = qd.root.dense(qd.ij, (2, 3))
    top.place(a)
    middle = top.dense(qd.ij, (2, 2))
    middle.place(b)
    middle.dense(qd.ij, (3, 2)).place(c, offset=(-4, 7))
    assert (a.shape, b.shape, c.shape) == ((2, 3), (4, 6), (12, 12))
    arrays = [rng.integers(-100, 100, f.shape).astype(f.dtype.numpy) for f in (a, b, c)]
    for f, content in zip((a, b, c), arrays):
        f.from_numpy(content)
    for f, content in zip((a, b, c), arrays):
        assert np.array_equal(one(program, f.to_numpy()), content)

    @qd.kernel
    def twice():
        for i, j in c:
            c[i, j] *= 2
        for i, j in middle:
            b[i, j] = i * 6 + j

    twice()
    assert np.array_equal(one(program, c.to_numpy()), 2 * arrays[2])
    assert np.array_equal(one(program, b.to_numpy()), np.arange(24).reshape(4, 6))
    assert np.array_equal(one(program, a.to_numpy()), arrays[0])
    if program.trials is None:
        assert c[-4, 7] == 2 * arrays[2][0, 0] and c[7, 18] == 2 * arrays[2][11, 11]


def test_a_builder_and_soa_components_take_blocks():
    qd.init(arch=qd.cpu)
    v = qd.Vector.field(3, qd.f32)
    builder = qd.FieldsBuilder()
    block = builder.dense(qd.ij, (2, 2)).dense(qd.ij, (2, 3))
    block.place(*(v.get_scalar_field(k) for k in range(3)))
    tree = builder.finalize()
    values = np.random.default_rng().normal(size=(4, 6, 3)).astype(np.float32)
    v.from_numpy(values)
    assert np.array_equal(v.to_numpy(), values) and v.shape == (4, 6)
    tree.destroy()


def test_forward_mode_and_duals_in_blocks():
    qd.init(arch=qd.cpu, default_fp=qd.f64)
    x, loss = qd.field(qd.f64), qd.field(qd.f64, shape=(), needs_dual=True)
    qd.root.dense(qd.ij, (2, 2)).dense(qd.ij, (2, 2)).place(x, x.dual)

    @qd.kernel
    def total():
        for i, j in x:
            loss[None] += x[i, j] ** 2

    values, direction = np.random.default_rng().normal(size=(2, 4, 4))
    x.from_numpy(values)
    with qd.ad.FwdMode(loss=loss, param=x, seed=direction.reshape(-1).tolist()):
        total()
    assert loss.dual[None] == pytest.approx((2 * values * direction).sum())
