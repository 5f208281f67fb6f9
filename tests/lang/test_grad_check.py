"""Tape(grad_check=[..]): right gradients pass, wrong ones are named, and every number is left as it was."""

import re

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.lang.autograd.overwrites import HostWrite
from qdrun.compiler.runtime.native.launch_ir import F_SLOW

N = 5


@pytest.fixture(autouse=True)
def program():
    with qd.init(default_fp=qd.f64, offline_cache=False, random_seed=5) as program:
        yield program


@qd.data_oriented
class Wave:
    """y = sin(a x), loss += sum of y * y; ``sine_grad`` is a gradient of its own, off by ``error`` in one element."""

    def __init__(self, n=N, dtype=qd.f64):
        self.x = qd.field(dtype, shape=n, needs_grad=True, name="x")
        self.y = qd.field(dtype, shape=n, needs_grad=True, name="y")
        self.a = qd.field(dtype, shape=(), needs_grad=True, name="a")
        self.loss = qd.field(qd.f64, shape=(), needs_grad=True, name="loss")
        self.error, self.at = 0.0, 3
        rng = np.random.default_rng()
        self.x.from_numpy(rng.uniform(0.5, 1.5, n))
        self.a[None] = rng.uniform(0.5, 1.5)

    @qd.kernel
    def sine(self):
        for i in self.x:
            self.y[i] = qd.sin(self.a[None] * self.x[i])

    @qd.kernel
    def total(self):
        for i in self.x:
            self.loss[None] += self.y[i] * self.y[i]

    @qd.ad.grad_replaced
    def forward(self):
        self.sine()

    @qd.ad.grad_for(forward)
    def backward(self):
        self.sine.grad()
        self.x.grad[self.at] = self.x.grad[self.at] * (1.0 + self.error)

    def state(self):
        return [t.to_numpy().tobytes() for f in (self.x, self.y, self.a, self.loss) for t in (f, f.grad)]


@pytest.mark.parametrize("n", [N, 100])
def test_right_gradients_pass_and_nothing_moves(n, program):
    w = Wave(n)
    with qd.ad.Tape(loss=w.loss):
        w.sine()
        w.total()
    expected = w.state()
    with qd.ad.Tape(loss=w.loss, grad_check=[w.x, w.a]):
        w.sine()
        w.total()
    assert w.state() == expected and program.recorders.versions is None and program.admission.flags[F_SLOW] == 0
    with qd.ad.Tape(loss=w.loss, grad_check=[w.x, w.a, w.loss]):
        w.forward()
        w.total()
    assert w.state() == expected


@pytest.mark.parametrize("n, error", [(N, 1e-3), (N, -2.0), (100, 0.5)])
def test_a_wrong_gradient_is_named_with_its_index_and_both_numbers(n, error):
    w = Wave(n)
    w.error, w.at = error, n - 2
    w.a[None], w.x[w.at] = 0.8, np.random.default_rng().uniform(0.7, 1.2)  # where the gradient is not small
    with pytest.raises(qd.GradientCheckError) as caught:
        with qd.ad.Tape(loss=w.loss, grad_check=[w.a, w.x]):
            w.forward()
            w.total()
    found = re.search(
        r"the gradient of `x`\[(\d+)\] is (\S+), differences say (\S+) \(step .*relative tolerance 1e-05\)", str(caught.value)
    )
    assert found and int(found[1]) == w.at and isinstance(caught.value, AssertionError)
    x, a = w.x.to_numpy()[w.at], w.a[None]
    right = 2 * np.sin(a * x) * np.cos(a * x) * a
    assert float(found[2]) == pytest.approx(right * (1 + error)) and float(found[3]) == pytest.approx(right, rel=1e-5)
    assert w.x.grad[w.at] == float(found[2]), "the gradients stay as the tape left them"


def test_assignments_from_python_are_repeated():
    w = Wave()
    scale = qd.Vector.field(2, qd.f64, shape=(), name="scale")

    @qd.kernel
    def scaled():
        for i in w.x:
            w.loss[None] += scale[None].sum() * w.y[i]

    with qd.ad.Tape(loss=w.loss, grad_check=[w.x]):
        w.sine()
        scale[None] = [1.0, 2.0]
        scale[None].y = 3.0
        scaled()
    assert scale[None].to_numpy().tolist() == [1, 3]
    a, x = w.a[None], w.x.to_numpy()
    np.testing.assert_allclose(w.x.grad.to_numpy(), 4 * a * np.cos(a * x))


def test_ndarrays_vectors_and_copies():
    x, y, z = (qd.Vector.ndarray(2, qd.f64, N, needs_grad=True) for _ in range(3))
    loss = qd.ndarray(qd.f64, 1, needs_grad=True)
    x.from_numpy(np.random.default_rng().uniform(-1, 1, (N, 2)))
    v1 = qd.types.ndarray(dtype=qd.types.vector(2, qd.f64), ndim=1)

    @qd.kernel
    def turn(p: v1, q: v1):
        for i in p:
            q[i] = [p[i][0] * p[i][1], qd.exp(p[i][0])]

    @qd.kernel
    def total(p: v1, out: qd.types.ndarray(dtype=qd.f64, ndim=1)):
        for i in p:
            out[0] += p[i].norm_sqr()

    with qd.ad.Tape(loss=loss, grad_check=[x]):
        turn(x, y)
        z.copy_from(y)
        y.fill(0.0)
        total(z, loss)
    assert x.grad.to_numpy().any()


