"""The tape: what it records, what it clears, in which order it replays, what it refuses."""

import dataclasses
import threading
import warnings

import numpy as np
import pytest

import qdrun as qd

N = 6


@pytest.fixture(autouse=True)
def program():
    with qd.init(arch=qd.cpu, default_fp=qd.f64, offline_cache=False) as program:
        yield program


@qd.data_oriented
class Chain:
    """y = x * x + x, then loss += w * y, on fields."""

    def __init__(self, **options):
        self.x, self.y, self.loss = (qd.field(qd.f64, shape=s, needs_grad=True, **options) for s in (N, N, ()))
        self.x.from_numpy(np.linspace(-1, 1, N))

    @qd.kernel
    def square(self):
        for i in self.x:
            self.y[i] = self.x[i] * self.x[i] + self.x[i]

    @qd.kernel
    def total(self, w: qd.f64):
        for i in self.y:
            self.loss[None] += w * self.y[i]

    def slope(self, w):
        return w * (2 * self.x.to_numpy() + 1)


@qd.kernel
def scale(x: qd.types.ndarray(dtype=qd.f64, ndim=1), y: qd.types.ndarray(dtype=qd.f64, ndim=1), w: qd.f64):
    for i in x:
        y[i] += w * x[i] * x[i]


@qd.kernel
def add_up(x: qd.types.ndarray(dtype=qd.f64, ndim=1), out: qd.types.ndarray(dtype=qd.f64, ndim=1)):
    for i in x:
        out[0] += x[i]


def test_gradients_go_back_through_several_launches():
    c = Chain()
    for _ in range(3):
        with qd.ad.Tape(loss=c.loss):
            c.square()
            c.total(2.0)
            c.total(0.5)
        np.testing.assert_allclose(c.x.grad.to_numpy(), c.slope(2.5))
        assert c.loss[None] == pytest.approx(2.5 * c.y.to_numpy().sum()) and c.loss.grad[None] == 1


def test_gradients_of_fields_and_arrays_are_cleared_on_entry():
    c = Chain()
    a = qd.ndarray(qd.f64, 3, needs_grad=True)
    v = qd.Vector.field(2, qd.f64, shape=3, needs_grad=True)
    for t in (c.x, c.y, a, v):
        t.grad.fill(99)
    c.loss[None] = 5
    with qd.ad.Tape(loss=c.loss):
        c.square()
        c.total(1.0)
    np.testing.assert_allclose(c.x.grad.to_numpy(), c.slope(1))
    assert not a.grad.to_numpy().any() and not v.grad.to_numpy().any()


def test_gradients_accumulate_when_they_are_not_cleared():
    c = Chain()
    for k in range(1, 4):
        with qd.ad.Tape(loss=c.loss, clear_gradients=False):
            c.y.grad.fill(0)
            c.square()
            c.total(1.0)
        np.testing.assert_allclose(c.x.grad.to_numpy(), k * c.slope(1))


def test_the_loss_may_be_an_array_of_one_element():
    x, y = (qd.ndarray(qd.f64, N, needs_grad=True) for _ in range(2))
    x.from_numpy(np.linspace(0, 1, N))
    for shape in ((1,), (1, 1), ()):
        loss = qd.ndarray(qd.f64, shape, needs_grad=True)
        if shape == (1,):
            for _ in range(2):
                y.fill(0)
                with qd.ad.Tape(loss=loss):
                    scale(x, y, 3.0)
                    add_up(y, loss)
                np.testing.assert_allclose(x.grad.to_numpy(), 6 * x.to_numpy())
                assert loss[0] == pytest.approx(y.to_numpy().sum())
        else:
            with qd.ad.Tape(loss=loss):
                pass
            assert loss.grad.to_numpy().item() == 1


def test_a_tape_without_a_loss_is_seeded_by_hand():
    c = Chain()
    with qd.ad.Tape() as tape:
        c.square()
        c.y.grad.from_numpy(np.arange(N, dtype=float))
    np.testing.assert_allclose(c.x.grad.to_numpy(), np.arange(N) * (2 * c.x.to_numpy() + 1))
    assert tape.loss is None


