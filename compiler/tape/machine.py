"""``Machine``: the device parameters of a plan, such as the iterations in flight. They are constants: no device is queried."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..errors import QdrunRuntimeError, QdrunTypeError
from ..ir.types import PLANES

if TYPE_CHECKING:
    from .heap_plan import HeapPlan

GPU_THREADS = 65_536
"""Threads in flight of a task with adstacks on a GPU: such a task is launched grid-strided, with never more threads than this."""
CUDA_THREADS = 262_144
"""The same on an NVIDIA GPU, if every tape of the task is on chip and the checkpoints of all threads take at most ``CUDA_HEAP``: a
multiprocessor that has finished a block finds another one. A power of two times ``GPU_THREADS``.
"""
CUDA_HEAP = 16 << 20
"""Bytes of checkpoints for which a task gets more than ``GPU_THREADS`` threads."""
CUDA_BLOCK = 128
"""Threads of a block."""
CUDA_SHARED = 284
"""Maximum bytes of shared memory for the tapes of a thread: 36 KiB per block, of the 48 KiB that every device has.

Six blocks fit on a multiprocessor of an H100 or H200; with 368 bytes and four blocks the sin recurrence takes 5 % longer.
"""
CUDA_CACHE = 24 << 20
"""Bytes of tapes that fit into an L2 cache of 50 MB or more. Beyond that, recomputing a segment is faster than reading it."""


@dataclass(frozen=True)
class Machine:
    """Device parameters of a plan.

    Attributes:
        arch: the backend's name.
        workers: maximum number of threads in flight of a parallel task with adstacks.
        lanes: iterations of a worker that have an adstack row at a time.
        width: iterations that the code runs in SIMD lanes, in groups of ``lanes``; 0: ``lanes``.
        fewer: a plan may use fewer lanes.
        wide: the device supports 8-byte state words (f64, i64).
        interleaved: equal slots of all rows are adjacent in the heap.
        shared: bytes of on-chip memory for the tapes of one thread; 0: all tapes are in the heap.
        block: threads that share on-chip memory.
        cache: bytes of full tapes beyond which a loop is checkpointed even with ``levels=1``; 0: never. Only with ``shared``.
        most: maximum number of workers of a task with all tapes on chip and at most ``small`` bytes of checkpoints; 0: ``workers``.
        small: see ``most``.
        trial_lanes: maximum number of threads of a trial in a batch; 0: see ``ir.trials.stack_rows``.
        approximate: f32 and f16 divisions and roots may be inexact (with ``fast_math``, or because the device's language does not promise
            more), so a row predicate with one is not evaluated.
    """

    arch: str
    workers: int
    lanes: int = 1
    wide: bool = True
    interleaved: bool = False
    shared: int = 0
    block: int = 1
    cache: int = 0
    most: int = 0
    small: int = 0
    approximate: bool = False
    width: int = 0
    fewer: bool = False
    trial_lanes: int = 1

    @property
    def side_by_side(self) -> int:
        """``width``, or its default."""
        return self.width or self.lanes

    def all_in_heap(self) -> Machine:
        """The same device with all tapes in the heap."""
        return replace(self, shared=0, block=1, cache=0, most=0, small=0)

    @property
    def rows(self) -> int:
        """Rows of a parallel task with all workers busy."""
        return self.workers * self.lanes


def cpu(workers: int, lanes: int = 1, fewer: bool = False) -> Machine:
    """The CPU with a pool of ``workers`` threads and code of that many lanes."""
    return Machine("cpu", workers, lanes, width=lanes, fewer=fewer and lanes > 1)


def cuda(workers: int | None = None) -> Machine:
    """An NVIDIA GPU. The parameters are the same for every device, so that a plan can be made without one."""
    threads, most = (workers, 0) if workers else (GPU_THREADS, CUDA_THREADS)
    own = Machine("cuda", threads, interleaved=True, shared=CUDA_SHARED, block=CUDA_BLOCK, cache=CUDA_CACHE)
    return replace(own, most=most, small=CUDA_HEAP, trial_lanes=0)


def machine(arch: str, workers: int | None = None, *, fast_math: bool = False) -> Machine:
    """The parameters of a backend, which this machine need not have.

    Args:
        arch: ``cpu``, ``cuda``, ``amdgpu``, ``vulkan`` or ``metal``.
        workers: threads in flight; None: 1 on the CPU, ``GPU_THREADS`` on a GPU.
        fast_math: the option of that name; it matters on NVIDIA GPUs only.

    Raises:
        QdrunRuntimeError: no such backend.
    """
    if arch == "cpu":
        return cpu(workers or 1)
    if arch == "cuda":
        return replace(cuda(workers), approximate=fast_math)
    if arch == "vulkan":
        return replace(cuda(workers), arch=arch, approximate=True)
    if arch in ("amdgpu", "metal"):
        threads, metal = workers or GPU_THREADS, arch == "metal"
        return Machine(arch, threads, wide=not metal, interleaved=True, approximate=metal, trial_lanes=0)
    raise QdrunRuntimeError(f"no backend is called `{arch}`\n  do: use one of cpu, cuda, amdgpu, vulkan, metal")


def check_words(plan: HeapPlan, machine: Machine) -> HeapPlan:
    """Return the plan if the machine supports all of its words.

    Raises:
        QdrunTypeError: a loop keeps 8-byte states, which the machine does not support; names the loop.
    """
    wide = {plane for plane, size in PLANES.items() if size == 8 and plan.planes[plane]}
    if machine.wide or not wide:
        return plan
    loop = next(p for t in plan.tasks for p in t.loops for k in p.stacks for plane, _ in k.widths if plane in wide)
    words = " and ".join({"f8": "f64", "i8": "i64"}[plane] for plane in sorted(wide))
    raise QdrunTypeError(
        f"the gradient `{plan.kernel}` keeps {words} states, and {machine.arch} has no {words}",
        loop.loc,
        "use f32 and i32 for the variables of this loop, or another backend",
    )
