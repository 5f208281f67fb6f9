"""A stream: command buffers that take turns, a timeline semaphore that says how far the device is, and memory that was freed in order."""

from __future__ import annotations

import ctypes
import itertools
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from ...ir.threads import new_lock
from .buffers import Buffers, DeviceBuffer
from .library import Structures, VulkanLoader
from .recorder import words
from .recorder.link import RecorderLibrary
from .results import DEVICE_LOST, NOT_PERMITTED, device_error

KEEP_BYTES = 64 << 20
"""Freed bytes that a stream keeps for its next allocations. Small: other processes pack their memory beside ours."""

_FOREVER = (1 << 64) - 1
_COMPUTE_AND_TRANSFER = (0x40 | 0x1000, 0x20 | 0x40 | 0x800 | 0x1000)  # writes, and what comes after them
_TO_HOST = (0x40 | 0x1000, 0x2000)
_ONCE, _AT_ONCE = 1, 4  # VK_COMMAND_BUFFER_USAGE_..: ONE_TIME_SUBMIT, SIMULTANEOUS_USE
_RESETS = 2  # VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT


@dataclass(frozen=True, slots=True)
class VulkanStreams:
    """What the streams of a device have in common: the device and its recorder, memory, queue family; the function that fills."""

    api: VulkanLoader
    device: Any
    recorder: RecorderLibrary
    buffers: Buffers
    family: int
    fill: int


@dataclass(eq=False, slots=True)
class Secondary:
    """Recorded commands: their pool, the command buffer, how many they are, and room for the words of launches."""

    pool: Any
    buffer: int
    commands: int = 0
    room: list[DeviceBuffer] = field(default_factory=list)