def test_launches_in_loops_are_each_recorded_with_their_arguments():
    x = qd.field(qd.f64, shape=5, needs_grad=True)

    @qd.kernel
    def step(t: qd.i32, w: qd.f64):
        x[t + 1] = qd.sin(x[t]) * w

    x[0] = 0.7
    with qd.ad.Tape(loss=x_loss(x)):
        for t in range(4):
            step(t, 1.0 + t)
        last(x)
    h, expected = 1e-6, []
    for s in (h, -h):
        v = 0.7 + s
        for t in range(4):
            v = np.sin(v) * (1.0 + t)
        expected.append(v)
    assert x.grad[0] == pytest.approx((expected[0] - expected[1]) / (2 * h), rel=1e-8)


LOSSES = {}


def x_loss(x):
    LOSSES[id(x)] = qd.field(qd.f64, shape=(), needs_grad=True)
    return LOSSES[id(x)]


def last(x):
    loss = LOSSES.pop(id(x))

    @qd.kernel
    def copy():
        loss[None] += x[4]

    copy()


def test_many_launches_are_all_replayed():
    x = qd.ndarray(qd.f64, N, needs_grad=True)
    out = qd.ndarray(qd.f64, 1, needs_grad=True)
    with qd.ad.Tape(loss=out):
        for _ in range(500):
            add_up(x, out)
    assert x.grad.to_numpy().tolist() == [500] * N


def test_values_written_from_python_inside_a_tape():
    """The tape replays launches only; a value that Python wrote is what the replay reads, and it carries no gradient."""
    c = Chain()
    w = qd.field(qd.f64, shape=())

    @qd.kernel
    def weighted():
        for i in c.y:
            c.loss[None] += w[None] * c.y[i]

    with qd.ad.Tape(loss=c.loss):
        c.square()
        w[None] = 3.0
        c.x.grad[0] = 100.0
        weighted()
    expected = c.slope(3)
    expected[0] += 100
    np.testing.assert_allclose(c.x.grad.to_numpy(), expected)


def test_an_exception_inside_replays_nothing_and_leaves_the_program_usable(program):
    c = Chain()
    with pytest.raises(ZeroDivisionError), qd.ad.Tape(loss=c.loss):
        c.square()
        c.total(1.0)
        1 / 0
    assert not c.x.grad.to_numpy().any() and program.recorders.tape is None
    with qd.ad.Tape(loss=c.loss):
        c.square()
        c.total(1.0)
    np.testing.assert_allclose(c.x.grad.to_numpy(), c.slope(1))


def test_a_kernel_that_fails_is_not_replayed():
    with qd.init(debug=True, default_fp=qd.f64, offline_cache=False) as program:
        c = Chain()

        @qd.kernel
        def fails():
            for i in range(3):
                assert i < 2, "no"

        with pytest.raises(qd.QdrunAssertionError), qd.ad.Tape(loss=c.loss):
            c.square()
            fails()
        assert program.recorders.tape is None and not c.x.grad.to_numpy().any()


def test_tapes_are_neither_nested_nor_used_twice(program):
    c = Chain()
    with pytest.raises(qd.QdrunRuntimeError, match="a tape is open already"), qd.ad.Tape(loss=c.loss):
        with qd.ad.Tape(loss=c.loss):
            pass
    assert program.recorders.tape is None
    tape = qd.ad.Tape(loss=c.loss)
    with tape:
        c.square()
    with pytest.raises(qd.QdrunRuntimeError, match="only once"), tape:
        pass
    assert program.recorders.tape is None


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: qd.field(qd.f64, shape=3, needs_grad=True), "must be a 0-D field"),
        (lambda: qd.ndarray(qd.f64, 2, needs_grad=True), "must be a 0-D field"),
        (lambda: qd.Vector.field(2, qd.f64, shape=(), needs_grad=True), "must be a 0-D field"),
        (lambda: qd.field(qd.f64, shape=()), "Gradients of loss are not allocated"),
        (lambda: qd.ndarray(qd.f64, 1), "Gradients of loss are not allocated"),
        (lambda: qd.field(qd.i32, shape=()), "Gradients of loss are not allocated"),
        (lambda: 3.0, "the loss of a Tape is a field, an ndarray or a torch tensor, not float"),
    ],
)
def test_what_is_no_loss_is_refused(make, text, program):
    with pytest.raises(qd.QdrunRuntimeError, match=text), qd.ad.Tape(loss=make()):
        pass
    assert program.recorders.tape is None


