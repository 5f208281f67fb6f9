"""The bytes of a program by category and kernel, and what its process takes of a GPU beside them.

What the process takes, no allocator counts, and the device has it less all the same. Each backend says what was measured
(``ProcessBytes``): other drivers take other amounts of about this size.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...options import Arch, Options
from ...runtime.registry import process_bytes
from ..executable import Executable
from ..plans.kernel_plan import KernelPlan, code_bytes, kernel_plan
from ..rehearsal import Launches
from ..state import ProgramState
from ..variant import Variant, kernels_of
from .columns import Column, read_columns
from .first_values import FirstValues


@dataclass(frozen=True)
class Beside:
    """Memory beside a program: its ``kind`` (driver, frames or rounding), bytes, what asks for it, how it is counted."""

    kind: str
    bytes: int
    source: str
    formula: str


class Accounts(ProgramState):
    """The bytes of a program, by category and by kernel. ``Program`` is one."""

    def __init__(self, arch: Arch, options: Options) -> None:
        super().__init__(arch, options)
        self.variants: dict[object, dict[tuple[Any, ...], Variant]] = {}

    def executables(self) -> list[Executable]:
        """The compiled kernels."""
        return kernels_of(self.variants)

    def peaks(self) -> dict[str, int]:
        """The most bytes of each category that were in use at once; ``code``: those of its kernels, which belong to the process."""
        code = code_bytes(self.executables())
        return self.device.peaks() | ({"code": code} if code else {})

    def kernels(self) -> list[KernelPlan]:
        """The memory of each compiled kernel, including gradients and tangents."""
        return [kernel_plan(executable) for executable in self.executables()]

    def first_values(self, launches: Launches, also: Iterable[Any] = (), apart: Collection[Any] = ()) -> FirstValues:
        """The content of the memory that launches store to, to restore it before they run again; see ``FirstValues``.

        The program is the current one.
        """
        return FirstValues(self, launches, also, apart)

    def column(self, field: Any) -> Column:
        """A field whose content goes in or out before and after runs; see ``Column``."""
        return Column(self, field)

    def read_columns(self, columns: Sequence[Column]) -> list[np.ndarray]:
        """See ``columns.read_columns``."""
        return read_columns(columns)

    def beside(self, arch: str, device_bytes: int) -> list[Beside]:
        """The memory of a device that the process uses besides the program; none on the CPU and on an emulated device. Where it was not
        measured, a line of 0 bytes says so.

        Args:
            arch: the backend of the plan; the frames of kernels are known for the program's own backend only.
            device_bytes: bytes of device memory that the program will hold.
        """
        own = arch == self.arch.value
        compiled = self.executables() if own else []
        process = self.device.process_bytes if own else process_bytes(arch)
        if process is None:
            return []
        if not process.measured:
            how = f"what the driver takes comes on top: it was measured on no {arch} device"
            return [Beside("driver", 0, "the process", how)]
        total = -(-device_bytes // process.unit) * process.unit
        how = f"{device_bytes:,} bytes in units of {process.unit >> 20} MiB are {total:,}"
        later = Beside("frames", 0, "launches()", "known when the kernels are compiled for the device")
        return [
            Beside(
                "driver",
                process.driver,
                "the process",
                f"the driver's context, as measured on {process.measured}; once a process",
            ),
            _frames(compiled, self.device.threads, process.frame) if compiled else later,
            Beside("rounding", total - device_bytes, "the driver's pool", how),
        ]


def _frames(executables: Iterable[Executable], threads: int, room: int) -> Beside:
    """Room for the stack frames of all threads that may be resident: the driver makes it at the launch of a kernel with a larger one."""
    frames = {e.name: max(getattr(e.compiled, "frames", ()), default=0) for e in executables}
    name = max(frames, key=lambda n: frames[n], default="")
    most = frames.get(name, 0)
    if most <= room:
        return Beside("frames", 0, "launches()", f"no kernel needs more than {most} bytes of stack a thread; {room} are there")
    how = f"`{name}`: {threads:,} resident threads x ({most} - {room}) bytes of stack"
    return Beside("frames", threads * (most - room), "launches()", how)
