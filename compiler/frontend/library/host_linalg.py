"""The decompositions for Python, with numpy, under the same conventions as in kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import QdrunFitError, QdrunRuntimeError

WORST = {2: 0.5, 4: 5e-2, 8: 1e-6}
"""Bytes of a number -> the residual of a linear system, beside the right-hand side, above which its solution is refused."""


def _real(A: Any, dt: Any) -> np.ndarray:
    """The matrix as an array of reals: of ``dt``, or its own type, or f64."""
    a = np.asarray(A)
    if dt is not None:
        return a.astype(getattr(dt, "numpy", dt))
    return a if a.dtype.kind == "f" else a.astype(np.float64)


def svd(A: Any, dt: Any = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``U, S, V`` with ``A = U S V'``; V is a rotation, and for 3 x 3 so is U."""
    a = _real(A, dt)
    u, s, vt = np.linalg.svd(a)
    v = vt.T.copy()
    if np.linalg.det(v) < 0:
        v[:, -1], u[:, -1] = -v[:, -1], -u[:, -1]
    if len(s) == 3 and np.linalg.det(u) < 0:
        u[:, -1], s[-1] = -u[:, -1], -s[-1]
    return u, np.diag(s), v


def polar_decompose(A: Any, dt: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """``R, S`` with ``A = R S``."""
    u, s, v = svd(A, dt)
    return u @ v.T, v @ s @ v.T


def sym_eig(A: Any, dt: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """Ascending eigenvalues, and eigenvectors as columns, of the symmetric part of A."""
    a = _real(A, dt)
    values, vectors = np.linalg.eigh((a + a.T) / 2)
    return values, vectors


def make_spd(A: Any, dt: Any = None) -> np.ndarray:
    """The nearest symmetric matrix without negative eigenvalues."""
    values, q = sym_eig(A, dt)
    return (q * np.maximum(values, 0)) @ q.T


def eig(A: Any, dt: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues (re, im) in rows and eigenvectors (re, im, re, im) in columns of a 2 x 2 matrix."""
    a = _real(A, dt)
    values, vectors = np.linalg.eig(a)
    order = sorted((0, 1), key=lambda k: (-values[k].real, -values[k].imag))
    columns = [vectors[:, k].astype(complex) for k in order]
    out = np.array([[x for e in column for x in (e.real, e.imag)] for column in columns]).T
    return np.array([[values[k].real, values[k].imag] for k in order], a.dtype), out.astype(a.dtype)


def solve(A: Any, b: Any, dt: Any = None) -> np.ndarray:
    """The vector ``x`` with ``A x = b``.

    Raises:
        QdrunFitError: A is not square, or ``b`` has another length.
        QdrunRuntimeError: A is singular, exactly or so nearly that ``A x`` is not ``b``.
    """
    return _solved("solve", _real(A, dt), _real(b, dt))


def inverse(A: Any) -> np.ndarray:
    """The inverse of a square matrix; errors are those of ``solve``."""
    a = _real(A, None)
    return _solved("inverse", a, np.eye(len(a), dtype=a.dtype))


def _solved(what: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.ndim != 2 or a.shape[0] != a.shape[1] or len(b) != len(a):
        raise QdrunFitError(f"{what} takes a square matrix and as many numbers at the right side, not {a.shape} and {b.shape}")
    with np.errstate(all="ignore"):
        try:
            x = np.linalg.solve(a, b)
            rest, size = np.abs(a @ x - b).max(initial=0), np.abs(b).max(initial=0)
            fault = f"the residual of a solution is {rest / size if size else rest:.2g} of the right side"
            solved = rest <= size * WORST[x.dtype.itemsize]
        except np.linalg.LinAlgError as e:
            x, fault, solved = b, str(e), False
    if not solved and np.isfinite(a).all() and np.isfinite(b).all():
        raise QdrunRuntimeError(
            f"{what}() of a matrix of {a.shape[0]} x {a.shape[-1]} that is singular or nearly so: {fault}\n"
            "  do: check the matrix; np.linalg.lstsq for a solution that fits best"
        )
    return x
