"""One random program of ``programs.py`` with its inputs, and everything that is asked of it."""

from __future__ import annotations

import hashlib
import linecache
from collections import Counter
from typing import Any

import numpy as np
from replay import Replay, central_differences, difference, resolution

import qdrun as qd

COUNTS: Counter[str] = Counter()
SLOPES = (1e-5, 1e-6)  # two steps of central differences: where they disagree, a branch flips or a corner is near


def digest(source: str) -> bytes:
    """What names a source, and chooses which further checks it gets."""
    return hashlib.sha256(source.encode()).digest()


def compile_once(source: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run source so that ``inspect`` finds it. Equal sources have one file name, so their kernels share machine code."""
    filename = f"<program {digest(source).hex()[:16]}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    space = {"qd": qd, **names}
    exec(compile(source, filename, "exec"), space)
    return space


class Case:
    """A kernel in a program of its own, with inputs drawn from ``seed``; ``low`` is the type that the source calls F."""

    def __init__(self, source: str, seed: int, low: Any = None, dual: bool = False, **options: Any) -> None:
        options = {"cpu_max_num_threads": 1, "cpu_lanes": 1, **options}
        self.program = qd.init(arch=qd.cpu, default_fp=qd.f64, offline_cache=False, **options)
        self.make(source, seed, low or qd.f64, dual)

    def make(self, source: str, seed: int, low: Any, dual: bool = False) -> None:
        """Fields and the kernel in the current program."""
        kinds = {"needs_grad": True, "needs_dual": dual}
        self.x, self.lo = qd.field(qd.f64, shape=8, **kinds), qd.field(low, shape=4, **kinds)
        self.v = qd.Vector.field(2, dtype=qd.f64, shape=4, **kinds)
        self.fm = qd.Matrix.field(2, 2, dtype=qd.f64, shape=2, **kinds)
        self.y, self.za, self.zb = (qd.field(qd.f64, shape=n, **kinds) for n in (3, 4, 4))
        self.yv = qd.Vector.field(2, dtype=qd.f64, shape=2, **kinds)
        cnt, big = qd.field(qd.i32, shape=6), qd.field(qd.i64, shape=4)
        self.c = qd.ndarray(qd.f64, 5, **kinds)
        self.cv = qd.Vector.ndarray(2, qd.f64, 3, **kinds)
        self.inputs, self.outputs = (self.x, self.v, self.c, self.cv, self.fm, self.lo), (self.y, self.yv, self.za, self.zb)
        r = np.random.default_rng(seed)
        for t in self.inputs:
            t.from_numpy(r.uniform(-1.2, 1.2, t.to_numpy().shape))
        cnt.from_numpy(r.integers(0, 5, cnt.to_numpy().shape).astype(np.int32))
        big.from_numpy(r.integers(-(2**40), 2**40, big.to_numpy().shape))
        self.ints = cnt, big
        self.args = (int(r.integers(0, 6)), self.c, self.cv, float(r.uniform(-1, 1)))
        self.weights = [r.uniform(0.5, 1.5, t.to_numpy().shape) for t in self.outputs]
        names = {n: getattr(self, n) for n in ("x", "v", "fm", "lo", "y", "yv", "za", "zb")}
        self.space = compile_once(source, {**names, "cnt": cnt, "big": big, "F": low, **self.more()})
        self.k = self.space["k"]

    def more(self) -> dict[str, Any]:
        """Further names that the source may use."""
        return {}

    def clear(self) -> None:
        """The outputs as they are before each launch."""
        for t in self.outputs:
            t.fill(0.25)

    def value(self) -> float:
        self.clear()
        self.k(*self.args)
        return float(sum((t.to_numpy() * w).sum() for t, w in zip(self.outputs, self.weights)))

    def seed(self) -> None:
        """Gradients before the reverse launch."""
        for t in self.inputs:
            t.grad.fill(0.0)
        for t, w in zip(self.outputs, self.weights):
            t.grad.from_numpy(w)

    def gradient(self) -> np.ndarray:
        """From reverse mode, after a forward launch."""
        self.value()
        self.seed()
        self.k.grad(*self.args)
        return np.concatenate([t.grad.to_numpy().reshape(-1).astype(float) for t in self.inputs])

    def differences(self, h: float) -> np.ndarray:
        return central_differences(self.inputs, self.value, h)

    def close(self) -> None:
        self.program.close()


def check(source: str, seed: int) -> None:
    """Everything: interpreter, differences, plan, levels, overflow, and the f32 twin where the source has a second float type."""
    COUNTS["programs"] += 1
    with np.errstate(all="ignore"):
        case = Case(source, seed)
        replay = Replay(case.k, case.args)
        case.clear()
        replay.compare_forward(raw=True)
        case.clear()
        replay.compare_forward()
        try:
            planned = case.k.grad.plan(*case.args).bytes
        except qd.DifferentiationError as e:
            assert "\n  do: " in str(e), str(e)
            COUNTS["refused"] += 1
            case.close()
            return
        case.seed()
        replay.compare_reverse()
        got = case.gradient()
        assert case.program.usage().get("adstack", 0) == planned
        check_differences(case, got)
        case.close()
        more = (check_low, check_low, check_forward_mode, check_forward_mode, check_lanes, None)[digest(source)[0] % 6]
        if more is not None:
            more(source, seed, got)
        check_options(source, seed, got)
    COUNTS["right"] += 1


def check_differences(case: Case, got: np.ndarray) -> None:
    """Reverse mode against central differences at two steps; components where these disagree are left out."""
    coarse, fine = (case.differences(h) for h in SLOPES)
    if not (np.isfinite(fine).all() and np.isfinite(coarse).all()):
        COUNTS["not finite"] += 1
        return
    scale = max(1.0, float(np.abs(fine).max()))
    if resolution(case.value(), min(SLOPES)) > 1e-7 * scale:
        COUNTS["too large for differences"] += 1
        return
    usable = np.abs(coarse - fine) <= 1e-7 * scale
    COUNTS["components"] += usable.size
    COUNTS["kinked components"] += int((~usable).sum())
    error = np.abs(got - coarse)[usable] / scale
    worst = int(np.argmax(error)) if error.size else 0
    assert error.size == 0 or error.max() <= 1e-6, f"{got[usable][worst]}, differences say {coarse[usable][worst]}"


def check_options(source: str, seed: int, want: np.ndarray) -> None:
    """Checkpoint levels give the same bits. A tiny adstack gives the same bits or overflows, and the program goes on."""
    for levels in (2, 3):
        other = Case(source, seed, ad_checkpoint_levels=levels)
        difference(f"{levels} levels", other.gradient(), want)
        assert other.program.usage().get("adstack", 0) == other.k.grad.plan(*other.args).bytes
        other.close()
    small = Case(source, seed, ad_stack_size=1)
    before = small.value()
    try:
        difference("one slot", small.gradient(), want)
    except qd.AdStackOverflow as e:
        assert "in kernel `k`" in str(e)
        assert "which is 1" in str(e)
        COUNTS["overflows"] += 1
        after = small.value()
        assert after == before or np.isnan(after)
        again = compile_once(AFTER_OVERFLOW, {"x": small.x, "y": small.y})["k"]
        small.seed()
        again.grad()
        difference("after an overflow", small.x.grad.to_numpy()[:1], 2.0 * small.x.to_numpy()[:1] * small.weights[0][0])
    small.close()


AFTER_OVERFLOW = "@qd.kernel\ndef k():\n    y[0] += x[0] * x[0]\n"


def check_low(source: str, seed: int, want: np.ndarray) -> None:
    """With F = f32: the interpreter to the bit; near the f64 twin, unless rounding takes another branch."""
    case = Case(source, seed, qd.f32)
    replay = Replay(case.k, case.args)
    replay.apart = 1e-5  # some of the numbers are f32
    case.clear()
    replay.compare_forward()
    case.seed()
    replay.compare_reverse()
    got = case.gradient()
    COUNTS["with f32"] += 1
    case.close()
    scale = max(1.0, float(np.abs(want).max()))
    if not np.isfinite(scale) or np.abs(got - want).max() <= 2e-2 * scale:
        return
    near = [near_gradient(source, seed, 1e-6 * k) for k in (-1, 1)]
    if all(np.abs(a - want).max() <= 1e-3 * scale for a in near):
        COUNTS["f32 far from f64"] += 1  # a branch at a value that is equal in exact arithmetic: rare, and bounded in a test


def check_forward_mode(source: str, seed: int, want: np.ndarray) -> None:
    """The tangents of the outputs in a random direction of all inputs, weighted, are the gradient in that direction."""
    case = Case(source, seed, dual=True)
    r = np.random.default_rng(seed)
    forward, reverse, at = 0.0, 0.0, 0
    for t in case.inputs:
        direction = r.uniform(-1, 1, t.to_numpy().shape)
        with qd.ad.FwdMode(loss=list(case.outputs), param=t, seed=direction):
            case.clear()
            case.k(*case.args)
        forward += float(sum((o.dual.to_numpy() * w).sum() for o, w in zip(case.outputs, case.weights)))
        reverse += float((want[at : at + direction.size] * direction.reshape(-1)).sum())
        at += direction.size
    case.close()
    COUNTS["forward mode"] += 1
    scale = max(1.0, float(np.abs(want).max()))
    assert abs(forward - reverse) <= 1e-9 * scale or not np.isfinite(scale), f"forward mode {forward}, reverse mode {reverse}"


def check_lanes(source: str, seed: int, want: np.ndarray) -> None:
    """Several iterations side by side and bounds checks: the same values and gradients, up to the last bits of sines."""
    values, gradients = [], []
    for options in ({}, {"cpu_lanes": 4}, {"debug": True}):
        case = Case(source, seed, **options)
        gradients.append(case.gradient())
        values.append(case.value())
        case.close()
    difference(
        "debug", gradients[2], gradients[0], 1e-11
    )  # checks make iterations costlier: partial sums come in another order
    difference("the gradient a second time", gradients[0], want)
    COUNTS["in lanes"] += 1
    scale = max(1.0, float(np.abs(want).max()))
    if not np.isfinite(scale) or abs(values[1] - values[0]) > 1e-9 * scale:
        COUNTS["lanes take another branch"] += 1  # our sine and C's differ in the last bit; bounded in a test
    else:
        np.testing.assert_allclose(gradients[1] / scale, want / scale, rtol=0, atol=1e-8)


def near_gradient(source: str, seed: int, distance: float) -> np.ndarray:
    """The gradient in f64 a little beside the inputs."""
    case = Case(source, seed)
    for t in case.inputs:
        t.from_numpy(t.to_numpy() * (1.0 + distance))
    out = case.gradient()
    case.close()
    return out
