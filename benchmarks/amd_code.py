"""What the gradient kernels of a program take on AMD's GPUs, and an estimate of their time beside NVIDIA's. No GPU is needed.

``python -m benchmarks.amd_code [--case diffmpm|mpm88|..] [--chips gfx90a,gfx942,gfx1100]`` runs the case on the emulated device, at its
small size, compiles the kernels of its gradient for each chip, and prints two tables:

1. Facts of the code objects: registers, on-chip memory, scratch memory, bytes of code, waves that a SIMD holds at once.
2. An ESTIMATE: microseconds of a million threads, from counted instructions and the makers' figures of clock, width and memory. It counts
   each instruction once: loops and branches are not followed, nothing waits, and caches hold nothing. It was not compared with a card.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import qdrun as qd
from benchmarks.cuda_cases import CASES
from qdrun.compiler.codegen.amdgpu.chips import CHIPS
from qdrun.compiler.codegen.amdgpu.hardware import amdgpu_target
from qdrun.compiler.codegen.cuda.hardware import cuda_target
from qdrun.compiler.codegen.gpu.grid.kernel import emit_grid
from qdrun.compiler.codegen.gpu.grid.rows import tapes_of
from qdrun.compiler.ir.nodes import Kernel, Op
from qdrun.compiler.runtime.amdgpu.build import compile_object
from qdrun.compiler.runtime.amdgpu.code_object import read_code
from qdrun.compiler.runtime.cuda.ptx import compile_ptx
from qdrun.compiler.runtime.gpu import device

THREADS = 1_000_000


@dataclass(frozen=True)
class Card:
    """The makers' figures of a card.

    Attributes:
        units: SIMDs, or partitions of multiprocessors: each issues one instruction at a time.
        ghz: their clock.
        gbps: of the memory, in GB/s.
        wave: threads of an instruction.
        cycles, cycles_f64: of an instruction of a wave.
    """

    name: str
    units: int
    ghz: float
    gbps: float
    wave: int
    cycles: int
    cycles_f64: int


CARDS = {
    "gfx90a": Card("MI250X, one of two dies", 440, 1.7, 1638, 64, 4, 4),
    "gfx942": Card("MI300X", 1216, 2.1, 5300, 64, 4, 4),
    "gfx1100": Card("RX 7900 XTX", 192, 2.5, 960, 64, 2, 32),
    "sm_90": Card("H200", 528, 1.98, 4800, 32, 1, 2),
}


@dataclass(frozen=True)
class Counted:
    """Instructions of a thread: arithmetic of 32 bits, of f64, of memory; bytes that those of memory move."""

    plain: int
    double: int
    memory: int
    nbytes: int

    def microseconds(self, card: Card) -> tuple[float, float]:
        """Of ``THREADS`` threads: to issue the instructions, to move the bytes."""
        cycles = (self.plain + self.memory) * card.cycles + self.double * card.cycles_f64
        issue = THREADS / card.wave * cycles / card.units / (card.ghz * 1e3)
        return issue, THREADS * self.nbytes / (card.gbps * 1e3)


WIDTHS = {"ubyte": 1, "sbyte": 1, "byte": 1, "short": 2, "ushort": 2, "dword": 4, "dwordx2": 8, "dwordx3": 12, "dwordx4": 16}


def amd_instructions(body: str) -> Counted:
    """The vector instructions of a kernel's assembly; those of scalars are issued beside them."""
    found: Counter[str] = Counter()
    for name in re.findall(r"^\t(\w+)", body, re.M):
        if name.startswith(("global_", "flat_")):
            bits = re.search(r"_[bui](\d+)$|_f(\d+)$", name)
            width = (
                int(bits[1] or bits[2]) // 8 if bits else WIDTHS.get(name.rsplit("_", 1)[1], 8 if name.endswith("_x2") else 4)
            )
            found["memory"] += 1
            found["bytes"] += width
        elif name.startswith(("ds_", "scratch_")):
            found["memory"] += 1
        elif name.startswith("v_"):
            found["double" if "f64" in name else "plain"] += 1
    return Counted(found["plain"], found["double"], found["memory"], found["bytes"])


