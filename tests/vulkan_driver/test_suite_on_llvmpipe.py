"""Tests that were written for the CPU, on llvmpipe (``pytest --arch vulkan``), in a process of their own.

All of them can be run so, and on a GPU with ``--device``; what cannot is in ``tests/not_on_a_device.txt`` and ``tests/not_on_vulkan.txt``.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = {
    "optimised": ("lang/test_graph.py", "cuda/test_blocks.py"),
    "quickly compiled": ("lang/test_kernel_language.py", "gradients/test_loops.py"),
}


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_the_suite_runs_on_llvmpipe(has_device, part):
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts=--import-mode=importlib -m 'not slow'"]
    command = [sys.executable, "-m", "pytest", "--arch", "vulkan", *options, *(f"tests/{name}" for name in PARTS[part])]
    environment = os.environ | ({"GALLIVM_PERF": ""} if part == "optimised" else {})
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout[-8000:] + ended.stderr[-2000:]


def test_what_is_skipped_exists():
    """A pattern that names no file is a leftover."""
    lines = (ROOT / "tests" / "not_on_vulkan.txt").read_text(encoding="utf-8").splitlines()
    for line in lines:
        if line.strip() and not line.startswith("#"):
            pattern, _, why = line.partition("#")
            path, name = pattern.strip().split("::")
            text = (ROOT / "tests" / path).read_text(encoding="utf-8")
            assert why.strip() and (name == "*" or f"def {name.split('[')[0].rstrip('*')}" in text), line
