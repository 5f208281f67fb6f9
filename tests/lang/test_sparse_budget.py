"""Pointer levels with a budget: their cells lie in blocks, and what kernels and Python see is what they see without one."""

import numpy as np
import pytest

import qdrun as qd

SIZE = 64  # bytes of a cell of 8 f64
KINDS = ("dense", "pointer", "bitmasked")


@pytest.fixture
def program():
    with qd.init(default_fp=qd.f64) as program:
        yield program


@pytest.fixture
def rng():
    return np.random.default_rng()


def line(cells, active, name="x", below="dense"):
    """A field of 8 numbers in each of so many cells, and its level, whose budget is enough for some active cells."""
    x = qd.field(qd.f64, name=name)
    level = qd.root.pointer(qd.i, cells, budget=SIZE * (active + 2))
    getattr(level, below)(qd.i, 8).place(x)
    return x, level


def in_use(level):
    return int(level.blocks.free.to_numpy()[0])


class Grid:
    """Two fields on a random tree whose top level has a budget or none, and kernels that use them in every way."""

    def __init__(self, kinds, splits, budget):
        level = qd.root.pointer(qd.ij, splits[0], **({"budget": budget} if budget else {}))
        self.top = level
        for kind, split in zip(kinds, splits[1:]):
            level = getattr(level, kind)(qd.ij, split)
        self.level, x, y = level, qd.field(qd.f64), qd.Vector.field(2, qd.f32)
        level.place(x, y)
        self.x, self.y = x, y
        self.shape = x.shape
        top = self.top
        self.total, self.seen = qd.field(qd.f64, ()), qd.field(qd.i32, self.shape)
        total, seen = self.total, self.seen

        @qd.kernel
        def write(points: qd.types.ndarray(qd.i32, 2), v: qd.f64):
            for k in range(points.shape[0]):
                i, j = points[k, 0], points[k, 1]
                if (i + j) % 3 != 0:
                    x[i, j] = v + i
                for c in range(2):
                    if (i * j + c) % 4 == 1:
                        continue
                    y[i, j][c] += qd.cast(v, qd.f32) * (c + 1)

        @qd.kernel
        def clear(i: qd.i32, j: qd.i32):
            qd.deactivate(top, [i, j])

        @qd.kernel
        def spread():
            for i, j in x:
                if x[i, j] != 0.0 and i + 3 < x.shape[0]:
                    y[i + 3, j][0] += 1.0

        @qd.kernel
        def measure():
            for i, j in x:
                seen[i, j] += 1
                total[None] += x[i, j] + qd.cast(y[i, j].sum(), qd.f64)

        self.write, self.clear, self.spread, self.measure = write, clear, spread, measure

    def result(self):
        self.seen.fill(0)
        self.total[None] = 0.0
        self.measure()
        return self.x.to_numpy(), self.y.to_numpy(), self.seen.to_numpy(), self.total[None]


def test_random_operations_agree_with_those_without_a_budget(rng):
    for _ in range(2):
        depth = int(rng.integers(1, 3))
        kinds = [str(rng.choice(KINDS)) for _ in range(depth)]
        splits = [tuple(int(n) for n in rng.choice((1, 2, 3, 4), 2)) for _ in range(depth)]
        splits = [(4, 3), *splits]
        steps = []
        shape = np.prod(splits, axis=0)
        for _ in range(6):
            match rng.integers(0, 5):
                case 0 | 1:
                    points = np.stack([rng.integers(0, n, 6) for n in shape], 1).astype(np.int32)
                    steps.append(("write", np.unique(points, axis=0), float(rng.normal())))
                case 2:
                    steps.append(("clear", int(rng.integers(0, 4)), int(rng.integers(0, 3))))
                case 3:
                    steps.append(("spread",))
                case 4:
                    steps.append(("python", tuple(int(rng.integers(0, n)) for n in shape), float(rng.normal())))
        found = []
        for budget in (None, 10**6):
            with qd.init(default_fp=qd.f64):
                grid = Grid(kinds, splits, budget)
                out = []
                for name, *args in steps:
                    if name == "python":
                        grid.x[args[0]] = args[1]
                        assert grid.x[args[0]] == args[1]
                        grid.y[args[0]] = [args[1], 1.0]
                    else:
                        getattr(grid, name)(*args)
                    out.append(grid.result())
                whole = rng.normal(size=grid.shape) * 0 + np.arange(grid.x.to_numpy().size).reshape(grid.shape)
                grid.x.from_numpy(whole)
                grid.y.fill(2.0)
                out.append(grid.result())
                qd.deactivate_all_snodes()
                out.append(grid.result())
                found.append(out)
                if budget:
                    assert in_use(grid.top) == 0
        for a, b in zip(*found):
            for x, y in zip(a, b):
                np.testing.assert_allclose(x, y, rtol=1e-12, err_msg=f"{kinds} {splits} {steps}")


def test_cells_are_given_blocks_and_give_them_back(program):
    x, level = line(cells=10, active=3)

    @qd.kernel
    def begin(a: qd.i32, b: qd.i32):
        for k in range(a, b):
            x[8 * k + k % 8] = k + 1.0

    @qd.kernel
    def end(k: qd.i32):
        qd.deactivate(level, k)

    @qd.kernel
    def move():
        for k in range(10):
            if qd.is_active(level, k):
                qd.deactivate(level, k)

    begin(0, 3)
    assert in_use(level) == 3 and x.to_numpy().sum() == 6
    end(1)
    end(7)
    assert in_use(level) == 2
    begin(9, 10)
    assert in_use(level) == 3 and x.to_numpy()[72:].tolist() == [0, 10, 0, 0, 0, 0, 0, 0]
    assert sorted(level.blocks.slots.to_numpy().tolist()) == [0] * 7 + [1, 2, 3]
    move()
    assert in_use(level) == 0 and x.to_numpy().sum() == 0
    begin(4, 7)
    assert x.to_numpy().sum() == 5 + 6 + 7 and x[33] == 0 and x[36] == 5
    assert x.to_numpy().nbytes == 640 and program.usage()["fields"] < 640


