"""What a device computes, asked of the device itself when it is opened, and remembered on disk for its driver.

Vulkan leaves it to a driver whether a fused multiply-add rounds once. Our sines and exponentials need its error term, so code for a device
that rounds twice does without the instruction. Comparisons of 64-bit integers must be right: one software driver had them wrong. And Vulkan
leaves open what makes results differ from the processor's in their last bits: rounding of divisions and square roots in f32, and whether
subnormal numbers stay.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from fractions import Fraction

import numpy as np

from ...codegen.builder import Builder, NativeFunction, NativeModule, Value, external
from ...errors import DeviceError
from ..cache import kept, key_of
from ..gpu.driver import Texts
from .instance import PhysicalDevice
from .kind import chip_of, features_of

COUNT = 256
"""Threads, each with operands of its own."""

Run = Callable[[Texts, np.ndarray], np.ndarray]
"""Runs a function on a buffer of 8-byte words, by its address, with one thread for each of ``COUNT``; gives the words afterwards."""


def _text(kind: type[np.floating]) -> str:
    """The function of a type. A thread reads 3 numbers and an i32, and writes 5 results from the fourth of its 8 words on."""
    ty, suffix = {np.float32: ("float", "f32"), np.float64: ("double", "f64")}[kind]
    least = f"0x{np.float64(_least(kind)).view(np.uint64):016X}"
    thread, fma = external("qd.thread", "i32"), external(f"llvm.fma.{suffix}", ty, ty, ty, ty)
    sqrt = external(f"llvm.sqrt.{suffix}", ty, ty)

    def emit(f: Builder, rows: Value) -> None:
        row = rows + f.call(thread).to("i64") * 64
        a, b, c = ((row + 8 * k).load(ty) for k in range(3))
        n = (row + 24).load("i32").to("i64", "sext")
        results = (
            f.call(fma, a, b, c),
            f.new(ty, f"fdiv {ty} {a.text}, {b.text}"),
            f.call(sqrt, a),
            f.new(ty, f"fmul {ty} {c.text}, {least}"),
            f.new("i1", f"icmp slt i64 0, {n.text}").to("i64"),
        )
        for k, x in enumerate(results, 3):
            (row + 8 * k).store(x)

    return NativeModule([NativeFunction("qd_probe", "void", ("ptr",), emit, f'"threads"="{COUNT}"')]).text


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How a device computes in one type: the number of right results among ``COUNT``."""

    fused: int
    quotients: int
    roots: int
    subnormal: int
    compared: int


@dataclass(frozen=True, slots=True)
class Probed:
    """How a device computes. ``float64`` is None where it has no such numbers."""

    float32: Arithmetic
    float64: Arithmetic | None

    @property
    def fused(self) -> frozenset[int]:
        """Bits of the floats whose fused multiply-add rounds once. Half precision is not asked for; it is computed as f32 is."""
        f32 = self.float32.fused == COUNT
        f64 = self.float64 is not None and self.float64.fused == COUNT
        return frozenset([16, 32] * f32 + [64] * f64)

    def wrong(self) -> str:
        """What code relies on and the device does not do, in words; empty: nothing."""
        bad = [COUNT - a.compared for a in (self.float32, self.float64) if a is not None and a.compared < COUNT]
        return f"comparing 64-bit integers goes wrong ({bad[0]} of {COUNT})" if bad else ""


def probe(device: PhysicalDevice, run: Run) -> Probed:
    """How a device computes: from the disk, or by running the functions of this file.

    Raises:
        DeviceError: it computes something else than code relies on.
    """
    features = features_of(device)
    text = _text(np.float32) + _text(np.float64) + chip_of(features)
    key = key_of("vulkan probe 1", device.driver_uuid, device.uuid, device.driver, str(device.driver_version), text)

    def ask() -> bytes:
        probed = Probed(_ask(np.float32, run), _ask(np.float64, run) if features.float64 else None)
        return json.dumps(asdict(probed)).encode()

    found, _ = kept(key, ask, {"name": "probe", "driver": device.driver})
    probed = Probed(*(a and Arithmetic(**a) for a in json.loads(found).values()))
    why = probed.wrong()
    if why:
        raise DeviceError(
            f"{device.name} cannot be used with Vulkan: {why}\n"
            f"  do: use another backend, and report it with the driver ({device.driver})"
        )
    return probed


def _least(kind: type[np.floating]) -> np.ndarray:
    """A factor whose product with a number between 1 and 16 is subnormal."""
    return np.array(np.finfo(kind).tiny / 4, kind)


def _ask(kind: type[np.floating], run: Run) -> Arithmetic:
    """Run the function of a type and compare."""
    bits = np.dtype(kind).itemsize * 8
    rng = np.random.default_rng(7)
    a, b = (rng.uniform(1.0, 4.0, COUNT).astype(kind) for _ in range(2))
    c = -(a * b)
    n = np.where(rng.random(COUNT) < 0.5, -1, 1) * rng.integers(1, 1 << 31, COUNT)
    rows = np.zeros((COUNT, 8), np.uint64)
    for k, values in enumerate((a, b, c, n.astype(np.int32))):
        rows[:, k] = values.view(f"u{values.itemsize}")
    out = run(Texts("probe", _text(kind), "", "qd_probe", ("qd_probe",), ""), rows.reshape(-1)).reshape(rows.shape)
    fused, quotient, root, tiny = (out[:, k].astype(f"u{bits // 8}").view(kind) for k in range(3, 7))
    exact = np.array(
        [float(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))) for x, y, z in zip(a, b, c, strict=True)], kind
    )
    expected = (
        (fused, exact),
        (quotient, a / b),
        (root, np.sqrt(a)),
        (tiny, c * _least(kind)),
        (out[:, 7], (n > 0).astype(np.uint64)),
    )
    return Arithmetic(*(int(np.count_nonzero(got == right)) for got, right in expected))
