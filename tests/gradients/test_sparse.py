"""Gradients through sparse levels: against central differences, and against the same kernels on dense fields."""

import numpy as np
import pytest

import qdrun as qd

N, GRID = 12, 24
TREES = {
    "dense": lambda: qd.root.dense(qd.ij, GRID),
    "bitmasked": lambda: qd.root.bitmasked(qd.ij, GRID),
    "pointer.dense": lambda: qd.root.pointer(qd.ij, 6).dense(qd.ij, 4),
    "budget.dense": lambda: qd.root.pointer(qd.ij, 6, budget=20 * 16 * 80).dense(qd.ij, 4),
    "pointer.budget.bitmasked": lambda: qd.root.pointer(qd.ij, 2).pointer(qd.ij, 3, budget=10**6).bitmasked(qd.ij, 4),
    "pointer.pointer.bitmasked": lambda: qd.root.pointer(qd.ij, 2).pointer(qd.ij, 3).bitmasked(qd.ij, 4),
}


@pytest.fixture
def rng():
    return np.random.default_rng()


class Transfer:
    """Particles to a grid, an update of its active cells, and back: as in MLS-MPM."""

    def __init__(self, tree, **options):
        self.program = qd.init(arch=qd.cpu, default_fp=qd.f64, cpu_max_num_threads=1, **options)
        x, v = (qd.Vector.field(2, qd.f64, shape=N, needs_grad=True) for _ in range(2))
        m, mv, loss = qd.field(qd.f64), qd.Vector.field(2, qd.f64), qd.field(qd.f64, shape=(), needs_grad=True)
        v_out = qd.Vector.field(2, qd.f64)
        self.level = TREES[tree]()
        self.level.place(m, mv, v_out, m.grad, mv.grad, v_out.grad)
        visits = qd.field(qd.i32, ())
        self.x, self.v, self.m, self.loss, self.visits = x, v, m, loss, visits

        @qd.kernel
        def scatter():
            for p in x:
                base = qd.cast(x[p] * 10.0, qd.i32)
                f = x[p] * 10.0 - base
                for i, j in qd.static(qd.ndrange(2, 2)):
                    w = (f[0] if i else 1.0 - f[0]) * (f[1] if j else 1.0 - f[1])
                    m[base + qd.Vector([i, j])] += w
                    mv[base + qd.Vector([i, j])] += w * v[p]

        @qd.kernel
        def update():
            for I in qd.grouped(m):
                visits[None] += 1
                if m[I] > 0.0:
                    v_out[I] = mv[I] / (m[I] + 0.1) + 0.01 * qd.Vector([qd.sin(1.0 * I[0]), 0.3 * I[1]])

        @qd.kernel
        def gather():
            for p in x:
                base = qd.cast(x[p] * 10.0, qd.i32)
                f = x[p] * 10.0 - base
                new = qd.Vector([0.0, 0.0])
                for i, j in qd.static(qd.ndrange(2, 2)):
                    w = (f[0] if i else 1.0 - f[0]) * (f[1] if j else 1.0 - f[1])
                    new += w * v_out[base + qd.Vector([i, j])]
                loss[None] += new.norm_sqr() * (1.0 + 0.1 * p)

        self.kernels = [scatter, update, gather]

    def run(self, x, v):
        self.level.deactivate_all()
        for f in (self.m, *([] if self.level.sparse else [c for c in self.level.children if not c.role])):
            f.fill(0)
        self.x.from_numpy(x)
        self.v.from_numpy(v)
        self.loss[None], self.visits[None] = 0.0, 0
        with qd.ad.Tape(self.loss):
            for kernel in self.kernels:
                kernel()
        return self.loss[None], self.x.grad.to_numpy(), self.v.grad.to_numpy()


@pytest.mark.parametrize("tree", [tree for tree in TREES if tree != "dense"])
def test_a_transfer_by_a_sparse_grid_has_the_gradient_of_differences_and_of_a_dense_grid(rng, tree):
    x, v = 0.3 + rng.uniform(0.01, 0.99, (N, 2)) * 0.1 * rng.integers(1, 8, (N, 1)), rng.normal(size=(N, 2))
    dense = Transfer("dense")
    want = dense.run(x, v)
    dense.program.close()
    case = Transfer(tree)
    for _ in range(2):  # nothing of the first run is left in the second
        loss, gx, gv = case.run(x, v)
        assert loss == want[0] and (gx == want[1]).all() and (gv == want[2]).all()
        assert case.visits[None] < GRID * GRID
    h = 1e-6
    for k in np.ndindex(N, 2):
        ends = []
        for step in (h, -h):
            moved = x.copy()
            moved[k] += step
            ends.append(case.run(moved, v)[0])
        if len({tuple((10 * (x[k[0]] + s)).astype(int)) for s in (h, 0.0, -h)}) == 1:
            assert abs((ends[0] - ends[1]) / (2 * h) - gx[k]) < 1e-6 * max(1, abs(gx[k]), want[0])


