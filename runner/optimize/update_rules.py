"""Gradient descent as pure functions of numpy arrays: update rules, learning rates, clipping, bounds.

Names, options and formulas are those of optax and torch.optim where the two agree; where they do not, those of torch (``rmsprop``: eps
is added to the root, its decay is 0.99; ``adagrad``: sums begin at 0). Everything is f64, element by element, and deterministic.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Arrays = Mapping[str, np.ndarray]
Memory = Mapping[str, np.ndarray]
"""What a rule keeps for one parameter: arrays of its shape, zero before the first step."""
Rule = Callable[..., tuple[Any, ...]]
"""``rule(x, g, *memory, rate, m_scale, v_scale, *options)``: parameter, gradient, what was kept, learning rate, and for Adam the correction
of both moments, see ``corrections``; gives the new parameter and what to keep. NumPy calls these functions with arrays, and
``jobs.core.optimizer`` compiles them: one formula for both.
"""


def sgd(x: Any, g: Any, rate: Any, m_scale: Any, v_scale: Any) -> Any:
    """Plain gradient descent: x - rate g."""
    return (x - rate * g,)


def momentum(x: Any, g: Any, v: Any, rate: Any, m_scale: Any, v_scale: Any, momentum: float = 0.9) -> Any:
    """A heavy ball: v = momentum v + g, x - rate v."""
    v = momentum * v + g
    return x - rate * v, v


def nesterov(x: Any, g: Any, v: Any, rate: Any, m_scale: Any, v_scale: Any, momentum: float = 0.9) -> Any:
    """Nesterov's momentum: v = momentum v + g, x - rate (g + momentum v)."""
    v = momentum * v + g
    return x - rate * (g + momentum * v), v


def adam(
    x: Any, g: Any, m: Any, v: Any, rate: Any, m_scale: Any, v_scale: Any, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8
) -> Any:
    """Adam (Kingma and Ba 2015), with bias correction."""
    m = b1 * m + (1.0 - b1) * g
    v = b2 * v + (1.0 - b2) * g * g
    return x - (rate * m_scale) * m / (np.sqrt(v) * v_scale + eps), m, v


def adamw(
    x: Any,
    g: Any,
    m: Any,
    v: Any,
    rate: Any,
    m_scale: Any,
    v_scale: Any,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.01,
) -> Any:
    """Adam whose parameters also decay by rate * weight_decay in each step (Loshchilov and Hutter 2019)."""
    m = b1 * m + (1.0 - b1) * g
    v = b2 * v + (1.0 - b2) * g * g
    return x - ((rate * m_scale) * m / (np.sqrt(v) * v_scale + eps) + (rate * weight_decay) * x), m, v


def rmsprop(x: Any, g: Any, v: Any, rate: Any, m_scale: Any, v_scale: Any, decay: float = 0.99, eps: float = 1e-8) -> Any:
    """The gradient divided by the root of a running mean of its squares."""
    v = decay * v + (1.0 - decay) * g * g
    return x - rate * g / (np.sqrt(v) + eps), v


def adagrad(x: Any, g: Any, v: Any, rate: Any, m_scale: Any, v_scale: Any, eps: float = 1e-10) -> Any:
    """The gradient divided by the root of the sum of its squares so far (Duchi et al. 2011)."""
    v = v + g * g
    return x - rate * g / (np.sqrt(v) + eps), v


def lion(
    x: Any,
    g: Any,
    m: Any,
    rate: Any,
    m_scale: Any,
    v_scale: Any,
    b1: float = 0.9,
    b2: float = 0.99,
    weight_decay: float = 0.0,
) -> Any:
    """The sign of an interpolated momentum (Chen et al. 2023)."""
    return x - rate * (np.sign(b1 * m + (1.0 - b1) * g) + weight_decay * x), b2 * m + (1.0 - b2) * g


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
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def memory_of(rule: str) -> tuple[str, ...]:
    """The names of the arrays that a rule keeps for each parameter."""
    return tuple(name for name in inspect.signature(RULES[rule]).parameters if name in ("m", "v"))


def corrections(rule: str, options: Mapping[str, float], count: int) -> tuple[float, float]:
    """What corrects the bias of both moments of Adam in step ``count``, from 1: factors of m, and of the root of v. For other rules 1."""
    if rule not in ("adam", "adamw"):
        return 1.0, 1.0
    return 1.0 / (1.0 - options["b1"] ** count), 1.0 / math.sqrt(1.0 - options["b2"] ** count)


@dataclass(frozen=True)
class RuleState:
    """The state of a rule for all parameters after ``count`` steps."""

    count: int = 0
    memory: Mapping[str, Memory] = field(default_factory=dict)


def update(
    rule: str, options: Mapping[str, float], state: RuleState, x: Arrays, g: Arrays, rate: float
) -> tuple[dict[str, np.ndarray], RuleState]:
    """One step of a rule on all parameters."""
    count, moved, kept, names = state.count + 1, {}, {}, memory_of(rule)
    options = options_of(rule) | dict(options)
    scales = corrections(rule, options, count)
    for name, value in x.items():
        before = state.memory.get(name) or {kind: np.zeros_like(value) for kind in names}
        moved[name], *after = RULES[rule](value, g[name], *(before[kind] for kind in names), rate, *scales, **options)
        kept[name] = dict(zip(names, after, strict=True))
    return moved, RuleState(count, kept)


BLOCK = 1024
"""Numbers of an array whose squares are added one after the other; then the sums of its blocks are."""
USUAL = 1e-280, 1e280
"""Sums of squares in this range have lost nothing; of others the numbers are divided by the largest first."""


def row_norms(arrays: Arrays) -> np.ndarray:
    """The Euclidean norm of all elements of all arrays in each row: the first axis are trials. Nothing overflows on the way.

    Squares are added in the order of ``jobs.core.optimizer``, so that a trial has the same norm to the bit alone and in a batch.
    """
    flat = [np.abs(value).reshape(len(value), -1) for value in arrays.values()]
    sums = _squares(flat)
    unusual = ~((sums > USUAL[0]) & (sums < USUAL[1])) & ~np.isnan(sums)
    norms = np.sqrt(sums)
    if unusual.any():
        rows = [value[unusual] for value in flat]
        most = np.max([value.max(axis=1, initial=0.0) for value in rows], axis=0)
        divide = np.isfinite(most) & (most > 0.0)
        unit = np.where(divide, most, 1.0)[:, None]
        norms[unusual] = np.where(divide, most * np.sqrt(_squares([value / unit for value in rows])), most)
    return norms


def _squares(flat: Sequence[np.ndarray]) -> np.ndarray:
    """The sums of squares of each row; infinite where they overflow."""
    total = np.zeros(len(flat[0]))
    with np.errstate(over="ignore"):
        for value in flat:
            for first in range(0, value.shape[1], BLOCK):
                total += np.cumsum(np.square(value[:, first : first + BLOCK]), axis=1)[:, -1]
    return total


def clip_factors(norms: np.ndarray, most: float) -> np.ndarray:
    """What scales each of these norms down to at most ``most``."""
    return np.where(norms <= most, 1.0, most / np.where(norms <= most, 1.0, norms))


def clipped_rows(g: Arrays, most: float) -> dict[str, np.ndarray]:
    """Gradients scaled down together so that the norm of each row is at most ``most``; smaller ones as they are."""
    part = clip_factors(row_norms(g), most)
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
