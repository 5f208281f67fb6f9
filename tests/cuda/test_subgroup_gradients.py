"""Gradients and tangents of what lanes exchange, beside central differences in f64. ``--arch cuda`` runs them on a GPU."""

import os

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.ir.nodes import Const, Op
from qdrun.compiler.ir.types import i32, i64
from qdrun.compiler.passes import shuffles

ON_GPU = os.environ.get("QDRUN_TEST_ARCH") == "cuda"
THROUGH_MEMORY = {
    "emulated": {"arch": qd.cuda, "device": "emulated"},
    "vulkan": {"arch": qd.vulkan, "device": "llvmpipe"},
    "metal": {"arch": qd.metal, "device": "emulated:f64"},
}
sg = qd.simt.subgroup
BLOCK, N = 128, 256
SOME = [None, N - 77]


@pytest.fixture
def lanes():
    """Threads of a subgroup of an open program."""
    how = {"arch": qd.cuda} if ON_GPU else {"arch": qd.amdgpu, "device": "emulated:gfx942"}
    with qd.init(default_fp=qd.f64, offline_cache=False, **how):
        yield sg.group_size()


class Case:
    """A loop ``y[i, k] = body(x[i], i)[k]`` over all elements, or over some that the launch tells."""

    def __init__(self, body, n, outs, block=BLOCK):
        self.rng, self.n = np.random.default_rng(), n
        self.x = qd.field(qd.f64, shape=N, needs_grad=True, needs_dual=True)
        self.y = qd.field(qd.f64, shape=(N, outs), needs_grad=True, needs_dual=True)
        self.start = 0.5 + (self.rng.permutation(N) + 0.5 * self.rng.random(N)) / N  # no two alike: minima have a derivative
        self.weights = self.rng.random((N, outs)) - 0.5
        x, y = self.x, self.y

        @qd.func
        def store(i):
            found = body(x[i], i)
            for k in qd.static(range(outs)):
                y[i, k] = found[k]

        @qd.kernel
        def known():
            qd.loop_config(block_dim=block)
            for i in x:
                store(i)

        @qd.kernel
        def unknown(count: qd.i32):
            qd.loop_config(block_dim=block)
            for i in range(count):
                store(i)

        self.kernel, self.args = (known, ()) if n is None else (unknown, (n,))

    def losses(self, x):
        self.x.from_numpy(x)
        self.y.fill(0.0)
        self.kernel(*self.args)
        return (self.y.to_numpy() * self.weights).sum(0)

    def check(self, tolerance=1e-7):
        """The gradient of each column, and the tangents, along a random direction."""
        way, h = self.rng.standard_normal(N), 1e-5
        expected = (self.losses(self.start + h * way) - self.losses(self.start - h * way)) / (2 * h)
        assert np.isfinite(expected).all() and (expected != 0).any()
        self.losses(self.start)
        for k in range(self.weights.shape[1]):
            seed = np.zeros_like(self.weights)
            seed[:, k] = self.weights[:, k]
            self.y.grad.from_numpy(seed)
            self.x.grad.fill(0.0)
            self.kernel.grad(*self.args)
            assert self.x.grad.to_numpy() @ way == pytest.approx(expected[k], rel=tolerance, abs=tolerance), k
        self.x.from_numpy(self.start)
        with qd.ad.FwdMode(loss=self.y, param=self.x, seed=way.tolist()):
            self.kernel(*self.args)
        found = (self.y.dual.to_numpy() * self.weights).sum(0)
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@qd.func
def of_shuffles(v, i):
    lane = sg.invocation_id()
    return qd.Vector(
        [
            v * sg.shuffle_xor(v * v, 5),
            v * sg.shuffle_up(qd.sin(v), 3) + sg.shuffle_down(v * v, 9),
            v * sg.broadcast(v * v, 6) + sg.broadcast_first(qd.exp(v)),
            v * sg.shuffle(v * v, lane + 1) + sg.shuffle(v, lane & ~7 | 2) ** 3,
        ]
    )


