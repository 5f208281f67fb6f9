"""Vulkan's streams: command buffers, a timeline semaphore that says how far the device is, and memory that was freed in order."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..gpu.commands import words as w
from ..gpu.commands.stream import WORK_FAILED, CommandDevice, CommandStream
from . import encoder
from .buffers import Buffers, DeviceBuffer
from .library import Structures, VulkanLoader
from .results import DEVICE_LOST, NOT_PERMITTED, RESULTS, UNKNOWN

KEEP_BYTES = 64 << 20
"""Freed bytes that a stream keeps for its next allocations. Small: other processes pack their memory beside ours."""

_FOREVER = (1 << 64) - 1
_COMPUTE_AND_TRANSFER = (0x40 | 0x1000, 0x20 | 0x40 | 0x800 | 0x1000)  # writes, and what comes after them
_TO_HOST = (0x40 | 0x1000, 0x2000)
_ONCE = 1  # VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT
_RESETS = 2  # VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT


@dataclass(frozen=True, slots=True)
class VulkanStreams:
    """What the streams of a device have in common: the device, its memory, its queue family.

    ``make_pipeline``: makes the pipeline of a function, given its handle, for launches with so many threads of a block and on-chip bytes.
    """

    api: VulkanLoader
    device: Any
    buffers: Buffers
    family: int
    make_pipeline: Callable[[int, int, int], None]


class VulkanStream(CommandStream):
    """Commands that run in order.

    Attributes:
        ordered: the default stream waits for it.
    """

    results, not_in_graph, unknown = RESULTS, NOT_PERMITTED, UNKNOWN

    def __init__(self, device: CommandDevice[Any], shared: VulkanStreams, queue: int, ordered: bool) -> None:
        super().__init__(device)
        self.shared, self.ordered = shared, ordered
        self._kept = Structures(shared.api)  # what the words point to
        self._freed: deque[tuple[DeviceBuffer, int]] = deque()  # with the submission after which it is not used any more
        self._semaphore = self._make_semaphore()
        self._pool = self._make_commands()
        self._fill_words(queue)
        self.open()

    # ---- making
    def _make_semaphore(self) -> Any:
        api, made = self.shared.api, self.shared.api.ffi.new("VkSemaphore*")
        new = Structures(api)
        kind = new("VkSemaphoreTypeCreateInfo", semaphoreType=api.constant("SEMAPHORE_TYPE_TIMELINE"))
        info = new("VkSemaphoreCreateInfo", pNext=kind)
        api.check_memory(api.lib.vkCreateSemaphore(self.shared.device, info, api.ffi.NULL, made), "making a stream failed")
        return made[0]

    def _make_commands(self) -> Any:
        """The pool of the command buffers, which become the slots."""
        api, device, new = self.shared.api, self.shared.device, Structures(self.shared.api)
        made = api.ffi.new("VkCommandPool*")
        info = new("VkCommandPoolCreateInfo", flags=_RESETS, queueFamilyIndex=self.shared.family)
        api.check_memory(api.lib.vkCreateCommandPool(device, info, api.ffi.NULL, made), "making a stream failed")
        wanted = new("VkCommandBufferAllocateInfo", commandPool=made[0], level=0, commandBufferCount=w.SLOT_COUNT)
        buffers = new.array("VkCommandBuffer", w.SLOT_COUNT)
        api.check_memory(api.lib.vkAllocateCommandBuffers(device, wanted, buffers), "making a stream failed")
        self._slots[:] = [api.number(b) for b in buffers]
        return made[0]

    def _fill_words(self, queue: int) -> None:
        api, new = self.shared.api, self._kept
        values, buffers = new.array("uint64_t", 1), new.array("VkCommandBuffer", 1)
        semaphores = new.array("VkSemaphore", [self._semaphore])
        timeline = new("VkTimelineSemaphoreSubmitInfo", signalSemaphoreValueCount=1, pSignalSemaphoreValues=values)
        submit = new(
            "VkSubmitInfo",
            pNext=timeline,
            commandBufferCount=1,
            pCommandBuffers=buffers,
            signalSemaphoreCount=1,
            pSignalSemaphores=semaphores,
        )
        barrier, ending = (
            new("VkMemoryBarrier", srcAccessMask=before, dstAccessMask=after)
            for before, after in (_COMPUTE_AND_TRANSFER, _TO_HOST)
        )
        begin = new("VkCommandBufferBeginInfo", flags=_ONCE)
        pointers = {
            encoder.SEMAPHORE: self._semaphore,
            encoder.DEVICE: self.shared.device,
            encoder.SUBMIT: submit,
            encoder.VALUE: values,
            encoder.BEGIN: begin,
            encoder.COMMANDS: buffers,
            encoder.BARRIER: barrier,
            encoder.ENDING: ending,
        }
        for word, pointer in pointers.items():
            self._words[word] = api.number(pointer)
        self._words[encoder.QUEUE] = queue

    # ---- see ``CommandStream``
    def await_submission(self, value: int) -> None:
        api, new = self.shared.api, Structures(self.shared.api)
        info = new(
            "VkSemaphoreWaitInfo",
            semaphoreCount=1,
            pSemaphores=new.array("VkSemaphore", [self._semaphore]),
            pValues=new.array("uint64_t", [value]),
        )
        code = -api.lib.vkWaitSemaphores(self.shared.device, info, _FOREVER)
        if code == DEVICE_LOST:
            self._words[w.FAILED] = code  # what is put into the stream later is refused
        self.check(max(0, code), WORK_FAILED)

    def release(self) -> None:
        shared, null = self.shared, self.shared.api.ffi.NULL
        while self._freed:
            shared.buffers.destroy(self._freed.popleft()[0])
        shared.api.lib.vkDestroyCommandPool(shared.device, self._pool, null)
        shared.api.lib.vkDestroySemaphore(shared.device, self._semaphore, null)

    def serve(self, what: int, row: ctypes.Array[ctypes.c_uint64], arguments: int) -> None:
        if what == w.SERVE_ENCODER:
            self.shared.make_pipeline(row[w.ROW_FUNCTION], row[w.ROW_THREADS], row[w.ROW_SHARED])
        else:
            super().serve(what, row, arguments)

    # ---- memory
    @property
    def kept_bytes(self) -> int:
        """Bytes that were freed and are still here."""
        return sum(block.nbytes for block, _ in list(self._freed))

    def free(self, block: DeviceBuffer) -> None:
        """Take memory back. The collector may call this in the middle of anything: nothing else is done."""
        self._freed.append((block, self.pending()))

    def reuse(self, nbytes: int) -> DeviceBuffer | None:
        """A freed block of this size: what is put into the stream later may have it at once."""
        for item in reversed(list(self._freed)):
            if item[0].nbytes == nbytes:
                try:
                    self._freed.remove(item)
                except ValueError:
                    continue  # another thread was faster
                return item[0]
        return None

    def give_back(self, keep: int = KEEP_BYTES) -> None:
        """Give freed memory back to the device that it does not use any more, but for ``keep`` bytes."""
        excess = self.kept_bytes - keep
        done = self.done() if excess > 0 else 0
        for item in list(self._freed):
            if excess <= 0 or item[1] > done:
                return
            try:
                self._freed.remove(item)
            except ValueError:
                continue
            self.shared.buffers.destroy(item[0])
            excess -= item[0].nbytes
