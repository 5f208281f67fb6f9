"""What the process of a program takes of a GPU beside the program's own bytes.

No allocator counts it, and the device has it less all the same. Each backend says what was measured
(``ProcessBytes``): other drivers take other amounts of about this size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...runtime.registry import process_bytes
from ..executable import Executable
from ..state import ProgramState


@dataclass(frozen=True)
class Beside:
    """Memory beside a program: its ``kind`` (driver, frames or rounding), bytes, what asks for it, how it is counted."""

    kind: str
    bytes: int
    source: str
    formula: str


def memory_beside(state: ProgramState, compiled: Sequence[Executable], arch: str, device_bytes: int) -> list[Beside]:
    """The memory of a device that the process uses besides a program; none on the CPU and on an emulated device. Where it was not
    measured, a line of 0 bytes says so.

    Args:
        state: of the program.
        compiled: its kernels.
        arch: the backend of the plan; the frames of kernels are known for the program's own backend only.
        device_bytes: bytes of device memory that the program will hold.
    """
    own = arch == state.arch.value
    process = state.device.process_bytes if own else process_bytes(arch)
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
        _frames(compiled, state.device.threads, process.frame) if own and compiled else later,
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
