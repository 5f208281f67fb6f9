"""What a peer project was asked for on AMD GPUs, where code must run: on the emulated gfx942. docs/gpu-requests.md has the whole list."""

import os

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.program.plans import device_reducer
from qdrun.compiler.program.plans.device_reducer import DeviceReducers

DEVICES = {"amdgpu": {"arch": qd.amdgpu, "device": "emulated:gfx942"}, "cpu": {"arch": qd.cpu}}


def both(work):
    """The results of the same work on the card and on the CPU."""
    out = []
    for options in DEVICES.values():
        with qd.init(default_fp=qd.f64, offline_cache=True, **options):
            out.append(work())
    return out


@pytest.mark.slow
def test_loops_with_states_of_several_types_beside_each_other():
    """Row 13: sibling loops, each with an integer state that decides a branch. ``QDRUN_SIBLINGS=6`` is the request's number."""
    siblings = int(os.environ.get("QDRUN_SIBLINGS", "2"))
    rng = np.random.default_rng()
    start, n = rng.uniform(0.2, 0.9, 20), int(rng.integers(2, 4))

    def work():
        x, y = qd.field(qd.f64, shape=20, needs_grad=True), qd.field(qd.f64, shape=(), needs_grad=True)

        @qd.kernel
        def k(n: qd.i32):
            for i in x:
                v = x[i]
                for group in qd.static(range(siblings)):
                    count = i % 3
                    for j in range(n + group % 2):
                        if count > 1:
                            v = v * (1.5 - v)
                        else:
                            v = 0.9 * v + 0.05 * v * v
                        count = (count * 7 + j + group) % 4
                y[None] += v

        x.from_numpy(start)
        with qd.ad.Tape(loss=y):
            k(n)
        return x.grad.to_numpy()

    card, cpu = both(work)
    assert (card == cpu).all() and np.abs(cpu).min() > 0


@pytest.mark.parametrize("rows", [0, 3, 130])
def test_gated_iterations_alone_have_rows(rows):
    """Rows 20 and 30: the heap has a row for each iteration that passes the gate, and none is written twice."""

    def work():
        x, flag = qd.field(qd.f64, shape=130, needs_grad=True), qd.field(qd.i32, shape=130)
        y = qd.field(qd.f64, shape=(), needs_grad=True)

        @qd.kernel
        def k(n: qd.i32):
            for i in x:
                if flag[i] > 0:
                    v = x[i]
                    for _ in range(n):
                        v = v * (1.4 - v)
                    y[None] += v

        x.from_numpy(np.linspace(0.1, 0.9, 130))
        chosen = np.zeros(130, np.int32)
        chosen[np.random.default_rng(rows).permutation(130)[:rows]] = 1
        flag.from_numpy(chosen)
        with qd.ad.Tape(loss=y):
            k(3)
        return x.grad.to_numpy(), k.grad.plan(3).bytes

    (card, heap), (cpu, _) = both(work)
    assert (card == cpu).all() and np.count_nonzero(cpu) == rows
    assert heap == rows * 3 * 8


@pytest.mark.parametrize("n, block", [(65_700, 192), (2_500, 1024), (641, 96)])
def test_iterations_that_are_no_multiple_of_a_block(n, block):
    """Row 26: threads beyond the last iteration leave at once and touch nothing. The first case is the request's."""

    def work():
        x = qd.field(qd.i32, shape=n + 300)

        @qd.kernel
        def k(n: qd.i32):
            qd.loop_config(block_dim=block)
            for i in range(n):
                x[i] = i + 1

        k(n)
        return x.to_numpy()

    card, cpu = both(work)
    expected = np.where(np.arange(n + 300) < n, np.arange(n + 300) + 1, 0)
    assert (card == expected).all() and (cpu == expected).all()


@pytest.mark.parametrize("block", [192, 1024])
def test_blocks_whose_threads_meet_are_as_large_as_the_chip_allows(block):
    """Row 26, with on-chip memory and barriers: the last block has threads without an iteration, which meet the others all the same."""
    n, start = 3 * block - 60, np.random.default_rng().integers(1, 100, 3 * block - 60).astype(np.int32)
    with qd.init(**DEVICES["amdgpu"]):
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


def test_random_numbers_are_those_of_the_cpu():
    """Row 52: numbers come from counters; there is nothing to initialise."""

    def work():
        x = qd.field(qd.f64, shape=300)

        @qd.kernel
        def k():
            for i in x:
                x[i] = qd.random(qd.f64)

        k()
        return x.to_numpy()

    card, cpu = both(work)
    assert (card == cpu).all() and len(set(cpu.tolist())) == 300


def test_gates_of_a_launch_are_counted_on_the_card(monkeypatch):
    """Row 21: the pass that counts what needs a row is a kernel of the card, not of the host."""
    asked, run = [], DeviceReducers.run
    monkeypatch.setattr(device_reducer, "SMALL_ARRAY", 0)
    monkeypatch.setattr(DeviceReducers, "run", lambda *args: (asked.append(1), run(*args))[1])
    with qd.init(default_fp=qd.f64, **DEVICES["amdgpu"]) as program:
        flag, x = qd.field(qd.i32, shape=500), qd.field(qd.f64, shape=500, needs_grad=True)
        y = qd.field(qd.f64, shape=(), needs_grad=True)

        @qd.kernel
        def mark():
            for i in flag:
                flag[i] = 1 if i % 10 == 0 else 0

        @qd.kernel
        def k(n: qd.i32):
            for i in x:
                if flag[i] > 0:
                    v = x[i]
                    for _ in range(n):
                        v = v * (1.4 - v)
                    y[None] += v

        x.fill(0.5)
        mark()
        k.grad(3)
        qd.sync()
        assert asked and program.usage()["adstack"] == 50 * 3 * 8


def test_all_threads_of_a_wave_may_fail_at_once():
    """Threads of a wave share a program counter: one that holds the lock of the report must not wait for those that wait for the lock."""
    with qd.init(debug=True, offline_cache=True, **DEVICES["amdgpu"]):
        x = qd.field(qd.i32, shape=100)

        @qd.kernel
        def checked(limit: qd.i32):
            for i in x:
                x[i] = i
                assert i < limit, f"i is {i}"

        checked(100)
        qd.sync()
        with pytest.raises(qd.QdrunAssertionError, match=r"i is 7\b"):
            checked(7)
            qd.sync()
        assert (x.to_numpy() == np.arange(100)).all()
