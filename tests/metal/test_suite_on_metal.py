"""Tests that were written for the CPU, on the emulated Apple GPU (``pytest --arch metal``), in a process of their own.

All of them can be run so; what cannot is in ``tests/not_on_metal.txt`` and ``tests/not_on_a_device.txt``, with the reason.
"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = {
    "with f64": ["--device", "emulated:f64", "tests/lang/test_custom_gradients.py", "tests/lang/test_graph.py"],
    "without": ["--device", "emulated", "tests/lang/test_kernel_arguments.py"],
}
OPTIONS = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts=--import-mode=importlib -m 'not slow'"]


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_some_of_the_suite_runs_on_the_emulated_device(part):
    command = [sys.executable, "-m", "pytest", "--arch", "metal", *OPTIONS, *PARTS[part]]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout[-8000:] + ended.stderr[-2000:]


def test_what_is_skipped_exists():
    """A pattern that names no test is a leftover."""
    for line in (ROOT / "tests" / "not_on_metal.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            path, name = line.split("#")[0].strip().split("::")
            assert f"def {name.partition('[')[0].rstrip('*')}(" in (ROOT / "tests" / path).read_text(encoding="utf-8"), line
