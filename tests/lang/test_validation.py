"""Tape(validation=True), and the warning for gradients that are lost in arrays without one."""

import gc
import warnings

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.program.variant import Variant
from qdrun.compiler.runtime.native.launch_ir import F_SLOW

N = 4


@pytest.fixture(autouse=True)
def program():
    with qd.init(default_fp=qd.f64, offline_cache=False) as program:
        yield program


@qd.data_oriented
class Path:
    """x -> y -> loss, and by a detour x -> z (no gradient) -> loss."""

    def __init__(self, z_grad=False):
        self.x, self.y = (qd.field(qd.f64, shape=N, needs_grad=True, name=n) for n in "xy")
        self.z = qd.field(qd.f64, shape=N, needs_grad=z_grad, name="z")
        self.w = qd.field(qd.f64, shape=N, name="w")
        self.loss = qd.field(qd.f64, shape=(), needs_grad=True, name="loss")
        self.x.from_numpy(np.random.default_rng().uniform(0.5, 1.5, N))

    @qd.kernel
    def square(self):
        for i in self.x:
            self.y[i] = self.x[i] ** 2

    @qd.kernel
    def detour(self):
        for i in self.x:
            self.z[i] = 3.0 * self.x[i]

    @qd.kernel
    def along(self):
        for i in self.x:
            self.w[i] = self.z[i] + 1.0

    @qd.kernel
    def from_y(self):
        for i in self.x:
            self.loss[None] += self.y[i]

    @qd.kernel
    def from_z(self):
        for i in self.x:
            self.loss[None] += self.z[i]

    @qd.kernel
    def from_w(self):
        for i in self.x:
            self.loss[None] += self.y[i] * self.w[i]

    def run_detour(self):
        self.detour()

    def run_from_y(self):
        self.from_y()

    @qd.kernel
    def ones(self):
        for i in self.x:
            self.z[i] = 1.0

    @qd.kernel
    def decides(self):
        for i in self.x:
            if self.z[i] > 2.0:
                self.loss[None] += self.y[i]


def test_what_is_right_passes():
    p = Path(z_grad=True)
    with qd.ad.Tape(loss=p.loss, validation=True):
        p.square()
        p.detour()
        p.from_y()
        p.from_z()
    np.testing.assert_allclose(p.x.grad.to_numpy(), 2 * p.x.to_numpy() + 3)


def test_a_lost_gradient_is_a_warning_once(program):
    p = Path()
    for again in (False, True):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            with qd.ad.Tape(loss=p.loss):
                p.detour()
                p.from_z()
                p.detour()
                p.from_z()
        assert len(seen) == (0 if again else 1)
        if seen:
            text = str(seen[0].message)
            assert seen[0].category is qd.GradientWarning and seen[0].filename == __file__
            assert "the gradient is lost in `z`, which has none: `detour` line " in text
            assert "(`self.z[i] = 3.0 * self.x[i]`) stores a differentiable value to it, and `from_z` computes" in text
            assert "in kernel `from_z`" in text and "do: make `z` with needs_grad=True" in text
    assert not p.x.grad.to_numpy().any()


def test_a_lost_gradient_is_an_error_under_validation():
    p = Path()
    with pytest.raises(qd.DifferentiationError, match="the gradient is lost in `z`, which has none"):
        with qd.ad.Tape(loss=p.loss, validation=True):
            p.detour()
            p.from_z()
    assert not p.x.grad.to_numpy().any()


def test_it_is_followed_through_several_arrays():
    p = Path()
    with pytest.raises(qd.DifferentiationError, match="lost in `w`, which has none: `along`"):
        with qd.ad.Tape(loss=p.loss, validation=True):
            p.square()
            p.detour()
            p.along()
            p.from_w()