def test_a_launch_without_gradients_is_passed_over_in_the_replay():
    c = Chain()
    counter = qd.field(qd.i32, shape=())

    @qd.kernel
    def count():
        counter[None] += 1

    with qd.ad.Tape(loss=c.loss):
        c.square()
        count()
        c.total(1.0)
    np.testing.assert_allclose(c.x.grad.to_numpy(), c.slope(1))
    assert counter[None] == 1


@dataclasses.dataclass
class Weights:
    """An argument that holds an array."""

    w: qd.types.ndarray(dtype=qd.f64, ndim=1)


class Given:
    """Kernels that are given arrays of numpy and torch, and read them in their gradients."""

    def __init__(self):
        c = self.c = Chain()
        array, integers = qd.types.ndarray(dtype=qd.f64, ndim=1), qd.types.ndarray(dtype=qd.i32, ndim=1)

        @qd.kernel
        def dot(w: array):
            for i in c.x:
                c.loss[None] += w[i] * c.x[i]

        @qd.kernel
        def dot_of(weights: Weights):
            for i in c.x:
                c.loss[None] += weights.w[i] * c.x[i]

        @qd.kernel
        def chosen(at: integers):
            for i in range(N):
                c.loss[None] += c.x[at[i]]

        @qd.kernel
        def powers(n: integers):
            for i in c.x:
                v = 1.0
                for _ in range(n[i]):
                    v *= c.x[i]
                c.loss[None] += v

        @qd.kernel
        def added(w: array):
            for i in c.x:
                c.loss[None] += w[i] + c.x[i]

        @qd.kernel
        def double(w: array):
            for i in w:
                w[i] *= 2.0

        self.dot, self.dot_of, self.chosen, self.powers, self.added, self.double = dot, dot_of, chosen, powers, added, double

    def tape(self, *runs, **options):
        with qd.ad.Tape(loss=self.c.loss, **options):
            for run in runs:
                run()
        return self.c.x.grad.to_numpy()


def changed_arguments(g):
    """Kernel and argument, a launch, and what Python does to the array afterwards."""
    w, wide, large, at = np.arange(N, dtype=float), np.arange(2.0 * N), np.ones(100_001), np.zeros(N, np.int32)
    return [
        ("dot", "w", lambda: g.dot(w), lambda: w.__setitem__(1, 100.0)),
        ("dot", "w", lambda: g.dot(w), lambda: w.__setitem__(slice(None), w[::-1].copy())),  # the same numbers in another order
        ("dot", "w", lambda: g.dot(wide[::2]), lambda: wide.__setitem__(2, 100.0)),
        ("dot", "w", lambda: g.dot(large), lambda: large.__iadd__(1.0)),
        ("dot_of", "weights.w", lambda: g.dot_of(Weights(w)), lambda: w.__imul__(3.0)),
        ("chosen", "at", lambda: g.chosen(at), lambda: at.__setitem__(2, 3)),
        ("powers", "n", lambda: g.powers(at), lambda: at.__iadd__(1)),
    ]


@pytest.mark.parametrize("how", ["", "batch", "steps", "window"])
def test_an_argument_that_python_changes_before_its_gradient_is_refused_by_name(how):
    if how == "batch":
        qd.init(default_fp=qd.f64, batch=2, offline_cache=False)
    g = Given()
    state = qd.field(qd.f64, (5 if how == "steps" else 3, N), needs_grad=True)

    def in_steps(launch, change):
        qd.ad.checkpointed_steps(lambda t, k: (launch(), t == 3 and change()), 4, state)

    for kernel, argument, launch, change in changed_arguments(g):
        text = rf"gradient of `{kernel}` needs the values of the argument `{argument}` read here, but Python changed the array"
        hint = rf"do: give the launch a copy, `{kernel}\(\.\., w\.copy\(\)\)`"
        with pytest.raises(qd.DataAccessError, match=rf"{text}(.|\n)*at .*test_tape(.|\n)*{hint}"):
            g.tape(*((lambda: in_steps(launch, change),) if how in ("steps", "window") else (launch, change)))  # noqa: B023


