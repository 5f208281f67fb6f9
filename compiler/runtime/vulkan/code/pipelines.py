"""Modules, functions and pipelines: a pipeline for each size that a function is launched with, made at its first launch.

What the driver's compiler has made of a pipeline is kept on disk, for the same driver, by its ``pipelineCacheUUID``.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
from dataclasses import astuple, dataclass
from typing import Any

from ....codegen.spirv.translate import EntryFacts, Translated
from ....errors import DeviceError
from ...cache import disk_cache, key_of
from .. import encoder as words
from ..instance import PhysicalDevice
from ..library import Structures, VulkanLoader
from ..results import FEATURE_NOT_PRESENT, INVALID_SHADER, UNKNOWN, device_error

_COMPUTE_STAGE = 0x20
_HEADER_BYTES = 32
"""Bytes of a pipeline cache that has nothing in it."""
_LEAST_WORDS = 64
"""Words of a thread's tapes, at least: NVIDIA's compiler makes an array of up to about 40 words registers and finds one by comparisons,
which takes four times as long as memory (``benchmarks/vulkan_tapes.py``).
"""


def pack(code: Translated, keep: bool) -> bytes:
    """An image: a length, facts as JSON, SPIR-V. ``keep``: pipelines of it are kept on disk."""
    head = json.dumps({"keep": keep, "functions": [astuple(f) for f in code.functions]}).encode()
    return len(head).to_bytes(8, "little") + head + code.data


@dataclass(frozen=True, slots=True)
class SpirvImage:
    """What is in an image."""

    code: Translated
    keep: bool

    @staticmethod
    def read(data: bytes, name: str) -> SpirvImage:
        """An image. ``name``: the kernel, for messages.

        Raises:
            DeviceError: it is damaged.
        """
        size = int.from_bytes(data[:8], "little")
        try:
            head = json.loads(data[8 : 8 + size])
            functions = tuple(EntryFacts(*facts) for facts in head["functions"])
            return SpirvImage(Translated(data[8 + size :], functions), bool(head["keep"]))
        except (ValueError, KeyError, TypeError) as e:
            doing = f"the code of kernel `{name}` cannot be loaded: it is damaged"
            raise DeviceError(f"{doing}\n  do: clear the kernel cache", "VK_ERROR_INVALID_SHADER_NV", INVALID_SHADER) from e


@dataclass(eq=False, slots=True)
class FunctionRecord:
    """A function of a module.

    Attributes:
        words: what machine code reads of it.
        kernel, facts: for messages.
        module: VkShaderModule; ``spirv``: its key on disk, empty if nothing is kept, and its bytes.
        pipelines: by size.
    """

    words: ctypes.Array[ctypes.c_uint64]
    kernel: str
    facts: EntryFacts
    module: Any
    key: str
    spirv_bytes: int
    pipelines: dict[tuple[int, int], Any]

    @property
    def handle(self) -> int:
        """What a launch is given."""
        return ctypes.addressof(self.words)


@dataclass(eq=False, slots=True)
class ShaderModule:
    """A module of a kernel, with those of its functions that were asked for."""

    kernel: str
    image: SpirvImage
    handle: Any
    key: str
    functions: dict[str, FunctionRecord]


class Pipelines:
    """The code of an open device."""

    def __init__(self, api: VulkanLoader, device: Any, physical: PhysicalDevice) -> None:
        self._api, self._device, self._physical = api, device, physical
        self._layouts: dict[int, Any] = {}  # by bytes of push constants

    # ---- modules
    def load(self, data: bytes, name: str) -> ShaderModule:
        """A module of an image. ``name``: the kernel.

        Raises:
            DeviceError: the image is damaged, or the driver refuses it; names the kernel.
        """
        api, new, image = self._api, Structures(self._api), SpirvImage.read(data, name)
        made, code = api.ffi.new("VkShaderModule*"), image.code.data
        info = new("VkShaderModuleCreateInfo", codeSize=len(code), pCode=new.array("uint32_t", len(code) // 4))
        api.ffi.memmove(info.pCode, code, len(code))
        doing = f"the code of kernel `{name}` cannot be loaded"
        api.check(api.lib.vkCreateShaderModule(self._device, info, api.ffi.NULL, made), doing, f"{len(code):,} bytes of SPIR-V")
        key = hashlib.sha256(code).hexdigest() if image.keep else ""
        return ShaderModule(name, image, made[0], key, {})

    def function(self, module: ShaderModule, name: str) -> FunctionRecord:
        """A function of a module.

        Raises:
            DeviceError: the module has none of this name.
        """
        if name in module.functions:
            return module.functions[name]
        facts = next((f for f in module.image.code.functions if f.name == name), None)
        if facts is None:
            raise device_error(UNKNOWN, f"kernel function `{name}` is not in its code")
        nbytes = 8 * facts.words
        record = (ctypes.c_uint64 * words.FUNCTION_WORDS)()
        record[words.LAYOUT] = self._api.number(self._layout(nbytes if facts.pushed else 8))
        record[words.BYTES], record[words.BY_ADDRESS] = nbytes, int(not facts.pushed)
        made = FunctionRecord(record, module.kernel, facts, module.handle, module.key, len(module.image.code.data), {})
        module.functions[name] = made
        return made

    def unload(self, module: ShaderModule) -> None:
        """Destroy a module with its pipelines; nothing of it may be running."""
        lib, null = self._api.lib, self._api.ffi.NULL
        for function in module.functions.values():
            for pipeline in function.pipelines.values():
                lib.vkDestroyPipeline(self._device, pipeline, null)
            function.pipelines.clear()
            function.words[words.SIZES] = 0
        lib.vkDestroyShaderModule(self._device, module.handle, null)

    def _layout(self, nbytes: int) -> Any:
        """The layout of pipelines with so many bytes of push constants."""
        if nbytes not in self._layouts:
            api, new = self._api, Structures(self._api)
            ranges = new.array("VkPushConstantRange", [{"stageFlags": _COMPUTE_STAGE, "offset": 0, "size": nbytes}])
            count = int(nbytes > 0)
            info = new("VkPipelineLayoutCreateInfo", pushConstantRangeCount=count, pPushConstantRanges=ranges)
            made = api.ffi.new("VkPipelineLayout*")
            code = api.lib.vkCreatePipelineLayout(self._device, info, api.ffi.NULL, made)
            api.check_memory(code, "making the layout of a pipeline failed")
            self._layouts[nbytes] = made[0]
        return self._layouts[nbytes]

    # ---- pipelines
    def make(self, function: FunctionRecord, block: int, tapes: int) -> None:
        """The pipeline of a size, for machine code to find.

        Args:
            function: of a module.
            block: threads of a block.
            tapes: bytes of each thread's own memory that the launch asks for.

        Raises:
            DeviceError: the driver refuses it, or the device has no room for such blocks; names the kernel and the bytes of SPIR-V.
        """
        if (block, tapes) in function.pipelines:
            return
        self._check_size(function, block)
        cache, known = self._cache(function, block, tapes)
        api, new, made = self._api, Structures(self._api), self._api.ffi.new("VkPipeline*")
        try:
            info = self._info(new, function, block, max(_LEAST_WORDS, -(-tapes // 4)))
            code = api.lib.vkCreateComputePipelines(self._device, cache, 1, info, api.ffi.NULL, made)
            api.check_memory(code, self._refused(function))
            if function.key and not known:
                self._keep(cache, function, block, tapes)
        finally:
            api.lib.vkDestroyPipelineCache(self._device, cache, api.ffi.NULL)
        function.pipelines[block, tapes] = made[0]
        n = function.words[words.SIZES]
        function.words[words.PIPELINES + 2 * n] = tapes << 32 | block
        function.words[words.PIPELINES + 2 * n + 1] = api.number(made[0])
        function.words[words.SIZES] = n + 1

    def _refused(self, function: FunctionRecord) -> str:
        """The start of a message."""
        return (
            f"the driver refuses the pipeline of `{function.facts.name}` of kernel `{function.kernel}` "
            f"({function.spirv_bytes:,} bytes of SPIR-V)"
        )

    def _check_size(self, function: FunctionRecord, block: int) -> None:
        limits, shared = self._physical.limits, function.facts.shared
        why = ""
        if block > limits.block:
            why = f"a block has {block:,} threads, and the device takes {limits.block:,} (maxComputeWorkGroupInvocations)"
        elif shared > limits.shared_bytes:
            why = f"a block has {shared:,} bytes of shared memory, and the device has {limits.shared_bytes:,} (maxComputeSharedMemorySize)"
        elif len(function.pipelines) >= words.MOST_SIZES:
            why = f"it was launched with {words.MOST_SIZES} sizes of blocks before"
        if why:
            doing = f"`{function.facts.name}` of kernel `{function.kernel}` cannot run on {self._physical.name}"
            raise device_error(FEATURE_NOT_PRESENT, doing, detail=why)

    def _info(self, new: Structures, function: FunctionRecord, block: int, tape_words: int) -> Any:
        entries = [{"constantID": k, "offset": 4 * k, "size": 4} for k in range(2)]
        constants = new(
            "VkSpecializationInfo",
            mapEntryCount=2,
            pMapEntries=new.array("VkSpecializationMapEntry", entries),
            dataSize=8,
            pData=new.array("uint32_t", [block, tape_words]),
        )
        stage = new(
            "VkPipelineShaderStageCreateInfo",
            stage=_COMPUTE_STAGE,
            module=function.module,
            pName=new.array("char", function.facts.name.encode()),
            pSpecializationInfo=constants,
        )
        layout = self._api.ffi.cast("VkPipelineLayout", function.words[words.LAYOUT])
        return new("VkComputePipelineCreateInfo", stage=stage[0], layout=layout)

    # ---- on disk
    def _key(self, function: FunctionRecord, block: int, tapes: int) -> str:
        here = self._physical
        driver = f"{here.cache_uuid} {here.driver_uuid} {here.driver_version}"
        return key_of("vulkan pipeline 2", driver, function.key, function.facts.name, f"{block} {tapes}")

    def _cache(self, function: FunctionRecord, block: int, tapes: int) -> tuple[Any, bool]:
        """A pipeline cache, and whether it has what was kept of the pipeline."""
        api, new = self._api, Structures(self._api)
        disk = disk_cache() if function.key else None
        entry = disk.get(self._key(function, block, tapes)) if disk else None
        data = entry[0] if entry is not None else b""
        held = new.array("char", data) if data else api.ffi.NULL
        info, made = (
            new("VkPipelineCacheCreateInfo", initialDataSize=len(data), pInitialData=held),
            api.ffi.new("VkPipelineCache*"),
        )
        code = api.lib.vkCreatePipelineCache(self._device, info, api.ffi.NULL, made)
        api.check_memory(code, self._refused(function))
        return made[0], bool(data)

    def _keep(self, cache: Any, function: FunctionRecord, block: int, tapes: int) -> None:
        api, size = self._api, self._api.ffi.new("size_t*")
        disk = disk_cache()
        if disk is None or api.lib.vkGetPipelineCacheData(self._device, cache, size, api.ffi.NULL) or size[0] <= _HEADER_BYTES:
            return
        data = api.ffi.new("char[]", size[0])
        if not api.lib.vkGetPipelineCacheData(self._device, cache, size, data):
            found = bytes(api.ffi.buffer(data, size[0]))
            disk.put(self._key(function, block, tapes), found, {"name": function.kernel, "driver": self._physical.driver})
