"""Tapes that were recorded before: their launches follow a log natively, their gradients are walked natively, and nothing else changes."""

import contextlib
import gc
import random
import sys
import threading
import weakref

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.program.memory import known_tapes
from qdrun.compiler.program.memory.known_tapes import KnownTapes
from qdrun.compiler.program.program import current_program

WAYS = {
    "cpu": {},
    "a batch": {"batch": 3},
    "a budget": {"memory_budget": "64MiB"},
    "emulated": {"arch": qd.cuda, "device": "emulated"},
    "an emulated batch": {"arch": qd.cuda, "device": "emulated", "batch": 3},
    "Vulkan": {"arch": qd.vulkan, "device": "llvmpipe"},
}
SLOW = ("emulated", "an emulated batch", "Vulkan")
ways = pytest.mark.parametrize("way", [pytest.param(w, marks=pytest.mark.slow) if w in SLOW else w for w in WAYS])
array = qd.types.ndarray(dtype=qd.f64, ndim=1)


@pytest.fixture(autouse=True)
def small_tapes(monkeypatch):
    """Make logs of tapes of a few launches, too."""
    monkeypatch.setattr(known_tapes, "WORTH", 0)
    yield
    qd.reset()


@qd.data_oriented
class Body:
    """A method over a field of its object."""

    def __init__(self, x):
        self.x = x

    @qd.kernel
    def turn(self, t: qd.i32, c: qd.f64):
        for i in range(4):
            self.x[t + 1, i] = c * qd.sin(self.x[t, i]) + self.x[t, i]


