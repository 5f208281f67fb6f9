"""Quaternions of ``qd.math``: against rotation matrices made otherwise, and their derivatives where an angle is exactly zero."""

from __future__ import annotations

import math

import numpy as np
import pytest

import qdrun as qd

m = qd.math
TOLERANCE = {qd.f64: 2e-15, qd.f32: 1e-6}
ANGLES = [0.0, 1e-300, 1e-9, 1e-3, 0.3, 0.9999999, 1.0000001, 1.5, 3.0, math.pi - 1e-6, math.pi]
DEVICES = [
    {},
    {"arch": "python"},
    pytest.param({"batch": 2}, marks=pytest.mark.slow),
    pytest.param({"arch": "vulkan", "device": "llvmpipe"}, marks=pytest.mark.slow),
    pytest.param({"arch": "cuda", "device": "emulated"}, marks=pytest.mark.slow),
]


def random_axis(rng: np.random.Generator) -> np.ndarray:
    a = rng.normal(size=3)
    return a / np.linalg.norm(a)


def rotation(axis: np.ndarray, angle: float) -> np.ndarray:
    """Rodrigues' formula."""
    x, y, z = axis
    k = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + math.sin(angle) * k + 2 * math.sin(0.5 * angle) ** 2 * (k @ k)


@pytest.mark.parametrize("default", [qd.f32, qd.f64])
@pytest.mark.parametrize("dtype", [qd.f32, qd.f64])
def test_they_rotate_as_matrices_do_in_kernels_and_in_python(dtype, default):
    rng, n = np.random.default_rng(), len(ANGLES)
    qd.init(default_fp=default)
    axis, v, rotvec, turned, again, log = (qd.Vector.field(3, dtype=dtype, shape=n) for _ in range(6))
    angle = qd.field(dtype, shape=n)
    matrix = qd.Matrix.field(3, 3, dtype=dtype, shape=n)
    whole, half = (qd.Vector.field(4, dtype=dtype, shape=n) for _ in range(2))

    @qd.kernel
    def compute():
        for i in angle:
            q = m.quat_from_rotvec(axis[i] * angle[i])
            one = m.quat_from_axis_angle(axis[i], 0.0 * angle[i])
            whole[i], half[i] = q, m.quat_slerp(one, m.quat_from_axis_angle(axis[i], angle[i]), 0.5)
            turned[i], matrix[i] = m.quat_rotate(q, v[i]), m.quat_to_matrix(q)
            rotvec[i] = m.quat_to_rotvec(-q)
            log[i] = m.quat_to_rotvec(m.quat_mul(half[i], half[i]))
            again[i] = m.quat_rotate(m.quat_conj(m.quat_from_matrix(matrix[i])), turned[i])

    axes, vs = np.array([random_axis(rng) for _ in ANGLES]), rng.normal(size=(n, 3))
    for field, content in ((axis, axes), (v, vs), (angle, ANGLES)):
        field.from_numpy(np.array(content, field.dtype.numpy))
    compute()
    tolerance = 4 * TOLERANCE[dtype]
    for i in range(n):
        a, t, x = (f.to_numpy()[i].astype(float) for f in (axis, angle, v))
        wanted = rotation(a / np.linalg.norm(a), float(t) * float(np.linalg.norm(a)))
        assert abs(matrix.to_numpy()[i] - wanted).max() < tolerance
        assert abs(turned.to_numpy()[i] - wanted @ x).max() < 4 * tolerance
        assert abs(again.to_numpy()[i] - x).max() < 8 * tolerance
        q = np.concatenate([[math.cos(t / 2)], math.sin(t / 2) * a])
        assert abs(whole.to_numpy()[i] - q).max() < tolerance
        h = np.concatenate([[math.cos(t / 4)], math.sin(t / 4) * a])
        other = -math.sin(t / 4) * a if t > 3.14 else h[1:]  # at pi either direction is right
        assert min(abs(half.to_numpy()[i] - [h[0], *way]).max() for way in (h[1:], other)) < tolerance
        for found in (rotvec.to_numpy()[i], log.to_numpy()[i]):
            error = min(abs(s * found - t * a).max() for s in ((1, -1) if t > 3.14 else (1,)))
            assert error < 4 * tolerance and (t > 1e-30 or error < 1e-310)
        python = m.quat_rotate(m.quat_from_axis_angle(qd.Vector(a.tolist()), float(t)), qd.Vector(x.tolist()))
        assert abs(np.array(python) - wanted @ x).max() < 8 * tolerance


def test_products_slerp_and_integration():
    rng = np.random.default_rng()
    (p, q), omega = rng.normal(size=(2, 4)), rng.normal(size=3)
    p, q = (qd.Vector((a / np.linalg.norm(a)).tolist()) for a in (p, q))
    both = np.array(m.quat_to_matrix(p)) @ np.array(m.quat_to_matrix(q))
    assert abs(np.array(m.quat_to_matrix(m.quat_mul(p, q))) - both).max() < 1e-14
    if p.dot(q) < 0:
        q = -q
    assert (m.quat_slerp(p, q, 0.0) - p).norm() < 1e-15 and (m.quat_slerp(p, q, 1.0) - q).norm() < 1e-14
    quarter = m.quat_slerp(p, -q, 0.25)  # -q is the same rotation: the same way
    angle = math.acos(p.dot(q))
    wanted = (p * math.sin(0.75 * angle) + q * math.sin(0.25 * angle)) / math.sin(angle)
    assert (quarter - wanted).norm() < 1e-13
    now = p
    for _ in range(100):
        now = m.quat_integrate(now, qd.Vector(omega.tolist()), 0.03)
    end = m.quat_mul(p, m.quat_from_rotvec(qd.Vector((3.0 * omega).tolist())))
    assert (now - end).norm() < 1e-13
    assert [*m.quat_mul(qd.Vector([0.0, 1, 0, 0]), qd.Vector([0.0, 0, 1, 0]))] == [0, 0, 0, 1]  # i j = k


