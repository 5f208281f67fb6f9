"""Runs Metal Shading Language on the emulated device: clang makes code of the processor of it."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from qdrun.compiler.codegen.metal.source import KernelFacts, facts_of
from qdrun.compiler.errors import DeviceError, QdrunRuntimeError
from qdrun.compiler.ir.threads import new_lock
from qdrun.compiler.runtime.cache import cache_dir, kept, key_of
from qdrun.compiler.runtime.gpu.driver import CodeImage, Texts
from qdrun.compiler.runtime.jit import LoadedCode, load
from qdrun.compiler.runtime.metal.build import build

from ..processor.arena import BadAddress
from ..processor.blocks import Diverged
from ..processor.machine import EmulatedMachine, emulated_machine
from ..processor.processor import block_order
from .header import HEADER, SCHEDULER

NAMES = ("clang", *(f"clang-{n}" for n in range(25, 14, -1)))
FLAGS = (
    *("-x", "c++", "-std=c++14", "-O1", "-march=native", "-ffp-contract=off", "-fPIC", "-w"),
    *("-fno-exceptions", "-fno-rtti", "-fno-strict-aliasing", "-fno-asynchronous-unwind-tables", "-fno-stack-protector"),
)
CHECKS = (
    "-fsanitize=signed-integer-overflow,integer-divide-by-zero,shift,float-cast-overflow",
    "-fsanitize-minimal-runtime",
)
"""What C++ leaves undefined is found where it happens."""

SHARED_BYTES = 32 << 10
DIVERGED, BAD, UNDEFINED = 1, 2, 3
_RUN = ctypes.CFUNCTYPE(
    ctypes.c_int, *[ctypes.c_void_p] * 3, ctypes.c_int64, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int,
    ctypes.c_void_p, ctypes.c_uint64,
)  # fmt: skip
_IMPORTED = ("qd_device", "qd_on_chip", "qd_meet", "qd_chance")
_UNDEFINED = (
    "add_overflow sub_overflow mul_overflow negate_overflow divrem_overflow shift_out_of_bounds float_cast_overflow"
).split()
_HANDLERS = tuple(f"__ubsan_handle_{name}_minimal" for name in _UNDEFINED)
_KERNEL = re.compile(r"^(?:\[\[[^\]]*\]\] )?kernel void (\w+)\((.*)\)$", re.M)
_ATTRIBUTE = re.compile(r" ?\[\[.*?\]\] ?")
_GIVEN = {
    "buffer(0)": "frame->words",
    "threadgroup(0)": "frame->shared",
    "thread_position_in_threadgroup": "frame->thread_number",
    "threadgroup_position_in_grid": "frame->block",
    "threadgroups_per_grid": "frame->blocks",
    "threads_per_threadgroup": "frame->threads",
}


@cache
def clang() -> tuple[str, str]:
    """The compiler that is installed, and its version.

    Raises:
        DeviceError: there is none.
    """
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        raise DeviceError(
            "Metal's language cannot be run on the processor: clang is not installed"
            "\n  do: install clang 15 or newer (on Debian: apt-get install clang-15)"
        )
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    return found, version


@cache
def _folder() -> Path:
    """Where clang finds the header."""
    folder = cache_dir() / f"metal-{key_of(HEADER)[:16]}"
    if not (folder / "metal_stdlib").exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as out:
            out.write(HEADER)
        os.replace(out.name, folder / "metal_stdlib")
    return folder


def compile_source(source: str, name: str, flags: tuple[str, ...] = CHECKS) -> bytes:
    """Object code of a source.

    Raises:
        DeviceError: clang is not installed.
        QdrunRuntimeError: clang refuses the source; names the kernel.
    """
    command = [clang()[0], *FLAGS, *flags, "-I", str(_folder()), "-c", "-o", "-", "-"]
    done = subprocess.run(command, input=source.encode(), capture_output=True, check=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise QdrunRuntimeError(
            f"the Metal source of kernel `{name}` cannot be compiled: {' / '.join(said[:4])}"
            "\n  do: this is a bug in qdrun; report it with the kernel's source"
        )
    return done.stdout


_scheduler: list[tuple[LoadedCode, Any]] = []
_lock = new_lock(sys.modules[__name__], "_lock")


def _running() -> tuple[LoadedCode, Any]:
    """What runs blocks, compiled once."""
    with _lock:
        if not _scheduler:
            made, _ = _kept("scheduler", SCHEDULER, (), True)
            code = load(made, ["qd_run", *_IMPORTED, *_HANDLERS], {}, "scheduler")
            code.make_immortal()
            _scheduler.append((code, _RUN(code.addresses["qd_run"])))
        return _scheduler[0]


def _kept(name: str, source: str, flags: tuple[str, ...], keep: bool) -> tuple[bytes, bool]:
    """Object code of a source, and whether it was on the disk."""
    key = key_of("metal object 1", source, HEADER, *FLAGS, *flags, *clang())
    return kept(key, lambda: compile_source(source, name, flags), {"name": name}, keep)


@dataclass(frozen=True, slots=True)
class MetalCode:
    """A kernel as code of the processor. See ``processor.processor.DeviceCode``."""

    name: str
    code: LoadedCode
    facts: KernelFacts
    meets: bool

    def run(self, words: int, blocks: int, threads: int, shared: int) -> None:
        """Run all blocks of a launch.

        Raises:
            Diverged: some threads of a block came to a barrier, and others did not.
            BadAddress: an access outside of memory that is there, or one that is not aligned.
            QdrunRuntimeError: an operation has no defined result.
        """
        own = [(words, 8 * self.facts.words)] if self.facts.by_address else []
        self.run_on(words, blocks, threads, shared, ends_of(_live(emulated_machine()) + own))

    def run_on(self, words: int, blocks: int, threads: int, shared: int, live: np.ndarray) -> None:
        """The same; ``live``: begin and end of each range of memory that may be accessed, in order."""
        size = self.facts.shared + shared
        if threads > self.facts.threads or size > SHARED_BYTES:
            raise QdrunRuntimeError(
                f"{self.name}: blocks of {threads} threads with {size:,} bytes of on-chip memory do not fit"
            )
        given = (ctypes.c_uint64 * 1)(words)
        memory = np.empty(size + 16, np.uint8)
        base = memory.ctypes.data + -memory.ctypes.data % 16
        order = np.ascontiguousarray(block_order(blocks), np.int64)
        state = _running()[1](
            self.code.addresses[f"{self.name}_frame"], ctypes.addressof(given) if self.facts.by_address else words,
            order.ctypes.data, blocks, threads, base, size, self.meets, live.ctypes.data, len(live) // 2,
        )  # fmt: skip
        if state == DIVERGED:
            raise Diverged
        if state == BAD:
            raise BadAddress(self.name)
        if state == UNDEFINED:
            raise QdrunRuntimeError(f"{self.name}: an operation has no defined result in Metal's language")


def _live(machine: EmulatedMachine) -> list[tuple[int, int]]:
    """What every kernel may access: live blocks, and memory that both sides have."""
    return machine.arena.live() + [(base, raw.size) for base, raw in list(machine.pinned.items())]


def ends_of(ranges: list[tuple[int, int]]) -> np.ndarray:
    """Begin and end of ranges that are given as begin and bytes, in order."""
    return np.array([x for base, size in sorted(ranges) for x in (base, base + size)], np.uint64)


class MetalExecutor:
    """See ``processor.processor.Executor``."""

    def build(self, texts: Texts, keep: bool) -> CodeImage:
        """The first line of the source with what is known of its kernels, and object code."""
        source = build(texts, keep)
        key = key_of("metal image 1", source.key, HEADER, *FLAGS, *CHECKS, *clang())
        image, known = kept(key, lambda: image_of(source.data.decode(), texts.name), {"name": texts.name}, keep)
        return CodeImage(image, key, known)

    def load(self, image: bytes, name: str) -> Mapping[str, MetalCode]:
        """The kernels of an image.

        Raises:
            QdrunRuntimeError: it is damaged.
        """
        line, _, code = image.partition(b"\n")
        meets: dict[str, bool] = json.loads(line)["meets"]
        facts = facts_of(json.loads(line)["facts"])
        if not meets:
            return {}
        addresses = _running()[0].addresses
        imports = {n: addresses[n] for n in (*_IMPORTED, *_HANDLERS)}
        loaded = load(code, [f"{n}_frame" for n in meets], imports, name)
        return {n: MetalCode(n, loaded, facts.get(n, KernelFacts(threads=1024)), met) for n, met in meets.items()}


def image_of(source: str, name: str) -> bytes:
    """A source as an image.

    Raises:
        QdrunRuntimeError: clang refuses it; names the kernel.
    """
    kernels = _KERNEL.findall(source)
    meets = {n: "threadgroup_barrier" in source for n, _ in kernels}
    plain = _KERNEL.sub(lambda m: _ATTRIBUTE.sub("", m[0]), source)
    whole = "\n".join([plain, *(_frame(n, parameters) for n, parameters in kernels)])
    head = json.dumps({"meets": meets, "facts": source.partition("\n")[0]})
    return head.encode() + b"\n" + compile_source(whole, name)


def _frame(name: str, parameters: str) -> str:
    """A function that calls a kernel with what is in a frame."""
    given = re.findall(r"\[\[(.*?)\]\](?:, |$)", parameters)
    return f'extern "C" void {name}_frame(const QdFrame* frame) {{ {name}({", ".join(_GIVEN[g] for g in given)}); }}'