def nvidia_instructions(body: str) -> Counted:
    """The same of PTX: its assembler makes fewer of some, and more of others."""
    found: Counter[str] = Counter()
    for name in re.findall(r"^\t(?:@!?%p\d+ )?([a-z][\w.]+)", body, re.M):
        if name.startswith(("ld.global", "st.global", "atom.", "red.")):
            vector, bits = re.search(r"\.v(\d)", name), re.search(r"(\d+)$", name)
            found["memory"] += 1
            found["bytes"] += int(vector[1] if vector else 1) * int(bits[1] if bits else 32) // 8
        elif name.startswith(("ld.shared", "st.shared")):
            found["memory"] += 1
        elif not name.startswith(("ld.param", "bra", "ret", "cvta", "bar", "mov")):
            found["double" if ".f64" in name else "plain"] += 1
    return Counted(found["plain"], found["double"], found["memory"], found["bytes"])


def gradients_of(case: str) -> list[tuple[Kernel, frozenset[Op]]]:
    """The kernels of the case's gradient, as the emulated device is asked to compile them."""
    seen: dict[str, tuple[Kernel, frozenset[Op]]] = {}
    emit = device.emit_grid

    def spy(kernel: Kernel, target: Any, plain: frozenset[Op], far: frozenset[str]) -> Any:
        seen.setdefault(kernel.name, (kernel, plain))
        return emit(kernel, target, plain, far)

    device.emit_grid = spy
    program = qd.init(arch=qd.cuda, device="emulated", offline_cache=False)
    try:
        make, _, small = CASES[case]
        made = make(qd, **small)
        made.timed["forward"]()
        forward = set(seen)
        made.timed["gradient"]()
        return [seen[name] for name in seen if name not in forward]
    finally:
        program.close()
        device.emit_grid = emit


def rows_of(case: str, chips: list[str]) -> tuple[list[list[str]], list[list[str]]]:
    """The rows of both tables."""
    facts, times = [], []
    for kernel, plain in gradients_of(case):
        done: dict[str, Counted] = {}
        for chip in chips:
            text = emit_grid(kernel, amdgpu_target(chip), plain, tapes_of(kernel)).device
            code = read_code(compile_object(text, kernel.name, chip, listing=True))
            for k in code.kernels.values():
                waves = CHIPS[chip].resident(k.vgprs, k.lds_bytes, k.most_threads)
                numbers = (k.vgprs, k.agprs, k.sgprs, k.lds_bytes, k.scratch_bytes, k.code_bytes, waves)
                facts.append([case, k.name, chip, *map(str, numbers)])
            bodies = [code.listing.partition(f"\n{name}:\n")[2].partition(".section")[0] for name in code.kernels]
            done[chip] = amd_instructions("\n".join(bodies))
        done["sm_90"] = nvidia_instructions(compile_ptx(emit_grid(kernel, cuda_target(), plain).device, kernel.name, "sm_90"))
        for chip, counted in done.items():
            issue, memory = counted.microseconds(CARDS[chip])
            numbers = (counted.plain, counted.double, counted.memory, counted.nbytes)
            times.append([case, kernel.name, CARDS[chip].name, *map(str, numbers), f"{issue:.1f}", f"{memory:.1f}"])
    return facts, times


def table(head: list[str], rows: list[list[str]]) -> None:
    """Print a table in Markdown."""
    print(f"| {' | '.join(head)} |\n|{' --- |' * len(head)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    print()


def main() -> None:
    """Print both tables of the cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default="diffmpm,mpm88", help="names of benchmarks.cuda's cases, separated by commas")
    parser.add_argument("--chips", default="gfx90a,gfx942,gfx1100", help="LLVM's names, separated by commas")
    given = parser.parse_args()
    facts: list[list[str]] = []
    times: list[list[str]] = []
    for case in given.case.split(","):
        more = rows_of(case, given.chips.split(","))
        facts, times = facts + more[0], times + more[1]
    table(
        ["case", "kernel", "chip", "VGPRs", "of them AGPRs", "SGPRs", "LDS bytes", "scratch bytes", "code bytes", "waves/SIMD"],
        facts,
    )
    print(f"ESTIMATE, static: nothing ran on a card. Instructions of one thread; microseconds of {THREADS:,} threads.\n")
    table(["case", "kernel", "card", "arithmetic", "f64", "memory", "bytes", "us to issue", "us to move all bytes"], times)


if __name__ == "__main__":
    main()