def test_an_argument_that_does_not_change_or_is_not_read_again_is_no_error():
    g, w = Given(), np.arange(1.0, N + 1)
    thirds = np.arange(3 * N, dtype=np.int32)[1::3] % N
    np.testing.assert_allclose(g.tape(lambda: g.dot(w), lambda: g.dot(w)), 2 * w)
    np.testing.assert_allclose(g.tape(lambda: g.dot(w.copy()), lambda: w.__imul__(2.0)), w / 2)
    assert g.tape(lambda: g.added(w), lambda: w.__imul__(2.0)).tolist() == [1] * N  # not read again
    assert g.tape(lambda: g.chosen(thirds)).tolist() == np.bincount(thirds, minlength=N).tolist()
    before = w.copy()
    found = g.tape(
        lambda: g.dot(w), lambda: g.double(w), lambda: g.dot(w)
    )  # a kernel changes it: the tape keeps what was there
    np.testing.assert_allclose(found, 3 * before)
    with pytest.raises(qd.DataAccessError, match="`w` read here, but code outside of the kernels"):
        g.tape(lambda: g.dot(w), lambda: w.__setitem__(0, 5.0), validation=True)


def test_native_launches_before_and_after_a_tape_are_not_recorded():
    c = Chain()
    for _ in range(3):
        c.square()
        with qd.ad.Tape(loss=c.loss):
            c.total(1.0)
        c.total(7.0)
        c.total(7.0)
        assert c.y.grad.to_numpy().tolist() == [1] * N and not c.x.grad.to_numpy().any()


@qd.data_oriented
class Split:
    """y = 2 x, then z += y in a tape with assignments from Python between; all linear, so no value is read again."""

    def __init__(self):
        self.x, self.y = (qd.field(qd.f64, shape=N, needs_grad=True) for _ in range(2))
        self.v = qd.Vector.field(2, qd.f64, shape=N, needs_grad=True)
        self.loss = qd.field(qd.f64, shape=(), needs_grad=True)

    @qd.kernel
    def double(self):
        for i in self.x:
            self.y[i] = 2.0 * self.x[i]
            self.v[i] = [3.0 * self.x[i], 4.0 * self.x[i]]

    @qd.kernel
    def total(self):
        for i in self.x:
            self.loss[None] += self.y[i] + self.v[i].sum()


def test_a_gradient_stops_where_python_overwrote_a_result():
    s = Split()
    with qd.ad.Tape(loss=s.loss):
        s.double()
        s.y[1] = 5.0
        s.v[2].y = 1.0
        s.v[3] = [0.0, 0.0]
        s.total()
    assert s.x.grad.to_numpy().tolist() == [9, 7, 5, 2, 9, 9]
    with qd.ad.Tape(loss=s.loss):
        s.double()
        s.y.fill(0.0)
        s.total()
        s.v.from_numpy(np.zeros((N, 2)))
    assert s.x.grad.to_numpy().tolist() == [7] * N


def test_an_accumulator_that_python_clears_between_steps():
    """loss = sum over t of w_t * sum x^2, through one accumulator."""
    x, acc = qd.field(qd.f64, shape=N, needs_grad=True), qd.field(qd.f64, shape=(), needs_grad=True)
    loss = qd.field(qd.f64, shape=(), needs_grad=True)
    x.from_numpy(np.linspace(-1, 1, N))

    @qd.kernel
    def gather(w: qd.f64):
        for i in x:
            acc[None] += w * x[i] * x[i]

    @qd.kernel
    def take(scale: qd.f64):
        loss[None] += scale * acc[None]

    with qd.ad.Tape(loss=loss):
        for t in range(4):
            acc[None] = 0.0
            gather(1.0 + t)
            take(2.0)
    np.testing.assert_allclose(x.grad.to_numpy(), 2.0 * (1 + 2 + 3 + 4) * 2 * x.to_numpy())
    assert loss[None] == pytest.approx(20 * (x.to_numpy() ** 2).sum())


