"""A job that is put back to what ``build`` has left: in a program that is kept, each trial gives what it gives alone, to the bit."""

import collections
import functools
import random
import time

import numpy as np
import pytest
from untidy import HABITS, ON_HOST, REFUSED, Body

import qdrun as qd
from qdrun.compiler.program.reuse import snapshot
from qdrun.jobs import restore
from qdrun.jobs.base import Job, JobParams, Outcome, Session, execute, run_trial
from qdrun.jobs.restore import Attributes


class UntidyParams(JobParams):
    habits: tuple[str, ...] = ()
    k: float = 1.0


class Untidy(Job[UntidyParams]):
    gradients = ("k",)
    live = ("k",)

    def habits(self):
        return [HABITS[name] for name in self.params.habits]

    def build(self):
        self.k = qd.field(qd.f64, shape=(), needs_grad=True)
        self.loss = qd.field(qd.f64, shape=(), needs_grad=True)
        k, loss = self.k, self.loss

        @qd.kernel
        def square():
            loss[None] += k[None] * k[None]

        for each in self.habits():
            each.build(self)
        self.square = square

    def fill(self):
        self.k[None] = self.params.k
        for each in self.habits():
            each.fill(self)

    def launches(self):
        return [(self.square, ()), *(launch for each in self.habits() for launch in each.launches(self))]

    def run(self):
        self.square()
        self.square.grad()  # the loss is not set to zero, its gradient adds up: no tape clears them
        found = {each: HABITS[each].use(self) for each in self.params.habits}
        self.loss.grad[None] = 1.0
        return Outcome(float(self.loss[None]), {"k": float(self.k.grad[None])}, found)


def rows(finished):
    numbers = {"loss": finished.outcome.loss, **finished.outcome.gradients, **finished.outcome.outputs}
    shown = {name: float(value).hex() for name, value in numbers.items()}
    return shown, finished.plan, finished.used, finished.peak_bytes


def options(backend, which):
    return {"backend": backend, "device": which, "threads": 1, "memory_limit_bytes": None, "memory_budget_bytes": None}


def kept(trials, backend="cpu", which=None):
    """Rows of trials one after the other, each in the program of the one before where that can be; and how many were built."""
    out, builds, session = [], 0, None
    for params in trials:
        if session is None or not session.renew(params, ["k"], 0):
            if session is not None:
                session.close()
            session = Session(Untidy(params, wanted=["k"]), **options(backend, which)).__enter__()
            builds += 1
        out.append(rows(run_trial(session, Session.run, time.perf_counter())))
        if not session.clean:
            session = session.close()
    if session is not None:
        session.close()
    return out, builds


def alone(params, backend="cpu", which=None):
    return rows(execute(Untidy(params, wanted=["k"]), **options(backend, which)))


def check(habits, ks, backend="cpu", which=None):
    trials = [UntidyParams(habits=habits, k=k) for k in ks]
    found, builds = kept(trials, backend, which)
    for params, row in zip(trials, found, strict=True):
        assert row == alone(params, backend, which), params
    return builds


@pytest.mark.parametrize("name", HABITS)
def test_what_one_run_leaves_the_next_does_not_find(name):
    builds = check((name,), [1.0, 2.0, 1.0])
    assert builds == (3 if name in REFUSED else 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in HABITS if name not in ON_HOST])
def test_what_one_run_leaves_the_next_does_not_find_on_a_device(name):
    builds = check((name,), [1.0, 2.0], "cuda", "emulated")
    assert builds == (2 if name in REFUSED else 1)


SEEDS = [
    *((seed, "cpu", None) for seed in range(3)),
    *(pytest.param(seed, "cuda", "emulated", marks=pytest.mark.slow) for seed in range(3)),
]


@pytest.mark.parametrize(("seed", "backend", "which"), SEEDS)
def test_random_untidy_jobs_give_the_rows_of_trials_alone(seed, backend, which):
    rng = random.Random(seed)
    usable = [name for name in HABITS if name not in REFUSED and (which is None or name not in ON_HOST)]
    for _ in range(3):
        habits = tuple(rng.sample(usable, rng.randint(2, 9)))
        assert check(habits, [rng.choice([0.5, 1.0, 2.0]) for _ in range(4)], backend, which) == 1, habits


