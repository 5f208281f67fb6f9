"""``offset=``: fields whose indices begin elsewhere than at 0."""

from __future__ import annotations

import importlib
import itertools
import pickle

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.compile import keys
from qdrun.compiler.compile.cache import CACHE

KERNELS = importlib.import_module("qdrun.compiler.program.variant")
rng = np.random.default_rng(20)


@pytest.fixture(autouse=True, params=["cpu", "python"])
def program(request):
    with qd.init(arch=request.param, default_fp=qd.f64, offline_cache=False, cpu_max_num_threads=2) as program:
        yield program


def grid(shape, offset, **how):
    """A field of random numbers."""
    out = qd.field(qd.f64, shape=shape, offset=offset, **how)
    out.from_numpy(rng.uniform(0.5, 1.5, out.shape))
    return out


def differences(f, x, h=1e-6):
    """Central differences of f() with respect to each number of a field."""
    at, out = x.to_numpy(), np.zeros(x.to_numpy().shape)
    for k in np.ndindex(at.shape):
        values = []
        for sign in (1, -1):
            moved = at.copy()
            moved[k] += sign * h
            x.from_numpy(moved)
            values.append(f())
        out[k] = (values[0] - values[1]) / (2 * h)
    x.from_numpy(at)
    return out


# ---- values
def test_python_reads_and_writes_at_the_shifted_indices():
    x = qd.field(qd.f32, shape=(4, 3), offset=(-2, 5))
    assert x.shape == (4, 3) and x.offset == (-2, 5) and x.snode.shape == (4, 3)
    x.from_numpy(np.arange(12, dtype=np.float32).reshape(4, 3))
    assert x[-2, 5] == 0 and x[1, 7] == 11 and x[0, 6] == 7
    x[-1, 7] = 50
    assert x.to_numpy()[1, 2] == 50
    for index in ((2, 5), (-3, 5), (0, 4), (0, 8), (0, 0)):
        with pytest.raises(qd.QdrunIndexError, match="whose indices are"):
            x[index]
        with pytest.raises(qd.QdrunIndexError, match="whose indices are"):
            x[index] = 1
    assert list(qd.grouped(x)) == list(itertools.product(range(-2, 2), range(5, 8)))
    assert qd.field(qd.f32, shape=3).offset == (0,) and qd.field(qd.f32, shape=(), offset=()).offset == ()


def test_a_number_or_a_list_is_an_offset_too():
    for offset in (-4, (-4,), [-4], np.int64(-4)):
        x = qd.field(qd.f32, shape=8, offset=offset)
        x[-4] = 3
        assert x.offset == (-4,) and x.to_numpy()[0] == 3


def test_loops_run_over_the_range():
    x, y = grid((4, 3), (-2, 5)), qd.field(qd.i32, shape=(4, 3), offset=(-2, 5))
    v = qd.Vector.field(2, qd.i32, shape=5, offset=-7)
    seen = qd.field(qd.i32, shape=6)

    @qd.kernel
    def pairs():
        for i, j in x:
            y[i, j] = 100 * i + j

    @qd.kernel
    def groups():
        for I in qd.grouped(x):
            y[I] = -(100 * I[0] + I[1])

    @qd.kernel
    def inside(serial: qd.template()):
        for _ in range(1):
            for i in v:
                v[i] = [i, 2 * i]
            for I in qd.grouped(x):
                y[I] += 1
        if qd.static(serial):
            for i in qd.static(v):
                seen[0] += i
            for I in qd.static(qd.grouped(x)):
                seen[1] += I[0] * I[1]
        seen[2], seen[3], seen[4] = x.offset[0], x.shape[0], v.offset[0]

    wanted = np.array([[100 * i + j for j in range(5, 8)] for i in range(-2, 2)])
    pairs()
    assert (y.to_numpy() == wanted).all() and y[-2, 5] == -195
    groups()
    assert (y.to_numpy() == -wanted).all()
    inside(True)
    assert (y.to_numpy() == 1 - wanted).all() and v[-7].to_list() == [-7, -14] and v[-3].to_list() == [-3, -6]
    assert seen.to_numpy().tolist() == [sum(range(-7, -2)), sum(range(-2, 2)) * 18, -2, 4, -7, 0]