def test_a_gradient_goes_through_copy_from():
    x, y, z = (qd.ndarray(qd.f64, N, needs_grad=True) for _ in range(3))
    loss = qd.ndarray(qd.f64, 1, needs_grad=True)
    x.from_numpy(np.linspace(1, 2, N))
    with qd.ad.Tape(loss=loss):
        y.fill(0.0)
        scale(x, y, 3.0)
        z.copy_from(y)
        y.fill(7.0)
        add_up(z, loss)
        add_up(y, loss)
    np.testing.assert_allclose(x.grad.to_numpy(), 6 * x.to_numpy())
    assert y.grad.to_numpy().tolist() == [1] * N  # with respect to the first assignment
    assert not z.grad.to_numpy().any()

    c = Chain()
    d = qd.field(qd.f64, shape=N, needs_grad=True)

    @qd.kernel
    def last():
        for i in d:
            c.loss[None] += 2.0 * d[i]

    with qd.ad.Tape(loss=c.loss):
        c.square()
        d.copy_from(c.y)
        last()
    np.testing.assert_allclose(c.x.grad.to_numpy(), c.slope(2))


def test_a_tensor_or_a_torch_tensor_may_be_the_loss():
    loss = qd.tensor(qd.f64, (), needs_grad=True)
    x = qd.field(qd.f64, shape=N, needs_grad=True)

    @qd.kernel
    def add():
        for i in x:
            loss[None] += 3.0 * x[i]

    with qd.ad.Tape(loss=loss):
        add()
    assert x.grad.to_numpy().tolist() == [3] * N

    torch = pytest.importorskip("torch")
    given = torch.arange(N, dtype=torch.float64, requires_grad=True)
    out = torch.full((1,), 5.0, dtype=torch.float64, requires_grad=True)
    for _ in range(2):
        given.grad = None
        with qd.ad.Tape(loss=out):
            scale_into(given, out)
        assert out.item() == pytest.approx((given.detach() ** 2).sum().item())
        np.testing.assert_allclose(given.grad.numpy(), 2 * np.arange(N))
    for wrong, text in (
        (torch.zeros(2, requires_grad=True), "must be a tensor of one element"),
        (torch.zeros(1), "Gradients of loss are not allocated; do: create it with requires_grad"),
    ):
        with pytest.raises(qd.QdrunRuntimeError, match=text), qd.ad.Tape(loss=wrong):
            pass


@qd.kernel
def scale_into(x: qd.types.ndarray(dtype=qd.f64, ndim=1), out: qd.types.ndarray(dtype=qd.f64, ndim=1)):
    for i in x:
        out[0] += x[i] * x[i]


def test_a_failed_launch_that_is_caught_inside_is_refused():
    with qd.init(debug=True, default_fp=qd.f64, offline_cache=False):
        c = Chain()

        @qd.kernel
        def fails(n: qd.i32):
            for i in range(n):
                assert i < 2, "no"
                c.y[i] = 1.0

        with pytest.raises(qd.QdrunRuntimeError, match=r"<kernel .*fails> raised QdrunAssertionError inside this tape"):
            with qd.ad.Tape(loss=c.loss):
                c.square()
                with pytest.raises(qd.QdrunAssertionError):
                    fails(3)
                c.total(1.0)
        assert not c.x.grad.to_numpy().any()
        with qd.ad.Tape(loss=c.loss):
            c.square()
            with pytest.raises(qd.QdrunTypeError):
                fails("one")  # refused before it ran
            c.total(1.0)
        np.testing.assert_allclose(c.x.grad.to_numpy(), c.slope(1))


