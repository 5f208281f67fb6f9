"""Updates in place, atomic ones included, give what the operator gives: every operator on random pairs of types."""

import numpy as np
import pytest

import qdrun as qd

TYPES = "u1 u8 i8 u16 i16 u32 i32 u64 i64 f16 f32 f64".split()
N = 24
OPERATORS = "+ - * & | ^ / // % ** << >>".split()
ATOMIC = {"+": "add", "-": "sub", "*": "mul", "&": "and", "|": "or", "^": "xor"}


def numpy_type(name):
    return np.dtype("bool" if name == "u1" else {"u": "uint", "i": "int", "f": "float"}[name[0]] + name[1:])


def drawn(rng, name, small=False):
    """Values of a type, its limits among them; ``small``: of no more than a few bits, and not 0."""
    dtype = numpy_type(name)
    if name == "u1":
        return np.ones(N, bool) if small else rng.integers(0, 2, N).astype(bool)
    if dtype.kind == "f":
        return rng.choice([-3.5, -2.0, -0.7, 0.3, 1.0, 1.5, 2.0, 100.0] + [0.0] * (not small), N).astype(dtype)
    few = np.arange(1, 7) if small else np.arange(-5 if dtype.kind == "i" else 0, 9)
    ends = [] if small else [np.iinfo(dtype).max, np.iinfo(dtype).min]
    return np.array([*few, *ends], dtype)[rng.integers(0, len(few) + len(ends), N)]


def is_refused(op, x, v):
    if x == "u1" and v != "u1":
        return op in ("+", "-", "&", "^")
    return x[0] != "f" and v[0] == "f" and op in ("+", "-", "*")


def kernel_of(tmp_path, op, x, v):
    """A kernel with the plain form in ``plain`` and updates of each kind in the other fields."""
    atomic = f"qd.atomic_{ATOMIC[op]}(call[i], v[i])" if op in ATOMIC else f"call[i] {op}= v[i]"
    source = f"""
import qdrun as qd
@qd.kernel
def k(plain: qd.template(), own: qd.template(), call: qd.template(), order: qd.template(), v: qd.template()):
    for i in v:
        plain[i] = plain[i] {op} v[i]
    for i in v:
        own[i] {op}= v[i]
    for i in v:
        {atomic}
    qd.loop_config(serialize=True)
    for i in range({N}):
        order[i] {op}= v[i]
"""
    path = tmp_path / f"k_{x}_{v}_{OPERATORS.index(op)}.py"
    path.write_text(source)
    space = {}
    exec(compile(source, str(path), "exec"), space)
    return space["k"]


@pytest.mark.parametrize("x", TYPES)
def test_an_update_gives_what_its_operator_gives(tmp_path, x):
    rng = np.random.default_rng()
    other = str(rng.choice(TYPES))
    with qd.init(default_fp=qd.f64, cpu_max_num_threads=2, offline_cache=False):
        fields = [qd.field(getattr(qd, x), shape=N) for _ in range(4)]
        values = {v: qd.field(getattr(qd, v), shape=N) for v in (x, other)}
        for op in rng.permutation(OPERATORS)[:3]:
            for v, field in values.items():
                real = "f" in (x[0], v[0])
                if op in "& | ^ << >>".split() and real:
                    continue
                start, value = drawn(rng, x), drawn(rng, v, small=op in ("/", "//", "%", "**", "<<", ">>"))
                field.from_numpy(value)
                for f in fields:
                    f.from_numpy(start)
                k = kernel_of(tmp_path, op, x, v)
                if is_refused(op, x, v):
                    with pytest.raises(qd.QdrunTypeError, match=r"is updated by a (real )?number"):
                        k(*fields, field)
                    continue
                k(*fields, field)
                plain, *others = (f.to_numpy() for f in fields)
                for found in others:
                    if x[0] == "f" and x != v and op in ATOMIC:  # of reals, the operand is rounded to the element's type first
                        close = 4 * np.finfo(numpy_type(x)).eps
                        np.testing.assert_allclose(
                            found.astype(float), plain.astype(float), rtol=close, atol=close, err_msg=f"{x} {op} {v}"
                        )
                    else:
                        np.testing.assert_array_equal(found, plain, err_msg=f"{x} {op} {v}: {start} {value}")


@pytest.mark.parametrize(
    ("x", "v"), [("i8", "i64"), ("u8", "i32"), ("u32", "i32"), ("i32", "i8"), ("i16", "f64"), ("u16", "u64")]
)
def test_an_atomic_minimum_compares_as_the_plain_one_does(x, v):
    rng = np.random.default_rng()
    with qd.init(default_fp=qd.f64, offline_cache=False):
        plain, low, high, value = (qd.field(getattr(qd, t), shape=N) for t in (x, x, x, v))
        info = np.iinfo(numpy_type(x))
        given = drawn(rng, v)
        fits = rng.integers(max(info.min, -100), 100, N).astype(numpy_type(v))
        start = drawn(rng, x)
        for f in (plain, low, high):
            f.from_numpy(start)
        value.from_numpy(np.where(rng.random(N) < 0.5, fits, given))

        @qd.kernel
        def both():
            for i in value:
                qd.atomic_min(low[i], value[i])
                qd.atomic_max(high[i], value[i])

        both()
        a, b = start.astype(object), value.to_numpy().astype(object)
        if (x, v) == ("u32", "i32"):  # u32 wins: compared as unsigned
            b = np.array([int(e) % 2**32 for e in b], object)
        for found, pick in ((low, min), (high, max)):
            expect = [int(min(max(pick(p, q), info.min), info.max)) for p, q in zip(a, b)]
            assert found.to_numpy().tolist() == expect


def test_a_minimum_of_signed_numbers_with_unsigned_ones_is_refused():
    with qd.init(offline_cache=False):
        n, u = qd.field(qd.i32, shape=(), name="n"), qd.field(qd.u32, shape=())

        @qd.kernel
        def k():
            qd.atomic_max(n[None], u[None])

        with pytest.raises(
            qd.QdrunTypeError, match=r"`n` holds i32, and its minimum or maximum with u32 .*(.|\n)*do: .*`qd.i32\(value\)`"
        ):
            k()


def test_a_number_with_a_fraction_does_not_update_an_integer():
    with qd.init(offline_cache=False):
        n = qd.field(qd.i32, shape=(), name="n")

        @qd.kernel
        def whole():
            n[None] += 2.0
            n[None] *= 3.0

        whole()
        assert n[None] == 6

        @qd.kernel
        def half():
            n[None] *= 0.5

        text = r"`n` holds integers \(i32\), and is updated by a real number .*(.|\n)*test_updates.py:\d+(.|\n)*`x\[i\] = x\[i\] \* value`"
        with pytest.raises(qd.QdrunTypeError, match=text):
            half()
