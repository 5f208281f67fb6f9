"""``arch=qd.python``: the reference interpreter behind the same interface, and what it is for: comparing and debugging."""

import io
import pdb
import sys
from pathlib import Path

import numpy as np
import pytest

import qdrun as qd

sys.path.insert(0, str(Path(__file__).parent))
import peer_corners  # noqa: F401
import peer_structures  # noqa: F401
from peer_kernels import CASES


def compute(arch, name):
    qd.init(arch=arch, offline_cache=False)
    return [np.asarray(a) for a in CASES[name](qd, np.random.default_rng(sum(map(ord, name))))]


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_computes_the_same_compiled_and_interpreted(name):
    for a, b in zip(compute(qd.cpu, name), compute(qd.python, name), strict=True):
        single = not name.startswith("gradient")
        np.testing.assert_allclose(a, b, rtol=3e-5 if single else 1e-12, atol=1e-5 if single else 1e-13)


def swing(arch, levels):
    """A gradient with adstacks, a while loop and an ndarray; what it gives and what was planned."""
    program = qd.init(arch=arch, default_fp=qd.f64, cpu_max_num_threads=1, ad_checkpoint_levels=levels)
    x = qd.field(qd.f64, shape=4, needs_grad=True)
    c = qd.ndarray(qd.f64, 4, needs_grad=True)
    loss = qd.field(qd.f64, shape=(), needs_grad=True)

    @qd.kernel
    def k(n: qd.i32, c: qd.types.ndarray(dtype=qd.f64, ndim=1)):
        for i in x:
            v = x[i]
            for _ in range(n):
                v = qd.sin(v) + c[i] * v
            left = 3
            while left > 0:
                left -= 1
                v *= 1.1
                if v > 2.0:
                    break
            loss[None] += v * v

    r = np.random.default_rng(3)
    x.from_numpy(r.uniform(-1, 1, 4))
    c.from_numpy(r.uniform(-1, 1, 4))
    with qd.ad.Tape(loss=loss):
        k(7, c)
    return loss[None], x.grad.to_numpy(), c.grad.to_numpy(), k.grad.plan(7, c).bytes, program.usage()["adstack"]


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_gradients_and_plans_are_the_same_compiled_and_interpreted(levels):
    for a, b in zip(swing(qd.cpu, levels), swing(qd.python, levels), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-13)


def test_print_and_assert_name_what_compiled_code_names(capsys):
    seen = []
    for arch in (qd.cpu, qd.python):
        qd.init(arch=arch, debug=True)

        @qd.kernel
        def k(n: qd.i32):
            v = qd.Vector([0.25, 0.5])
            print("n", n, v, f"half {n / 2}")
            assert n < 3, f"n is {n}"

        with pytest.raises(qd.QdrunAssertionError) as error:
            k(5)
        seen.append((capsys.readouterr().out, str(error.value)))
    assert seen[0] == seen[1]
    assert "n is 5" in seen[0][1]


def test_an_index_outside_of_its_array_is_an_error_with_its_line():
    qd.init(arch=qd.python)
    x = qd.field(qd.f32, shape=4)

    @qd.kernel
    def k(n: qd.i32):
        x[n] = 1.0

    with pytest.raises(qd.QdrunRuntimeError, match=r"x\[9\] is outside its shape \(4,\)") as error:
        k(9)
    assert "x[n] = 1.0" in str(error.value) and "  do: keep indices inside" in str(error.value)
    k(3)
    assert x[3] == 1.0


def test_a_breakpoint_shows_the_variables_at_its_line(monkeypatch):
    qd.init(arch=qd.python)
    x = qd.field(qd.f32, shape=3)
    seen = []

    def hook():
        frame = sys._getframe(1)
        seen.append((Path(frame.f_code.co_filename).name, frame.f_lineno, dict(frame.f_locals)))

    monkeypatch.setattr(sys, "breakpointhook", hook)

    @qd.kernel
    def k(scale: qd.f32):
        for i in x:
            m = qd.Matrix([[1.0, 2.0], [3.0, i]])
            half = scale * i
            if i > 0:
                breakpoint()
            x[i] = half + m[1, 1]

    k(0.5)
    assert [s[2]["i"] for s in seen] == [1, 2]
    assert seen[1][2]["half"] == 1.0 and seen[1][2]["scale"] == 0.5
    np.testing.assert_array_equal(seen[1][2]["m"], [[1.0, 2.0], [3.0, 2.0]])
    assert seen[0][0] == Path(__file__).name
    line = Path(__file__).read_text(encoding="utf-8").splitlines()[seen[0][1] - 1]
    assert line.strip() == "breakpoint()"
    np.testing.assert_array_equal(x.to_numpy(), [0.0, 1.5, 3.0])


