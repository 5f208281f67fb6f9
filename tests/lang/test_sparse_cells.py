"""Loops that leave out whole cells: on random trees they visit what a model in numpy calls active, in values and in gradients."""

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.codegen.block_skipping.tiling import RUN, tiling
from qdrun.compiler.compile.pipeline import gradient as reverse
from qdrun.compiler.compile.pipeline import reduced

KINDS = ("dense", "pointer", "bitmasked")


@pytest.fixture
def rng():
    return np.random.default_rng()


class Tree:
    """A random tree over some axes: ``size`` has the elements of a cell of each level, ``kinds`` what makes its cells active."""

    def __init__(self, rng, ndim):
        self.kinds, splits = [], []
        for _ in range(rng.integers(1, 4)):
            over = sorted(rng.choice(ndim, rng.integers(1, ndim + 1), replace=False).tolist())
            self.kinds.append(str(rng.choice(KINDS)))
            splits.append({axis: int(rng.choice((1, 2, 3, 4, 8))) for axis in over})
        splits.append({axis: int(rng.integers(2, 6)) for axis in range(ndim)})
        self.kinds.append(str(rng.choice(KINDS)))
        if set(self.kinds) == {"dense"}:
            self.kinds[0] = "pointer"
        self.level = qd.root
        for kind, split in zip(self.kinds, splits):
            self.level = getattr(self.level, kind)(qd.axes(*split), tuple(split.values()))
        of = [[split.get(axis, 1) for axis in range(ndim)] for split in splits]
        self.shape = tuple(np.prod(of, axis=0).tolist())
        self.sizes = [np.prod([[1] * ndim, *of[k + 1 :]], axis=0) for k in range(len(of))]

    def active(self, marked):
        """Which elements are active where some are written to."""
        out = np.ones(self.shape, bool)
        for kind, size in zip(self.kinds, self.sizes):
            if kind != "dense":
                blocks = marked
                for axis, n in enumerate(size):
                    first = np.arange(0, self.shape[axis], n)
                    blocks = np.repeat(np.add.reduceat(blocks, first, axis), n, axis) > 0
                out &= blocks
        return out


@pytest.mark.parametrize("ndim", (1, 2, 3))
@pytest.mark.parametrize("threads", (1, 2))
def test_loops_over_random_trees_visit_the_active_elements(rng, ndim, threads):
    for _ in range(3):
        with qd.init(arch=qd.cpu, default_fp=qd.f64, cpu_max_num_threads=threads):
            tree = Tree(rng, ndim)
            x, seen, loss = qd.field(qd.f64), qd.field(qd.i32, tree.shape), qd.field(qd.f64, (), needs_grad=True)
            tree.level.place(x, x.grad)
            marks = qd.field(qd.i32, tree.shape)

            @qd.kernel
            def mark(x: qd.template(), marks: qd.template()):
                for I in qd.grouped(marks):
                    if marks[I]:
                        x[I] = 1.0 + I[0]

            @qd.kernel
            def visit(x: qd.template(), seen: qd.template(), loss: qd.template()):
                for I in qd.grouped(x):
                    seen[I] += 1
                    y = x[I]
                    for _ in range(I[0] % 3):
                        y = y * y * 0.01
                    loss[None] += y * (1.0 + I.sum())

            chosen = rng.random(tree.shape) < rng.choice((0.02, 0.2, 0.9))
            marks.from_numpy(chosen.astype(np.int32))
            mark(x, marks)
            with qd.ad.Tape(loss):
                visit(x, seen, loss)
            active = tree.active(chosen)
            assert (seen.to_numpy() == active).all(), (tree.kinds, tree.sizes)
            indices = np.indices(tree.shape)
            value, slope = np.where(chosen, 1.0 + indices[0], 0.0), np.where(active, 1.0 + indices.sum(0), 0.0)
            weight = slope.copy()
            for k in range(2):
                slope = np.where(indices[0] % 3 > k, slope * 0.02 * value, slope)
                value = np.where(indices[0] % 3 > k, value * value * 0.01, value)
            np.testing.assert_allclose(loss[None], (weight * value).sum(), rtol=1e-12)
            np.testing.assert_allclose(x.grad.to_numpy(), slope, rtol=1e-12)


