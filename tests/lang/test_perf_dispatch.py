"""``qd.perf_dispatch``: which function runs at which call, by its time, its geometry and its conditions."""

import pytest

import qdrun as qd
from qdrun.compiler.lang.launches import perf_dispatch

I1 = qd.types.ndarray(qd.i32, ndim=1)


@pytest.fixture(autouse=True)
def program():
    with qd.init(default_fp=qd.f64, offline_cache=False) as program:
        yield program


class Clock:
    """A clock that goes on as the functions of ``dispatcher`` say: a busy machine makes any function slow."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now

    monotonic = perf_counter


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(perf_dispatch, "time", made)
    return made


def dispatcher(clock, calls, **options):
    """Two Python functions, the second of which is slow."""

    @qd.perf_dispatch(get_geometry_hash=lambda n, quick=True: n, **options)
    def work(n, quick=True): ...

    @work.register
    def fast(n, quick=True):
        calls.append("fast")
        clock.now += 0.001
        return n

    @work.register(is_compatible=lambda n, quick=True: n != 0)
    def slow(n, quick=True):
        calls.append("slow")
        clock.now += 0.005
        return n

    return work


def test_each_runs_once_to_warm_up_and_once_to_be_timed(clock):
    calls = []
    work = dispatcher(clock, calls)
    assert [work(3) for _ in range(7)] == [3] * 7
    assert calls == ["fast", "slow", "fast", "slow", "fast", "fast", "fast"]
    assert work.choices == {3: "fast"} and work.__name__ == "work"
    work(n=4)
    assert work.choices == {3: "fast"} and calls[-1] == "fast"


def test_warmups_and_timed_calls_are_counted(clock):
    calls = []
    work = dispatcher(clock, calls, first_warmup=0, active=2)
    for _ in range(5):
        work(1)
    assert calls == ["fast", "slow"] * 2 + ["fast"]


def test_they_are_timed_again_after_so_many_calls_or_seconds(clock):
    calls = []
    work = dispatcher(clock, calls, repeat_after_count=3, warmup=1)
    for _ in range(4 + 2):
        work(1)
    assert calls[4:] == ["fast", "fast"]
    for _ in range(5):
        work(1)
    assert calls[6:] == ["fast", "slow", "fast", "slow", "fast"]
    calls.clear()
    work = dispatcher(clock, calls, repeat_after_seconds=0.05, first_warmup=0)
    for _ in range(3):
        work(1)
    assert calls == ["fast", "slow", "fast"]
    clock.now += 0.06
    for _ in range(3):
        work(1)
    assert calls[3:] == ["fast", "slow", "fast"]
    calls.clear()
    work = dispatcher(clock, calls, repeat_after_count=0, first_warmup=0)
    for _ in range(400):
        work(1)
    assert calls.count("slow") == 1


def test_later_programs_keep_the_choice_of_their_backend_and_warm_up_again(clock):
    calls = []
    work = dispatcher(clock, calls, repeat_after_count=2)
    for _ in range(5):
        work(1)
    assert calls[4:] == ["fast"] and work.choices == {1: "fast"}
    with qd.init():
        work(1)  # the second call since the choice: they are timed again, in this program
        for _ in range(4):
            work(1)
        assert calls[5:] == ["fast", "slow", "fast", "slow", "fast"]
    with qd.init(arch=qd.python):
        assert work.choices == {}
        work(1)
        work(1)
    assert calls[10:] == ["fast", "slow"] and work.choices == {1: "fast"}


def test_one_that_can_run_is_not_timed_and_none_is_an_error(clock):
    calls = []
    work = dispatcher(clock, calls)
    work(0)
    assert calls == ["fast"] and work.choices == {0: "fast"}

    @qd.perf_dispatch(get_geometry_hash=lambda n: n)
    def nothing(n): ...

    @nothing.register(is_compatible=lambda n: False)
    def never(n): ...

    with pytest.raises(qd.QdrunRuntimeError, match=r"`nothing` has no implementation(.|\n)*do: register one (.|\n)*'never'"):
        nothing(1)
    with pytest.raises(qd.QdrunSyntaxError, match=r"`other\(m\)` is registered with `nothing\(n\)`\n  do: give it the same"):

        @nothing.register
        def other(m): ...


def test_kernels_are_chosen_and_have_gradients_on_a_tape():
    x = qd.field(qd.f64, shape=6, needs_grad=True)
    loss = qd.field(qd.f64, shape=(), needs_grad=True)
    x.fill(1.5)

    @qd.perf_dispatch(get_geometry_hash=lambda n: n)
    def total(n: qd.i32): ...

    @total.register
    @qd.kernel
    def one(n: qd.i32):
        for i in range(n):
            loss[None] += x[i] ** 2

    @total.register
    @qd.kernel
    def other(n: qd.i32):
        for i in range(n):
            loss[None] += x[n - 1 - i] * x[n - 1 - i]

    for _ in range(6):
        loss[None] = 0.0
        with qd.ad.Tape(loss=loss):
            total(6)
        assert loss[None] == pytest.approx(13.5) and x.grad.to_numpy().tolist() == pytest.approx([3.0] * 6)
    assert total.choices[6] in ("one", "other")
    graph = qd.capture(lambda: total(6))
    loss[None] = 0.0
    graph()
    assert loss[None] == pytest.approx(13.5)


def test_nothing_is_timed_while_launches_are_recorded():
    x = qd.field(qd.i32, shape=())

    @qd.perf_dispatch(get_geometry_hash=lambda: 0)
    def bump(): ...

    @qd.kernel
    def one():
        x[None] += 1

    @qd.kernel
    def ten():
        x[None] += 10

    bump.register(one)
    bump.register(ten)
    one()
    graph = qd.capture(bump)
    assert bump.choices == {} and x[None] == 1
    graph()
    assert x[None] == 2