@pytest.mark.filterwarnings("error:the gradient is lost:qdrun.GradientWarning", "ignore:the gradient of .* is always 0")
def test_what_is_not_lost_is_not_reported():
    """That no path leads to the loss in some of these is another message."""
    p = Path()

    def never_stored():
        p.z.fill(1.0)
        p.from_z()

    def stored_after():
        p.from_z()
        p.detour()

    def overwritten_by_python():
        p.detour()
        p.z.fill(1.0)
        p.from_z()

    def read_by_nobody():
        p.square()
        p.detour()
        p.along()
        p.from_y()

    def only_a_condition():
        p.square()
        p.detour()
        p.decides()

    def on_purpose():
        qd.ad.no_grad(p.run_detour)()
        p.from_z()

    def a_gradient_of_its_own():
        f = qd.ad.grad_replaced(lambda: (p.detour(), p.from_z()))
        qd.ad.grad_for(f)(lambda: p.x.grad.fill(1.0))
        f()

    for body in (never_stored, stored_after, overwritten_by_python, read_by_nobody, only_a_condition, on_purpose):
        with qd.ad.Tape(loss=p.loss, validation=True):
            body()
    with qd.ad.Tape(loss=p.loss, validation=True):
        a_gradient_of_its_own()
    assert p.x.grad.to_numpy().tolist() == [1] * N


@pytest.mark.filterwarnings("error::qdrun.GradientWarning")
def test_elements_are_told_apart_by_arguments():
    z = qd.field(qd.f64, shape=5)
    x, loss = (qd.field(qd.f64, shape=(), needs_grad=True) for _ in range(2))

    @qd.kernel
    def keep(t: qd.i32):
        z[t + 1] = x[None]

    @qd.kernel
    def use(t: qd.i32):
        loss[None] += z[t] * x[None]

    x[None], z[0] = 2.0, 5.0
    with qd.ad.Tape(loss=loss, validation=True):
        keep(2)
        use(0)
    assert x.grad[None] == 5
    with pytest.raises(qd.DifferentiationError, match="lost in `z`"):
        with qd.ad.Tape(loss=loss, validation=True):
            keep(2)
            use(3)


def test_arrays_that_changed_since_the_launch(program):
    p = Path()

    @qd.kernel
    def weigh(w: qd.types.ndarray(dtype=qd.f64, ndim=1)):
        for i in p.x:
            p.loss[None] += w[i] * p.x[i]

    w = np.arange(1.0, N + 1)
    with qd.ad.Tape(loss=p.loss, validation=True):
        weigh(w)
    assert p.x.grad.to_numpy().tolist() == w.tolist()
    with pytest.raises(qd.DataAccessError, match="`w` read here, but code outside of the kernels"):
        with qd.ad.Tape(loss=p.loss, validation=True):
            weigh(w)
            w[2] = 9.0
    assert not p.x.grad.to_numpy().any() and program.recorders.versions is None and program.admission.flags[F_SLOW] == 0


def test_torch_tensors_that_changed_since_the_launch():
    torch = pytest.importorskip("torch")
    p = Path()

    @qd.kernel
    def weigh(w: qd.types.ndarray(dtype=qd.f64, ndim=1)):
        for i in p.x:
            p.loss[None] += w[i] * p.x[i]

    for w in (torch.ones(N, dtype=torch.float64), torch.ones(2 * N, dtype=torch.float64)[::2]):
        with qd.ad.Tape(loss=p.loss, validation=True):
            weigh(w)
        assert p.x.grad.to_numpy().tolist() == [1] * N
        with pytest.raises(qd.DataAccessError, match="`w` read here, but code outside of the kernels"):
            with qd.ad.Tape(loss=p.loss, validation=True):
                weigh(w)
                w[2] = 9.0


def test_one_array_changed_between_two_launches():
    p = Path()

    @qd.kernel
    def weigh(w: qd.types.ndarray(dtype=qd.f64, ndim=1)):
        for i in p.x:
            p.loss[None] += w[i] * p.x[i]

    w = np.ones(N)
    with pytest.raises(qd.DataAccessError):
        with qd.ad.Tape(loss=p.loss, validation=True):
            weigh(w)
            w *= 2.0
            weigh(w)
    with qd.ad.Tape(loss=p.loss, validation=True):
        weigh(w)
        weigh(w.copy())
    assert p.x.grad.to_numpy().tolist() == [4] * N


def test_memory_that_was_handed_out_before_the_tape():
    p = Path()
    memory = p.x.view
    with pytest.raises(qd.DataAccessError, match="`x` read here, but code outside of the kernels"):
        with qd.ad.Tape(loss=p.loss, validation=True):
            p.square()
            memory[0] = 3.0
            p.from_y()
    with qd.ad.Tape(loss=p.loss, validation=True):
        memory[0] = 3.0
        p.square()
        p.from_y()
    np.testing.assert_allclose(p.x.grad.to_numpy(), 2 * p.x.to_numpy())


