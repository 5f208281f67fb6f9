"""A batch gives each trial what the trial gives alone: values, gradients, tangents, random numbers."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import qdrun as qd


@dataclass
class Program:
    """A simulation: what goes in, by name; what to run; what comes out, gradients included."""

    inputs: dict[str, Any]
    run: Any
    outputs: dict[str, Any]


def alone(build, values, **options):
    """The outputs of one trial in a program of its own, whose sums have a fixed order."""
    with qd.init(arch=qd.cpu, default_fp=qd.f64, cpu_max_num_threads=1, cpu_lanes=1, **options):
        made = build()
        for name, value in values.items():
            made.inputs[name].from_numpy(value)
        made.run()
        return {name: x.to_numpy() for name, x in made.outputs.items()}


def compare(build, columns, count, exact=(), rtol=1e-12, first_seed=0, **options):
    """Run a batch, and each of its trials alone; ``exact``: outputs that have the same bits."""
    with qd.init(arch=qd.cpu, default_fp=qd.f64, batch=count, random_seed=first_seed, **options):
        made = build()
        for name, values in columns.items():
            made.inputs[name].from_numpy(values)
        made.run()
        found = {name: x.to_numpy() for name, x in made.outputs.items()}
    for b in range(count):
        wanted = alone(build, {name: values[b] for name, values in columns.items()}, random_seed=first_seed + b)
        for name, value in wanted.items():
            assert found[name].dtype == value.dtype and found[name].shape == (count, *value.shape)
            if name in exact or not np.issubdtype(value.dtype, np.floating):
                assert np.array_equal(found[name][b], value), (name, b)
            else:
                np.testing.assert_allclose(found[name][b], value, rtol=rtol, atol=rtol * np.abs(value).max(initial=1e-300))
    return found


def springs():
    """Masses on a ring, with a shared table of who is tied to whom, a tape over many launches, and sums into one element."""
    n, steps = 5, 9
    x, v = (qd.Vector.field(2, qd.f64, shape=(steps + 1, n), needs_grad=True) for _ in range(2))
    f = qd.Vector.field(2, qd.f64, shape=(steps, n), needs_grad=True)
    k, loss = (qd.field(qd.f64, shape=(), needs_grad=True) for _ in range(2))
    ends = qd.field(qd.i32, shape=(n, 2), per_trial=False)
    ends.from_numpy(np.array([[i, (i + 2) % n] for i in range(n)]))

    @qd.kernel
    def pull(t: qd.i32):
        for s in range(n):
            a, b = ends[s, 0], ends[s, 1]
            d = x[t, b] - x[t, a]
            pull = k[None] * (d.norm(1e-3) - 0.7) * d
            f[t, a] += pull
            f[t, b] -= pull

    @qd.kernel
    def move(t: qd.i32, dt: qd.f64):
        for i in range(n):
            v[t + 1, i] = 0.99 * v[t, i] + dt * f[t, i]
            x[t + 1, i] = x[t, i] + dt * v[t + 1, i]

    @qd.kernel
    def score():
        for i in range(n):
            loss[None] += x[steps, i].norm_sqr()

    def run():
        with qd.ad.Tape(loss):
            for t in range(steps):
                pull(t)
                move(t, 0.05)
            score()

    return Program({"x": x, "k": k}, run, {"x": x, "loss": loss, "dk": k.grad, "dx": x.grad})


@pytest.mark.parametrize("lanes", [0, 1, 4, 16])
@pytest.mark.parametrize("count", [1, 2, 3, 17])
def test_a_tape_over_many_launches(count, lanes):
    rng = np.random.default_rng(count)
    columns = {"x": rng.standard_normal((count, 10, 5, 2)), "k": rng.random(count)}
    compare(springs, columns, count, exact=("x",), cpu_lanes=lanes)  # a loss is summed up in another order alone


def test_gradients_of_a_batch_agree_with_finite_differences():
    rng = np.random.default_rng(5)
    x, k = rng.standard_normal((4, 10, 5, 2)), rng.random(4)

    def run(shift):
        with qd.init(arch=qd.cpu, default_fp=qd.f64, batch=4):
            made = springs()
            made.inputs["x"].from_numpy(x)
            made.inputs["k"].from_numpy(k + shift)
            made.run()
            return made.outputs["loss"].to_numpy(), made.outputs["dk"].to_numpy()

    slope = (run(1e-6)[0] - run(-1e-6)[0]) / 2e-6
    np.testing.assert_allclose(run(0)[1], slope, rtol=1e-6)


def loops():
    """Bounds, gates and exits that differ between trials; loads through indices; integers; minimum and maximum."""
    m, most = 6, 12
    n = qd.field(qd.i32, shape=())
    counts, at = qd.field(qd.i32, shape=m), qd.field(qd.i32, shape=m)
    x, y, loss = (
        qd.field(qd.f64, m, needs_grad=True),
        qd.field(qd.f64, m, needs_grad=True),
        qd.field(qd.f64, (), needs_grad=True),
    )
    low, high, total, used = qd.field(qd.f64, ()), qd.field(qd.i32, ()), qd.field(qd.i64, ()), qd.field(qd.i32, m)

    @qd.kernel
    def grow():
        for i in range(m):
            v = x[i]
            for j in range(counts[i]):
                if v > 3.0:
                    break
                if j % 3 == 2:
                    continue
                v = v * 1.1 + 0.1 * x[at[i]] * x[at[i]]
                used[i] += 1
            w = v
            steps = 0
            while w < 2.0 and steps < most:
                w = w * w + 0.3
                steps += 1
            y[i] = w if i < n[None] else v * 0.5

    @qd.kernel
    def score():
        for i in range(n[None]):
            loss[None] += y[i] * y[at[i]]
            qd.atomic_min(low[None], y[i])
            qd.atomic_max(high[None], used[i])
            total[None] += counts[i] * used[i]

    def run():
        with qd.ad.Tape(loss):
            grow()
            score()

    outputs = {"y": y, "loss": loss, "low": low, "high": high, "total": total, "used": used, "dx": x.grad}
    return Program({"n": n, "counts": counts, "at": at, "x": x}, run, outputs)


@pytest.mark.parametrize(
    ("count", "options"), [(1, {}), (5, {}), (19, {"ad_checkpoint_levels": 2}), (8, {"cpu_max_num_threads": 1})]
)
def test_loops_that_differ_between_trials(count, options):
    rng = np.random.default_rng(count)
    columns = {
        "n": rng.integers(0, 7, count).astype(np.int32),
        "counts": rng.integers(0, 12, (count, 6)).astype(np.int32),
        "at": rng.integers(0, 6, (count, 6)).astype(np.int32),
        "x": rng.random((count, 6)),
    }
    compare(loops, columns, count, exact=("y", "low"), **options)


def arrays():
    """Ndarrays by argument and by name, structs, matrices, offsets, a data-oriented object, vectors given to a kernel."""
    body = qd.types.struct(pos=qd.types.vector(3, qd.f64), mass=qd.f64)
    bodies = body.field(shape=(4,), needs_grad=True)
    m = qd.Matrix.field(2, 2, qd.f64, shape=(2, 3), offset=(-1, 2), needs_grad=True, layout=qd.Layout.SOA)
    gram = qd.Matrix.field(2, 2, qd.f64, shape=(2, 3), needs_grad=True)
    a = qd.ndarray(qd.f64, (3, 4), needs_grad=True, layout=(1, 0))
    v = qd.Vector.ndarray(3, qd.f64, 4, needs_grad=True)
    named, weights = qd.ndarray(qd.f64, 4, needs_grad=True), qd.ndarray(qd.f64, 4, per_trial=False)
    weights.from_numpy(np.linspace(1, 2, 4))
    loss = qd.ndarray(qd.f64, (), needs_grad=True)

    @qd.data_oriented
    class Mixer:
        def __init__(self):
            self.scale = 1.5

        @qd.kernel
        def mix(
            self, a: qd.types.ndarray(), v: qd.types.ndarray(dtype=qd.types.vector(3, qd.f64), ndim=1), w: qd.types.ndarray()
        ):
            for i in range(4):
                bodies[i].pos += self.scale * v[i] * bodies[i].mass
                for r in qd.static(range(3)):
                    a[r, i] += w[i] * bodies[i].pos[r]

    @qd.kernel
    def turn(by: qd.types.vector(2, qd.f64), out: qd.types.ndarray()):
        for i, j in m:
            gram[i + 1, j - 2] = m[i, j] @ m[i, j].transpose() * by[0]
        for i in range(4):
            out[None] += named[i] * a[i % 3, i] * bodies[i].pos.norm_sqr() + by[1] * gram[i % 2, i % 3].trace()

    mixer = Mixer()

    def run():
        with qd.ad.Tape(loss):
            mixer.mix(a, v, weights)
            turn(qd.Vector([0.3, 1.7]), loss)

    inputs = {"pos": bodies.pos, "mass": bodies.mass, "m": m, "a": a, "v": v, "named": named}
    grads = {f"d{name}": x.grad for name, x in inputs.items()}
    return Program(inputs, run, {"loss": loss, "gram": gram, **inputs, **grads})


@pytest.mark.parametrize("count", [1, 3, 11])
def test_arrays_structs_and_matrices(count):
    rng = np.random.default_rng(count)
    shapes = {"pos": (4, 3), "mass": (4,), "m": (2, 3, 2, 2), "a": (3, 4), "v": (4, 3), "named": (4,)}
    compare(arrays, {name: rng.standard_normal((count, *shape)) for name, shape in shapes.items()}, count)


def forward():
    """Forward mode, with a seed that is the same for all trials."""
    x, y, z = (qd.field(qd.f64, 4, needs_dual=True) for _ in range(3))
    scale = qd.field(qd.f64, ())

    @qd.kernel
    def first():
        for i in x:
            y[i] = qd.exp(x[i] * scale[None]) + y[i]

    @qd.kernel
    def second():
        for i in x:
            z[i] = y[i] * x[3 - i]

    def run():
        y.fill(0.5)
        with qd.ad.FwdMode(loss=z, param=x, seed=[1.0, -2.0, 0.5, 3.0]):
            first()
            y[2] = 1.0
            second()

    return Program({"x": x, "scale": scale}, run, {"z": z, "dy": y.dual, "dz": z.dual})


@pytest.mark.parametrize("count", [1, 5, 16])
def test_forward_mode(count):
    rng = np.random.default_rng(count)
    found = compare(forward, {"x": rng.random((count, 4)), "scale": rng.random(count)}, count)
    assert not found["dy"][:, 2].any()


def rolls():
    """Random numbers of several kinds, in several launches, drawn as often as the trial needs them."""
    n, x, y = qd.field(qd.i32, ()), qd.field(qd.f64, 6, needs_grad=True), qd.field(qd.i32, 6)
    loss = qd.field(qd.f64, (), needs_grad=True)

    @qd.kernel
    def roll():
        for i in x:
            for _ in range(n[None]):
                x[i] += qd.random(qd.f64)
            y[i] = qd.random(qd.i32)

    @qd.kernel
    def score():
        for i in x:
            loss[None] += x[i] * x[i] * qd.randn(qd.f64)

    def run():
        roll()
        roll()
        with qd.ad.Tape(loss):
            score()

    return Program({"n": n}, run, {"x": x, "y": y, "loss": loss, "dx": x.grad})


@pytest.mark.parametrize(("count", "first_seed"), [(1, 0), (4, 0), (13, 77)])
def test_each_trial_draws_the_random_numbers_that_it_draws_alone(count, first_seed):
    columns = {"n": np.arange(count, dtype=np.int32) % 4}
    found = compare(rolls, columns, count, exact=("x", "y"), first_seed=first_seed)
    assert len({row.tobytes() for row in found["y"]}) == count  # and no two draw the same


def test_a_loss_is_seeded_in_every_trial_and_assignments_cut_the_gradient():
    with qd.init(arch=qd.cpu, default_fp=qd.f64, batch=5):
        x, y, loss = (qd.field(qd.f64, (), needs_grad=True) for _ in range(3))

        @qd.kernel
        def square():
            y[None] = x[None] * x[None]

        @qd.kernel
        def add():
            loss[None] += 3 * y[None]

        x.from_numpy(np.arange(5.0))
        loss.fill(9)
        with qd.ad.Tape(loss):
            square()
            add()
        assert np.array_equal(loss.to_numpy(), 3 * np.arange(5.0) ** 2) and (loss.grad.to_numpy() == 1).all()
        assert np.array_equal(x.grad.to_numpy(), 6 * np.arange(5.0))
        with qd.ad.Tape(loss):
            square()
            add()
            y[None] = 2.0
            add()
        assert np.array_equal(x.grad.to_numpy(), 6 * np.arange(5.0)) and np.array_equal(y.grad.to_numpy(), np.zeros(5))
        with qd.ad.Tape(loss):
            square()
            y.copy_from(x)
            add()
        assert np.array_equal(x.grad.to_numpy(), np.full(5, 3.0))


def test_overwritten_values_are_kept_for_each_trial():
    with qd.init(arch=qd.cpu, default_fp=qd.f64, batch=5):
        x, loss = (qd.field(qd.f64, (), needs_grad=True) for _ in range(2))

        @qd.kernel
        def square():
            loss[None] += x[None] * x[None]

        x.from_numpy(np.arange(5.0))
        with qd.ad.Tape(loss):
            square()
            x.fill(3)
        assert np.array_equal(x.grad.to_numpy(), 2 * np.arange(5.0)) and np.array_equal(x.to_numpy(), np.full(5, 3.0))


def test_what_a_kernel_must_not_do_in_a_batch_is_refused():
    with qd.init(arch=qd.cpu, batch=3) as p:
        shared, x = qd.field(qd.f32, 4, name="shared", per_trial=False), qd.field(qd.f32, 4)

        @qd.kernel
        def write():
            for i in x:
                shared[i] = x[i]

        @qd.kernel
        def fill(a: qd.types.ndarray()):
            for i in a:
                a[i] = x[i]

        @qd.kernel
        def copy():
            for i in x:
                x[i] = shared[i]

        with pytest.raises(qd.QdrunCompilationError, match="kernel `write` writes to `shared`, a field that all trials"):
            write()
        for array in (np.zeros(4, np.float32), qd.ndarray(qd.f32, 4, per_trial=False)):
            with pytest.raises(qd.QdrunCompilationError, match="writes to `a`, an array that all trials of the batch share"):
                fill(array)
        shared.from_numpy(np.arange(4))
        with (
            pytest.raises(qd.QdrunRuntimeError, match=r"kernel `copy` is launched inside of `with program.trial\(1\)"),
            p.trial(1),
        ):
            copy()
        copy()
        with pytest.raises(qd.QdrunRuntimeError, match="kernel `copy` is launched inside"), p.trial(1):
            copy()
        assert np.array_equal(x.to_numpy(), np.broadcast_to(np.arange(4), (3, 4)))


def test_scalar_arguments_may_differ_between_trials():
    """Real and integer ones, in bounds of loops, in indices and conditions, on a tape."""
    count, rng = 11, np.random.default_rng(3)
    given = {
        "scale": rng.random(count),
        "n": rng.integers(0, 9, count),
        "at": rng.integers(0, 4, count).astype(np.int16),
        "flag": rng.integers(0, 2, count).astype(bool),
        "weight": rng.random(count).astype(np.float32),
    }
    start = rng.random((count, 4))

    def run(start, values):
        x, loss = qd.field(qd.f64, 4, needs_grad=True), qd.field(qd.f64, (), needs_grad=True)

        @qd.kernel
        def work(scale: qd.f64, n: int, at: qd.i16, flag: bool, weight: qd.f32, same: qd.f64):
            for i in x:
                v = x[i]
                for _ in range(n):
                    v = v * scale + 0.1 * v * v
                v += x[at] * same
                loss[None] += weight * v if flag else v * v

        x.from_numpy(start)
        with qd.ad.Tape(loss):
            work(*values, 0.7)
            if isinstance(values[0], np.ndarray):
                values[0][:] = -99.0  # the tape has its own
        return loss.to_numpy(), x.grad.to_numpy()

    def alone(b):
        with qd.init(arch=qd.cpu, default_fp=qd.f64, cpu_max_num_threads=1, cpu_lanes=1):
            return run(start[b], [values[b].item() for values in given.values()])

    for options in ({}, {"debug": True}, {"cpu_lanes": 1}):
        with qd.init(arch=qd.cpu, default_fp=qd.f64, batch=count, **options):
            losses, slopes = run(start, [values.copy() for values in given.values()])
        for b in range(count):
            loss, slope = alone(b)
            np.testing.assert_allclose(losses[b], loss, rtol=1e-6)
            np.testing.assert_allclose(slopes[b], slope, rtol=1e-6)


WRONG_COLUMNS = {
    "count": (np.zeros(4), 0, "expected f64, or 3 of them, one for each trial; got an array of shape \\(4,\\)"),
    "shape": (np.zeros((3, 1)), 0, "got an array of shape \\(3, 1\\)"),
    "type": (np.array(["a", "b", "c"]), 0, "expected f64 for each trial, got an array of <U1"),
    "real": (0.0, np.array([0.0, 1.0, 2.0]), "argument `n`: expected i32 for each trial, got an array of float64"),
    "large": (0.0, np.array([0, 1, 1 << 40]), "argument `n`: 1099511627776 does not fit i32"),
}


@pytest.mark.parametrize(("a", "n", "message"), WRONG_COLUMNS.values(), ids=WRONG_COLUMNS.keys())
def test_numbers_for_each_trial_are_checked(a, n, message):
    with qd.init(arch=qd.cpu, batch=3):
        x = qd.field(qd.f64, ())

        @qd.kernel
        def put(a: qd.f64, n: qd.i32):
            x[None] = a + n

        put([1, 2, 3], (4, 5, 6))
        assert x.to_numpy().tolist() == [5, 7, 9]
        with pytest.raises(qd.QdrunTypeError, match=message):
            put(a, n)
    with qd.init(arch=qd.cpu):
        x = qd.field(qd.f64, ())
        with pytest.raises(qd.QdrunTypeError, match="expected f64, got"):
            put([1, 2, 3], 0)


def test_bounds_from_ndarrays_are_planned_for_the_largest_of_any_trial():
    count, rng = 9, np.random.default_rng(8)
    counts, start = rng.integers(0, 30, (count, 4)).astype(np.int32), rng.random((count, 4))

    def run(counts, start):
        n, x, loss = qd.ndarray(qd.i32, 4), qd.ndarray(qd.f64, 4, needs_grad=True), qd.field(qd.f64, (), needs_grad=True)
        n.from_numpy(counts)
        x.from_numpy(start)

        @qd.kernel
        def work(n: qd.types.ndarray(), x: qd.types.ndarray()):
            for i in x:
                v = x[i]
                for _ in range(n[i]):
                    v = qd.sin(v) + 0.5
                loss[None] += v

        with qd.ad.Tape(loss):
            work(n, x)
        return x.grad.to_numpy(), work.grad.plan(n, x)

    with qd.init(arch=qd.cpu, default_fp=qd.f64, batch=count) as p:
        slopes, plan = run(counts, start)
        assert p.usage().get("adstack", 0) == plan.bytes
        (row,) = plan.rows()
        assert row["bound"] == counts.max()
    for b in range(count):
        with qd.init(arch=qd.cpu, default_fp=qd.f64, cpu_lanes=1):
            np.testing.assert_allclose(slopes[b], run(counts[b], start[b])[0], rtol=1e-12)


def windows(window, field):
    """20 time steps on a window; the state is a vector and a number, a log is written on the way, random numbers are drawn."""

    def build():
        n, steps = 4, 20
        x = (
            qd.Vector.field(2, qd.f64, shape=(window + 1, n), needs_grad=True)
            if field
            else qd.Vector.ndarray(2, qd.f64, (window + 1, n), needs_grad=True)
        )
        v, f = qd.field(qd.f64, (window + 1, n), needs_grad=True), qd.field(qd.f64, (window, n), needs_grad=True)
        k, loss, log = qd.field(qd.f64, (), needs_grad=True), qd.field(qd.f64, (), needs_grad=True), qd.ndarray(qd.f64, steps)
        first = qd.Vector.field(2, qd.f64, n)

        @qd.kernel
        def begin(x: qd.template()):
            for i in range(n):
                x[0, i] = first[i]

        @qd.kernel
        def force(x: qd.template(), k_: qd.i32, log: qd.types.ndarray(), t: qd.i32):
            for i in range(n):
                f[k_, i] = k[None] * (x[k_, i].norm_sqr() - 1.0) + 0.1 * v[k_, i] * qd.random(qd.f64)
            for i in range(n):
                log[t] += x[k_, i][0]

        @qd.kernel
        def move(x: qd.template(), k_: qd.i32):
            for i in range(n):
                v[k_ + 1, i] = 0.9 * v[k_, i] - 0.05 * f[k_, i]
                x[k_ + 1, i] = x[k_, i] + 0.05 * v[k_ + 1, i] * x[k_, (i + 1) % n]

        @qd.kernel
        def score(x: qd.template(), last: qd.i32):
            for i in range(n):
                loss[None] += x[last, i].norm_sqr()

        def step(t, slot):
            force(x, slot, log, t)
            move(x, slot)

        def run():
            log.fill(0)
            begin(x)
            with qd.ad.Tape(loss):
                qd.ad.checkpointed_steps(step, steps, [x, v], [f])
                score(x, min(steps, window))

        return Program({"first": first, "k": k}, run, {"loss": loss, "dk": k.grad, "dx": _First(x.grad), "log": log})

    return build


class _First:
    """The gradient of the start: slot 0, which windows of every length have."""

    def __init__(self, x):
        self.x = x

    def to_numpy(self):
        found = self.x.to_numpy()
        return found[:, 0] if self.x._whole.batched else found[0]


@pytest.mark.parametrize("field", [True, False])
@pytest.mark.parametrize(("window", "count"), [(20, 3), (5, 11), (3, 1)])
def test_time_steps_on_windows(window, count, field):
    rng = np.random.default_rng(window)
    columns = {"first": rng.standard_normal((count, 4, 2)), "k": rng.random(count)}
    found = compare(windows(window, field), columns, count, rtol=1e-11, debug=window == 5)
    with qd.init(arch=qd.cpu, default_fp=qd.f64, batch=count):
        whole = windows(20, field)()
        for name, values in columns.items():
            whole.inputs[name].from_numpy(values)
        whole.run()
        for name, x in whole.outputs.items():
            assert np.array_equal(x.to_numpy(), found[name]), name


def test_a_bound_of_each_trial_in_a_loop_that_keeps_nothing():
    """How often such a loop runs is a matter of time alone: the plan guesses it."""
    counts = np.array([1, 4, 2, 0, 3])

    def build():
        x, y = qd.field(qd.f64, 3, needs_grad=True), qd.field(qd.f64, 3, needs_grad=True)

        @qd.kernel
        def work(n: qd.i32, steps: qd.i32):
            for i in x:
                v = x[i]
                for _ in range(steps):
                    v = qd.sin(v)
                    for m in range(n):
                        y[i] += 0.1 * m * v

        return x, y, work

    start = np.random.default_rng(4).random((5, 3))
    with qd.init(arch=qd.cpu, default_fp=qd.f64, batch=5) as program:
        x, y, work = build()
        x.from_numpy(start)
        y.grad.fill(1)
        work.grad(counts, 40)
        assert program.usage().get("adstack", 0) == work.grad.plan(counts, 40).bytes
        with pytest.raises(qd.OutOfMemory) as error:  # a budget is about time
            work.grad.plan(counts, 40, budget=0)
        assert error.value.smallest <= work.grad.plan(counts, 40).bytes
        slopes = x.grad.to_numpy()
    for b, n in enumerate(counts):
        with qd.init(arch=qd.cpu, default_fp=qd.f64, cpu_lanes=1):
            x, y, work = build()
            x.from_numpy(start[b])
            y.grad.fill(1)
            work.grad(int(n), 40)
            np.testing.assert_allclose(slopes[b], x.grad.to_numpy(), rtol=1e-12, atol=1e-15)
