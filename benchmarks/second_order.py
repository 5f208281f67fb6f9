"""Second-order rules beside scipy on the same problems: evaluations of loss and gradient until both have no gradient left, and the losses.

python -m benchmarks.second_order [--starts 10] [--json]        needs scipy

L-BFGS: 32 standard problems of the literature from their standard starts, without bounds and within them, then random starts of
Rosenbrock's function, an ill-conditioned quadratic, with and without bounds, and the energy of a cluster of atoms. Levenberg-Marquardt:
Rosenbrock's function as residuals, a sum of two exponentials, a fit within bounds. Its evaluations are evaluations of residuals; each
accepted point needs a Jacobian, too.
"""

import argparse
import json
import statistics

import numpy as np
from scipy.optimize import least_squares as scipy_least_squares
from scipy.optimize import minimize

from benchmarks.standard_problems import PROBLEMS
from qdrun.runner.optimize import lbfgs, least_squares

TOLERANCE = 1e-6


def rosenbrock(x):
    """Rosenbrock's function of many variables."""
    a, b = x[:-1], x[1:]
    g = np.zeros_like(x)
    g[:-1] += -400.0 * a * (b - a * a) - 2.0 * (1.0 - a)
    g[1:] += 200.0 * (b - a * a)
    return float(np.sum(100.0 * (b - a * a) ** 2 + (1.0 - a) ** 2)), g


def quadratic(size, condition):
    """A quadratic with a random basis."""
    rng = np.random.default_rng(1)
    basis, _ = np.linalg.qr(rng.normal(size=(size, size)))
    hessian, b = basis * np.logspace(0, np.log10(condition), size) @ basis.T, rng.normal(size=size)
    return lambda x: (float(0.5 * x @ hessian @ x - b @ x), hessian @ x - b)


def cluster(x):
    """The Lennard-Jones energy of atoms in space."""
    p = x.reshape(-1, 3)
    d = p[:, None] - p[None]
    r2 = np.einsum("ijk,ijk->ij", d, d) + np.eye(len(p))
    s6 = 1.0 / r2**3
    np.fill_diagonal(s6, 0.0)
    slope = (-48.0 * s6**2 + 24.0 * s6) / r2
    return float(2.0 * np.sum(s6**2 - s6)), np.einsum("ij,ijk->ik", slope, d).ravel()


def ours(fun, start, low, high):
    """Evaluations and loss of L-BFGS as a descent does it."""
    x, memory, best = np.clip(start, low, high)[None], lbfgs.begin(start[None], 10), np.inf
    for count in range(1, 20_000):
        f, g = fun(x[0])
        free = np.where(((x[0] <= low) & (g > 0.0)) | ((x[0] >= high) & (g < 0.0)), 0.0, g)
        best = min(best, f)
        if np.isfinite(f) and np.abs(free).max() <= TOLERANCE:
            return count, f
        if memory["done"][0]:
            return count, best
        x, memory = lbfgs.advance(memory, x, np.array([f]), g[None], low, high, 1.0)
    return count, best


class _Found(Exception):
    """Ends scipy's minimisation where no gradient is left."""


