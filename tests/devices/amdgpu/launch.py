"""Runs the blocks of a launch: the first registers of its waves, on-chip memory, barriers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..processor.arena import POISON
from ..processor.blocks import Diverged
from .code import BARRIER, END, Code
from .memory import Memory, Region
from .wave import Masks, Wave
from .writing.writer import SHARED_APERTURE

_LOW = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Start:
    """How a kernel's waves begin.

    Attributes:
        user: the words of each shared register at the start, by kind, in order: "kernarg" (2), or so many others.
        user_count: the number of the register behind them.
        block_ids: which of x, y and z follow there.
        lds_bytes: on-chip memory besides what the launch asks for.
        scratch_bytes: memory of each lane's own.
        kernarg_bytes: of the arguments, with the hidden ones.
        hidden: the offset of each hidden argument.
    """

    user: tuple[tuple[str, int], ...]
    user_count: int
    block_ids: tuple[bool, bool, bool]
    lds_bytes: int
    scratch_bytes: int
    kernarg_bytes: int
    hidden: Mapping[str, int]


_PROPERTIES = (
    ("private segment buffer", 4), ("dispatch", 2), ("queue", 2), ("kernarg", 2), ("dispatch id", 2), ("flat scratch", 2),
    ("private segment size", 1),
)  # fmt: skip


def user_registers(properties: int) -> tuple[tuple[str, int], ...]:
    """What the shared registers hold at the start, by the bits of a kernel's descriptor."""
    return tuple(part for bit, part in enumerate(_PROPERTIES) if properties >> bit & 1)


def arguments(start: Start, words: bytes, blocks: int, threads: int) -> np.ndarray:
    """The kernel's arguments in memory: the words of the launch and the hidden arguments. The rest is poison."""
    raw = np.full(max(start.kernarg_bytes, len(words)) + 64, POISON, np.uint8)
    skip = -raw.ctypes.data % 64
    out = raw[skip:]
    out[: len(words)] = np.frombuffer(words, np.uint8)
    known = {"hidden_block_count_x": (blocks, 4), "hidden_group_size_x": (threads, 2)}
    known |= {f"hidden_block_count_{axis}": (1, 4) for axis in "yz"} | {f"hidden_group_size_{axis}": (1, 2) for axis in "yz"}
    for name, offset in start.hidden.items():
        if name in known:
            value, size = known[name]
            out[offset : offset + size] = np.frombuffer(value.to_bytes(size, "little"), np.uint8)
    return out


def run_launch(
    code: Code,
    start: Start,
    words: bytes,
    blocks: int,
    threads: int,
    shared: int,
    order: Sequence[int] | np.ndarray,
    regions: list[Region],
    find: Callable[[int], Region | None],
) -> None:
    """Run all blocks, one after the other.

    Raises:
        BadAddress: a lane accesses memory that it does not have.
        Diverged: some waves of a block came to a barrier, and others to another one, or to their end, or without all of their lanes.
        UnknownInstruction: an instruction is not known.
    """
    given = arguments(start, words, blocks, threads)
    raw = np.full(max(16, start.lds_bytes + shared), POISON, np.uint8)
    on_chip = Region(0, raw)
    memory = Memory([Region(given.ctypes.data, given), Region(SHARED_APERTURE << 32, raw), *regions], find)
    lds = Memory([on_chip])
    masks = Masks(code.width)
    waves = [Wave(code.width, code.registers, masks) for _ in range(-(-threads // code.width))]
    with np.errstate(all="ignore"):
        for block in order:
            raw[:] = POISON
            for k, wave in enumerate(waves):
                wave.begin(min(code.width, threads - k * code.width), memory, lds, start.scratch_bytes)
                _first_registers(wave, start, k, int(block), given.ctypes.data)
            _run_block(code, waves)


def _first_registers(wave: Wave, start: Start, number: int, block: int, kernarg: int) -> None:
    at = 0
    for what, count in start.user:
        value = kernarg if what == "kernarg" else 0
        for k in range(count):
            wave.S[at + k] = value >> 32 * k & _LOW
        at += count
    at = start.user_count
    for used, value in zip(start.block_ids, (block, 0, 0), strict=True):
        if used:
            wave.S[at] = value
            at += 1
    wave.views["u"][0][:] = wave.numbers + number * wave.width


def _run_block(code: Code, waves: list[Wave]) -> None:
    """All waves up to the next barrier, in turn, until they have ended."""
    while True:
        ends = {code.run(wave) for wave in waves}
        if ends == {END}:
            return
        places = {wave.pc for wave in waves}
        whole = all(wave.exec() == wave.born for wave in waves)
        if ends != {BARRIER} or len(places) > 1 or not whole:
            raise Diverged
