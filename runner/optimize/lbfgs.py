"""L-BFGS with bounds (L-BFGS-B), for many optimisation runs at once: a row for each, all in f64.

A direction leads to the minimum of a quadratic model within the bounds, see ``box_model``. The step length fulfils the weak Wolfe
conditions by bracketing (Lewis and Overton 2013), with interpolation, or their approximate form near a minimum (Hager and Zhang 2005).
Every evaluation is one call of ``advance``: it ends the search along the present direction and begins the next one, or continues it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .box_model import BoxModel

C1, C2 = 1e-4, 0.9
"""Wolfe conditions: the required decrease and slope, as fractions of the slope at the start of the search."""
ROUNDING = 1e-10
"""Losses whose relative difference is smaller are compared by their slopes."""
TRIES = 24
"""Maximum evaluations along one direction. Then the search ends at its lowest point and the pairs are forgotten."""
STALLED = 100
"""Searches without a smaller loss or gradient, after which the run is over: losses no longer tell points apart."""
GROWTH = 4.0
Memory = dict[str, np.ndarray]


def begin(x: np.ndarray, pairs: int) -> Memory:
    """Return the memory before the first evaluation at ``x``, (R, n). ``pairs`` steps and gradient changes will be kept."""
    rows, size = x.shape
    numbers = {name: np.zeros(rows) for name in ("f0", "t", "lo", "f_lo", "slope_lo", "f_hi")}
    counts = {name: np.zeros(rows, np.int64) for name in ("tries", "pairs", "probe", "done", "stalled")}
    vectors = {name: np.zeros((rows, size)) for name in ("x0", "g0", "d", "x_lo", "g_lo")}
    matrices = {name: np.zeros((rows, pairs, size)) for name in ("s", "y")}
    infinite = {name: np.full(rows, np.inf) for name in ("hi", "end", "least_f", "least_g")}
    return {**numbers, **counts, **vectors, **matrices, **infinite}


def advance(
    memory: Mapping[str, np.ndarray],
    x: np.ndarray,
    f: np.ndarray,
    g: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    first: float,
) -> tuple[np.ndarray, Memory]:
    """Return the next points, from the losses and gradients at these.

    Args:
        memory: of ``begin``, or of the last call. ``probe``: the points are tries of a step length, which may be of no use. ``done``: no
            step lowers the loss.
        x: (R, n), the points.
        f: (R,), the losses there; those of probes may be infinite or NaN.
        g: (R, n), the gradients there.
        low: (n,), lower bounds.
        high: (n,), upper bounds.
        first: length of the first step, where the gradient is longer.

    Returns:
        The points to evaluate next, and the memory; the arrays of ``memory`` are not changed.
    """
    m = {name: value.copy() for name, value in memory.items()}
    probe = m["probe"].astype(bool)
    moved = x - m["x0"]
    slope0, slope = _dot(m["g0"], moved), _dot(g, moved)
    finite = np.isfinite(f) & np.isfinite(g).all(axis=1)
    lower = f <= m["f0"] + C1 * slope0
    nearly = (f <= m["f0"] + ROUNDING * np.abs(m["f0"])) & (slope <= (2.0 * C1 - 1.0) * slope0)
    enough = finite & (slope0 < 0.0) & (lower | nearly)
    accept = ~probe | (enough & ((slope >= C2 * slope0) | (m["t"] >= m["end"])))
    _bracket(m, x, f, g, accept, enough)
    m["tries"] += 1
    lost = ~accept & ((m["tries"] >= TRIES) | (np.abs(moved) <= 1e-16 * np.maximum(1.0, np.abs(x))).all(axis=1))
    _take(m, accept, x, f, g)
    some = lost & (m["lo"] > 0.0)  # a point that is low enough, though its slope is not
    _take(m, some, m["x_lo"].copy(), m["f_lo"].copy(), m["g_lo"].copy())
    again = lost & (some | (m["pairs"] > 0))
    m["done"][lost & ~again] = 1
    m["pairs"][again] = 0
    turn = accept | again
    if turn.any():
        _turn(m, turn, low, high, first)
    m["probe"][:] = 1
    return np.clip(m["x0"] + m["t"][:, None] * m["d"], low, high), m


def _dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.einsum("rn,rn->r", a, b)


def _bracket(m: Memory, x: np.ndarray, f: np.ndarray, g: np.ndarray, accept: np.ndarray, enough: np.ndarray) -> None:
    """Choose the next step length of the searches that continue: between one that is too short and one that is too long."""
    long, short, t, slope = ~accept & ~enough, ~accept & enough, m["t"], _dot(g, m["d"])
    m["hi"][long], m["f_hi"][long] = t[long], f[long]
    m["lo"][short], m["f_lo"][short], m["slope_lo"][short] = t[short], f[short], slope[short]
    m["x_lo"][short], m["g_lo"][short] = x[short], g[short]
    width = m["hi"] - m["lo"]
    bounded = ~accept & np.isfinite(width)
    with np.errstate(all="ignore"):
        rise = (
            m["f_hi"] - m["f_lo"] - m["slope_lo"] * width
        )  # of the parabola through the lower end, its slope, and the upper end
        part = -m["slope_lo"] * width / (2.0 * rise)
    part = np.where(np.isfinite(part) & (rise > 0.0), part, np.where(np.isfinite(m["f_hi"]), 0.5, 0.1))
    t[bounded] = (m["lo"] + width * np.clip(part, 0.1, 0.9))[bounded]
    open_ = ~accept & ~bounded
    t[open_] = np.minimum(GROWTH * t, m["end"])[open_]


def _take(m: Memory, rows: np.ndarray, x: np.ndarray, f: np.ndarray, g: np.ndarray) -> None:
    """End searches at these points. A step and its gradient change are kept where the curvature is positive."""
    moved, change = x - m["x0"], g - m["g0"]
    curved = rows & (m["probe"] > 0) & (_dot(moved, change) > 1e-12 * np.sqrt(_dot(moved, moved) * _dot(change, change)))
    for name, vector in (("s", moved), ("y", change)):
        m[name][curved, 1:] = m[name][curved, :-1]
        m[name][curved, 0] = vector[curved]
    m["pairs"][curved] = np.minimum(m["pairs"][curved] + 1, m["s"].shape[1])
    m["x0"][rows], m["g0"][rows], m["f0"][rows] = x[rows], g[rows], f[rows]


def _turn(m: Memory, turn: np.ndarray, low: np.ndarray, high: np.ndarray, first: float) -> None:
    """Choose new directions in some rows, and the first step length along each."""
    x, g = m["x0"][turn], m["g0"][turn]
    held = ((x <= low) & (g > 0.0)) | ((x >= high) & (g < 0.0))
    downhill = np.where(held, 0.0, -g)
    length = np.sqrt(_dot(downhill, downhill))
    stalled = _count_stalled(m, turn, length)
    pairs = m["pairs"][turn]
    d = BoxModel.of(x, g, low, high, m["s"][turn], m["y"][turn], pairs).minimum() - x
    unusable = ~np.isfinite(d).all(axis=1) | (_dot(d, g) > -1e-12 * np.sqrt(_dot(d, d)) * length)
    pairs = np.where(unusable, 0, pairs)
    d = np.where(unusable[:, None], downhill, d)
    with np.errstate(all="ignore"):
        t = np.where(pairs > 0, 1.0, np.minimum(1.0, first / np.sqrt(_dot(d, d))))
        room = np.where(d > 0.0, (high - x) / d, np.where(d < 0.0, (low - x) / d, np.inf))
    end = np.min(room, axis=1, initial=np.inf)
    end = np.where(pairs > 0, np.maximum(end, 1.0), end)  # rounding: the minimum of the model is within the bounds
    m["d"][turn], m["t"][turn], m["end"][turn], m["pairs"][turn], m["tries"][turn] = d, np.minimum(t, end), end, pairs, 0
    m["lo"][turn], m["hi"][turn] = 0.0, np.inf
    m["f_lo"][turn], m["slope_lo"][turn] = m["f0"][turn], _dot(g, d)
    m["done"][turn] |= (length == 0.0) | (stalled >= STALLED)


def _count_stalled(m: Memory, turn: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Count the searches of some rows since the loss or the projected gradient, of this ``length``, was smaller than ever before."""
    f = m["f0"][turn]
    better = (f < m["least_f"][turn]) | (length < m["least_g"][turn])
    m["least_f"][turn], m["least_g"][turn] = np.fmin(m["least_f"][turn], f), np.fmin(m["least_g"][turn], length)
    m["stalled"][turn] = np.where(better, 0, m["stalled"][turn] + 1)
    return m["stalled"][turn]


__all__ = ["advance", "begin"]
