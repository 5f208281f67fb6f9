"""Launches of a recorded batch that compute the same for every trial run once: trials get what they get launch by launch, and alone."""

import os

import numpy as np
import pytest

import qdrun as qd
from qdrun.jobs.base import Session
from qdrun.jobs.core.batch import BatchSession
from qdrun.jobs.mass_spring import MassSpring, MassSpringParams

N, STEPS = 3, 5
DEVICES = [{"arch": qd.cpu}, {"arch": qd.cpu, "cpu_lanes": 1}, {"arch": qd.cuda, "device": "emulated"}]
PROGRAMS = int(os.environ.get("QDRUN_RUN_ONCE_PROGRAMS", "24"))


class Signal:
    """A signal of time that drives what differs between trials.

    Args:
        way: what is changed, so that the signal differs, or its launches cannot be moved; empty: nothing.
    """

    def __init__(self, way=""):
        self.way, self.rows = way, np.zeros((0, STEPS + 1, N))
        self.rate = qd.field(qd.f64, shape=(), per_trial=False)
        self.rate[None] = 0.7
        self.own = qd.field(qd.f64, shape=())
        self.signal = qd.field(qd.f64, shape=(STEPS + 1, N), needs_grad=True)
        self.smooth = qd.field(qd.f64, shape=(STEPS + 1, N), needs_grad=True)
        self.x = qd.field(qd.f64, shape=(STEPS + 1, N), needs_grad=True)
        self.gain, self.loss = (qd.field(qd.f64, shape=(), needs_grad=True) for _ in range(2))
        rate, own, signal, smooth = self.rate, self.own, self.signal, self.smooth
        x, gain, loss = self.x, self.gain, self.loss

        @qd.kernel
        def excite(t: qd.i32, c: qd.f64):
            for i in range(N):
                if qd.static(way == "random"):
                    signal[t + 1, i] = signal[t, i] + qd.random(qd.f64)
                elif qd.static(way == "own"):
                    signal[t + 1, i] = signal[t, i] + qd.sin(c * t + i) * own[None]
                elif qd.static(way == "overwritten"):
                    signal[1, i] = signal[0, i] + qd.sin(rate[None] * t + i)
                else:
                    signal[t + 1, i] = signal[t, i] + qd.sin(rate[None] * c * t + i)
                if qd.static(way == "fails"):
                    signal[t + 1, i] = qd.sqrt(1.0 - signal[t + 1, i])

        @qd.kernel
        def even(t: qd.i32):
            for i in range(N):
                more = own[None] if qd.static(way == "half") else 0.5
                smooth[t + 1, i] += more * (signal[t + 1, i] + signal[t + 1, (i + 1) % N])

        @qd.kernel
        def disturb():
            for i in range(N):
                signal[2, i] += own[None]

        @qd.kernel
        def move(t: qd.i32):
            for i in range(N):
                at = 1 if qd.static(way == "overwritten") else t + 1
                x[t + 1, i] = x[t, i] + gain[None] * qd.sin(x[t, i] + signal[at, i]) * smooth[t + 1, i]

        @qd.kernel
        def total():
            for i in range(N):
                loss[None] += x[STEPS, i] ** 2

        self.excite, self.even, self.disturb, self.move, self.total = excite, even, disturb, move, total

    def __call__(self):
        if self.way == "rows":
            self.signal.from_numpy(self.rows)
        elif self.way != "kept":
            self.signal.fill(0.25)
        self.smooth.fill(0.0)
        if self.way == "again":
            self.even(1)
            self.smooth.fill(0.0)
        if self.way in ("late", "overwritten", "disturbed"):  # a tape refuses such orders
            self.loss.fill(0.0)
            self.launch()
            return
        with qd.ad.Tape(self.loss):
            self.launch()

    def launch(self):
        for t in range(STEPS):
            if self.way == "late":
                self.move(t)
            self.excite(t, 1.5)
            self.even(t)
            if self.way == "disturbed" and t == 3:
                self.disturb()
            if self.way != "late":
                self.move(t)
        self.total()

    def give(self, rng, trials):
        self.x.from_numpy(rng.uniform(-1, 1, (trials, STEPS + 1, N)))
        self.gain.from_numpy(rng.uniform(0.5, 1, trials))
        self.own.from_numpy(rng.uniform(0.5, 1, trials))
        self.signal.from_numpy(rng.uniform(0, 1, (trials, STEPS + 1, N)))

    def results(self):
        fields = self.loss, self.gain.grad, self.x.grad, self.signal.grad, self.x, self.signal, self.smooth
        return [field.to_numpy() for field in fields]


