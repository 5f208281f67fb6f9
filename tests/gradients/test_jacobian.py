"""``qd.ad.jacobian``, ``vjp`` and ``jvp``: both modes against differences in f64 on fresh inputs, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import qdrun as qd

BOTH = {"needs_grad": True, "needs_dual": True}
DEVICES = [
    {},
    {"arch": "python"},
    {"batch": 3},
    pytest.param({"arch": "vulkan", "device": "llvmpipe"}, marks=pytest.mark.slow),
    pytest.param({"arch": "cuda", "device": "emulated", "batch": 2}, marks=pytest.mark.slow),
]


class Spin:
    """Vectors and an ndarray -> a matrix field and a number. ``grid`` adds up and is not cleared, ``x`` changes in place."""

    def __init__(self, **options) -> None:
        self.program = qd.init(default_fp=qd.f64, **options)
        self.x = qd.Vector.field(2, dtype=qd.f64, shape=3, **BOTH)
        self.p = qd.ndarray(qd.f64, (2,), **BOTH)
        self.grid = qd.field(qd.f64, shape=(2, 2), **BOTH)
        self.z = qd.field(qd.f64, shape=(), **BOTH)
        x, grid, z, rng = self.x, self.grid, self.z, np.random.default_rng()

        @qd.kernel
        def turn(p: qd.types.ndarray()):
            for i in x:
                s, c = qd.sin(p[i % 2] * x[i][0]), qd.cos(p[0])
                x[i] = qd.Vector([c * x[i][0] - s * x[i][1], s * x[i][0] + c * x[i][1]])

        @qd.kernel
        def spread(p: qd.types.ndarray()):
            for i, j in grid:
                grid[i, j] += x[i][j] ** 2 * p[j] + x[2][i] * qd.random(qd.f64)

        @qd.kernel
        def total():
            for i, j in grid:
                z[None] += (i + 1) * grid[i, j] ** 2

        self.turn, self.spread, self.total = turn, spread, total
        lead = () if self.program.trials is None else (self.program.trials.count,)
        self.first = [rng.uniform(0.3, 1.2, (*lead, *shape)) for shape in ((3, 2), (2,), (2, 2))]

    def start(self, x: np.ndarray, p: np.ndarray) -> None:
        self.program.seeds.drawn = 0  # the same random numbers
        for tensor, content in ((self.x, x), (self.p, p), (self.grid, self.first[2])):
            tensor.from_numpy(content)
        self.z.fill(0.25)

    def run(self) -> None:
        for _ in range(2):
            self.turn(self.p)
            self.spread(self.p)
        self.total()

    def values(self, *at: np.ndarray) -> list[np.ndarray]:
        self.start(*at)
        self.run()
        return [t.to_numpy() for t in (self.grid, self.z, self.x)]

    def differences(self, direction: list[np.ndarray], h: float = 1e-6) -> list[np.ndarray]:
        up, low = (self.values(*(a + s * d for a, d in zip(self.first[:2], direction, strict=True))) for s in (h, -h))
        return [(a - b) / (2 * h) for a, b in zip(up, low, strict=True)]


@pytest.mark.parametrize("options", DEVICES)
def test_rows_and_columns_are_those_of_differences(options):
    case, rng = Spin(**options), np.random.default_rng()
    outputs, params = [case.grid, case.z, case.x], [case.x, case.p]
    lead = case.z.to_numpy().shape
    directions = [rng.normal(size=a.shape) for a in case.first[:2]]
    expected = case.differences(directions)
    for mode in ("forward", "reverse"):
        case.start(*case.first[:2])
        found = qd.ad.jacobian(case.run, outputs, params, mode=mode)
        left = [t.to_numpy() for t in outputs]
        for row, output, want in zip(found, outputs, expected, strict=True):
            got = 0.0
            for block, param, direction in zip(row, params, directions, strict=True):
                of, by = output.to_numpy().shape[len(lead) :], param.to_numpy().shape[len(lead) :]
                assert block.shape == (*lead, *of, *by) and block.dtype == np.float64
                flat = block.reshape(*lead, int(np.prod(of, dtype=int)), -1)
                got = got + (flat @ direction.reshape(*lead, -1, 1)).reshape((*lead, *of))
            assert np.allclose(got, want, 1e-6, 1e-7), mode
        for a, b in zip(left, case.values(*case.first[:2]), strict=True):
            assert np.array_equal(a, b)  # as after one run
    case.start(*case.first[:2])
    forward = qd.ad.jvp(case.run, outputs, params, directions)
    assert all(np.allclose(a, b, 1e-6, 1e-7) for a, b in zip(forward.product, expected, strict=True))
    case.start(*case.first[:2])
    weights = [rng.normal(size=a.shape) for a in expected]
    reverse = qd.ad.vjp(case.run, outputs, params, weights)
    sides = [
        sum(float(np.sum(a * b)) for a, b in zip(u, v, strict=True))
        for u, v in ((weights, expected), (reverse.product, directions))
    ]
    assert abs(sides[0] - sides[1]) < 1e-6 * sum(float(np.abs(a * b).sum()) for a, b in zip(weights, expected, strict=True))
    assert np.array_equal(reverse.output[0], left[0])


def counted(n: int, m: int, **memory):
    """A kernel from n numbers to m, and how often it was launched."""
    qd.init(default_fp=qd.f64)
    x, y = qd.field(qd.f64, shape=n, **memory), qd.field(qd.f64, shape=m, **memory)
    x.from_numpy(np.random.default_rng().normal(size=n))
    passes = []

    @qd.kernel
    def k():
        for i in y:
            y[i] = 0.0
            for j in range(n):
                y[i] += (i + 1) * x[j] ** 2

    def run():
        passes.append(1)
        k()

    return x, y, run, passes


@pytest.mark.parametrize(
    ("n", "m", "memory", "passes"),
    [(4, 2, BOTH, 2), (2, 4, BOTH, 2), (4, 2, {"needs_dual": True}, 4), (2, 4, {"needs_grad": True}, 4), (3, 3, BOTH, 3)],
)
def test_the_smaller_side_is_chosen_of_the_modes_that_have_memory(n, m, memory, passes):
    x, y, run, made = counted(n, m, **memory)
    found = qd.ad.jacobian(run, y, x)
    assert len(made) == passes
    assert np.allclose(found, 2 * np.outer(np.arange(1, m + 1), x.to_numpy()), 1e-14)


def test_shapes_of_elements_and_vectors_of_numbers_of_each_kind():
    qd.init(default_fp=qd.f64)
    column = qd.Matrix.field(3, 1, qd.f64, shape=2, **BOTH)
    square = qd.Matrix.ndarray(2, 2, qd.f64, shape=(3,), needs_grad=True, needs_dual=True)
    single = qd.field(qd.f32, shape=(), offset=None, **BOTH)
    shifted = qd.field(qd.f64, shape=4, offset=-2, **BOTH)
    column.fill(0.5)
    square.fill(2.0)
    single[None] = 3.0

    @qd.kernel
    def k(a: qd.types.ndarray()):
        for i in shifted:
            shifted[i] = column[1][2, 0] * a[2][0, 1] * single[None] * i

    found = qd.ad.jacobian(lambda: k(square), shifted, [column, square, single])
    assert [block.shape for block in found] == [(4, 2, 3), (4, 3, 2, 2), (4,)]
    index = np.arange(-2.0, 2.0)
    assert np.array_equal(found[0][:, 1, 2], 6 * index) and np.count_nonzero(found[0]) == 3
    assert np.array_equal(found[1][:, 2, 0, 1], 1.5 * index) and np.array_equal(found[2], index)
    moved = qd.ad.jvp(lambda: k(square), shifted, column, column).product
    assert np.array_equal(moved, shifted.to_numpy())
    back = qd.ad.vjp(lambda: k(square), shifted, square, [0.0, 0, 0, 1]).product
    assert back.shape == (3, 2, 2) and back[2, 0, 1] == 1.5


def test_a_mode_that_other_fields_have_memory_for_is_preferred():
    qd.init(default_fp=qd.f64)
    x, y = (qd.field(qd.f64, shape=n, **BOTH) for n in (2, 4))
    middle = qd.field(qd.f64, shape=2, needs_grad=True)

    @qd.kernel
    def both():
        for i in x:
            middle[i] = x[i] ** 2
        for i in y:
            y[i] = middle[i % 2] * (i + 1)

    x.from_numpy([1.5, -2.0])
    want = [[3, 0], [0, -8], [9, 0], [0, -16]]
    assert np.array_equal(qd.ad.jacobian(both, y, x), want)
    with pytest.raises(qd.DifferentiationError, match=r"loses the tangent in `middle`.*both"):
        qd.ad.jacobian(both, y, x, mode="forward")


def test_a_fixed_point_has_rows_and_no_columns():
    qd.init(default_fp=qd.f64)
    e = qd.field(qd.f64, shape=(), **BOTH)
    angle, new = (qd.field(qd.f64, shape=4, **BOTH) for _ in range(2))

    @qd.kernel
    def kepler():
        for i in angle:
            new[i] = 0.5 * (i + 1) + e[None] * qd.sin(angle[i])

    def run():
        qd.ad.fixed_point(kepler, angle, new)

    e[None] = np.random.default_rng().uniform(0.1, 0.5)
    found = qd.ad.jacobian(run, angle, e, mode="reverse")
    assert np.allclose(found, np.sin(angle.to_numpy()) / (1 - e[None] * np.cos(angle.to_numpy())), 1e-9)
    with pytest.raises(qd.QdrunRuntimeError, match=r"fixed_point inside of FwdMode(.|\n)*mode=\"reverse\""):
        qd.ad.jacobian(run, angle, e)


def test_an_array_without_a_derivative_on_the_way_is_refused():
    qd.init(default_fp=qd.f64)
    x, y = (qd.field(qd.f64, shape=2, **BOTH) for _ in range(2))
    middle = qd.field(qd.f64, shape=2)

    @qd.kernel
    def first():
        for i in x:
            middle[i] = x[i] ** 2

    @qd.kernel
    def second():
        for i in y:
            y[i] = middle[i]

    def run():
        first()
        second()

    for mode, said in (("forward", "loses the tangent in `middle`"), ("reverse", "the gradient is lost in `middle`")):
        with pytest.raises(qd.DifferentiationError, match=said):
            qd.ad.jacobian(run, y, x, mode=mode)
    with pytest.warns(qd.GradientWarning, match="cast"):

        @qd.kernel
        def steps():
            for i in y:
                y[i] = qd.i32(x[i])

        qd.ad.vjp(steps, y, x, [1.0, 1.0])


def test_what_cannot_be_differentiated_is_refused():
    x, y, run, _ = counted(3, 2, needs_grad=True)
    n = qd.field(qd.i32, shape=2, name="n")
    run()  # names x and y
    offset = [0.0]

    def refused(error, said, *args, **options):
        with pytest.raises(error, match=said):
            qd.ad.jacobian(*args, **options)

    @qd.kernel
    def drift(c: qd.f64):
        for i in y:
            y[i] = c * x[i]

    def counts():
        offset[0] += 1.0
        drift(offset[0])

    def writes():
        x.fill(2.0)
        run()

    refused(qd.QdrunRuntimeError, "`y` has no dual\n.*needs_dual=True", run, y, x, mode="forward")
    refused(qd.QdrunTypeError, "mode='fast'", run, y, x, mode="fast")
    refused(qd.QdrunTypeError, "not ndarray", run, np.zeros(3), x)
    refused(qd.QdrunTypeError, "`n` holds i32", run, n, x)
    refused(qd.QdrunTypeError, "`param` of qd.ad.jacobian is empty", run, y, [])
    refused(qd.QdrunRuntimeError, "gave another `y` in another pass", counts, y, x)
    refused(qd.QdrunRuntimeError, "writes to its parameter `x`", writes, y, x)
    with pytest.raises(qd.QdrunRuntimeError, match=r"shape \(3,\), `y` has shape \(2,\)"):
        qd.ad.vjp(run, y, x, [1, 2, 3])
    with pytest.raises(qd.QdrunRuntimeError, match="list of as many vectors"):
        qd.ad.vjp(run, [y], x, [1, 2])
    with qd.ad.Tape():
        refused(qd.QdrunRuntimeError, "call it outside of the tape", run, y, x)
    with qd.init(batch=2, default_fp=qd.f64) as program:
        refused(qd.QdrunRuntimeError, "belongs to another program", run, y, x)
        z = qd.field(qd.f64, shape=2, needs_grad=True)
        with program.trial(1):
            refused(qd.QdrunRuntimeError, "runs the launches of all trials", run, z, z)
