"""Thirty-two standard problems of unconstrained minimisation, as residuals: Moré, Garbow and Hillstrom, ACM TOMS 7 (1981), 17-41.

Losses are sums of squares. Gradients come from complex steps (Squire and Trapp, SIAM Review 40 (1998), 110-112), so they are exact to
rounding and no formula of a derivative can be wrong. Residuals must be analytic: no ``abs`` of an argument, no conjugates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Residuals = Callable[[np.ndarray], np.ndarray]
STEP = 1e-40


@dataclass(frozen=True)
class Problem:
    """A problem and what the literature knows of it.

    Attributes:
        name: as in the paper.
        residuals: (n,), real or complex, to (m,).
        start: (n,), the standard start.
        minima: the losses of the known local minima; empty: the paper gives none.
    """

    name: str
    residuals: Residuals
    start: tuple[float, ...]
    minima: tuple[float, ...] = (0.0,)

    def __call__(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the loss at ``x``, (n,), and its gradient, (n,)."""
        with np.errstate(all="ignore"):
            residuals = np.asarray(self.residuals(x), float)
            loss = float(residuals @ residuals)
            if not np.isfinite(loss):
                return np.inf, np.full(x.size, np.nan)
            points = x + 1j * STEP * np.eye(x.size)
            jacobian = np.stack([np.asarray(self.residuals(point)).imag / STEP for point in points], axis=1)
            return loss, 2.0 * jacobian.T @ residuals

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Return a box, (n,) and (n,), that holds back some parameters: half a size below the start to a quarter above, or mirrored."""
        start = np.array(self.start)
        size = np.maximum(1.0, np.abs(start))
        even = np.arange(start.size) % 2 == 0
        return start - size * np.where(even, 0.5, 0.25), start + size * np.where(even, 0.25, 0.5)


def rosenbrock(x: np.ndarray) -> np.ndarray:
    a, b = x[::2], x[1::2]
    return np.concatenate([10.0 * (b - a * a), 1.0 - a])


def freudenstein_roth(x: np.ndarray) -> np.ndarray:
    a, b = x
    return np.array([-13.0 + a + ((5.0 - b) * b - 2.0) * b, -29.0 + a + ((b + 1.0) * b - 14.0) * b])


def powell_badly_scaled(x: np.ndarray) -> np.ndarray:
    return np.array([1e4 * x[0] * x[1] - 1.0, np.exp(-x[0]) + np.exp(-x[1]) - 1.0001])


def brown_badly_scaled(x: np.ndarray) -> np.ndarray:
    return np.array([x[0] - 1e6, x[1] - 2e-6, x[0] * x[1] - 2.0])


def beale(x: np.ndarray) -> np.ndarray:
    return np.array([y - x[0] * (1.0 - x[1] ** k) for k, y in ((1, 1.5), (2, 2.25), (3, 2.625))])


def jennrich_sampson(x: np.ndarray) -> np.ndarray:
    i = np.arange(1, 11)
    return 2.0 + 2.0 * i - (np.exp(i * x[0]) + np.exp(i * x[1]))


def helical_valley(x: np.ndarray) -> np.ndarray:
    turn = np.arctan(x[1] / x[0]) / (2.0 * np.pi) + (0.5 if x[0].real < 0.0 else 0.0)
    return np.array([10.0 * (x[2] - 10.0 * turn), 10.0 * (np.sqrt(x[0] ** 2 + x[1] ** 2) - 1.0), x[2]])


def bard(x: np.ndarray) -> np.ndarray:
    y = np.array([14, 18, 22, 25, 29, 32, 35, 39, 37, 58, 73, 96, 134, 210, 439]) / 100.0
    u = np.arange(1.0, 16.0)
    v = 16.0 - u
    return y - (x[0] + u / (v * x[1] + np.minimum(u, v) * x[2]))


def gaussian(x: np.ndarray) -> np.ndarray:
    half = [0.0009, 0.0044, 0.0175, 0.0540, 0.1295, 0.2420, 0.3521]
    y, t = np.array([*half, 0.3989, *half[::-1]]), (8.0 - np.arange(1, 16)) / 2.0
    return x[0] * np.exp(-x[1] * (t - x[2]) ** 2 / 2.0) - y


def meyer(x: np.ndarray) -> np.ndarray:
    y = np.array([34780, 28610, 23650, 19630, 16370, 13720, 11540, 9744, 8261, 7030, 6005, 5147, 4427, 3820, 3307, 2872])
    return x[0] * np.exp(x[1] / (45.0 + 5.0 * np.arange(1, 17) + x[2])) - y


def gulf(x: np.ndarray) -> np.ndarray:
    t = np.arange(1, 11) / 100.0
    y = 25.0 + (-50.0 * np.log(t)) ** (2.0 / 3.0)
    distance = np.where((y - x[1]).real < 0.0, x[1] - y, y - x[1])
    return np.exp(-(distance ** x[2]) / x[0]) - t


def box(x: np.ndarray) -> np.ndarray:
    t = np.arange(1, 11) / 10.0
    return np.exp(-t * x[0]) - np.exp(-t * x[1]) - x[2] * (np.exp(-t) - np.exp(-10.0 * t))


def powell_singular(x: np.ndarray) -> np.ndarray:
    a, b, c, d = x[::4], x[1::4], x[2::4], x[3::4]
    return np.concatenate([a + 10.0 * b, np.sqrt(5.0) * (c - d), (b - 2.0 * c) ** 2, np.sqrt(10.0) * (a - d) ** 2])


def wood(x: np.ndarray) -> np.ndarray:
    a, b, c, d = x
    root = np.sqrt(10.0)
    pairs = [10.0 * (b - a * a), 1.0 - a, np.sqrt(90.0) * (d - c * c), 1.0 - c]
    return np.array([*pairs, root * (b + d - 2.0), (b - d) / root])


def kowalik_osborne(x: np.ndarray) -> np.ndarray:
    y = np.array([0.1957, 0.1947, 0.1735, 0.1600, 0.0844, 0.0627, 0.0456, 0.0342, 0.0323, 0.0235, 0.0246])
    u = np.array([4.0, 2.0, 1.0, 0.5, 0.25, 0.167, 0.125, 0.1, 0.0833, 0.0714, 0.0625])
    return y - x[0] * (u * u + u * x[1]) / (u * u + u * x[2] + x[3])


def brown_dennis(x: np.ndarray) -> np.ndarray:
    t = np.arange(1, 21) / 5.0
    return (x[0] + t * x[1] - np.exp(t)) ** 2 + (x[2] + x[3] * np.sin(t) - np.cos(t)) ** 2


def osborne_1(x: np.ndarray) -> np.ndarray:
    y = [844, 908, 932, 936, 925, 908, 881, 850, 818, 784, 751, 718, 685, 658, 628, 603, 580, 558, 538, 522, 506, 490, 478, 467]
    y = np.array([*y, 457, 448, 438, 431, 424, 420, 414, 411, 406]) / 1000.0
    t = 10.0 * np.arange(33)
    return y - (x[0] + x[1] * np.exp(-t * x[3]) + x[2] * np.exp(-t * x[4]))


def biggs(x: np.ndarray) -> np.ndarray:
    t = np.arange(1, 14) / 10.0
    y = np.exp(-t) - 5.0 * np.exp(-10.0 * t) + 3.0 * np.exp(-4.0 * t)
    return x[2] * np.exp(-t * x[0]) - x[3] * np.exp(-t * x[1]) + x[5] * np.exp(-t * x[4]) - y


def osborne_2(x: np.ndarray) -> np.ndarray:
    y = [1366, 1191, 1112, 1013, 991, 885, 831, 847, 786, 725, 746, 679, 608, 655, 616, 606, 602, 626, 651, 724, 649, 649, 694]
    y += [
        644,
        624,
        661,
        612,
        558,
        533,
        495,
        500,
        423,
        395,
        375,
        372,
        391,
        396,
        405,
        428,
        429,
        523,
        562,
        607,
        653,
        672,
        708,
        633,
    ]
    y += [668, 645, 632, 591, 559, 597, 625, 739, 710, 729, 720, 636, 581, 428, 292, 162, 98, 54]
    t = np.arange(65) / 10.0
    peaks = sum(x[k + 1] * np.exp(-((t - x[k + 8]) ** 2) * x[k + 5]) for k in range(3))
    return np.array(y) / 1000.0 - (x[0] * np.exp(-t * x[4]) + peaks)


def watson(x: np.ndarray) -> np.ndarray:
    t, j = np.arange(1, 30)[:, None] / 29.0, np.arange(x.size)
    slope = (j[1:] * t ** (j[1:] - 1)) @ x[1:]
    return np.concatenate([slope - ((t**j) @ x) ** 2 - 1.0, [x[0], x[1] - x[0] ** 2 - 1.0]])


def penalty_1(x: np.ndarray) -> np.ndarray:
    return np.concatenate([np.sqrt(1e-5) * (x - 1.0), [np.sum(x * x) - 0.25]])


def penalty_2(x: np.ndarray) -> np.ndarray:
    n, root = x.size, np.sqrt(1e-5)
    i = np.arange(2, n + 1)
    e = np.exp(x / 10.0)
    y = np.exp(i / 10.0) + np.exp((i - 1) / 10.0)
    last = np.sum((n - np.arange(n)) * x * x) - 1.0
    return np.concatenate([[x[0] - 0.2], root * (e[1:] + e[:-1] - y), root * (e[1:] - np.exp(-0.1)), [last]])


def variably_dimensioned(x: np.ndarray) -> np.ndarray:
    total = np.sum(np.arange(1, x.size + 1) * (x - 1.0))
    return np.concatenate([x - 1.0, [total, total**2]])


def trigonometric(x: np.ndarray) -> np.ndarray:
    n = x.size
    return n - np.sum(np.cos(x)) + np.arange(1, n + 1) * (1.0 - np.cos(x)) - np.sin(x)


def brown_almost_linear(x: np.ndarray) -> np.ndarray:
    return np.concatenate([x[:-1] + np.sum(x) - (x.size + 1), [np.prod(x) - 1.0]])


def _neighbours(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    padded = np.concatenate([[0.0], x, [0.0]])
    return padded[:-2], padded[2:]


def boundary_value(x: np.ndarray) -> np.ndarray:
    h = 1.0 / (x.size + 1)
    before, after = _neighbours(x)
    return 2.0 * x - before - after + h * h * (x + h * np.arange(1, x.size + 1) + 1.0) ** 3 / 2.0


def integral_equation(x: np.ndarray) -> np.ndarray:
    h = 1.0 / (x.size + 1)
    t = h * np.arange(1, x.size + 1)
    cube = (x + t + 1.0) ** 3
    kernel = np.where(t[None] <= t[:, None], (1.0 - t[:, None]) * t[None], t[:, None] * (1.0 - t[None]))
    return x + h / 2.0 * (kernel @ cube)


def broyden_tridiagonal(x: np.ndarray) -> np.ndarray:
    before, after = _neighbours(x)
    return (3.0 - 2.0 * x) * x - before - 2.0 * after + 1.0


def broyden_banded(x: np.ndarray) -> np.ndarray:
    n = x.size
    i, j = np.arange(n)[:, None], np.arange(n)
    band = (j != i) & (j >= i - 5) & (j <= i + 1)
    return x * (2.0 + 5.0 * x * x) + 1.0 - band @ (x * (1.0 + x))


def chebyquad(x: np.ndarray) -> np.ndarray:
    n, y = x.size, 2.0 * x - 1.0
    before, now, means = np.ones_like(y), y, []
    for i in range(1, n + 1):
        means.append(np.mean(now) - (0.0 if i % 2 else -1.0 / (i * i - 1)))
        before, now = now, 2.0 * y * now - before
    return np.array(means)


def _ramp(n: int) -> tuple[float, ...]:
    return tuple(i / (n + 1) for i in range(1, n + 1))


PROBLEMS = (
    Problem("Rosenbrock", rosenbrock, (-1.2, 1.0)),
    Problem("Freudenstein and Roth", freudenstein_roth, (0.5, -2.0), (0.0, 48.9842)),
    Problem("Powell badly scaled", powell_badly_scaled, (0.0, 1.0)),
    Problem("Brown badly scaled", brown_badly_scaled, (1.0, 1.0)),
    Problem("Beale", beale, (1.0, 1.0)),
    Problem("Jennrich and Sampson", jennrich_sampson, (0.3, 0.4), (124.362,)),
    Problem("Helical valley", helical_valley, (-1.0, 0.0, 0.0)),
    Problem("Bard", bard, (1.0, 1.0, 1.0), (8.21487e-3, 17.4286)),
    Problem("Gaussian", gaussian, (0.4, 1.0, 0.0), (1.12793e-8,)),
    Problem("Meyer", meyer, (0.02, 4000.0, 250.0), (87.9458,)),
    Problem("Gulf research", gulf, (5.0, 2.5, 0.15), (0.0, 0.038)),
    Problem("Box three-dimensional", box, (0.0, 10.0, 20.0)),
    Problem("Powell singular", powell_singular, (3.0, -1.0, 0.0, 1.0)),
    Problem("Wood", wood, (-3.0, -1.0, -3.0, -1.0)),
    Problem("Kowalik and Osborne", kowalik_osborne, (0.25, 0.39, 0.415, 0.39), (3.07505e-4, 1.02734e-3)),
    Problem("Brown and Dennis", brown_dennis, (25.0, 5.0, -5.0, -1.0), (85822.2,)),
    Problem("Osborne 1", osborne_1, (0.5, 1.5, -1.0, 0.01, 0.02), (5.46489e-5,)),
    Problem("Biggs EXP6", biggs, (1.0, 2.0, 1.0, 1.0, 1.0, 1.0), (0.0, 5.65565e-3)),
    Problem("Osborne 2", osborne_2, (1.3, 0.65, 0.65, 0.7, 0.6, 3.0, 5.0, 7.0, 2.0, 4.5, 5.5), (4.01377e-2,)),
    Problem("Watson", watson, (0.0,) * 6, (2.28767e-3,)),
    Problem("Extended Rosenbrock", rosenbrock, (-1.2, 1.0) * 25),
    Problem("Extended Powell singular", powell_singular, (3.0, -1.0, 0.0, 1.0) * 10),
    Problem("Penalty I", penalty_1, tuple(range(1, 11)), (7.08765e-5,)),
    Problem("Penalty II", penalty_2, (0.5,) * 10, (2.93660e-4,)),
    Problem("Variably dimensioned", variably_dimensioned, tuple(1.0 - i / 10 for i in range(1, 11))),
    Problem("Trigonometric", trigonometric, (0.1,) * 10, (0.0, 2.79506e-5)),
    Problem("Brown almost linear", brown_almost_linear, (0.5,) * 10, (0.0, 1.0)),
    Problem("Discrete boundary value", boundary_value, tuple(t * (t - 1.0) for t in _ramp(20))),
    Problem("Discrete integral equation", integral_equation, tuple(t * (t - 1.0) for t in _ramp(20))),
    Problem("Broyden tridiagonal", broyden_tridiagonal, (-1.0,) * 30, (0.0,)),
    Problem("Broyden banded", broyden_banded, (-1.0,) * 30, (0.0,)),
    Problem("Chebyquad", chebyquad, _ramp(8), (3.51687e-3,)),
)
