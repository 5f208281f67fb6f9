"""Version counters: with debug=True a gradient whose inputs changed since its launch is refused, with both named; nothing else is."""

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.runtime.native.launch_ir import F_SLOW

N = 4


@pytest.fixture(autouse=True)
def program():
    with qd.init(default_fp=qd.f64, debug=True, offline_cache=False) as program:
        yield program


@qd.data_oriented
class Square:
    def __init__(self):
        self.x = qd.field(qd.f64, shape=N, needs_grad=True, name="x")
        self.y = qd.field(qd.f64, shape=N, needs_grad=True, name="y")
        self.x.from_numpy(np.random.default_rng().uniform(0.5, 1.5, N))
        self.y.grad.fill(1)

    @qd.kernel
    def square(self, w: qd.f64):
        for i in self.x:
            self.y[i] = w * self.x[i] * self.x[i]

    @qd.kernel
    def double(self):
        for i in self.x:
            self.y[i] = 2.0 * self.x[i]

    @qd.kernel
    def move(self):
        for i in self.x:
            self.x[i] = 0.5


def test_nothing_changed():
    s = Square()
    s.square(3.0)
    s.square.grad(3.0)
    np.testing.assert_allclose(s.x.grad.to_numpy(), 6 * s.x.to_numpy())


def test_python_wrote():
    s = Square()
    for write in (
        lambda: s.x.__setitem__(0, 7.0),
        lambda: s.x.fill(1.0),
        lambda: s.x.from_numpy(np.ones(N)),
        lambda: s.x.copy_from(s.y),
    ):
        s.square(3.0)
        write()
        with pytest.raises(qd.DataAccessError) as caught:
            s.square.grad(3.0)
        text = str(caught.value)
        assert "the gradient of `square` needs the value of `x` read here, but Python at " in text
        assert "test_versions.py:" in text and "changed it after the launch `square(w=3.0)` at " in text
        assert "do: launch `square` again before its gradient" in text and caught.value.loc.line > 0
        s.square(3.0)
        s.square.grad(3.0)


def test_a_component_of_an_element_is_a_write():
    v = qd.Vector.field(2, qd.f64, shape=N, needs_grad=True)
    m = qd.Matrix.field(2, 2, qd.f64, shape=(), needs_grad=True)
    y = qd.field(qd.f64, shape=N, needs_grad=True)

    @qd.kernel
    def dot():
        for i in v:
            y[i] = v[i].dot(m[None] @ v[i])

    def augmented():
        element = v[1]
        element += 1.0

    for write in (
        lambda: v[0].__setitem__(1, 2.0),
        lambda: setattr(v[0], "y", 2.0),
        lambda: v[0].fill(2.0),
        augmented,
        lambda: m[None].__setitem__((0, 1), 2.0),
        lambda: m[None][1].__setitem__(0, 2.0),
    ):
        dot()
        v[0].to_numpy(), v[0] * 2, v[0][0], v[0].x  # reading is no write
        dot.grad()
        write()
        with pytest.raises(qd.DataAccessError, match=r"but Python at .*test_versions.py"):
            dot.grad()


def test_another_kernel_wrote():
    s = Square()
    s.square(1.0)
    s.move()
    with pytest.raises(
        qd.DataAccessError, match=r"but `move\(\)` at .*test_versions.py:\d+ changed it after the launch `square"
    ):
        s.square.grad(1.0)


def test_what_is_not_read_again_may_change():
    s = Square()
    s.double()
    s.move()
    s.double.grad()
    assert s.x.grad.to_numpy().tolist() == [2] * N
    s.square(1.0)
    s.y.fill(0)
    s.y.grad.fill(1)
    s.square.grad(1.0)


def test_a_gradient_without_a_launch_is_taken_at_what_the_fields_hold():
    s = Square()
    s.x.fill(3.0)
    s.square.grad(1.0)
    s.y.grad.fill(1)
    s.x.fill(4.0)
    s.square.grad(1.0)
    assert s.x.grad.to_numpy().tolist() == [6 + 8] * N


def test_launches_are_told_apart_by_their_arguments():
    s = Square()
    s.square(1.0)
    s.x.fill(2.0)
    s.square(2.0)
    s.square.grad(2.0)
    with pytest.raises(qd.DataAccessError, match=r"the launch `square\(w=1.0\)`"):
        s.square.grad(1.0)


