"""Runs the code of a wave on the processor: 32 or 64 threads, a callback for each thing that the lanes of a wave do together.

Which lanes are "there" at a point is decided at random among those that have come, so that every division of a warp is met that a GPU
may make. A lane of a mask that does not come, or that comes to something else, is an error.
"""

from __future__ import annotations

import ctypes as C
import random
import threading
from dataclasses import replace

import numpy as np
from grid_harness import FakeDriver, GridCompiled

from qdrun.compiler.ir.types import u32, u64
from qdrun.tests.devices.processor.hardware import (
    REG_BLOCK,
    REG_BLOCKS,
    REG_THREADS,
    REG_WORDS,
    EmulatedHardware,
    emulated_target,
)

_MASK, _WORD = C.c_uint64, C.c_uint32  # a mask of 32 lanes is widened
_LANES = C.CFUNCTYPE(_MASK, C.c_void_p, _WORD)
_BALLOT = C.CFUNCTYPE(_MASK, C.c_void_p, _WORD, _MASK, _WORD)
_SHUFFLE = C.CFUNCTYPE(_WORD, C.c_void_p, _WORD, _MASK, _WORD, _WORD)
_FUNCTION = C.CFUNCTYPE(None, C.c_void_p, C.c_void_p)


class WarpHardware(EmulatedHardware):
    """Each block of one thread is a lane of one warp. Every call has a number: lanes meet at one and the same."""

    def __init__(self) -> None:
        self.sites = 0

    def _call(self, e, ty, name, *args):
        self.sites += 1
        e.module.declare(name, f"declare {ty} @{name}(ptr, i32{''.join(', ' + a.split()[0] for a in args)})")
        given = "".join(f", {a}" for a in args)
        return e.t(f"call {ty} @{name}(ptr %regs, i32 {self.sites}{given}) convergent nomerge")

    def _narrow(self, e, mask):
        return e.convert(mask, u64, e.target.mask, False)

    def _wide(self, e, mask):
        return f"i64 {e.convert(mask, u32 if e.target.wave == 32 else u64, u64, False)}"

    def lanes(self, e):
        return self._narrow(e, self._call(e, "i64", "test_lanes"))

    def lanes_below(self, e):
        ty = e.ty(e.target.mask, False)
        number = e.hoist("lane", f"zext i32 {self.block_number(e)} to i64") if ty == "i64" else self.block_number(e)
        return e.hoist("below", f"sub {ty} {e.hoist('one', f'shl {ty} 1, {number}')}, 1")

    def ballot(self, e, mask, flag):
        flag = e.t(f"zext i1 {flag} to i32")
        return self._narrow(e, self._call(e, "i64", "test_ballot", self._wide(e, mask), f"i32 {flag}"))

    def from_lane(self, e, mask, value, lane):
        return self._call(e, "i32", "test_shuffle", self._wide(e, mask), f"i32 {value}", f"i32 {lane}")


class Warp:
    """The meeting points. ``whole``: lanes that wait at one place are always taken together."""

    def __init__(self, seed: int, lanes: int, whole: bool) -> None:
        self.random, self.whole = random.Random(seed), whole
        self.change = threading.Condition()
        self.running, self.waiting = set(range(lanes)), {}  # by lane: what it waits for
        self.answers, self.masks, self.faults = {}, [], []

    def arrive(self, regs: int, what: tuple) -> int:
        """Wait with the others, and get the answer."""
        lane = C.c_int64.from_address(regs + 8 * REG_BLOCK).value
        with self.change:
            self.waiting[lane] = what
            self._serve()
            while lane not in self.answers:
                if not self.change.wait(20) or self.faults:
                    self.faults.append(f"lane {lane} waits for {what}")
                    self.change.notify_all()
                    return 0
            return self.answers.pop(lane)

    def leave(self, lane: int) -> None:
        """A lane has ended."""
        with self.change:
            self.running.discard(lane)
            self._serve()

    def _serve(self) -> None:
        if set(self.waiting) | set(self.answers) != self.running or self.answers:
            return  # some still run
        for lane, (kind, site, *args) in list(self.waiting.items()):
            if kind != "lanes" and lane in self.waiting:
                group = [k for k in range(64) if args[0] >> k & 1]
                if all(self.waiting.get(k, ())[:3] == (kind, site, args[0]) for k in group):
                    self._together(kind, group)
        if not self.answers:
            self._gather()
        if not self.answers and self.waiting:
            self.faults.append(f"nobody can go on: {self.waiting}")
        self.change.notify_all()

    def _together(self, kind: str, group: list[int]) -> None:
        asked = {k: self.waiting.pop(k)[3:] for k in group}
        for k, args in asked.items():
            if kind == "ballot":
                self.answers[k] = sum(1 << j for j in group if asked[j][0])
                continue
            if args[1] not in asked:
                self.faults.append(f"lane {k} asks lane {args[1]}, which is not one of {group}")
            self.answers[k] = asked.get(args[1], (0,))[0]

    def _gather(self) -> None:
        """Some of the lanes that come to one atomic are there together."""
        sites = sorted({what[1] for what in self.waiting.values() if what[0] == "lanes"})
        if not sites:
            return
        site = self.random.choice(sites)
        there = sorted(k for k, what in self.waiting.items() if what == ("lanes", site))
        if not self.whole:
            there = self.random.sample(there, self.random.randint(1, len(there)))
        mask = sum(1 << k for k in there)
        self.masks.append(mask)
        for k in there:
            del self.waiting[k]
            self.answers[k] = mask


class WarpDriver(FakeDriver):
    """Launches the blocks of a grid at once, each in a thread: the lanes of one warp."""

    def __init__(self, seed: int, whole: bool) -> None:
        super().__init__()
        self.seed, self.whole, self.masks = seed, whole, []
        self.warp = Warp(0, 0, whole)
        self.calls = {
            "test_lanes": _LANES(lambda regs, site: self.warp.arrive(regs, ("lanes", site))),
            "test_ballot": _BALLOT(lambda regs, site, *args: self.warp.arrive(regs, ("ballot", site, *args))),
            "test_shuffle": _SHUFFLE(lambda regs, site, *args: self.warp.arrive(regs, ("shuffle", site, *args))),
        }
        self.device_imports = {name: C.cast(f, C.c_void_p).value or 0 for name, f in self.calls.items()}

    def run(self, function: int, blocks: int, words: np.ndarray, on_chip: np.ndarray) -> None:
        self.warp = warp = Warp(self.seed, blocks, self.whole)

        def lane(number: int) -> None:
            regs = np.zeros(REG_WORDS, np.int64)
            regs[REG_BLOCK], regs[REG_BLOCKS], regs[REG_THREADS] = number, blocks, 1
            _FUNCTION(function)(regs.ctypes.data, words.ctypes.data)
            warp.leave(number)

        threads = [threading.Thread(target=lane, args=(k,)) for k in range(blocks)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not warp.faults, warp.faults[0]
        self.masks += warp.masks


def warp_of(kernel, seed: int = 0, whole: bool = False, wave: int = 32) -> GridCompiled:
    """A kernel that one wave of at most so many lanes runs; ``driver.masks`` are those of the lanes that were there at each atomic."""
    driver = WarpDriver(seed, whole)
    target = replace(emulated_target(), hardware=WarpHardware(), wave=wave)
    return GridCompiled(kernel, processors=1, resident=wave, target=target, driver=driver, imports=driver.device_imports)