def test_a_session_gives_for_other_values_what_a_job_built_for_them_gives():
    habits = tuple(name for name in HABITS if name not in REFUSED)
    with Session(Untidy(UntidyParams(habits=habits)), threads=1) as session:
        found = [session.run(UntidyParams(habits=habits, k=k)) for k in (1.0, 2.0, 2.0, 1.0)]
        assert session.builds == 1
    assert found[0] == found[3] and found[1] == found[2] != found[0]
    with Untidy(UntidyParams(habits=habits, k=2.0)).opened(threads=1) as job:
        assert job.run() == found[1]


@pytest.mark.parametrize(
    ("change", "back"),
    [
        (lambda job, table: None, True),
        (lambda job, table: table.to_numpy(), True),
        (lambda job, table: table.__setitem__(0, 1.0), False),
        (lambda job, table: table.fill(0.0), False),
        (lambda job, table: job.write(), False),
        (lambda job, table: table.view, False),  # somebody may write to it now
    ],
    ids=["nothing", "read", "an element", "all", "a kernel", "shown"],
)
def test_what_is_too_large_for_a_copy_is_kept_as_long_as_nobody_writes_to_it(monkeypatch, change, back):
    monkeypatch.setattr(snapshot, "MOST_COPIED", 100)
    qd.init(arch=qd.cpu)
    table, small = qd.field(qd.f64, shape=100), qd.field(qd.f64, shape=3)
    table.from_numpy(np.arange(100.0))
    small[1] = 5.0

    @qd.kernel
    def write():
        for i in table:
            table[i] = 0.0

    class Holder: ...

    Holder.write = staticmethod(write)
    program = small._root.program
    was = program.content()
    small[1], small[2] = 6.0, 7.0
    change(Holder, table)
    assert was.put_back() == back
    assert small.to_numpy().tolist() == ([0.0, 5.0, 0.0] if back else [0.0, 6.0, 7.0]), "all, or nothing"
    if back:
        assert was.put_back() and table[99] == 99.0, "and again: its own writes are not others'"


@pytest.mark.parametrize("what", ["gradient", "ndarray", "shown before"])
def test_what_is_too_large_for_a_copy_and_has_no_version_is_not_put_back(monkeypatch, what):
    monkeypatch.setattr(snapshot, "MOST_COPIED", 100)
    program = qd.init(arch=qd.cpu)
    x = qd.field(qd.f64, shape=100, needs_grad=True)
    if what == "gradient":
        x.grad.fill(1.0)
    elif what == "ndarray":
        a = qd.ndarray(qd.f64, shape=100)
        a.fill(1.0)
    else:
        x.view[3] = 1.0
    assert not program.content().put_back()


def test_many_small_parts_share_the_room_for_copies(monkeypatch):
    monkeypatch.setattr(snapshot, "MOST_COPIED", 100)
    program = qd.init(arch=qd.cpu)
    fields = [qd.field(qd.f64, shape=8) for _ in range(3)]
    for x in fields:
        x.fill(1.0)
    was = program.content()
    fields[0][0] = 2.0
    assert was.put_back() and fields[0][0] == 1.0  # 64 bytes are copied, the other two are watched
    fields[1][0] = 2.0
    assert not was.put_back()


def test_nothing_is_put_back_while_something_records_or_when_fields_have_come():
    program = qd.init(arch=qd.cpu)
    x = qd.field(qd.f64, shape=(), needs_grad=True)
    x[None] = 1.0
    was = program.content()
    with qd.ad.Tape(loss=x):
        assert not was.put_back()
    assert was.put_back()
    qd.field(qd.f64, shape=3)
    assert not was.put_back()


def test_fields_without_memory_are_zeros_when_they_have_some():
    program = qd.init(arch=qd.cpu)
    x = qd.field(qd.f64, shape=3)
    was = program.content()
    x[1] = 2.0
    assert was.put_back() and x.to_numpy().tolist() == [0.0] * 3


