"""Gradient descent as pure functions of numpy arrays: update rules, learning rates, clipping, bounds.

Names, options and formulas are those of optax and torch.optim where the two agree; where they do not, those of torch (``rmsprop``: eps
is added to the root, its decay is 0.99; ``adagrad``: sums begin at 0). Everything is f64, element by element, and deterministic.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Arrays = Mapping[str, np.ndarray]
Memory = Mapping[str, np.ndarray]
"""The state of a rule for one parameter; empty before the first step."""
Rule = Callable[..., tuple[np.ndarray, Memory]]
"""``rule(x, g, memory, rate, count, **options)``: parameter, gradient, what was kept, learning rate, number of the step from 1; gives
the new parameter and what to keep.
"""


def sgd(x: np.ndarray, g: np.ndarray, memory: Memory, rate: float, count: int) -> tuple[np.ndarray, Memory]:
    """Plain gradient descent: x - rate g."""
    del memory, count
    return x - rate * g, {}


def momentum(
    x: np.ndarray, g: np.ndarray, memory: Memory, rate: float, count: int, *, momentum: float = 0.9
) -> tuple[np.ndarray, Memory]:
    """A heavy ball: v = momentum v + g, x - rate v."""
    v = momentum * memory["v"] + g if count > 1 else g
    return x - rate * v, {"v": v}


def nesterov(
    x: np.ndarray, g: np.ndarray, memory: Memory, rate: float, count: int, *, momentum: float = 0.9
) -> tuple[np.ndarray, Memory]:
    """Nesterov's momentum: v = momentum v + g, x - rate (g + momentum v)."""
    v = momentum * memory["v"] + g if count > 1 else g
    return x - rate * (g + momentum * v), {"v": v}


