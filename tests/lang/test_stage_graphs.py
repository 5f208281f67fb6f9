"""Graph kernels with stages on a device that reads the flags itself: the first call is launched by the host, the second is recorded."""

import numpy as np
import pytest

import qdrun as qd

I0 = qd.types.ndarray(qd.i32, ndim=0)
I1 = qd.types.ndarray(qd.i32, ndim=1)
F1 = qd.types.ndarray(qd.f64, ndim=1)
CALLS = range(4)


@pytest.fixture(autouse=True)
def options(request):
    """Of a program on the emulated device; with ``--arch cuda`` on a GPU."""
    arch = request.config.getoption("--arch")
    if arch not in ("cpu", "emulated", "cuda"):
        pytest.skip("conditional nodes are those of CUDA graphs")
    real = arch == "cuda"
    return {"arch": qd.cuda, "offline_cache": False} | ({} if real else {"device": "emulated"})


@pytest.fixture(autouse=True)
def program(options):
    with qd.init(default_fp=qd.f64, **options) as program:
        yield program


@pytest.fixture
def launches(program, monkeypatch):
    """The number of graphs that were launched."""
    driver, count = program.device.driver, []
    real = driver.graph_launch
    monkeypatch.setattr(driver, "graph_launch", lambda *a: count.append(1) or real(*a))
    return count


def number(value, dtype=qd.i32):
    x = qd.ndarray(dtype, shape=())
    x[None] = value
    return x


@qd.kernel(graph=True)
def nest(log: I1, at: I0, inner: I0, outer: I0, start: qd.i32):
    for i in range(log.shape[0]):
        log[i] = 0
    while qd.graph.do_while(outer):
        inner[()] = start
        while qd.graph.do_while(inner):
            log[at[()]] = 10 * outer[()] + inner[()]
            at[()] += 1
            inner[()] -= 1
        at[()] += 1
        outer[()] -= 1
    for i in range(log.shape[0]):
        log[i] += 1


def test_loops_inside_of_loops_are_one_graph_from_the_second_call_on(launches):
    log, at, inner, outer = qd.ndarray(qd.i32, shape=40), number(0), number(0), number(0)
    for call in CALLS:
        n, m = 1 + call % 3, 2
        at[None], outer[None] = 0, n
        nest(log, at, inner, outer, m)
        want = np.zeros(40, int)
        k = 0
        for i in range(n, 0, -1):
            for j in range(m, 0, -1):
                want[k], k = 10 * i + j, k + 1
            k += 1
        assert log.to_numpy().tolist() == (want + 1).tolist(), call
        assert at[None] == k
    assert len(launches) == len(CALLS) - 1


def test_other_arguments_have_graphs_of_their_own(launches):
    for _ in range(3):
        for m in (1, 2):
            log, at, inner, outer = qd.ndarray(qd.i32, shape=40), number(0), number(0), number(2)
            nest(log, at, inner, outer, m)
            assert at[None] == 2 * m + 2
    arrays = [(qd.ndarray(qd.i32, shape=40), number(0), number(0), number(2)) for _ in range(3)]
    before = len(launches)
    for _ in range(2):
        for log, at, inner, outer in arrays:
            at[None], outer[None] = 0, 2
            nest(log, at, inner, outer, 3)
            assert at[None] == 8
    assert len(launches) - before == 3


def test_graphs_do_not_keep_arrays_alive(program):
    def use():
        log, at, inner, outer = qd.ndarray(qd.i32, shape=40), number(0), number(0), number(2)
        for _ in range(3):
            at[None], outer[None] = 0, 2
            nest(log, at, inner, outer, 3)

    use()
    qd.sync()
    before = program.device.used_bytes
    for _ in range(5):
        use()
    qd.sync()
    assert program.device.used_bytes == before