class Scene:
    """Kernels of every form of call, and what a tape script may do besides."""

    def __init__(self, logs, **options):
        qd.init(default_fp=qd.f64, **options)
        self.logs, self.program = logs, current_program()
        self.x = x = qd.field(qd.f64, shape=(9, 4), needs_grad=True)
        self.loss = loss = qd.field(qd.f64, shape=(), needs_grad=True)
        self.arrays = [qd.ndarray(qd.f64, 4, needs_grad=True) for _ in range(3)]
        self.body = Body(x)
        self.q = q = qd.field(qd.f64, shape=4, needs_grad=True)
        self.v = v = qd.Vector.field(2, qd.f64, shape=4, needs_grad=True)
        self.turns = turns = qd.field(qd.i32, shape=())

        @qd.kernel
        def step(t: qd.i32, c: qd.f64):
            for i in range(4):
                x[t + 1, i] = c * qd.cos(x[t, i])

        @qd.kernel
        def add(a: array, b: array, factor: qd.f64):
            for i in range(4):
                b[i] += factor * a[i] * a[i]

        @qd.kernel
        def take(a: array, t: qd.i32):
            for i in range(4):
                x[t + 1, i] = x[t, i] + a[i] * x[t, 0]

        @qd.kernel
        def total(b: array, last: qd.i32):
            for i in range(4):
                loss[None] += b[i] * (i + 1.0) + x[last, i]

        @qd.kernel
        def kick(dt: qd.f64):
            for i in v:
                v[i][0] += dt * qd.sin(q[i]) * v[i][1]
                v[i][1] = v[i][1] * v[i][1] * 0.5

        @qd.kernel
        def move(dt: qd.f64, a: array):
            for i in q:
                q[i] += dt * v[i][0] * a[i]
            for i in range(4):
                a[i] = qd.cos(a[i])

        @qd.kernel
        def bend(c: qd.f64):
            for i in q:
                s = q[i]
                for _ in range(turns[None]):
                    s = c * qd.sin(s)
                q[i] = s

        @qd.kernel
        def count():
            for _ in range(1):
                turns[None] = turns[None] % 3 + 1

        @qd.kernel
        def total_of_state():
            for i in q:
                loss[None] += q[i] * q[i] + v[i][0] * v[i][1]

        @qd.kernel
        def weigh(t: qd.i32, w: qd.types.ndarray(dtype=qd.f64, ndim=1)):
            for i in range(4):
                x[t + 1, i] = x[t, i] * x[t, i] * w[i]

        self.data = data = qd.field(qd.f64, shape=(5, 4), needs_grad=True)

        @qd.kernel
        def pick(t: qd.i32, row: qd.i32):
            for i in range(4):
                x[t + 1, i] = x[t, i] * data[row, i]

        self.weigh, self.pick = weigh, pick
        self.step, self.add, self.take, self.total = step, add, take, total
        self.kick, self.move, self.bend, self.count, self.total_of_state = kick, move, bend, count, total_of_state

    def run(self, script):
        """The gradients after a tape of a script. ``script``: what happens, each with its numbers."""
        if not self.logs:
            self.program.known_tapes = KnownTapes()
        start = np.linspace(0.1, 1.0, 4)
        self.x.from_numpy(np.vstack([start, np.zeros((8, 4))]))
        for k, a in enumerate(self.arrays):
            a.from_numpy(start * (k + 1))
        self.data.from_numpy(np.outer(np.arange(1.0, 6.0), start))
        self.q.from_numpy(start)
        self.v.from_numpy(np.stack([start, start[::-1]], axis=1))
        self.turns.fill(1)
        with qd.ad.Tape(self.loss) as tape:
            for what, *numbers in script:
                getattr(self, f"do_{what}")(*numbers)
        inputs = [self.x, *self.arrays, self.q, self.v, self.data]
        found = [t.grad for t in inputs] + [self.loss, self.q, self.v, *self.arrays, self.turns]
        return tape, np.concatenate([np.ravel(t.to_numpy()) for t in found])

    def do_step(self, t, c):
        self.step(t, c)

    def do_keyword(self, t, c):
        self.step(c=c, t=t)

    def do_turn(self, t, c):
        self.body.turn(t, c)

    def do_weigh(self, t, factor):
        self.weigh(t, np.arange(1.0, 5.0) * factor)

    def do_pick(self, t, row):
        self.pick(t, row)

    def do_add(self, a, factor):
        self.add(self.arrays[a], self.arrays[(a + 1) % 3], factor)

    def do_take(self, t, a):
        self.take(self.arrays[a], t)

    def do_fresh(self, factor):
        """An array that is dropped at once: the next one may lie where it lay."""
        fresh = qd.ndarray(qd.f64, 4, needs_grad=True)
        fresh.from_numpy(np.full(4, factor))
        self.add(fresh, self.arrays[2], factor)

    def do_write(self, t):
        self.x[t, 1] = 0.25

    def do_read(self):
        self.loss.to_numpy()

    def do_hidden(self, t, c):
        qd.ad.no_grad(lambda: self.step(t, c))()

    def do_total(self, last):
        self.total(self.arrays[2], last)

    def do_kick(self, dt):
        self.kick(dt)

    def do_move(self, dt, a):
        self.move(dt, self.arrays[a])

    def do_bend(self, c):
        self.bend(c)

    def do_count(self):
        self.count()

    def do_total_of_state(self):
        self.total_of_state()


def a_script(rng):
    last = rng.randrange(3, 8)
    forms = ["step", "keyword", "turn", "take", "weigh", "pick"]
    script = []
    for t in range(last):
        form = rng.choice(forms)
        script.append((form, t, rng.randrange(2)) if form in ("take", "pick") else (form, t, rng.uniform(0.5, 1.5)))
    if rng.random() < 0.5:
        script.append(("add", 1, rng.uniform(0.5, 1.5)))
    if rng.random() < 0.6:  # state in place
        for _ in range(rng.randrange(2, 6)):
            form = rng.choice(["kick", "move", "bend", "bend", "count"])
            script.append({"count": ("count",), "move": ("move", 0.1, 0)}.get(form, (form, rng.uniform(0.1, 0.9))))
        script.append(("total_of_state",))
    if rng.random() < 0.3:
        script += [("fresh", rng.uniform(0.5, 1.5)) for _ in range(2)]
    return [*script, ("total", last)]