def test_another_program_changes_what_a_tape_reads_again():
    p = Path()

    @qd.kernel
    def weigh(w: qd.types.ndarray(dtype=qd.f64, ndim=1)):
        for i in p.x:
            p.loss[None] += w[i] * p.x[i]

    @qd.kernel
    def clear(w: qd.types.ndarray(dtype=qd.f64, ndim=1)):
        for i in w:
            w[i] = 0.0

    @qd.ad.no_grad
    def clear_elsewhere():
        with qd.init(offline_cache=False):
            clear(w)

    w = np.ones(N)
    with pytest.raises(qd.DataAccessError):
        with qd.ad.Tape(loss=p.loss, validation=True):
            weigh(w)
            clear_elsewhere()


def test_a_gradient_of_its_own_that_changes_an_input_of_an_earlier_launch():
    """The static check knows nothing of what runs while the tape replays; the versions do."""
    p = Path()
    f = qd.ad.grad_replaced(p.run_from_y)

    @qd.ad.grad_for(f)
    def backward():
        p.from_y.grad()
        p.x.fill(9.0)

    with pytest.raises(qd.DataAccessError, match="the gradient of `square` needs the value of `x` read here, but Python at"):
        with qd.ad.Tape(loss=p.loss, validation=True):
            p.square()
            f()


def test_time_steps_pass():
    x = qd.field(qd.f64, shape=(9, N), needs_grad=True)
    loss = qd.field(qd.f64, shape=(), needs_grad=True)

    @qd.kernel
    def step(t: qd.i32):
        for i in range(N):
            x[t + 1, i] = qd.sin(x[t, i])

    @qd.kernel
    def total():
        for i in range(N):
            loss[None] += x[8, i]

    start = np.random.default_rng().uniform(0.5, 1.5, (9, N))
    x.from_numpy(start)
    with qd.ad.Tape(loss=loss, validation=True):
        for t in range(8):
            step(t)
        total()
    v, g = start[0], np.ones(N)
    for _ in range(8):
        v, g = np.sin(v), g * np.cos(v)
    np.testing.assert_allclose(x.grad.to_numpy()[0], g, rtol=1e-13)


def test_in_debug_every_tape_keeps_versions():
    with qd.init(default_fp=qd.f64, debug=True, offline_cache=False) as program:
        p = Path()

        @qd.kernel
        def weigh(w: qd.types.ndarray(dtype=qd.f64, ndim=1)):
            for i in p.x:
                p.loss[None] += w[i] * p.x[i]

        w = np.ones(N)
        with pytest.raises(qd.DataAccessError):
            with qd.ad.Tape(loss=p.loss):
                weigh(w)
                w += 1.0
        with qd.ad.Tape(loss=p.loss, validation=True):
            weigh(w)
        assert program.recorders.versions is not None and p.x.grad.to_numpy().tolist() == [2] * N


def test_a_kernel_that_is_gone_is_not_taken_for_one_that_lies_where_it_lay():
    @qd.data_oriented
    class Sums:
        @qd.kernel
        def add(self, a: qd.f64, b: qd.f64, x: qd.types.ndarray(), y: qd.types.ndarray(), z: qd.types.ndarray()):
            for i in x:
                z[i] += a * x[i] + b * y[i]

    @qd.data_oriented
    class Scales:
        @qd.kernel
        def scale(self, z: qd.types.ndarray()):
            for i in z:
                z[i] = 0.5 * z[i]

    with qd.init(default_fp=qd.f64, debug=True) as program:
        x, y, z = (qd.ndarray(qd.f64, 3) for _ in range(3))
        x.fill(1.0)
        y.fill(2.0)
        want = 0.0
        for k in range(60):
            Sums().add(1.0, float(k), x, y, z)
            Scales().scale(z)
            want = 0.5 * (want + 1.0 + 2.0 * k)
        assert np.allclose(z.to_numpy(), want, rtol=1e-13)
        held = Scales()
        held.scale(z)
        gc.collect()
        alive = [x for x in gc.get_objects() if isinstance(x, Variant) and x.program is program.state]
        assert 0 < len(alive) < 60  # what is known of a kernel goes with it
