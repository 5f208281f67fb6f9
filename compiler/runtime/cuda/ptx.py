"""LLVM text -> PTX -> cubin, each kept on disk under the key of everything that decides it.

LLVM ends the process on what its PTX back end cannot select; the emitter's closed table of operations keeps that from it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ...codegen.cuda.nvptx_table import NVPTX
from ...errors import DeviceError, QdrunRuntimeError
from .. import jit
from ..cache import kept, key_of
from ..gpu.compiling import Generator, generate
from ..gpu.driver import CodeImage, DeviceInfo, Texts

TRIPLE = "nvptx64-nvidia-cuda"
CHIPS = (70, 75, 80, 86, 89, 90)
"""Compute capabilities that code is made for, without their points. A newer device takes that of the
newest: its driver compiles the PTX."""

_DRIVER_OF_WIDE = 12010  # reads PTX 8.1, in which a kernel may have 32 KB of parameters instead of 4


def target_cpu(info: DeviceInfo) -> str:
    """LLVM's name of the processor that a device's code is made for.

    Raises:
        DeviceError: the device is too old.
    """
    has = int(info.chip.removeprefix("sm_"))
    fitting = [c for c in CHIPS if c <= has]
    if not fitting:
        raise DeviceError(
            f"{info.name} has compute capability {has // 10}.{has % 10}, and 7.0 is needed\n"
            "  do: use another device, see `qdrun devices`"
        )
    return f"sm_{fitting[-1]}"


def compile_ptx(text: str, name: str, cpu: str, features: str = "+ptx80", opt_level: int = 3) -> str:
    """PTX of a device module.

    Args:
        text: LLVM text of the module.
        name: the kernel, for messages.
        cpu: a chip of ``CHIPS``, as ``sm_90``.
        features: the PTX version, as ``+ptx80``.
        opt_level: of LLVM's passes and code generator.

    Raises:
        QdrunRuntimeError: LLVM refuses the text; names the kernel.
    """
    if cpu not in {f"sm_{c}" for c in CHIPS}:  # LLVM would only warn, and write PTX for a chip that does not exist
        raise QdrunRuntimeError(f"no chip is called {cpu!r}")
    if not re.fullmatch(r"\+ptx\d\d", features):
        raise QdrunRuntimeError(f"{features!r} names no PTX version")
    NVPTX.check(text, name)
    by = Generator(TRIPLE, cpu, features, "NVIDIA's GPUs", opt_level)
    return mended(generate(text, name, by, assembly=True).decode())


_SHORT = re.compile(r"^\t(neg\.s16|neg\.s32|abs\.s16) \s*(%rs?\d+), (%rs?\d+);$", re.MULTILINE)
_LONG = {
    "neg.s16": "\tnot.b16 {0}, {1};\n\tadd.s16 {0}, {0}, 1;",
    "neg.s32": "\tnot.b32 {0}, {1};\n\tadd.s32 {0}, {0}, 1;",
    "abs.s16": "\t{{ .reg .b16 %sign; shr.s16 %sign, {1}, 15; xor.b16 {0}, {1}, %sign; sub.s16 {0}, {0}, %sign; }}",
}


_STORE = re.compile(r"^\tst\.([\w.:]*b(8|16|32)) \s*(\[[^]\n]*\]), ([^;\n]*);$", re.MULTILINE)
_REGISTER = re.compile(r"%(rs|rd|r)\d+")
_BITS = {"rs": 16, "r": 32, "rd": 64}


def _narrow_store(m: re.Match[str]) -> str:
    """A store of a register that is wider than the store, with an integer of its own for the low bits; any other store as it is."""
    declared: list[str] = []
    steps: list[str] = []

    def low(r: re.Match[str]) -> str:
        wide = _BITS[r[1]]
        if wide <= int(m[2]):
            return r[0]
        bits = 16 if int(m[2]) < 32 and wide > 16 else 32
        name = f"%low{len(declared)}"
        declared.append(f".reg .b{bits} {name};")
        steps.append(f"cvt.u{bits}.u{wide} {name}, {r[0]};")
        return name

    values = _REGISTER.sub(low, m[4])
    return f"\t{{ {' '.join((*declared, *steps))} st.{m[1]} {m[3]}, {values}; }}" if declared else m[0]


def mended(ptx: str) -> str:
    """PTX that NVIDIA's assembler (12.x and 13.0, sm_90) makes the right machine code of.

    * ``neg.s16`` and ``abs.s16``: it works them out in 32 bits, and forgets that -32768 is its own negative when a comparison or a
      conversion follows.
    * ``neg.s32``: where the result is one of three operands of two minima or maxima, the instruction for three (VIMNMX3) gets the number
      without its sign.
    * A store of fewer bits than its register has: where a floating-point instruction wrote the register, it converts the number to an
      integer, and stores that in place of the low bits (``x[i] = qd.bit_cast(y, qd.i32)`` for an ``x`` of i8).
    """
    return _STORE.sub(_narrow_store, _SHORT.sub(lambda m: _LONG[m[1]].format(m[2], m[3]), ptx))


def ptx_key(text: str, cpu: str, features: str, opt_level: int) -> str:
    """The key of a module's PTX."""
    return key_of("ptx 4", text, cpu, features, str(opt_level), jit.versions())


def image_key(ptx: str, info: DeviceInfo) -> str:
    """The key of a module's machine code: the driver compiles it, for one chip."""
    return key_of("cubin", ptx, info.chip, str(info.driver_version))


def check_features(features: str, info: DeviceInfo, name: str) -> None:
    """Refuse PTX that the driver is too old for.

    Raises:
        DeviceError: names the kernel.
    """
    if features > "+ptx80" and info.driver_version < _DRIVER_OF_WIDE:
        raise DeviceError(
            f"kernel `{name}` has more than 4 KB of parameters, which drivers before CUDA 12.1 do not take\n"
            "  do: install a newer NVIDIA driver, or give the kernel fewer arrays"
        )


def build(texts: Texts, assemble: Callable[[bytes, str], bytes], info: DeviceInfo, keep: bool = True) -> CodeImage:
    """The machine code of a kernel's device functions.

    Args:
        texts: of the kernel; ``features`` is the PTX version.
        assemble: gives the machine code of PTX and a kernel's name for the open device; raises ``DeviceError`` with the compiler's log.
        info: the device.
        keep: look on the disk, and keep what was made there.

    Raises:
        QdrunRuntimeError: LLVM refuses the text.
        DeviceError: the driver refuses the PTX; has its log.
    """
    name, features = texts.name, texts.features
    check_features(features, info, name)
    cpu = target_cpu(info)
    header = {"name": name, "chip": cpu, "versions": jit.versions()}
    first = ptx_key(texts.device, cpu, features, 3)
    ptx, ptx_known = kept(first, lambda: compile_ptx(texts.device, name, cpu, features).encode(), header, keep)
    second = image_key(ptx.decode(), info)
    header = {"name": name, "chip": info.chip, "driver": info.driver_version}
    image, known = kept(second, lambda: assemble(ptx, name), header, keep)
    return CodeImage(image, second, ptx_known and known)