def test_a_plan_looks_again_at_what_was_put_back():
    """The loop's bound is data: the gradient of the second run needs a larger heap than the first one's, and gets it."""
    program = qd.init(arch=qd.cpu)
    count = qd.field(qd.i32, shape=())
    x, y = (qd.field(qd.f64, shape=(), needs_grad=True) for _ in range(2))
    count[None], x[None] = 50, 1.0

    @qd.kernel
    def spin():
        for _ in range(1):
            a = x[None]
            for _ in range(count[None]):
                a = qd.sin(a)
            y[None] += a

    def slope():
        with qd.ad.Tape(loss=y):
            spin()
        return float(x.grad[None])

    was = program.content()
    long = slope()
    count[None] = 2
    short = slope()
    assert was.put_back() and count[None] == 50
    assert slope() == long != short


class Empty(Job[JobParams]):
    needs_compiler = False


def attributes(**values):
    job = Empty(JobParams())
    vars(job).update(values)
    return job, Attributes(job, None)


def test_large_arrays_are_compared_by_a_checksum(monkeypatch):
    monkeypatch.setattr(restore, "MOST_COPIED", 100)
    job, was = attributes(large=np.zeros((10, 10)), small=np.zeros(4))
    job.small[1] = 1.0
    assert was.put_back() and was.same() and not job.small.any()
    job.large[3, 4] = 1.0
    assert was.put_back() and not was.same()


def test_an_array_that_cannot_be_written_is_compared():
    fixed = np.zeros(4)
    fixed.flags.writeable = False
    job, was = attributes(fixed=fixed)
    assert was.put_back() and was.same()
    job.fixed.flags.writeable = True
    assert not was.put_back()


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (iter([1]), ""),
        ([{"a": (n for n in "ab")}], "`held` leads to a builtins.generator, whose state cannot be compared"),
        (__import__("threading").Lock(), "`held` leads to a _thread.lock, whose state cannot be compared"),
        (random.Random(1), ""),
        (__import__("logging").getLogger("x"), ""),
        (collections.OrderedDict(a=1), ""),
        (np.float64(1.0), ""),
        (Body(), ""),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_can_be_compared_and_what_cannot(value, why):
    _, was = attributes(held=value)
    assert was.why.startswith(why) and bool(was.why) == bool(why)
    assert was.put_back() == (not why)


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (lambda x: collections.deque([x]), lambda d: d[0].__setitem__(0, 5.0)),
        (lambda x: collections.OrderedDict(a=x), lambda d: d["a"].fill(1.0)),
        (lambda x: collections.deque([x.__setitem__]), lambda d: d[0](1, 4.0)),
    ],
    ids=["a vector", "an array in a subclass", "a bound method"],
)
def test_what_lies_in_something_that_is_only_compared_is_compared_too(make, change):
    program = qd.init(arch=qd.cpu)
    job = Empty(JobParams())
    job.held = make(qd.Vector([1.0, 2.0]))
    was = Attributes(job, program)
    assert not was.why and was.put_back() and was.same()
    change(job.held)
    assert was.put_back() and not was.same()
    assert was.why == "what `held` leads to was changed by a run, and can only be compared"


@pytest.mark.parametrize("cached", [False, True])
def test_local_functions_in_something_that_is_only_compared_are_not_known(cached):
    def local(seen=[]):  # noqa: B006
        return seen

    _, was = attributes(held=collections.deque([functools.cache(local) if cached else local]))
    assert "`held` leads to a collections.deque, whose state cannot be compared" in was.why


def test_globals_of_the_module_stay_as_they_are():
    job, was = attributes(habits=HABITS)
    HABITS["later"] = None
    try:
        assert was.put_back() and was.same() and "later" in job.habits
    finally:
        del HABITS["later"]


def test_a_job_that_refers_to_itself_in_circles_is_put_back():
    job = Empty(JobParams())
    job.me, job.ring = job, []
    job.ring.append(job.ring)
    was = Attributes(job, None)
    job.ring.append(1)
    del job.me
    assert not was.why and was.put_back() and was.same()
    assert job.me is job and job.ring == [job.ring]
