"""The AMD-specific parts of a device function: registers of the launch, barriers, on-chip memory, operations of a wave, module head.

The numbers of blocks and threads are hidden arguments of the kernel, which HIP fills in as for its own kernels: there is no register of
them, and the dispatch packet would have to be read otherwise.
"""

from __future__ import annotations

from ..gpu.hardware import GpuTarget, GridFn
from ..gpu.on_chip import OnChipVariables
from .chips import WAVE, chip_of

TRIPLE = "amdgcn-amd-amdhsa"
LAYOUT = (
    "e-m:e-p:64:64-p1:64:64-p2:32:32-p3:32:32-p4:64:64-p5:32:32-p6:32:32-p7:160:256:256:32-p8:128:128:128:48-p9:192:256:256:32-i64:64-"
    "v16:16-v24:32-v32:32-v48:64-v96:128-v192:256-v256:256-v512:512-v1024:1024-v2048:2048-n32:64-S32-A5-G1-ni:7:8:9"
)
"""Of all chips."""

BLOCKS, THREADS = 0, 12
"""Bytes from the first hidden argument: the number of blocks (4 bytes), the threads of a block (2 bytes)."""

MEMORY = ", !amdgpu.no.fine.grained.memory !0, !amdgpu.no.remote.memory !0, !amdgpu.ignore.denormal.mode !0"
"""What LLVM is told of the memory of atomics: it is the device's own, and an addition of f32 may drop subnormal numbers, as the instruction
does. Without it, LLVM makes a loop of most of them.
"""