def test_many_elements_on_several_threads(program):
    n, low = (20_011, -9_999) if program.arch == qd.cpu else (211, -99)
    x, y = qd.field(qd.i32, shape=n, offset=low), qd.field(qd.i32, shape=n, offset=7)
    total = qd.field(qd.i64, shape=())

    @qd.kernel
    def run():
        for i in x:
            x[i] = 3 * i
        for i in y:
            y[i] = x[i - 7 + low] + 1
            total[None] += y[i]

    run()
    wanted = 3 * np.arange(low, low + n) + 1
    assert (y.to_numpy() == wanted).all() and total[None] == wanted.sum()


@pytest.mark.parametrize("layout", list(itertools.permutations(range(3))))
def test_layouts_keep_the_offset_of_their_axes(layout):
    low, shape = (-3, 4, 100), (2, 3, 4)
    x = qd.field(qd.i32, shape=shape, offset=low, layout=layout)
    v = qd.Vector.field(2, qd.i32, shape=shape, offset=low, layout=qd.Layout.SOA)
    m = qd.Matrix.field(2, 2, qd.i32, shape=shape, offset=low, order="".join("ijk"[a] for a in layout))

    @qd.kernel
    def write():
        for i, j, k in x:
            x[i, j, k] = 10000 * i + 1000 * j + k
            v[i, j, k] = [i, k]
            m[i, j, k][1, 0] += j

    write()
    i, j, k = (a + lo for a, lo in zip(np.indices(shape), low))
    assert (x.to_numpy() == 10000 * i + 1000 * j + k).all() and x[-2, 6, 103] == -20000 + 6000 + 103
    assert (v.to_numpy()[..., 0] == i).all() and v[-3, 4, 101].to_list() == [-3, 101]
    assert (m.to_numpy()[..., 1, 0] == j).all() and m[-2, 5, 100][1, 0] == 5 and m.offset == low
    assert v.get_scalar_field(1).offset == low and v.get_scalar_field(1)[-3, 4, 102] == 102


def test_structs_and_places():
    s = qd.types.struct(a=qd.f64, b=qd.types.vector(2, qd.f64))
    p, q, r = s.field(shape=4, offset=-2, needs_grad=True), s.field(shape=(4,), offset=(-2,), layout=qd.Layout.SOA), s.field()
    x, y, z = qd.field(qd.f64), qd.Vector.field(2, qd.f64), qd.field(qd.f64)
    level = qd.root.dense(qd.i, 2).dense(qd.i, 2)
    level.place(x, [y], offset=-2)
    level.place(z)
    qd.root.dense(qd.i, 4).place(r, offset=-2)
    assert p.offset == p.b.offset == q.a.offset == r.offset == x.offset == y.offset == p.grad.b.offset == (
        -2,
    ) and z.offset == (0,)

    @qd.kernel
    def write():
        for i in p:
            p[i].a, p[i].b, q[i].b, r[i].a = i, [i, 2 * i], [3 * i, i], p.offset[0]
            x[i] = z[i + 2] + i
            y[i] = [i, -i]

    z.fill(0.5)
    write()
    assert p[-2].b.to_list() == [-2, -4] and q[1].b.x == 3 and r[-1].a == -2 and p.a.to_numpy().tolist() == [-2, -1, 0, 1]
    assert x.to_numpy().tolist() == [-1.5, -0.5, 0.5, 1.5] and y[-2].to_list() == [-2, 2]
    with pytest.raises(qd.QdrunIndexError):
        p[2]
    odd = qd.types.struct(offset=qd.f64).field(shape=2, offset=5)
    odd[6].offset = 3
    assert odd.offset[6] == 3