class VulkanStream:
    """Commands that run in order.

    Attributes:
        handle: what machine code knows the stream by: the address of its words.
        ordered: the default stream waits for it.
        waits: how often the host has waited for it.
        capture: what is being recorded, instead of running.
    """

    def __init__(self, shared: VulkanStreams, queue: int, ordered: bool) -> None:
        self.shared, self.ordered, self.waits = shared, ordered, 0
        self.capture: Secondary | None = None
        self.lock = new_lock(self, "lock")
        self._kept = Structures(shared.api)  # what the words point to
        self._words = (ctypes.c_uint64 * words.STREAM_WORDS)()
        self._slots = (ctypes.c_uint64 * (words.SLOT_WORDS_COUNT * words.SLOT_COUNT))()
        self._outer = (ctypes.c_uint64 * words.SAVED)()
        self._room: DeviceBuffer | None = None
        self._freed: deque[tuple[DeviceBuffer, int]] = deque()  # with the value after which it is not used any more
        self.handle = ctypes.addressof(self._words)
        self._semaphore = self._make_semaphore()
        self._pool, buffers = self._make_commands(words.SLOT_COUNT, 0)
        for k, buffer in enumerate(buffers):
            self._slots[words.SLOT_WORDS_COUNT * k + words.SLOT_COMMANDS] = buffer
        self._fill_words(queue)

    # ---- making
    def _make_semaphore(self) -> Any:
        api, made = self.shared.api, self.shared.api.ffi.new("VkSemaphore*")
        new = Structures(api)
        kind = new("VkSemaphoreTypeCreateInfo", semaphoreType=api.constant("SEMAPHORE_TYPE_TIMELINE"))
        info = new("VkSemaphoreCreateInfo", pNext=kind)
        api.check_memory(api.lib.vkCreateSemaphore(self.shared.device, info, api.ffi.NULL, made), "making a stream failed")
        return made[0]

    def _make_commands(self, count: int, level: int) -> tuple[Any, list[int]]:
        """A pool, and command buffers of it. ``level``: 0 if they are submitted, 1 if others execute them."""
        api, device, new = self.shared.api, self.shared.device, Structures(self.shared.api)
        made = api.ffi.new("VkCommandPool*")
        info = new("VkCommandPoolCreateInfo", flags=_RESETS, queueFamilyIndex=self.shared.family)
        api.check_memory(api.lib.vkCreateCommandPool(device, info, api.ffi.NULL, made), "making a stream failed")
        wanted = new("VkCommandBufferAllocateInfo", commandPool=made[0], level=level, commandBufferCount=count)
        buffers = new.array("VkCommandBuffer", count)
        api.check_memory(api.lib.vkAllocateCommandBuffers(device, wanted, buffers), "making a stream failed")
        return made[0], [api.number(b) for b in buffers]

    def _fill_words(self, queue: int) -> None:
        api, new, shared = self.shared.api, self._kept, self.shared
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
            words.SEMAPHORE: self._semaphore,
            words.DEVICE: shared.device,
            words.SUBMIT: submit,
            words.VALUE: values,
            words.BEGIN: begin,
            words.COMMANDS: buffers,
            words.BARRIER: barrier,
            words.ENDING: ending,
        }
        for word, pointer in pointers.items():
            self._words[word] = api.number(pointer)
        self._words[words.QUEUE], self._words[words.FILL] = queue, shared.fill
        self._words[words.SLOTS] = ctypes.addressof(self._slots)

    def close(self) -> None:
        """Give everything back; nothing of the stream may be running."""
        shared, lib, null = self.shared, self.shared.api.lib, self.shared.api.ffi.NULL
        while self._freed:
            shared.buffers.destroy(self._freed.popleft()[0])
        if self._room is not None:
            shared.buffers.destroy(self._room)
        lib.vkDestroyCommandPool(shared.device, self._pool, null)
        lib.vkDestroySemaphore(shared.device, self._semaphore, null)

    # ---- running
    def pending(self) -> int:
        """The value of the semaphore when all that is in the stream now has run."""
        return self.shared.recorder.pending(self.handle)

    def submit(self) -> None:
        """Hand to the device what is recorded.

        Raises:
            DeviceError: the device has failed, or a graph is being recorded.
        """
        self.check(self.shared.recorder.submit(self.handle), "work on the device failed")

    def check(self, code: int, doing: str) -> None:
        """Raise what a function of the recorder has returned, if that is a failure."""
        if code:
            raise device_error(code, doing)

    def done(self) -> int:
        """The value of the semaphore now."""
        api, value = self.shared.api, self.shared.api.ffi.new("uint64_t*")
        self._noted(api.lib.vkGetSemaphoreCounterValue(self.shared.device, self._semaphore, value))
        return int(value[0])

    def _noted(self, code: int) -> None:
        """Raise a failure. The loss of the device is noted: what is put into the stream later is refused."""
        if code == -DEVICE_LOST:
            self._words[words.FAILED] = DEVICE_LOST
        self.shared.api.check(code, "work on the device failed")

    def wait(self, value: int) -> None:
        """Wait until the semaphore has a value, which was submitted. Other threads run meanwhile.

        Raises:
            DeviceError: the device has failed.
        """
        if self._words[words.DONE] >= value:
            return
        api, new = self.shared.api, Structures(self.shared.api)
        info = new(
            "VkSemaphoreWaitInfo",
            semaphoreCount=1,
            pSemaphores=new.array("VkSemaphore", [self._semaphore]),
            pValues=new.array("uint64_t", [value]),
        )
        self.waits += 1
        self._noted(api.lib.vkWaitSemaphores(self.shared.device, info, _FOREVER))

    def synchronize(self) -> None:
        """Run all that is in the stream, and wait for its end."""
        value = self.pending()
        self.submit()
        self.wait(value)

    def wait_for_slot(self) -> None:
        """Wait for the command buffer whose turn is next, which is the one that was submitted longest ago."""
        values = [self._slots[words.SLOT_WORDS_COUNT * k + words.SLOT_VALUE] for k in range(words.SLOT_COUNT)]
        self.wait(min(values))

    def make_room(self) -> None:
        """Make room for words of launches: of all command buffers, or more of what is being recorded."""
        shared = self.shared
        with self.lock:
            if self.capture is not None:
                room = shared.buffers.make(words.CHUNK, "words")
                self.capture.room.append(room)
            elif self._room is None:
                room = self._room = shared.buffers.make(words.CHUNK * words.SLOT_COUNT, "words")
            else:
                return
            shared.recorder.room(self.handle, room.host, room.address)

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

    def settle(self, keep: int = KEEP_BYTES) -> None:
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

    # ---- graphs
    def begin_capture(self) -> None:
        """From now on commands are recorded and do not run."""
        api, new = self.shared.api, Structures(self.shared.api)
        if self.capture is not None:
            raise device_error(NOT_PERMITTED, "recording a graph failed", detail="one is being recorded")
        pool, (buffer,) = self._make_commands(1, 1)
        inheritance = new("VkCommandBufferInheritanceInfo")
        info = new("VkCommandBufferBeginInfo", flags=_AT_ONCE, pInheritanceInfo=inheritance)
        handle = api.ffi.cast("VkCommandBuffer", buffer)
        api.check_memory(api.lib.vkBeginCommandBuffer(handle, info), "recording a graph failed")
        for word in range(words.SAVED):
            self._outer[word] = 0
        self._outer[words.BUFFER], self._outer[words.CAPTURE] = buffer, 1
        self.capture = Secondary(pool, buffer)
        self.shared.recorder.exchange(self.handle, ctypes.addressof(self._outer))

    def end_capture(self) -> Secondary:
        """The commands that were recorded."""
        api, graph = self.shared.api, self.capture
        if graph is None:
            raise device_error(NOT_PERMITTED, "recording a graph failed", detail="none is being recorded")
        self.shared.recorder.exchange(self.handle, ctypes.addressof(self._outer))
        self.capture, graph.commands = None, int(self._outer[words.COUNT])
        try:
            api.check_memory(
                api.lib.vkEndCommandBuffer(api.ffi.cast("VkCommandBuffer", graph.buffer)), "recording a graph failed"
            )
        except BaseException:
            drop(graph, self.shared)
            raise
        return graph


def drop(graph: Secondary, shared: VulkanStreams) -> None:
    """Destroy a graph that does not run."""
    shared.api.lib.vkDestroyCommandPool(shared.device, graph.pool, shared.api.ffi.NULL)
    for block in graph.room:
        shared.buffers.destroy(block)


numbers = itertools.count(0x1000, 16)
"""Handles of what has no address: modules, events, graphs."""
