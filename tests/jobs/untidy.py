"""Habits of jobs that leave things behind: each is one way to do that."""

import collections
import functools
import random
from dataclasses import dataclass, field

import numpy as np

import qdrun as qd

HABITS = {}
"""What a job makes in ``build``, and how it uses it in a run: a number that tells what it has found, and something else is left there."""
REFUSED = set()
"""Those that cannot be put back: the job is built for each trial."""


class Habit:
    def build(self, job): ...

    def fill(self, job): ...

    def launches(self, job):
        return []


def habit(kind, *, kept=True):
    name = kind.__name__
    HABITS[name] = kind()
    if not kept:
        REFUSED.add(name)
    return kind


@habit
class element(Habit):
    def build(self, job):
        job.e = qd.field(qd.f64, shape=4)

    def use(self, job):
        found = job.e[2]
        job.e[2] = found + job.params.k
        return found


@habit
class whole_field_that_build_has_written(Habit):
    def build(self, job):
        job.w = qd.Vector.field(2, dtype=qd.f32, shape=(3, 2))
        job.w.from_numpy(np.arange(12).reshape(3, 2, 2))

    def use(self, job):
        found = job.w.to_numpy()
        job.w.from_numpy(found * 2 + 1)
        return float(found.sum())


@habit
class stored_by_a_kernel(Habit):
    def build(self, job):
        job.s = s = qd.field(qd.f64, shape=5)
        job.t = t = qd.field(qd.f64, shape=5, layout=(0,))
        s[1] = 3.0

        @qd.kernel
        def mix():
            for i in s:
                t[i] += s[i] * 2.0 + 1.0
                s[i] = t[i] + i

        job.mix = mix

    def launches(self, job):
        return [(job.mix, ())]

    def use(self, job):
        job.mix()
        return float(job.s.to_numpy().sum() + 10 * job.t.to_numpy().sum())


@habit
class a_large_table(Habit):
    def build(self, job):
        job.table, job.log = qd.field(qd.f64, shape=40_000), qd.field(qd.f64, shape=40_000)
        job.table.from_numpy(np.arange(40_000))

    def use(self, job):
        found = job.table[39_999] + job.log[39_998]
        job.table[39_999] = job.log[39_998] = 1.0
        return float(found)


@habit
class interleaved(Habit):
    def build(self, job):
        job.a, job.b = qd.field(qd.f64), qd.field(qd.i32)
        qd.root.dense(qd.i, 6).place(job.a, job.b)
        job.b[3] = 7

    def use(self, job):
        found = job.a[1] + job.b[3] * 10 + job.b[4]
        job.a[1], job.b[3], job.b[4] = found, 1, 2
        return float(found)


@habit
class planes(Habit):
    def build(self, job):
        job.p = qd.Vector.field(3, dtype=qd.f64, shape=2, layout=qd.Layout.SOA, needs_grad=True)
        job.p[1] = [1.0, 2.0, 3.0]

    def use(self, job):
        found = job.p.to_numpy().sum() + job.p.grad.to_numpy().sum()
        job.p.fill(5.0)
        job.p.grad.fill(1.0)
        return float(found)


@habit
class a_gradient_that_is_seeded_by_hand(Habit):
    def build(self, job):
        job.g = g = qd.field(qd.f64, shape=3, needs_grad=True)
        job.h = h = qd.field(qd.f64, shape=(), needs_grad=True)
        h.grad[None] = 0.5

        @qd.kernel
        def sums():
            for i in g:
                h[None] += g[i] * g[i] + g[i]

        job.sums = sums

    def launches(self, job):
        return [(job.sums, ())]

    def use(self, job):
        job.sums()
        job.sums.grad()
        job.g[1] = job.params.k
        return float(job.h[None] + job.g.grad.to_numpy().sum() + job.h.grad[None])


@habit
class a_dual(Habit):
    def build(self, job):
        job.d = qd.field(qd.f64, shape=3, needs_dual=True)
        job.d.dual[1] = 2.0

    def use(self, job):
        found = float(job.d.dual.to_numpy().sum())
        job.d.dual.fill(job.params.k)
        return found


