"""Structs: their types, values outside and inside kernels, fields of them, arguments and results."""

import copy
import pickle
import re

import numpy as np
import pytest

import qdrun as qd

vec3 = qd.types.vector(3, qd.f64)
Particle = qd.types.struct(pos=vec3, m=qd.f64, k=qd.i32)


@qd.dataclass
class Ball:
    pos: vec3
    m: qd.f64

    @qd.func
    def energy(self, g):
        return self.m * g * self.pos.y

    @qd.func
    def move(self, d):
        self.pos += d
        self.m += 1.0

    @qd.func
    def moved_twice(self, d):
        self.move(d)
        self.move(d)
        return self.m

    @staticmethod
    @qd.func
    def double(x):
        return 2.0 * x

    def plain(self):
        return self.m * 3.0


@pytest.fixture(autouse=True)
def program():
    with qd.init(arch=qd.cpu, default_fp=qd.f64) as p:
        yield p


def message(kernel, *args, error=qd.QdrunTypeError):
    """What a call raises: it names the line and says what to do."""
    with pytest.raises(error) as caught:
        kernel(*args)
    text = str(caught.value)
    assert re.search(r"test_structs\.py:\d+", text) and "^" in text
    return text


# ---- outside of kernels


def test_members_are_given_by_position_and_by_name_and_are_zero_otherwise():
    assert Particle().to_dict() == {"pos": [0, 0, 0], "m": 0.0, "k": 0}
    assert Particle((1, 2, 3), k=3.7).to_dict() == {"pos": [1, 2, 3], "m": 0.0, "k": 3}
    assert Particle(2).to_dict() == {"pos": [2, 2, 2], "m": 0.0, "k": 0}
    p = Particle(pos=vec3(1.5), m=2)
    assert isinstance(p.m, float) and isinstance(p, Particle) and not isinstance(p, Ball) and isinstance(p, qd.Struct)
    assert Particle(p).to_dict() == p.to_dict() and Particle({"pos": 0, "m": 1, "k": 2}).k == 2
    assert p.keys == ["pos", "m", "k"] and dict(p.items)["m"] == 2.0 and len(p) == 3 and p["m"] == 2.0
    assert repr(Particle) == "struct(pos: vector(3, f64), m: f64, k: i32)" and repr(p) == str(p.to_dict())


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: Particle(1, 2, 3, 4), "has 3 members, and 4 values are given"),
        (lambda: Particle(mass=1), "has no member `mass`"),
        (lambda: Particle(1, pos=2), "`pos` of struct is given twice"),
        (lambda: Particle(m=(1, 2)), "the member `m` of struct: (1, 2) is not a number"),
        (lambda: Particle(pos=(1, 2)), "the member `pos` of struct"),
        (lambda: Particle(pos=Ball()), "the member `pos` of struct: a struct is not a number"),
        (lambda: Particle.cast({"pos": 0}), "the value has pos"),
        (lambda: qd.types.struct(a="f32x"), "the member `a` of a struct cannot be of the type 'f32x'"),
        (lambda: qd.types.struct(a=qd.types.ndarray()), "the member `a` of a struct cannot be"),
        (lambda: Ball.field(shape=2).copy_from(3), "copies from a struct field, not from a int"),
        (lambda: Ball.field(shape=2).from_numpy({"m": np.zeros(2)}), "has the members pos, m; the value has m"),
        (lambda: Ball.field(shape=2, layout="XYZ"), "qd.Layout.AOS or qd.Layout.SOA, not 'XYZ'"),
        (lambda: list(Ball.field(shape=2)), "cannot be iterated in Python"),
        (lambda: qd.StructField({"a": 3}), "the members of a struct field are fields, not int"),
    ],
)
def test_what_does_not_fit_a_struct_is_refused(make, text):
    with pytest.raises(qd.QdrunTypeError) as caught:
        make()
    assert text in str(caught.value)


def test_a_default_value_of_a_dataclass_is_refused():
    with pytest.raises(qd.QdrunSyntaxError, match="Default value in @dataclass is not supported: `a` of Bad"):

        @qd.dataclass
        class Bad:
            a: qd.f32 = 1.0


