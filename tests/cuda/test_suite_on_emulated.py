"""Tests that were written for the CPU, on the emulated GPU (``pytest --arch emulated``), each list in a process of its own.

All of them can be run so, and on a GPU with ``--arch cuda``; what cannot is in ``tests/not_on_a_device.txt``, with the reason.
"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LANGUAGE = ("field", "kernel_language", "kernel_arguments", "linalg", "structs", "snode", "custom_gradients")
PARTS = {
    "language": [f"tests/lang/test_{n}.py" for n in LANGUAGE],
    "launches": [f"tests/lang/test_{n}.py" for n in ("graph_kernels", "streams", "perf_dispatch", "buffer_views")],
    "gradients": ["tests/gradients/test_structs.py", "tests/lang/test_forward_mode.py", "tests/lang/test_overwrites.py"],
    "torture": ["tests/gradients/torture", "-k", "loop or while or nest"],  # all of it takes four minutes
}


def run(arguments: list[str]) -> None:
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "--arch",
            "emulated",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            *OPTIONS,
            *arguments,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-8000:] + ended.stderr[-2000:]


OPTIONS = ["-o", "addopts=--import-mode=importlib -m 'not slow'"]


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_much_of_the_suite_runs_on_the_emulated_device(part):
    run(PARTS[part])


@pytest.mark.parametrize("file", ["not_on_a_device.txt", "not_on_amdgpu.txt"])
def test_what_is_skipped_exists(file):
    """A pattern that names no file is a leftover."""
    lines = (ROOT / "tests" / file).read_text(encoding="utf-8").splitlines()
    named = [line.split("#")[0].strip() for line in lines if line.strip() and not line.startswith("#")]
    for pattern in named:
        path, name = pattern.split("::")
        text = (ROOT / "tests" / path).read_text(encoding="utf-8")
        assert f"def {name.split('[')[0].rstrip('*')}" in text or name == "*", pattern
