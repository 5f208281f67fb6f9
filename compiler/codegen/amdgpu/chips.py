"""The AMD chips that code is made for. LLVM's other names are refused: it only warns of a name that it does not know, and then ends the
process.

All code is for waves of 64 threads: GPUs of the CDNA family have no others, those of the RDNA family (gfx10 and later) have both.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import QdrunRuntimeError

WAVE = 64
"""Threads that execute one instruction together."""


@dataclass(frozen=True, slots=True)
class Chip:
    """A chip.

    Attributes:
        name: LLVM's.
        major: of its instruction set: 9 to 12.
        vgprs: registers that a thread may have, with the accumulation registers where they are of the same file.
        file: registers of a SIMD, for each of a wave's threads.
        granule: registers are given out in multiples of it.
        waves: maximum waves of a SIMD.
        simds: that share on-chip memory of ``lds_bytes``.
        lds_bytes: maximum bytes of on-chip memory of a block.
        most_threads: maximum threads of a block.
    """

    name: str
    major: int
    vgprs: int = 256
    file: int = 512
    granule: int = 8
    waves: int = 16
    simds: int = 2
    lds_bytes: int = 65_536
    most_threads: int = 1024

    @property
    def features(self) -> str:
        """LLVM's features of the chip: waves of 64 threads where the chip has others."""
        return "+wavefrontsize64" if self.major >= 10 else ""

    @property
    def shuffles_waves(self) -> bool:
        """Whether one instruction moves values between any two threads of a wave. Others move them within its halves."""
        return self.major in (9, 12)

    def resident(self, registers: int, lds_bytes: int, threads: int) -> int:
        """Waves of a SIMD of a kernel with so many registers a thread, whose blocks have so many threads and bytes of on-chip memory."""
        given = max(1, -(-registers // self.granule)) * self.granule
        waves = min(self.waves, self.file // given)
        if not lds_bytes:
            return waves
        return min(waves, max(1, self.lds_bytes // lds_bytes * -(-threads // WAVE) // self.simds))


def _chips() -> dict[str, Chip]:
    """Facts from LLVM's description of its subtargets, for waves of 64 threads."""
    made = [
        Chip(f"gfx{n}", 9, file=256, granule=4, waves=10, simds=4) for n in ("900", "902", "904", "906", "908", "909", "90c")
    ]
    made += [Chip(f"gfx{n}", 9, vgprs=512, waves=8, simds=4) for n in ("90a", "942")]
    made += [Chip("gfx950", 9, vgprs=512, waves=8, simds=4, lds_bytes=163_840)]
    made += [Chip(f"gfx{n}", 10, granule=4, waves=20) for n in (1010, 1011, 1012, 1013)]
    made += [Chip(f"gfx{n}", 10) for n in range(1030, 1037)]
    made += [Chip(f"gfx{n}", 11, file=768, granule=12) for n in (1100, 1101, 1151)]
    made += [Chip(f"gfx{n}", 11) for n in (1102, 1103, 1150, 1152, 1153)]
    made += [Chip(f"gfx{n}", 12, file=768, granule=12) for n in (1200, 1201)]
    return {chip.name: chip for chip in made}


CHIPS = _chips()


def chip_of(name: str) -> Chip:
    """A chip by LLVM's name.

    Raises:
        QdrunRuntimeError: code is not made for it.
    """
    if name not in CHIPS:
        raise QdrunRuntimeError(f"no code is made for the AMD chip `{name}`\n  do: use one of {', '.join(CHIPS)}")
    return CHIPS[name]