def test_structs_of_python_change_and_are_copied():
    p = Particle((1, 2, 3), 2.0, 4)
    q, r = copy.copy(p), pickle.loads(pickle.dumps(p))
    p.pos.x, p.m, p.k = 9.0, 8.0, 7
    p.pos = p.pos + 1
    assert p.to_dict() == {"pos": [10, 3, 4], "m": 8.0, "k": 7}
    assert q.to_dict() == r.to_dict() == {"pos": [1, 2, 3], "m": 2.0, "k": 4} and isinstance(r, Particle)
    with pytest.raises(AttributeError, match="has no member `mass`; its members are pos, m, k"):
        p.mass = 3
    with pytest.raises(AttributeError, match="has no member `mass`"):
        p.mass
    with pytest.raises(qd.QdrunTypeError, match="`m` holds a number"):
        p.m = (1, 2)
    with pytest.raises(qd.QdrunTypeError, match="`pos` has shape"):
        p.pos = (1, 2)
    with pytest.raises(qd.QdrunSyntaxError, match="keywords or one dict"):
        qd.Struct(3)


def test_anonymous_structs_take_dicts_and_lists():
    s = qd.Struct({"v": [1.0, 2.0], "in": {"a": 3}, "p": Ball(1, 2)})
    assert s.to_dict() == {"v": [1.0, 2.0], "in": {"a": 3}, "p": {"pos": [1, 1, 1], "m": 2.0}}
    assert s["in"].a == 3 and qd.Struct(a=1).a == 1
    assert qd.Struct({"m": 4.0, "__struct_methods": {"twice": lambda self: 2 * self.m}}).twice() == 8.0


def test_methods_of_python_run_in_python_and_in_kernels():
    assert Ball(0, 2.0).plain() == 6.0

    @qd.kernel
    def k() -> qd.f64:
        return Ball(0, 2.0).plain()

    assert k() == 6.0


# ---- fields


@pytest.mark.parametrize("layout", [None, qd.Layout.AOS, qd.Layout.SOA])
def test_a_field_of_structs_is_a_field_for_each_member(layout):
    f = Particle.field(shape=(2, 3), layout=layout, needs_grad=True)
    assert f.shape == (2, 3) and f.keys == ["pos", "m", "k"] and f.pos.shape == (2, 3) and f.get_member_field("m") is f.m
    f[1, 2] = Particle((1, 2, 3), 4, 5)
    f[0, 0].pos.y = 7
    f[0, 0].m += 2
    f[0, 1] = {"pos": 1, "m": 2, "k": 3}
    assert f[1, 2].to_dict() == {"pos": [1, 2, 3], "m": 4.0, "k": 5} and f[0, 0].to_dict()["pos"] == [0, 7, 0]
    assert f.m[0, 0] == 2 and f.k[0, 1] == 3
    stride = f.m.view.strides[-1]
    assert stride == (8 if layout is qd.Layout.SOA else 40)
    assert f.grad.keys == ["pos", "m"] and f.grad.pos.shape == (2, 3)
    arrays = f.to_numpy()
    assert {n: a.shape for n, a in arrays.items()} == {"pos": (2, 3, 3), "m": (2, 3), "k": (2, 3)}
    g = Particle.field(shape=(2, 3))
    g.from_numpy(arrays)
    h = Particle.field(shape=(2, 3))
    h.copy_from(g)
    assert all(np.array_equal(a, b) for a, b in zip(h.to_numpy().values(), arrays.values()))
    f.fill(2.5)
    assert f[1, 1].to_dict() == {"pos": [2.5] * 3, "m": 2.5, "k": 2}
    with pytest.raises(qd.QdrunIndexError):
        f[2, 0]


def test_struct_fields_are_made_in_every_way():
    a = qd.Struct.field({"a": qd.f32, "b": qd.types.vector(2, qd.i32)}, shape=4)
    b = qd.field(Ball, shape=4)
    c = qd.Struct.field({"x": Ball, "t": float})
    d = qd.StructField({"p": qd.field(qd.f32, shape=4), "q": qd.Vector.field(2, qd.f32, shape=4)})
    qd.root.dense(qd.i, 2).dense(qd.i, 2).place(c)
    qd.root.dense(qd.i, 4).place(c.grad)
    a[1].b = (3, 4)
    b[1] = Ball(1, 2)
    c[3].x.pos[2] = 5
    c[3].x = Ball(7, 1)
    d[2].q.y = 2
    assert a.b[1].to_list() == [3, 4] and b.m[1] == 2 and c.x.pos[3].to_list() == [7, 7, 7] and d.q[2].to_list() == [0, 2]
    assert c.shape == (4,) and c.x.shape == (4,) and c.grad.x.pos.shape == (4,)
    point = Ball.field(shape=())
    point[None].m = 3
    assert point[None].m == 3 and point.shape == ()
    with pytest.raises(qd.QdrunRuntimeError, match="not placed"):
        qd.Struct.field({"a": qd.f32}).shape
    with pytest.raises(qd.QdrunSyntaxError, match="offset, but no shape"):
        Ball.field(offset=2)


