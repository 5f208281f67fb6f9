"""Reverse mode through structs, struct fields, dataclass arguments and data-oriented objects, against central differences."""

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest

import qdrun as qd

sys.path.insert(0, str(Path(__file__).parent))
from gradient_checks import Point, right_at_all_levels, start

vec3 = qd.types.vector(3, qd.f64)
mat2 = qd.types.matrix(2, 2, qd.f64)


@qd.dataclass
class Body:
    pos: vec3
    vel: vec3
    m: qd.f64

    @qd.func
    def energy(self):
        return 0.5 * self.m * self.vel.dot(self.vel) + qd.sin(self.pos.x) * self.pos.norm()

    @qd.func
    def advance(self, dt):
        self.vel -= dt * self.pos * self.m
        self.pos += dt * self.vel

    @qd.func
    def mix(self, other, w):
        return Body(self.pos * w + other.pos * (1 - w), self.vel.cross(other.vel), self.m * other.m)


Pair = qd.types.struct(a=Body, b=Body, w=qd.f64)


def random_field(form, rng, *shape, **how):
    """A field of structs with gradients and random content."""
    f = form.field(shape=shape, needs_grad=True, **how)
    for leaf in f.leaves():
        leaf.from_numpy(rng.uniform(0.3, 1.1, leaf.to_numpy().shape))
    return f


def out_field(*shape):
    return qd.field(qd.f64, shape=shape, needs_grad=True)


def members_and_methods(rng):
    f, out = random_field(Body, rng, 4), out_field(4)

    @qd.kernel
    def k():
        for i in f:
            out[i] = f[i].energy() * f[i].m + f[i].vel[i % 3] * f[i].pos.y

    return k, (), f.leaves(), [out]


def copies_changed_by_methods(rng):
    f, out = random_field(Body, rng, 3), out_field(3)

    @qd.kernel
    def k():
        for i in f:
            s = f[i]
            t = s
            s.advance(0.1)
            t.m *= s.pos.z
            out[i] = s.energy() * t.energy() + s.m * t.m

    return k, (), f.leaves(), [out]


def carried_through_a_loop(rng):
    f, out = random_field(Body, rng, 3), out_field(3)
    steps = qd.field(qd.i32, shape=3)
    steps.from_numpy(np.array([5, 0, 7], np.int32))

    @qd.kernel
    def k():
        for i in f:
            s = f[i]
            for _ in range(steps[i]):
                s.advance(0.2)
                s.m = s.m * qd.cos(s.pos.x) + 0.1
            out[i] = s.energy()

    return k, (), f.leaves(), [out]


def rebuilt_from_itself_in_branches(rng):
    f, out = random_field(Body, rng, 3), out_field(3)

    @qd.kernel
    def k():
        for i in f:
            best = f[i]
            for j in range(3):
                if f[j].m > best.m:
                    best = Body(best.vel, f[j].pos, f[j].m * best.m)
                else:
                    best = best.mix(f[j], 0.3)
                    best.pos.x += f[j].m
            chosen = best if best.m > 0.2 else f[i]
            out[i] = chosen.energy()

    return k, (), f.leaves(), [out]


def a_while_loop_with_break(rng):
    f, out = random_field(Body, rng, 3), out_field(3)

    @qd.kernel
    def k():
        for i in f:
            s = f[i]
            n = 0
            while s.m < 4.0:
                s.m = s.m * 1.5 + 0.1 * s.pos.y
                n += 1
                if n > 4:
                    break
                s.pos = s.pos * s.m * 0.5
            out[i] = s.m * s.pos.sum()

    return k, (), f.leaves(), [out]


def elements_accumulated(rng):
    f, g = random_field(Body, rng, 3), Body.field(shape=2, needs_grad=True)

    @qd.kernel
    def k():
        for i in f:
            g[i % 2].pos += f[i].pos * f[i].m
            g[i % 2].vel.x += qd.exp(f[i].vel.x)
            qd.atomic_add(g[0].m, f[i].m ** 2)

    return k, (), f.leaves(), g.leaves()


def whole_elements_assigned(rng):
    f, g = random_field(Pair, rng, 3), Pair.field(shape=3, needs_grad=True)

    @qd.kernel
    def k():
        for i in f:
            g[i].a = f[i].b
            g[i].b = f[i].a.mix(f[i].b, f[i].w)
            g[i].w = f[i].a.m

    return k, (), f.leaves(), g.leaves()


def structs_of_arrays(rng):
    f, out = random_field(Pair, rng, 2, 3, layout=qd.Layout.SOA), out_field(2, 3)

    @qd.kernel
    def k():
        for i, j in f:
            p = f[i, j]
            p.a, p.b = p.b, p.a
            out[i, j] = p.a.energy() * p.w - p.b.energy()

    return k, (), f.leaves(), [out]


