"""The components of a vector or matrix field that are placed one by one."""

import numpy as np
import pytest

import qdrun as qd


@pytest.fixture(params=["cpu", "python", 3])
def program(request):
    how = {"batch": request.param} if request.param == 3 else {"arch": request.param}
    with qd.init(default_fp=qd.f64, offline_cache=False, **how) as program:
        yield program


def placed_one_by_one(apart: bool, offset=None):
    """A 2 x 2 matrix field and a loss with gradients: in a level each, or all in one."""
    m, loss = qd.Matrix.field(2, 2, qd.f64, name="m"), qd.field(qd.f64, name="loss")
    level = qd.root.dense(qd.ij, (3, 4))
    for tensor in (m, m.grad):
        for at in np.ndindex(2, 2):
            (qd.root.dense(qd.ij, (3, 4)) if apart else level).place(
                tensor.get_scalar_field(*at), offset=offset if tensor is m else None
            )
    qd.root.place(loss, loss.grad)
    return m, loss


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("offset", [None, (-1, 5)])
def test_a_field_is_placed_with_its_last_component(program, apart, offset):
    m, loss = placed_one_by_one(apart, offset)
    corner, other = m.get_scalar_field(0, 1), m.get_scalar_field(1, 0)

    @qd.kernel
    def k():
        for i, j in m:
            loss[None] += m[i, j].determinant() * corner[i, j] + other[i, j] ** 3

    x = np.random.default_rng().normal(size=(3, 4, 2, 2))
    m.from_numpy(x)
    with qd.ad.Tape(loss):
        k()
    a, b, c, d = (x[..., i, j] for i in range(2) for j in range(2))
    wanted = np.stack([d * b, a * d - 2 * b * c, -b * b + 3 * c * c, a * b], -1).reshape(x.shape)
    batched = program.trials is not None
    seen = lambda array: array[1] if batched else array
    assert np.allclose(seen(loss.to_numpy()), ((a * d - b * c) * b + c**3).sum(), rtol=1e-12)
    assert np.allclose(seen(m.grad.to_numpy()), wanted, rtol=1e-12, atol=1e-14)
    assert (seen(corner.to_numpy()) == b).all() and (corner.grad.to_numpy() == m.grad.to_numpy()[..., 0, 1]).all()
    assert corner.shape == (3, 4) and corner.has_grad() and corner.offset == m.offset == (offset or (0, 0))
    assert corner.parent() is m.parent() and "m[0, 1]" in repr(corner)


def test_gradients_asked_for_or_placed_lazily_come_with_the_field(program):
    v, w = qd.Vector.field(2, qd.f64), qd.Vector.field(2, qd.f64, needs_grad=True)
    for k in range(2):
        qd.root.dense(qd.i, 5).place(v.get_scalar_field(k))
        qd.root.dense(qd.i, 5).place(w.get_scalar_field(k))
    qd.root.lazy_grad()

    @qd.kernel
    def k():
        for i in v:
            w[i] = v[i] * v[i].sum()

    x, y = np.random.default_rng().normal(size=(2, 5, 2))
    v.from_numpy(x)
    w.grad.from_numpy(y)
    k()
    k.grad()
    batched = program.trials is not None
    got = v.grad.to_numpy()
    wanted = y * x.sum(1, keepdims=True) + (x * y).sum(1, keepdims=True)
    assert np.allclose(got[2] if batched else got, wanted, rtol=1e-12, atol=1e-14)


def test_a_part_of_the_components_is_no_field(program):
    v = qd.Vector.field(3, qd.f64, name="v")
    first = v.get_scalar_field(0)
    qd.root.dense(qd.i, 4).place(first)
    for read in (v.to_numpy, first.to_numpy, lambda: v.shape, lambda: first[0]):
        with pytest.raises(qd.QdrunRuntimeError, match=r"`v` has no memory: .* place its other components, too: \[1\], \[2\]"):
            read()
    with pytest.raises(qd.QdrunRuntimeError, match=r"field `v\[0\]` is placed already"):
        qd.root.dense(qd.i, 4).place(v.get_scalar_field(0))
    with pytest.raises(qd.QdrunRuntimeError, match=r"(?s)`v\[1\]` is placed with the shape \(5,\) .* place all components"):
        qd.root.dense(qd.i, 5).place(v.get_scalar_field(1))
    with pytest.raises(qd.QdrunIndexError, match=r"`v` has no component \(3,\)"):
        v.get_scalar_field(3)
    qd.root.dense(qd.i, 4).place(v.get_scalar_field(1), v.get_scalar_field(2))
    assert v.shape == (4,) and first.shape == (4,)
    with pytest.raises(qd.QdrunRuntimeError, match=r"is placed already"):
        qd.root.dense(qd.i, 4).place(first)
