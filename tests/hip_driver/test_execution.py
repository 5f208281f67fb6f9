"""From a kernel to a number through all that a card would see: the code object goes through hip-python into the stand-in for ROCm's
library, which gives each launch to the emulator of AMD's instructions.
"""

import ctypes
import functools
import traceback
from collections import Counter

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.runtime.amdgpu import build, driver
from qdrun.tests.devices.amdgpu import executor
from qdrun.tests.devices.amdgpu.memory import Region


@pytest.fixture
def card(rocm, monkeypatch):
    """The stand-in with a gfx942 that runs what it is given."""
    loaded = {}

    def region(machine, address):
        base, nbytes = rocm.block(address)
        return Region.at(base, nbytes) if nbytes else None

    def run(launch):
        found = launch.contents
        try:
            if found.image not in loaded:
                data = ctypes.string_at(found.image, found.image_bytes)
                loaded[found.image] = executor.AmdExecutor("gfx942", Counter()).load(data, "k")
            code = loaded[found.image][found.name.decode()]
            code.run(ctypes.addressof(found.words), found.blocks, found.threads, found.shared)
        except Exception:
            traceback.print_exc()
            return 719
        return 0

    monkeypatch.setattr(executor, "_region", region)
    # The emulator reads the instructions from LLVM's text, which lies beside them in a section that is not loaded.
    monkeypatch.setattr(driver.build, "build", functools.partial(build.build, listing=True))
    rocm.run(run)
    return rocm


def swing(n, start):
    x, total = qd.field(qd.f64, shape=n, needs_grad=True), qd.field(qd.f64, shape=(), needs_grad=True)

    @qd.kernel
    def steps(count: qd.i32):
        for i in x:
            v = x[i]
            for k in range(count):
                v = v + 0.05 * v * (1.0 - v) if v > 0.3 else v * 1.01 + 0.001 * k
            total[None] += v

    x.from_numpy(start)
    with qd.ad.Tape(loss=total):
        steps(5)
    return total[None], x.grad.to_numpy()


@pytest.mark.slow
def test_a_gradient_has_the_bits_of_the_cpu(card):
    start = np.random.default_rng().uniform(0.0, 1.0, 70)
    with qd.init(arch=qd.amdgpu, default_fp=qd.f64):
        loss, found = swing(70, start)
    launches = card.live().launches
    with qd.init(arch=qd.cpu, default_fp=qd.f64):
        expected_loss, expected = swing(70, start)
    assert launches >= 2 and (found == expected).all() and loss == pytest.approx(expected_loss, rel=1e-14)


def test_a_failed_assert_comes_back_through_pinned_memory(card):
    with qd.init(arch=qd.amdgpu, debug=True):

        @qd.kernel
        def check(n: qd.i32):
            for i in range(n):
                assert i != 5, "it is five"

        check(5)
        qd.sync()
        with pytest.raises(AssertionError, match="it is five"):
            check(9)
            qd.sync()


def test_a_graph_runs_its_kernels_again(card):
    with qd.init(arch=qd.amdgpu):
        x = qd.field(qd.i32, shape=70)

        @qd.kernel
        def add(k: qd.i32):
            for i in x:
                x[i] += k * i

        def both():
            add(1)
            add(10)

        both()
        graph = qd.capture(both)
        graph()
        graph()
        assert x.to_numpy().tolist() == [33 * i for i in range(70)]
