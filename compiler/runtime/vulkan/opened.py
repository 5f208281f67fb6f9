"""A device that this process has opened: once, for all programs on it, and until the process ends."""

from __future__ import annotations

import _thread
import ctypes
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ...errors import DeviceError
from ...ir.threads import new_lock
from ..gpu.driver import Texts
from .buffers import Buffers
from .code.build import build
from .code.own_kernels import FILL_4, texts
from .code.pipelines import FunctionRecord, Pipelines, ShaderModule
from .cut_loops import cut_word
from .instance import PhysicalDevice, enabled, instance
from .kind import features_of
from .library import Structures
from .probe import probe
from .recorder import words
from .recorder.link import SERVE, make_recorder
from .results import OUT_OF_DEVICE_MEMORY, UNKNOWN
from .stream import VulkanStream, VulkanStreams, numbers

MOST_QUEUES = 4
"""Streams of more programs share queues, of which each takes memory."""


class OpenDevice:
    """A device with its queues, memory and code.

    Attributes:
        physical: the device.
        buffers, pipelines, recorder: its memory, its code, and what records launches.
        shared: what its streams have in common.
        streams: by their handles.
        features: what code may use.
        probed: how it computes.
        cut: tells that a loop was ended, see ``cut_loops``; None: nothing does.
        refused: what there is to say of the launch that was refused last, beyond its code.
    """

    def __init__(self, physical: PhysicalDevice) -> None:
        self.api, self.physical, self.refused = instance().api, physical, ""
        self.features = features_of(physical)
        self.cut = cut_word() if self.features.cuts_loops else None
        self.features = replace(self.features, cuts_loops=self.cut is not None)
        self._lock = new_lock(self, "_lock")
        self._making = new_lock(self, "_making")
        count = min(physical.queues, MOST_QUEUES)
        self.handle = self._open(count)
        self._queues = [self._queue(k) for k in range(count)]
        self._turn = 0
        self.buffers = Buffers(self.api, self.handle, physical)
        self.pipelines = Pipelines(self.api, self.handle, physical)
        self._served = SERVE(self._serve)  # machine code calls it until the process ends
        self.recorder = make_recorder(self._address, self._served)
        self.streams: dict[int, VulkanStream] = {}
        self._modules: dict[int, ShaderModule] = {}
        self._functions: dict[int, FunctionRecord] = {}
        self._helpers: dict[str, FunctionRecord] = {}
        self._later: list[tuple[list[tuple[VulkanStream, int]], Callable[[], None]]] = []
        fill = self.helper(FILL_4).handle
        self.shared = VulkanStreams(self.api, self.handle, self.recorder, self.buffers, physical.family, fill)
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

    # ---- streams
    def make_stream(self, ordered: bool) -> VulkanStream:
        """A new stream, in a queue of its own as long as there are some."""
        shared = self.shared
        with self._lock:
            queue = self._queues[self._turn % len(self._queues)]
            self._turn += 1
            stream = VulkanStream(shared, ctypes.addressof(queue), ordered)
            self.streams[stream.handle] = stream
        return stream

    def drop_stream(self, stream: VulkanStream) -> None:
        """Give a stream back in which nothing runs."""
        with self._lock:
            del self.streams[stream.handle]
            stream.close()

    def later(self, action: Callable[[], None]) -> None:
        """Do something when all that is in any stream now has run."""
        with self._lock:
            self._later.append(([(s, s.pending()) for s in self.streams.values()], action))

    def settle(self) -> None:
        """Do what was to be done later and can be done now."""
        with self._lock:
            waiting, self._later = self._later, []
            for streams, action in waiting:
                left = [(s, value) for s, value in streams if s.handle in self.streams and s.done() < value]
                if left:
                    self._later.append((left, action))
                else:
                    action()

    # ---- code
    def load(self, data: bytes, name: str) -> int:
        """Load an image. ``name``: the kernel."""
        module, number = self.pipelines.load(data, name), next(numbers)
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

        self.later(unload)
        self.settle()

    def helper(self, name: str) -> FunctionRecord:
        """A function of the driver's own. ``name``: see ``own_kernels.texts``."""
        with self._making:
            if name not in self._helpers:
                image = build(texts(name), self.features, True)
                self._helpers[name] = self.function(self.load(image.data, name), name)
            return self._helpers[name]

    def _run(self, given: Texts, data: np.ndarray) -> np.ndarray:
        """See ``probe.Run``."""
        image = build(given, self.features, False)
        module = self.load(image.data, given.name)
        function, stream = self.function(module, given.entry), self.make_stream(False)
        block = self.buffers.make(data.nbytes, "host")
        try:
            view = np.ctypeslib.as_array((ctypes.c_uint64 * data.size).from_address(block.host))
            view[:] = data
            words, size = ctypes.c_uint64(block.address), ctypes.c_uint64(8)
            extra = (ctypes.c_uint64 * 5)(1, ctypes.addressof(words), 2, ctypes.addressof(size), 0)
            blocks = (1, 1, 1, function.facts.threads, 1, 1, 0)
            code = self.recorder.launch(function.handle, *blocks, stream.handle, None, ctypes.addressof(extra))
            stream.check(code, f"`{given.name}` could not be launched: {self.refused}")
            stream.synchronize()
            return view.copy()
        finally:
            self.buffers.destroy(block)
            self.drop_stream(stream)
            self.unload(module)

    # ---- what machine code asks for
    def _serve(self, what: int, stream: int, function: int, block: int, tapes: int) -> int:
        """0, or the code of a failure."""
        try:
            if what == words.SERVE_PIPELINE:
                self.make_pipeline(self._functions[function], block, tapes)
            elif what == words.SERVE_SLOT:
                self.streams[stream].wait_for_slot()
            else:
                self.streams[stream].make_room()
            return 0
        except BaseException as e:  # nothing can be raised through machine code
            if isinstance(e, KeyboardInterrupt):
                _thread.interrupt_main()
            self.refused = str(e)
            return (e.code if isinstance(e, DeviceError) else 0) or UNKNOWN

    def make_pipeline(self, function: FunctionRecord, block: int, tapes: int) -> None:
        """See ``Pipelines.make``. Where the device is full, freed memory goes back to it first."""
        with self._making:
            try:
                self.pipelines.make(function, block, tapes)
            except DeviceError as e:
                if e.code != OUT_OF_DEVICE_MEMORY:
                    raise
                for stream in list(self.streams.values()):
                    stream.settle(0)
                self.settle()
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
