"""Minimise the quadratic model of L-BFGS within bounds, for many optimisation runs at once: a row for each, all in f64.

The model has the Hessian ``theta I - W M W^T`` of the compact representation (Byrd, Nocedal and Schnabel, Mathematical Programming 63
(1994), 129-156). Its minimum is searched as L-BFGS-B does (Byrd, Lu, Nocedal and Zhu, SIAM J. Scientific Computing 16 (1995), 1190-1208):
along the projected gradient to the generalized Cauchy point, which decides the active bounds, then over the free parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

FLAT = 1e-300
"""Curvatures at most this large are treated as none."""


@dataclass(frozen=True)
class BoxModel:
    """The model around points ``x`` with gradients ``g``, (R, n).

    Attributes:
        x: points within the bounds.
        g: gradients there.
        low: lower bounds, (n,).
        high: upper bounds, (n,).
        s: steps, newest first, (R, m, n); rows of zeros where there are none.
        y: changes of the gradient, alike.
        theta: curvature without pairs, (R,).
        inverse: M^-1, (R, 2 m, 2 m).
    """

    x: np.ndarray
    g: np.ndarray
    low: np.ndarray
    high: np.ndarray
    s: np.ndarray
    y: np.ndarray
    theta: np.ndarray
    inverse: np.ndarray

    @staticmethod
    def of(
        x: np.ndarray, g: np.ndarray, low: np.ndarray, high: np.ndarray, s: np.ndarray, y: np.ndarray, pairs: np.ndarray
    ) -> BoxModel:
        """Build the model from the newest ``pairs``, (R,), of the steps ``s`` and gradient changes ``y``."""
        size = s.shape[1]
        kept = np.less(np.arange(size), pairs[:, None])
        s, y = s * kept[..., None], y * kept[..., None]
        sy, ss = np.einsum("rin,rjn->rij", s, y), np.einsum("rin,rjn->rij", s, s)
        yy, curvature = np.einsum("rn,rn->r", y[:, 0], y[:, 0]), sy[:, 0, 0]
        theta = np.where((pairs > 0) & (curvature > FLAT), yy / np.where(curvature > FLAT, curvature, 1.0), 1.0)
        lower = np.triu(sy, 1)  # s_i is newer than y_j
        unit = np.where(kept, 0.0, 1.0)[..., None] * np.eye(size)
        diagonal = sy * np.eye(size) + unit
        inverse = np.block([[-diagonal, lower.transpose(0, 2, 1)], [lower, theta[:, None, None] * ss + unit]])
        return BoxModel(x, g, low, high, s, y, theta, inverse)

    def minimum(self) -> np.ndarray:
        """Return the approximate minima within the bounds, (R, n)."""
        newton = self.x - self._newton_step()
        if np.isinf(self.low).all() and np.isinf(self.high).all():
            return newton
        cauchy, along, free = self._cauchy_point()
        rest = np.where(free, self.g + self.theta[:, None] * (cauchy - self.x) - self._times(self._middle(along)), 0.0)
        step = np.where(free, self._solved(rest, free), 0.0)
        inside = np.all(free, axis=1)[:, None]  # the same minimum, with less rounding
        step = np.where(inside, newton - cauchy, step)
        found = np.clip(cauchy + step, self.low, self.high)
        uphill = np.einsum("rn,rn->r", self.g, found - self.x) >= 0.0
        if uphill.any():  # a clipped step may climb: shorten it instead
            with np.errstate(all="ignore"):
                room = np.where(
                    step > 0.0, (self.high - cauchy) / step, np.where(step < 0.0, (self.low - cauchy) / step, np.inf)
                )
            part = np.minimum(1.0, np.min(room, axis=1, initial=np.inf))[:, None]
            found = np.where(uphill[:, None], np.clip(cauchy + part * step, self.low, self.high), found)
        return found

    def _newton_step(self) -> np.ndarray:
        """Return the inverse of the Hessian times the gradient, by the two-loop recursion (Nocedal 1980)."""
        s, y, q = self.s, self.y, self.g.copy()
        sy = np.einsum("rmn,rmn->rm", s, y)
        rho = np.where(sy > FLAT, 1.0 / np.where(sy > FLAT, sy, 1.0), 0.0)
        alpha = np.zeros_like(sy)
        for k in range(s.shape[1]):
            alpha[:, k] = rho[:, k] * np.einsum("rn,rn->r", s[:, k], q)
            q -= alpha[:, k, None] * y[:, k]
        q /= self.theta[:, None]
        for k in reversed(range(s.shape[1])):
            q += (alpha[:, k] - rho[:, k] * np.einsum("rn,rn->r", y[:, k], q))[:, None] * s[:, k]
        return q

    def _cauchy_point(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the first minimum along the projected gradient, W^T of the way to it, and the mask of free parameters."""
        x, g, rows = self.x, self.g, np.arange(len(self.x))
        with np.errstate(all="ignore"):
            breaks = np.where(g < 0.0, (x - self.high) / g, np.where(g > 0.0, (x - self.low) / g, np.inf))
        d = np.where(breaks > 0.0, -g, 0.0)
        order = np.argsort(breaks, axis=1)
        p, c = self._pairs_times(d), np.zeros((len(x), 2 * self.s.shape[1]))
        slope = -np.einsum("rn,rn->r", d, d)
        curve = -self.theta * slope - np.einsum("ri,ri->r", p, self._middle(p))
        least = np.maximum(np.finfo(float).eps * -self.theta * slope, FLAT)
        t, going, point = np.zeros(len(x)), slope < 0.0, x.copy()
        wanted = np.where(going, -slope / np.maximum(curve, least), 0.0)
        for k in range(x.shape[1]):
            b = order[:, k]
            length = breaks[rows, b] - t
            going = going & (wanted >= length)
            if not going.any():
                break
            passed = going & (breaks[rows, b] > 0.0)
            length, gb = np.where(passed, length, 0.0), np.where(passed, g[rows, b], 0.0)
            end = np.where(d[rows, b] > 0.0, self.high[b], self.low[b])
            point[rows[passed], b[passed]] = end[passed]
            way = np.where(passed, end - x[rows, b], 0.0)
            c += length[:, None] * p
            w = np.concatenate([self.y[rows, :, b], self.theta[:, None] * self.s[rows, :, b]], axis=1)
            mw = self._middle(w)
            slope += length * curve + gb * gb + self.theta * gb * way - gb * np.einsum("ri,ri->r", mw, c)
            curve -= self.theta * gb * gb + 2.0 * gb * np.einsum("ri,ri->r", mw, p) + gb * gb * np.einsum("ri,ri->r", mw, w)
            p += gb[:, None] * w
            t = np.where(passed, breaks[rows, b], t)
            d[rows[passed], b[passed]] = 0.0
            going = going & (slope < 0.0)
            wanted = np.where(going, -slope / np.maximum(curve, least), np.where(passed, 0.0, wanted))
        free = d != 0.0
        return np.where(free, np.clip(x + (t + wanted)[:, None] * d, self.low, self.high), point), c + wanted[:, None] * p, free

    def _solved(self, rest: np.ndarray, free: np.ndarray) -> np.ndarray:
        """Return ``-B_FF^-1 rest`` for the free parameters F, by the formula of Sherman, Morrison and Woodbury."""
        theta, s, y = self.theta, self.s * free[:, None], self.y * free[:, None]
        w = np.concatenate([y, theta[:, None, None] * s], axis=1)
        inner = self.inverse - np.einsum("rin,rjn->rij", w, w) / theta[:, None, None]
        v = _solve(inner, np.einsum("rin,rn->ri", w, rest))
        return -(rest + np.einsum("rin,ri->rn", w, v) / theta[:, None]) / theta[:, None]

    def _middle(self, v: np.ndarray) -> np.ndarray:
        return _solve(self.inverse, v)

    def _pairs_times(self, v: np.ndarray) -> np.ndarray:
        """W^T times ``v``."""
        by_s = np.einsum("rmn,rn->rm", self.s, v)
        return np.concatenate([np.einsum("rmn,rn->rm", self.y, v), self.theta[:, None] * by_s], axis=1)

    def _times(self, v: np.ndarray) -> np.ndarray:
        """W times ``v``."""
        size = self.s.shape[1]
        by_s = np.einsum("rmn,rm->rn", self.s, v[:, size:])
        return np.einsum("rmn,rm->rn", self.y, v[:, :size]) + self.theta[:, None] * by_s


def _solve(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Solve symmetric systems, (R, k, k) and (R, k), whose rows differ by many orders of magnitude."""
    scale = 1.0 / np.sqrt(np.maximum(np.abs(np.einsum("rii->ri", a)), FLAT))
    try:
        return scale * np.linalg.solve(a * scale[:, :, None] * scale[:, None, :], (b * scale)[..., None])[..., 0]
    except np.linalg.LinAlgError:  # of one row at least
        return np.full(b.shape, np.nan)


__all__ = ["BoxModel"]
