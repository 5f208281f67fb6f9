"""Levenberg-Marquardt with bounds for one descent: steps from the Jacobian of residuals, all in f64.

A step solves (A + lambda D) p = -g on the parameters that no bound holds back, where A = J^T J and D is the largest diagonal of A so far
(More 1978); lambda follows the ratio of the real to the predicted decrease (Nielsen 1999). With lambda = 0 it is Gauss-Newton's step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

LEAST = 1e-4
"""The part of the predicted decrease that a step must reach."""
FIRST = 1e-3
"""Lambda after a Gauss-Newton step that was of no use."""
MOST = 1e20
Memory = dict[str, np.ndarray]


def begin(x: np.ndarray, damping: float) -> Memory:
    """Before the first evaluation at ``x``, (1, n). ``damping``: the first lambda."""
    size = x.shape[1]
    numbers = {"f0": 0.0, "lambda": damping, "growth": 2.0, "expected": 0.0}
    memory = {name: np.array([value]) for name, value in numbers.items()}
    memory |= {name: np.zeros(1, np.int64) for name in ("probe", "done")}
    memory |= {name: np.zeros((1, size)) for name in ("x0", "g0", "d")}
    return memory | {"a": np.zeros((1, size, size))}


def advance(
    memory: Mapping[str, np.ndarray],
    x: np.ndarray,
    f: np.ndarray,
    g: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    jacobian: Callable[[], np.ndarray],
) -> tuple[np.ndarray, Memory]:
    """The next point, from the loss and the gradient at this one.

    Args:
        memory: of ``begin``, or of the last call; see ``lbfgs.advance`` for ``probe`` and ``done``.
        x: (1, n), the point.
        f: (1,), the loss there: half the sum of the squares of the residuals.
        g: (1, n), the gradient there.
        low: (n,), bounds.
        high: (n,), bounds.
        jacobian: gives that of the residuals at the point, (m, n); it is asked for where the point is accepted alone.
    """
    m = {name: value.copy() for name, value in memory.items()}
    decrease, expected = m["f0"][0] - f[0], m["expected"][0]
    ratio = decrease / expected if expected > 0.0 else -1.0
    fine = bool(np.isfinite(f[0]) and np.isfinite(g[0]).all())
    if not m["probe"][0] or (fine and ratio > LEAST):
        if m["probe"][0]:
            m["lambda"] *= max(1.0 / 3.0, 1.0 - (2.0 * ratio - 1.0) ** 3)
            m["growth"][0] = 2.0
        j = jacobian()
        m["a"][0], m["x0"], m["g0"], m["f0"] = j.T @ j, x.copy(), g.copy(), f.copy()
        m["d"][0] = np.maximum(m["d"][0], np.diagonal(m["a"][0]))
    else:
        _damp(m)
    m["probe"][0] = 1
    return _step(m, low, high), m


def _damp(m: Memory) -> None:
    m["lambda"][0] = max(m["lambda"][0] * m["growth"][0], FIRST)
    m["growth"][0] *= 2.0


def _step(m: Memory, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The next point: with ever more damping until the model promises a decrease."""
    x, g, a = m["x0"][0], m["g0"][0], m["a"][0]
    free = ~(((x <= low) & (g > 0.0)) | ((x >= high) & (g < 0.0)))
    scale = np.where(m["d"][0] > 0.0, m["d"][0], 1.0)
    while m["lambda"][0] <= MOST and free.any() and np.any(g[free]):
        system = a[np.ix_(free, free)] + m["lambda"][0] * np.diag(scale[free])
        step = np.zeros_like(x)
        try:
            step[free] = -np.linalg.solve(system, g[free])
        except np.linalg.LinAlgError:  # of Gauss-Newton, where residuals do not determine all parameters
            step[free] = -np.linalg.lstsq(system, g[free], rcond=None)[0]
        moved = np.clip(x + step, low, high)
        real = moved - x
        expected = -(g @ real + 0.5 * real @ a @ real)
        if np.isfinite(expected) and expected > 0.0 and np.any(np.abs(real) > 1e-16 * np.maximum(1.0, np.abs(x))):
            m["expected"][0] = expected
            return moved[None]
        _damp(m)
    m["done"][0] = 1
    return m["x0"].copy()


__all__ = ["advance", "begin"]