def test_arrays_from_numpy_start_again_at_each_repetition():
    w = Wave()
    count = np.zeros(N)

    @qd.kernel
    def use(c: qd.types.ndarray(dtype=qd.f64, ndim=1)):
        for i in w.x:
            c[i] += 1.0
            w.loss[None] += w.x[i] * w.x[i]

    with qd.ad.Tape(loss=w.loss, grad_check=[w.x]):
        use(count)
        use(count)
    assert count.tolist() == [2] * N
    np.testing.assert_allclose(w.x.grad.to_numpy(), 4 * w.x.to_numpy())


def test_random_numbers_are_drawn_again():
    w = Wave()

    @qd.kernel
    def noise():
        for i in w.x:
            w.y[i] = qd.random(qd.f64)

    @qd.kernel
    def noisy():
        for i in w.x:
            w.loss[None] += w.x[i] * w.y[i]

    with qd.ad.Tape(loss=w.loss, grad_check=[w.x]):
        noise()
        noisy()
    assert w.x.grad.to_numpy().tolist() == w.y.to_numpy().tolist()


def test_single_precision_on_the_way_is_compared_with_fewer_digits():
    w = Wave(dtype=qd.f32)
    with qd.ad.Tape(loss=w.loss, grad_check=[w.x]):
        w.sine()
        w.total()
    w.error, w.a[None], w.x[w.at] = 0.2, 1.0, 0.6  # where the gradient is not small
    with pytest.raises(qd.GradientCheckError, match=r"relative tolerance 0.01\)"):
        with qd.ad.Tape(loss=w.loss, grad_check=[w.x]):
            w.forward()
            w.total()


def test_single_precision_inside_a_kernel():
    w = Wave()

    @qd.kernel
    def rough():
        for i in w.x:
            v = qd.cast(w.x[i], qd.f32)
            w.loss[None] += qd.cast(qd.exp(v) * v, qd.f64)

    with qd.ad.Tape(loss=w.loss, grad_check=[w.x]):
        rough()


def test_a_gradient_of_zero():
    w = Wave()
    unused = qd.field(qd.f64, shape=3, needs_grad=True)
    with qd.ad.Tape(loss=w.loss, grad_check=[unused]):
        w.sine()
        w.total()


def test_what_no_grad_hides_is_seen_by_differences():
    w = Wave()

    @qd.ad.no_grad
    def hidden():
        w.sine()

    with pytest.raises(qd.GradientCheckError, match="a no_grad function"):
        with qd.ad.Tape(loss=w.loss, grad_check=[w.x]):
            hidden()
            w.total()


def test_in_debug_and_with_validation():
    with qd.init(default_fp=qd.f64, debug=True, offline_cache=False) as program:
        w = Wave()
        with qd.ad.Tape(loss=w.loss, grad_check=[w.x], validation=True):
            w.forward()
            w.total()
        assert program.recorders.versions is not None


def test_what_cannot_be_checked_is_refused():
    w = Wave()
    plain = qd.field(qd.f64, shape=3, name="plain")
    single = qd.field(qd.f32, shape=(), needs_grad=True)
    for loss, fields, text in (
        (w.loss, w.x, "grad_check is a list"),
        (None, [w.x], "grad_check needs a loss of type f64"),
        (single, [w.x], "grad_check needs a loss of type f64"),
        (w.loss, [plain], "grad_check: `plain` has no gradient"),
        (w.loss, [3], "grad_check: `int` has no gradient"),
    ):
        with pytest.raises(qd.QdrunRuntimeError, match=text):
            qd.ad.Tape(loss=loss, grad_check=fields)
    with pytest.raises(qd.QdrunRuntimeError, match="grad_check moves `x`, and Python writes to it inside the tape"):
        with qd.ad.Tape(loss=w.loss, grad_check=[w.x]):
            w.x[0] = 1.0
    qd.ad.Tape(loss=w.loss, grad_check=[])


def test_a_write_of_one_element_is_kept_without_a_look_at_the_others(monkeypatch):
    with qd.init(arch=qd.cuda, device="emulated", default_fp=qd.f64) as program:
        x, y = (qd.field(qd.f64, shape=50_000, needs_grad=True) for _ in range(2))
        v = qd.Vector.field(3, qd.f64, shape=50_000, needs_grad=True)
        loss = qd.field(qd.f64, shape=(), needs_grad=True)

        @qd.kernel
        def square():
            for i in range(3):
                y[i] = x[i] * x[i]

        @qd.kernel
        def total():
            for i in range(3):
                loss[None] += y[i] * v[i][0]

        x.from_numpy(np.arange(50_000) + 1.0)
        v.fill(2.0)
        copied, download = [], program.device.download
        monkeypatch.setattr(
            program.device, "download", lambda to, at, nbytes: copied.append(nbytes) or download(to, at, nbytes)
        )
        with qd.ad.Tape(loss):
            square()
            y[1] = 0.5
            v[2] = [3.0, 4.0, 5.0]
            v[0].y = 7.0
            total()
        assert sum(copied) < 10_000, "the gradients of y and v were copied for a zero in one element"
        assert x.grad.to_numpy()[:3].tolist() == [4.0, 0.0, 18.0]
        del copied[:]
        change = HostWrite(0, v, (2,), parts=(1,))
        assert change.values(v) == 4.0 and HostWrite(0, v, (0,)).values(v).tolist() == [2.0, 7.0, 2.0]
        change.put(v, 9.0)
        assert sum(copied) < 10_000 and v[2].to_numpy().tolist() == [3.0, 9.0, 5.0]