def test_gradients_are_lazily_placed_beside_the_members():
    f = Particle.field()
    qd.root.dense(qd.i, 4).place(f)
    qd.root.lazy_grad()
    assert f.grad.pos.placed and f.grad.m.shape == (4,)


# ---- inside kernels


def test_elements_are_read_written_and_updated():
    f, g = Particle.field(shape=4), Particle.field(shape=4)

    @qd.kernel
    def fill():
        for i in f:
            f[i] = Particle(pos=(i, 1, 2), m=i * 0.5)
            f[i].pos.x += 10
            f[i].pos[1] -= i
            f[i].k = i
            g[i] = f[i]
            g[i].pos = f[i].pos * 2 + g[i].m
            g[i]["k"] += 1
        for _ in f:
            qd.atomic_add(g[0].m, 1.0)

    fill()
    n = np.arange(4)
    assert np.array_equal(f.pos.to_numpy(), np.stack([n + 10, 1 - n, 0 * n + 2], 1)) and f.m.to_numpy().tolist() == [
        0,
        0.5,
        1,
        1.5,
    ]
    assert np.allclose(g.pos.to_numpy(), f.pos.to_numpy() * 2 + 0.5 * n[:, None])
    assert g.k.to_numpy().tolist() == [1, 2, 3, 4] and g.m[0] == 4.0


def test_a_copy_is_a_copy_and_members_are_assigned_in_loops_and_branches():
    f = Particle.field(shape=3)
    out = qd.field(qd.f64, shape=8)

    @qd.kernel
    def k(c: qd.i32):
        for _ in range(1):
            s = f[0]
            t = s
            s.m = 5
            t.pos.x = 9
            for j in range(3):
                s.m += j
                if j == 1:
                    t = Particle(s.pos, s.m * 2, j)
                elif c > 0:
                    t.pos[j] += 1
            u = s if c > 0 else t
            out[0], out[1], out[2], out[3] = s.m, t.m, t.pos.x, f[0].m
            out[4], out[5] = u.m, t.k
            a, b = s, t
            a.m, b.m = b.m, a.m
            out[6], out[7] = a.m, b.m

    k(1)
    assert out.to_numpy().tolist() == [8, 12, 0, 0, 8, 1, 12, 8]
    k(0)
    assert out.to_numpy().tolist() == [8, 12, 0, 0, 12, 1, 12, 8]


def test_variables_of_the_kernel_are_passed_from_task_to_task():
    out = qd.field(qd.f64, shape=4)

    @qd.kernel
    def k(n: qd.i32) -> qd.f64:
        s = Ball(pos=(1, 2, 3), m=out[0] + 1)
        r = Ball(pos=n, m=2)
        for i in range(4):
            out[i] += s.m + r.pos.x
        s.m = 10.0
        for i in range(4):
            s.pos.y += out[i]
            out[i] += s.m
        t = s
        t.m += 1
        return s.pos.y + 100 * t.m + s.m

    assert k(3) == 2 + 4 * 4 + 100 * 11 + 10 and out.to_numpy().tolist() == [14.0] * 4


def test_methods_change_what_they_are_called_on():
    f = Ball.field(shape=3)

    @qd.kernel
    def k() -> qd.f64:
        b = Ball(1.0, 2.0)
        b.move(qd.Vector([1.0, 2.0, 3.0]))
        f[1].move(5.0)
        f[2].moved_twice(1.0)
        value = f[1]
        value.move(1.0)
        return b.energy(10.0) * 1000 + b.m + b.double(0.25) + Ball(0, 1).moved_twice(3.0)

    assert k() == 3 * 10 * 3 * 1000 + 3 + 0.5 + 3
    assert f.m.to_numpy().tolist() == [0, 1, 2] and f.pos.to_numpy()[:, 0].tolist() == [0, 5, 2]