def changed(script, rng):
    """The script with other real numbers, or with something else in it."""
    script = [tuple(rng.uniform(0.5, 1.5) if isinstance(n, float) else n for n in one) for one in script]
    script = [(*one[:2], rng.randrange(5)) if one[0] == "pick" else one for one in script]
    at = rng.randrange(len(script))
    change = rng.choice(["", "", "read", "write", "hidden", "more", "fewer", "number"])
    if change == "read":
        script.insert(at, ("read",))
    elif change == "write":
        script.insert(0, ("write", 0))
    elif change == "hidden":
        script.append(("hidden", 7, 0.5))
    elif change == "more":
        script.append(("add", 1, 0.5))
    elif change == "fewer":
        del script[at]
    elif change == "number":
        script[-1] = ("total", 1)
    return script


@ways
def test_random_tapes_have_the_bits_that_they_have_without_logs(way):
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    first = a_script(rng)
    scripts = [first, first, first]
    for _ in range(8 if way in SLOW else 25):
        scripts += [changed(first, rng), first]
    found = []
    for logs in (True, False):
        scene = Scene(logs, **WAYS[way])
        values, followed = [], 0
        for script in scripts:
            tape, one = scene.run(script)
            values.append(one)
            followed += tape.log.known is not None
        found.append(values)
        names = {what for what, *_ in first}
        python, on_device = {"fresh"}, not scene.program.device.on_host  # Python writes to it in the tape
        if on_device:
            python |= {"weigh"}  # its array is copied to the device
        if way == "a budget":
            python |= {"kick", "move", "bend"}  # copies are counted
        none = names & python
        assert bool(followed) == (logs and not none), f"seed {seed}: {followed} tapes followed a log"
        qd.reset()
    for k, (got, want) in enumerate(zip(*found)):
        np.testing.assert_array_equal(got, want, err_msg=f"seed {seed}, tape {k}: {scripts[k]} after {scripts[k - 1]}")


def test_the_gradient_of_a_known_tape_is_that_of_differences():
    scene = Scene(True)
    script = [("step", 0, 0.7), ("turn", 1, 0.8), ("keyword", 2, 1.2), ("take", 3, 0), ("add", 1, 0.9), ("total", 4)]
    for _ in range(3):
        tape, _ = scene.run(script)
    got = scene.x.grad.to_numpy()[0]
    assert tape.log.known is not None
    h, ends = 1e-6, []
    for sign in (1, -1):
        for i in range(4):
            scene.x.from_numpy(np.vstack([np.linspace(0.1, 1.0, 4) + sign * h * np.eye(4)[i], np.zeros((8, 4))]))
            for k, a in enumerate(scene.arrays):
                a.from_numpy(np.linspace(0.1, 1.0, 4) * (k + 1))
            scene.loss[None] = 0.0
            for what, *numbers in script:
                getattr(scene, f"do_{what}")(*numbers)
            ends.append(scene.loss[None])
    np.testing.assert_allclose(got, (np.array(ends[:4]) - np.array(ends[4:])) / (2 * h), rtol=1e-7)


def test_an_index_into_what_no_launch_writes_may_differ_and_one_into_what_they_write_may_not():
    scene = Scene(True)
    for row in (0, 1):
        scene.run([("pick", 0, row), ("total", 1)])
    for row in (2, 2, 4):
        tape, _ = scene.run([("pick", 0, row), ("total", 1)])
        assert tape.log.known is not None
        start = np.linspace(0.1, 1.0, 4)
        np.testing.assert_allclose(scene.x.grad.to_numpy()[0], (row + 1) * start, rtol=1e-12)
    tape, _ = scene.run([("pick", 1, 2), ("total", 1)])
    assert tape.log.known is None


