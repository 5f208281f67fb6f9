"""Sparse levels: pointer, bitmasked and dynamic, beside a model in numpy."""

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.program.memory.first_values import FirstValues

N = 24
TREES = {  # what places a field of N elements, and the elements of one cell of each sparse level, outermost first
    "bitmasked": (lambda: qd.root.bitmasked(qd.i, N), (1,)),
    "pointer": (lambda: qd.root.pointer(qd.i, N), (1,)),
    "pointer.dense": (lambda: qd.root.pointer(qd.i, 6).dense(qd.i, 4), (4,)),
    "pointer.pointer.dense": (lambda: qd.root.pointer(qd.i, 2).pointer(qd.i, 4).dense(qd.i, 3), (12, 3)),
    "pointer.bitmasked": (lambda: qd.root.pointer(qd.i, 8).bitmasked(qd.i, 3), (3, 1)),
    "dense.bitmasked": (lambda: qd.root.dense(qd.i, 4).bitmasked(qd.i, 6), (1,)),
}


@pytest.fixture
def program():
    with qd.init(default_fp=qd.f64, debug=True) as program:
        yield program


@pytest.fixture
def rng():
    return np.random.default_rng()


class Line:
    """A field on a line with a tree above it, and kernels that use it in every way."""

    def __init__(self, tree):
        make, self.sizes = TREES[tree]
        self.x, self.y = qd.field(qd.f64), qd.Vector.field(2, qd.f64)
        self.level = make()
        self.level.place(self.x, self.y)
        levels = [self.level.parent(k) for k in range(4)]
        self.levels = [each for each in reversed([x for x in levels if x is not None]) if each.kind != "dense"]
        self.seen, self.active = qd.field(qd.i32, N), qd.field(qd.i32, N)
        x, y, seen, active, level = self.x, self.y, self.seen, self.active, self.level

        @qd.kernel
        def store(i: qd.i32, v: qd.f64):
            x[i] = v

        @qd.kernel
        def add(i: qd.i32, v: qd.f64):
            for _ in range(3):
                y[i][1] += v

        @qd.kernel
        def activate(at: qd.template(), i: qd.i32):
            qd.activate(at, i)

        @qd.kernel
        def deactivate(at: qd.template(), i: qd.i32):
            qd.deactivate(at, [i])

        @qd.kernel
        def visit():
            for i in seen:
                seen[i], active[i] = 0, qd.is_active(level, i)
            for i in x:
                seen[i] += 1
            for i in qd.grouped(y):
                seen[i] += 1
            for _ in range(1):
                for i in y:
                    seen[i] += 1

        @qd.kernel
        def spread():
            for i in x:
                if i + 5 < N:
                    y[i + 5][0] += 1

        self.store, self.add, self.activate, self.deactivate, self.visit, self.spread = (
            store,
            add,
            activate,
            deactivate,
            visit,
            spread,
        )


