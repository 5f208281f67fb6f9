"""When two runs of a program agree: to the bit, or within what the last bits of mathematical functions explain."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import numpy as np

from .execute import Noise

Values = Mapping[str, np.ndarray]
ULPS = 4.0
"""How far two libraries may be apart for one function."""


def apart(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Where two arrays differ in a bit; any NaN is any NaN."""
    same = a == b
    if a.dtype.kind == "f":
        same = (same & (np.signbit(a) == np.signbit(b))) | (np.isnan(a) & np.isnan(b))
    return ~np.asarray(same)


def differences(want: Values, got: Values) -> str:
    """The first array that differs, as text; empty: none does."""
    for name, a in want.items():
        b = got.get(name)
        if b is None or np.shape(a) != np.shape(b):
            return f"{name}: {a!r} and {b!r}"
        bad = apart(a, b)
        if bad.any():
            at = np.argwhere(bad)[:3].tolist()
            return f"{name} at {at}: {a[bad][:3].tolist()} and {b[bad][:3].tolist()}"
    return ""


def unexplained(want: Values, got: Values, disturbed: Callable[[], Values], seed: str) -> str:
    """The first array whose difference is larger than small errors of the mathematical functions can make it.

    ``disturbed`` runs the program with such errors (``Noise``). What they do not change must be equal to the bit; what they change may
    differ by a few times as much. Where few runs do not explain a difference, many are asked.
    """
    if not differences(want, got):
        return ""
    Noise.rng = random.Random(seed)
    runs: list[Values] = []
    text = ""
    for count, ulps in ((3, ULPS), (12, 2 * ULPS), (40, 4 * ULPS)):
        Noise.ulps = ulps
        try:
            while len(runs) < count:
                runs.append(disturbed())
        finally:
            Noise.ulps = 0.0
        text = _beyond(want, got, runs)
        if not text:
            break
    return text


def _beyond(want: Values, got: Values, runs: list[Values]) -> str:
    for name, a in want.items():
        b = got[name]
        with np.errstate(all="ignore"):
            wide = a.astype(np.float64)
            others = np.array([r[name].astype(np.float64) for r in runs])
            spread = np.max(np.abs(others - wide), axis=0, initial=0.0)
            loose = ~np.isfinite(others).all(axis=0) | ~np.isfinite(wide)
            loose &= np.array([apart(r[name], a) for r in runs]).any(axis=0)  # not finite, and not always
            bad = apart(a, b) & ~loose & ~(np.abs(b.astype(np.float64) - wide) <= 8.0 * spread)
            bad &= ~((a == 0) & (b == 0) & (spread > 0))
        if bad.any():
            values = [x[bad][:3].tolist() for x in (a, b, spread)]
            return f"{name} at {np.argwhere(bad)[:3].tolist()}: {values[0]} and {values[1]}, spread {values[2]}"
    return ""
