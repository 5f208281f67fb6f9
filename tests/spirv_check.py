"""Passes SPIR-V modules through the validator of Khronos, spirv-val, and checks what only later ones than Debian's look at."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections.abc import Mapping

import pytest

HOW_TO_GET_IT = "spirv-val is missing, which validates every SPIR-V module: apt-get install spirv-tools"
_TARGET = ("--target-env", "vulkan1.2")


_LOAD, _STORE, _ALIGNED = 61, 62, 2
_INT, _FLOAT, _VECTOR, _POINTER, _CONVERT = 21, 22, 23, 32, 120


def unaligned(data: bytes) -> list[str]:
    """Accesses by address that are aligned to less than their values have bytes: Vulkan has none of them."""
    words = struct.unpack(f"<{len(data) // 4}I", data)
    sizes, pointees, pointers, found, at = {}, {}, {}, [], 5
    while at < len(words):
        op, size = words[at] & 0xFFFF, words[at] >> 16
        given = words[at + 1 : at + size]
        if op in (_INT, _FLOAT):
            sizes[given[0]] = given[1] // 8
        elif op == _VECTOR:
            sizes[given[0]] = sizes.get(given[1], 0)
        elif op == _POINTER:
            pointees[given[0]] = given[2]
        elif op == _CONVERT:
            pointers[given[1]] = sizes[pointees[given[0]]]
        elif op in (_LOAD, _STORE):
            pointer, rest = (given[2], given[3:]) if op == _LOAD else (given[0], given[2:])
            if pointer in pointers and (len(rest) < 2 or rest[0] != _ALIGNED or rest[1] < pointers[pointer]):
                found.append(f"word {at}: an access of {pointers[pointer]} bytes is aligned to {rest[1:]}")
        at += size
    return found


def faults(modules: Mapping[str, bytes]) -> list[str]:
    """What the validator says of modules by name, each in one line; nothing if all are valid. Without the validator the test is skipped,
    but for CI, which installs it.
    """
    if shutil.which("spirv-val") is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(HOW_TO_GET_IT)
    said = []
    for name, data in modules.items():
        done = subprocess.run(
            ["spirv-val", *_TARGET, "-"], input=data, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        if done.returncode or done.stdout:
            said.append(f"{name}: {' '.join(done.stdout.decode().split())}")
        said += [f"{name}: {what}" for what in unaligned(data)[:3]]
    return said


def check(modules: Mapping[str, bytes]) -> None:
    """Fail on a module that is not valid."""
    found = faults(modules)
    assert not found, f"{len(found)} SPIR-V modules are not valid: {found[:3]}"