def test_a_gradient_that_fails_leaves_the_program_usable(program):
    c = Chain()
    f = qd.ad.grad_replaced(lambda: c.total(1.0))

    @qd.ad.grad_for(f)
    def backward():
        raise KeyError("mine")

    with pytest.raises(KeyError), qd.ad.Tape(loss=c.loss):
        c.square()
        f()
    assert program.recorders.tape is None and not program.replay.running
    with qd.ad.Tape(loss=c.loss):
        c.square()
        c.total(1.0)
    np.testing.assert_allclose(c.x.grad.to_numpy(), c.slope(1))


def test_another_thread_is_refused_while_a_tape_records(program):
    c = Chain()
    c.square()
    seen = []

    def work():
        try:
            with program:
                c.square()
        except qd.QdrunRuntimeError as e:
            seen.append(str(e))
        finally:
            done.set()

    done = threading.Event()
    with qd.ad.Tape(loss=c.loss):
        c.square()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        c.total(1.0)
    assert done.is_set() and len(seen) == 1 and "is launched in another thread while a tape records" in seen[0]
    np.testing.assert_allclose(c.x.grad.to_numpy(), c.slope(1))


def test_each_thread_has_a_tape_of_its_own():
    found = {}

    def work(number):
        with qd.init(default_fp=qd.f64, offline_cache=False):
            c = Chain()
            for _ in range(20):
                with qd.ad.Tape(loss=c.loss):
                    c.square()
                    c.total(1.0 + number)
            found[number] = (c.x.grad.to_numpy(), c.slope(1.0 + number))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 4
    for got, expected in found.values():
        np.testing.assert_allclose(got, expected)


def test_programs_side_by_side_have_a_tape_each():
    c = Chain()
    with qd.ad.Tape(loss=c.loss):
        c.square()
        with qd.init(default_fp=qd.f64, offline_cache=False):
            d = Chain()
            with qd.ad.Tape(loss=d.loss, grad_check=[d.x]):
                d.square()
                d.total(3.0)
            np.testing.assert_allclose(d.x.grad.to_numpy(), d.slope(3))
        c.total(1.0)
    np.testing.assert_allclose(c.x.grad.to_numpy(), c.slope(1))


class Two:
    """A program that records, and another one, with what can be done in it."""

    def __init__(self):
        self.other = qd.init(default_fp=qd.f64, offline_cache=False)
        self.theirs = qd.field(qd.f64, shape=N, needs_grad=True, name="theirs")
        self.theirs.fill(1.0)
        self.slots = qd.field(qd.f64, shape=(2, N), needs_grad=True)
        theirs = self.theirs

        @qd.kernel
        def double():
            for i in theirs:
                theirs[i] = 2.0 * theirs[i]

        self.double = double
        for _ in range(3):  # natively from now on
            double()
        self.graph = qd.capture(double)
        self.mine = qd.init(default_fp=qd.f64, offline_cache=False)
        self.c = Chain(needs_dual=True)
        self.replaced = qd.ad.grad_replaced(lambda: None)
        self.replaced.fn.__qualname__ = "mine"

    def there(self, run, *args):
        """Run it in the other program."""
        with self.other:
            run(*args)

    def ways(self):
        """What no recorder of the first program sees, and what the message calls it."""
        kernel = "kernel `double` is launched in another program"
        copied = "is copied from `theirs` of another program"
        return [
            (lambda: self.there(self.double), kernel),
            (lambda: (self.other.activate(), self.double()), kernel),
            (lambda: self.there(qd.ad.checkpointed_steps, lambda t, k: self.double(), 1, self.slots), kernel),
            (self.graph, "<graph of `double`: 1 launches> is launched in another program"),
            (lambda: self.there(self.replaced), "<grad_replaced mine> is called in another program"),
            (lambda: self.c.x.copy_from(self.theirs), copied),
            (lambda: self.c.x.from_numpy(self.theirs), copied),
            (lambda: self.theirs.copy_from(self.c.x), "`theirs` is copied from"),
        ]

    def record(self, recorder, run):
        """Run it while the first program records; the program is usable afterwards."""
        self.mine.activate()
        try:
            with recorder():
                self.c.square()
                run()
                self.mine.activate()
                self.c.total(1.0)
        finally:
            self.mine.activate()


