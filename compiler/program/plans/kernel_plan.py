"""The memory of a compiled kernel in a program, without fields and the gradient heap. Known before the first launch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ...codegen.abi import STATUS_WORDS
from ...runtime.jit import LoadedCode

if TYPE_CHECKING:
    from ...compile.lazy_kernel import LazyKernel
    from ..executable import Executable


@dataclass(frozen=True)
class KernelPlan:
    """Memory of one compiled kernel; a gradient has one of its own, and its heap is a ``HeapPlan``.

    Attributes:
        kernel: its name; that of a gradient ends in ``_grad``.
        context: bytes of the launch context, the status record and the returned values. They belong to the program.
        temporaries: bytes of what tasks hand to later tasks, with their adjoints and tangents. They belong to the program.
        code: bytes of the object file. Code belongs to the process: equal kernels of all its programs share it.
    """

    kernel: str
    context: int
    temporaries: int
    code: int

    @property
    def bytes(self) -> int:
        """Bytes that the program allocates for it, without code."""
        return self.context + self.temporaries

    def rows(self) -> list[dict[str, object]]:
        """One row per kind: bytes and their formula."""
        how = {
            "context": "launch context, status record and returned values, in words of 8 bytes",
            "temporaries": "values between tasks, with adjoints and tangents, in words of 8 bytes",
            "code": "object file; the process keeps it once for all programs",
        }
        return [{"kind": kind, "bytes": getattr(self, kind), "formula": text} for kind, text in how.items()]

    def to_json(self) -> dict[str, Any]:
        """The plan as plain data."""
        return asdict(self) | {"bytes": self.bytes}


def kernel_plan(executable: Executable) -> KernelPlan:
    """The plan of a compiled kernel, from what it has allocated."""
    held = executable.held()
    return KernelPlan(executable.name, held["context"], held["temporaries"], code_bytes([executable]))


def uncompiled_plan(lazy: LazyKernel, words: int, trials: int = 1) -> KernelPlan:
    """The plan of a kernel that is not compiled, its machine code left out.

    Args:
        lazy: the kernel.
        words: of its launch context.
        trials: of a batch, those of padding included.
    """
    head = lazy.head
    copies = 1 + any(place.grad is not None for place in head.tmps) + ("tmp_dual" in lazy.kinds)
    return KernelPlan(
        head.name, 8 * (words + STATUS_WORDS + len(head.returns) * trials), 8 * len(head.tmps) * copies * trials, 0
    )


def code_bytes(executables: Iterable[Executable]) -> int:
    """Bytes of their machine code, what they share counted once."""
    codes = (getattr(e.compiled, "code", None) for e in executables)
    return sum(len(code.object_bytes) for code in {id(c): c for c in codes if isinstance(c, LoadedCode)}.values())