def theirs(fun, start, low, high):
    """The same of scipy's L-BFGS-B, stopped by the same test."""
    seen = []

    def evaluate(x):
        f, g = fun(x)
        seen.append(f)
        held = ((x <= low) & (g > 0.0)) | ((x >= high) & (g < 0.0))
        if np.isfinite(f) and np.abs(np.where(held, 0.0, g)).max() <= TOLERANCE:
            raise _Found
        return f, g

    options = {"maxcor": 10, "ftol": 0.0, "gtol": 0.0, "maxfun": 20_000, "maxiter": 20_000}
    bounds = None if np.isinf(low).all() else list(zip(low, high, strict=True))
    try:
        minimize(evaluate, np.clip(start, low, high), jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    except _Found:
        return len(seen), seen[-1]
    return len(seen), min(seen)


def slopes_of(fun, x):
    """The Jacobian by complex steps."""
    columns = [np.imag(fun(x + 1e-30j * unit)) / 1e-30 for unit in np.eye(x.size)]
    return np.stack(columns, axis=1)


def our_fit(fun, start, low, high):
    """Evaluations and loss of Levenberg-Marquardt as a descent does it."""
    x, memory = start[None], least_squares.begin(start[None], 1e-3)
    for count in range(1, 2000):
        r, j = fun(x[0]), slopes_of(fun, x[0])
        f, g = 0.5 * r @ r, j.T @ r
        free = np.where(((x[0] <= low) & (g > 0.0)) | ((x[0] >= high) & (g < 0.0)), 0.0, g)
        if np.abs(free).max() <= TOLERANCE or memory["done"][0]:
            return count, float(f)
        x, memory = least_squares.advance(memory, x, np.array([f]), g[None], low, high, lambda j=j: j)
    return count, float(f)


def their_fit(fun, start, low, high):
    """The same of scipy: MINPACK's where there are no bounds, else its trust region."""
    method = "lm" if np.isinf(low).all() else "trf"
    options = {"ftol": 1e-15, "xtol": 1e-15, "gtol": 1e-12 if method == "lm" else TOLERANCE, "max_nfev": 2000}
    found = scipy_least_squares(fun, start, jac=lambda x: slopes_of(fun, x), bounds=(low, high), method=method, **options)
    return found.nfev, float(found.cost)


T = np.linspace(0.0, 4.0, 40)
DATA = 2.0 * np.exp(-0.7 * T) + np.exp(-3.0 * T) + 0.01 * np.random.default_rng(2).normal(size=T.size)
FITS = {
    "fit: Rosenbrock's residuals": (lambda x: np.array([10.0 * (x[1] - x[0] ** 2), 1.0 - x[0]]), 2, np.inf),
    "fit: two exponentials": (lambda x: x[0] * np.exp(-x[1] * T) + x[2] * np.exp(-x[3] * T) - DATA, 4, np.inf),
    "fit: the same within [0, 2]": (lambda x: x[0] * np.exp(-x[1] * T) + x[2] * np.exp(-x[3] * T) - DATA, 4, 2.0),
}
CASES = {
    "Rosenbrock, 20 variables": (rosenbrock, 20, 1.0, np.inf),
    "the same within [-0.5, 0.8]": (rosenbrock, 20, 1.0, 0.8),
    "quadratic, 50 variables, condition 10^4": (quadratic(50, 1e4), 50, 1.0, np.inf),
    "the same within [-0.1, 0.1]": (quadratic(50, 1e4), 50, 1.0, 0.1),
    "Lennard-Jones cluster, 13 atoms": (cluster, 39, 1.2, np.inf),
}


def standard_rows():
    """Evaluations and losses for each standard problem, without bounds and within them."""
    for bounded in (False, True):
        for problem in PROBLEMS:
            start = np.array(problem.start)
            low, high = problem.bounds() if bounded else (np.full(start.size, -np.inf), np.full(start.size, np.inf))
            pairs = {"ours": ours(problem, start, low, high), "scipy": theirs(problem, start, low, high)}
            yield {"case": problem.name + (", bounds" if bounded else "")} | {
                side: {"evaluations": count, "best": loss} for side, (count, loss) in pairs.items()
            }


def summary(rows):
    """The geometric mean and the ends of the ratios of evaluations, over the problems where both reached the same loss."""
    same = [row for row in rows if abs(row["ours"]["best"] - row["scipy"]["best"]) <= 1e-6 + 1e-4 * abs(row["scipy"]["best"])]
    ratios = {row["case"]: row["ours"]["evaluations"] / row["scipy"]["evaluations"] for row in same}
    worst, best = max(ratios, key=ratios.__getitem__), min(ratios, key=ratios.__getitem__)
    lower = [row["case"] for row in rows if row not in same and row["ours"]["best"] < row["scipy"]["best"]]
    higher = [row["case"] for row in rows if row not in same and row["case"] not in lower]
    return (
        f"ours / scipy where losses agree ({len(same)} of {len(rows)}): geometric mean {statistics.geometric_mean(ratios.values()):.2f}, "
        f"worst {ratios[worst]:.2f} ({worst}), best {ratios[best]:.2f} ({best}); ours lower: {lower}; ours higher: {higher}"
    )


def main():
    """Measure, and print a table."""
    options = argparse.ArgumentParser()
    options.add_argument("--starts", type=int, default=10)
    options.add_argument("--json", action="store_true")
    given, rng = options.parse_args(), np.random.default_rng(0)
    rows = list(standard_rows())
    parts = {"without bounds": rows[: len(PROBLEMS)], "within bounds": rows[len(PROBLEMS) :]}
    summaries = {name: summary(part) for name, part in parts.items()}
    for name, (fun, size, width, high) in CASES.items():
        upper = np.full(size, high)
        lower = np.full(size, -np.inf if np.isinf(high) else -0.5 if high == 0.8 else -high)
        starts = [width * rng.normal(size=size) for _ in range(given.starts)]
        pairs = [(ours(fun, start, lower, upper), theirs(fun, start, lower, upper)) for start in starts]
        row = {"case": name}
        for side, found in zip(("ours", "scipy"), zip(*pairs, strict=True), strict=True):
            row[side] = {"evaluations": statistics.median(count for count, _ in found), "best": min(loss for _, loss in found)}
        rows.append(row)
    for name, (fun, size, high) in FITS.items():
        upper, lower = np.full(size, high), np.full(size, -np.inf if np.isinf(high) else 0.0)
        starts = [np.clip(1.0 + 0.5 * rng.normal(size=size), lower + 0.01, upper - 0.01) for _ in range(given.starts)]
        pairs = [(our_fit(fun, start, lower, upper), their_fit(fun, start, lower, upper)) for start in starts]
        row = {"case": name}
        for side, found in zip(("ours", "scipy"), zip(*pairs, strict=True), strict=True):
            row[side] = {"evaluations": statistics.median(count for count, _ in found), "best": min(loss for _, loss in found)}
        rows.append(row)
    if given.json:
        print(json.dumps({"rows": rows, "summaries": summaries}))
        return
    for row in rows:
        print(
            f"{row['case']:42}",
            *(f"{side} {row[side]['evaluations']:7.0f} {row[side]['best']:14.7g}" for side in ("ours", "scipy")),
        )
    for name, line in summaries.items():
        print(f"standard problems {name}: {line}")


if __name__ == "__main__":
    main()