def cases():
    """Functions of x and y at which an angle is zero, and their Jacobians with respect to x and y there."""
    rng = np.random.default_rng()
    p = rng.normal(size=4)
    p /= np.linalg.norm(p)
    t, one, zero = float(rng.uniform(0.2, 0.8)), np.array([1.0, 0, 0, 0]), np.zeros(3)
    left = np.array([np.array(m.quat_mul(qd.Vector(p.tolist()), qd.Vector(e.tolist()))) for e in np.eye(4)]).T
    push, pull = np.eye(4)[:, 1:], np.eye(4)[1:]
    along = np.eye(4) - np.outer(p, p)
    v = qd.Vector([0.3, -0.4, 0.5])
    spin = -2 * np.array([[0, -v[2], v[1]], [v[2], 0, -v[0]], [-v[1], v[0], 0]])
    return {
        "from_rotvec": (lambda x, y: m.quat_from_rotvec(x), zero, one, 0.5 * push, None),
        "to_rotvec": (lambda x, y: m.quat_to_rotvec(y), zero, one, None, 2 * pull),
        "to_rotvec of -1": (lambda x, y: m.quat_to_rotvec(y), zero, -one, None, -2 * pull),
        "there and back": (lambda x, y: m.quat_to_rotvec(m.quat_from_rotvec(x)), zero, one, np.eye(3), None),
        "integrate": (lambda x, y: m.quat_integrate(y, x, 0.1), zero, p, 0.05 * left @ push, np.eye(4)),
        "slerp": (lambda x, y: m.quat_slerp(qd.Vector(p.tolist()), y, t), zero, p, None, t * along),
        "rotate": (lambda x, y: m.quat_rotate(m.quat_from_rotvec(x), v), zero, one, 0.5 * spin, None),
        "matrix and back": (
            lambda x, y: m.quat_from_matrix(m.quat_to_matrix(m.quat_from_rotvec(x))),
            zero,
            one,
            0.5 * push,
            None,
        ),
    }


@pytest.mark.parametrize("options", DEVICES)
def test_derivatives_at_the_angle_zero_are_exact(options):
    known = cases()
    functions, starts, ends, by_x, by_y = zip(*known.values())
    sizes = [len(np.array(f(qd.Vector(a.tolist()), qd.Vector(b.tolist())))) for f, a, b in zip(functions, starts, ends)]
    qd.init(default_fp=qd.f64, **options)
    n = len(known)
    x, y = (qd.Vector.field(k, dtype=qd.f64, shape=n, needs_grad=True, needs_dual=True) for k in (3, 4))
    out = qd.field(qd.f64, shape=(n, 4), needs_grad=True, needs_dual=True)

    @qd.kernel
    def compute():
        for _ in range(1):
            for k in qd.static(range(n)):
                found = functions[k](x[k], y[k])
                for c in qd.static(range(sizes[k])):
                    out[k, c] = found[c]

    x.from_numpy(np.array(starts))
    y.from_numpy(np.array(ends))
    rng = np.random.default_rng()
    weights, moves = rng.normal(size=(n, 4)), [rng.normal(size=(n, k)) for k in (3, 4)]
    back = [p.reshape(-1, n, k)[0] for p, k in zip(qd.ad.vjp(compute, out, [x, y], weights).product, (3, 4), strict=True)]
    ahead = qd.ad.jvp(compute, out, [x, y], moves).product.reshape(-1, n, 4)[0]
    for k, name in enumerate(known):
        jacobians = [np.zeros((sizes[k], a.shape[1])) if by[k] is None else by[k] for a, by in zip(moves, (by_x, by_y))]
        for got, jacobian in zip(back, jacobians, strict=True):
            assert np.abs(got[k] - weights[k, : sizes[k]] @ jacobian).max() < 1e-13, name
        wanted = sum(jacobian @ move[k] for jacobian, move in zip(jacobians, moves, strict=True))
        assert np.abs(ahead[k, : sizes[k]] - wanted).max() < 1e-13, name


def test_second_derivatives_at_the_angle_zero():
    qd.init(default_fp=qd.f64)
    v, loss = qd.Vector.field(3, dtype=qd.f64, shape=()), qd.field(qd.f64, shape=())
    qd.root.lazy_hessian()

    @qd.kernel
    def cosine():
        for _ in range(1):
            q = m.quat_from_rotvec(v[None])
            loss[None] += q[0] + m.quat_to_rotvec(q).norm_sqr()

    direction = np.random.default_rng().normal(size=3)
    found = qd.ad.hvp(cosine, loss, v, direction)
    assert np.array_equal(found.gradient, np.zeros(3))
    assert np.abs(found.product - (2 - 0.25) * direction).max() < 1e-14
