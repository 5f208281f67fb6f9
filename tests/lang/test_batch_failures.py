"""A trial of a batch that fails says what it says alone, and the others have the bits that they have without it."""

import numpy as np
import pytest

import qdrun as qd

COUNT = 13
BAD = (0, 4, 12)


def asserts():
    x, out = qd.field(qd.f64, 4, name="x", needs_grad=True), qd.field(qd.f64, (), name="out", needs_grad=True)

    @qd.kernel
    def work():
        for i in x:
            assert x[i] < 1.0, f"x[{i}] is {x[i]}"
            out[None] += 3.0 * x[i] * x[i]

    return x, out, work, 2.0, {"debug": True}


def bounds():
    x, out = qd.field(qd.f64, 4, name="x", needs_grad=True), qd.field(qd.f64, (), name="out", needs_grad=True)

    @qd.kernel
    def work():
        for i in x:
            out[None] += x[i + qd.cast(x[i], qd.i32)] * 2.0

    return x, out, work, 3.0, {"check_out_of_bound": True}


def nans():
    x, out = qd.field(qd.f64, 4, name="x", needs_grad=True), qd.field(qd.f64, (), name="out", needs_grad=True)

    @qd.kernel
    def work():
        for i in x:
            out[None] += qd.log(x[i]) + qd.sqrt(x[i])

    return x, out, work, -0.5, {"nan_check": True}


def overflows():
    x, out = qd.field(qd.f64, 4, name="x", needs_grad=True), qd.field(qd.f64, (), name="out", needs_grad=True)

    @qd.kernel
    def work():
        for i in x:
            n = qd.cast(x[i] * 10.0, qd.i32) * 1000
            out[None] += x[i] * (n * n)

    return x, out, work, 1000.0, {"overflow_check": True}


KINDS = [asserts, bounds, nans, overflows]


def values(bad=BAD, wrong=0.0):
    """What ``x`` holds: one number of each bad trial, not the same one, is wrong."""
    x = np.random.default_rng(2).uniform(0.1, 0.9, (COUNT, 4))
    for k, b in enumerate(bad):
        x[b, (1 + k) % 4] = wrong
    return x


def options_of(kind):
    with qd.init(arch=qd.cpu):
        *_, wrong, options = kind()
    return wrong, {"default_fp": qd.f64, "arch": qd.cpu, **options}


def fine(kind, columns, options, **more):
    """The results of a batch in which nothing fails."""
    with qd.init(**options, batch=COUNT, **more):
        x, out, work, *_ = kind()
        x.from_numpy(columns)
        with qd.ad.Tape(out):
            work()
        return out.to_numpy(), x.grad.to_numpy()


@pytest.mark.parametrize("lanes", [0, 1, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_each_failure_is_the_one_that_the_trial_has_alone(kind, lanes):
    wrong, options = options_of(kind)
    columns = values(wrong=wrong)
    expected = fine(kind, values(bad=()), options, cpu_lanes=lanes)[0]
    with qd.init(**options, batch=COUNT, cpu_lanes=lanes):
        x, out, work, *_ = kind()
        x.from_numpy(columns)
        with pytest.raises(qd.TrialsFailed, match=r"^3 of 13 trials failed: 0, 4, 12\n  trial 0: ") as e:
            work()
            qd.sync()
        found = out.to_numpy()
        x.fill(0.25)
        out.fill(0)
        work()  # all take part again
        assert len(set(out.to_numpy())) == 1
    good = [b for b in range(COUNT) if b not in BAD]
    np.testing.assert_array_equal(found[good], expected[good])
    assert tuple(e.value.failed) == BAD and e.value.count == COUNT
    for b in BAD:
        with qd.init(**options, cpu_max_num_threads=1, cpu_lanes=1):
            x, _, work, *_ = kind()
            x.from_numpy(columns[b])
            with pytest.raises(qd.QdrunRuntimeError) as alone:
                work()
                qd.sync()
        assert type(e.value.failed[b]) is type(alone.value) and str(e.value.failed[b]) == str(alone.value)


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradients_of_others_are_what_they_are_without_a_failure(kind):
    wrong, options = options_of(kind)
    expected = fine(kind, values(bad=()), options)
    with qd.init(**options, batch=COUNT) as p:
        x, out, work, *_ = kind()
        x.from_numpy(values(wrong=wrong))
        p.batch.keep_failures = True
        with qd.ad.Tape(out):
            work()
        assert tuple(p.batch.failed()) == BAD
        good = [b for b in range(COUNT) if b not in BAD]
        np.testing.assert_array_equal(out.to_numpy()[good], expected[0][good])
        np.testing.assert_array_equal(x.grad.to_numpy()[good], expected[1][good])


def test_a_gradient_that_is_not_finite_fails_its_trial():
    with qd.init(arch=qd.cpu, default_fp=qd.f64, batch=5, nan_check=True):
        x, out = qd.field(qd.f64, (), needs_grad=True), qd.field(qd.f64, (), needs_grad=True)

        @qd.kernel
        def root():
            out[None] = qd.sqrt(x[None])

        x.from_numpy(np.array([1.0, 4.0, 0.0, 9.0, 0.0]))
        with pytest.raises(qd.TrialsFailed, match="2 of 5 trials failed: 2, 4") as e:
            with qd.ad.Tape(out):
                root()
            qd.sync()
        assert "gradient" in str(e.value.failed[4])
        np.testing.assert_array_equal(x.grad.to_numpy()[[0, 1, 3]], [0.5, 0.25, 1 / 6])


def test_a_tape_in_whose_body_a_trial_fails_runs_no_gradient():
    with qd.init(arch=qd.cpu, default_fp=qd.f64, batch=3, debug=True):
        x, out, work, *_ = asserts()
        x.from_numpy(np.array([[0.5] * 4, [1.5] * 4, [0.5] * 4]))
        with pytest.raises(qd.TrialsFailed), qd.ad.Tape(out):
            work()
        assert not x.grad.to_numpy().any()
        with (
            pytest.raises(qd.QdrunRuntimeError, match="raised TrialsFailed inside this tape"),
            qd.ad.Tape(out),
            pytest.raises(qd.TrialsFailed),
        ):
            work()
