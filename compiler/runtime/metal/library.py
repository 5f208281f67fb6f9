"""Libraries and pipelines: from Metal Shading Language to functions that the recorder launches.

A source begins with a comment that says of each kernel what a launch must know (``codegen.metal``); a kernel that it does not name takes
its words as they are, and has no on-chip memory.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from ...codegen.metal.source import KernelFacts, facts_of
from .encoder import F_ADDRESS, F_PIPELINE, F_SHARED, F_WORDS
from .objc import Objc
from .results import NO_LIBRARY, NO_PIPELINE, device_error

LANGUAGE = (3 << 16) + 2
"""``MTLLanguageVersion3_2``: fences for all threads of the device."""
SAFE = 0
"""``MTLMathModeSafe``"""


@dataclass(frozen=True, slots=True)
class MetalFunction:
    """A kernel that can be launched. ``words``: what the recorder reads of it, whose address is the handle."""

    words: ctypes.Array[ctypes.c_uint64]

    @property
    def handle(self) -> int:
        """What a launch names it by."""
        return ctypes.addressof(self.words)

    @property
    def shared_bytes(self) -> int:
        """On-chip memory of a block, besides what a launch asks for."""
        return self.words[F_SHARED]


class MetalLibrary:
    """A compiled source. Its pipelines are made when they are first asked for.

    Args:
        objc, device: where it lives.
        handle: the MTLLibrary.
        source: its text.
        name: the kernel, for messages.
    """

    def __init__(self, objc: Objc, device: int, handle: int, source: str, name: str) -> None:
        self._objc, self._device, self._handle, self._name = objc, device, handle, name
        self._bytes, self._facts = len(source.encode()), facts_of(source)
        self._functions: dict[str, MetalFunction] = {}

    def function(self, name: str) -> MetalFunction:
        """A kernel of it.

        Raises:
            DeviceError: there is none that is called so, or Metal makes no pipeline of it; names the kernel and the bytes of its source.
        """
        if name not in self._functions:
            facts = self._facts.get(name, KernelFacts())
            words = (ctypes.c_uint64 * F_WORDS)()
            words[F_PIPELINE] = self._pipeline(name, facts)
            words[F_SHARED], words[F_ADDRESS] = facts.shared, facts.by_address
            self._functions[name] = MetalFunction(words)
        return self._functions[name]

    def _pipeline(self, name: str, facts: KernelFacts) -> int:
        objc, error = self._objc, ctypes.c_void_p()
        doing = f"kernel {self._name} ({self._bytes:,} bytes of MSL) cannot be loaded: function `{name}`"
        with objc.pool():
            function = objc.send(self._handle, "newFunctionWithName:", objc.string(name))
            if not function:
                raise device_error(NO_PIPELINE, doing, detail="the library has no such function")
            try:
                made = objc.send(self._device, "newComputePipelineStateWithFunction:error:", function, ctypes.byref(error))
                if not made:
                    raise device_error(NO_PIPELINE, doing, detail=_reason(objc, error.value))
            finally:
                objc.send(function, "release")
        most = objc.send(made, "maxTotalThreadsPerThreadgroup")
        if most < facts.threads:
            objc.send(made, "release")
            raise device_error(
                NO_PIPELINE,
                doing,
                detail=f"the pipeline takes blocks of {most:,} threads, and the kernel needs {facts.threads:,}",
            )
        return made

    def release(self) -> None:
        """Give everything back; nothing of it may be running."""
        functions, self._functions = self._functions, {}
        for f in functions.values():
            self._objc.send(f.words[F_PIPELINE], "release")
        self._objc.send(self._handle, "release")


def load_library(objc: Objc, device: int, source: str, name: str) -> MetalLibrary:
    """Compile a source. Metal keeps what it has compiled on disk by itself.

    Args:
        objc: the run time.
        device: the MTLDevice.
        source: Metal Shading Language.
        name: the kernel, for messages.

    Raises:
        DeviceError: Metal's compiler makes no library; gives its message, the kernel and the bytes of the source.
    """
    error = ctypes.c_void_p()
    options = objc.send(objc.named_class("MTLCompileOptions"), "new")
    try:
        objc.send(options, "setMathMode:", SAFE)
        objc.send(options, "setLanguageVersion:", LANGUAGE)
        with objc.pool():
            text = objc.string(source)
            made = objc.send(device, "newLibraryWithSource:options:error:", text, options, ctypes.byref(error))
            if not made:
                doing = f"kernel {name} ({len(source.encode()):,} bytes of MSL) cannot be loaded"
                raise device_error(NO_LIBRARY, doing, detail=_reason(objc, error.value))
    finally:
        objc.send(options, "release")
    return MetalLibrary(objc, device, made, source, name)


def _reason(objc: Objc, error: int | None) -> str:
    """What an NSError says, if there is one."""
    said = objc.text(objc.send(error or 0, "localizedDescription")) if error else ""
    return said or "Metal gives no reason (no NSError)"
