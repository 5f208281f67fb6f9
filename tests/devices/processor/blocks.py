"""Blocks of more than one thread on the emulated device: a thread of the processor for each, and barriers that detect missing threads."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from .arena import POISON
from .hardware import GRID_SITE, REG_WORDS

SHARED_BYTES = 48 << 10
RUN_FREE = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64)  # other threads run meanwhile
WAVE = 32
_BARRIER = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
_EXCHANGE = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_void_p, ctypes.c_int64, *[ctypes.c_uint32] * 3)
_END = -1
PATIENCE_S = 60.0
"""How long the lanes of a mask are waited for."""
_teams: dict[int, Team] = {}


class Diverged(Exception):
    """The threads of a block did not come to the same barrier."""


class Team:
    """The threads of one block after the other, with one memory. ``grid``: those of all blocks, where blocks run at the same time."""

    def __init__(self, threads: int, memory: np.ndarray, grid: Team | None = None) -> None:
        self.threads, self.memory, self.grid = threads, memory, grid
        self.diverged = False
        self._lock = threading.Condition()
        self._sites: list[int] = []  # where the threads that have arrived stand
        self._round = 0
        self._given: dict[
            tuple[int, int, int], dict[int, int]
        ] = {}  # by wave, site and mask: the values of the lanes that have come

    def meet(self, site: int) -> None:
        """Wait until all threads have arrived. ``site``: the barrier's number, or ``_END``. After a divergence no thread waits."""
        if self.grid is not None and site >= GRID_SITE:
            self.grid.meet(site)
            return
        with self._lock:
            if self.diverged:
                return
            self._sites.append(site)
            if len(self._sites) < self.threads:
                now = self._round
                self._lock.wait_for(lambda: self._round != now or self.diverged)
                return
            self.diverged = len(set(self._sites)) > 1
            self._sites.clear()
            self._round += 1
            if site == _END:
                self.memory[:] = POISON  # nothing is left for the next block
            self._lock.notify_all()

    def exchange(self, thread: int, site: int, mask: int, value: int, lane: int) -> int:
        """Wait until all lanes of a mask have come to an exchange; the value of one of them."""
        wave, own = divmod(thread, WAVE)
        with self._lock:
            given = self._given.setdefault((wave, site, mask), {})
            given[own] = value
            if len(given) == mask.bit_count():
                del self._given[wave, site, mask]
                self._lock.notify_all()
            elif not self._lock.wait_for(lambda: self.diverged or len(given) == mask.bit_count(), PATIENCE_S):
                self.diverged = True
                self._lock.notify_all()
            self.diverged |= not mask >> own & 1 or lane not in given
            return given.get(lane, 0)


@_EXCHANGE
def _exchange(regs: int, site: int, mask: int, value: int, lane: int) -> int:
    """See ``_barrier``."""
    words = (ctypes.c_int64 * REG_WORDS).from_address(regs)
    return _teams[words[7]].exchange(words[0], site, mask, value, lane)


@_BARRIER
def _barrier(regs: int, site: int) -> None:
    """The entry of device code: the registers identify the calling thread."""
    _teams[(ctypes.c_int64 * REG_WORDS).from_address(regs)[7]].meet(site)


@cache
def barrier_address() -> int:
    """The address of the function that device code calls at a barrier."""
    return ctypes.cast(_barrier, ctypes.c_void_p).value or 0


def run_blocks(run: Callable[..., Any], words: int, order: Sequence[int] | np.ndarray, threads: int, shared: int) -> None:
    """Run blocks of several threads.

    Args:
        run: the native loop over blocks, which lets other threads of Python run.
        words: the address of the launch's parameters.
        order: the blocks in the order in which they run.
        threads: of a block.
        shared: bytes of memory that the launch asks for.

    Raises:
        Diverged: some threads of a block came to a barrier, and others to another one or to the end.
    """
    team = Team(threads, _new_memory(shared))
    _teams[id(team)] = team
    blocks = np.ascontiguousarray(order, np.int64)

    def work(number: int) -> None:
        regs = _registers(team, number, len(blocks), shared)
        for k in range(len(blocks)):
            run(ctypes.addressof(regs), words, blocks.ctypes.data + 8 * k, 1)
            team.meet(_END)
            if team.diverged:
                return

    try:
        _run_threads([partial(work, n) for n in range(threads)])
    finally:
        del _teams[id(team)]
    if team.diverged:
        raise Diverged


def run_together(run: Callable[..., Any], words: int, order: Sequence[int] | np.ndarray, threads: int) -> None:
    """``run_blocks`` of blocks that wait for each other: all of them run at the same time, each with a memory of its own.

    Raises:
        Diverged: some threads of a block came to a barrier, and others to another one or to the end, or so did blocks.
    """
    blocks = np.ascontiguousarray(order, np.int64)
    grid = Team(threads * len(blocks), np.empty(0, np.uint8))
    teams = [Team(threads, _new_memory(0), grid) for _ in blocks]
    _teams.update((id(team), team) for team in teams)

    def work(place: int, number: int) -> None:
        team = teams[place]
        regs = _registers(team, number, len(blocks), 0)
        run(ctypes.addressof(regs), words, blocks.ctypes.data + 8 * place, 1)
        team.meet(_END)
        grid.meet(_END)

    try:
        _run_threads([partial(work, k, n) for k in range(len(blocks)) for n in range(threads)])
    finally:
        for team in teams:
            del _teams[id(team)]
    if grid.diverged or any(team.diverged for team in teams):
        raise Diverged


def _new_memory(shared: int) -> np.ndarray:
    return np.full(shared + SHARED_BYTES + 64, POISON, np.uint8)


def _registers(team: Team, number: int, blocks: int, shared: int) -> Any:
    """The special registers of a thread."""
    base = team.memory.ctypes.data + -team.memory.ctypes.data % 16
    arrays = base + -(-shared // 16) * 16
    exchange = ctypes.cast(_exchange, ctypes.c_void_p).value or 0
    return (ctypes.c_int64 * REG_WORDS)(number, 0, blocks, team.threads, base, arrays, barrier_address(), id(team), exchange)


def _run_threads(work: list[Callable[[], None]]) -> None:
    workers = [threading.Thread(target=one, daemon=True) for one in work]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