def test_functions_take_structs_by_value_by_reference_and_return_them():
    @qd.func
    def by_value(b: Ball, d):
        b.m += d
        return b

    @qd.func
    def by_reference(b: qd.template(), d):
        b.m += d
        b.pos.x = d

    @qd.func
    def early(c, d) -> Ball:
        if c > 0:
            return Ball(c, d)
        for i in range(3):
            if i == -c:
                return Ball(i, m=7)
        return Ball(m=d)

    f = Ball.field(shape=2)
    out = qd.field(qd.f64, shape=6)

    @qd.kernel
    def k():
        a = Ball(1, 2)
        b = by_value(a, 3.0)
        by_reference(a, 10.0)
        by_reference(f[1], 4.0)
        out[0], out[1], out[2] = a.m, b.m, a.pos.x
        out[3], out[4], out[5] = early(2, 5.0).pos.y, early(-1, 5.0).m, early(-5, 6.0).m

    k()
    assert out.to_numpy().tolist() == [12, 5, 10, 2, 7, 6] and f[1].to_dict() == {"pos": [4, 0, 0], "m": 4.0}


def test_nested_structs_dicts_and_anonymous_ones():
    Line = qd.types.struct(a=Ball, b=Ball, n=int)
    constant = qd.Struct({"w": 2.5, "in": {"v": [1, 2]}})
    f = Line.field(shape=2)
    out = qd.field(qd.f64, shape=4)

    @qd.kernel
    def k():
        line = Line(a=Ball(1, 2), n=3)
        line.b = line.a
        line.b.pos.z = 7
        line.b.m += line.n
        f[0] = line
        f[1].a = line.b
        f[1].b = {"pos": qd.Vector([3.0, 2.0, 1.0]), "m": 4}
        s = qd.Struct(v=[1.0, 2.0], n={"q": 3.0}, k=1)
        s.n.q += constant.w
        out[0], out[1], out[2] = s.v[1], s.n.q, s.k
        t = constant
        t.w = 1
        out[3] = constant["in"].v.y + t.w

    k()
    assert f[0].to_dict() == {"a": {"pos": [1, 1, 1], "m": 2.0}, "b": {"pos": [1, 1, 7], "m": 5.0}, "n": 3}
    assert f[1].a.m == 5 and f[1].b.pos.to_list() == [3, 2, 1] and out.to_numpy().tolist() == [2, 5.5, 1, 3]
    assert f.to_numpy()["a"]["pos"].shape == (2, 3)


def test_loops_run_over_struct_fields():
    f = Particle.field(shape=(2, 3))

    @qd.kernel
    def k(x: qd.template()):
        for i, j in x:
            x[i, j].k = i * 10 + j
        for I in qd.grouped(x):
            x[I].m = x[I].k
        for i, j in qd.ndrange(x.shape[0], x.m.shape[1]):
            x.pos[i, j].x += x[i, j].m

    k(f)
    assert f.pos.to_numpy()[..., 0].tolist() == [[0, 1, 2], [10, 11, 12]]


def test_struct_arguments_and_results():
    @qd.kernel
    def k(p: Particle, s: qd.f64) -> Particle:
        q = p
        q.pos *= s
        return Particle(q.pos, q.m + 1, q.k)

    @qd.kernel
    def both(p: Ball) -> tuple[Ball, qd.i32, vec3]:
        return Ball(p.pos + 1, p.m), 3, p.pos * 2

    r = k(Particle((1, 2, 3), 0.5, 7), 2.0)
    assert r.to_dict() == {"pos": [2, 4, 6], "m": 1.5, "k": 7} and isinstance(r, Particle)
    assert k({"pos": (0, 0, 1), "m": 1, "k": 2}, 3.0).to_dict() == {"pos": [0, 0, 3], "m": 2.0, "k": 2}
    ball, n, v = both(Ball(1, 2))
    assert ball.to_dict() == {"pos": [2, 2, 2], "m": 2.0} and n == 3 and v.to_list() == [2, 2, 2]
    with pytest.raises(qd.QdrunTypeError, match="argument `p`: struct has the members"):
        k(qd.Struct(a=1), 2.0)
    with pytest.raises(qd.QdrunTypeError, match="argument `p`: expected struct, got 3"):
        k(3, 2.0)


