"""Row 18 on the emulated Apple GPU: random kernels between guard words, see ``tests/vulkan_driver/test_heap_guard.py``."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import qdrun as qd

sys.path.insert(0, str(Path(__file__).parents[1] / "gradients"))
from device_guard import check_kernel


@pytest.mark.parametrize("number", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 4, 1001, 1002))])
def test_no_thread_of_a_random_kernel_leaves_its_rows(number):
    counts: Counter[str] = Counter()
    with np.errstate(all="ignore"):
        check_kernel(number, counts, arch=qd.metal, device="emulated:f64")
    assert counts["plans"] == 7 and counts["of which took another branch"] <= 0.01 * counts["components"]
