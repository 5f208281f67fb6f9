"""The devices of tests about every GPU: CUDA's, AMD's and Apple's emulated, Vulkan's llvmpipe or what ``QDRUN_TEST_VULKAN`` names."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pytest

import qdrun as qd

VULKAN = os.environ.get("QDRUN_TEST_VULKAN", "llvmpipe")
T = TypeVar("T")


class Changed:
    """Vulkan's loader, with other functions in the place of some."""

    def __init__(self, lib: Any, **others: Any) -> None:
        self._lib, self._others = lib, others

    def __getattr__(self, name: str) -> Any:
        return self._others.get(name) or getattr(self._lib, name)


def need_vulkan() -> None:
    """Skip the test where no such device is."""
    pytest.importorskip("vulkan", exc_type=(ImportError, OSError))
    from qdrun.compiler.runtime.gpu.find import find
    from qdrun.compiler.runtime.vulkan.driver import VulkanDriver

    try:
        find(VulkanDriver(), VULKAN)
    except qd.DeviceError as e:
        pytest.skip(str(e))


def keep_tapes_in_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    """All tapes lie in the heap, short ones too, which plans for Vulkan have on chip."""
    from qdrun.compiler.runtime.vulkan import kind

    target = kind.spirv_target
    monkeypatch.setattr(kind, "spirv_target", lambda *args: replace(target(*args), tapes_on_chip=False))


@dataclass(frozen=True)
class Gpu:
    """A device, and what tests do with it.

    Attributes:
        name: its backend.
        device: which of the backend's.
        wide: whether it has f64, and states of 8 bytes.
        quick: whether its code becomes code of the processor; else each instruction is interpreted, and tests are smaller.
        on_chip: loops of fewer iterations have their tapes on chip.
    """

    name: str
    device: str
    wide: bool = True
    quick: bool = True
    on_chip: int = 0

    @property
    def real(self) -> Any:
        return qd.f64 if self.wide else qd.f32

    @property
    def nbytes(self) -> int:
        """Bytes of a real number."""
        return 8 if self.wide else 4

    @property
    def options(self) -> dict[str, Any]:
        return {"arch": getattr(qd, self.name), "device": self.device, "default_fp": self.real}

    def need(self) -> None:
        """Skip the test where the device cannot be used."""
        if self.name == "vulkan":
            need_vulkan()
        elif self.name == "metal":
            from qdrun.tests.devices.metal import executor

            try:
                executor.clang()
            except qd.DeviceError as e:
                pytest.skip(str(e).splitlines()[0])

    def init(self, **more: Any) -> Any:
        return qd.init(**self.options | more)

    def both(self, work: Callable[[], T], **more: Any) -> tuple[T, T]:
        """The results of the same work on the GPU and on the CPU."""
        with self.init(**more):
            here = work()
        with qd.init(arch=qd.cpu, default_fp=self.real, **more):
            return here, work()

    def emulated(self) -> Any:
        """The machine that stands for it; None: it has a driver of its own."""
        from qdrun.tests.devices.processor.machine import emulated_machine

        return None if self.name == "vulkan" else emulated_machine()

    def refuse(self, monkeypatch: pytest.MonkeyPatch, most: int) -> list[int]:
        """Have the device refuse blocks of more bytes; the list gets the bytes of each block that it is asked for."""
        asked: list[int] = []
        if machine := self.emulated():
            allocate = machine.arena.allocate

            def refusing(nbytes: int) -> int:
                asked.append(nbytes)
                if nbytes > most:
                    raise MemoryError
                return allocate(nbytes)

            monkeypatch.setattr(machine.arena, "allocate", refusing)
            return asked
        from qdrun.compiler.runtime.vulkan.instance import instance

        api = instance().api
        real = api.lib.vkAllocateMemory
        refused = -2

        def allocate_memory(device: Any, info: Any, allocator: Any, memory: Any) -> int:
            asked.append(info.allocationSize)
            return refused if info.allocationSize > most else real(device, info, allocator, memory)

        monkeypatch.setattr(api, "lib", Changed(api.lib, vkAllocateMemory=allocate_memory))
        return asked


GPUS = (
    Gpu("amdgpu", "emulated:gfx942", quick=False),
    Gpu("cuda", "emulated", on_chip=36),
    Gpu("metal", "emulated", wide=False),
    Gpu("vulkan", VULKAN),
)
