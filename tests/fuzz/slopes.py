"""What is asked of a differentiable program: its gradient by reverse mode, forward mode and differences; under every plan the same bits."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import qdrun as qd

from .check import Finding, Result, reason
from .compare import apart
from .execute import CUDA, INTERPRETER, OTHERS, SCALAR, VULKAN, Config, load, options_of, start
from .program import Program
from .sparse import UNABLE

STEPS = (1e-3, 1e-4, 1e-5, 1e-6)


class Wrong(Exception):
    """A gradient that is wrong: what kind, and the two values."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(kind)
        self.kind, self.detail = kind, detail


class Case:
    """A program's file in a program of one configuration."""

    def __init__(self, path: Path, text: str, config: Config, **more: Any) -> None:
        self.program = start(config, options_of(text), **more)
        self.planes: dict[str, int] = {}
        names = load(path)
        self.inputs, self.between, self.outputs, self.calls = (names[n] for n in ("INPUTS", "BETWEEN", "OUTPUTS", "CALLS"))
        names["fill"]()
        rng = np.random.default_rng(5)
        self.weights = [rng.uniform(0.5, 1.5, t.to_numpy().shape) for t in self.outputs]
        self.at = [t.to_numpy() for t in self.inputs]

    def forward(self) -> None:
        for t in (*self.between, *self.outputs):
            t.fill(0.25)
        for k, args in self.calls:
            k(*args)

    def value(self) -> float:
        self.forward()
        return float(sum((t.to_numpy().astype(float) * w).sum() for t, w in zip(self.outputs, self.weights)))

    def gradient(self, backward: Callable[[Any, Any], None] | None = None) -> np.ndarray:
        """Reverse mode, after a run forward."""
        self.forward()
        for t in (*self.inputs, *self.between):
            t.grad.fill(0.0)
        for t, w in zip(self.outputs, self.weights):
            t.grad.from_numpy(w.astype(t.to_numpy().dtype))
        self.planes.clear()
        for k, args in reversed(self.calls):
            for plane, amount in k.grad.plan(*args).planes.items():  # now: what runs may change what a plan reads
                self.planes[plane] = max(self.planes.get(plane, 0), amount)
            k.grad(*args) if backward is None else backward(k, args)
        return self.flat([t.grad.to_numpy() for t in self.inputs])

    @staticmethod
    def flat(parts: list[np.ndarray]) -> np.ndarray:
        return np.concatenate([p.reshape(-1) for p in parts])

    def move(self, by: list[np.ndarray], h: float) -> None:
        for t, at, d in zip(self.inputs, self.at, by):
            t.from_numpy((at + h * d).astype(at.dtype))

    def planned(self) -> int:
        """The bytes that the launches of the last ``gradient`` share: each plane as large as the plan that needs most of it."""
        return sum(self.planes.values())

    def held(self) -> int:
        return self.program.usage().get("adstack", 0)


@contextmanager
def case(path: Path, text: str, config: Config, **more: Any) -> Iterator[Case]:
    with config.fields():
        c = Case(path, text, config, **more)
        try:
            yield c
        finally:
            c.program.close()


def same(kind: str, want: np.ndarray, got: np.ndarray) -> None:
    bad = apart(want, got)
    if bad.any():
        raise Wrong(kind, f"at {np.argwhere(bad)[:3].tolist()}: {want[bad][:3].tolist()} and {got[bad][:3].tolist()}")


def check_smooth(program: Program, path: Path, seed: int, index: int, devices: list[str]) -> Result:
    """Check the gradient of a program in all ways."""
    rng = random.Random(f"{seed}:{index}:slopes")
    out = Result()
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            _check(program, path, rng, devices, out)
        except Wrong as e:
            out.finding = Finding(e.kind, e.detail)
        except qd.DifferentiationError as e:
            if out.compared or "\n  do: " not in str(e):
                out.finding = Finding(f"refused: {reason(str(e))}", str(e))
            else:
                out.refused = reason(f"{type(e).__name__}: {e}")
        except qd.QdrunError as e:
            out.lost = bool(getattr(e, "restart", False))
            out.finding = Finding(f"refused: {reason(f'{type(e).__name__}: {e}')}", str(e))
    return out


