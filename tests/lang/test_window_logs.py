"""Windows of time steps that follow the log of a window before: the bits, the refusals and the bytes are those of windows that do not."""

import random

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.lang.autograd.time_steps.window_log import WindowLogs
from qdrun.compiler.lang.autograd.time_steps.window_tape import WindowTape

DEVICES = {"emulated": {"arch": qd.cuda, "device": "emulated"}, "Vulkan": {"arch": qd.vulkan, "device": "llvmpipe"}}
WAYS = {"cpu": {"cpu_max_num_threads": 1}, "a batch": {"batch": 3, "cpu_max_num_threads": 1}}
ways = pytest.mark.parametrize("way", [*WAYS, *(pytest.param(w, marks=pytest.mark.slow) for w in DEVICES)])


@pytest.fixture(autouse=True)
def no_program():
    yield
    qd.reset()


@pytest.fixture
def followed(monkeypatch):
    """Counts the windows that have followed a log to its end."""
    counts, end = [], WindowTape.end

    def counted(self):
        end(self)
        counts.append(self.log.known is not None)

    monkeypatch.setattr(WindowTape, "end", counted)
    return counts


class Model:
    """A step of several kernels: slots, a force that depends on the number of the step, state in place, a loss outside of the window."""

    def __init__(self, n, window, in_place, fp=None, **options):
        qd.init(default_fp=fp or qd.f64, **options)
        fp = fp or qd.f64
        self.n = n
        self.x = x = qd.field(fp, shape=(window + 1, 4), needs_grad=True)
        self.y = y = qd.field(fp, shape=(window, 4), needs_grad=True)
        self.force = force = qd.field(fp, shape=(n, 4), needs_grad=True)
        self.v = v = qd.field(fp, shape=4, needs_grad=True)
        self.loss = loss = qd.field(fp, shape=(), needs_grad=True)
        self.in_place = in_place

        @qd.kernel
        def bend(k: qd.i32, c: fp):
            for i in range(4):
                y[k, i] = c * qd.sin(x[k, i])

        @qd.kernel
        def push(t: qd.i32, k: qd.i32, dt: fp):
            for i in range(4):
                x[k + 1, i] = x[k, i] + dt * y[k, i] * force[t, i]

        @qd.kernel
        def drag(k: qd.i32, dt: fp):
            for i in range(4):
                v[i] = v[i] * (1.0 - dt * x[k, i]) + dt * qd.cos(v[i])

        @qd.kernel
        def measure(k: qd.i32):
            for i in range(4):
                loss[None] += x[k + 1, i] * x[k + 1, i]

        @qd.kernel
        def total(k: qd.i32):
            for i in range(4):
                loss[None] += x[k, i] + v[i] * v[i]

        @qd.kernel
        def spoil(t: qd.i32):
            for i in range(4):
                force[t, i] = 3.0

        self.bend, self.push, self.drag, self.measure, self.total, self.spoil = bend, push, drag, measure, total, spoil

    def step(self, t, k):
        self.bend(k, 0.5 + 0.01 * t)
        self.push(t, k, 0.1)
        if self.in_place:
            self.drag(k, 0.05)
        if t % self.every == 0:
            self.measure(k)

    def run(self, every, spoils=False):
        self.every = every
        start = np.linspace(0.1, 1.0, 4)
        self.x.fill(0)
        for i, number in enumerate(start):
            self.x[0, i] = number
        self.force.from_numpy(np.outer(np.linspace(1.0, 2.0, self.n), start))
        self.v.from_numpy(start)
        with qd.ad.Tape(self.loss):
            in_place = [self.v] if self.in_place else []
            plan = qd.ad.checkpointed_steps(self.step, self.n, state=[self.x], scratch=[self.y], in_place=in_place)
            self.total(min(self.n, self.x.shape[0] - 1))
            if spoils:
                self.spoil(self.n // 2)
        slot = self.x.grad.to_numpy()[..., 0, :]
        found = [slot, self.force.grad.to_numpy(), self.v.grad.to_numpy(), self.loss.to_numpy(), self.v.to_numpy()]
        return plan, [np.array(a) for a in found]


@ways
def test_windows_that_follow_a_log_have_the_bits_of_windows_that_do_not(way, followed, monkeypatch):
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    cases = [(rng.randrange(12, 60), rng.randrange(2, 6), rng.random() < 0.5, rng.choice([1, 1, 3, 7])) for _ in range(4)]
    found = []
    for logs in (True, False):
        if not logs:
            monkeypatch.setattr(WindowLogs, "get", lambda self, reverses: None)
        values = []
        for n, window, in_place, every in cases:
            model = Model(n, window, in_place, **(WAYS | DEVICES)[way])
            for repeat in range(3):
                values.append(model.run(every if repeat != 1 else 1)[1])
        found.append(values)
        assert any(followed) == logs, f"seed {seed}"
        followed.clear()
    for k, (got, want) in enumerate(zip(*found)):
        for a, b in zip(got, want):
            np.testing.assert_array_equal(a, b, err_msg=f"seed {seed}, run {k} of {cases}")


@pytest.mark.parametrize("fp", [qd.f32, qd.f64])
def test_windows_that_follow_have_the_gradient_of_full_storage(fp, followed):
    found = []
    for window in (40, 4):
        model = Model(40, window, in_place=False, fp=fp, cpu_max_num_threads=1)
        found.append(model.run(every=1, spoils=True)[1])
        assert any(followed) == (window == 4)
    for a, b in zip(*found):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("fp", [qd.f32, qd.f64])
def test_a_step_that_is_not_the_same_again_is_refused_where_it_follows(fp, followed):
    model = Model(40, 4, in_place=False, fp=fp, cpu_max_num_threads=1)
    model.run(every=1)
    assert any(followed)
    numbers = random.Random(5)
    step = model.step
    model.step = lambda t, k: (step(t, k), model.bend(k, numbers.random()))[0]
    with pytest.raises(qd.QdrunRuntimeError, match=r"is not the same when it is run again: `c` of kernel `bend`"):
        model.run(every=1)


def test_a_window_that_leaves_its_log_in_the_middle_goes_on_in_python(followed):
    model = Model(40, 4, in_place=True, cpu_max_num_threads=1)
    want = model.run(every=1)[1]
    assert any(followed)
    step, odd = model.step, [False]

    def other(t, k):
        if t == 17:
            model.bend(k, 0.5 + 0.01 * t)  # once more, with the same result
        step(t, k)
        odd[0] = odd[0] or t == 17

    model.step = other
    got = model.run(every=1)[1]
    assert odd[0]
    for a, b in zip(got[3:], want[3:]):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_allclose(got[1], want[1], rtol=1e-13)
