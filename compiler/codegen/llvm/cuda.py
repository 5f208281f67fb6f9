"""What is NVIDIA's in a device function: special registers, barriers, on-chip memory, launch bounds, the module's head."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .gpu import GpuTarget

if TYPE_CHECKING:
    from .grid import GridEmitter

TRIPLE = "nvptx64-nvidia-cuda"
LAYOUT = "e-p6:32:32-i64:64-i128:128-i256:256-v16:16-v32:32-n16:32:64"
"""Without it in the text, LLVM takes i64 to be aligned to 4 and makes two accesses of each."""

STACK_BLOCKS = 4
"""Blocks of a multiprocessor that a kernel with adstacks must leave room for: without it, 32 registers hold back the pops."""


def cuda_target(cpu: str = "sm_90", block: int = 128) -> GpuTarget:
    """A chip by LLVM's name. PTX 8.0 is what every driver since CUDA 12.0 reads; 8.1 has more room for parameters."""
    return GpuTarget("cuda", TRIPLE, cpu, "+ptx80", layout=LAYOUT, block=block, wide_features="+ptx81")


class CudaHardware:
    """Device functions as PTX kernels."""

    def thread_in_block(self, e: GridEmitter) -> str:
        """``%tid.x``"""
        return self._register(e, "tid")

    def block_number(self, e: GridEmitter) -> str:
        """``%ctaid.x``"""
        return self._register(e, "ctaid")

    def blocks(self, e: GridEmitter) -> str:
        """``%nctaid.x``"""
        return self._register(e, "nctaid")

    def threads(self, e: GridEmitter) -> str:
        """``%ntid.x``"""
        return self._register(e, "ntid")

    def _register(self, e: GridEmitter, name: str) -> str:
        full = f"llvm.nvvm.read.ptx.sreg.{name}.x"
        e.module.declare(full, f"declare i32 @{full}()")
        return e.hoist(("sreg", name), f"call i32 @{full}()")

    def barrier(self, e: GridEmitter) -> None:
        """``bar.sync 0``"""
        name = "llvm.nvvm.barrier.cta.sync.aligned.all"
        e.module.declare(name, f"declare void @{name}(i32)")
        e.put(f"call void @{name}(i32 0)")

    def shared_words(self, e: GridEmitter, words: int) -> str:
        """A variable of the module, as large as the function that needs most: one function runs at a time."""
        name = f"qd_shared_{words}"
        e.module.declare(name, f"@{name} = internal addrspace(3) global [{words} x i64] poison, align 16")
        return e.hoist(("shared", words), f"addrspacecast ptr addrspace(3) @{name} to ptr")

    def dynamic_shared(self, e: GridEmitter) -> str:
        """The variable that stands for what the launch asks for."""
        e.module.declare("qd_dynamic", "@qd_dynamic = external addrspace(3) global [0 x i64], align 16")
        return e.hoist("dynamic", "addrspacecast ptr addrspace(3) @qd_dynamic to ptr")

    def define(self, e: GridEmitter, name: str) -> str:
        """A kernel with one parameter for each word."""
        quiet = e.pointer_attributes()
        params = ", ".join(f"{w.ty}{quiet.get(w, '')} {reg}" for w, reg in e.words.items())
        bounds = f'"nvvm.{"maxntid" if e.flexible else "reqntid"}"="{e.threads_of_block}"'
        if e.task.stacks and e.task.parallel:
            bounds += f' "nvvm.minctasm"="{STACK_BLOCKS}"'
        head = [f"define ptx_kernel void @{name}({params}) nounwind {bounds} {{", "entry:"]
        return "\n".join([*head, *e.slots, *e.head, *e.lines, "}"])
