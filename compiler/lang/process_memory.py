"""The bytes of a program by category and kernel, and what its process takes of a GPU beside them.

What the process takes, no allocator counts, and the device has it less all the same. The numbers were measured on an H200 with driver 580
(CUDA 13.0): other drivers take other amounts of about this size.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from .content import Content
from .kernel_plan import KernelPlan, code_bytes, kernel_plan, kernels_of
from .options import Arch
from .restart import Launches, Start, is_clean, restart, start_of, used_by

if TYPE_CHECKING:
    from ..runtime.device import Device
    from .executable import Executable
    from .kernel import Kernel, Variant
    from .program import Program

DRIVER_BYTES = 552_000_000
"""The driver's context: once a process and device, whatever runs in it."""

FRAME_BYTES = 1024
"""Bytes of a thread's stack that a context has room for from the start."""

UNIT_BYTES = 32 << 20
"""The driver's pool takes memory from the device in units of so many bytes."""


@dataclass(frozen=True)
class Beside:
    """Memory beside a program: its ``kind`` (driver, frames or rounding), bytes, what asks for it, how it is counted."""

    kind: str
    bytes: int
    source: str
    formula: str


class Accounts:
    """The bytes of a program, by category and by kernel. ``Program`` is one."""

    arch: Arch
    device: Device
    variants: dict[Kernel, dict[tuple[Any, ...], Variant]]

    def usage(self) -> dict[str, int]:
        """Bytes in use by category: fields, gradients, ndarrays, adstack, temporaries. On a GPU ``staging``, too: pinned memory of the host
        for large copies, which is no memory of the device and which no limit counts.
        """
        return self.device.usage()

    @property
    def peak_bytes(self) -> int:
        """The most bytes that were in use at once."""
        return self.device.peak_bytes

    def peaks(self) -> dict[str, int]:
        """The most bytes of each category that were in use at once; ``code``: those of its kernels, which belong to the process."""
        code = code_bytes(kernels_of(self))
        return self.device.peaks() | ({"code": code} if code else {})

    def kernels(self) -> list[KernelPlan]:
        """What each compiled kernel holds, gradients and tangents included."""
        return [kernel_plan(executable) for executable in kernels_of(self)]

    def begun(self, launches: Launches) -> Start:
        """What it is before its first run, for ``restart``. ``launches``: the kernels of that run with arguments."""
        return start_of(cast("Program", self), launches)

    def is_clean(self, start: Start) -> bool:
        """Whether ``restart`` can make it that again after what has run in it since."""
        return is_clean(cast("Program", self), start)

    def restart(self, start: Start) -> None:
        """Make it what it was before its first run, but for what ``content`` tells; see ``lang.restart``."""
        restart(cast("Program", self), start)

    def content(self) -> Content:
        """What its memory holds now, for ``Content.put_back``. No kernel runs in it."""
        return Content(cast("Program", self))

    def reached(self, value: Any) -> list[Any] | None:
        """What an object of the compiler's holds of Python, see ``lang.reached``."""
        from .reached import reached  # it needs kernels, which need programs

        return reached(cast("Program", self), value)

    @staticmethod
    def launches_alike(start: Start, launches: Launches) -> bool:
        """Whether these are launches of the same specialisations as at the start. The program is the current one."""
        return used_by(launches) == start.used

    def beside(self, arch: str, device_bytes: int) -> list[Beside]:
        """What the process takes of a device beside the program; nothing on the CPU, on an emulated device, and where it is not known.

        Args:
            arch: the backend that is planned for; where it is another one than the program's, the frames of kernels are not known.
            device_bytes: what the program will hold of the device's memory.
        """
        own = arch == self.arch.value
        compiled = kernels_of(self) if own else []
        if arch != Arch.cuda or (own and not self.device.identity.startswith(f"{arch} ")):
            return []
        total = -(-device_bytes // UNIT_BYTES) * UNIT_BYTES
        how = f"{device_bytes:,} bytes in units of {UNIT_BYTES >> 20} MiB are {total:,}"
        later = Beside("frames", 0, "launches()", "known when the kernels are compiled for the device")
        return [
            Beside("driver", DRIVER_BYTES, "the process", "the driver's context, as measured on an H200; once a process"),
            _frames(compiled, self.device.threads) if compiled else later,
            Beside("rounding", total - device_bytes, "the driver's pool", how),
        ]


def _frames(executables: Iterable[Executable], threads: int) -> Beside:
    """Room for the stack frames of all threads that may be resident: the driver makes it at the launch of a kernel with a larger one."""
    frames = {e.name: max(getattr(e.compiled, "frames", ()), default=0) for e in executables}
    name = max(frames, key=lambda n: frames[n], default="")
    most = frames.get(name, 0)
    if most <= FRAME_BYTES:
        return Beside(
            "frames", 0, "launches()", f"no kernel needs more than {most} bytes of stack a thread; {FRAME_BYTES} are there"
        )
    how = f"`{name}`: {threads:,} resident threads x ({most} - {FRAME_BYTES}) bytes of stack"
    return Beside("frames", threads * (most - FRAME_BYTES), "launches()", how)
