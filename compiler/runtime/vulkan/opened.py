"""A device that this process has opened: once, for all programs on it, and until the process ends."""

from __future__ import annotations

import ctypes
import itertools
import sys
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ...errors import DeviceError
from ...ir.threads import new_lock
from ..gpu.commands.link import make_recorder
from ..gpu.commands.own_kernels import texts
from ..gpu.commands.stream import SERVE_ADDRESS, ArgumentRoom, CommandDevice, after_all
from ..gpu.driver import Texts
from .buffers import Buffers
from .code.build import build
from .code.pipelines import FunctionRecord, Pipelines, ShaderModule
from .cut_loops import cut_word
from .encoder import ENCODER
from .instance import PhysicalDevice, enabled, instance
from .kind import features_of
from .library import Structures
from .probe import probe
from .results import OUT_OF_DEVICE_MEMORY
from .stream import VulkanStream, VulkanStreams

MOST_QUEUES = 4
"""Streams of more programs share queues, of which each takes memory."""


class OpenDevice(CommandDevice[VulkanStream]):
    """A device with its queues, memory and code.

    Attributes:
        physical: the device.
        buffers, pipelines: its memory, and its code.
        features: what code may use.
        probed: how it computes.
        cut: tells that a loop was ended, see ``cut_loops``; None: nothing does.
    """

    def __init__(self, physical: PhysicalDevice) -> None:
        self.api, self.physical = instance().api, physical
        self.features = features_of(physical)
        self.cut = cut_word() if self.features.cuts_loops else None
        self.features = replace(self.features, cuts_loops=self.cut is not None)
        self._lock = new_lock(self, "_lock")
        count = min(physical.queues, MOST_QUEUES)
        self.handle = self._open(count)
        self._queues = [self._queue(k) for k in range(count)]
        self._turn = 0
        self.buffers = Buffers(self.api, self.handle, physical)
        self.pipelines = Pipelines(self.api, self.handle, physical)
        super().__init__(make_recorder(ENCODER, self._address, SERVE_ADDRESS))
        self._numbers = itertools.count(1)
        self._modules: dict[int, ShaderModule] = {}
        self._functions: dict[int, FunctionRecord] = {}
        self._shared = VulkanStreams(self.api, self.handle, self.buffers, physical.family, self._make_pipeline)
        self.probed = probe(physical, self._run)
        self.features = replace(self.features, fused=self.probed.fused)

    def _open(self, queues: int) -> Any:
        api, new = self.api, Structures(self.api)
        queue = new(
            "VkDeviceQueueCreateInfo",
            queueFamilyIndex=self.physical.family,
            queueCount=queues,
            pQueuePriorities=new.array("float", [1.0] * queues),
        )
        extensions = sorted(self.physical.extensions)
        info = new(
            "VkDeviceCreateInfo",
            pNext=enabled(new, self.physical),
            queueCreateInfoCount=1,
            pQueueCreateInfos=queue,
            enabledExtensionCount=len(extensions),
            ppEnabledExtensionNames=new.texts(extensions),
        )
        made = api.ffi.new("VkDevice*")
        code = api.lib.vkCreateDevice(self.physical.handle, info, api.ffi.NULL, made)
        api.check_memory(code, f"opening Vulkan device {self.physical.index} failed")
        return made[0]

    def _queue(self, number: int) -> ctypes.Array[ctypes.c_uint64]:
        """What machine code knows a queue by: a lock, and its handle."""
        made = self.api.ffi.new("VkQueue*")
        self.api.lib.vkGetDeviceQueue(self.handle, self.physical.family, number, made)
        return (ctypes.c_uint64 * 2)(0, self.api.number(made[0]))

    def _address(self, name: str) -> int:
        return self.api.number(self.api.lib.vkGetDeviceProcAddr(self.handle, name.encode()))

    def make_room(self, nbytes: int) -> ArgumentRoom:
        """In memory of the device, if the host sees that."""
        block = self.buffers.make(nbytes, "words")
        return ArgumentRoom(block.host, block.address, 0, partial(self.buffers.destroy, block))

    # ---- streams
    def make_stream(self, ordered: bool) -> VulkanStream:
        """A new stream, in a queue of its own as long as there are some."""
        with self._lock:
            queue = self._queues[self._turn % len(self._queues)]
            self._turn += 1
        return VulkanStream(self, self._shared, ctypes.addressof(queue), ordered)

    # ---- code
    def load(self, data: bytes, name: str) -> int:
        """Load an image. ``name``: the kernel."""
        module, number = self.pipelines.load(data, name), next(self._numbers)
        self._modules[number] = module
        return number

    def function(self, module: int, name: str) -> FunctionRecord:
        """A function of a module."""
        found = self.pipelines.function(self._modules[module], name)
        self._functions[found.handle] = found
        return found

    def unload(self, module: int) -> None:
        """Forget a module. It stays until what is in the streams now has run."""
        gone = self._modules.pop(module)

        def unload() -> None:
            for function in gone.functions.values():
                self._functions.pop(function.handle, None)
            self.pipelines.unload(gone)

        after_all(self.streams, unload)

    def load_helper(self, name: str) -> int:
        return self.function(self.load(build(texts(name), self.features, True).data, name), name).handle

    def _run(self, given: Texts, data: np.ndarray) -> np.ndarray:
        """See ``probe.Run``."""
        image = build(given, self.features, False)
        module = self.load(image.data, given.name)
        function, stream = self.function(module, given.entry), self.make_stream(False)
        block = self.buffers.make(data.nbytes, "host")
        try:
            view = np.ctypeslib.as_array((ctypes.c_uint64 * data.size).from_address(block.host))
            view[:] = data
            stream.put(f"launching `{given.name}` failed", function.handle, 1, function.facts.threads, (block.address,))
            stream.synchronize()
            return view.copy()
        finally:
            self.buffers.destroy(block)
            stream.close()
            self.unload(module)

    # ---- pipelines
    def _make_pipeline(self, function: int, block: int, tapes: int) -> None:
        self.make_pipeline(self._functions[function], block, tapes)

    def make_pipeline(self, function: FunctionRecord, block: int, tapes: int) -> None:
        """See ``Pipelines.make``. Where the device is full, freed memory goes back to it first."""
        with self._making:
            try:
                self.pipelines.make(function, block, tapes)
            except DeviceError as e:
                if e.code != OUT_OF_DEVICE_MEMORY:
                    raise
                for stream in self.streams:
                    stream.give_back(0)
                self.retire()
                self.pipelines.make(function, block, tapes)


_opened: dict[int, OpenDevice] = {}
_lock = new_lock(sys.modules[__name__], "_lock")


def open_device(physical: PhysicalDevice) -> OpenDevice:
    """A device, opened if it is not open yet.

    Raises:
        DeviceError: the driver refuses it, or it computes something else than code relies on.
    """
    with _lock:
        if physical.index not in _opened:
            _opened[physical.index] = OpenDevice(physical)
        return _opened[physical.index]