@pytest.fixture
def program():
    with qd.init(arch=qd.cpu, default_fp=qd.f64) as program:
        yield program


def differences(run, p, h=1e-6):
    """Central differences of ``run()`` by the elements of a field."""
    base, out = p.to_numpy(), []
    for k in np.ndindex(base.shape):
        ends = []
        for step in (h, -h):
            moved = base.copy()
            moved[k] += step
            p.from_numpy(moved)
            ends.append(run())
        out.append((ends[0] - ends[1]) / (2 * h))
    p.from_numpy(base)
    return np.array(out).reshape(base.shape)


def test_what_a_cell_held_before_it_was_deactivated_has_no_gradient(program, rng):
    p, loss = qd.field(qd.f64, shape=8, needs_grad=True), qd.field(qd.f64, shape=(), needs_grad=True)
    x, y = qd.field(qd.f64), qd.field(qd.f64)
    block = qd.root.pointer(qd.i, 4)
    block.dense(qd.i, 2).place(x, y)
    qd.root.lazy_grad()

    @qd.kernel
    def write():
        for i in p:
            if i != 5:
                x[i] = p[i] * p[i]
                y[i] = qd.sin(p[i])

    @qd.kernel
    def end(k: qd.i32):
        qd.deactivate(block, k)
        x[2 * k] = 3.0 * p[0]

    @qd.kernel
    def measure():
        for i in x:
            loss[None] += x[i] * (1.0 + i) + 0.5 * y[i] * p[i]

    def run():
        qd.deactivate_all_snodes()
        loss[None] = 0.0
        with qd.ad.Tape(loss):
            write()
            end(1)
            measure()
        return loss[None]

    p.from_numpy(rng.uniform(0.5, 1.5, 8))
    run()
    got = p.grad.to_numpy()
    assert got[2] == got[3] == got[5] == 0
    np.testing.assert_allclose(got, differences(run, p), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("budget", (None, 10_000))
def test_pairs_of_lists_of_neighbours(program, rng, budget):
    """A cell list: particles are appended to cells in one kernel, which has no gradient; energies run over the lists."""
    n, cells = 20, 6
    x, loss = qd.field(qd.f64, shape=n, needs_grad=True), qd.field(qd.f64, shape=(), needs_grad=True)
    members = qd.field(qd.i32)
    lists = qd.root.pointer(qd.i, cells, budget=budget).dynamic(qd.j, n)
    lists.place(members)

    @qd.kernel
    def sort():
        for p in x:
            qd.append(lists, qd.cast(x[p], qd.i32), p)

    @qd.kernel
    def energy():
        for p in x:
            here = qd.cast(x[p], qd.i32)
            for c in range(qd.max(here - 1, 0), qd.min(here + 2, cells)):
                for k in range(qd.length(lists, c)):
                    r = x[p] - x[members[c, k]]
                    if qd.abs(r) < 1.0:
                        loss[None] += (1.0 - r * r) ** 3

    @qd.kernel
    def by_cells():
        for c, k in members:
            loss[None] += 0.1 * (c + 1) * x[members[c, k]] ** 2

    def run():
        lists.deactivate_all()
        loss[None] = 0.0
        with qd.ad.Tape(loss):
            sort()
            energy()
            by_cells()
        return loss[None]

    start = rng.uniform(0.01, 0.99, n) + rng.integers(0, cells, n)
    x.from_numpy(start)
    run()
    got = x.grad.to_numpy()
    near = np.abs(start[:, None] - start[None])
    want_loss = ((1 - np.minimum(near, 1) ** 2) ** 3).sum() + (0.1 * (start.astype(int) + 1) * start**2).sum()
    assert abs(loss[None] - want_loss) < 1e-9 * want_loss
    np.testing.assert_allclose(got, differences(run, x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("budget", (None, 16 * 16 * 2))
def test_a_loop_that_activates_what_it_runs_over(program, rng, budget):
    p, loss = qd.field(qd.f64, shape=16, needs_grad=True), qd.field(qd.f64, shape=(), needs_grad=True)
    x = qd.field(qd.f64)
    qd.root.pointer(qd.i, 16, budget=budget).place(x, x.grad)

    @qd.kernel
    def spread():
        for i in x:
            if i + 1 < 16:
                x[i + 1] += p[i] ** 2

    @qd.kernel
    def measure():
        for i in x:
            loss[None] += qd.sin(x[i]) * (i + 1)

    def run(times=1):
        qd.deactivate_all_snodes()
        loss[None], x[2], x[9], x[10] = 0.0, 0.5, 1.0, 2.0
        with qd.ad.Tape(loss):
            for _ in range(times):
                spread()
            measure()
        return loss[None]

    p.from_numpy(rng.uniform(0.5, 1.5, 16))
    run()
    got = p.grad.to_numpy()
    assert np.flatnonzero(got).tolist() == [2, 9, 10]
    np.testing.assert_allclose(got, differences(run, p), rtol=1e-7, atol=1e-7)
    run(2)  # the first loop ran over fewer cells than there are now
    np.testing.assert_allclose(p.grad.to_numpy(), differences(lambda: run(2), p), rtol=1e-7, atol=1e-7)


def test_an_append_of_reals_in_reverse_mode_is_refused(program):
    x, p = qd.field(qd.f64, name="x"), qd.field(qd.f64, shape=4, needs_grad=True)
    lists = qd.root.dynamic(qd.i, 8)
    lists.place(x, x.grad)

    @qd.kernel
    def grow():
        for i in p:
            qd.append(lists, None, p[i])

    with pytest.raises(
        qd.DifferentiationError, match=r"needs the value returned by an atomic on `x.length`(.|\n)*in a field in one kernel"
    ):
        grow.grad()


@pytest.mark.parametrize("budget", (None, 10_000))
def test_forward_mode_and_second_derivatives(program, rng, budget):
    p, loss, x = qd.field(qd.f64, shape=8), qd.field(qd.f64, shape=()), qd.field(qd.f64)
    qd.root.pointer(qd.i, 4, budget=budget).bitmasked(qd.i, 2).place(x)
    qd.root.lazy_hessian()

    @qd.kernel
    def write():
        for i in range(3):
            x[2 * i] = p[i] * p[i + 1]
        for i in range(3):
            x[3 * i] += qd.sin(p[i])

    @qd.kernel
    def measure():
        for i in x:
            loss[None] += x[i] ** 3 + x[i] * p[i]

    def run():
        qd.deactivate_all_snodes()
        loss[None] = 0.0
        write()
        measure()

    def gradient():
        with qd.ad.Tape(loss):
            run()
        return p.grad.to_numpy()

    point, direction = rng.uniform(0.5, 1.5, 8), rng.normal(size=8)
    p.from_numpy(point)
    with qd.ad.FwdMode(loss=loss, param=p, seed=direction):
        run()
    slope, got = loss.dual[None], gradient()
    product = qd.ad.hvp(run, loss, p, direction).product
    ends = []
    for step in (1e-6, -1e-6):
        p.from_numpy(point + step * direction)
        ends.append((gradient(), loss[None]))
    assert abs(slope - (ends[0][1] - ends[1][1]) / 2e-6) < 1e-7 * max(1, abs(slope))
    assert abs(slope - got @ direction) < 1e-12 * max(1, abs(slope))
    np.testing.assert_allclose(product, (ends[0][0] - ends[1][0]) / 2e-6, rtol=1e-7, atol=1e-7)


def test_trials_of_a_batch_have_the_gradients_of_trials_alone(rng):
    points, starts = rng.uniform(0.5, 1.5, (5, 16)), rng.integers(0, 8, 5)

    def gradients(batch, points, starts):
        with qd.init(arch=qd.cpu, default_fp=qd.f64, **({"batch": batch} if batch else {})):
            p, loss = qd.field(qd.f64, shape=16, needs_grad=True), qd.field(qd.f64, shape=(), needs_grad=True)
            start, x = qd.field(qd.i32, ()), qd.field(qd.f64)
            qd.root.pointer(qd.i, 4).bitmasked(qd.i, 4).place(x, x.grad)

            @qd.kernel
            def write():
                for i in range(5):
                    x[start[None] + 2 * i % 7] += p[i] * p[i + 1]

            @qd.kernel
            def measure():
                for i in x:
                    loss[None] += qd.cos(x[i]) * p[i]

            p.from_numpy(points)
            start.from_numpy(starts)
            with qd.ad.Tape(loss):
                write()
                measure()
            return p.grad.to_numpy()

    together = gradients(5, points, starts)
    for k in range(5):
        np.testing.assert_allclose(together[k], gradients(None, points[k], np.array(starts[k])), rtol=1e-13, atol=1e-15)


def test_a_level_with_a_budget_keeps_its_cells_for_the_backward_pass(program, rng):
    """Cells get blocks in an order that is not determined, in several launches, and none gives its block back under a tape."""
    n = 12
    p, loss = qd.field(qd.f64, shape=n, needs_grad=True), qd.field(qd.f64, shape=(), needs_grad=True)
    x = qd.field(qd.f64, name="x")
    level = qd.root.pointer(qd.i, 40, budget=(n + 2) * 2 * 8 * 3)
    level.dense(qd.i, 3).place(x, x.grad)
    where = qd.field(qd.i32, n)

    @qd.kernel
    def scatter(step: qd.i32):
        for k in p:
            x[(where[k] + 37 * step) % 120] += p[k] ** 2 * (1.0 + step)

    @qd.kernel
    def gather():
        for k in range(120):  # of inactive cells, too
            loss[None] += x[k] * qd.sin(k + 1.0)

    @qd.kernel
    def end(k: qd.i32):
        qd.deactivate(level, k)

    def run(times):
        level.deactivate_all()
        loss[None] = 0.0
        with qd.ad.Tape(loss):
            for step in range(times):
                gather()
                scatter(step)
            gather()
        return loss[None]

    p.from_numpy(rng.uniform(0.5, 1.5, n))
    for times in (1, 2):
        where.from_numpy(rng.integers(0, 15 if times == 2 else 120, n).astype(np.int32))
        run(times)
        np.testing.assert_allclose(p.grad.to_numpy(), differences(lambda: run(times), p), rtol=1e-6, atol=1e-6)  # noqa: B023
    for kernel in (lambda: end(3), level.deactivate_all):
        with pytest.raises(
            qd.QdrunRuntimeError,
            match=r"deactivates cells of `x`, whose level has a budget(.|\n)*before the first launch of the tape",
        ):
            with qd.ad.Tape(loss):
                scatter(0)
                kernel()
    with pytest.raises(qd.DifferentiationError, match=r"deactivates cells of `x`(.|\n)*in a kernel of its own"):
        end.grad(3)


def test_a_block_that_is_used_again_begins_without_a_gradient(program):
    x, loss = qd.field(qd.f64), qd.field(qd.f64, shape=(), needs_grad=True)
    level = qd.root.pointer(qd.i, 8, budget=3 * 16)
    level.place(x, x.grad)

    @qd.kernel
    def set(k: qd.i32):
        x[k] = 2.0

    @qd.kernel
    def end(k: qd.i32):
        qd.deactivate(level, k)

    @qd.kernel
    def measure():
        for i in x:
            loss[None] += x[i] ** 2

    set(3)
    with qd.ad.Tape(loss):
        measure()
    assert x.grad.to_numpy().tolist() == [0, 0, 0, 4, 0, 0, 0, 0]
    end(3)
    set(6)
    assert x.to_numpy()[6] == 2 and not x.grad.to_numpy().any()


def test_bounds_of_loops_from_a_level_with_a_budget(program, rng):
    """A plan reads them where their cells are: 0 where none is active."""
    n = 24
    p, loss = qd.field(qd.f64, shape=n, needs_grad=True), qd.field(qd.f64, shape=(), needs_grad=True)
    times = qd.field(qd.i32)
    qd.root.pointer(qd.i, 6, budget=6 * 16).dense(qd.i, 4).place(times)
    wanted = np.where(np.arange(n) // 4 % 2 == 0, rng.integers(0, 6, n), 0)
    for k in np.flatnonzero(wanted)[::-1]:
        times[int(k)] = int(wanted[k])

    @qd.kernel
    def power():
        for i in p:
            y = p[i]
            for _ in range(times[i]):
                y = qd.sin(y) + 0.1 * y
            loss[None] += y

    def run():
        loss[None] = 0.0
        with qd.ad.Tape(loss):
            power()
        return loss[None]

    p.from_numpy(rng.uniform(0.5, 1.5, n))
    run()
    np.testing.assert_allclose(p.grad.to_numpy(), differences(run, p), rtol=1e-7, atol=1e-8)
    assert power.grad.plan().bytes <= 8 * 6 * n