def run(way, trials, options):
    """What launches one by one give, and the graph twice; the graph's ``once`` and its text."""
    with qd.init(batch=trials, random_seed=3, default_fp=qd.f64, nan_check=way == "fails", **options) as program:
        work, found = Signal(way), []
        work.give(np.random.default_rng(trials), trials)
        program.materialize()
        work.rows = np.resize(np.arange(program.trials.width), trials)[:, None, None] + np.zeros((STEPS + 1, N))
        program.batch.keep_failures = True
        work()
        graph = qd.capture(work)
        for launch in (work, graph, graph):
            program.seeds.drawn = 0
            work.give(np.random.default_rng(trials + 1), trials)
            failed = with_failures(program, launch)
            found.append([*work.results(), failed])
    return found, dict(graph.once), repr(graph)


def with_failures(program, launch):
    """Launch; the trials that have failed."""
    program.batch.forget_failures()
    launch()
    qd.sync()
    return np.array(sorted(program.batch.failed()))


def close(found, wanted, exact):
    exact = exact and os.environ["QDRUN_TEST_ARCH"] == "cpu"  # on a GPU, threads add in any order
    return all(
        np.array_equal(a, b) if exact else np.allclose(a, b, rtol=1e-11, atol=1e-13) for a, b in zip(found, wanted, strict=True)
    )


@pytest.mark.parametrize("options", DEVICES, ids=["cpu", "lanes", "gpu"])
@pytest.mark.parametrize("trials", [9, 17])
def test_launches_that_read_nothing_of_a_trial_run_once(options, trials):
    found, once, text = run("", trials, options)
    assert once == {"excite": STEPS, "even": STEPS}
    assert "(10 of them once for all trials: excite, even)" in text
    for results in found[1:]:
        assert close(results, found[0], options["arch"] is qd.cpu)
    rng, trial = np.random.default_rng(trials + 1), trials // 2
    with qd.init(arch=qd.cpu, default_fp=qd.f64):
        alone, x, gain = Signal(), rng.uniform(-1, 1, (trials, STEPS + 1, N)), rng.uniform(0.5, 1, trials)
        alone.x.from_numpy(x[trial])
        alone.gain[None] = gain[trial]
        alone()
        for mine, all_trials in zip(alone.results(), found[2][:-1], strict=True):
            assert np.allclose(mine, all_trials[trial], rtol=1e-11, atol=1e-13)


WAYS = {
    "random": {},
    "own": {},  # reads what differs
    "half": {"excite": STEPS},  # what reads it differs
    "fails": {},  # in each trial
    "kept": {},  # the signal begins with what the trials had
    "overwritten": {},  # each step overwrites what the last one has read
    "disturbed": {},  # another launch writes to it, too
    "late": {},  # another launch has read the elements before they are written
    "again": {},  # filled after a launch
}


@pytest.mark.parametrize("options", DEVICES, ids=["cpu", "lanes", "gpu"])
@pytest.mark.parametrize("way", WAYS)
def test_what_may_differ_between_trials_runs_for_each(way, options):
    found, once, text = run(way, 9, options)
    assert once == WAYS[way]
    assert ("once for all trials" in text) == bool(once)
    failed = [results.pop() for results in found]
    assert all(len(trials) == (9 if way == "fails" else 0) for trials in failed)
    for results in found[1:] if way != "fails" else []:
        assert close(results, found[0], options["arch"] is qd.cpu)


def test_a_field_is_not_the_same_in_all_trials_because_it_is_in_all_groups():
    found, once, _ = run("rows", 16, {"arch": qd.cpu})
    assert once == {} and all(close(results, found[0], True) for results in found[1:])
    assert len(np.unique(found[0][-3][:, 0, 0])) > 1


def test_the_trials_of_one_group_gain_nothing():
    assert run("", 3, {"arch": qd.cpu})[1] == {}


