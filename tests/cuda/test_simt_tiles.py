"""``qd.simt.Tile16x16`` and ``Tile32x32`` beside numpy, where subgroups have as many threads. ``--arch cuda`` runs them on a GPU."""

import os

import numpy as np
import pytest

import qdrun as qd

ON_GPU = os.environ.get("QDRUN_TEST_ARCH") == "cuda"
DEVICES = {
    "emulated": {"arch": qd.cuda, "device": "emulated"},
    "amdgpu": {"arch": qd.amdgpu, "device": "emulated:gfx942"},
    "vulkan": {"arch": qd.vulkan, "device": "llvmpipe"},
    "metal": {"arch": qd.metal, "device": "emulated:f64"},
}
sg, Tile16, Tile32 = qd.simt.subgroup, qd.simt.Tile16x16, qd.simt.Tile32x32


def opened(name):
    how = {"arch": qd.cuda} if ON_GPU else DEVICES[name]
    try:
        return qd.init(default_fp=qd.f64, offline_cache=False, **how)
    except qd.QdrunError as e:
        pytest.skip(str(e).splitlines()[0])


@pytest.fixture(params=["cuda"] if ON_GPU else list(DEVICES))
def lanes(request):
    """Threads of a subgroup of an open program."""
    with opened(request.param):
        yield sg.group_size()


@pytest.fixture(params=["cuda"] if ON_GPU else ["emulated", "amdgpu"])
def fast(request):
    """The same of a program whose compiler takes hundreds of shuffles well."""
    with opened(request.param):
        yield sg.group_size()


def of(a):
    """A field with the numbers of an array."""
    x = qd.field(qd.f64, shape=a.shape)
    x.from_numpy(a)
    return x


def random(*shape):
    return np.random.default_rng().random(shape) - 0.5


def spd(n, batches=()):
    a = random(*batches, n, n)
    return a @ np.swapaxes(a, -1, -2) + n * np.eye(n)


def test_parts_of_arrays_identities_and_outer_products(lanes):
    """What lies outside of the array or of the slice is neither read nor written."""
    start = random(21, 19)
    x, y = of(start), of(np.full((21, 19), 9.0))
    u, v = random(21, 3), random(2, 16, 2)
    ux, vx = of(u), of(v)

    @qd.kernel
    def parts():
        qd.loop_config(block_dim=lanes)
        for _ in range(lanes):
            t = Tile16.zeros()
            t[:] = x[8:24, 5:17]
            y[6:20, 7:23] = t
            e = Tile16.eye(dtype=qd.f64)
            e -= qd.outer(ux[0:16, 1], vx[1, 0:16, 0])
            w = 1.0 + sg.invocation_id()
            e -= qd.outer(w, w)
            x[0:16, 0:16] = e

    parts()
    tile = np.zeros((16, 16))
    tile[:13, :12] = start[8:21, 5:17]
    expected = np.full((21, 19), 9.0)
    expected[6:20, 7:19] = tile[:14, :12]
    np.testing.assert_array_equal(y.to_numpy(), expected)
    w = np.arange(1.0, 17.0)
    start[:16, :16] = np.eye(16) - np.outer(u[:16, 1], v[1, :, 0]) - np.outer(w, w)
    np.testing.assert_allclose(x.to_numpy(), start, rtol=1e-14)


@pytest.mark.parametrize("n", [16, pytest.param(32, marks=pytest.mark.slow)])
def test_factors_and_solutions_of_a_batch(fast, n):
    """Each subgroup has a matrix of its own; arrays as arguments."""
    tile, batch = {16: Tile16, 32: Tile32}[n], 2

    @qd.kernel
    def solve(a: qd.types.ndarray(dtype=qd.f64, ndim=3), b: qd.types.ndarray(dtype=qd.f64, ndim=3)):
        qd.loop_config(block_dim=sg.group_size())
        for i in range(batch * sg.group_size()):
            m = i // sg.group_size()
            t, rhs = tile.zeros(), tile.zeros()
            t[:] = a[m, 0:n, 0:n]
            rhs[:] = b[m, 0:n, 0:n]
            t.cholesky_(1e-12)
            t.solve_triangular_(rhs)
            a[m, 0:n, 0:n] = t
            b[m, 0:n, 0:n] = rhs

    matrices, sides = spd(n, (batch,)), random(batch, n, n)
    a, b = matrices.copy(), sides.copy()
    solve(a, b)
    for k in range(batch):
        factor = np.linalg.cholesky(matrices[k])
        np.testing.assert_allclose(np.tril(a[k]), factor, rtol=1e-11, atol=1e-12)
        np.testing.assert_array_equal(np.triu(a[k], 1), np.triu(matrices[k], 1))
        np.testing.assert_allclose(b[k], np.linalg.solve(factor, sides[k].T).T, rtol=1e-10, atol=1e-12)