@habit
class structs(Habit):
    def build(self, job):
        job.st = qd.types.struct(mass=qd.f64, at=qd.types.vector(2, qd.f64)).field(shape=3)
        job.st[0].mass = 2.0

    def use(self, job):
        found = job.st.mass[0] + job.st.at[1][0]
        job.st[0].mass, job.st[1].at = found + 1.0, [found, 1.0]
        return float(found)


@habit
class ndarrays(Habit):
    def build(self, job):
        job.n, job.m = qd.ndarray(qd.f64, shape=(4,)), qd.ndarray(qd.f64, shape=(2, 2), needs_grad=True, layout=(1, 0))
        job.n[2] = 4.0

        @qd.kernel
        def grow(x: qd.types.ndarray(dtype=qd.f64, ndim=1), by: qd.f64):
            for i in x:
                x[i] = x[i] * 2.0 + by

        job.grow = grow

    def launches(self, job):
        return [(job.grow, (job.n, 0.0))]

    def use(self, job):
        job.grow(job.n, job.params.k)
        found = job.m.to_numpy().sum() + job.m.grad.to_numpy().sum()
        job.m.fill(1.0)
        job.m.grad.fill(3.0)
        return float(found + job.n.to_numpy().sum())


@habit
class written_by_a_kernel_in_build(Habit):
    def build(self, job):
        job.i = i = qd.field(qd.f64, shape=3, needs_grad=True)

        @qd.kernel
        def start():
            for n in i:
                i[n] = n + qd.random(qd.f64)

        start()
        i.grad[0] = 1.0

    def use(self, job):
        found = float(job.i.to_numpy().sum() + job.i.grad.to_numpy().sum())
        job.i.fill(found)
        job.i.grad.fill(2.0)
        return found


@habit
class random_numbers(Habit):
    def build(self, job):
        job.r = r = qd.field(qd.f64, shape=())

        @qd.kernel
        def draw():
            r[None] += qd.random(qd.f64)

        job.draw = draw

    def launches(self, job):
        return [(job.draw, ())]

    def use(self, job):
        job.draw()
        job.draw()
        return float(job.r[None])


@habit
class attributes_that_change_come_and_go(Habit):
    def build(self, job):
        job.count, job.going = 0, 1.0

    def use(self, job):
        job.count += 1
        found = job.count + vars(job).pop("going", 5.0) + 10 * hasattr(job, "fresh")
        job.fresh = [job]
        return float(found)


@habit
class lists_in_dicts(Habit):
    def build(self, job):
        job.history = {"loss": [], ("a", 1): [[1.0], (2.0, [3.0])]}

    def use(self, job):
        found = len(job.history["loss"]) + len(job.history) + sum(job.history["a", 1][1][1])
        job.history["loss"].append(job.params.k)
        job.history["a", 1][1][1].append(4.0)
        job.history[job.params.k] = None
        return float(found)


@habit
class the_order_of_a_dict(Habit):
    def build(self, job):
        job.order = {"b": 1.0, "a": 2.0}

    def use(self, job):
        found = next(iter(job.order.values()))
        job.order["b"] = job.order.pop("b")
        return found


@habit
class arrays(Habit):
    def build(self, job):
        job.grid = np.zeros((3, 4))
        job.part = job.grid[::2, 1:]
        job.objects = np.array([[1.0], None], dtype=object)

    def use(self, job):
        found = job.grid.sum() + job.objects[0][0]
        job.part += job.params.k
        job.objects[0][0] += 1.0
        return float(found)


@habit
class closures(Habit):
    def build(self, job):
        count, seen = 0, []

        def step(by=seen):
            nonlocal count
            count += 1
            by.append(count)
            return float(count + len(seen))

        job.go = functools.partial(lambda f, x: f() * x, step, 2.0)

    def use(self, job):
        return job.go()


@dataclass
class Body:
    mass: float = 1.0
    parts: list = field(default_factory=list)


@habit
class objects(Habit):
    def build(self, job):
        job.body = Body(parts=[Body(2.0)])
        job.grow_body = job.body.parts[0].__setattr__

    def use(self, job):
        found = job.body.parts[0].mass + len(job.body.parts) + len(vars(job.body))
        job.grow_body("mass", found)
        job.body.parts.append(Body())
        job.body.more = 1.0
        return float(found)


