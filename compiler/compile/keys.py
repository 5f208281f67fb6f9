"""The keys of compiled kernels.

What lowering looks up outside of a kernel's source is known only afterwards, so a key is made in two steps. The *base* key holds what
every lowering of the kernel sees: its source, the arguments, the options, the versions of everything that compiles. The *source* key adds
the paths that a lowering followed, and what it found there (``frontend.source.inputs``). A kernel whose record is not complete, or that
was not lowered from source, has an *IR* key.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
import warnings
from functools import cache
from pathlib import Path

import numpy as np

from ..frontend.signature import LowerOptions
from ..frontend.source.inputs import Inputs
from ..ir.nodes import Buffer, Kernel
from ..ir.process import LOADED
from ..options import Options, compile_choices
from ..runtime import jit
from ..runtime.base import Device
from ..runtime.cache import key_of
from .relocation import text_of

FORMAT = "2"


def base_key(inputs: Inputs, how: LowerOptions, options: Options, device: Device) -> str | None:
    """The key of everything that is known before lowering; None when the compiler's own sources cannot be trusted to be what runs."""
    digest = compiler_digest()
    if digest is None:
        return None
    machine = jit.host()
    versions = (FORMAT, digest, jit.versions(), sys.version, np.__version__, machine.triple, machine.cpu, machine.features)
    kernel = inputs.known.sources[0]
    text = (kernel.name, kernel.file, str(kernel.first), *kernel.lines)
    made_for = device.arch, device.chip_key, _width(device), *compile_choices(options)
    return key_of(*versions, repr(text), repr(inputs.tokens), repr(how), repr(made_for))


def source_key(base: str, inputs: Inputs) -> str:
    """The key of a kernel by its source and everything that lowering it looks up."""
    return key_of(base, repr(inputs.paths), repr(inputs.tokens))


def ir_key(lowered: Kernel, buffers: list[Buffer], options: Options, device: Device) -> str:
    """The key of a kernel by its lowered IR, in this process."""
    return key_of(device.arch, text_of(lowered, buffers), str(lowered.loc), repr((_width(device), *compile_choices(options))))


def _width(device: Device) -> int:
    """The trials of a group, for which code is made; 0: there are none."""
    return 0 if device.trials is None else device.trials.width


@cache
def compiler_digest() -> str | None:
    """A digest of the compiler's sources. None when they changed after this process began to load them: what runs is then unknown."""
    root, now = str(Path(__file__).parents[1]), time.time()
    h = hashlib.sha256()
    try:
        for path in _sources(root):
            with open(path, "rb", buffering=0) as file:
                stat = os.fstat(file.fileno())
                # a modification time in the future comes from a wrong clock; then the change time on this machine counts
                written = stat.st_mtime if stat.st_mtime <= now else stat.st_ctime
                if written >= LOADED - 2.0:
                    if written >= LOADED:  # else it may be a fresh installation: not worth a word
                        _warn(f"{path} was written after this process began to load the compiler; start it again")
                    return None
                data = file.read()
            h.update(f"{path[len(root) :]} {len(data)}\n".encode())
            h.update(data)
    except OSError as e:
        _warn(f"the compiler's sources cannot be read ({e})")
        return None
    return h.hexdigest()


def _sources(root: str) -> list[str]:
    """The Python files in a folder and the folders inside it, sorted. Strings: ``pathlib`` makes 50 calls for each of 550 files."""
    found: list[str] = []
    folders = [root]
    for folder in folders:  # the list grows meanwhile
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(".py"):
                    found.append(entry.path)
                elif entry.name != "__pycache__" and entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
    return sorted(found)


def _warn(why: str) -> None:
    message = f"this process lowers every kernel again instead of looking for what other processes have compiled: {why}"
    warnings.warn(message, RuntimeWarning, stacklevel=2)
