"""What a peer project was asked for on AMD GPUs alone, on the emulated gfx942. ``tests/gpus`` has what every GPU is asked for."""

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.program.services.tape_heap import TapeHeap
from qdrun.tests.devices.processor.machine import emulated_machine

CARD = {"arch": qd.amdgpu, "device": "emulated:gfx942", "default_fp": qd.f64}
SIZE = 70


@pytest.fixture
def program():
    with qd.init(**CARD) as made:
        yield made


@pytest.mark.parametrize("block", [192, 1024])
def test_blocks_whose_threads_meet_are_as_large_as_the_chip_allows(block):
    """Row 26, with on-chip memory and barriers: the last block has threads without an iteration, which meet the others all the same."""
    n, start = 3 * block - 60, np.random.default_rng().integers(1, 100, 3 * block - 60).astype(np.int32)
    with qd.init(**CARD):
        x, y = qd.field(qd.i32, shape=n), qd.field(qd.i32, shape=n + block)

        @qd.kernel
        def turned():
            qd.loop_config(block_dim=block)
            for i in range(n):
                tile, mine = qd.simt.block.SharedArray(block, qd.i32), i % block
                tile[mine] = x[i]
                qd.simt.block.sync()
                last = qd.min(n - i // block * block, block) - 1
                y[i] = tile[last - mine]

        x.from_numpy(start)
        turned()
        found = y.to_numpy()
    expected = np.concatenate([start[k : k + block][::-1] for k in range(0, n, block)])
    assert (found[:n] == expected).all() and not found[n:].any()


def expected(n, size=SIZE):
    """The same gradient in NumPy, with its operations in its order."""
    states, v = [], np.linspace(0.1, 0.9, size)
    for _ in range(n):
        states.append(v)
        v = v * (1.4 - v)
    slope = np.ones(size)
    for v in reversed(states):
        slope = slope * (1.4 - 2.0 * v)
    return slope


def test_a_heap_grows_while_a_launch_that_uses_it_is_in_the_queue(program, monkeypatch):
    """Rows 8 and 19: the emulated card runs queued work as late as it may, and poisons what is freed."""
    x, y = (qd.field(qd.f64, shape=SIZE, needs_grad=True) for _ in range(2))

    @qd.kernel
    def k(n: qd.i32):
        for i in x:
            v = x[i]
            for _ in range(n):
                v = v * (1.4 - v)
            y[i] += v

    x.from_numpy(np.linspace(0.1, 0.9, SIZE))
    y.grad.fill(1.0)
    grow, waiting = TapeHeap.grow, []

    def grown(*args, **options):
        waiting.append(sum(len(s.queue) for s in emulated_machine().streams.values()))
        return grow(*args, **options)

    monkeypatch.setattr(TapeHeap, "grow", grown)
    for n in (7, 30, 90):
        k.grad(n)
    assert len(waiting) == 3 and all(waiting), waiting
    np.testing.assert_allclose(x.grad.to_numpy(), expected(7) + expected(30) + expected(90), rtol=1e-12)


def test_stacks_of_several_types_beside_each_other_do_not_touch(program):
    """Rows 13 and 27: f64, f32 and integer states in one iteration, each to the last slot of its own."""
    x, y = qd.field(qd.f64, shape=SIZE, needs_grad=True), qd.field(qd.f32, shape=SIZE, needs_grad=True)
    total = qd.field(qd.f64, shape=(), needs_grad=True)

    @qd.kernel
    def k(n: qd.i32, m: qd.i32):
        for i in x:
            v, w, count = x[i], y[i], i % 5
            for _ in range(n):
                v = v * (1.4 - v) if count % 3 == 0 else v * 0.9
                count = count * 3 + 1
            for _ in range(m):
                w = w * (qd.f32(1.5) - w)
            total[None] += v + w

    start = np.linspace(0.1, 0.9, SIZE)
    x.from_numpy(start)
    y.from_numpy(start.astype(np.float32))
    total.grad[None] = 1.0
    k.grad(31, 17)
    plan = k.grad.plan(31, 17)
    assert {p: n for p, n in plan.planes.items() if n} == {"f8": SIZE * 31 * 8, "f4": SIZE * 17 * 4, "i4": SIZE * 31 * 4}
    assert program.usage()["adstack"] == plan.bytes
    v, slope, w, narrow = start.copy(), np.ones(SIZE), start.astype(np.float32), np.ones(SIZE)
    count = np.arange(SIZE) % 5
    for _ in range(31):
        grows = count % 3 == 0
        slope, v = slope * np.where(grows, 1.4 - 2 * v, 0.9), np.where(grows, v * (1.4 - v), v * 0.9)
        count = (count * 3 + 1).astype(np.int32)
    for _ in range(17):
        narrow, w = narrow * (1.5 - 2 * w), w * (np.float32(1.5) - w)
    np.testing.assert_allclose(x.grad.to_numpy(), slope, rtol=1e-12)
    np.testing.assert_allclose(y.grad.to_numpy(), narrow, rtol=1e-3)
