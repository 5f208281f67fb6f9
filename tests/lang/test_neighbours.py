"""``qd.algorithms.HashGrid``: against all pairs of points."""

from itertools import product

import numpy as np
import pytest

import qdrun as qd

RADIUS = 0.7


@pytest.fixture
def rng():
    return np.random.default_rng()


class Pairs:
    """An energy of all pairs of points nearer than ``RADIUS``, by a grid."""

    def __init__(self, dims, n, shape):
        element = {"n": dims} if dims > 1 else {}
        x = (
            qd.Vector.field(**element, dtype=qd.f64, shape=n, needs_grad=True)
            if element
            else qd.field(qd.f64, n, needs_grad=True)
        )
        loss, near = qd.field(qd.f64, shape=(), needs_grad=True), qd.field(qd.i32, n)
        grid = qd.algorithms.HashGrid(n, RADIUS, shape)
        offsets = [o[0] if dims == 1 else qd.Vector(list(o)) for o in product((-1, 0, 1), repeat=dims)]

        @qd.func
        def squared(r):
            return r * r if qd.static(dims == 1) else r.norm_sqr()

        @qd.kernel
        def energy():
            for p in x:
                here = grid.cell(x[p])
                for o in qd.static(offsets):
                    b = grid.bucket(here + o)
                    for k in range(grid.first[b], grid.first[b + 1]):
                        s = squared(x[p] - x[grid.point[k]])
                        if s < RADIUS**2:
                            near[p] += 1
                            loss[None] += (RADIUS**2 - s) ** 2

        self.x, self.loss, self.near, self.grid, self.energy = x, loss, near, grid, energy

    def run(self, points):
        self.x.from_numpy(points)
        self.loss.fill(0)
        self.near.fill(0)
        with qd.ad.Tape(self.loss):
            self.grid.build(self.x)
            self.energy()
        return self.loss.to_numpy(), self.near.to_numpy(), self.x.grad.to_numpy()


def all_pairs(points):
    positions = points.reshape(len(points), -1)
    d = positions[:, None] - positions[None]
    s = (d**2).sum(-1)
    near = s < RADIUS**2
    gradient = (-8 * (RADIUS**2 - s) * near)[..., None] * d
    return ((RADIUS**2 - s) ** 2 * near).sum(), near.sum(1), gradient.sum(1).reshape(points.shape)


@pytest.mark.parametrize(("dims", "shape"), [(1, (5,)), (2, (4, 7)), (3, (3, 4, 5))])
def test_energies_of_pairs_and_their_gradients_are_those_of_all_pairs(rng, dims, shape):
    with qd.init(arch=qd.cpu, default_fp=qd.f64):
        case = Pairs(dims, 80, shape)
        for _ in range(2):
            points = rng.normal(size=(80, dims)[: 1 + (dims > 1)]) * 2
            loss, near, gradient = case.run(points)
            want = all_pairs(points)
            assert (near == want[1]).all()
            np.testing.assert_allclose(loss, want[0], rtol=1e-12)
            np.testing.assert_allclose(gradient, want[2], rtol=1e-10, atol=1e-12)
            first, point = case.grid.first.to_numpy(), case.grid.point.to_numpy()
            assert (np.sort(point) == range(80)).all() and first[0] == 0 and first[-1] == 80
            for b in range(len(first) - 1):
                assert (np.diff(point[first[b] : first[b + 1]]) > 0).all(), "the order in a bucket is that of the numbers"


def test_each_trial_of_a_batch_has_its_own_grid(rng):
    points = rng.normal(size=(3, 40, 2))
    with qd.init(arch=qd.cpu, default_fp=qd.f64, batch=3):
        case = Pairs(2, 40, (4, 4))
        losses, near, gradients = case.run(points)
    for k in range(3):
        want = all_pairs(points[k])
        assert (near[k] == want[1]).all()
        np.testing.assert_allclose(losses[k], want[0], rtol=1e-12)
        np.testing.assert_allclose(gradients[k], want[2], rtol=1e-10, atol=1e-12)


def test_what_does_not_fit_is_refused():
    with qd.init(arch=qd.cpu, default_fp=qd.f64):
        for count, width, shape in ((0, 1.0, (4,)), (5, 0.0, (4,)), (5, 1.0, ()), (5, 1.0, (4, 2)), (5, 1.0, (4, 4, 4, 4))):
            with pytest.raises(
                qd.QdrunValueError, match="a grid has points, a positive width, and 1 to 3 axes of at least 3 buckets"
            ):
                qd.algorithms.HashGrid(count, width, shape)
        grid = qd.algorithms.HashGrid(5, 1.0, (4, 4))
        with pytest.raises(qd.QdrunTypeError, match=r"HashGrid.build: `x` holds \(\) of f64, not positions with 2 axes"):
            grid.build(qd.field(qd.f64, 5))
        with pytest.raises(qd.QdrunValueError, match="`x` has 6 elements, and 5 are needed"):
            grid.build(qd.Vector.field(2, qd.f64, 6))
