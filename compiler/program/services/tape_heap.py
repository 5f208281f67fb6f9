"""The adstack heap of a program, which all its gradients share, within the bytes that ``memory_budget`` leaves for it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from ...errors import OutOfMemory
from ...ir.threads import Living
from ...options import Options
from ...runtime.base import HEAP, Allocation, Device

_LEAVES = "\n  memory_budget="
_DO = "\n  do: "


class HeapUser(Protocol):
    """A gradient whose launches use the heap of its program."""

    def heap_moved(self) -> None:
        """Planes of the heap have other addresses."""
        ...

    def heap_shrank(self) -> None:
        """Planes of the heap may be too small."""
        ...


class TapeHeap:
    """The planes of the heap, each of the size that some gradient asked for.

    Attributes:
        users: the gradients that count on the planes.
    """

    def __init__(
        self,
        device: Device,
        options: Options,
        allocate: Callable[[int, str], Allocation],
        alone: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """``allocate``: as of ``Program``; ``alone``: see ``Admission``."""
        self._device, self._options, self._allocate, self._alone = device, options, allocate, alone
        self._planes: dict[str, Allocation] = {}
        self.users: Living[HeapUser] = Living()

    @property
    def _budget(self) -> int:
        return self._options.memory_budget

    def memory(self, plane: str) -> Allocation | None:
        """A plane; None while there is none."""
        return self._planes.get(plane)

    def address(self, plane: str) -> int:
        """The address of a plane; 0 before its allocation."""
        return self._planes[plane].ptr if plane in self._planes else 0

    def grow(self, planes: dict[str, int]) -> None:
        """Provide planes of at least these bytes. A plane that is too small is replaced by one of exactly the size.

        With a memory budget, planes that other kernels needed larger shrink when there is no room for both.
        """
        room = self.room()
        if room is not None and sum(max(need, self._bytes(plane)) for plane, need in planes.items()) > room:
            self._shrink(planes)
        for plane, need in planes.items():
            have = self._planes.get(plane)
            if need > (have.nbytes if have else 0):
                if have is not None:
                    self._device.free(have)
                    del self._planes[plane]
                try:
                    self._planes[plane] = self._allocate(need, HEAP)
                except OutOfMemory:
                    if have is not None:  # kernels that are ready to launch still count on it
                        self._planes[plane] = self._allocate(have.nbytes, HEAP)
                    raise
                finally:
                    for user in self.users:
                        user.heap_moved()

    def make_room(self, nbytes: int) -> None:
        """Give the planes back where the budget does not leave so many bytes beside them."""
        if self._budget and self._planes and self._device.used_bytes + nbytes > self._budget:
            with self._alone():
                self._shrink({})  # the next gradient is planned into the remaining bytes

    def _shrink(self, planes: dict[str, int]) -> None:
        """Give back the planes that are larger than these bytes, and tell the kernels that counted on them."""
        for plane in [p for p in self._planes if self._bytes(p) > planes.get(p, 0)]:
            self._device.free(self._planes.pop(plane))
        for user in self.users:
            user.heap_shrank()
            user.heap_moved()

    def _bytes(self, plane: str) -> int:
        return self._planes[plane].nbytes if plane in self._planes else 0

    def _beside(self) -> int:
        """Bytes of the device that something else holds."""
        return self._device.used_bytes - sum(map(self._bytes, self._planes))

    # ---- the budget
    def room(self) -> int | None:
        """The bytes that ``memory_budget`` leaves for the heap; None without a budget."""
        return max(0, self._budget - self._beside()) if self._budget else None

    def over_budget(self, error: OutOfMemory, heap: int = 0, more: int = 0) -> OutOfMemory:
        """The error where ``memory_budget`` leaves too little. ``smallest`` is the budget that it asks for.

        Args:
            error: what does not fit.
            heap: bytes of the smallest heap under which all gradients can run.
            more: bytes beside the heap that the program does not hold yet.
        """
        room = self.room() or 0
        usage = {k: v for k, v in sorted(self._device.usage().items()) if k not in (HEAP, "staging")}
        held = ", ".join(f"{k} {v:,}" for k, v in usage.items()) or "nothing"
        smallest = max(self._budget - room, sum(usage.values())) + more + heap  # above the budget, where it leaves nothing
        what = str(error).split(_LEAVES, 1)[0].rsplit(_DO, 1)[0]
        loops = ", or fewer variables in this loop" if heap else ""
        return OutOfMemory(
            f"{what}{_LEAVES}{self._budget} leaves it {room:,}: the program holds {held}{_DO}qd.init(memory_budget={smallest}) or more,"
            f" {'' if loops else 'or '}smaller fields{loops}",
            smallest,
        )

    def refuse_over_budget(self, what: str, nbytes: int = 0) -> None:
        """Refuse what a gradient is about to allocate beside the heap, where ``memory_budget`` does not leave so many bytes.

        Raises:
            OutOfMemory: names the smallest budget.
        """
        if self._budget and self._beside() + nbytes > self._budget:
            raise self.over_budget(OutOfMemory(f"{what}, and memory_budget leaves too little"), more=nbytes)