def _check(program: Program, path: Path, rng: random.Random, devices: list[str], out: Result) -> None:
    text = program.text
    with case(path, text, SCALAR) as c:
        want = c.gradient()
        planned = c.planned()
        if c.held() != planned:
            raise Wrong("the heap is not what was planned", f"planned {planned}, held {c.held()}")
        spread = _spread(c, want)
        out.compared.append("reverse")
        if "f32" not in text:
            _differences(c, want, rng, out)
        _tangents(c, want, spread, rng)
        out.compared.append("forward mode")
        out.compared.append("budgets")
        _budgets(c, want, rng)
    for levels in rng.sample((2, 3), 1):
        with case(path, text, SCALAR, ad_checkpoint_levels=levels) as c:
            out.compared.append(f"{levels} levels")
            same(f"{levels} levels give other bits", want, c.gradient())
            if c.held() != c.planned():
                raise Wrong(f"{levels} levels: the heap is not what was planned", f"planned {c.planned()}, held {c.held()}")
    if rng.random() < 0.4:
        out.compared.append("small stacks")
        _small(path, text, want, rng)
    if rng.random() < 0.3:
        out.compared.append("python gradient")
        with case(path, text, INTERPRETER) as c:
            same("the gradient on python", want, c.gradient())
    _elsewhere(path, text, want, spread, rng, devices, out)


def _spread(c: Case, want: np.ndarray) -> np.ndarray:
    """How far the gradient moves when its inputs move by a few units of the last place: what rounding can do to it."""
    unit = [np.sign(at) * np.abs(at) for at in c.at]
    eps = float(np.finfo(c.at[0].dtype).eps)
    total = np.zeros(want.shape)
    for h in (-8 * eps, 8 * eps):
        c.move(unit, h)
        total += np.abs(c.gradient().astype(float) - want)
    c.move(unit, 0.0)
    return total


def _direction(c: Case, rng: random.Random) -> list[np.ndarray]:
    numbers = np.random.default_rng(rng.randrange(2**32))
    return [numbers.uniform(-1, 1, at.shape) for at in c.at]


def _along(want: np.ndarray, by: list[np.ndarray]) -> tuple[float, float]:
    """The slope in a direction, and the size of what it is the sum of."""
    terms = want.astype(float) * Case.flat(by)
    return float(terms.sum()), float(np.abs(terms).sum())


def _differences(c: Case, want: np.ndarray, rng: random.Random, out: Result) -> None:
    """Reverse mode against central differences in f64 along a direction. A difference counts at two points only: one may be a corner."""
    by = _direction(c, rng)
    verdict = _one_difference(c, want, by)
    if verdict == "":
        out.compared.append("differences")
    elif verdict != "cannot tell":
        at = c.at
        numbers = np.random.default_rng(rng.randrange(2**32))
        for _ in range(2):  # beside the point: a corner is not there, a wrong derivative is
            c.at = [a + 1e-2 * numbers.uniform(-1, 1, a.shape) for a in at]
            c.move(by, 0.0)
            verdict = _one_difference(c, c.gradient(), by)
            if verdict in ("", "cannot tell"):
                break
        else:
            raise Wrong("differences", verdict)
        c.at = at
        c.move(by, 0.0)


def _one_difference(c: Case, want: np.ndarray, by: list[np.ndarray]) -> str:
    """Empty where the slope is right; ``cannot tell`` where the differences themselves do not agree; else the two slopes."""
    slope, size = _along(want, by)
    found = []
    for h in STEPS:
        ends = []
        for side in (h, -h):
            c.move(by, side)
            ends.append(c.value())
        found.append((ends[0] - ends[1]) / (2 * h))
    c.move(by, 0.0)
    gaps = [abs(a - b) for a, b in pairwise(found)]
    if not np.isfinite([slope, *found]).all():
        return "cannot tell" if not np.isfinite(found).all() else f"differences {found}, reverse mode {slope}"
    best = int(np.argmin(gaps))
    scale = max(1.0, size, abs(found[best + 1]))
    if gaps[best] > 1e-5 * scale or size > 1e9:
        return "cannot tell"
    if abs(slope - found[best + 1]) <= 10 * gaps[best] + 1e-6 * scale:
        return ""
    return f"differences {found}, reverse mode {slope}"