class Model:
    """The same in numpy."""

    def __init__(self, sizes):
        self.sizes, self.flags = sizes, [np.zeros(N // size, bool) for size in sizes]
        self.x, self.y = np.zeros(N), np.zeros((N, 2))

    def touch(self, i, last=None):
        for size, flags in list(zip(self.sizes, self.flags))[:last]:
            flags[i // size] = True

    def deactivate(self, k, cell):
        inside = slice(cell * self.sizes[k], (cell + 1) * self.sizes[k])
        self.x[inside], self.y[inside] = 0, 0
        for size, flags in list(zip(self.sizes, self.flags))[k:]:
            flags[inside.start // size : inside.stop // size] = False

    @property
    def active(self):
        return np.repeat(self.flags[-1], self.sizes[-1])


def agree(line, model):
    line.visit()
    assert (line.x.to_numpy() == model.x).all() and (line.y.to_numpy() == model.y).all()
    assert (line.active.to_numpy() == model.active).all()
    assert (line.seen.to_numpy() == 3 * model.active).all()


@pytest.mark.parametrize("tree", TREES)
def test_random_operations_agree_with_the_model(program, rng, tree):
    operate(rng, tree, 40)


def test_the_interpreter_agrees_with_the_model(rng):
    with qd.init(arch=qd.python, default_fp=qd.f64):
        operate(rng, "pointer.bitmasked", 12)


def operate(rng, tree, count):
    """Random operations, each compared with the model."""
    line, model = Line(tree), Model(TREES[tree][1])
    assert line.x.shape == (N,) and line.level.shape == (N,)
    for _ in range(count):
        i, v = int(rng.integers(N)), float(rng.integers(1, 9))
        k = int(rng.integers(len(line.levels)))
        cell = i // model.sizes[k]
        match rng.choice(["store", "add", "activate", "deactivate", "python", "spread", "none"]):
            case "store":
                line.store(i, v)
                model.touch(i)
                model.x[i] = v
            case "add":
                line.add(i, v)
                model.touch(i)
                model.y[i, 1] += 3 * v
            case "activate":
                line.activate(line.levels[k], cell)
                model.touch(cell * model.sizes[k], k + 1)
            case "deactivate":
                line.deactivate(line.levels[k], cell)
                model.deactivate(k, cell)
            case "python":
                line.y[i][0] = v
                model.touch(i)
                model.y[i, 0] = v
            case "spread":
                line.spread()
                for j in np.flatnonzero(model.active[: N - 5]) + 5:
                    model.touch(j)
                    model.y[j, 0] += 1
        agree(line, model)
    line.levels[0].deactivate_all()
    agree(line, Model(model.sizes))


def test_whole_arrays_go_to_active_cells(program, rng):
    line = Line("pointer.dense")
    line.store(9, 1.0)
    shows = (np.arange(N) // 4 == 2) * 1.0
    line.x.fill(2.5)
    assert (line.x.to_numpy() == 2.5 * shows).all()
    new = rng.uniform(size=N)
    line.x.from_numpy(new)
    assert (line.x.to_numpy() == new * shows).all()
    new = rng.uniform(size=(N, 2))
    line.y.from_numpy(new)
    assert (line.y.to_numpy() == new * shows[:, None]).all()
    line.y.fill([3, 4])
    assert (line.y.to_numpy() == [[3, 4]] * shows[:, None]).all()
    other = qd.Vector.field(2, qd.f64, shape=N)
    other.from_numpy(new)
    line.y.copy_from(other)
    assert (line.y.to_numpy() == new * shows[:, None]).all()
    line.x.fill(0)
    line.visit()
    assert line.x.to_numpy().sum() == 0 and (line.active.to_numpy() == shows).all()
    qd.deactivate_all_snodes()
    line.visit()
    assert line.active.to_numpy().sum() == 0 and line.y.to_numpy().sum() == 0
    for show in (lambda: line.x.view, lambda: line.x.to_numpy(copy=False), line.x.to_dlpack):
        with pytest.raises(
            qd.QdrunValueError, match=r"`x`: it is a sparse field, and a write .* would activate no cell\n  do: x.to_numpy"
        ):
            show()


def test_levels_with_axes_of_their_own(program, rng):
    """The axes of a block, of its cells, and of a field need not be the same; indices of a level count its cells."""
    x = qd.field(qd.i32)
    block = qd.root.pointer(qd.axes(1, 0), (3, 2))
    block.dense(qd.ik, (2, 5)).place(x)
    assert x.shape == (4, 3, 5) and block.shape == (2, 3)

    @qd.kernel
    def write(i: qd.i32, j: qd.i32, k: qd.i32):
        x[i, j, k] = 7

    @qd.kernel
    def visit() -> qd.i32:
        total = 0
        for i, j in block:
            total += 100 * (10 * i + j)
            total += qd.is_active(block, [i, j])
        return total

    @qd.kernel
    def visit_x():
        for i, j, k in x:
            x[i, j, k] += 1

    write(3, 2, 4)
    assert visit() == 1201
    visit_x()
    want = np.zeros((4, 3, 5))
    want[2:, 2], want[3, 2, 4] = 1, 8
    assert (x.to_numpy() == want).all()


def test_an_iteration_may_end_the_cell_that_it_is_at(program, rng):
    x, y = qd.field(qd.f64), qd.field(qd.f64)
    qd.root.bitmasked(qd.i, 16).place(x, y)

    @qd.kernel
    def step():
        for i in x:
            x[i] -= 1.0
            if x[i] < 0.5:
                qd.deactivate(x.snode.parent(), i)
            elif x[i] > 5.5:
                qd.deactivate(x.parent(), i)
                y[i] = 3.0

    start = rng.integers(0, 9, 16)
    for i in np.flatnonzero(start):
        x[i] = start[i]
    step()
    assert (x.to_numpy() == np.where((start > 1) & (start < 7), start - 1, 0)).all()
    assert (y.to_numpy() == np.where(start > 6, 3, 0)).all()

    @qd.kernel
    def again():
        for i in x:
            for _ in range(3):
                x[i] += 1.0
                qd.deactivate(x.parent(), i)

    with pytest.raises(qd.QdrunSyntaxError, match=r"(?s)deactivate\(\) stands in an inner loop.*\.deactivate\(.*behind"):
        again()


def test_lists_grow_to_their_capacity(program, rng):
    x, other, length = qd.field(qd.i32), qd.Vector.field(2, qd.f64), qd.field(qd.i32, 6)
    lists = qd.root.dense(qd.i, 6).dynamic(qd.j, 10, chunk_size=4)
    lists.place(x, other)
    wanted = rng.integers(0, 11, 6)
    counts = qd.field(qd.i32, 6)
    counts.from_numpy(wanted)

    @qd.kernel
    def grow():
        for i in range(6):
            for j in range(counts[i]):
                k = qd.append(lists, i, (10 * i + j, qd.Vector([1.0 * j, 2.0])))
                assert k == j
        for i in length:
            length[i] = qd.length(x.parent(), [i])

    @qd.kernel
    def twice():
        for i, j in x:
            x[i, j] *= 2
            other[i, j][1] += 1

    @qd.kernel
    def clear(i: qd.i32):
        qd.deactivate(lists, i)

    grow()
    assert (length.to_numpy() == wanted).all()
    twice()
    rows = np.arange(10)
    live = rows[None] < wanted[:, None]
    assert (x.to_numpy() == live * 2 * (10 * np.arange(6)[:, None] + rows)).all()
    assert (other.to_numpy() == live[..., None] * np.stack(np.broadcast_arrays(rows, 3.0), -1)).all()
    clear(2)
    x[2, 4] = 5  # a store makes the list as long as it must be
    counts.fill(0)
    grow()
    assert length[2] == 5 and x.to_numpy()[2].sum() == 5
    lists.deactivate_all()
    grow()
    assert length.to_numpy().sum() == 0 and x.to_numpy().sum() == 0


def test_lists_have_methods(program):
    x, whole, s = qd.field(qd.i32), qd.Vector.field(2, qd.f64), qd.types.struct(a=qd.i32, b=qd.f64).field()
    qd.root.dense(qd.ij, (2, 3)).dynamic(qd.k, 5).place(x)
    qd.root.dynamic(qd.i, 6).place(whole)
    qd.root.pointer(qd.i, 4).dynamic(qd.j, 6).place(s)
    t = qd.types.struct(a=qd.i32, b=qd.f64).field()
    qd.root.dynamic(qd.i, 6).place(t)

    @qd.kernel
    def grow() -> qd.i32:
        for i, j in qd.ndrange(2, 3):
            for k in range(i + j):
                x[i, j].append(k)
        for i in range(4):
            whole.append([1.0 * i, 2.0])
        qd.append(s.parent(), 3, qd.Struct(a=7, b=0.5))
        s[0].append(qd.Struct(a=1, b=1.0))
        t.append(qd.Struct(a=9, b=0.5))
        t.deactivate()
        for i in range(3):
            t.append(qd.Struct(a=i, b=0.5))
        s[0].deactivate()
        if x[1, 2].length() == 3:
            x[1, 2].deactivate()
        return 1000 * t.length() + 100 * x[1, 1].length() + 10 * x[1, 2].length() + whole.length()

    assert grow() == 3204 and sorted(t.a.to_numpy().tolist()) == [0, 0, 0, 0, 1, 2]
    assert (np.sort(whole.to_numpy()[:4, 0]) == range(4)).all() and x.to_numpy().sum() == 0 + 0 + 1 + 0 + 1
    assert s.a.to_numpy()[3].tolist() == [7, 0, 0, 0, 0, 0] and s.b.to_numpy().sum() == 0.5


def test_a_list_that_is_full_stops_the_launch(program):
    x, y = qd.field(qd.i32, name="x"), qd.field(qd.i32, name="y")
    lists = qd.root.pointer(qd.i, 3).dynamic(qd.j, 4)
    lists.place(x)
    whole = qd.root.dynamic(qd.i, 8)
    whole.place(y)

    @qd.kernel
    def grow(i: qd.i32, n: qd.i32):
        for k in range(n):
            qd.append(lists, i, k)

    @qd.kernel
    def grow_whole(n: qd.i32) -> qd.i32:
        for k in range(n):
            qd.append(whole, [], k)
        return qd.length(whole, [])

    grow(1, 4)
    assert (np.sort(x.to_numpy()[1]) == range(4)).all()
    assert grow_whole(8) == 8 and (np.sort(y.to_numpy()) == range(8)).all()
    with pytest.raises(
        qd.QdrunAssertionError, match=r"append: the list \[1\] of `x` is full, its capacity is 4(.|\n)*larger dimension"
    ):
        grow(1, 1)
        qd.sync()
    with pytest.raises(qd.QdrunAssertionError, match=r"append: the list `y` is full, its capacity is 8"):
        grow_whole(1)


def test_fields_of_structs_and_offsets(program):
    s = qd.types.struct(pos=qd.types.vector(2, qd.f64), kind=qd.i32).field()
    qd.root.pointer(qd.i, 4).dense(qd.i, 2).place(s)
    x = qd.field(qd.i32)
    qd.root.bitmasked(qd.ij, (4, 3)).place(x, offset=(-2, 5))

    @qd.kernel
    def write():
        s[5].kind = 3
        x[-1, 6] = 4

    @qd.kernel
    def visit():
        for i in s:
            s[i].pos += 1.0
        for i, j in x:
            x[i, j] += 10 * i + j

    write()
    visit()
    assert s.kind.to_numpy().tolist() == [0, 0, 0, 0, 0, 3, 0, 0]
    assert s.pos.to_numpy()[:, 0].tolist() == [0, 0, 0, 0, 1, 1, 0, 0]
    assert x.to_numpy().sum() == x[-1, 6] == 0
    x[1, 7] = 1
    visit()
    assert x[1, 7] == 18 and x[-1, 6] == -4


def test_trials_of_a_batch_have_their_own_activity(rng):
    with qd.init(arch=qd.cpu, default_fp=qd.f64, batch=5) as program:
        x, count, start = qd.field(qd.f64), qd.field(qd.i32, ()), qd.field(qd.i32, ())
        lists, length = qd.field(qd.i32), qd.field(qd.i32, ())
        qd.root.pointer(qd.i, 4).bitmasked(qd.i, 4).place(x)
        qd.root.dynamic(qd.i, 14).place(lists)

        @qd.kernel
        def run():
            for i in range(16):
                if i % start[None] == 0:
                    x[i] = 1.0
            for _ in x:
                count[None] += 1
            for i in range(start[None]):
                qd.append(lists.parent(), None, i)
            length[None] = qd.length(lists.parent(), None)

        starts = np.array([1, 2, 3, 5, 7])
        start.from_numpy(starts)
        run()
        assert (count.to_numpy() == [len(range(0, 16, s)) for s in starts]).all()
        assert (length.to_numpy() == starts).all()
        x.fill(2.0)
        assert (x.to_numpy().sum(1) == 2 * count.to_numpy()).all()
        with program.trial(4):
            x[3] = 9.0
        count.fill(0)
        run()
        assert count.to_numpy()[4] == len(range(0, 16, 7)) + 1


def test_the_memory_is_known_before_anything_runs(program):
    first = qd.field(qd.f64, shape=16)
    first.fill(1)
    before = program.usage()["fields"]
    x = qd.field(qd.f64)
    block = qd.root.pointer(qd.ij, (4, 8))
    block.dense(qd.ij, (16, 16)).place(x)
    y = qd.field(qd.f32)
    qd.root.dense(qd.i, 64).dynamic(qd.j, 100).place(y)
    x[5, 5] = 1.0
    cells = 4 * 8
    assert program.usage()["fields"] - before == 8 * cells * 256 + 2 * 4 * cells + 4 * 6400 + 2 * 4 * 64


def test_what_levels_refuse(program):
    x, y = qd.field(qd.f64), qd.field(qd.f64, shape=4)
    lists = qd.root.dense(qd.i, 4).dynamic(qd.j, 2)
    lists.place(x)
    with pytest.raises(qd.QdrunRuntimeError, match=r"dense\(..\) under a dynamic level is not available"):
        lists.dense(qd.k, 3)
    for at, axis in ((qd.root, qd.ij), (qd.root.dense(qd.i, 4), qd.i)):
        with pytest.raises(qd.QdrunRuntimeError, match=r"dynamic\(qd.ij?, ..\) takes one axis that no level above has"):
            at.dynamic(axis, 4)
    with pytest.raises(qd.QdrunRuntimeError, match="the extents of a pointer level are positive integers"):
        qd.root.pointer(qd.i, 0)
    far = qd.field(qd.f64, name="far")
    qd.root.bitmasked(qd.i, 4).place(far)
    for at in (qd.root.dense(qd.i, 4), qd.root.bitmasked(qd.i, 4)):
        with pytest.raises(
            qd.QdrunRuntimeError, match=r"`far.grad` has the active cells of `far`; do: place it in the same level"
        ):
            at.place(far.grad)
    v = qd.Vector.field(2, qd.f64, name="v")
    qd.root.bitmasked(qd.i, 4).place(v.get_scalar_field(0))
    for at in (qd.root.dense(qd.i, 4), qd.root.bitmasked(qd.i, 4)):
        with pytest.raises(qd.QdrunRuntimeError, match="the components of `v` have their active cells in common"):
            at.place(v.get_scalar_field(1))
    with pytest.raises(qd.QdrunRuntimeError, match=r"activate\(\) was called outside of a kernel"):
        qd.activate(lists, 0)
    masked = qd.root.bitmasked(qd.i, 4)
    masked.place(qd.field(qd.i32, name="z"))

    def run(call):
        return qd.kernel(call)()

    def of_dense():
        qd.activate(y, 0)

    def of_a_number():
        qd.is_active(3, 0)

    def of_another_kind():
        qd.length(masked, 0)

    def another_index():
        qd.activate(masked, [0, 1])

    def beyond():
        qd.activate(masked, 4)

    def too_few():
        qd.append(lists, 0, (1.0, 2.0))

    def far_up():
        qd.activate(x.parent(4), 0)

    def unrolled():
        for _ in qd.static(qd.grouped(x)):
            y[0] += 1

    def part():
        for i in far[1:3]:
            far[i] = 1.0

    for call, error, text in (
        (part, qd.QdrunTypeError, r"a view has one axis, and `far` is a sparse field"),
        (of_dense, qd.QdrunTypeError, r"activate\(\) takes a level with sparse cells; `y` is dense"),
        (of_a_number, qd.QdrunTypeError, r"is_active\(\) takes a level, not a"),
        (of_another_kind, qd.QdrunTypeError, r"length\(\) takes a dynamic level, not a bitmasked one"),
        (another_index, qd.QdrunIndexError, r"activate\(\) takes 1 index here, not 2"),
        (beyond, qd.QdrunIndexError, r"index 4 is out of range for axis 0 of the level of `z`, of 4 cells"),
        (too_few, qd.QdrunTypeError, r"append\(\) got .* values? for the 1 field"),
        (far_up, qd.QdrunTypeError, r"parent\(4\) leads beyond the root"),
        (unrolled, qd.QdrunTypeError, r"which cells of `x` are active is not known at compile time"),
    ):
        with pytest.raises(error, match=text):
            run(call)


def test_a_run_begins_again_with_the_cells_that_were_active_first(program):
    line = Line("pointer.dense")
    block, x = line.levels[0], line.x
    x[5], x[6], x[21] = 2.0, 3.0, 4.0

    @qd.kernel
    def run():
        qd.deactivate(block, 1)
        x[13] = 1.0
        x[21] = 9.0

    first, values = FirstValues(program, [(run, ())]), x.to_numpy()
    line.visit()
    active = line.active.to_numpy()
    for _ in range(2):
        run()
        line.visit()
        assert line.active.to_numpy().sum() == 8 and x.to_numpy()[[5, 13, 21]].tolist() == [0, 1, 9]
        first.put_back()
        line.visit()
        assert (x.to_numpy() == values).all() and (line.active.to_numpy() == active).all()


def test_what_takes_whole_arrays_refuses_sparse_fields(program):
    x = qd.field(qd.f64, name="x")
    qd.root.bitmasked(qd.i, 8).place(x, x.grad)
    y, loss = qd.ndarray(qd.f64, 8), qd.field(qd.f64, shape=(), needs_grad=True)

    def steps():
        with qd.ad.Tape(loss):
            qd.ad.checkpointed_steps(lambda t, k: None, 4, state=[x])

    for call in (
        lambda: qd.algorithms.exclusive_scan(x, y),
        lambda: qd.algorithms.parallel_sort(x),
        lambda: qd.linalg.MatrixFreeCG(qd.linalg.LinearOperator(lambda a, b: None), y, x),
        steps,
    ):
        with pytest.raises(qd.QdrunTypeError, match="`x` is a sparse field\n  do: copy it to a dense field"):
            call()


def test_an_index_of_a_level_is_checked_in_debug_mode(program):
    block = qd.root.pointer(qd.i, 4)
    block.dense(qd.i, 4).place(qd.field(qd.i32, name="x"))

    @qd.kernel
    def activate(i: qd.i32):
        qd.activate(block, i)

    with pytest.raises(qd.QdrunAssertionError, match="axis 0 of the level of `x` has index 4 but extent 4"):
        activate(4)
        qd.sync()