def test_the_memory_is_the_budget(program):
    x, v = qd.field(qd.f64), qd.Vector.field(3, qd.f32)
    level = qd.root.pointer(qd.ij, 100, budget=100_000)
    level.dense(qd.ij, 4).place(x, v, x.grad)
    program.materialize()
    count, size = level.blocks.count, level.blocks.block_bytes
    assert size == 16 * (24 + 8) and count == 100_000 // size - 2
    cells = 3 * 4 * 100 * 100 + 4 * (100 * 100 + 1)  # flags, a copy, blocks; free blocks
    gaps = 6 * 64
    assert 0 <= sum(program.usage()[k] for k in ("fields", "gradients")) - (count + 2) * size - cells < gaps


@pytest.mark.parametrize("where", ("kernel", "python"))
def test_a_budget_that_is_used_up_stops_with_an_error(program, where):
    x, level = line(cells=10, active=4)

    @qd.kernel
    def begin(a: qd.i32, b: qd.i32):
        for k in range(a, b):
            x[8 * k] = 1.0

    begin(0, 4)
    text = (
        r"the budget of `x` is used up: its 384 bytes hold 4 active cells of 64 bytes, [13] too few; do: give"
        r" pointer\(.., budget=\) more bytes, or deactivate cells"
    )
    with pytest.raises(qd.QdrunError, match=text):
        if where == "python":
            x[50] = 1.0
        else:
            begin(4, 7)
            qd.sync()
    assert in_use(level) == 4 and x.to_numpy().sum() == 4 and level.flags.to_numpy().sum() == 4
    qd.deactivate_all_snodes()
    begin(6, 10)
    assert x.to_numpy().sum() == 4 and in_use(level) == 4


def test_cells_that_random_numbers_choose(program):
    """The loop before the loop draws the same numbers."""
    x, level = line(cells=50, active=50)
    chosen = qd.field(qd.i32, 40)

    @qd.kernel
    def scatter():
        for k in chosen:
            first = qd.random()
            at = qd.cast(qd.random() * 400.0, qd.i32)
            if first < 0.5:
                at = 399 - at
            x[at] += 1.0
            chosen[k] = at

    scatter()
    want = np.zeros(400)
    np.add.at(want, chosen.to_numpy(), 1)
    assert (x.to_numpy() == want).all() and in_use(level) == len(set((chosen.to_numpy() // 8).tolist()))


def test_a_tree_of_its_own_with_a_budget(program):
    builder, x = qd.FieldsBuilder(), qd.field(qd.f64)
    level = builder.pointer(qd.i, 20, budget=64 * 12)
    level.dense(qd.i, 8).place(x)
    tree = builder.finalize()

    @qd.kernel
    def write(x: qd.template()):
        for k in range(10):
            x[16 * k] = k

    write(x)
    assert in_use(level) == 10 and x.to_numpy().sum() == 45
    tree.destroy()


def test_what_a_level_with_a_budget_refuses(program, rng):
    with pytest.raises(qd.QdrunRuntimeError, match=r"a level above has a budget already(.|\n)*leave out budget= here"):
        qd.root.pointer(qd.i, 4, budget=1000).pointer(qd.i, 4, budget=100)
    x, level = line(cells=10, active=8)
    v = qd.Vector.field(2, qd.f64, name="v")
    qd.root.pointer(qd.i, 4, budget=1000).place(v)
    dense = qd.field(qd.f64, 80)

    @qd.kernel
    def chase():
        for k in range(3):
            x[8 * k] = 1.0
            if x[8 * k + 8] > 0.0:
                x[qd.cast(x[0], qd.i32)] = 2.0

    with pytest.raises(
        qd.QdrunSyntaxError, match=r"which cells of `x` become active depends on what the same loop writes(.|\n)*a loop before"
    ):
        chase()

    @qd.kernel
    def asks():
        for k in range(3):
            if not qd.is_active(level, k):
                x[8 * k] = 1.0

    with pytest.raises(qd.QdrunSyntaxError, match=r"which cells of `x` become active(.|\n)*qd.activate\(level, index\)"):
        asks()
    v[1] = [1.0, 2.0]
    with pytest.raises(
        qd.QdrunTypeError, match=r"a component of an element of `v` is written in Python(.|\n)*write the element"
    ):
        v[1][0] = 3.0
    with pytest.raises(qd.QdrunTypeError, match=r"copy_from\(\): `x` is in a level with a budget"):
        dense.copy_from(x)
    small = qd.field(qd.f64, name="small")
    qd.root.pointer(qd.i, 4, budget=100).dense(qd.i, 8).place(small)
    with pytest.raises(
        qd.QdrunRuntimeError,
        match=r"`small`, 100 bytes, is not enough for one active cell: each takes 64(.|\n)*least 192 bytes",
    ):
        small[0] = 1.0
    with qd.init(batch=3), pytest.raises(qd.QdrunRuntimeError, match=r"budget= is not available in a program with batch="):
        qd.root.pointer(qd.i, 4, budget=1000)