def _tangents(c: Case, want: np.ndarray, spread: np.ndarray, rng: random.Random) -> None:
    """Forward mode in a direction is the gradient in that direction."""
    by = _direction(c, rng)
    total = 0.0
    for t, d in zip(c.inputs, by):
        with qd.ad.FwdMode(loss=list(c.outputs), param=t, seed=d):
            c.forward()
        total += float(sum((y.dual.to_numpy().astype(float) * w).sum() for y, w in zip(c.outputs, c.weights)))
    slope, size = _along(want, by)
    eps = float(np.finfo(c.at[0].dtype).eps)
    allowed = 1e5 * eps * max(1.0, size) + 100 * float(np.abs(spread * Case.flat(by)).sum())
    if np.isfinite([slope, total, allowed]).all() and abs(slope - total) > allowed:
        raise Wrong("forward mode", f"forward mode {total}, reverse mode {slope}, allowed {allowed}")
    if np.isfinite(slope) != np.isfinite(total) and np.isfinite(spread).all() and np.isfinite(want).all():
        raise Wrong("forward mode", f"forward mode {total}, reverse mode {slope}")


def _budgets(c: Case, want: np.ndarray, rng: random.Random) -> None:
    """Gradients under random budgets down to the smallest: the same bits in no more bytes, and a refusal below it."""
    least: dict[int, int] = {}
    whole: dict[int, int] = {}
    for n, (k, args) in enumerate(c.calls):
        whole[n] = k.grad.plan(*args).bytes
        try:
            k.grad.plan(*args, budget=0)
            least[n] = 0
        except qd.OutOfMemory as e:
            least[n] = e.smallest
    for share in (0.0, rng.random()):

        def backward(k: Any, args: Any, share: float = share) -> None:
            n = next(i for i, (other, given) in enumerate(c.calls) if other is k and given is args)
            budget = least[n] + int(share * (whole[n] - least[n]))
            plan = k.grad.plan(*args, budget=budget)
            if plan.bytes > budget:
                raise Wrong("a plan exceeds its budget", f"{plan.bytes} of {budget}")
            k.grad(*args, budget=budget)

        same("a budget gives other bits", want, c.gradient(backward))
    for n, (k, args) in enumerate(c.calls):
        if least[n] > 0:
            try:
                k.grad(*args, budget=least[n] - 1)
            except qd.OutOfMemory:
                continue
            raise Wrong("a budget below the smallest is taken", f"{least[n]}")


def _small(path: Path, text: str, want: np.ndarray, rng: random.Random) -> None:
    """Stacks of a few states: the same bits, or an overflow that says so."""
    with case(path, text, SCALAR, ad_stack_size=rng.choice((1, 2, 3))) as c:
        try:
            got = c.gradient()
        except qd.AdStackOverflow:
            return
        same("a small stack gives other bits", want, got)


def _elsewhere(
    path: Path, text: str, want: np.ndarray, spread: np.ndarray, rng: random.Random, devices: list[str], out: Result
) -> None:
    """Threads, lanes and devices: sums in another order and other last bits of sines, no more."""
    ways = rng.sample([c for c in OTHERS if c.name in ("threads", "lanes 4", "default", "debug", "sparse", "budget")], 1)
    if "emulated" in devices and rng.random() < 0.25:
        ways += [c for c in OTHERS if c.name == "emulated"]
    if "cuda" in devices:
        ways.append(CUDA)
    if "vulkan" in devices and rng.random() < 0.25:
        ways.append(VULKAN)
    eps = float(np.finfo(want.dtype).eps)
    finite = want[np.isfinite(want)].astype(float)
    scale = max(1.0, float(np.max(np.abs(finite), initial=0.0)))
    for way in ways:
        out.compared.append(f"gradient {way.name}")
        try:
            _as_elsewhere(path, text, way, want, 1e6 * eps * scale + 1000 * spread, rng.choice((1, 2, 3)))
        except qd.QdrunError as e:
            if not way.sparse or not any(part in str(e) for part in UNABLE):
                raise


def _as_elsewhere(path: Path, text: str, way: Config, want: np.ndarray, allowed: np.ndarray, levels: int) -> None:
    """The gradient in one other way of running."""
    with case(path, text, way, ad_checkpoint_levels=levels) as c:
        got = c.gradient()
        planned, held = c.planned(), c.held()
        if planned != held:
            raise Wrong(f"{way.name}: the heap is not what was planned", f"planned {planned}, held {held}")
        right = np.abs(got.astype(float) - want) <= allowed
        right |= ~np.isfinite(want + allowed) | ~apart(want, got)
        if not right.all():
            raise Wrong(
                f"the gradient on {way.name}",
                f"{want[~right][:4].tolist()} and {got[~right][:4].tolist()}",
            )
