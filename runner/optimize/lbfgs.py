"""L-BFGS with bounds, for many descents at once: a row for each, all in f64.

The direction is that of limited-memory BFGS (Nocedal 1980) on the parameters that no bound holds back; points lie on the direction's path
along the bounds. The step length fulfils the weak Wolfe conditions by bracketing (Lewis and Overton 2013), with interpolation, or their
approximate form near a minimum (Hager and Zhang 2005). Every evaluation is one call of ``advance``: it either ends the search along the
present direction, and begins with the next one, or goes on with it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

C1, C2 = 1e-4, 0.9
"""Of the Wolfe conditions: the decrease, and the slope, that a step must reach, as parts of those of the first one."""
ROUNDING = 1e-10
"""Losses that differ by less, relative to their size, are compared by their slopes."""
TRIES = 24
"""Evaluations along one direction; then the curvature is forgotten, and without any the descent is over."""
GROWTH = 4.0
Memory = dict[str, np.ndarray]


def begin(x: np.ndarray, pairs: int) -> Memory:
    """Before the first evaluation at ``x``, (R, n): ``pairs`` of steps and differences of gradients will be kept."""
    rows, size = x.shape
    numbers = {name: np.zeros(rows) for name in ("f0", "t", "lo", "f_lo", "slope_lo", "f_hi")}
    counts = {name: np.zeros(rows, np.int64) for name in ("tries", "pairs", "probe", "done")}
    vectors = {name: np.zeros((rows, size)) for name in ("x0", "g0", "d")}
    matrices = {name: np.zeros((rows, pairs, size)) for name in ("s", "y")}
    return {**numbers, **counts, **vectors, **matrices, "hi": np.full(rows, np.inf)}


def advance(
    memory: Mapping[str, np.ndarray],
    x: np.ndarray,
    f: np.ndarray,
    g: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    first: float,
) -> tuple[np.ndarray, Memory]:
    """The next points, from the losses and gradients at these.

    Args:
        memory: of ``begin``, or of the last call. ``probe``: the points are tries of a step length, which may be of no use. ``done``: no
            step lowers the loss.
        x: (R, n), the points.
        f: (R,), the losses there; those of probes may be infinite or NaN.
        g: (R, n), the gradients there.
        low: (n,), bounds.
        high: (n,), bounds.
        first: the length of the first step, where the gradient is longer.

    Returns:
        The points to evaluate next, and the memory; the arrays of ``memory`` are left alone.
    """
    m = {name: value.copy() for name, value in memory.items()}
    probe = m["probe"].astype(bool)
    moved = x - m["x0"]
    slope0, slope = _dot(m["g0"], moved), _dot(g, moved)
    finite = np.isfinite(f) & np.isfinite(g).all(axis=1)
    lower = f <= m["f0"] + C1 * slope0
    nearly = (f <= m["f0"] + ROUNDING * np.abs(m["f0"])) & (slope <= (2.0 * C1 - 1.0) * slope0)
    enough = finite & (slope0 < 0.0) & (lower | nearly)
    blocked = (_within(m["x0"] + GROWTH * m["t"][:, None] * m["d"], low, high) == x).all(axis=1)
    accept = ~probe | (enough & ((slope >= C2 * slope0) | blocked))
    _bracket(m, f, _dot(g, m["d"]), accept, enough)
    m["tries"] += 1
    lost = ~accept & ((m["tries"] >= TRIES) | (np.abs(moved) <= 1e-16 * np.maximum(1.0, np.abs(x))).all(axis=1))
    _take(m, accept, moved, x, f, g)
    again = lost & (m["pairs"] > 0)
    m["done"][lost & ~again] = 1
    m["pairs"][again] = 0
    turn = accept | again
    if turn.any():
        _turn(m, turn, low, high, first)
    m["probe"][:] = 1
    return _within(m["x0"] + m["t"][:, None] * m["d"], low, high), m


def _dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.einsum("rn,rn->r", a, b)


def _within(x: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return np.clip(x, low, high)


def _bracket(m: Memory, f: np.ndarray, slope: np.ndarray, accept: np.ndarray, enough: np.ndarray) -> None:
    """The next step length of the searches that go on: between one that is too short and one that is too long."""
    long, short, t = ~accept & ~enough, ~accept & enough, m["t"]
    m["hi"][long], m["f_hi"][long] = t[long], f[long]
    m["lo"][short], m["f_lo"][short], m["slope_lo"][short] = t[short], f[short], slope[short]
    width = m["hi"] - m["lo"]
    bounded = ~accept & np.isfinite(width)
    with np.errstate(all="ignore"):
        rise = (
            m["f_hi"] - m["f_lo"] - m["slope_lo"] * width
        )  # of the parabola through the lower end, its slope, and the upper end
        part = -m["slope_lo"] * width / (2.0 * rise)
    part = np.where(np.isfinite(part) & (rise > 0.0), part, np.where(np.isfinite(m["f_hi"]), 0.5, 0.1))
    t[bounded] = (m["lo"] + width * np.clip(part, 0.1, 0.9))[bounded]
    t[~accept & ~bounded] *= GROWTH


def _take(m: Memory, accept: np.ndarray, moved: np.ndarray, x: np.ndarray, f: np.ndarray, g: np.ndarray) -> None:
    """The points that end a search: their steps and differences of gradients are kept where the curvature is positive."""
    change = g - m["g0"]
    curved = accept & (m["probe"] > 0) & (_dot(moved, change) > 1e-12 * np.sqrt(_dot(moved, moved) * _dot(change, change)))
    for name, vector in (("s", moved), ("y", change)):
        m[name][curved, 1:] = m[name][curved, :-1]
        m[name][curved, 0] = vector[curved]
    m["pairs"][curved] = np.minimum(m["pairs"][curved] + 1, m["s"].shape[1])
    m["x0"][accept], m["g0"][accept], m["f0"][accept] = x[accept], g[accept], f[accept]


def _turn(m: Memory, turn: np.ndarray, low: np.ndarray, high: np.ndarray, first: float) -> None:
    """New directions in some rows, and the first step length along each."""
    held = ((m["x0"] <= low) & (m["g0"] > 0.0)) | ((m["x0"] >= high) & (m["g0"] < 0.0))
    free = np.where(held, 0.0, m["g0"])
    d = -_hessian_times(m, free, ~held)
    uphill = _dot(d, free) > -1e-12 * np.sqrt(_dot(d, d) * _dot(free, free))
    m["pairs"][turn & uphill] = 0
    d = np.where(uphill[:, None], -free, d)
    length = np.sqrt(_dot(free, free))
    with np.errstate(divide="ignore"):
        t = np.where(m["pairs"] > 0, 1.0, np.minimum(1.0, first / length))
    m["d"][turn], m["t"][turn], m["tries"][turn] = d[turn], t[turn], 0
    m["lo"][turn], m["hi"][turn] = 0.0, np.inf
    m["f_lo"][turn], m["slope_lo"][turn] = m["f0"][turn], _dot(m["g0"], d)[turn]
    m["done"][turn & (length == 0.0)] = 1


def _hessian_times(m: Memory, g: np.ndarray, free: np.ndarray) -> np.ndarray:
    """The inverse Hessian that the pairs stand for, restricted to the free parameters, times ``g``."""
    s, y = m["s"] * free[:, None, :], m["y"] * free[:, None, :]
    sy, yy = np.einsum("rmn,rmn->rm", s, y), np.einsum("rmn,rmn->rm", y, y)
    good = (np.arange(s.shape[1]) < m["pairs"][:, None]) & (sy > 1e-300)
    rho = np.where(good, 1.0 / np.where(good, sy, 1.0), 0.0)
    q, alpha = g.copy(), np.zeros_like(sy)
    for k in range(s.shape[1]):
        alpha[:, k] = rho[:, k] * _dot(s[:, k], q)
        q -= alpha[:, k, None] * y[:, k]
    newest = np.argmax(good, axis=1)
    rows = np.arange(len(g))
    some = good.any(axis=1)
    q *= np.where(some, sy[rows, newest] / np.where(some, yy[rows, newest], 1.0), 1.0)[:, None]
    for k in reversed(range(s.shape[1])):
        q += (alpha[:, k] - rho[:, k] * _dot(y[:, k], q))[:, None] * s[:, k]
    return q


__all__ = ["advance", "begin"]