def test_pdb_works_at_a_breakpoint(monkeypatch):
    qd.init(arch=qd.python)
    x = qd.field(qd.f32, shape=1)
    out = io.StringIO()

    def hook():
        pdb.Pdb(stdin=io.StringIO("p half * 2\nc\n"), stdout=out).set_trace(sys._getframe(1))

    monkeypatch.setattr(sys, "breakpointhook", hook)

    @qd.kernel
    def k(scale: qd.f32):
        for i in x:
            half = scale + 1.25
            breakpoint()
            x[i] = half

    k(1.0)
    assert "4.5" in out.getvalue()
    assert x[0] == 2.25


def test_a_breakpoint_is_refused_where_kernels_are_compiled():
    qd.init(arch=qd.cpu)

    @qd.kernel
    def k():
        breakpoint()

    with pytest.raises(qd.QdrunSyntaxError, match="breakpoint\\(\\) cannot be compiled") as error:
        k()
    assert "qd.init(arch=qd.python)" in str(error.value)


def overflow(arch):
    """The message of a loop that runs further than its adstack holds."""
    qd.init(arch=arch, ad_stack_size=2)
    x = qd.field(qd.f32, shape=1, needs_grad=True)
    loss = qd.field(qd.f32, shape=(), needs_grad=True)

    @qd.kernel
    def rise():
        for i in x:
            v = x[i] + 1.0
            while v < 1000.0:
                v = v * v + 1.0
            loss[None] += v

    rise()
    loss.grad[None] = 1.0
    with pytest.raises(qd.AdStackOverflow) as error:
        rise.grad()
    return str(error.value).splitlines()[1:3]


def test_an_overflow_is_reported_as_by_compiled_code():
    assert overflow(qd.python) == overflow(qd.cpu)


def test_formats_are_those_of_python(capsys):
    for arch in (qd.cpu, qd.python):
        qd.init(arch=arch, debug=True)

        @qd.kernel
        def k(x: qd.f32, n: qd.i32):
            v = qd.Vector([x, 2.0])
            print(f"{x:.2f} {n:05d} {v:.1f} {n}")
            print("{} {:.3f} {b:>4}".format(n, x, b=n), end="!\n")  # noqa: UP032
            print(f"{'text':>6}|{n!s}")
            assert n < 3, f"{{n}} is {n:03d}, x {x:.1f}"

        with pytest.raises(qd.QdrunAssertionError, match=r"\{n\} is 007, x 1\.2"):
            k(1.23456, 7)
        assert capsys.readouterr().out == "1.23 00007 [1.2, 2.0] 7\n7 1.235    7!\n  text|7\n"


def test_the_sizes_of_c_formats_are_accepted_and_change_nothing(capsys):
    qd.init(arch=qd.python)

    @qd.kernel
    def sizes(n: qd.i64, x: qd.f64):
        print(f"{n:lld} {n:5ld} {n:i} {n:u} {n:lx} {x:.2lf}")
        print("%lld %5ld %.2lf" % (n, n, x))  # noqa: F509, PLE1300

    sizes(42, 1.5)
    assert capsys.readouterr().out == "42    42 42 42 2a 1.50\n42    42 1.50\n"


def test_a_format_that_does_not_fit_is_refused():
    qd.init()

    @qd.kernel
    def k(x: qd.f32):
        print(f"{x:d}")

    with pytest.raises(qd.QdrunSyntaxError, match="the format 'd' does not fit") as error:
        k(1.0)
    assert 'print(f"{x:d}")' in str(error.value)
