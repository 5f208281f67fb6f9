"""Direct solvers beside scipy's: a Poisson equation on a square, in f64, on one thread.

python -m benchmarks.linalg [--sizes 128,512]        needs scipy
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import splu

import qdrun as qd

REPEATS = 5


def poisson(m: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, columns and values of the five-point matrix of m x m unknowns, with 0.01 more on its diagonal."""
    index = np.arange(m * m).reshape(m, m)
    rows, columns = [index.ravel()], [index.ravel()]
    for one, other in ((index[1:], index[:-1]), (index[:, 1:], index[:, :-1])):
        rows += [one.ravel(), other.ravel()]
        columns += [other.ravel(), one.ravel()]
    values = np.concatenate([np.full(m * m, 4.01), np.full(sum(map(len, rows[1:])), -1.0)])
    return np.concatenate(rows), np.concatenate(columns), values


def least(run: Callable[[], Any]) -> tuple[float, Any]:
    """The least seconds of a few runs, and what the last one gives."""
    best, found = float("inf"), None
    for _ in range(REPEATS):
        begin = time.perf_counter()
        found = run()
        best = min(best, time.perf_counter() - begin)
    return best, found


def ours(m: int, b: np.ndarray) -> tuple[list[float], np.ndarray]:
    """Seconds of the analysis, of the factors and of a solution, and the solution."""
    arrays = []
    for numbers, dtype in zip(poisson(m), (qd.i32, qd.i32, qd.f64), strict=True):
        arrays.append(qd.ndarray(dtype, len(numbers)))
        arrays[-1].from_numpy(numbers.astype(dtype.numpy))
    A = qd.linalg.SparseMatrix.from_triplets(m * m, m * m, *arrays)
    solvers = [qd.linalg.SparseSolver(qd.f64) for _ in range(REPEATS)]
    fresh = iter(solvers)
    analysis, _ = least(lambda: next(fresh).analyze_pattern(A))
    solver = solvers[-1]
    factors, _ = least(lambda: solver.factorize(A))
    right = qd.ndarray(qd.f64, m * m)
    right.from_numpy(b)
    solution, x = least(lambda: solver.solve(right))
    return [analysis, factors, solution], x.to_numpy()


def main() -> None:
    """Print a row for each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="128,512")
    qd.init(default_fp=qd.f64, cpu_max_num_threads=1)
    print("unknowns: analysis, factors, solve | scipy: analysis and factors, solve [s]; largest difference")
    for m in map(int, parser.parse_args().sizes.split(",")):
        rows, columns, values = poisson(m)
        b = np.random.default_rng(0).normal(size=m * m)
        matrix = sparse.csc_matrix((values, (rows, columns)), shape=(m * m, m * m))
        mine, x = ours(m, b)
        factors, lu = least(lambda matrix=matrix: splu(matrix))
        solution, y = least(lambda lu=lu, b=b: lu.solve(b))
        times = ", ".join(f"{t:.4f}" for t in mine)
        print(f"{m} x {m}: {times} | {factors:.4f}, {solution:.4f}; {np.abs(x - y).max():.1e}")


if __name__ == "__main__":
    main()
