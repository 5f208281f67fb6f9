"""Passes SPIR-V modules through the validator of Khronos, spirv-val."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

HOW_TO_GET_IT = "spirv-val is missing, which validates every SPIR-V module: apt-get install spirv-tools"
_TARGET = ("--target-env", "vulkan1.2")


def faults(modules: Mapping[str, bytes]) -> list[str]:
    """What the validator says of modules by name, each in one line; nothing if all are valid."""
    assert shutil.which("spirv-val"), HOW_TO_GET_IT
    with tempfile.TemporaryDirectory() as folder:
        for k, data in enumerate(modules.values()):
            Path(folder, f"{k}.spv").write_bytes(data)
        loop = f'for k in $(seq 0 {len(modules) - 1}); do echo "$k $(spirv-val {" ".join(_TARGET)} $k.spv 2>&1 | tr "\\n" " ")"; done'
        done = subprocess.run(["sh", "-c", loop], cwd=folder, capture_output=True, text=True, check=True)
    lines = [line.partition(" ")[::2] for line in done.stdout.splitlines()]
    assert len(lines) == len(modules)
    return [f"{name}: {said.strip()}" for name, (_, said) in zip(modules, lines) if said.strip()]


def check(modules: Mapping[str, bytes]) -> None:
    """Fail on a module that is not valid."""
    found = faults(modules)
    assert not found, f"{len(found)} SPIR-V modules are not valid: {found[:3]}"
