"""Programs through the whole stack down to a stand-in for the library of a GPU's maker: what each of these drivers must do.

Kernels do nothing, unless a test says otherwise: the stand-in notes their words. A folder with a stand-in derives a class of tests from
``StandInPrograms``, and has the fixtures ``card``, and ``running`` for a card that runs its kernels.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import qdrun as qd


@dataclass(frozen=True)
class Card:
    """A stand-in, as these tests see it.

    Attributes:
        arch: its backend.
        model: what the device is called.
        real: the type of its numbers.
        library: gives the last launch, and how many there were.
        names: the calls since the last time.
        allocates: the call that makes a block.
        waits: the calls that wait for the device.
        frees: the call that frees a block in the order of a stream; empty: there is none.
        fail_work: has the work that comes next end the device.
        failure: what is said of this.
        refuse_launch: has the next launch refused.
        refusal: what is said of this.
    """

    arch: str
    model: str
    real: Any
    library: Any
    names: Callable[[], list[str]]
    allocates: str
    waits: set[str]
    fail_work: Callable[[], None]
    failure: str
    refuse_launch: Callable[[], None]
    refusal: str
    frees: str = ""

    def start(self, **options: Any) -> Any:
        return qd.init(**{"arch": getattr(qd, self.arch), "default_fp": qd.f32} | options)


def kernels(n: int, more: int = 0) -> tuple[Any, Any]:
    """A field of so many numbers, and a kernel that scales it; ``more`` makes another one of it."""
    x = qd.field(qd.f32, shape=n)

    @qd.kernel
    def scale(k: qd.i32, by: qd.f32):
        for i in x:
            x[i] = x[i] * by + k + more

    return x, scale


@qd.func
def step(v):
    return qd.sin(v) + 0.3


def swing(real: Any, start: np.ndarray) -> tuple[float, np.ndarray]:
    """A loss and its gradient."""
    x, total = qd.field(real, shape=len(start), needs_grad=True), qd.field(real, shape=(), needs_grad=True)

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


class StandInPrograms:
    def test_a_program_reaches_the_driver_and_its_kernels_get_their_words(self, card):
        with card.start() as program:
            assert (program.device.arch, program.device.name) == (card.arch, card.model)
            x, scale = kernels(1000)
            x.from_numpy(np.arange(1000, dtype=np.float32))
            scale(7, 2.5)
            qd.sync()
            ran = card.library.last()
            assert ran.name == b"qd_scale_0" and ran.blocks * ran.threads >= 1000 and ran.bytes % 8 == 0
            words = [word & 0xFFFFFFFF for word in ran.words[: ran.bytes // 8]]
            assert {7, int(np.float32(2.5).view(np.uint32))} <= {*words}
            assert x.to_numpy().tolist() == list(range(1000)), "the field went there and back"

    def test_a_lost_device_names_the_kernel_and_stays_lost(self, card):
        with card.start():
            _x, scale = kernels(100)
            scale(1, 1.0)
            qd.sync()
            card.fail_work()
            scale(2, 1.0)
            with pytest.raises(qd.DeviceError) as e:
                qd.sync()
            assert str(e.value) == (
                f"kernel `scale` failed on {card.model}: {card.failure}\n"
                "  the device cannot be used any more by this process\n"
                "  do: restart the process; run the kernel with qd.init(debug=True), which checks every index"
            )
            assert e.value.restart and e.value.bounds
            with pytest.raises(qd.DeviceError, match=re.escape(card.failure)):
                scale(3, 1.0)
                qd.sync()
        with pytest.raises(qd.DeviceError, match="the device cannot be used any more by this process"):
            card.start()

    def test_a_refused_launch_names_the_kernel_and_the_program_goes_on(self, card):
        with card.start():
            _x, scale = kernels(100)
            scale(1, 1.0)
            qd.sync()
            card.refuse_launch()
            with pytest.raises(qd.DeviceError, match=f"kernel `scale` could not be launched: {card.refusal}"):
                scale(2, 1.0)
            scale(3, 1.0)
            qd.sync()

    def test_a_heap_that_grows_waits_for_nothing(self, card):
        """Row 8: a gradient whose heap is too small for its next launch frees it in the order of the stream, under queued launches."""
        with card.start():
            x, total = qd.field(qd.f32, shape=300, needs_grad=True), qd.field(qd.f32, shape=(), needs_grad=True)

            @qd.kernel
            def swing(steps: qd.i32):
                for i in x:
                    v = x[i]
                    for _ in range(steps):
                        v = step(v)
                    total[None] += v

            for steps in (2, 40):  # the code of both plans
                swing(steps)
                swing.grad(steps)
            qd.sync()
            card.names()
            heaps = []
            for steps in (400, 900, 20_000):
                swing(steps)
                swing.grad(steps)
                heaps.append(swing.grad.plan(steps).bytes)
            names = card.names()
            assert heaps == sorted(heaps) and heaps[0] > 0
            assert names.count(card.allocates) >= 3 and not card.waits & {*names}
            assert not card.frees or names.count(card.frees) >= 2
            qd.sync()

    def test_a_gradient_has_the_bits_of_the_cpu(self, running):
        start = np.random.default_rng().uniform(0.0, 1.0, 70).astype(running.real.numpy)
        with running.start(default_fp=running.real):
            loss, found = swing(running.real, start)
        launches = running.library.live().launches
        with qd.init(arch=qd.cpu, default_fp=running.real):
            wanted_loss, wanted = swing(running.real, start)
        close = 1e-14 if running.real is qd.f64 else 1e-5
        assert launches >= 2 and (found == wanted).all() and loss == pytest.approx(wanted_loss, rel=close)

    def test_a_failed_assert_comes_back_through_memory_of_the_host(self, running):
        """Row 36."""
        with running.start(debug=True):

            @qd.kernel
            def check(n: qd.i32):
                for i in range(n):
                    assert i != 5, "it is five"

            check(5)
            qd.sync()
            with pytest.raises(AssertionError, match="it is five"):
                check(9)
                qd.sync()

    def test_a_graph_runs_its_kernels_again(self, running):
        with running.start():
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
