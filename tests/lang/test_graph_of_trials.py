"""Graphs of batched programs: each trial gives what it gives in launches one after another, and alone."""

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.errors import TrialsFailed

N, STEPS = 6, 5


class Walk:
    """Steps with an inner loop that ends where the trial says, a table that all trials share, and a loss."""

    def __init__(self, noise=False):
        self.x = qd.field(qd.f64, shape=(STEPS + 1, N), needs_grad=True)
        self.k = qd.field(qd.f64, shape=(), needs_grad=True)
        self.loss = qd.field(qd.f64, shape=(), needs_grad=True)
        self.count = qd.field(qd.i32, shape=())
        self.ahead = qd.field(qd.i32, shape=N, per_trial=False)
        self.ahead.from_numpy(np.roll(np.arange(N), 1).astype(np.int32))
        x, k, loss, count, ahead = self.x, self.k, self.loss, self.count, self.ahead

        @qd.kernel
        def step(t: qd.i32, c: qd.f64):
            for i in range(N):
                v = x[t, i]
                for _ in range(count[None]):
                    v = qd.sin(v) + c * k[None] * x[t, ahead[i]]
                x[t + 1, i] = v

        @qd.kernel
        def shake(t: qd.i32):
            for i in range(N):
                x[t, i] += 0.1 * qd.randn(qd.f64)

        @qd.kernel
        def total():
            for i in range(N):
                loss[None] += x[STEPS, i] ** 2

        self.step, self.shake, self.total, self.noise = step, shake, total, noise

    def __call__(self):
        with qd.ad.Tape(self.loss):
            for t in range(STEPS):
                self.step(t, 0.5)
                if self.noise:
                    self.shake(t + 1)
            self.total()

    def give(self, x, k, count):
        self.x.from_numpy(x)
        self.k.from_numpy(k)
        self.count.from_numpy(count)

    def result(self):
        return [q.to_numpy() for q in (self.loss, self.k.grad, self.x.grad, self.x)]

    def spoil(self):
        for q in (self.loss, self.k.grad, self.x.grad, self.loss.grad):
            q.fill(7.0)


def inputs(rng, trials):
    x, k = rng.uniform(-1, 1, (trials, STEPS + 1, N)), rng.uniform(-1, 1, trials)
    return x, k, rng.integers(0, 9, trials).astype(np.int32)


def same(a, b):
    return all(np.array_equal(p, q) for p, q in zip(a, b, strict=True))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("trials", [1, 3, 8, 37])