def test_time_steps_by_hand_are_right():
    x = qd.field(qd.f64, shape=(7, N), needs_grad=True)

    @qd.kernel
    def step(t: qd.i32):
        for i in range(N):
            x[t + 1, i] = qd.sin(x[t, i])

    start = np.random.default_rng().uniform(0.5, 1.5, N)
    for i in range(N):
        x[0, i] = start[i]
    for t in range(6):
        step(t)
    for i in range(N):
        x.grad[6, i] = 1
    for t in reversed(range(6)):
        step.grad(t)
    v, g = start, np.ones(N)
    for _ in range(6):
        v, g = np.sin(v), g * np.cos(v)
    np.testing.assert_allclose(x.grad.to_numpy()[0], g, rtol=1e-13)
    step(2)
    with pytest.raises(qd.DataAccessError, match=r"`step\(t=2\)` at .* changed it after the launch `step\(t=3\)`"):
        step.grad(3)
    x[1, 0] = 3.0
    step.grad(4)  # reads x[4]
    with pytest.raises(qd.DataAccessError, match=r"Python at .* after the launch `step\(t=1\)`"):
        step.grad(1)


def test_two_buffers_that_are_used_in_turn():
    a, b = (qd.ndarray(qd.f64, N, needs_grad=True) for _ in range(2))

    @qd.kernel
    def step(p: qd.types.ndarray(dtype=qd.f64, ndim=1), q: qd.types.ndarray(dtype=qd.f64, ndim=1)):
        for i in range(N):
            q[i] = p[i] * p[i]

    step(a, b)
    step.grad(a, b)
    step(a, b)
    step(b, a)
    with pytest.raises(qd.DataAccessError, match="needs the value of `p` read here, but `step"):
        step.grad(a, b)


def test_arrays_from_numpy_are_compared_by_checksums():
    s = Square()

    @qd.kernel
    def weigh(w: qd.types.ndarray(dtype=qd.f64, ndim=1)):
        for i in s.x:
            s.y[i] = w[i] * s.x[i]

    @qd.kernel
    def shift(w: qd.types.ndarray(dtype=qd.f64, ndim=1)):
        for i in w:
            w[i] += 1.0

    outer = np.arange(2.0 * N)
    frozen = np.arange(N, dtype=float)
    frozen.flags.writeable = False
    for w in (outer[:N].copy(), outer[::2], outer[N:], frozen):
        weigh(w)
        weigh.grad(w)
        s.y.grad.fill(1)
        if w.flags.writeable:
            w[1] += 1.0
            with pytest.raises(qd.DataAccessError, match="`w` read here, but code outside of the kernels"):
                weigh.grad(w)
            w[1] -= 1.0  # changed back: still two writes
            with pytest.raises(qd.DataAccessError, match="code outside of the kernels"):
                weigh.grad(w)
            weigh(w)
            weigh.grad(w)
            shift(w)
            with pytest.raises(qd.DataAccessError, match=r"but `shift\(\)` at"):
                weigh.grad(w)
            weigh(w)
            outer += 1.0
            if np.shares_memory(w, outer):
                with pytest.raises(qd.DataAccessError, match="code outside of the kernels"):
                    weigh.grad(w)
            else:
                weigh.grad(w)


def test_a_view_of_one_array_meets_another():
    s = Square()

    @qd.kernel
    def weigh(w: qd.types.ndarray(dtype=qd.f64, ndim=1)):
        for i in s.x:
            s.y[i] = w[i] * s.x[i]

    @qd.kernel
    def clear(w: qd.types.ndarray(dtype=qd.f64, ndim=1)):
        for i in w:
            w[i] = 0.0

    whole = np.arange(3.0 * N)
    weigh(whole[:N])
    clear(whole[1 : N + 1])
    with pytest.raises(qd.DataAccessError, match=r"`clear\(\)`"):
        weigh.grad(whole[:N])


def test_memory_that_was_handed_out_is_watched():
    s = Square()
    for hand_out in (lambda t: t.view, lambda t: t.to_numpy(copy=False), np.from_dlpack):
        memory = hand_out(s.x)
        s.square(1.0)
        s.square.grad(1.0)
        memory[2] = memory[2] + 1.0
        with pytest.raises(qd.DataAccessError, match="code outside of the kernels"):
            s.square.grad(1.0)
        s.square(1.0)
        s.x[1] = 4.0
        with pytest.raises(qd.DataAccessError, match="Python at"):
            s.square.grad(1.0)
        s.square(1.0)
        s.square.grad(1.0)


