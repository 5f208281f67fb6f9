"""What can go wrong while instructions are executed."""

from __future__ import annotations

from qdrun.compiler.errors import DeviceError


class UnknownInstruction(DeviceError):
    """An instruction, or a form of one, that the emulator does not have. It says nothing about the program, which stays usable.

    Attributes:
        what: the instruction.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(
            f"the emulator of AMD GPUs does not know `{what}`\n"
            "  do: report this instruction; a GPU may well execute it, and qd.init(arch=qd.cpu) runs the program"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return UnknownInstruction, (self.what,)


class BadState(Exception):
    """What no compiled program does: a wave that does not end, or code that leaves its function."""