@pytest.mark.parametrize("options", DEVICES[::2], ids=["cpu", "gpu"])
def test_random_sequences_give_what_their_launches_give_one_by_one(options):
    """Fields that kernels write from others, at steps and in an order drawn at random, between fills."""
    rng, moved, programs = np.random.default_rng(11), 0, PROGRAMS if options["arch"] is qd.cpu else PROGRAMS // 6
    with qd.init(batch=9, default_fp=qd.f64, **options):
        fields = [qd.field(qd.f64, shape=(STEPS, 2), needs_grad=k % 2 == 0, name=f"f{k}") for k in range(5)]
        fixed, loss = qd.field(qd.f64, shape=STEPS, per_trial=False), qd.field(qd.f64, shape=(), needs_grad=True)
        fixed.from_numpy(rng.uniform(0.5, 1, STEPS))

        def kernel(to, source, adds):
            @qd.kernel
            def step(a: qd.i32, b: qd.i32):
                for i in range(2):
                    value = qd.sin(source[b, i] + fixed[b]) * (1.0 + 0.1 * a)
                    if qd.static(adds):
                        to[a, i] += value
                    else:
                        to[a, i] = value

            return step

        @qd.kernel
        def total():
            for i, j in fields[4]:
                loss[None] += fields[4][i, j] ** 2

        # the first field differs between trials; the others do if something that does is added to them
        pairs = [(0, 0), (4, 0), (4, 1), (4, 2), (1, 2), (2, 3), (3, 3), (2, 1), (3, 1), (1, 0)]
        kernels = {pair: kernel(fields[pair[0]], fields[pair[1]], adds=k % 3 > 0) for k, pair in enumerate(pairs)}
        for _ in range(programs):
            chosen = [pairs[k] for k in rng.choice(len(pairs), rng.integers(2, 6), replace=False)]
            steps = [(chosen[rng.integers(len(chosen))], *rng.integers(0, STEPS, 2)) for _ in range(rng.integers(1, 9))]
            if rng.random() < 0.7:  # as time goes
                steps = sorted((p, min(b + 1, STEPS - 1), b) if p[0] != p[1] else (p, b, b) for p, _, b in steps)
                rng.shuffle(steps)
            filled, refill = [k for k in range(5) if rng.random() < 0.8], rng.random() < 0.1

            def work(filled=filled, steps=steps, refill=refill):
                for k in filled:
                    fields[k].fill(0.5)
                for number, (pair, a, b) in enumerate(steps):
                    kernels[pair](int(a), int(b))
                    if refill and number == 1:
                        fields[2].fill(0.1)

            def give(seed):
                values = np.random.default_rng(seed)
                for field in fields:
                    field.from_numpy(values.uniform(-1, 1, (9, STEPS, 2)))

            give(0)
            work()
            graph, found = qd.capture(work), []
            moved += sum(graph.once.values()) > 0
            for launch in (work, graph, graph):
                give(1)
                launch()
                found.append([field.to_numpy() for field in fields])
            assert close(found[1], found[0], True) and close(found[2], found[0], True), (filled, steps, refill, graph)
    assert moved > programs // 10


def test_inputs_that_are_the_same_in_all_trials_decide_what_runs_once():
    """A session of batches: the signal of the muscles runs once, until a run in which its rate differs."""
    trials, rng = 18, np.random.default_rng(4)
    stiffness = rng.uniform(500, 1500, trials)
    columns = [
        {"stiffness": stiffness},
        {"stiffness": stiffness, "omega": np.full(trials, 17.0)},
        {"stiffness": stiffness, "omega": rng.uniform(15, 25, trials)},
        {"stiffness": stiffness, "omega": np.full(trials, 21.0)},
        {"stiffness": stiffness[:5], "damping": rng.uniform(5, 20, 5)},
    ]
    params, once, outcomes = MassSpringParams(steps=20), [], []
    with BatchSession.open(MassSpring, params, trials, wanted=("stiffness",)) as batch:
        for given in [columns[0], *columns, *columns]:
            outcomes.append((given, batch.run_columns(given)))
            once.append(dict(batch.job.run_once()))
    assert once == [{}, {"excite": 20}, {"excite": 20}, *[{}] * 8]
    with Session(MassSpring(params, wanted=("stiffness",))) as session:
        for given, outcome in outcomes[:6]:
            for row in (0, len(outcome) - 1):
                alone = session.run(params.model_copy(update={name: float(column[row]) for name, column in given.items()}))
                found = outcome.row(row)
                assert np.isclose(found.loss, alone.loss, rtol=1e-11)
                assert np.isclose(found.gradients["stiffness"], alone.gradients["stiffness"], rtol=1e-9)