def several_tasks(rng):
    f, out = random_field(Body, rng, 3), out_field(3)

    @qd.kernel
    def k():
        s = f[0]
        t = Body(m=2.0)
        for i in f:
            out[i] = s.energy() * f[i].m
            t.pos += f[i].pos * f[i].vel
        s.m = t.pos.norm()
        s.advance(0.5)
        for i in f:
            out[i] += s.energy() * f[i].pos.z + t.m

    return k, (), f.leaves(), [out]


def results_of_functions(rng):
    f, out = random_field(Body, rng, 3), out_field(3)

    @qd.func
    def clipped(b: Body, limit):
        if b.m > limit:
            return Body(b.pos, b.vel, limit + 0.1 * b.m)
        for k in range(3):
            if b.pos[k] > 0.8:
                return b.mix(b, 0.25)
        return b

    @qd.func
    def scale(b: qd.template(), by):
        b.pos *= by
        b.m += by

    @qd.kernel
    def k():
        for i in f:
            s = clipped(f[i], 0.7)
            scale(s, f[i].vel.y)
            out[i] = s.energy()

    return k, (), f.leaves(), [out]


def matrices_and_dicts(rng):
    S = qd.types.struct(F=mat2, v=qd.types.vector(2, qd.f64))
    f, out = random_field(S, rng, 3), out_field(3)

    @qd.kernel
    def k():
        for i in f:
            s = qd.Struct({"F": f[i].F @ f[i].F, "in": {"v": f[i].v}})
            for _ in range(3):
                s.F = s.F * 0.5 + f[i].F
                s["in"].v = s.F @ s["in"].v
            out[i] = s["in"].v.norm() + s.F.determinant()

    return k, (), f.leaves(), [out]


CASES = [
    members_and_methods,
    copies_changed_by_methods,
    carried_through_a_loop,
    rebuilt_from_itself_in_branches,
    a_while_loop_with_break,
    elements_accumulated,
    whole_elements_assigned,
    structs_of_arrays,
    several_tasks,
    results_of_functions,
    matrices_and_dicts,
]


@pytest.mark.parametrize("build", CASES, ids=lambda f: f.__name__)
def test_gradients_of_kernels_with_structs(build):
    got = right_at_all_levels(build)
    assert np.abs(got).max() > 1e-3


def test_gradients_of_a_deferred_field_and_its_own_gradient_field():
    with start():
        rng = np.random.default_rng(3)
        f, out = Body.field(), out_field(3)
        qd.root.dense(qd.i, 3).place(f, f.grad)
        for leaf in f.leaves():
            leaf.from_numpy(rng.uniform(0.3, 1.1, leaf.to_numpy().shape))

        @qd.kernel
        def k():
            for i in f:
                out[i] = f[i].energy()

        Point(k, (), f.leaves(), [out]).check()
        assert f.grad[0].m == f.m.grad[0] and f.grad[1].vel.to_list() == f.vel.grad[1].to_list()

        @qd.kernel
        def seed():
            for i in f:
                f.grad[i].m = 2.0
                f.grad[i].pos += 1.0

        f.grad.fill(0)
        seed()
        assert f.m.grad.to_numpy().tolist() == [2] * 3 and f.pos.grad.to_numpy().tolist() == [[1] * 3] * 3


def test_a_tape_over_struct_fields():
    with start():
        rng = np.random.default_rng(4)
        f, loss = random_field(Body, rng, 5), qd.field(qd.f64, shape=(), needs_grad=True)
        states = Body.field(shape=(4, 5), needs_grad=True)

        @qd.kernel
        def begin():
            for i in f:
                states[0, i] = f[i]

        @qd.kernel
        def step(t: qd.i32):
            for i in f:
                s = states[t, i]
                s.advance(0.1)
                states[t + 1, i] = s

        @qd.kernel
        def end():
            for i in f:
                loss[None] += states[3, i].energy()

        def run():
            begin()
            for t in range(3):
                step(t)
            end()

        with qd.ad.Tape(loss=loss):
            run()
        for leaf in f.leaves():
            base = leaf.to_numpy()
            for index in list(np.ndindex(base.shape))[::4]:
                ends = []
                for h in (1e-6, -1e-6):
                    moved = base.copy()
                    moved[index] += h
                    leaf.from_numpy(moved)
                    loss[None] = 0
                    run()
                    ends.append(loss[None])
                leaf.from_numpy(base)
                assert np.isclose(leaf.grad.to_numpy()[index], (ends[0] - ends[1]) / 2e-6, atol=1e-7)