def test_memory_that_was_handed_out_is_watched_field_by_field():
    s = Square()
    out, kept = s.y.view, qd.ndarray(qd.f64, N)
    view = kept.view
    s.square(1.0)
    out[0] = 9.0
    view[0] = 1.0
    s.square.grad(1.0)
    x = s.x.view
    x[0] = 2.0
    s.y[0] = 3.0  # does not hide the change of x
    with pytest.raises(qd.DataAccessError, match="`x` read here, but code outside of the kernels"):
        s.square.grad(1.0)
    del kept
    s.square(1.0)
    s.square.grad(1.0)


def test_memory_of_others_that_kernels_refer_to_by_name():
    s = Square()
    w = np.ones(N)
    outside = qd.from_dlpack(w)

    @qd.kernel
    def weigh():
        for i in s.x:
            s.y[i] = s.x[i] * outside[i]

    weigh()
    weigh.grad()
    w[1] = 2.0
    with pytest.raises(qd.DataAccessError, match="code outside of the kernels"):
        weigh.grad()
    weigh()
    outside[2] = 3.0
    with pytest.raises(qd.DataAccessError, match="Python at"):
        weigh.grad()


def test_a_bound_that_is_read_again():
    n = qd.field(qd.i32, shape=())
    s = Square()

    @qd.kernel
    def power():
        for i in s.x:
            v = 1.0
            for _ in range(n[None]):
                v = v * s.x[i]
            s.y[i] = v

    n[None] = 3
    power()
    power.grad()
    np.testing.assert_allclose(s.x.grad.to_numpy(), 3 * s.x.to_numpy() ** 2)
    n[None] = 2
    with pytest.raises(qd.DataAccessError, match="but Python at"):
        power.grad()


def test_another_program_writes_to_a_shared_array():
    s = Square()

    @qd.kernel
    def weigh(w: qd.types.ndarray(dtype=qd.f64, ndim=1)):
        for i in s.x:
            s.y[i] = w[i] * s.x[i]

    @qd.kernel
    def clear(w: qd.types.ndarray(dtype=qd.f64, ndim=1)):
        for i in w:
            w[i] = 0.0

    w = np.ones(N)
    weigh(w)
    with qd.init(offline_cache=False):
        clear(w)
    with pytest.raises(qd.DataAccessError, match="code outside of the kernels"):
        weigh.grad(w)


def test_gradients_that_are_data_of_a_kernel():
    x, y, z = (qd.ndarray(qd.f64, N, needs_grad=True) for _ in range(3))
    a1 = qd.types.ndarray(dtype=qd.f64, ndim=1)

    @qd.kernel
    def double(p: a1, q: a1):
        for i in p:
            q[i] = 2.0 * p[i]

    @qd.kernel
    def weigh(p: a1, w: a1, q: a1):
        for i in p:
            q[i] = p[i] * w[i]

    weigh(x, y.grad, z)
    weigh.grad(x, y.grad, z)
    double.grad(x, y)  # consumes y.grad
    with pytest.raises(qd.DataAccessError, match=r"`w` read here, but `double.grad\(\)` at"):
        weigh.grad(x, y.grad, z)


def test_after_a_failed_launch():
    s = Square()

    @qd.kernel
    def half(n: qd.i32):
        for i in range(n):
            assert i < 2, "too far"
            s.x[i] = 1.0

    s.square(1.0)
    with pytest.raises(qd.QdrunAssertionError):
        half(3)
    with pytest.raises(qd.DataAccessError, match=r"`half\(n=3\)`"):
        s.square.grad(1.0)
    s.square(1.0)
    s.square.grad(1.0)
    np.testing.assert_allclose(s.x.grad.to_numpy(), 2 * s.x.to_numpy())


def test_without_debug_nothing_is_kept():
    with qd.init(default_fp=qd.f64, offline_cache=False) as program:
        s = Square()
        s.square(1.0)
        s.x.fill(2.0)
        s.square.grad(1.0)
        assert program.recorders.versions is None and program.admission.flags[F_SLOW] == 0
        assert s.x.grad.to_numpy().tolist() == [4] * N


def test_old_launches_are_forgotten(monkeypatch, program):
    from qdrun.compiler.program.memory import versions

    monkeypatch.setattr(versions, "MOST", 3)
    s = Square()
    for k in range(6):
        s.square(float(k))
    assert len(program.recorders.versions._records) == 3
    s.x.fill(1.0)
    s.square.grad(0.0)  # no longer known: as without a launch
    with pytest.raises(qd.DataAccessError):
        s.square.grad(5.0)
