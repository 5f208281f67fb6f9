"""Runs the device functions of an emulated device on the processor.

An image is LLVM text of code for this machine (``hardware.py``): functions ``void f(ptr regs, ptr words)`` of the special registers
and of the launch's packed parameters. Blocks run one after the other, shuffled.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from qdrun.compiler.runtime.cache import load_cached
from qdrun.compiler.runtime.gpu.driver import CodeImage, Texts, text_image
from qdrun.compiler.runtime.jit import LoadedCode

from .arena import POISON
from .blocks import RUN_FREE, SHARED_BYTES, run_blocks, run_together

_RUN = ctypes.PYFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64)
_DEFINE = re.compile(r"^define void @(\w+)\(ptr %regs, ptr %words\)", re.M)


class DeviceCode(Protocol):
    """A loaded device function. Queued work keeps it."""

    def run(self, words: int, blocks: int, threads: int, shared: int) -> None:
        """Run all blocks of a launch.

        Args:
            words: the address of the packed parameters.
            blocks: of the launch.
            threads: of a block.
            shared: bytes of on-chip memory that the launch asks for.

        Raises:
            Diverged: some threads of a block came to a barrier, and others did not.
        """
        ...


class Executor(Protocol):
    """Makes images of device functions, and runs them."""

    def build(self, texts: Texts, keep: bool) -> CodeImage:
        """The image of a kernel's device functions, kept on disk with ``keep``."""
        ...

    def load(self, image: bytes, name: str) -> Mapping[str, DeviceCode]:
        """The functions of an image by their names. ``name``: the kernel, for messages."""
        ...


@dataclass(frozen=True, slots=True)
class NativeCode:
    """A device function as machine code of the processor."""

    name: str
    code: LoadedCode
    loop: Any

    def run(self, words: int, blocks: int, threads: int, shared: int) -> None:
        """See ``DeviceCode``."""
        order = block_order(blocks)
        if threads > 1:
            run_blocks(RUN_FREE(self.code.addresses[f"{self.name}.run"]), words, order, threads, shared)
            return
        memory = np.full(shared + SHARED_BYTES + 64, POISON, np.uint8)
        base = memory.ctypes.data + -memory.ctypes.data % 16
        regs = (ctypes.c_int64 * 8)(0, 0, blocks, 1, base, base + -(-shared // 16) * 16)
        self.loop(ctypes.addressof(regs), words, order.ctypes.data, blocks)

    def run_together(self, words: int, blocks: int, threads: int) -> None:
        """``run`` of blocks that wait for each other.

        Raises:
            Diverged: some threads came to a barrier of their block, or of all blocks, and others did not.
        """
        run_together(RUN_FREE(self.code.addresses[f"{self.name}.run"]), words, block_order(blocks), threads)


class Processor:
    """See ``Executor``."""

    def build(self, texts: Texts, keep: bool) -> CodeImage:
        """The text itself."""
        return text_image(texts, keep)

    def load(self, image: bytes, name: str) -> Mapping[str, NativeCode]:
        """Compile a text.

        Raises:
            QdrunRuntimeError: LLVM refuses it.
        """
        text = image.decode()
        found = _DEFINE.findall(text)
        if not found:
            return {}
        whole = "\n".join([text, *map(_loop_over_blocks, found)])
        code = load_cached(whole, name, [f"{n}.run" for n in found], {})[0]
        return {n: NativeCode(n, code, _RUN(code.addresses[f"{n}.run"])) for n in found}


PROCESSOR = Processor()


@lru_cache(maxsize=64)
def block_order(blocks: int) -> np.ndarray:
    """The order of blocks: shuffled, because no code may rely on it; always the same, so that sums have the same bits in each run."""
    return np.random.default_rng(blocks).permutation(blocks)


def _loop_over_blocks(name: str) -> str:
    """``void name.run(ptr regs, ptr words, ptr order, i64 n)``: blocks ``order[0]`` to ``order[n - 1]``, one after the other."""
    return f"""
define void @"{name}.run"(ptr %regs, ptr %words, ptr %order, i64 %n) nounwind {{
entry:
  %where = getelementptr i64, ptr %regs, i64 1
  br label %next
next:
  %k = phi i64 [0, %entry], [%k1, %next]
  %at = getelementptr i64, ptr %order, i64 %k
  %block = load i64, ptr %at
  store i64 %block, ptr %where
  call void @{name}(ptr %regs, ptr %words)
  %k1 = add i64 %k, 1
  %more = icmp slt i64 %k1, %n
  br i1 %more, label %next, label %done
done:
  ret void
}}
"""
