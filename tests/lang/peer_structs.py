"""Kernels with structs, dataclass arguments and data-oriented classes, written once, for quadrants and for this package."""

import dataclasses

import numpy as np
from peer_kernels import N, array, case


def particles(lib):
    """A struct type with a method that changes it and one that reads it."""
    vec3 = lib.types.vector(3, lib.f32)

    @lib.dataclass
    class Particle:
        pos: vec3
        vel: vec3
        m: lib.f32

        @lib.func
        def energy(self):
            return 0.5 * self.m * self.vel.dot(self.vel)

        @lib.func
        def push(self, d):
            self.pos += self.vel * d

    return Particle


def filled(lib, rng, n=N, **how):
    f = particles(lib).field(shape=(n,), **how)
    f.from_numpy(
        {
            "pos": rng.uniform(-1, 1, (n, 3)).astype(np.float32),
            "vel": rng.uniform(-1, 1, (n, 3)).astype(np.float32),
            "m": rng.uniform(1, 2, n).astype(np.float32),
        }
    )
    return f


def all_of(f):
    return [f.pos.to_numpy(), f.vel.to_numpy(), f.m.to_numpy()]


@case
def struct_methods_change_variables_and_elements(lib, rng):
    f = filled(lib, rng)
    out = array(lib, np.zeros((2, N), np.float32))

    @lib.kernel
    def k(out: lib.types.ndarray()):
        for i in f:
            f[i].push(0.5)
            copy = f[i]
            copy.push(1.0)
            copy.m *= 2.0
            out[0, i] = copy.energy() + copy.pos[1]
            out[1, i] = f[i].energy() - f[i].pos.y

    k(out)
    return [out.to_numpy(), *all_of(f)]


@case
def structs_in_loops_branches_and_functions(lib, rng):
    f = filled(lib, rng)
    Particle = particles(lib)
    out = array(lib, np.zeros((3, N), np.float32))

    @lib.func
    def heavier(a, b):
        r = a
        if b.m > a.m:
            r = b
        return r

    @lib.func
    def swap(a: lib.template(), b: lib.template()):
        a.m, b.m = b.m, a.m

    @lib.kernel
    def k(out: lib.types.ndarray()):
        for i in range(N - 1):
            best = f[i]
            for j in range(i, N):
                best = heavier(best, f[j])
                best.vel += f[j].vel
            p = Particle(pos=best.pos, m=best.m)
            q = Particle(best.vel)
            swap(p, q)
            out[0, i] = p.m
            out[1, i] = q.m
            out[2, i] = p.pos.sum() + q.pos.sum() + p.vel.sum()

    k(out)
    return [out.to_numpy(), *all_of(f)]


@case
def struct_fields_of_both_layouts_and_nested(lib, rng):
    Particle = particles(lib)
    Pair = lib.types.struct(a=Particle, b=Particle, tag=lib.i32)
    f = Pair.field(shape=(3, 4), layout=lib.Layout.SOA)
    g = Pair.field()
    lib.root.dense(lib.i, 3).dense(lib.j, 4).place(g)

    @lib.kernel
    def k():
        for i, j in f:
            f[i, j].a = Particle((1.0 * i, 2.0, 3.0), m=1.5)
            f[i, j].b.vel = lib.Vector([0.5, 1.5, 2.5]) * (j + 1)
            f[i, j].tag = i * 10 + j
            f[i, j].b.m += 2.0
            g[i, j] = f[i, j]
            g[i, j].a.pos[i] += 0.25
            lib.atomic_add(g[0, j].b.pos.z, 1.0)

    k()
    return [*all_of(f.a), *all_of(f.b), f.tag.to_numpy(), *all_of(g.a), *all_of(g.b), g.tag.to_numpy()]


@case
def struct_arguments_and_results(lib, rng):
    Particle = particles(lib)
    out = []

    @lib.kernel
    def moved(p: Particle, dt: lib.f32) -> Particle:
        q = p
        q.push(dt)
        return q

    p = Particle(pos=(1.0, 2.0, 3.0), vel=(0.5, 0.25, 0.125), m=4.0)
    for dt in (0.0, 1.0, -2.5):
        q = moved(p, dt)
        out += [list(q.pos), list(q.vel), q.m]
    return [np.asarray(x, np.float32) for x in out]


@case
def dataclass_arguments_passed_on_to_functions(lib, rng):
    @dataclasses.dataclass
    class Inner:
        x: lib.types.NDArray[lib.f32, 1]
        scale: lib.f32

    @dataclasses.dataclass
    class Outer:
        inner: Inner
        y: lib.types.NDArray[lib.f32, 1]
        z: lib.Template
        n: lib.i32

    @lib.func
    def by_member(x: lib.types.NDArray[lib.f32, 1], i: lib.i32, v: lib.f32):
        x[i] += v

    @lib.func
    def touch(inner: Inner, i: lib.i32):
        inner.x[i] *= inner.scale

    @lib.func
    def whole(s: Outer, i: lib.i32):
        touch(s.inner, i)
        s.y[i] = s.inner.x[i] + s.z[i] + s.inner.x.shape[0]
        by_member(s.y, i, 0.5)

    @lib.kernel
    def k(s: Outer):
        for i in range(s.n):
            whole(s, i)
            s.z[i] = s.y[i] * 2

    z = lib.field(lib.f32, shape=N)
    z.from_numpy(rng.uniform(-1, 1, N).astype(np.float32))
    x, y = array(lib, rng.uniform(-1, 1, N)), array(lib, rng.uniform(-1, 1, N))
    s = Outer(Inner(x, 3.0), y, z, N - 2)
    k(s)
    s.inner.scale = -0.5
    k(s)
    return [x.to_numpy(), y.to_numpy(), z.to_numpy()]


@case
def data_oriented_objects_hold_arrays_that_are_replaced(lib, rng):
    @lib.data_oriented
    class Base:
        def __init__(self, n, by):
            self.n, self.by = n, by
            self.a = lib.field(lib.f32, shape=n)
            self.b = array(lib, rng.uniform(-1, 1, n))

        @property
        def twice(self):
            return self.by * 2

        @staticmethod
        @lib.func
        def half(v):
            return v * 0.5

        @lib.func
        def step(self, i):
            self.a[i] += self.half(self.b[i]) * self.twice

    @lib.data_oriented
    class Derived(Base):
        @lib.kernel
        def run(self, extra: lib.i32):
            for i in range(self.n):
                self.step(i)
                self.b[i] += extra

    objects = [Derived(N, 2.0), Derived(N - 3, 5.0)]
    out = []
    for extra in (1, 2):
        for o in objects:
            o.run(extra)
            out += [o.a.to_numpy(), o.b.to_numpy()]
            o.b = array(lib, rng.uniform(-1, 1, o.n))
            o.run(extra)
            out += [o.a.to_numpy(), o.b.to_numpy()]
    return out