def test_typed_makers_copies_and_tensors():
    vec = qd.types.vector(2, qd.f64)
    a, b, c = (
        vec.field(shape=3, offset=-1),
        qd.field(vec, shape=3, offset=4),
        qd.field(qd.types.struct(u=vec), shape=3, offset=2),
    )
    a[1] = [1, 2]
    b.copy_from(a)  # from the lowest index, as arrays are
    assert b[6].to_list() == [1, 2] and c.u.offset == (2,)
    t = qd.wrap(a)
    assert t.offset == (-1,) and t[1].to_list() == [1, 2]
    again = pickle.loads(pickle.dumps(t))
    assert again.offset == (-1,) and again[1].to_list() == [1, 2]
    assert qd.tensor(qd.f32, 3).offset == (0,)

    @qd.kernel
    def double(x: qd.Tensor):
        for i in x:
            x[i] *= 2 * i

    double(t)
    assert t[1].to_list() == [2, 4]


# ---- what is refused
def test_wrong_offsets_are_refused():
    s = qd.types.struct(a=qd.f32)
    for make in (
        lambda: qd.field(qd.f32, shape=(8, 3), offset=1),
        lambda: qd.field(qd.f32, shape=8, offset=(1, 2)),
        lambda: qd.field(qd.f32, shape=(), offset=1),
        lambda: qd.Vector.field(2, qd.f32, shape=(3,), offset=(1, 2)),
        lambda: s.field(shape=3, offset=(1, 2)),
        lambda: qd.root.dense(qd.ij, (3, 3)).place(qd.field(qd.f32), offset=1),
    ):
        with pytest.raises(qd.QdrunSyntaxError, match="they must match"):
            make()
    for make in (
        lambda: qd.field(qd.f32, offset=1),
        lambda: qd.Matrix.field(2, 2, qd.f32, offset=1),
        lambda: s.field(offset=1),
    ):
        with pytest.raises(qd.QdrunSyntaxError, match="an offset, but no shape"):
            make()
    with pytest.raises(qd.QdrunTypeError, match=r"offset=1\.5 is not an integer"):
        qd.field(qd.f32, shape=3, offset=1.5)
    with pytest.raises(qd.QdrunValueError, match="beyond 32 bits"):
        qd.field(qd.f32, shape=3, offset=2**31 - 3)
    for make in (qd.ndarray, qd.Vector.ndarray, qd.tensor):
        with pytest.raises(TypeError, match="offset"):
            make(*((2,) if make is qd.Vector.ndarray else ()), qd.f32, shape=3, offset=1)


def test_a_constant_index_outside_is_refused_while_compiling():
    x = qd.field(qd.f64, shape=4, offset=-2, name="x")

    @qd.kernel
    def good():
        x[-2] = 1
        x[1] = 2

    @qd.kernel
    def above():
        x[2] = 1

    @qd.kernel
    def below():
        x[-3] = 1

    good()
    assert x.to_numpy().tolist() == [1, 0, 0, 2]
    for kernel, index in ((above, 2), (below, -3)):
        with pytest.raises(
            qd.QdrunIndexError, match=f"index {index} is out of range for axis 0 of `x`, whose indices are -2 to 1"
        ):
            kernel()


def test_debug_checks_the_range(program):
    with qd.init(arch=program.arch, debug=True, default_fp=qd.f64, offline_cache=False):
        x = qd.field(qd.f64, shape=(4, 3), offset=(-2, 5), name="x")

        @qd.kernel
        def store(i: qd.i32, j: qd.i32):
            x[i, j] = 1

        for i, j in itertools.product((-2, 1), (5, 7)):
            store(i, j)
        assert x.to_numpy().sum() == 4
        for i, j, axis, seen in ((2, 5, 0, 2), (-3, 5, 0, -3), (0, 4, 1, 4), (0, 8, 1, 8)):
            begin, end = ((-2, 2), (5, 8))[axis]
            with pytest.raises(
                qd.QdrunAssertionError, match=f"axis {axis} of `x` has index {seen} but goes from {begin} to below {end}"
            ):
                store(i, j)


