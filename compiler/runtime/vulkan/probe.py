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

from ...errors import DeviceError
from ..cache import disk_cache, key_of
from ..gpu.driver import Texts
from .instance import PhysicalDevice
from .kind import chip_of, features_of

COUNT = 256
"""Threads, each with operands of its own."""

Run = Callable[[Texts, np.ndarray], np.ndarray]
"""Runs a function on a buffer of 8-byte words, by its address, with one thread for each of ``COUNT``; gives the words afterwards."""

_TEXT = """declare i32 @qd.thread()
declare {ty} @llvm.fma.{suffix}({ty}, {ty}, {ty})
declare {ty} @llvm.sqrt.{suffix}({ty})
define void @qd_probe(ptr %p0) "threads"="{count}" {{
entry:
  %thread = call i32 @qd.thread()
  %wide = zext i32 %thread to i64
  %row = mul i64 %wide, 64
  %a.p = getelementptr i8, ptr %p0, i64 %row
  %b.p = getelementptr i8, ptr %a.p, i64 8
  %c.p = getelementptr i8, ptr %a.p, i64 16
  %n.p = getelementptr i8, ptr %a.p, i64 24
  %a = load {ty}, ptr %a.p, align 8
  %b = load {ty}, ptr %b.p, align 8
  %c = load {ty}, ptr %c.p, align 8
  %n = load i32, ptr %n.p, align 8
  %fused = call {ty} @llvm.fma.{suffix}({ty} %a, {ty} %b, {ty} %c)
  %quotient = fdiv {ty} %a, %b
  %root = call {ty} @llvm.sqrt.{suffix}({ty} %a)
  %tiny = fmul {ty} %c, {least}
  %long = sext i32 %n to i64
  %positive = icmp slt i64 0, %long
  %flag = zext i1 %positive to i64
  %fused.p = getelementptr i8, ptr %a.p, i64 24
  %quotient.p = getelementptr i8, ptr %a.p, i64 32
  %root.p = getelementptr i8, ptr %a.p, i64 40
  %tiny.p = getelementptr i8, ptr %a.p, i64 48
  %flag.p = getelementptr i8, ptr %a.p, i64 56
  store {ty} %fused, ptr %fused.p, align 8
  store {ty} %quotient, ptr %quotient.p, align 8
  store {ty} %root, ptr %root.p, align 8
  store {ty} %tiny, ptr %tiny.p, align 8
  store i64 %flag, ptr %flag.p, align 8
  ret void
}}
"""


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
    text = _TEXT + chip_of(features)
    key = key_of("vulkan probe 1", device.driver_uuid, device.uuid, device.driver, str(device.driver_version), text)
    disk = disk_cache()
    found = disk.get(key) if disk else None
    if found is not None:
        f32, f64 = (a and Arithmetic(**a) for a in json.loads(found[0]).values())
        probed = Probed(f32, f64)
    else:
        probed = Probed(_ask(np.float32, run), _ask(np.float64, run) if features.float64 else None)
        if disk:
            disk.put(key, json.dumps(asdict(probed)).encode(), {"name": "probe", "driver": device.driver})
    why = probed.wrong()
    if why:
        raise DeviceError(
            f"{device.name} cannot be used with Vulkan: {why}\n"
            f"  do: use another backend, and report it with the driver ({device.driver})"
        )
    return probed


def _ask(kind: type[np.floating], run: Run) -> Arithmetic:
    """Run the function of a type and compare."""
    bits = np.dtype(kind).itemsize * 8
    ty, suffix = {32: ("float", "f32"), 64: ("double", "f64")}[bits]
    least = np.array(np.finfo(kind).tiny / 4, kind)
    text = _TEXT.format(ty=ty, suffix=suffix, count=COUNT, least=f"0x{np.float64(least).view(np.uint64):016X}")
    rng = np.random.default_rng(7)
    a, b = (rng.uniform(1.0, 4.0, COUNT).astype(kind) for _ in range(2))
    c = -(a * b)
    n = np.where(rng.random(COUNT) < 0.5, -1, 1) * rng.integers(1, 1 << 31, COUNT)
    rows = np.zeros((COUNT, 8), np.uint64)
    for k, values in enumerate((a, b, c, n.astype(np.int32))):
        rows[:, k] = values.view(f"u{values.itemsize}")
    out = run(Texts("probe", text, "", "qd_probe", ("qd_probe",), ""), rows.reshape(-1)).reshape(rows.shape)
    fused, quotient, root, tiny = (out[:, k].astype(f"u{bits // 8}").view(kind) for k in range(3, 7))
    exact = np.array(
        [float(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))) for x, y, z in zip(a, b, c, strict=True)], kind
    )
    expected = (fused, exact), (quotient, a / b), (root, np.sqrt(a)), (tiny, c * least), (out[:, 7], (n > 0).astype(np.uint64))
    return Arithmetic(*(int(np.count_nonzero(got == right)) for got, right in expected))