def test_flags_have_any_integer_type_and_may_be_fields(launches):
    flags = [number(0, t) for t in (qd.i8, qd.u16, qd.i64, qd.u32)]
    place = qd.field(qd.i64, shape=())
    x = number(0)

    @qd.kernel(graph=True)
    def count(c: qd.types.ndarray(ndim=0), x: I0):
        while qd.graph.do_while(c):
            x[()] += 1
            c[()] -= 1

    @qd.kernel(graph=True)
    def count_field(x: I0):
        while qd.graph.do_while(place):
            x[()] += 1
            place[None] -= 1

    for _ in CALLS:
        for flag in flags:
            flag[None], x[None] = 5, 0
            count(flag, x)
            assert (flag[None], x[None]) == (0, 5)
        place[None], x[None] = 7, 0
        count_field(x)
        assert (place[None], x[None]) == (0, 7)
    flags[2][None], x[None] = (1 << 40) + 1, 0

    @qd.kernel(graph=True)
    def halve(c: qd.types.ndarray(qd.i64, ndim=0), x: I0):
        while qd.graph.do_while(c):
            x[()] += 1
            c[()] -= c[()] & 1
            c[()] //= 2

    for _ in CALLS:
        flags[2][None], x[None] = 1 << 40, 0
        halve(flags[2], x)
        assert x[None] == 41
    assert len(launches) == (len(CALLS) - 1) * 6


@qd.kernel(graph=True, checkpoints=True)
def fill(room: I0, used: I0, full: I0, counter: I0, log: I1):
    log[0] += 1
    while qd.graph.do_while(counter):
        with qd.checkpoint(7, yield_on=full):
            for _ in range(1):
                if used[()] < room[()]:
                    used[()] += 1
                else:
                    full[()] = 1
        log[1] += 1
        counter[()] -= 1
    log[2] += 1
    with qd.checkpoint(3, yield_on=full):
        log[3] += 1
    log[4] += 1


def test_checkpoints_pause_and_resume_in_graphs(launches):
    room, used, full, counter = (number(0) for _ in range(4))
    log = qd.ndarray(qd.i32, shape=5)
    for call in CALLS:
        for x, value in ((room, 4), (used, 0), (full, 0), (counter, 6)):
            x[None] = value
        log.fill(0)
        status = fill(room, used, full, counter, log)
        assert (status.yielded, status.checkpoint, used[None], counter[None]) == (True, 7, 4, 2), call
        assert log.to_numpy().tolist() == [1, 4, 0, 0, 0]
        room[None], full[None] = 5, 0
        status = fill.resume(room, used, full, counter, log, from_checkpoint=7)
        assert (status.yielded, used[None], counter[None]) == (True, 5, 1)
        room[None], full[None] = 9, 0
        status = fill.resume(room, used, full, counter, log, from_checkpoint=7)
        assert (status.yielded, used[None], counter[None]) == (False, 6, 0)
        assert log.to_numpy().tolist() == [1, 6, 1, 1, 1]
        full[None] = 1
        status = fill.resume(room, used, full, counter, log, from_checkpoint=3)
        assert (status.yielded, status.checkpoint) == (True, 3)
        assert log.to_numpy().tolist() == [1, 6, 1, 2, 1]
    # The first resume and the second have the same arguments.
    assert len(launches) == (len(CALLS) - 1) * 2 + len(CALLS) * 2 - 1


def test_a_launch_that_fails_ends_the_loop_and_is_raised(options):
    with qd.init(check_out_of_bound=True, **options):

        @qd.kernel(graph=True)
        def walk(c: I0, x: I0, log: I1):
            while qd.graph.do_while(c):
                for _ in range(1):
                    log[x[()]] = 1
                    x[()] += 1
                    c[()] = 5 - x[()]

        c, x, long, short = number(1), number(0), qd.ndarray(qd.i32, shape=5), qd.ndarray(qd.i32, shape=3)
        for call in CALLS:
            c[None], x[None] = 1, 0
            with pytest.raises(qd.QdrunAssertionError, match=r"index 3 but extent 3[^~]*walk"):
                walk(c, x, short)
                qd.sync()
            assert x[None] == 3, call
            x[None] = 0
            walk(c, x, long)
            assert (x[None], c[None]) == (5, 0), call


def test_what_cannot_be_recorded_is_launched_by_the_host(launches, capfd):
    @qd.kernel(graph=True)
    def talk(c: I0):
        while qd.graph.do_while(c):
            print("at", c[()])
            c[()] -= 1

    @qd.kernel(graph=True)
    def count(c: I0, x: qd.types.ndarray(qd.i32, ndim=1)):
        while qd.graph.do_while(c):
            for i in range(x.shape[0]):
                x[i] += 1
            c[()] -= 1

    c, host = number(0), np.zeros(3, np.int32)
    for _ in range(3):
        c[None] = 2
        talk(c)
        c[None] = 2
        count(c, host)
        flag = np.array(2, np.int32)
        count(flag, number_array := qd.ndarray(qd.i32, shape=3))
        assert number_array.to_numpy().tolist() == [2] * 3
    qd.sync()
    assert host.tolist() == [6] * 3
    assert capfd.readouterr().out.split() == ["at", "2", "at", "1"] * 3
    assert not launches