class AmdHardware(OnChipVariables):
    """Device functions as kernels of a code object.

    Args:
        shuffles: one instruction moves values between any two threads of a wave.
    """

    def __init__(self, shuffles: bool) -> None:
        self._shuffles = shuffles

    def thread_in_block(self, e: GridFn) -> str:
        return self._register(e, "workitem.id.x")

    def block_number(self, e: GridFn) -> str:
        return self._register(e, "workgroup.id.x")

    def _register(self, e: GridFn, name: str) -> str:
        full = f"llvm.amdgcn.{name}"
        e.module.declare(full, f"declare i32 @{full}()")
        return e.hoist(("register", name), f"call i32 @{full}()")

    def blocks(self, e: GridFn) -> str:
        return e.hoist("blocks", f"load i32, ptr addrspace(4) {self._hidden(e, BLOCKS)}, !invariant.load !0")

    def threads(self, e: GridFn) -> str:
        narrow = e.hoist("narrow threads", f"load i16, ptr addrspace(4) {self._hidden(e, THREADS)}, !invariant.load !0")
        return e.hoist("threads of block", f"zext i16 {narrow} to i32")

    def _hidden(self, e: GridFn, byte: int) -> str:
        full = "llvm.amdgcn.implicitarg.ptr"
        e.module.declare(full, f"declare ptr addrspace(4) @{full}()")
        base = e.hoist("hidden", f"call ptr addrspace(4) @{full}()")
        return e.hoist(("hidden", byte), f"getelementptr i8, ptr addrspace(4) {base}, i64 {byte}")

    def barrier(self, e: GridFn) -> None:
        """``s_barrier``, and no access moves over it."""
        self._meet(e, "workgroup", "s.barrier")

    def wave_barrier(self, e: GridFn, mask: str = "-1") -> None:
        """No instruction: a wave executes in step, and its accesses happen in order. LLVM leaves them in order, too."""
        self._meet(e, "wavefront", "wave.barrier")

    def _meet(self, e: GridFn, scope: str, name: str) -> None:
        full = f"llvm.amdgcn.{name}"
        e.module.declare(full, f"declare void @{full}()")
        e.put(f'fence syncscope("{scope}") release')
        e.put(f"call void @{full}()")
        e.put(f'fence syncscope("{scope}") acquire')

    def lanes(self, e: GridFn) -> str:
        """The threads that execute, where it stands."""
        return self._ballot(e, "true")

    def lanes_below(self, e: GridFn) -> str:
        """From the number of the thread: wave k has the threads from 64 * k on."""
        lane = e.hoist("lane", f"and i32 {self.thread_in_block(e)}, {WAVE - 1}")
        wide = e.hoist("lane64", f"zext i32 {lane} to i64")
        own = e.hoist("own bit", f"shl i64 1, {wide}")
        return e.hoist("bits below", f"sub i64 {own}, 1")

    def ballot(self, e: GridFn, mask: str, flag: str) -> str:
        """Of the threads that execute, which are those of the mask."""
        return self._ballot(e, flag)

    def _ballot(self, e: GridFn, flag: str) -> str:
        e.module.declare("llvm.amdgcn.ballot.i64", "declare i64 @llvm.amdgcn.ballot.i64(i1)")
        return e.t(f"call i64 @llvm.amdgcn.ballot.i64(i1 {flag}) convergent nomerge")

    def from_lane(self, e: GridFn, mask: str, value: str, lane: str) -> str:
        """``ds_bpermute``; where that stays in the half of a wave, through on-chip memory.

        There is an instruction that exchanges the halves (``permlane64``), but it gives nothing to threads that do not execute, and then
        ``ds_bpermute`` finds nothing of theirs: the two together are right in a wave whose threads all execute, and only there.
        """
        if self._shuffles:
            full = "llvm.amdgcn.ds.bpermute"
            e.module.declare(full, f"declare i32 @{full}(i32, i32)")
            byte = e.t(f"shl i32 {lane}, 2")
            return e.t(f"call i32 @{full}(i32 {byte}, i32 {value}) convergent nomerge")
        places, mine = (
            -(-e.threads_of_block // WAVE) * WAVE,
            self.thread_in_block(e),
        )  # a small block has lanes without a thread, too
        base = self.shared_variable(e, f"qd_lanes_{places}", f"[{places} x i32]")
        wave = e.hoist("wave", f"and i32 {mine}, {-WAVE}")
        e.put(f"store i32 {value}, ptr {e.t(f'getelementptr i32, ptr {base}, i32 {mine}')}")
        self.wave_barrier(e)
        there = e.t(f"getelementptr i32, ptr {base}, i32 {e.t(f'or i32 {wave}, {lane}')}")
        found = e.t(f"load i32, ptr {there}")
        self.wave_barrier(e)  # before the next value comes to the same place
        return found

    def define(self, e: GridFn, name: str) -> str:
        quiet = e.pointer_attributes()
        params = ", ".join(f"{w.ty}{quiet.get(w, '')} {reg}" for w, reg in e.words.items())
        return _kernel(e, name, params, min(WAVE, e.threads_of_block) if e.flexible else e.threads_of_block)

    def define_packed(self, e: GridFn, name: str, words: int, blocks: int) -> str:
        """The words stay in the memory of the arguments: nothing is copied. LLVM finds the number of registers by itself."""
        param = f"ptr addrspace(4) byref([{words} x i64]) align 8 %packed"
        cast = ["  %regs = inttoptr i64 0 to ptr", "  %words = addrspacecast ptr addrspace(4) %packed to ptr"]
        return _kernel(e, name, param, e.threads_of_block, cast)


def _kernel(e: GridFn, name: str, params: str, fewest: int, first: list[str] | None = None) -> str:
    """The text of a kernel whose blocks have at least ``fewest`` threads. ``first``: its first lines."""
    size = f'"amdgpu-flat-work-group-size"="{fewest},{e.threads_of_block}" "uniform-work-group-size"="true"'
    head = [f"define amdgpu_kernel void @{name}({params}) nounwind {size} {{", "entry:", *(first or [])]
    return "\n".join([*head, *e.slots, *e.head, *e.lines, "}"])


def amdgpu_target(chip: str = "gfx942", block: int = 128) -> GpuTarget:
    """A chip by LLVM's name.

    Raises:
        QdrunRuntimeError: code is not made for it.
    """
    known = chip_of(chip)
    return GpuTarget(
        "amdgpu",
        TRIPLE,
        chip,
        known.features,
        layout=LAYOUT,
        constant_space=4,
        slot_space=5,
        atomic_facts=MEMORY,
        hardware=AmdHardware(known.shuffles_waves),
        block=block,
        wave=WAVE,
        global_space=1,
        wide_features=known.features,
        scope="agent",
        block_scope="workgroup",
        lanes=WAVE,
        tapes_on_chip=False,
        launch_end=3,
    )