@qd.func
def of_searched_lanes(v, i):
    lane = sg.invocation_id()
    far = i * i // 7 % 16
    return qd.Vector([v * sg.shuffle(v * v, lane * lane % 11), v * sg.shuffle(v * v, far), v * sg.shuffle(v * v, lane // 3)])


@qd.func
def of_sums(v, i):
    return qd.Vector(
        [v * sg.reduce_all_add(v * v), sg.reduce_add(v**3), v * sg.reduce_all_mul(v), v * sg.reduce_all_max(v * v)]
    )


@qd.func
def of_scans(v, i):
    tile = sg.segmented_reduce_add(v * v, sg.invocation_id() % 5 == 0)
    return qd.Vector([v * sg.inclusive_add(v * v), sg.exclusive_mul(v), sg.inclusive_min_tiled(v * v, 3), tile])


@qd.func
def of_a_reciprocal(v, i):
    """What lanes without an iteration have read, 0, has none: their adjoints are left out."""
    return qd.Vector([v * sg.reduce_all_add(1.0 / v), sg.inclusive_add(qd.log(v))])


@qd.func
def of_rounds(v, i):
    """A loop of the same length in all threads, and a condition that is the same in all."""
    total, other = 0.0, v
    for k in range(3):
        total += sg.shuffle_xor(v * v, 1 << k) * (k + 1.0)
    if sg.group_size() > 2:
        other = sg.reduce_all_add(v * total)
    return qd.Vector([total * v, other * v])


BODIES = [
    (of_shuffles, 4),
    (of_searched_lanes, 3),
    (of_sums, 4),
    (of_scans, 4),
    (of_a_reciprocal, 2),
    (of_rounds, 2),
]


@pytest.mark.parametrize("n", SOME, ids=["all", "some"])
@pytest.mark.parametrize(("body", "outs"), BODIES, ids=[f.__name__ for f, _ in BODIES])
def test_adjoints_go_back_to_the_lanes_that_were_read(lanes, body, outs, n):
    if n is not None and body in (of_shuffles, of_searched_lanes, of_rounds):
        pytest.skip("what a lane without an iteration gives is undefined")
    Case(body, n, outs).check()


def test_vectors_and_sums_of_a_subgroup_in_one_element(lanes):
    """One lane adds what the subgroup has."""
    x, total = qd.Vector.field(2, qd.f64, shape=N, needs_grad=True), qd.field(qd.f64, shape=(), needs_grad=True)

    @qd.kernel
    def energy():
        qd.loop_config(block_dim=BLOCK)
        for i in x:
            v = sg.reduce_add(x[i] * x[i].norm_sqr())
            if sg.elect():
                total[None] += v[0] * v[1]

    start = np.random.default_rng().random((N, 2))
    x.from_numpy(start)
    with qd.ad.Tape(total):
        energy()
    parts = start.reshape(-1, lanes, 2)
    norms = (parts**2).sum(-1)
    sums = (parts * norms[..., None]).sum(1)
    np.testing.assert_allclose(total[None], (sums[:, 0] * sums[:, 1]).sum(), rtol=1e-12)
    back = sums[:, None, ::-1]
    expected = back * norms[..., None] + 2 * parts * (back * parts).sum(-1, keepdims=True)
    np.testing.assert_allclose(x.grad.to_numpy(), expected.reshape(N, 2), rtol=1e-11)


def test_tapes_of_other_loops_and_conditions_of_the_launch(lanes):
    """A loop with a tape before the one whose lanes meet; a condition and a number of rounds that only the launch knows."""
    n = 100
    x, y, z = (qd.field(qd.f64, shape=n, needs_grad=True) for _ in range(3))
    on = qd.field(qd.i32, shape=())

    @qd.kernel
    def k(count: qd.i32, rounds: qd.i32):
        for i in range(count):
            v = x[i]
            for _ in range(rounds):
                v = qd.sin(v) * 1.3 + x[i]
            y[i] = v
        qd.loop_config(block_dim=64)
        for i in range(count):
            w, total = y[i], 0.0
            if on[None] > 0:
                w *= sg.reduce_all_add(w / (0.1 + w * w))
            for r in range(rounds):
                total += sg.inclusive_add(w * w) * r
            z[i] = w + total

    rng, h = np.random.default_rng(), 1e-6
    start, weights, way = rng.random(n) + 0.5, rng.random(n), rng.standard_normal(n)

    def loss(a):
        x.from_numpy(a)
        k(n, 4)
        return z.to_numpy() @ weights

    for on[None] in (0, 1):
        expected = (loss(start + h * way) - loss(start - h * way)) / (2 * h)
        loss(start)
        z.grad.from_numpy(weights)
        x.grad.fill(0.0)
        k.grad(n, 4)
        assert x.grad.to_numpy() @ way == pytest.approx(expected, rel=1e-6)


def test_products_with_the_hessian_follow_the_lanes(lanes):
    x, total = qd.field(qd.f64, shape=N), qd.field(qd.f64, shape=())
    qd.root.lazy_hessian()

    @qd.kernel
    def energy():
        qd.loop_config(block_dim=BLOCK)
        for i in x:
            v = x[i]
            total[None] += v * sg.reduce_all_add(v * v) + v * sg.shuffle_xor(qd.sin(v), 3)

    def run():
        total[None] = 0.0
        energy()

    rng = np.random.default_rng()
    start, way = rng.random((2, N))
    x.from_numpy(start)
    found = qd.ad.hvp(run, total, x, way).product
    v, d = start.reshape(-1, lanes), way.reshape(-1, lanes)
    near, far = (a.reshape(-1)[np.arange(N) ^ 3].reshape(v.shape) for a in (v, d))
    sums = 2 * d * v.sum(1, keepdims=True) + 2 * v * d.sum(1, keepdims=True) + 2 * (v * d).sum(1, keepdims=True)
    pairs = np.cos(near) * far - np.sin(v) * d * near + np.cos(v) * far
    np.testing.assert_allclose(np.asarray(found), (sums + pairs).reshape(N), rtol=1e-11)


@pytest.mark.slow
def test_the_gradient_of_a_factorisation(lanes):
    """The solution with a Cholesky factor, by tiles."""
    a = qd.field(qd.f64, shape=(16, 16), needs_grad=True)
    b, x = (qd.field(qd.f64, shape=(16, 16), needs_grad=True) for _ in range(2))

    @qd.kernel
    def solve():
        qd.loop_config(block_dim=sg.group_size())
        for _ in range(sg.group_size()):
            t, rhs = qd.simt.Tile16x16.zeros(), qd.simt.Tile16x16.zeros()
            t[:] = a[0:16, 0:16]
            rhs[:] = b[0:16, 0:16]
            t.cholesky_(1e-9)
            t.solve_triangular_(rhs)
            x[0:16, 0:16] = rhs

    rng = np.random.default_rng()
    m = rng.random((16, 16))
    start, side, weights = m @ m.T + 16 * np.eye(16), rng.random((16, 16)), rng.random((16, 16))

    def loss(matrix, right):
        return (np.linalg.solve(np.linalg.cholesky(matrix), right.T).T * weights).sum()

    a.from_numpy(start)
    b.from_numpy(side)
    solve()
    x.grad.from_numpy(weights)
    solve.grad()
    way, other = rng.standard_normal((2, 16, 16))
    way, h = way + way.T, 1e-5
    expected = (loss(start + h * way, side + h * other) - loss(start - h * way, side - h * other)) / (2 * h)
    assert (a.grad.to_numpy() * way).sum() + (b.grad.to_numpy() * other).sum() == pytest.approx(expected, rel=1e-7)


def refused(kernel, message):
    with pytest.raises(qd.DifferentiationError, match=message):
        kernel.grad()


def test_what_has_no_gradient_is_refused_by_name(lanes):
    x, y = (qd.field(qd.f64, shape=N, needs_grad=True) for _ in range(2))

    @qd.kernel
    def barrier():
        qd.loop_config(block_dim=BLOCK)
        for i in x:
            x[i] = 2 * x[i]
            sg.sync()

    @qd.kernel
    def array():
        qd.loop_config(block_dim=BLOCK)
        for i in x:
            x[i] = qd.simt.block.reduce_all_add(x[i], BLOCK, qd.f64)

    @qd.kernel
    def parts():
        qd.loop_config(block_dim=48)
        for i in x:
            x[i] = sg.reduce_all_add(x[i])

    @qd.kernel
    def states(n: qd.i32):
        qd.loop_config(block_dim=BLOCK)
        for i in x:
            v = x[i]
            for _ in range(n):
                v = qd.sin(v) * sg.shuffle_xor(v, 1)
            y[i] = v

    for kernel in (barrier, array, parts):
        refused(kernel, "the threads of this loop meet in blocks, and there is no gradient of that yet")
    with pytest.raises(
        qd.DifferentiationError, match="whose lanes exchange values, would keep the states of a loop inside of it"
    ):
        states.grad(3)


@qd.func
def of_a_few(v, i):
    return qd.Vector([v * sg.shuffle_down(v * v, 3), v * sg.reduce_all_add(1.0 / v)])


@pytest.mark.skipif(ON_GPU, reason="of other devices")
@pytest.mark.parametrize("n", SOME, ids=["all", "some"])
@pytest.mark.parametrize("name", list(THROUGH_MEMORY))
def test_lanes_that_meet_in_memory(name, n):
    """Shuffles become stores, barriers and loads after the derivatives are made."""
    try:
        program = qd.init(default_fp=qd.f64, offline_cache=False, **THROUGH_MEMORY[name])
    except qd.QdrunError as e:
        pytest.skip(str(e).splitlines()[0])
    with program:
        if n is None:
            Case(of_a_few, n, 2, 64).check()
        else:
            Case(of_a_reciprocal, n, 2, 64).check()


def test_the_lane_that_is_read_is_known_where_the_own_number_decides_it():
    mine = Op("cast", (Op("and", (Op("iter", (), i64), Const(31, i64)), i64),), i32)

    def of(code, x, y):
        return Op("and", (Op(code, (x, y), i32), Const(31, i32)), i32)

    lane = np.arange(32)
    assert shuffles.sources(of("add", mine, Const(-3, i32)), 32) == tuple((lane - 3) % 32)
    assert shuffles.sources(of("xor", mine, Const(9, i32)), 32) == tuple(lane ^ 9)
    assert shuffles.sources(Const(4, i32), 32) == (4,) * 32
    assert shuffles.sources(of("add", mine, Op("param", (), i32)), 32) is None
    assert shuffles.sources(of("add", Op("cast", (Op("iter", (), i64),), i32), Const(1, i32)), 32) is None
