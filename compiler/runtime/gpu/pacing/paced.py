"""A device whose host stays near it: what was launched since the last mark, and what each launch counts."""

from __future__ import annotations

import ctypes
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from ....codegen.abi import CTX_WEIGHT, RECENT, TABLE_LAUNCHES, TABLE_RECENT
from ....ir.threads import new_lock
from ..failing import Failing
from .pace import AHEAD, MARK_US, Pace

if TYPE_CHECKING:
    from ..code import GpuCode
    from ..memory.device_memory import Holdings


class Pacing(Failing):
    """The launches of one program, by the address of their context; graphs by minus their handle.

    Attributes:
        ahead: what launches count together, in microseconds, until the next mark.
    """

    ahead = MARK_US
    stream: int
    _holdings: Holdings
    _closed: bool

    def _begin_pacing(self) -> None:
        self._pace = Pace()
        self._marking = new_lock(self, "_marking")
        self._marked = 0  # launches when the last mark was set
        self._paced: dict[int, GpuCode] = {}

    def weight(self, key: int) -> int:
        """What a launch counts."""
        return self._pace.weight(key)

    def _enter_pace(self, words: np.ndarray, code: GpuCode) -> None:
        """A kernel's context, which belongs to this code from now on. Programs that share it tell one another how long it takes."""
        key = words.ctypes.data
        if self._paced.get(key) is not code:
            self._paced[key] = code
            self._pace.enter(key, code.us)
        words[CTX_WEIGHT] = self._pace.weight(key)

    def _mark(self) -> None:
        """Set a mark, wait for the one before, and learn from the interval that ended with it."""
        with self._marking:
            if self._closed:
                return
            ended = self._holdings.throttle(self._launched())
            if ended is None or (len(ended.keys) >= AHEAD and ended.us <= MARK_US):
                return  # as many launches as there can be, and no longer than it is to be: there is nothing to learn
            counts = Counter(ended.keys)
            del counts[0]
            self._pace.learn(counts, ended.us)
            for key in counts:
                code = self._paced.get(key)
                if code is not None:
                    code.us = self._pace.us(key)
                    ctypes.c_int64.from_address(key + 8 * CTX_WEIGHT).value = self._pace.weight(key)

    def _launched(self) -> list[int]:
        """The keys of what was launched since the last call; of more than the table holds those of the last ones."""
        count = self.launches()
        size = min(count - self._marked, RECENT)
        self._marked = count
        table, at = self.table[TABLE_RECENT : TABLE_RECENT + RECENT], (count - size) % RECENT
        return table[at : at + size].tolist() + table[: max(0, at + size - RECENT)].tolist()

    def launched_outside(self) -> None:
        """The device's memory may have changed by something else than the launch of a kernel."""
        self.table[TABLE_RECENT + self.launches() % RECENT] = 0
        self.table[TABLE_LAUNCHES] += 1

    def native_copy(self) -> tuple[int, int]:
        """See ``Device``."""
        return self.driver.native_copy(self.stream), self.stream

    def copied_natively(self, code: int) -> None:
        """See ``Device``."""
        self.launched_outside()
        if not code:
            return
        self._alive()
        with self._failing():
            raise self.driver.kind.results.error(code, f"a copy on {self.info.name} failed", detail=self.driver.explain())
