"""The NVIDIA-specific parts of a device function: special registers, barriers, on-chip memory, launch bounds, module head."""

from __future__ import annotations

from ...ir.nodes import Task
from ...ir.types import PLANES
from ..gpu.hardware import GpuTarget, GridFn
from ..gpu.on_chip import OnChipVariables
from .approximate import APPROXIMATIONS

TRIPLE = "nvptx64-nvidia-cuda"
LAYOUT = "e-p6:32:32-i64:64-i128:128-i256:256-v16:16-v32:32-n16:32:64"
"""Without it in the text, LLVM takes i64 to be aligned to 4 and makes two accesses of each."""

STACK_BLOCKS, SMALL_STACK_BLOCKS = 4, 6
"""Blocks of a multiprocessor that a kernel with adstacks leaves room for, and one that keeps at most ``SMALL`` bytes an iteration: 128 and
80 registers a thread. Without a word, 32 registers hold back the pops."""
SMALL = 16


class CudaHardware(OnChipVariables):
    """Device functions as PTX kernels."""

    def thread_in_block(self, e: GridFn) -> str:
        """``%tid.x``"""
        return self._register(e, "tid")

    def block_number(self, e: GridFn) -> str:
        """``%ctaid.x``"""
        return self._register(e, "ctaid")

    def blocks(self, e: GridFn) -> str:
        """``%nctaid.x``"""
        return self._register(e, "nctaid")

    def threads(self, e: GridFn) -> str:
        """``%ntid.x``"""
        return self._register(e, "ntid")

    def _register(self, e: GridFn, name: str) -> str:
        full = f"llvm.nvvm.read.ptx.sreg.{name}.x"
        e.module.declare(full, f"declare i32 @{full}()")
        return e.hoist(("sreg", name), f"call i32 @{full}()")

    def barrier(self, e: GridFn) -> None:
        """``bar.sync 0``"""
        name = "llvm.nvvm.barrier.cta.sync.aligned.all"
        e.module.declare(name, f"declare void @{name}(i32)")
        e.put(f"call void @{name}(i32 0)")

    def lanes(self, e: GridFn) -> str:
        """``activemask``, where it stands."""
        return self._warp(e, "i32", "activemask")

    def lanes_below(self, e: GridFn) -> str:
        """``%lanemask_lt``"""
        full = "llvm.nvvm.read.ptx.sreg.lanemask.lt"
        e.module.declare(full, f"declare i32 @{full}()")
        return e.hoist("lanemask", f"call i32 @{full}()")

    def ballot(self, e: GridFn, mask: str, flag: str) -> str:
        """``vote.sync.ballot``"""
        return self._warp(e, "i32", "vote.ballot.sync", f"i32 {mask}", f"i1 {flag}")

    def from_lane(self, e: GridFn, mask: str, value: str, lane: str) -> str:
        """``shfl.sync.idx``"""
        return self._warp(e, "i32", "shfl.sync.idx.i32", f"i32 {mask}", f"i32 {value}", f"i32 {lane}", "i32 31")

    def _warp(self, e: GridFn, ty: str, name: str, *args: str) -> str:
        """A call that stays in its branch: LLVM knows that it is convergent, and may not merge it with the same one of another branch."""
        full = f"llvm.nvvm.{name}"
        e.module.declare(full, f"declare {ty} @{full}({', '.join(a.split()[0] for a in args)})")
        return e.t(f"call {ty} @{full}({', '.join(args)}) convergent nomerge")

    def define(self, e: GridFn, name: str) -> str:
        quiet = e.pointer_attributes()
        params = ", ".join(f"{w.ty}{quiet.get(w, '')} {reg}" for w, reg in e.words.items())
        bounds = f'"nvvm.{"maxntid" if e.flexible else "reqntid"}"="{e.threads_of_block}"'
        if e.task.stacks and e.task.parallel:
            bounds += f' "nvvm.minctasm"="{_stack_blocks(e.task)}"'
        head = [f"define ptx_kernel void @{name}({params}) nounwind {bounds} {{", "entry:"]
        return "\n".join([*head, *e.slots, *e.head, *e.lines, "}"])

    def wave_barrier(self, e: GridFn, mask: str = "-1") -> None:
        """``bar.warp.sync`` of the lanes of a mask; threads that a small block does not have count as having ended."""
        e.module.declare("llvm.nvvm.bar.warp.sync", "declare void @llvm.nvvm.bar.warp.sync(i32)")
        e.put(f"call void @llvm.nvvm.bar.warp.sync(i32 {mask})")

    def define_packed(self, e: GridFn, name: str, words: int, blocks: int) -> str:
        """The words stay in the constant memory of the parameters: nothing is copied."""
        param = f'ptr byval([{words} x i64]) align 8 "nvvm.grid_constant" %words'
        bounds = f'"nvvm.reqntid"="{e.threads_of_block}" "nvvm.minctasm"="{blocks}"'
        head = [f"define ptx_kernel void @{name}({param}) nounwind {bounds} {{", "entry:", "  %regs = inttoptr i64 0 to ptr"]
        return "\n".join([*head, *e.slots, *e.head, *e.lines, "}"])


def grid_barrier(e: GridFn, arrived: str) -> None:
    """Blocks count themselves, and wait until all have come as often as they have."""
    wait, go, join, scope = e.label("wait"), e.label("met"), e.label("join"), f'syncscope("{e.target.scope}")'
    e.hardware.barrier(e)
    one = e.label("one")
    e.branch(e.t(f"icmp eq i32 {e.hardware.thread_in_block(e)}, 0"), one, join)
    e.at(one)
    e.put(f"fence {scope} seq_cst")  # what the threads of this block have written is seen before it counts
    blocks = e.t(f"zext i32 {e.hardware.blocks(e)} to i64")
    before = e.t(f"atomicrmw add ptr {arrived}, i64 1 {scope} monotonic")
    round_ = e.t(f"add i64 {e.t(f'udiv i64 {before}, {blocks}')}, 1")
    wanted = e.t(f"mul i64 {round_}, {blocks}")
    e.jump(wait)
    e.at(wait)
    now = e.t(f"load atomic i64, ptr {arrived} {scope} monotonic, align 8")
    e.branch(e.t(f"icmp ult i64 {now}, {wanted}"), wait, go)
    e.at(go)
    e.put(f"fence {scope} seq_cst")
    e.jump(join)
    e.at(join)
    e.hardware.barrier(e)


def _stack_blocks(task: Task) -> int:
    kept = sum(PLANES[local.dtype.plane] for stack in task.stacks if stack.kind == "tape" for local in stack.locals)
    return SMALL_STACK_BLOCKS if kept <= SMALL else STACK_BLOCKS


def cuda_target(cpu: str = "sm_90", block: int = 128) -> GpuTarget:
    """A chip by LLVM's name. PTX 8.0 is what every driver since CUDA 12.0 reads; 8.1 has more room for parameters."""
    return GpuTarget(
        "cuda",
        TRIPLE,
        cpu,
        "+ptx80",
        layout=LAYOUT,
        approximations=APPROXIMATIONS,
        f32_to_i32="llvm.nvvm.f2{}.rz",
        constant_space=4,
        global_space=1,
        hardware=CudaHardware(),
        block=block,
        wide_features="+ptx81",
        lanes=32,
        teams=True,
        grid_barrier=grid_barrier,
    )