# ---- gradients
def test_gradients_and_duals_share_the_offset():
    x = qd.field(qd.f64, shape=4, offset=-2, needs_grad=True, needs_dual=True)
    y, z = qd.field(qd.f64), qd.field(qd.f64)
    level = qd.root.dense(qd.i, 4)
    level.place(y, offset=-2)
    level.lazy_grad()
    level.place(z, z.grad, offset=1)
    assert x.grad.offset == x.dual.offset == y.grad.offset == (-2,) and z.grad.offset == (1,)
    x.grad[-2], y.grad[-2], z.grad[4] = 1, 2, 3
    assert (x.grad.to_numpy()[0], y.grad.to_numpy()[0], z.grad.to_numpy()[3]) == (1, 2, 3)
    for place_first in (True, False):
        f = qd.field(qd.f64, name="f")
        if place_first:
            qd.root.dense(qd.i, 4).place(f, offset=-2)
        with pytest.raises(qd.QdrunRuntimeError, match=r"`f.grad` has the indices of its field"):
            qd.root.dense(qd.i, 4).place(f.grad, offset=-1)
    late = qd.field(qd.f64, name="late")
    qd.root.dense(qd.i, 4).place(late.grad)
    qd.root.dense(qd.i, 4).place(late, offset=9)
    assert late.grad.offset == (9,)


def stencil():
    """A loss over fields with different offsets, loops inside, and atomics."""
    x = grid((4, 3), (-2, 5), needs_grad=True, needs_dual=True, order="ji")
    w = qd.Vector.field(2, qd.f64, shape=3, offset=-1, needs_grad=True, needs_dual=True)
    w.from_numpy(rng.uniform(0.5, 1.5, (3, 2)))
    y = grid((4,), (10,), needs_grad=True, needs_dual=True)
    loss = qd.field(qd.f64, shape=(), needs_grad=True, needs_dual=True)

    @qd.kernel
    def clear():
        for i in y:
            y[i] = 0
        loss[None] = 0

    @qd.kernel
    def gather():
        for i, j in x:
            y[i + 12] += x[i, j] * w[j - 6].x * x[-1 - i, 12 - j]

    @qd.kernel
    def reduce():
        for i in y:
            v = y[i]
            for k in range(-1, 2):
                v = qd.sin(v) * w[k].y + v * i * 0.1
            loss[None] += v * v

    def run():
        clear()
        gather()
        reduce()
        return loss[None]

    return x, w, y, loss, run


def test_reverse_mode_agrees_with_differences():
    x, w, _, loss, run = stencil()
    wanted = [differences(run, f) for f in (x, w)]
    with qd.ad.Tape(loss):
        run()
    assert np.allclose(x.grad.to_numpy(), wanted[0], rtol=1e-6, atol=1e-8) and np.abs(wanted[0]).min() > 1e-4
    assert np.allclose(w.grad.to_numpy(), wanted[1], rtol=1e-6, atol=1e-8)


def test_forward_mode_agrees_with_differences():
    x, w, _, loss, run = stencil()
    wanted = [differences(run, f) for f in (x, w)]
    for f, d in zip((x, w), wanted):
        seed = rng.uniform(-1, 1, d.shape)
        with qd.ad.FwdMode(loss, f, seed=seed.reshape(-1)):
            run()
        assert np.isclose(loss.dual[None], (seed * d).sum(), rtol=1e-6)