@pytest.mark.parametrize("above", ("dense", "pointer", "pointer.dense", "none"))
@pytest.mark.parametrize("axis", (0, 1))
def test_lists_are_left_at_their_end(rng, above, axis):
    with qd.init(arch=qd.cpu, default_fp=qd.f64):
        n, most, level = 12, 40, qd.root
        own, other = (qd.i, qd.j) if axis == 0 else (qd.j, qd.i)
        for kind, count in {"dense": [("dense", n)], "pointer": [("pointer", n)], "none": []}.get(
            above, [("pointer", n // 4), ("dense", 4)]
        ):
            level = getattr(level, kind)(other, count)
        x = qd.field(qd.f64)
        lists = level.dynamic(qd.i if above == "none" else own, most)
        lists.place(x, x.grad)
        loss = qd.field(qd.f64, (), needs_grad=True)
        lengths = rng.integers(0, most + 1, () if above == "none" else n)

        @qd.kernel
        def visit():
            for I in qd.grouped(x):
                loss[None] += x[I] ** 2

        values = np.zeros(x.shape)
        for at in np.ndindex(x.shape):
            cell, position = ((), at[0]) if above == "none" else (at[1 - axis], at[axis])
            if position < lengths[cell]:
                values[at] = rng.normal()
                x[at] = values[at]
        with qd.ad.Tape(loss):
            visit()
        np.testing.assert_allclose(loss[None], (values**2).sum(), rtol=1e-12)
        np.testing.assert_allclose(x.grad.to_numpy(), 2 * values, rtol=1e-12)


def found(kernel, backwards=False):
    """What is known of the one parallel loop of a kernel, as the CPU compiles it."""
    compiled = kernel.variant((), {})[0].compiled_kernel
    (task,) = [task for task in reduced(reverse(compiled.ir).kernel if backwards else compiled.ir).tasks if task.axes]
    return tiling(task)


def test_which_loops_have_cells_to_leave_out():
    with qd.init(arch=qd.cpu, default_fp=qd.f64):
        x, y = qd.field(qd.f64), qd.field(qd.f64, 60, needs_grad=True)
        loss, mask = qd.field(qd.f64, (), needs_grad=True), qd.field(qd.i32, 60)
        qd.root.pointer(qd.i, 3).pointer(qd.i, 4).bitmasked(qd.i, 5).place(x, x.grad)

        @qd.kernel
        def sparse():
            for i in x:
                loss[None] += x[i] ** 2

        @qd.kernel
        def by_hand():
            for i in range(60):
                if mask[i // 6] != 0:
                    y[i] = qd.sin(y[i])

        @qd.kernel
        def changes_its_mask():
            for i in range(60):
                if mask[i // 6] != 0:
                    mask[i % 7] = 0

        @qd.kernel
        def has_another_arm():
            for i in range(60):
                if mask[i // 6] != 0:
                    y[i] = 1.0
                else:
                    y[i] = 2.0

        @qd.kernel
        def does_more():
            for i in range(60):
                if mask[i // 6] != 0:
                    y[i] = 1.0
                loss[None] += 1.0

        @qd.kernel
        def in_order():
            qd.loop_config(serialize=True)
            for i in x:
                loss[None] += x[i] ** 2

        for backwards in (False, True):
            tiles = found(sparse, backwards)
            assert tiles is not None and [level.size for level in tiles.levels] == [(20,), (5,)] and len(tiles.rest) == 1
        tiles = found(by_hand)
        assert tiles is not None and [level.size for level in tiles.levels] == [(6,)] and not tiles.rest
        assert all(found(kernel) is None for kernel in (changes_its_mask, has_another_arm, does_more, in_order))


def test_random_numbers_of_an_element_do_not_depend_on_the_order(rng):
    out = []
    for sparse in (False, True):
        with qd.init(arch=qd.cpu, default_fp=qd.f64, random_seed=7):
            x = qd.field(qd.f64)
            level = qd.root.pointer(qd.ij, 4).dense(qd.ij, 8) if sparse else qd.root.dense(qd.ij, 32)
            level.place(x)
            x[3, 4] = x[20, 9] = 1.0

            @qd.kernel
            def draw(x: qd.template()):
                for i, j in x:
                    x[i, j] = qd.random()

            draw(x)
            out.append(x.to_numpy())
    shown = out[1] != 0
    assert shown.sum() == 128 and (out[0] == out[1])[shown].all()


@pytest.mark.parametrize("tree", ("bitmasked", "pointer.bitmasked", "dense.bitmasked"))
@pytest.mark.parametrize("threads", (1, 2))
def test_runs_of_flags_that_are_not_set_are_passed_over(rng, tree, threads):
    """Also where a chunk of iterations begins or ends in the middle of a run."""
    rows, columns = 24, 3 * RUN + 77 if tree == "bitmasked" else 2 * (RUN + 33)
    with qd.init(arch=qd.cpu, default_fp=qd.f64, cpu_max_num_threads=threads):
        x, y, loss = qd.field(qd.f64), qd.field(qd.f64), qd.field(qd.f64, (), needs_grad=True)
        level = qd.root if tree == "bitmasked" else getattr(qd.root, tree.split(".")[0])(qd.ij, (4, 2))
        level = level.bitmasked(qd.ij, (rows, columns) if tree == "bitmasked" else (rows // 4, columns // 2))
        level.place(x, y, x.grad)
        seen, marks = qd.field(qd.i32, (rows, columns)), qd.field(qd.i32, (rows, columns))

        @qd.kernel
        def mark():
            for i, j in marks:
                if marks[i, j]:
                    x[i, j] = 1.0 + j

        @qd.kernel
        def visit():
            for i, j in x:
                seen[i, j] += 1
                y[i, j] = x[i, j] * 2.0
                loss[None] += x[i, j] ** 2

        if tree == "bitmasked":
            assert found(visit).flags is not None
        chosen = rng.random((rows, columns)) < rng.choice((0.001, 0.01, 0.5))
        chosen[3:9] = False
        marks.from_numpy(chosen.astype(np.int32))
        mark()
        with qd.ad.Tape(loss):
            visit()
        want = np.where(chosen, 1.0 + np.arange(columns), 0.0)
        assert (seen.to_numpy() == chosen).all() and (y.to_numpy() == 2 * want).all()
        np.testing.assert_allclose(loss[None], (want**2).sum(), rtol=1e-12)
        assert (x.grad.to_numpy() == 2 * want).all()
