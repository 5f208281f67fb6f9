"""What a peer project was asked for on Metal alone: on the emulated Apple GPU, which has no f64. ``tests/gpus`` has the rest."""

import re
from pathlib import Path

import numpy as np
import pytest

import qdrun as qd
from benchmarks.cuda_cases import gated_grid
from benchmarks.metal_text import rows_of

APPLE = {"arch": qd.metal, "device": "emulated"}


@pytest.fixture
def program():
    with qd.init(default_fp=qd.f32, **APPLE) as made:
        yield made


def line_of(text):
    return next(n for n, line in enumerate(Path(__file__).read_text(encoding="utf-8").splitlines(), 1) if line.endswith(text))


def test_a_kernel_with_f64_is_refused_with_its_line_and_the_next_one_runs(program):
    """Row 4."""
    x, wide = qd.field(qd.f32, shape=8), qd.field(qd.f64, shape=8)

    @qd.kernel
    def both_types():
        for i in x:
            wide[i] = 2.0 * x[i]  # here

    @qd.kernel
    def plain():
        for i in x:
            x[i] += 1.0

    with pytest.raises(qd.QdrunTypeError) as e:
        both_types()
    text = str(e.value)
    assert re.search(r"kernel `both_types` computes in f64, and the device \(metal\) has no f64", text), text
    assert f"test_requests.py:{line_of('wide[i] = 2.0 * x[i]  # here')}" in text
    assert "do: use f32" in text
    plain()
    assert (x.to_numpy() == 1.0).all()


def test_an_atomic_of_8_bytes_is_refused_with_its_line_and_plain_integers_of_8_bytes_are_not(program):
    """Row 4: device code has integers of 64 bits, but no atomics of them."""
    x, total = qd.field(qd.i64, shape=100), qd.field(qd.i64, shape=3)

    @qd.kernel
    def fill():
        for i in x:
            x[i] = (i + 1) * 10_000_000_000

    @qd.kernel
    def add():
        for i in x:
            total[i % 3] += x[i]  # wide

    fill()
    assert x.to_numpy().tolist() == [(i + 1) * 10_000_000_000 for i in range(100)]
    with pytest.raises(qd.QdrunTypeError, match=r"changes `total` by an atomic of 8 bytes \(i64\)") as e:
        add()
    assert f"test_requests.py:{line_of('total[i % 3] += x[i]  # wide')}" in str(e.value) and "do: use i32 for `total`" in str(
        e.value
    )


def test_a_gradient_that_keeps_states_of_8_bytes_is_refused_with_its_loop_before_anything_runs(program):
    """Row 4."""
    x, y = (qd.field(qd.f32, shape=8, needs_grad=True) for _ in range(2))

    @qd.kernel
    def k(n: qd.i32):
        for i in x:
            v, c = x[i], qd.cast(i, qd.i64)
            for _ in range(n):  # keeps c
                c = (c * 5 + 3) % 8
                v = v * x[qd.cast(c, qd.i32)]
            y[i] = v

    x.fill(0.5)
    k(3)
    with pytest.raises(qd.QdrunTypeError, match="keeps i64 states, and metal has no i64") as e:
        k.grad(3)
    assert f"test_requests.py:{line_of('for _ in range(n):  # keeps c')}" in str(e.value)
    assert "use f32 and i32 for the variables of this loop" in str(e.value)


def test_on_other_systems_there_is_one_clear_line():
    import sys

    if sys.platform == "darwin":
        pytest.skip("this system has Metal")
    with pytest.raises(qd.DeviceError) as e:
        qd.init(arch=qd.metal)
    assert str(e.value) == (
        f"Metal cannot be used: it is a part of macOS, and this is {sys.platform}\n"
        "  do: use another backend, or device='emulated' for a slow test on the processor"
    )
    with pytest.raises(qd.DeviceError, match="no Apple GPU `m1` is emulated"):
        qd.init(arch=qd.metal, device="emulated:m1")


def test_shared_arrays_of_two_loops_use_the_same_memory_and_too_large_ones_are_refused(program):
    x = qd.field(qd.f32, shape=128)

    @qd.kernel
    def two(size: qd.template()):
        qd.loop_config(block_dim=64)
        for i in range(128):
            a = qd.simt.block.SharedArray(size, qd.f32)
            a[i % 64] = 1.0 * i
            qd.simt.block.sync()
            x[i] = a[63 - i % 64]
        qd.loop_config(block_dim=32)
        for i in range(128):
            b = qd.simt.block.SharedArray(size, qd.f32)
            b[i % 32] = x[i]
            qd.simt.block.sync()
            x[i] = b[31 - i % 32]

    two(5000)
    expected = np.arange(128.0).reshape(2, 64)[:, ::-1].reshape(4, 32)[:, ::-1].ravel()
    assert x.to_numpy().tolist() == expected.tolist()
    with pytest.raises(
        qd.QdrunRuntimeError,
        match=r"a loop of kernel `two` needs 36,000 bytes of on-chip memory for a block; Apple's GPUs have 32,768",
    ):
        two(9000)


# ---- sizes
@pytest.mark.parametrize("arch", ["metal", "amdgpu"])
def test_the_gated_grid_of_the_request_has_a_row_for_each_cell_that_passes(arch):
    """Row 30: 604,000 cells; the peer project took 7.93 GB on Metal and 12.8 GB on AMD, and after its change 1.22 and 1.16 GB."""
    with qd.init(arch=qd.cpu, default_fp=qd.f32):
        ((kernel, args),) = gated_grid(qd).reverse
        plan = kernel.grad.plan(*args, arch=arch)
    (task,) = plan.tasks
    assert task.rows == 47 * 40 * 25 and plan.bytes == task.rows * 64 * 40 * 4


def test_a_large_reverse_kernel_has_fewer_lines_than_the_peers():
    """Row 34: 57,853 lines in the request, and 7,617 after two changes."""
    (row,) = [row for row in rows_of("gated_grid") if row[1] == "run_grad"]
    assert 1000 < int(row[3].replace(",", "")) < 7_617