def test_a_tape_over_time_steps():
    steps = 5
    x = qd.field(qd.f64, shape=(steps + 1, 4), offset=(-2, -1), needs_grad=True)
    loss = qd.field(qd.f64, shape=(), needs_grad=True)
    x.from_numpy(rng.uniform(0.5, 1.5, x.shape))

    @qd.kernel
    def step(t: qd.i32):
        for i in range(-1, 3):
            x[t + 1, i] = qd.sin(x[t, i]) + 0.3 * x[t, 1 - i] * x[t, i]

    @qd.kernel
    def total():
        for i in range(-1, 3):
            loss[None] += x[3, i] ** 2 * (i + 2)

    def run(first=None):
        if first is not None:
            x[-2, 0] = first
        loss[None] = 0
        for t in range(-2, 3):
            step(t)
        total()
        return loss[None]

    begin = x[-2, 0]
    slope = (run(begin + 1e-6) - run(begin - 1e-6)) / 2e-6
    x[-2, 0] = begin
    with qd.ad.Tape(loss, validation=True):
        run()
    assert np.isclose(x.grad[-2, 0], slope, rtol=1e-6) and abs(slope) > 1e-3
    with qd.ad.Tape(loss, grad_check=[x]):
        run()


@pytest.mark.parametrize("written, flows", [(-2, False), (0, True)])
def test_a_tape_knows_which_element_python_overwrites(written, flows):
    """The gradient stops at an element that Python overwrites: the same index means the same element on both sides."""
    x, y = grid(4, -2, needs_grad=True), grid(4, -2, needs_grad=True)
    loss = qd.field(qd.f64, shape=(), needs_grad=True)

    @qd.kernel
    def first():
        y[-2] = 3 * x[-2]

    @qd.kernel
    def second():
        loss[None] += y[-2] * 2

    with qd.ad.Tape(loss):
        first()
        y[written] = 1.0
        second()
    assert x.grad[-2] == (6 if flows else 0) and x.grad.to_numpy()[1:].tolist() == [0, 0, 0]


@pytest.mark.parametrize("written, refused", [(-2, True), (1, False)])
def test_version_counters_compare_elements(program, written, refused):
    with qd.init(arch=program.arch, debug=True, default_fp=qd.f64, offline_cache=False):
        x, y = grid(4, -2, needs_grad=True), grid(4, -2, needs_grad=True)

        @qd.kernel
        def square():
            y[0] = x[-2] ** 2

        square()
        x[written] = 5.0
        y.grad.fill(1.0)
        if refused:
            with pytest.raises(qd.DataAccessError, match="x"):
                square.grad()
        else:
            square.grad()
            assert x.grad[-2] == pytest.approx(2 * x[-2])


# ---- caches
def test_a_kernel_is_lowered_again_when_only_the_offset_changes(program, tmp_path, monkeypatch):
    if program.arch != qd.cpu:
        pytest.skip("the interpreter keeps no cache")
    monkeypatch.setenv("QDRUN_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("QDRUN_PRINT", raising=False)
    monkeypatch.setattr(keys, "compiler_digest", lambda: "these sources")
    counts = []
    for offset, fresh in itertools.product((None, -2, 3, -2), (True, False)):
        if fresh:
            CACHE.clear()
        lowered = CACHE.lowered
        _run_with(offset)
        counts.append(CACHE.lowered - lowered)
    assert counts == [1, 0, 1, 0, 1, 0, 0, 0]


def _run_with(offset):
    """The same kernel over a field of this offset, forward and backward."""
    with qd.init(arch=qd.cpu, default_fp=qd.f64):
        x = qd.field(qd.f64, shape=4, offset=offset, needs_grad=True)
        y = qd.field(qd.f64, shape=4, needs_grad=True)

        @qd.kernel
        def run():
            for i in x:
                y[i - x.offset[0]] = i * x[i]

        x.from_numpy(np.arange(1.0, 5.0))
        run()
        y.grad.fill(1.0)
        run.grad()
        index = np.arange(4) + (offset or 0)
        assert (y.to_numpy() == index * np.arange(1.0, 5.0)).all() and (x.grad.to_numpy() == index).all()
