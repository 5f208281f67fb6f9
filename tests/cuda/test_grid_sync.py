"""``qd.simt.grid.sync``: all threads of a loop wait for each other. The emulated device runs all blocks of such a loop at the same time.

``--arch cuda`` runs the same on a GPU.
"""

import os

import numpy as np
import pytest

import qdrun as qd

ON_GPU = os.environ.get("QDRUN_TEST_ARCH") == "cuda"
DEVICE = {} if ON_GPU else {"device": "emulated"}
N, BLOCK = 96, 16
WITHOUT = {
    "cpu": {"arch": qd.cpu},
    "python": {"arch": qd.python},
    "amdgpu": {"arch": qd.amdgpu, "device": "emulated:gfx942"},
    "vulkan": {"arch": qd.vulkan, "device": "llvmpipe"},
    "metal": {"arch": qd.metal, "device": "emulated:f64"},
}
grid, block = qd.simt.grid, qd.simt.block


@pytest.fixture
def program():
    with qd.init(arch=qd.cuda, default_fp=qd.f64, offline_cache=False, **DEVICE) as program:
        yield program


def jacobi(start, rounds):
    for _ in range(rounds):
        start = 0.5 * (np.roll(start, 17) + np.roll(start, -5)) + 0.125
    return start


@pytest.mark.parametrize("n", [N, N - 7, BLOCK, 3])
def test_rounds_of_one_loop_see_each_other(program, n):
    x, y = qd.field(qd.f64, shape=n), qd.field(qd.f64, shape=n)

    @qd.kernel
    def relax(rounds: qd.i32):
        qd.loop_config(block_dim=BLOCK)
        for i in x:
            for _ in range(rounds):
                y[i] = 0.5 * (x[(i + n * 17 - 17) % n] + x[(i + 5) % n]) + 0.125
                grid.sync()
                x[i] = y[i]
                grid.sync()

    start = np.random.default_rng().random(n)
    x.from_numpy(start)
    for rounds in (5, 0, 4):  # the count of a launch begins anew
        relax(rounds)
    np.testing.assert_allclose(x.to_numpy(), jacobi(start, 9), rtol=1e-13)


def test_a_sum_in_stages_with_arrays_of_blocks(program):
    """Each block leaves its sum; after the barrier every block adds all of them up, and ends when all agree."""
    x, parts, out = qd.field(qd.f64, shape=N), qd.field(qd.f64, shape=N // BLOCK), qd.field(qd.f64, shape=N)
    rounds = qd.field(qd.i32, shape=())

    @qd.kernel
    def normalise():
        qd.loop_config(block_dim=BLOCK)
        for i in range(N):
            v, left = x[i], 1
            while left > 0:
                own = block.reduce_all_add(v, BLOCK, qd.f64)
                if block.thread_idx() == 0:
                    parts[i // BLOCK] = own
                grid.sync()
                total = 0.0
                for k in range(N // BLOCK):
                    total += parts[k]
                if i == 0:
                    rounds[None] += 1
                grid.sync()
                v /= total
                left = 3 - rounds[None]
                grid.sync()
            out[i] = v

    start = np.random.default_rng().random(N) + 0.5
    x.from_numpy(start)
    normalise()
    assert rounds[None] == 3
    np.testing.assert_allclose(out.to_numpy(), start / start.sum(), rtol=1e-12)


def test_a_loop_that_does_not_fit_on_the_device_is_refused(program):
    n = 1 << 24
    x = qd.field(qd.i8, shape=n)

    @qd.kernel
    def large():
        qd.loop_config(block_dim=BLOCK)
        for i in x:
            x[i] = 1
            grid.sync()

    with pytest.raises(qd.QdrunError, match=r"blocks meet in qd\.simt\.grid\.sync.*_TOO_LARGE(?s:.*)fewer iterations"):
        large()


def looping(body):
    x = qd.field(qd.f64, shape=N, needs_grad=True)

    @qd.kernel
    def k():
        qd.loop_config(block_dim=BLOCK)
        for i in x:
            body(i, x)

    return k, x


@qd.func
def some_threads(i, x):
    if x[i] > 0:
        grid.sync()


@qd.func
def some_blocks(i, x):
    if i // BLOCK < 2:
        grid.sync()


@qd.func
def what_a_block_has(i, x):
    tile = block.SharedArray(1, qd.f64)
    if block.thread_idx() == 0:
        tile[0] = x[i]
    block.sync()
    if tile[0] > 0:
        grid.sync()


@pytest.mark.parametrize(
    ("body", "who"), [(some_threads, "the loop"), (some_blocks, "the loop"), (what_a_block_has, "the loop")]
)
def test_threads_that_would_wait_for_ever_are_refused(program, body, who):
    kernel, _ = looping(body)
    with pytest.raises(
        qd.QdrunSyntaxError,
        match=rf"simt\.grid\.sync\(\) stands in a condition that may differ between the threads of {who} \(line",
    ):
        kernel()


def test_a_length_that_only_the_device_knows_is_refused(program):
    n, x = qd.field(qd.i32, shape=()), qd.field(qd.f64, shape=N)

    @qd.kernel
    def k():
        for i in range(n[None]):
            x[i] = 1.0
            grid.sync()

    with pytest.raises(qd.QdrunSyntaxError, match="stands in a loop whose length only the device knows"):
        k()


def test_gradients_are_refused(program):
    @qd.func
    def doubled(i, x):
        x[i] = 2 * x[i]
        grid.sync()

    kernel, _ = looping(doubled)
    kernel()
    with pytest.raises(
        qd.DifferentiationError, match="the threads of this loop meet in blocks, and there is no gradient of that"
    ):
        kernel.grad()


def test_a_failed_iteration_holds_nobody_up():
    with qd.init(arch=qd.cuda, default_fp=qd.f64, debug=True, offline_cache=False, **DEVICE):
        x, y = qd.field(qd.f64, shape=N), qd.field(qd.f64, shape=N)

        @qd.kernel
        def k():
            qd.loop_config(block_dim=BLOCK)
            for i in x:
                assert i != 21, "the one"
                grid.sync()
                y[i] = x[(i + 1) % N]

        with pytest.raises(qd.QdrunAssertionError, match="the one"):
            k()


@pytest.mark.skipif(ON_GPU, reason="of other devices")
@pytest.mark.parametrize("name", list(WITHOUT))
def test_other_backends_refuse_it_by_name(name):
    try:
        program = qd.init(default_fp=qd.f64, offline_cache=False, **WITHOUT[name])
    except qd.QdrunError as e:
        pytest.skip(str(e).splitlines()[0])
    with program:

        @qd.kernel
        def k():
            for _ in range(4):
                grid.sync()

        with pytest.raises(
            qd.QdrunTypeError, match=r"`simt\.grid\.sync` is not available on this backend(?s:.*)end the outermost loop there"
        ):
            k()
    with pytest.raises(qd.QdrunRuntimeError, match=r"simt\.grid\.sync\(\) was called outside of a kernel"):
        grid.sync()
