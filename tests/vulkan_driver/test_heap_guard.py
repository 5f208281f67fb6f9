"""Random kernels on a device with Vulkan, between guard words, as many as a person asks for; ``tests/gpus`` has a few of them."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import qdrun as qd

sys.path.insert(0, str(Path(__file__).parents[1] / "gradients"))
from device_guard import check_kernel, guarded_on_device, padded
from heap_guard import launch_under, plan_with
from plan_kernels import plan_kernel

from qdrun.compiler.tape.levels import full_tape

from .conftest import NAME

COUNTS: Counter[str] = Counter()
GPU = {"arch": qd.vulkan, "device": NAME}
pytestmark = pytest.mark.usefixtures("heap_tapes")


@pytest.mark.slow
@pytest.mark.skipif("QDRUN_VULKAN_PLANS" not in os.environ, reason="a long search, for a person who starts it")
def test_no_thread_of_many_random_kernels_leaves_its_rows(has_device):
    count = int(os.environ["QDRUN_VULKAN_PLANS"])
    first = 2000 + int(os.environ.get("QDRUN_SEED", "0")) * count
    for number in range(first, first + count):
        if "serialize=True" in plan_kernel(number):
            continue  # llvmpipe ends all loops of its one thread after 65,536 iterations in sum
        try:
            with np.errstate(all="ignore"):
                check_kernel(number, COUNTS, **GPU)
        except Exception as e:
            e.add_note(f"seed {number}:\n{plan_kernel(number)}")
            raise
    assert 0 < COUNTS["components"] and COUNTS["of which took another branch"] <= 0.01 * COUNTS["components"], dict(COUNTS)


def test_the_guard_sees_a_write_outside_of_the_rows(has_device):
    with guarded_on_device() as guard, qd.init(**GPU, default_fp=qd.f64) as program:
        x, y = (qd.field(qd.f64, shape=20, needs_grad=True) for _ in range(2))

        @qd.kernel
        def k(n: qd.i32):
            for i in x:
                v = x[i]
                for _ in range(n):
                    v = v * (1.4 - v)
                y[i] = v

        x.fill(0.3)
        k.grad(3)
        plan, rows = padded(plan_with(k, (3,), lambda s, count, source: full_tape(count, source)))
        program.heap.grow(plan.planes)
        guard.arm(program)
        launch_under(k, (3,), plan)
        assert rows == {0: 20} and guard.check(program, plan, rows) == 20 * 3 * 8
        with pytest.raises(AssertionError, match=r"words \[19, 42, 65\] belong to no thread"):
            guard.check(program, plan, {0: 19})
        end = program.heap.address("f8") + plan.planes["f8"]
        for at, said in ((program.heap.address("f8") - 8, "before"), (end, "behind")):
            guard.arm(program)
            program.device.memset(at, 7, 2, 4)
            with pytest.raises(AssertionError, match=f"plane f8: a write {said} the heap"):
                guard.check(program, plan, rows)