@pytest.mark.parametrize("noise", [False, True])
def test_a_graph_gives_what_launches_give_and_each_trial_what_it_gives_alone(trials, threads, noise):
    rng = np.random.default_rng(trials + 100 * threads)
    options = {"cpu_max_num_threads": threads, "arch": qd.cpu}
    given, found = [inputs(rng, trials) for _ in range(3)], []
    with qd.init(batch=trials, random_seed=40, **options) as program:
        walk = Walk(noise)
        walk.count.fill(8)
        walk()
        graph = qd.capture(walk)
        for x, k, _ in given:
            results = []
            for launch in (walk, graph):
                program.seeds.drawn = 0
                walk.give(x, k, np.full(trials, 8, np.int32))
                walk.spoil()
                launch()
                results.append(walk.result())
            assert same(*results)
            found.append(results[0])
    for trial in {0, trials // 2, trials - 1}:
        with qd.init(random_seed=40 + trial, **options) as program:
            walk = Walk(noise)
            for (x, k, _), result in zip(given, found):
                program.seeds.drawn = 0
                walk.give(x[trial], k[trial], np.array(8, np.int32))
                walk()
                for alone, of_batch in zip(walk.result(), result, strict=True):
                    assert np.allclose(alone, of_batch[trial], rtol=1e-12, atol=1e-14)


def test_gradients_of_trials_with_other_bounds_are_those_of_differences():
    """Loops end where each trial says; the plan is that of the largest."""
    rng, trials = np.random.default_rng(5), 11
    with qd.init(arch=qd.cpu, batch=trials):
        walk = Walk()
        x, k, count = inputs(rng, trials)
        walk.give(x, k, count)
        walk()
        graph = qd.capture(walk)
        walk.spoil()
        graph()
        slope, losses = walk.k.grad.to_numpy(), []
        for eps in (1e-6, -1e-6):
            walk.give(x, k + eps, count)
            graph()
            losses.append(walk.loss.to_numpy())
        assert np.allclose(slope, (losses[0] - losses[1]) / 2e-6, rtol=1e-6, atol=1e-8)
        assert len(set(slope.tolist())) == trials - (count == 0).sum() + (count == 0).any()
        walk.count.fill(30)
        with pytest.raises(qd.QdrunRuntimeError, match="for the gradient `step_grad`, which has another plan now"):
            graph()


def test_a_trial_that_fails_stops_no_other_one():
    trials = 13
    with qd.init(arch=qd.cpu, batch=trials, check_out_of_bound=True) as program:
        x, y, at = qd.field(qd.f64, shape=N), qd.field(qd.f64, shape=()), qd.field(qd.i32, shape=())

        @qd.kernel
        def look(c: qd.i32):
            for i in x:
                y[None] += x[(i + at[None] * c) % (N + 5)]

        @qd.kernel
        def more():
            for i in x:
                x[i] += 1.0

        def work():
            y.fill(0.0)
            for c in range(3):
                more()
                look(c)

        content = np.random.default_rng(1).uniform(0, 1, (trials, N))
        at.fill(0)
        work()
        graph = qd.capture(work)
        bad = [2, 7, 12]
        for state in (False, True, False):
            ends, failures = [], []
            for launch in (work, graph):
                program.batch.keep_failures = True
                x.from_numpy(content)
                at.from_numpy(np.array([state and b in bad for b in range(trials)], np.int32) * 5)
                launch()
                failures.append({b: str(e) for b, e in program.batch.failed().items()})
                program.batch.forget_failures()
                ends.append(np.delete(y.to_numpy(), bad))
            assert failures[0] == failures[1] and sorted(failures[0]) == (bad if state else [])
            np.testing.assert_allclose(*ends, rtol=1e-14 if program.device.on_host else 1e-12)  # a GPU adds in any order
        program.batch.keep_failures = False
        at.from_numpy(np.arange(trials).astype(np.int32) % 2 * 5)
        with pytest.raises(
            TrialsFailed, match=r"6 of 13 trials failed: 1, 3, 5, 7, 9, 11\n  trial 1: .*axis 0 of `x` has index"
        ) as e:
            graph()
            qd.sync()
        assert sorted(e.value.failed) == [1, 3, 5, 7, 9, 11]
        at.fill(0)
        graph()  # nothing is left of it


@pytest.mark.parametrize("trials", [1, 5, 16])
def test_random_writes_are_those_of_numpy(trials):
    """Fields and ndarrays of every form, elements of them, and columns with something for each trial."""
    rng = np.random.default_rng(trials)
    with qd.init(arch=qd.cpu, batch=trials):
        for round_ in range(40):
            shape = tuple(int(n) for n in rng.integers(1, 5, rng.integers(0, 4)))
            element = tuple(int(n) for n in rng.integers(1, 4, rng.integers(0, 3)))
            dtype = (qd.f64, qd.f32, qd.i32, qd.u8)[rng.integers(4)]
            kind = {0: qd.types.vector, 1: qd.types.vector, 2: qd.types.matrix}[len(element)]
            whole = kind(*element, dtype) if element else dtype
            make = qd.ndarray if round_ % 3 == 0 and shape else qd.field
            x, y = make(whole, shape=shape), make(whole, shape=shape)
            columns, one = rng.integers(0, 200, (trials, *shape, *element)), rng.integers(0, 200, (*shape, *element))
            value, at = rng.integers(0, 120, element), tuple(int(rng.integers(n)) for n in shape)
            writes = [
                lambda x=x, columns=columns: x.from_numpy(columns),
                lambda x=x, one=one: x.from_numpy(one),
                lambda x=x, value=value: x.fill(value if value.ndim else int(value)),
                lambda x=x, value=value, at=at: x.__setitem__(at, 2 * value if value.ndim else int(value) + 1),
                lambda x=x, y=y: y.copy_from(x),
                lambda x=x, y=y: x.copy_from(y),
            ]
            order = rng.permutation(len(writes))

            def work(writes=writes, order=order):
                for k in order:
                    writes[k]()

            y.from_numpy(columns)
            work()
            expected = x.to_numpy(), y.to_numpy()
            x.fill(0)
            y.from_numpy(columns)
            before = y.to_numpy()
            graph = qd.capture(work)
            assert not x.to_numpy().any() and np.array_equal(y.to_numpy(), before)
            graph()
            assert np.array_equal(x.to_numpy(), expected[0]) and np.array_equal(y.to_numpy(), expected[1])


def test_time_steps_that_fit_one_window_are_part_of_a_graph():
    """Python clears the slots of each trial before the steps, and copies none."""
    trials, steps = 11, 7
    with qd.init(arch=qd.cpu, batch=trials, cpu_max_num_threads=2):
        x = qd.field(qd.f64, shape=(steps + 1, 3), needs_grad=True)
        push, loss = qd.field(qd.f64, shape=(steps, 3), needs_grad=True), qd.field(qd.f64, shape=(), needs_grad=True)

        @qd.kernel
        def add(k: qd.i32):
            for i in range(3):
                push[k, i] += qd.sin(x[k, i])
            for i in range(3):
                x[k + 1, i] += x[k, i] + 0.1 * push[k, (i + 1) % 3]

        @qd.kernel
        def end():
            for i in range(3):
                loss[None] += x[steps, i] ** 2

        def work():
            with qd.ad.Tape(loss):
                qd.ad.checkpointed_steps(lambda t, k: add(k), steps, [x], [push])
                end()

        rng = np.random.default_rng(8)
        work()
        graph = qd.capture(work)
        for _ in range(3):
            start, found = rng.uniform(-1, 1, (trials, steps + 1, 3)), []
            for launch in (work, graph):
                x.from_numpy(start)
                push.fill(3.0)
                launch()
                found.append([t.to_numpy() for t in (loss, x, push, x.grad)])
            (sums, *others), (again, *same_others) = found
            np.testing.assert_allclose(sums, again, rtol=1e-14)  # threads of a GPU add in any order
            assert same(others, same_others) and np.abs(found[0][3][:, 0]).min() > 0


def test_what_trials_share_is_not_written_in_a_graph():
    with qd.init(arch=qd.cpu, batch=5):
        walk = Walk()
        walk.count.fill(2)
        walk()
        for write in (lambda: walk.ahead.fill(0), lambda: walk.ahead.from_numpy(np.zeros(N, np.int32))):

            def work(write=write):
                walk.step(0, 1.0)
                write()

            with pytest.raises(
                qd.QdrunRuntimeError, match="Python writes to memory that all trials share, while a graph of a batched"
            ):
                qd.capture(work)
        assert walk.ahead.to_numpy().tolist() == np.roll(np.arange(N), 1).tolist()
        with pytest.raises(qd.QdrunRuntimeError, match="Python reads memory, which launches that are not run yet may write"):
            qd.capture(walk.x.to_numpy)


def test_adstacks_of_workers_are_apart():
    """Each worker has a row of its own, in whatever launch and task the others are."""
    start = np.random.default_rng(3).uniform(-1, 1, (64, 3))
    expected = np.zeros((64, 3))
    for n in (60, 5, 300):
        v, slope = start.copy(), np.ones((64, 3))
        for _ in range(n):
            v, slope = np.sin(v) + 0.1, slope * np.cos(v)
        expected += 4.0 * slope
    for threads in (1, 2):
        with qd.init(arch=qd.cpu, batch=64, cpu_max_num_threads=threads) as program:
            assert np.allclose(adstack_slopes(program, start), expected, rtol=1e-12)


def adstack_slopes(program, start):
    x, y = qd.field(qd.f64, shape=3, needs_grad=True), qd.field(qd.f64, shape=3, needs_grad=True)

    @qd.kernel
    def run(n: qd.i32):
        for i in x:
            v = x[i]
            for _ in range(n):
                v = qd.sin(v) + 0.1
            y[i] = v
        for i in x:
            for _ in range(2):
                y[i] *= 2.0

    def work():
        x.grad.fill(0.0)
        for n in (60, 5, 300):
            y.grad.fill(1.0)
            run.grad(n)

    x.from_numpy(start)
    run(5)
    work()
    assert program.usage()["adstack"] > 0
    graph, first = qd.capture(work), x.grad.to_numpy()
    for _ in range(20):
        x.grad.fill(5.0)
        graph()
        assert np.array_equal(x.grad.to_numpy(), first)
    return first