@habit
class values_of_the_host(Habit):
    def build(self, job):
        job.vector, job.struct = qd.Vector([1.0, 2.0]), qd.Struct(a=1.0, b=[1.0, 2.0])

    def use(self, job):
        found = job.vector[0] + job.struct.a
        job.vector[0], job.struct.a = found, 4.0
        return float(found)


@habit
@qd.data_oriented
class methods_with_kernels(Habit):
    def build(self, job):
        job.solver = Solver()

    def launches(self, job):
        return [(job.solver.add, ())]

    def use(self, job):
        job.solver.add()
        job.solver.calls += 1
        return float(job.solver.x[None] + 10 * job.solver.calls)


@qd.data_oriented
class Solver:
    def __init__(self):
        self.x, self.calls = qd.field(qd.f64, shape=()), 0

    @qd.kernel
    def add(self):
        self.x[None] += 1.0


@functools.partial(habit, kept=False)
class generators_of_random_numbers(Habit):
    def build(self, job):
        job.rng, job.old = np.random.default_rng(5), random.Random(5)

    def use(self, job):
        return float(job.rng.random() + job.old.random())


@functools.partial(habit, kept=False)
class a_deque_in_slots(Habit):
    def build(self, job):
        job.slots = Slots()

    def use(self, job):
        job.slots.last.append(job.params.k)
        return float(len(job.slots.last))


class Slots:
    __slots__ = ("last",)

    def __init__(self):
        self.last = collections.deque(maxlen=3)


@functools.partial(habit, kept=False)
class sets(Habit):
    def build(self, job):
        job.chosen = {"a"}

    def use(self, job):
        found = float(len(job.chosen))
        job.chosen.add(job.params.k)
        return found


@functools.partial(habit, kept=False)
class classes_that_build_makes(Habit):
    def build(self, job):
        class Tally:
            count = 0.0

            def add(self):
                type(self).count += 1
                return self.count

        job.tally = Tally()

    def use(self, job):
        return job.tally.add()


@functools.partial(habit, kept=False)
class a_cache(Habit):
    def build(self, job):
        job.cached = functools.cache(lambda: job.params.k)

    def use(self, job):
        return job.cached()


@functools.partial(habit, kept=False)
class an_iterator(Habit):
    def build(self, job):
        job.numbers = (float(n) for n in range(1000))

    def use(self, job):
        return next(job.numbers)


@functools.partial(habit, kept=False)
class an_array_that_grows(Habit):
    def build(self, job):
        job.data = np.zeros(2)

    def use(self, job):
        found = float(job.data.size)
        job.data.resize(3, refcheck=False)
        return found


@functools.partial(habit, kept=False)
class an_array_made_in_fill(Habit):
    def fill(self, job):
        job.made = qd.ndarray(qd.f64, shape=100)

    def use(self, job):
        found = float(job.made[0])
        job.made[0] = 1.0
        return found


@functools.partial(habit, kept=False)
class an_ndarray_instead_of_another(Habit):
    def build(self, job):
        job.mine = qd.ndarray(qd.f64, shape=3)

    def use(self, job):
        found = float(job.mine[0])
        job.mine = qd.ndarray(qd.f64, shape=4)
        return found + len(job.mine)


@functools.partial(habit, kept=False)
class memory_of_others(Habit):
    def build(self, job):
        job.lent = qd.from_dlpack(np.zeros(3))

    def use(self, job):
        found = float(job.lent[0])
        job.lent[0] = 1.0
        return found


@habit
class attributes_in_another_order(Habit):
    def build(self, job):
        job.first, job.second = 1.0, 2.0

    def use(self, job):
        found = next(value for name, value in vars(job).items() if name in ("first", "second"))
        job.first = vars(job).pop("first")
        return found


ON_HOST = {"memory_that_is_shown", "memory_of_others"}


@habit
class memory_that_is_shown(Habit):
    def build(self, job):
        job.shown = qd.field(qd.f64, shape=4)
        job.look = job.shown.view[1:]
        job.look[0] = 2.0

    def use(self, job):
        found = job.shown[1] + job.shown[2]
        job.look[...] = 3.0
        return float(found)
