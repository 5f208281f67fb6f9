"""The result codes of a driver: what happened, what to do, and whether the process can continue."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

from ...errors import DeviceError, OutOfMemory


@dataclass(frozen=True, slots=True)
class ResultCode:
    """One result code.

    ``restart``: every later call of the process fails with it; ``bounds``: an index out of bounds in a kernel may be the cause.
    """

    name: str
    what: str
    do: str = ""
    restart: bool = False
    bounds: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Results:
    """The results of a driver's calls.

    Attributes:
        kind: what the driver calls a result without a name, as ``CUresult``.
        prefix: of its names.
        known: what we say of each that a launch, a copy or an allocation can give, by its number.
        full: the number that says that the device has no more memory.
        again: what to do about one that is not known.
    """

    kind: str
    prefix: str
    known: Mapping[int, ResultCode]
    full: int
    again: str

    def of(self, code: int, name: str = "") -> ResultCode:
        """The meaning of a result code. ``name``: the driver's name of an unknown code, with or without the prefix."""
        known = self.known.get(code)
        return known if known is not None else ResultCode(name.removeprefix(self.prefix), "the driver refused", self.again)

    def error(self, code: int, doing: str, name: str = "", detail: str = "") -> DeviceError:
        """The error of a call that failed.

        Args:
            code: the number.
            doing: what was tried, as in "kernel `f` failed" or "a copy of 8 bytes failed": opens the message.
            name: the driver's own name of the result.
            detail: what the driver says beyond it, a log say.
        """
        r = self.of(code, name)
        said = f"{self.prefix}{r.name}" if r.name else f"{self.kind} {code}"
        lines = [f"{doing}: {r.what} ({said})", *(f"  {line}" for line in detail.strip().splitlines())]
        if r.restart:
            lines.append("  the device cannot be used any more by this process")
            lines.append(f"  do: restart the process; {r.do}")
        elif r.do:
            lines.append(f"  do: {r.do}")
        return DeviceError("\n".join(lines), said, code, r.restart, r.bounds)

    def is_full(self, error: DeviceError) -> bool:
        """Whether a call failed because the device has no more memory."""
        return error.code == self.full


def report_lost(error: DeviceError, what: str) -> None:
    """Warn of a failure whose call belongs to no program that is still there. One that stays is raised by the next call of the device.

    Args:
        error: what the driver said.
        what: what it means, as in "64 bytes of code stay loaded": opens the message.
    """
    if not error.restart:
        warnings.warn(f"{what}: {error}", RuntimeWarning, stacklevel=3)


def out_of_memory(error: DeviceError, doing: str) -> OutOfMemory:
    """The memory error of a call other than an allocation: loading code, a kernel's stack."""
    return OutOfMemory(f"{doing}: {str(error).split(': ', 1)[-1]}")
