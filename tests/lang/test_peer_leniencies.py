"""What programs of Taichi and Quadrants write and a stricter language would refuse: real loop bounds, a variable named like a field,
methods called by their class, types without a size, vectors before ``init``, packs of arguments.
"""

import subprocess
import sys

import numpy as np
import pytest

import qdrun as qd


@pytest.fixture(params=["cpu", "python"])
def program(request):
    with qd.init(arch=request.param, default_fp=qd.f64, offline_cache=False) as program:
        yield program


def test_a_real_loop_bound_is_truncated(program):
    n, out = qd.field(qd.f64, 6), qd.field(qd.i32, 6)
    values = np.array([0.0, 0.99, 3.7, -2.5, 5.0, 1.0000001])
    n.from_numpy(values)
    count = 7

    @qd.kernel
    def k():
        for i in n:
            for _ in range(n[i]):
                out[i] += 1
            for _ in range(-n[i], n[i]):
                out[i] += 100
            for _ in range(count / 2):
                out[i] += 10000

    @qd.kernel
    def pairs(a: qd.f64, v: qd.types.vector(2, qd.f64)) -> qd.i32:
        s = 0
        for _ in range(1):
            for i, j in qd.ndrange(a, (v[0], v[1])):
                s += 10 * i + j
        return s

    k()
    ends = np.trunc(values).astype(int)
    assert out.to_numpy().tolist() == [max(0, e) + 100 * max(0, 2 * e) + 30000 for e in ends]
    assert pairs(2.9, [1.2, 3.9]) == sum(10 * i + j for i in range(2) for j in range(1, 3))


def test_a_parallel_loop_has_a_real_bound_and_static_ones_are_refused(program):
    out = qd.field(qd.f64, 8)

    @qd.kernel
    def k(a: qd.f64):
        for i in range(a):
            out[i] = 1.0

    @qd.kernel
    def unrolled():
        for i in qd.static(range(2.5)):
            out[i] = 1.0

    k(3.9)
    assert out.to_numpy().tolist() == [1.0] * 3 + [0.0] * 5
    with pytest.raises(TypeError):
        unrolled()


def test_the_gradient_of_a_loop_with_a_real_bound(program):
    rng = np.random.default_rng()
    x, n, loss = (
        qd.field(qd.f64, 5, needs_grad=True),
        qd.field(qd.f64, 5, needs_grad=True),
        qd.field(qd.f64, (), needs_grad=True),
    )
    start, turns = rng.uniform(0.5, 1.5, 5), rng.uniform(0.2, 6.8, 5)
    x.from_numpy(start)
    n.from_numpy(turns)

    @qd.kernel
    def k():
        for i in x:
            y = x[i]
            for _ in range(n[i]):
                y = y * y * 0.7 + 0.1
            loss[None] += y

    with pytest.warns(qd.GradientWarning, match="with respect to `n` is always 0: .*cast to i32"), qd.ad.Tape(loss):
        k()
    value, slope = start.copy(), np.ones(5)
    for turn in range(7):
        on = turn < np.trunc(turns)
        slope = np.where(on, slope * 1.4 * value, slope)
        value = np.where(on, value * value * 0.7 + 0.1, value)
    np.testing.assert_allclose(x.grad.to_numpy(), slope, rtol=1e-12)
    np.testing.assert_allclose(loss[None], value.sum(), rtol=1e-12)
    assert (n.grad.to_numpy() == 0).all()


F = V = None


def test_a_variable_may_have_the_name_of_the_field_that_it_is_computed_from(program):
    global F, V
    F, V = qd.field(qd.f64, 4, needs_grad=True), qd.Vector.field(2, qd.f64, 4)
    out, loss = qd.field(qd.f64, 4, needs_grad=True), qd.field(qd.f64, (), needs_grad=True)

    @qd.kernel
    def k():
        for i in F:  # noqa: F823
            F = F[i] ** 2
            out[i] = F * 3.0

    @qd.kernel
    def total():
        for i in out:
            loss[None] += out[i]

    @qd.kernel
    def branch(c: qd.i32) -> qd.f64:
        r = 0.0
        for _ in range(1):
            if c > 0:
                V = V[1]  # noqa: F823
                r += 100 * V[0]
            r += V[0][1]  # the field again: a variable of a block ends with it
        return r

    values = np.random.default_rng().uniform(1, 2, 4)
    F.from_numpy(values)
    V.from_numpy(np.arange(8.0).reshape(4, 2))
    with qd.ad.Tape(loss):
        k()
        total()
    np.testing.assert_allclose(out.to_numpy(), 3 * values**2, rtol=1e-14)
    np.testing.assert_allclose(F.grad.to_numpy(), 6 * values, rtol=1e-14)
    assert branch(0) == 1 and branch(1) == 201