def test_a_captured_function_may_launch_loops_that_the_device_counts(launches):
    x, c = qd.ndarray(qd.f64, shape=4), number(0)

    @qd.kernel
    def start(c: I0, n: qd.i32):
        c[None] = n

    @qd.kernel(graph=True)
    def double(x: F1, c: I0):
        while qd.graph.do_while(c):
            for i in range(x.shape[0]):
                x[i] *= 2.0
            c[()] -= 1

    def twice():
        x.fill(1.0)
        for n in (3, 2):
            start(c, n)
            double(x, c)

    twice()
    graph = qd.capture(twice)
    assert x.to_numpy().tolist() == [32.0] * 4
    for _ in range(2):
        x.fill(0.0)
        graph()
        assert x.to_numpy().tolist() == [32.0] * 4
    assert len(launches) == 3  # the second call of the first `twice` was one, too


def test_tapes_record_the_launches_that_ran_beside_graphs():
    x = qd.ndarray(qd.f64, shape=8, needs_grad=True)
    loss = qd.field(qd.f64, shape=(), needs_grad=True)
    c, t = number(0), number(0)

    @qd.kernel(graph=True)
    def integrate(x: F1, c: I0, t: I0):
        while qd.graph.do_while(c):
            for _ in range(1):
                loss[None] += qd.sin(x[t[()]])
            t[()] += 1
            c[()] -= 1

    values = np.random.default_rng().normal(size=8)
    x.from_numpy(values)
    for n in (3, 5):
        for _ in range(3):
            c[None], t[None] = n, 0
            integrate(x, c, t)
        loss[None] = 0.0
        c[None], t[None] = n, 0
        try:
            with qd.ad.Tape(loss):
                integrate(x, c, t)
        except qd.QdrunError:
            continue  # the tape refuses that an index is overwritten
        want = np.where(np.arange(8) < n, np.cos(values), 0.0)
        np.testing.assert_allclose(x.grad.to_numpy(), want, rtol=1e-12)


def test_a_field_that_was_destroyed_is_not_used_by_a_graph(launches):
    builder = qd.FieldsBuilder()
    x = qd.field(qd.i32)
    builder.dense(qd.i, 4).place(x)
    tree = builder.finalize()
    c = number(0)

    @qd.kernel(graph=True)
    def count(c: I0):
        while qd.graph.do_while(c):
            for i in range(4):
                x[i] += 1
            c[()] -= 1

    for k in range(3):
        c[None] = 2
        count(c)
        assert x[0] == 2 * k + 2
    tree.destroy()
    c[None] = 2
    with pytest.raises(qd.QdrunRuntimeError, match="destroyed"):
        count(c)


@pytest.mark.parametrize("levels", [2, 4])
def test_steps_that_are_run_again_count_flags_as_at_first(levels):
    """A window that is only run forward again was launched as a graph, which counts none, and so refused."""
    x, s = (qd.field(qd.f64, shape=n, needs_grad=True) for n in (2, 1))
    rate, loss = (qd.field(qd.f64, shape=(), needs_grad=True) for _ in range(2))
    c, steps = number(0), 8

    @qd.kernel(graph=True)
    def grow(k: qd.i32, c: I0):
        while qd.graph.do_while(c):
            for _ in range(1):
                s[k] += rate[None] * x[k]
            c[()] -= 1

    @qd.kernel
    def give(k: qd.i32):
        for _ in range(1):
            x[k + 1] = 0.5 * x[k] + s[k]

    @qd.kernel
    def total():
        for _ in range(1):
            loss[None] += x[1] ** 2

    def step(t, k):
        c[None] = t % 3 + 1
        grow(k, c)
        give(k)

    rate[None] = p = np.random.default_rng().uniform(0.1, 0.5)
    x[0] = 1.0
    with qd.ad.Tape(loss=loss):
        qd.ad.checkpointed_steps(step, steps, [x], [s], levels=levels)
        total()
    factors = np.array([0.5 + (t % 3 + 1) * p for t in range(steps)])
    slopes = np.array([t % 3 + 1 for t in range(steps)]) / factors
    np.testing.assert_allclose(loss[None], factors.prod() ** 2, rtol=1e-12)
    np.testing.assert_allclose(rate.grad[None], 2 * factors.prod() ** 2 * slopes.sum(), rtol=1e-12)