def test_what_another_program_does_inside_a_tape_is_refused_by_name():
    two = Two()
    c = two.c
    forward = lambda: qd.ad.FwdMode(loss=c.loss, param=c.x, seed=[1.0] * N)
    recorders = {"a tape records: no gradient": lambda: qd.ad.Tape(loss=c.loss), "FwdMode is open: no tangent": forward}
    for while_, recorder in recorders.items():
        for run, text in two.ways():
            with pytest.raises(qd.QdrunRuntimeError, match=f"{text}(.|\\n)*do: ") as error:
                two.record(recorder, run)
            assert while_ in str(error.value)
            assert ("test_tape.py:" in str(error.value)) == ("kernel `double`" in text)
    two.record(recorders["a tape records: no gradient"], lambda: two.theirs.fill(2.0))  # a constant, whatever records
    np.testing.assert_allclose(c.x.grad.to_numpy(), c.slope(1))
    c.square()
    c.total(1.0)

    def both(run):
        c.square()
        run()

    for run in [*(run for run, _ in two.ways()), lambda: two.theirs.fill(2.0)]:
        with pytest.raises(
            qd.QdrunRuntimeError, match=r"another program while the graph of `.*both` is recorded: it would run once"
        ):
            qd.capture(both, run)
        two.mine.activate()


def test_another_program_may_do_what_the_tape_need_not_see():
    """In a function without a gradient, and in another thread."""
    two = Two()
    c, started = two.c, two.theirs.to_numpy()
    hidden = qd.ad.no_grad(lambda: two.there(two.double))

    def work():
        with two.other:
            two.double()

    thread = threading.Thread(target=work)
    with qd.ad.Tape(loss=c.loss):
        c.square()
        hidden()
        thread.start()
        thread.join()
        c.total(1.0)
    np.testing.assert_allclose(c.x.grad.to_numpy(), c.slope(1))
    assert two.theirs.to_numpy().tolist() == (4 * started).tolist()
    with two.other:
        two.double()
        two.double()
        assert not two.other.admission.flags[0]  # launches are native again


def test_an_array_of_another_program_is_refused():
    x, out = qd.ndarray(qd.f64, N, needs_grad=True), qd.ndarray(qd.f64, 1, needs_grad=True)
    add_up(x, out)
    with qd.init(default_fp=qd.f64, offline_cache=False):
        with pytest.raises(qd.QdrunTypeError, match="argument `x`: this ndarray belongs to another program"):
            add_up(x, out)
        add_up(qd.ndarray(qd.f64, N, needs_grad=True), qd.ndarray(qd.f64, 1, needs_grad=True))
        with pytest.raises(qd.QdrunTypeError, match="another program"):
            add_up(x, out)
    add_up(x, out)


def test_another_program_that_stays_current_is_refused():
    c = Chain()
    outer = qd.current_program()
    with pytest.raises(qd.QdrunRuntimeError, match="another program became current inside the tape"):
        with qd.ad.Tape(loss=c.loss):
            other = qd.init(default_fp=qd.f64, offline_cache=False)
    other.close()
    outer.activate()


def test_clear_all_gradients_of_either_kind():
    x = qd.field(qd.f64, shape=N, needs_grad=True, needs_dual=True)
    for what, kept, cleared in (
        (None, "dual", "grad"),
        ("dual", "grad", "dual"),
        (qd.ad.SNodeGradType.ADJOINT, "dual", "grad"),
    ):
        x.grad.fill(1)
        x.dual.fill(1)
        qd.ad.clear_all_gradients() if what is None else qd.ad.clear_all_gradients(what)
        assert getattr(x, kept).to_numpy().all() and not getattr(x, cleared).to_numpy().any()
    with pytest.raises(qd.QdrunRuntimeError, match="neither ADJOINT nor DUAL"):
        qd.ad.clear_all_gradients("second")


def test_a_tape_that_records_nothing_says_so():
    with qd.init(default_fp=qd.f64):
        c = Chain()
        with pytest.warns(qd.GradientWarning, match="nothing was launched inside of the tape"):
            with qd.ad.Tape(loss=c.loss):
                pass
        c.square()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with qd.ad.Tape(loss=c.loss):
                c.square()
                c.total(1.0)