def test_methods_are_called_by_their_class(program):
    rng = np.random.default_rng()
    a, b, m = rng.normal(size=3), rng.normal(size=3), rng.normal(size=(3, 3))
    out, mat = qd.field(qd.f64, 12, needs_grad=True), qd.Matrix.field(3, 3, qd.f64, ())
    mat.from_numpy(m)
    vec3 = qd.types.vector(3, qd.f64)
    known = qd.Vector([3.0, 4.0])

    @qd.kernel
    def k(u: vec3, v: vec3):
        for _ in range(1):
            out[0] = qd.Vector.dot(u, v)
            out[1] = qd.Vector.norm(u)
            out[2] = qd.Vector.norm_sqr(u)
            out[3] = qd.Vector.normalized(u)[1]
            out[4] = qd.Vector.cross(u, v)[2]
            out[5] = qd.Matrix.outer_product(u, v)[1, 2]
            out[6] = qd.Matrix.determinant(mat[None])
            out[7] = qd.Matrix.inverse(mat[None])[0, 1]
            out[8] = qd.Matrix.trace(mat[None]) + qd.Matrix.transpose(mat[None])[0, 2]
            out[9] = qd.Vector.sum(u) + qd.Vector.max(u) - qd.Vector.min(v)
            out[10] = qd.static(qd.Vector.norm(known))
            out[11] = qd.Vector.dot(known, qd.Vector([1.0, u[0]]))

    k(a, b)
    want = [a @ b, np.linalg.norm(a), a @ a, a[1] / np.linalg.norm(a), np.cross(a, b)[2], a[1] * b[2]]
    want += [np.linalg.det(m), np.linalg.inv(m)[0, 1], np.trace(m) + m[2, 0], a.sum() + a.max() - b.min(), 5.0, 3 + 4 * a[0]]
    np.testing.assert_allclose(out.to_numpy(), want, rtol=1e-10)

    @qd.kernel
    def wrong() -> qd.f64:
        return qd.Vector.dot(1.0, out[0])

    with pytest.raises(qd.QdrunTypeError, match=r"dot\(\) takes a vector or a matrix"):
        wrong()


def test_a_type_without_a_size_is_an_annotation_of_any(program):
    @qd.func
    def total(v: qd.types.vector(), m: qd.types.matrix(dtype=qd.f64)) -> qd.f64:
        return v.sum() + m.sum()

    @qd.kernel
    def k(x: qd.types.ndarray(dtype=qd.types.vector(), ndim=1)) -> qd.f64:
        r = 0.0
        for _ in range(1):
            r = total(x[0], qd.Matrix([[1, 2], [3, 4]])) + total(qd.Vector([1.0, 2.0]), qd.Matrix([[1.0, 1.0]]))
        return r

    x = qd.Vector.ndarray(3, qd.f64, 2)
    x.fill(2.0)
    assert k(x) == 6 + 10 + 3 + 2
    with pytest.raises(qd.QdrunTypeError, match="expected element_dim 1, got 0"):
        k(qd.ndarray(qd.f64, 2))

    @qd.kernel
    def wrong() -> qd.f64:
        return total(qd.Matrix([[1.0]]), qd.Matrix([[1.0]]))

    with pytest.raises(qd.QdrunTypeError, match=r"vector\(\) takes values with 1 axes, not of shape \(1, 1\)"):
        wrong()
    with pytest.raises(qd.QdrunTypeError, match=r"vector\(\) makes no values: it has no size\n  do: give the size"):
        qd.types.vector()(1.0)
    with pytest.raises(qd.QdrunTypeError, match="both n and m, or neither"):
        qd.types.matrix(2)


def test_vectors_are_made_before_init(tmp_path):
    text = """
import qdrun as qd
up = qd.math.vec3(0, 1, 2) * 0.1
whole = qd.math.ivec2(1.0, 2.0)
m = qd.math.mat2(1, 2, 3, 4)
qd.init(arch=qd.cpu, default_fp=qd.f64, offline_cache=False)

@qd.kernel
def k() -> qd.f64:
    return up[2] + whole[1] + m[1, 0]

print(k() == 0.2 + 2 + 3, whole, qd.math.cross(up, up))
"""
    (tmp_path / "early.py").write_text(text)
    done = subprocess.run([sys.executable, tmp_path / "early.py"], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "True [1, 2] [0.0, 0.0, 0.0]\n", done.stderr


def test_a_pack_of_arguments_is_changed_between_launches(program):
    vec3, struct = qd.types.vector(3, qd.f64), qd.types.struct(p=qd.f64, q=qd.i32)
    inner = qd.types.argpack(k=qd.i32, flag=bool)
    pack = qd.types.argpack(a=qd.f64, v=vec3, x=qd.types.ndarray(dtype=qd.f64, ndim=1), inner=inner, s=struct)

    @qd.kernel
    def k(p: pack, z: qd.f64) -> qd.f64:
        for i in p.x:
            p.x[i] += p.a * z
        r = 0.0
        if p.inner.flag:
            r = 100.0
        return r + p.a + p.v.sum() + p.inner.k + p.s.p + p.s.q

    x = qd.ndarray(qd.f64, 3)
    p = pack(a=0.5, v=[1, 2, 3], x=x, inner=inner(k=5, flag=True), s=struct(p=0.25, q=7))
    assert k(p, 2.0) == 100 + 0.5 + 6 + 5 + 7.25 and x.to_numpy().tolist() == [1.0] * 3
    p.a, p["v"], p.inner.flag = 1.0, vec3(0, 0, 1), False
    assert k(p, 1.0) == 1 + 1 + 5 + 7.25 and x.to_numpy().tolist() == [2.0] * 3 and p["a"] == 1.0
    p.x = other = qd.ndarray(qd.f64, 2)
    k(p, 1.0)
    assert other.to_numpy().tolist() == [1.0] * 2 and p.to_dict()["x"] is other
    with pytest.raises(TypeError):
        pack(a=1.0)
    with pytest.raises(KeyError):
        p["b"] = 1