def test_structs_are_printed(capfd):
    f = Ball.field(shape=1)
    f[0] = Ball((1, 2, 3), 4)

    @qd.kernel
    def k():
        for i in f:
            print(f[i], f"and {f[i].pos}")

    k()
    qd.sync()
    assert capfd.readouterr().out == "Ball(pos=[1.0, 2.0, 3.0], m=4.0) and [1.0, 2.0, 3.0]\n"


# ---- what is refused


def test_wrong_uses_of_structs_are_refused_by_name():
    f = Ball.field(shape=2)

    @qd.kernel
    def no_member():
        f[0].mass = 1.0

    @qd.kernel
    def arithmetic():
        a = Ball(1, 2) + Ball(1, 2)  # noqa: F841

    @qd.kernel
    def augmented():
        f[0] += Ball(1, 2)

    @qd.kernel
    def number():
        f[0] = 1.0

    @qd.kernel
    def other():
        f[0] = Particle()

    @qd.kernel
    def argument(b: Ball):
        b.m = 1.0

    @qd.kernel
    def indices():
        f[0, 1].m = 1.0

    @qd.kernel
    def unknown():
        a = Ball(mass=1)  # noqa: F841

    @qd.kernel
    def keys(c: qd.i32):
        a = {c: 2}  # noqa: F841

    @qd.kernel
    def branches(c: qd.i32):
        a = Ball(1, 2) if c > 0 else 3  # noqa: F841

    @qd.kernel
    def called():
        number()

    assert "Ball has no member `mass`" in message(no_member, error=qd.QdrunNameError)
    assert "`pos`, `m`" in message(no_member, error=qd.QdrunNameError)
    assert "a struct Ball with the members pos, m is not a number" in message(arithmetic)
    assert "structs have no arithmetic" in message(augmented)
    assert "a struct Ball with the members pos, m cannot become" in message(number)
    assert "Ball has the members pos, m; the value has pos, m, k" in message(other)
    assert "`b` is an argument of the kernel and cannot be assigned" in message(argument, Ball())
    assert "takes 1 index, not 2" in message(indices, error=qd.QdrunIndexError)
    assert "Ball has no member `mass`" in message(unknown)
    assert "not known at compile time" in message(keys, 1)
    assert "`if` chooses between a struct Ball" in message(branches, 1)
    assert "the kernel `number` cannot be called inside a kernel" in message(called, error=qd.QdrunSyntaxError)


def test_a_field_without_gradients_says_so():
    f = Ball.field(shape=2)

    @qd.kernel
    def k():
        f.grad[0].m = 1.0

    assert "has no stored grad" in message(k, error=qd.QdrunNameError)


# ---- references to functions with parallel loops


@qd.func
def bump_in_two_loops(c: qd.template(), out: qd.template()):
    for i in out:
        out[i] += c
    c += 1
    for i in out:
        out[i] += c * 10


@pytest.fixture
def out():
    return qd.field(qd.f64, shape=4)


def test_a_member_is_passed_by_reference_to_a_function_with_parallel_loops(out):
    Pair = qd.types.struct(b=Ball, z=qd.f64)

    @qd.kernel
    def k() -> qd.f64:
        p = Pair(Ball(1, 2), 5)
        bump_in_two_loops(p.b.m, out)
        bump_in_two_loops(p.z, out)
        return p.b.m * 100 + p.z

    assert k() == 306 and out.to_numpy().tolist() == [2 + 30 + 5 + 60] * 4


def test_an_element_at_an_index_of_run_time_is_passed_by_reference(out):
    x, where = qd.field(qd.f64, shape=4), qd.field(qd.i32, shape=())
    f = Ball.field(shape=3)

    @qd.kernel
    def k(n: qd.i32):
        bump_in_two_loops(x[n + 1], out)
        bump_in_two_loops(x[where[None] * 2], out)
        bump_in_two_loops(f[where[None]].m, out)
        bump_in_two_loops(f[n].pos.y, out)

    where[None] = 1
    k(0)
    assert x.to_numpy().tolist() == [0, 1, 1, 0] and f.m.to_numpy().tolist() == [0, 1, 0] and f.pos[0].to_list() == [0, 1, 0]
    assert out.to_numpy().tolist() == [40.0] * 4


def test_a_component_of_a_variable_is_not(out):
    @qd.kernel
    def k():
        v = qd.Vector([1.0, 2.0])
        bump_in_two_loops(v.x, out)

    assert "a component of a variable cannot be passed by reference" in message(k)
