"""The decompositions and solvers of ``qd``: each with its lowering for kernels and its numpy counterpart for Python."""

from __future__ import annotations

from . import elimination, singular, symmetric
from . import host_linalg as host
from .functions import Intrinsic

polar_decompose = Intrinsic(
    "polar_decompose",
    host.polar_decompose,
    singular.polar_decompose,
    "``R, S``: an orthogonal matrix and a symmetric one with ``A = R @ S``; 2 x 2 and 3 x 3.",
    "A dt=",
)
svd = Intrinsic("svd", host.svd, singular.svd, "``U, S, V`` with ``A = U @ S @ V.transpose()``; 2 x 2 and 3 x 3.", "A dt=")
sym_eig = Intrinsic(
    "sym_eig",
    host.sym_eig,
    symmetric.sym_eig,
    "Ascending eigenvalues and eigenvectors (columns) of a symmetric matrix; 2 x 2 to 6 x 6.",
    "A dt=",
)
eig = Intrinsic("eig", host.eig, symmetric.eig, "Complex eigenvalues and eigenvectors of a 2 x 2 matrix.", "A dt=")
make_spd = Intrinsic(
    "make_spd",
    host.make_spd,
    symmetric.make_spd,
    "The nearest symmetric matrix without negative eigenvalues; 2 x 2 to 6 x 6.",
    "A dt=",
)
solve = Intrinsic("solve", host.solve, elimination.solve, "The vector ``x`` with ``A @ x = b``; up to 12 x 12.", "A b dt=")
