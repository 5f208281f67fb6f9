"""A kernel for a GPU as two modules of LLVM text: the device functions, and the host's entry that launches them."""

from __future__ import annotations

from dataclasses import dataclass

from ....ir.nodes import Kernel, Op
from ...abi import arg_offsets, context_layout, messages
from ...llvm.emitter import KernelInfo
from ...llvm.function import LlvmModule
from ...llvm.kernel import symbol
from ...llvm.report import prints
from ...llvm.target import Target
from ..abilities import check
from ..hardware import DeviceFunction, GpuTarget
from ..prologue import where
from .emitter import Failures, fails
from .entry import emit_entry
from .task import GridTaskEmitter, emit_before, emit_task


@dataclass(frozen=True, slots=True)
class GridCode:
    """``device`` and ``host``: LLVM text. ``entry``: the host's symbol. ``functions``: the device's symbols, in the order in which their
    handles lie at ``CTX_FUNCTIONS``. ``features``: what LLVM must be told of the GPU besides its name.
    """

    device: str
    host: str
    entry: str
    functions: list[str]
    features: str


def emit_grid(
    kernel: Kernel, target: GpuTarget, plain: frozenset[Op] = frozenset(), far: frozenset[str] = frozenset()
) -> GridCode:
    """Both modules of a kernel.

    Args:
        kernel: verified IR with exits lowered.
        target: the GPU.
        plain: atomics that no other iteration can disturb; they become a load and a store.
        far: the names of the tapes in the heap, see ``rows.name_of``; all other tapes are on chip.

    Raises:
        QdrunTypeError: the kernel has a type, or an atomic, that this GPU does not have.
        Unsupported: the kernel has something that this GPU cannot do.
    """
    check(kernel, target, plain)
    module = LlvmModule(target)
    info = info_of(kernel, plain, far)
    functions: list[DeviceFunction] = []
    failures = _failures(kernel)
    for number, task in enumerate(kernel.tasks):
        name = f"{symbol(kernel)}_{number}"
        if where(task) == "before":
            functions.append(emit_before(GridTaskEmitter(module, info, task, Failures()), f"{name}_before"))
        functions.append(emit_task(GridTaskEmitter(module, info, task, failures[number]), name))
    host = LlvmModule(Target(libm=False))  # a bound that uses sin is the same here and on the device
    emit_entry(host, info, target, functions)
    size = max((8 * len(f.words) for f in functions), default=0)
    return GridCode(
        module.text(f"; kernel {symbol(kernel)} for {target.name}, blocks of {target.block}"),
        host.text(f"; the host's side of kernel {symbol(kernel)} for {target.name}"),
        symbol(kernel),
        [f.name for f in functions],
        target.features if size <= target.small_bytes else target.wide_features,
    )


def info_of(kernel: Kernel, plain: frozenset[Op] = frozenset(), far: frozenset[str] = frozenset()) -> KernelInfo:
    """The facts about a kernel for all of its functions; the arguments are those of ``emit_grid``."""
    codes = {s: k + 1 for k, s in enumerate(messages(kernel))}
    sites = {s: k for k, s in enumerate(prints(kernel))}
    return KernelInfo(kernel, context_layout(kernel), arg_offsets(kernel.args), codes, sites, plain, far)


def _failures(kernel: Kernel) -> list[Failures]:
    """Which tasks note a failure, because a later task or their own reductions want to know, and which look for one."""
    failing = [fails(t) for t in kernel.tasks]
    last = len(failing) - 1
    return [Failures(failing[k] and (k < last or bool(t.reductions)), any(failing[:k])) for k, t in enumerate(kernel.tasks)]