def test_a_factor_in_blocks(fast):
    """The lower block is a solution with the first factor; the rest loses an outer product for each column of it."""
    n = 25
    start = spd(n)
    a = of(start)

    @qd.kernel
    def factor():
        qd.loop_config(block_dim=sg.group_size())
        for _ in range(sg.group_size()):
            t, low, rest = Tile16.zeros(), Tile16.zeros(), Tile16.eye()
            t[:] = a[0:16, 0:16]
            t.cholesky_(0.0)
            a[0:16, 0:16] = t
            low[:] = a[16:n, 0:16]
            t.solve_triangular_(low)
            a[16:n, 0:16] = low
            rest[:] = a[16:n, 16:n]
            for k in range(16):
                rest -= qd.outer(a[16:n, k], a[16:n, k])
            rest.cholesky_(0.0)
            a[16:n, 16:n] = rest

    factor()
    np.testing.assert_allclose(np.tril(a.to_numpy()), np.linalg.cholesky(start), rtol=1e-11, atol=1e-12)


def test_the_least_square_of_a_diagonal(fast):
    """``eps`` in the place of what is not positive; each lane gives its own."""
    a = of(np.diag([4.0, -1.0, *np.arange(1.0, 15.0)]))

    @qd.kernel
    def factor():
        qd.loop_config(block_dim=sg.group_size())
        for _ in range(sg.group_size()):
            t = Tile16.zeros()
            t[:] = a[0:16, 0:16]
            t.cholesky_(0.25 * sg.invocation_id())
            a[0:16, 0:16] = t

    factor()
    diagonal = np.array([4.0, -1.0, *np.arange(1.0, 15.0)])
    np.testing.assert_allclose(np.diag(a.to_numpy()), np.sqrt(np.maximum(diagonal, 0.25 * np.arange(16))), rtol=1e-14)


@qd.func
def other_type(x):
    t = Tile16.zeros(dtype=qd.i32)
    x[0:16, 0:16] = t


@qd.func
def a_number(x):
    t = Tile16.zeros()
    t[:] = x[0, 0]


@qd.func
def a_step(x):
    t = Tile16.zeros()
    t[:] = x[0:16:1, 0:16]


@qd.func
def a_row(x):
    t = Tile16.zeros()
    t[0:2] = x[0:16, 0:16]


@qd.func
def to_an_element(x):
    t = Tile16.zeros()
    x[0, 0] = t


@qd.func
def a_sum(x):
    t = Tile16.zeros()
    t += qd.outer(x[0:16, 0], x[0:16, 0])


@qd.func
def alone(x):
    x[0, 0] = qd.outer(1.0, 2.0)


@qd.func
def upper(x):
    t = Tile16.eye()
    t.solve_triangular_(t, lower=False)


REFUSED = {
    other_type: "a tile holds numbers of f32 or f64, not i32",
    a_number: "a tile is read from a part of an array, by two slices",
    a_step: "a part of an array for a tile has both ends and no step",
    a_row: "a tile is written as a whole",
    to_an_element: "a tile is written to a part of an array, by two slices",
    a_sum: r"tiles have no other arithmetic than t -= qd\.outer\(a, b\)",
    alone: r"qd\.outer\(a, b\) has no value of its own",
    upper: "solve_triangular_ has lower=True only",
}


@pytest.mark.parametrize("body", list(REFUSED), ids=lambda f: f.__name__)
def test_what_tiles_do_not_do(body):
    with opened("emulated"):
        x = qd.field(qd.f64, shape=(16, 16))

        @qd.kernel
        def k():
            qd.loop_config(block_dim=32)
            for _ in range(32):
                body(x)

        with pytest.raises(qd.QdrunCompilationError, match=REFUSED[body]):
            k()


@pytest.mark.skipif(ON_GPU, reason="of the processor")
@pytest.mark.parametrize("arch", ["cpu", "python"])
def test_without_subgroups_there_are_no_tiles(arch):
    with qd.init(arch=getattr(qd, arch), offline_cache=False):

        @qd.kernel
        def k():
            for _ in range(4):
                _ = Tile32.eye()

        with pytest.raises(qd.QdrunCompilationError, match="Tile32x32 needs subgroups of at least 32 threads"):
            k()
    with pytest.raises(qd.QdrunRuntimeError, match=r"outer\(\) was called outside of a kernel"):
        qd.outer(1.0, 2.0)
    assert (Tile16.SIZE, Tile32.SIZE) == (16, 32)