# ---- dataclasses and data-oriented objects


def vectors(n, rng):
    out = qd.Vector.ndarray(3, qd.f64, (n,), needs_grad=True)
    out.from_numpy(rng.uniform(0.3, 1.1, (n, 3)))
    return out


def numbers(n, rng):
    out = qd.ndarray(qd.f64, n, needs_grad=True)
    out.from_numpy(rng.uniform(0.3, 1.1, n))
    return out


@dataclasses.dataclass
class Inner:
    v: qd.types.ndarray(dtype=vec3, ndim=1)
    scale: qd.f64

    @qd.func
    def length(self, i):
        return self.v[i].norm() * self.scale


@dataclasses.dataclass
class System:
    inner: Inner
    x: qd.types.ndarray(dtype=qd.f64, ndim=1)
    f: qd.template()
    body: Body
    steps: qd.i32


def system(rng):
    return System(Inner(vectors(3, rng), 1.5), numbers(3, rng), random_field(Body, rng, 3), Body((1, 2, 3), 0.5, 2.0), 4)


@qd.func
def one_step(s: System, i, value):
    return value * s.inner.length(i) + s.body.energy() * s.x[i]


def test_gradients_through_dataclass_arguments():
    def build(rng):
        s, out = system(rng), numbers(3, rng)

        @qd.kernel
        def k(s: System, out: qd.types.ndarray()):
            for i in range(3):
                value = s.f[i].m
                for _ in range(s.steps):
                    value = one_step(s, i, value)
                out[i] = value + s.f[i].energy()

        return k, (s, out), [s.inner.v, s.x, *s.f.leaves()], [out]

    assert np.abs(right_at_all_levels(build)).max() > 1e-3


def test_a_tape_remembers_the_members_of_each_launch():
    with start():
        rng = np.random.default_rng(5)
        s, loss = system(rng), qd.field(qd.f64, shape=(), needs_grad=True)

        @qd.kernel
        def k(s: System):
            for i in s.x:
                loss[None] += s.x[i] ** 2 * s.inner.scale * s.body.m

        first, second = s.x, numbers(3, rng)
        body = Body(m=1.0)
        with qd.ad.Tape(loss=loss):
            k(s)
            s.x, s.inner.scale, s.body = second, 10.0, body
            k(s)
            body.m = 7.0
            s.inner.scale = 0.0
        assert np.allclose(first.grad.to_numpy(), 2 * first.to_numpy() * 1.5 * 2)
        assert np.allclose(second.grad.to_numpy(), 2 * second.to_numpy() * 10)


def test_steps_in_time_that_are_counted_in_a_dataclass():
    """The index of a step is a member: no step is taken for the overwriting of another."""

    @dataclasses.dataclass
    class Step:
        x: qd.types.ndarray(dtype=qd.f64, ndim=1)
        t: qd.i32

    with start():
        rng = np.random.default_rng(6)
        x, loss = numbers(5, rng), qd.field(qd.f64, shape=(), needs_grad=True)
        start_value = x[0]

        @qd.kernel
        def k(s: Step):
            s.x[s.t + 1] = s.x[s.t] * s.x[s.t]

        @qd.kernel
        def end(s: Step):
            loss[None] = s.x[s.t]

        step = Step(x, 0)
        with qd.ad.Tape(loss=loss):
            for t in range(3):
                step.t = t
                k(step)
            step.t = 3
            end(step)
        assert np.isclose(x.grad[0], 8 * start_value**7)
        with qd.ad.Tape(loss=loss):
            k(Step(x, 0))
            k(Step(x, 1))
            k(Step(x, 0))
            x[0] = 3.0
            end(Step(x, 1))
        assert np.isclose(x.grad[0], 2 * start_value) and x[0] == 3.0


def test_gradients_through_the_arrays_of_an_object():
    @qd.data_oriented
    class Model:
        def __init__(self, rng):
            self.w, self.v, self.f = numbers(3, rng), vectors(3, rng), random_field(Body, rng, 3)
            self.out = numbers(3, rng)
            self.parts = [numbers(3, rng), numbers(3, rng)]

        @qd.func
        def layer(self, i, x):
            return qd.tanh(self.w[i] * x + self.v[i].norm())

        @qd.kernel
        def forward(self, n: qd.i32):
            for i in range(3):
                x = self.f[i].energy()
                for _ in range(n):
                    x = self.layer(i, x) * self.parts[0][i]
                self.out[i] = x * self.parts[1][i]

    with start():
        m = Model(np.random.default_rng(8))
        point = Point(m.forward, (3,), [m.w, m.v, *m.f.leaves(), *m.parts], [m.out])
        assert np.abs(point.check()).max() > 1e-3