@pytest.mark.parametrize(
    "form, way",
    [
        *((form, "cpu") for form in ("step", "keyword", "turn", "add", "kick")),
        pytest.param("kick", "Vulkan", marks=pytest.mark.slow),
    ],
)
def test_a_launch_of_a_known_tape_and_its_gradient_take_no_call_of_python(form, way):
    scene = Scene(True, **WAYS[way])

    def calls_of(launches):
        calls = 0

        def count(frame, event, what):
            nonlocal calls
            calls += event == "call"

        def run():
            with qd.ad.Tape(scene.loss):
                for k in range(launches):
                    if form == "step":
                        scene.step(k % 8, 0.5)
                    elif form == "keyword":
                        scene.step(c=0.5, t=k % 8)
                    elif form == "turn":
                        scene.body.turn(k % 8, 0.5 + k)
                    elif form == "kick":  # overwrites what its gradient needs
                        scene.kick(0.5 + k)
                    else:
                        scene.add(scene.arrays[0], scene.arrays[1], 0.5 + k)

        for _ in range(3):
            run()
        sys.setprofile(count)
        try:
            run()
        finally:
            sys.setprofile(None)
        return calls

    per_launch = (calls_of(8) - calls_of(4)) / 4
    assert per_launch <= (3 if form == "keyword" else 0)  # keywords are put in order in Python


@pytest.mark.parametrize("after", [False, True])
def test_a_copy_that_fails_on_a_device_is_an_error_of_the_tape(after):
    """``after``: it is made when the gradients run, not before a launch."""
    scene = Scene(True, **WAYS["emulated"])
    script = [("kick", 0.5), ("kick", 0.25), ("total_of_state",)]
    for _ in range(3):
        tape, _ = scene.run(script)
    assert tape.log.known is not None
    machine = scene.program.device.driver.machine
    with pytest.raises(qd.QdrunRuntimeError, match="a copy on emulated device failed: a value was refused"):
        with qd.ad.Tape(scene.loss):
            scene.kick(0.5)
            if not after:
                machine.fail_next("copy", 1)
            scene.kick(0.25)
            if after:
                machine.fail_next("copy", 1)
            scene.total_of_state()
    machine.heal()


def test_arrays_and_kernels_of_a_known_tape_go_when_nothing_else_holds_them():
    scene = Scene(True)
    for _ in range(3):
        tape, _ = scene.run([("add", 0, 0.5), ("total", 0)])
    assert tape.log.known is not None
    known = weakref.ref(scene.arrays[0]), weakref.ref(scene.add)
    scene.arrays = []
    del scene.add
    gc.collect()
    assert all(one() is not None for one in known)  # the tape has them
    assert [kernel.fn.__name__ for kernel, *_ in tape.log.launches] == ["add", "total"]
    del tape
    gc.collect()
    assert [one() for one in known] == [None, None]


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("size", [4, 5, 1 << 17])
def test_an_array_that_python_changes_after_its_launch_is_refused_as_in_a_new_tape(left, size):
    qd.init(default_fp=qd.f64)
    x, loss = qd.field(qd.f64, 4, needs_grad=True), qd.field(qd.f64, (), needs_grad=True)

    @qd.kernel
    def weigh(w: qd.types.ndarray(dtype=qd.i8, ndim=1)):
        for i in x:
            loss[None] += x[i] * x[i] * w[i]

    @qd.kernel
    def other():
        for i in x:
            loss[None] += x[i]

    def run(change=False, more=False):
        weights = np.full(size, 2, np.int8)
        with qd.ad.Tape(loss) as tape:
            weigh(weights)
            if change:
                weights[:] = 3
            if more:
                other()
        return tape

    other()
    x.fill(0.5)
    for _ in range(2):
        run()
    assert run().log.known is not None
    with pytest.raises(qd.DataAccessError, match=r"`weigh` needs the values of the argument `w` read here, but Python changed"):
        run(change=True, more=left)


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("times", [1, 4])
def test_gradients_run_again_where_nothing_was_overwritten_and_are_refused_where_copies_are_used_up(times, inside):
    scene = Scene(True)
    for script, again in (
        ([("step", 0, 0.5), ("total", 1)], True),
        ([("bend", 0.5), ("bend", 0.7), ("total_of_state",)], False),
    ):
        for _ in range(times):
            tape, _ = scene.run(script)
        assert (tape.log.known is not None) == (times > 2)
        first = scene.x.grad.to_numpy(), scene.q.grad.to_numpy()
        if inside:
            with pytest.raises(qd.QdrunRuntimeError) if not again else contextlib.nullcontext(), qd.ad.Tape(scene.loss) as tape:
                for what, *numbers in script:
                    getattr(scene, f"do_{what}")(*numbers)
                tape.grad()
                scene.loss.grad.fill(0)
                first = scene.x.grad.to_numpy(), scene.q.grad.to_numpy()
        else:
            scene.loss.grad.fill(0)
            with (
                contextlib.nullcontext()
                if again
                else pytest.raises(qd.QdrunRuntimeError, match="the copies are used up\n  do: record")
            ):
                tape.grad()
        if again:
            np.testing.assert_array_equal(scene.x.grad.to_numpy()[0], 2 * first[0][0])