def _moments(
    g: np.ndarray, memory: Memory, count: int, b1: float, b2: float, eps: float
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The direction of Adam: both moments, divided by how much of their sums is there yet."""
    m = b1 * memory.get("m", 0.0) + (1.0 - b1) * g
    v = b2 * memory.get("v", 0.0) + (1.0 - b2) * g * g
    return (m / (1.0 - b1**count)) / (np.sqrt(v / (1.0 - b2**count)) + eps), {"m": m, "v": v}


def adam(
    x: np.ndarray,
    g: np.ndarray,
    memory: Memory,
    rate: float,
    count: int,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
) -> tuple[np.ndarray, Memory]:
    """Adam (Kingma and Ba 2015), with bias correction."""
    direction, kept = _moments(g, memory, count, b1, b2, eps)
    return x - rate * direction, kept


def adamw(
    x: np.ndarray,
    g: np.ndarray,
    memory: Memory,
    rate: float,
    count: int,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.01,
) -> tuple[np.ndarray, Memory]:
    """Adam whose parameters also decay by rate * weight_decay in each step (Loshchilov and Hutter 2019)."""
    direction, kept = _moments(g, memory, count, b1, b2, eps)
    return x - rate * (direction + weight_decay * x), kept


def rmsprop(
    x: np.ndarray, g: np.ndarray, memory: Memory, rate: float, count: int, *, decay: float = 0.99, eps: float = 1e-8
) -> tuple[np.ndarray, Memory]:
    """The gradient divided by the root of a running mean of its squares."""
    del count
    v = decay * memory.get("v", 0.0) + (1.0 - decay) * g * g
    return x - rate * g / (np.sqrt(v) + eps), {"v": v}


def adagrad(
    x: np.ndarray, g: np.ndarray, memory: Memory, rate: float, count: int, *, eps: float = 1e-10
) -> tuple[np.ndarray, Memory]:
    """The gradient divided by the root of the sum of its squares so far (Duchi et al. 2011)."""
    del count
    v = memory.get("v", 0.0) + g * g
    return x - rate * g / (np.sqrt(v) + eps), {"v": v}


def lion(
    x: np.ndarray,
    g: np.ndarray,
    memory: Memory,
    rate: float,
    count: int,
    *,
    b1: float = 0.9,
    b2: float = 0.99,
    weight_decay: float = 0.0,
) -> tuple[np.ndarray, Memory]:
    """The sign of an interpolated momentum (Chen et al. 2023)."""
    del count
    m = memory.get("m", np.zeros_like(g))
    return x - rate * (np.sign(b1 * m + (1.0 - b1) * g) + weight_decay * x), {"m": b2 * m + (1.0 - b2) * g}


RULES: dict[str, Rule] = {rule.__name__: rule for rule in (sgd, momentum, nesterov, adam, adamw, rmsprop, adagrad, lion)}
"""The rules by their names in a config."""


SEARCHES: dict[str, dict[str, float]] = {
    "lbfgs": {"history": 10, "first": 1.0},
    "levenberg_marquardt": {"damping": 1e-3},
}
"""Rules that find the length of each step themselves, with their options and the defaults."""


def options_of(rule: str) -> dict[str, float]:
    """The options of a rule with their defaults."""
    if rule in SEARCHES:
        return dict(SEARCHES[rule])
    parameters = inspect.signature(RULES[rule]).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


@dataclass(frozen=True)
class RuleState:
    """The state of a rule for all parameters after ``count`` steps."""

    count: int = 0
    memory: Mapping[str, Memory] = field(default_factory=dict)


def update(
    rule: str, options: Mapping[str, float], state: RuleState, x: Arrays, g: Arrays, rate: float
) -> tuple[dict[str, np.ndarray], RuleState]:
    """One step of a rule on all parameters."""
    count, moved, kept = state.count + 1, {}, {}
    for name, value in x.items():
        moved[name], kept[name] = RULES[rule](value, g[name], state.memory.get(name, {}), rate, count, **options)
    return moved, RuleState(count, kept)


def row_norms(arrays: Arrays) -> np.ndarray:
    """The Euclidean norm of all elements of all arrays in each row: the first axis are trials. Nothing overflows on the way."""
    flat = [np.abs(value).reshape(len(value), -1) for value in arrays.values()]
    most = np.max([rows.max(axis=1, initial=0.0) for rows in flat], axis=0)
    usual = np.isfinite(most) & (most > 0.0)
    unit = np.where(usual, most, 1.0)
    sums = np.sum([np.sum((rows / unit[:, None]) ** 2, axis=1) for rows in flat], axis=0)
    return np.where(usual, most * np.sqrt(sums), most)


def clipped_rows(g: Arrays, most: float) -> dict[str, np.ndarray]:
    """Gradients scaled down together so that the norm of each row is at most ``most``; smaller ones as they are."""
    norms = row_norms(g)
    part = np.where(norms <= most, 1.0, most / np.where(norms <= most, 1.0, norms))
    return {name: value * part.reshape(-1, *[1] * (value.ndim - 1)) for name, value in g.items()}


def projected(x: Arrays, bounds: Mapping[str, tuple[float, float]]) -> dict[str, np.ndarray]:
    """Parameters moved to the nearest point within their bounds."""
    return {name: np.clip(value, *bounds[name]) if name in bounds else value for name, value in x.items()}


def free_part(x: Arrays, g: Arrays, bounds: Mapping[str, tuple[float, float]]) -> dict[str, np.ndarray]:
    """Gradients without what pushes a parameter at a bound outwards: zero at a minimum within bounds."""
    out = dict(g)
    for name, (low, high) in bounds.items():
        value = g[name]
        out[name] = np.where(((x[name] <= low) & (value > 0.0)) | ((x[name] >= high) & (value < 0.0)), 0.0, value)
    return out


def exponential(step: int, *, start: float, factor: float, every: float = 1.0, end: float = 0.0) -> float:
    """From ``start``, times ``factor`` in every ``every`` steps, smoothly: start * factor^(step / every), not below ``end``."""
    return max(end, start * factor ** (step / every))


def cosine(step: int, *, start: float, end: float = 0.0, steps: float) -> float:
    """From ``start`` to ``end`` along half a cosine in ``steps`` steps, then ``end``."""
    part = min(step, steps) / steps
    return end + (start - end) * 0.5 * (1.0 + math.cos(math.pi * part))


def warmup(step: int, *, peak: float, warmup_steps: float, start: float = 0.0, end: float = 0.0, steps: float) -> float:
    """In a line from ``start`` to ``peak`` in ``warmup_steps`` steps, then along half a cosine to ``end`` at step ``steps``."""
    if step < warmup_steps:
        return start + (peak - start) * step / warmup_steps
    return cosine(step - int(warmup_steps), start=peak, end=end, steps=max(1.0, steps - warmup_steps))


SCHEDULES: dict[str, Callable[..., float]] = {"exponential": exponential, "cosine": cosine, "warmup": warmup}
"""Learning rates that change from step to step, by their names in a config; the first step is number 0."""


def rate_at(step: int, learning_rate: float | Mapping[str, Mapping[str, float]], steps: int) -> float:
    """The learning rate of a step, of a run of ``steps``."""
    if isinstance(learning_rate, int | float):
        return float(learning_rate)
    ((name, numbers),) = learning_rate.items()
    whole: dict[str, Any] = {"steps": steps} if "steps" in inspect.signature(SCHEDULES[name]).parameters else {}
    return SCHEDULES[name](step, **(whole | dict(numbers)))