def test_a_log_is_made_of_a_tape_that_was_recorded_often_enough_to_be_worth_it(monkeypatch):
    monkeypatch.setattr(known_tapes, "WORTH", 10)
    scene = Scene(True)
    followed = [scene.run([("step", 0, 0.5), ("step", 1, 0.5), ("total", 2)])[0].log.known is not None for _ in range(6)]
    assert followed == [False] * 4 + [True] * 2


def test_an_earlier_tape_keeps_its_launches_when_a_later_one_follows_the_same_log():
    scene = Scene(True)
    script = [("step", 0, 0.5), ("total", 1)]
    for _ in range(3):
        earlier, _ = scene.run(script)
    later, _ = scene.run([("step", 0, 0.75), ("total", 1)])
    assert next(args for _, args, _ in earlier.log.launches) == (0, 0.5)
    assert next(args for _, args, _ in later.log.launches) == (0, 0.75)


def test_a_launch_of_another_thread_is_refused_while_a_log_is_followed():
    scene = Scene(True)
    for _ in range(2):
        scene.run([("step", 0, 0.5), ("step", 1, 0.5)])
    errors = []

    def launch():
        with scene.program.current_here():
            try:
                scene.step(1, 0.5)
            except qd.QdrunRuntimeError as error:
                errors.append(str(error))

    with qd.ad.Tape(scene.loss) as tape:
        scene.step(0, 0.5)
        assert tape.log.known is not None
        thread = threading.Thread(target=launch)
        thread.start()
        thread.join()
        scene.step(1, 0.5)
    assert len(errors) == 1 and "is launched in another thread while a tape records" in errors[0]


def test_a_launch_that_fails_while_a_log_is_followed_leaves_no_gradient():
    qd.init(default_fp=qd.f64)
    x, loss = qd.field(qd.f64, 4, needs_grad=True), qd.field(qd.f64, (), needs_grad=True)
    sizes = qd.field(qd.i32, ())

    @qd.kernel
    def grow(c: qd.f64):
        for i in range(4):
            stack = 0.0
            for _ in range(sizes[None]):
                stack = c * qd.sin(stack + x[i])
            loss[None] += stack

    grads = []
    for size in (3, 3, 3, 5, 3, 7):
        sizes[None] = size
        with qd.ad.Tape(loss) as tape:
            grow(0.5)
        grads.append((tape.log.known is not None, x.grad.to_numpy()[0]))
    followed, values = zip(*grads)
    assert any(followed[2:])
    want = []
    for size in (3, 3, 3, 5, 3, 7):
        s = d = 0.0
        for _ in range(size):
            s, d = 0.5 * np.sin(s), 0.5 * np.cos(s) * (d + 1.0)
        want.append(d)
    np.testing.assert_allclose(values, want, rtol=1e-12)
