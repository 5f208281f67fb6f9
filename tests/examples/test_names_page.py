"""docs/names.md: every public name is there, and the derivatives that it promises are those of central differences."""

import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler import face
from qdrun.compiler.frontend.library.functions import Intrinsic
from qdrun.compiler.frontend.library.methods import METHODS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "names.md").read_text(encoding="utf-8")
ROWS = {m[1]: m[2] for m in re.finditer(r"^\| `((?:qd|m)\.[\w.]+)[^`]*` \| .* \| ([^|]*) \|$", PAGE, re.M)}
S, V2, V3, V4, M2, M3 = (), (2,), (3,), (4,), (2, 2), (3, 3)
ARGUMENTS = {
    **dict.fromkeys(("dot", "cross", "distance", "reflect", "m.cross", "m.dot", "m.outer_product"), (V3, V3)),
    **dict.fromkeys(
        ("length", "normalize", "m.norm", "m.norm_inv", "m.norm_sqr", "m.normalized", "m.max", "m.min", "m.sum", "m.cast"),
        (V3,),
    ),
    **dict.fromkeys(("determinant", "inverse", "make_spd", "polar_decompose", "svd", "sym_eig"), (M3,)),
    **dict.fromkeys(("m.determinant", "m.inverse", "m.trace", "m.transpose"), (M3,)),
    **dict.fromkeys(("cconj", "cexp", "cinv", "clog", "csqrt"), (V2,)),
    **{"cdiv": (V2, V2), "cmul": (V2, V2), "cpow": (V2, S), "eig": (M2,), "solve": (M3, V3), "rot_by_axis": (V3, S)},
    **dict.fromkeys(("quat_conj", "quat_to_matrix", "quat_to_rotvec"), (V4,)),
    **{"quat_mul": (V4, V4), "quat_rotate": (V4, V3), "quat_slerp": (V4, V4, S), "quat_integrate": (V4, V3, S)},
    **{"quat_from_axis_angle": (V3, S), "quat_from_matrix": (M3,), "quat_from_rotvec": (V3,)},
    **{"refract": (V3, V3, S), "m.frobenius_inner": (M3, M3), "min": (S, S, S), "max": (S, S, S)},
}
"""The shapes of the arguments; of functions that are not here, numbers."""
RESULTS = {"eig": "[0]", "frexp": "[0]", "sym_eig": "[0]", "polar_decompose": "[1]", "svd": "[1]"}
"""What is differentiated of a result with several parts; vectors of a basis have a sign of their own."""
KERNEL = """
import qdrun as qd


def make(x, loss, w):
    @qd.kernel
    def compute():
        for _ in range(1):
            r = {call}
            {lines}

    return compute
"""


def expression(start: int, shape: tuple[int, ...]) -> str:
    """An argument of this shape whose components are elements of ``x``."""
    if not shape:
        return f"x[{start}]"
    if len(shape) == 1:
        return "qd.Vector([" + ", ".join(f"x[{start + i}]" for i in range(shape[0])) + "])"
    rows = (", ".join(f"x[{start + i * shape[1] + j}]" for j in range(shape[1])) for i in range(shape[0]))
    return "qd.Matrix([[" + "], [".join(rows) + "]])"


def shapes_of(name: str, value) -> tuple[tuple[int, ...], ...]:
    short = name if name.startswith("m.") else name.rpartition(".")[2]
    if short in ARGUMENTS:
        return ARGUMENTS[short]
    numbers = [
        p for p in inspect.signature(value).parameters.values() if p.default is p.empty and p.name not in ("self", "dtype")
    ]
    return (S,) * len(numbers)


def start_of(name: str, shapes) -> np.ndarray:
    """Fresh values at which the function is smooth: reals in (0.3, 0.9), matrices near others that are regular."""
    rng = np.random.default_rng()
    parts = [rng.uniform(0.3, 0.9, int(np.prod(s))) for s in shapes]
    if shapes and len(shapes[0]) == 2:
        spread = np.diag([1.0, 3.0, 6.0][: shapes[0][0]])
        noise = 0.2 * parts[0].reshape(shapes[0])
        parts[0] = (spread + (noise + noise.T if name in ("qd.sym_eig", "qd.make_spd") else noise)).ravel()
    at = np.concatenate(parts)
    return np.sort(at)[[0, 2, 1]] if name == "qd.math.smoothstep" else at


def kernel_of(name: str, shapes, folder: Path, parts: list[str], x, loss, w):
    starts = np.cumsum([0, *(int(np.prod(s)) for s in shapes)])
    given = [expression(int(at), s) for at, s in zip(starts, shapes)] + ["qd.f64" for _ in fixed(name)]
    call = f"({given[0]}).{name[2:]}({', '.join(given[1:])})" if name.startswith("m.") else f"{name}({', '.join(given)})"
    lines = "\n            ".join(f"loss[None] += w[{k}] * {part}" for k, part in enumerate(parts))
    path = folder / f"{name.replace('.', '_')}.py"
    path.write_text(KERNEL.format(call=call, lines=lines), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.make(x, loss, w)


def components(name: str, value, shapes, at: np.ndarray) -> list[str]:
    """The components of a result ``r``, whose shape is that of the result in Python."""
    starts = np.cumsum([0, *(int(np.prod(s)) for s in shapes)])
    parts = [at[i : i + int(np.prod(s))].reshape(s).tolist() for i, s in zip(starts, shapes)]
    result = value(*(qd.Vector(p) if len(s) == 1 else qd.Matrix(p) if s else p for p, s in zip(parts, shapes)), *fixed(name))
    path = RESULTS.get(name.rpartition(".")[2], "")
    shape = np.shape(result[int(path[1])] if path else result) if not hasattr(result, "shape") else result.shape
    return [f"r{path}" + (f"[{', '.join(map(str, index))}]" if index else "") for index in np.ndindex(*shape)]


def fixed(name: str) -> list:
    return [qd.f64] if name in ("qd.cast", "m.cast") else []


def both(name: str, value, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """The gradient of a weighted sum of the components of a result, and its central differences."""
    shapes = shapes_of(name, value)
    with qd.init(default_fp=qd.f64, offline_cache=False):
        at = start_of(name, shapes)
        x = qd.field(qd.f64, shape=max(len(at), 1), needs_grad=True)
        loss = qd.field(qd.f64, shape=(), needs_grad=True)
        parts = components(name, value, shapes, at)
        compute = kernel_of(
            name, shapes, folder, parts, x, loss, np.random.default_rng().uniform(0.5, 1.5, len(parts)).tolist()
        )

        def run(values) -> float:
            x.from_numpy(values)
            loss[None] = 0.0
            compute()
            return loss[None]

        steps = 1e-6 * np.eye(len(at))
        differences = np.array([(run(at + step) - run(at - step)) / 2e-6 for step in steps])
        run(at)
        loss.grad[None] = 1.0
        compute.grad()
        return x.grad.to_numpy(), differences


def functions() -> dict[str, object]:
    """The functions of kernels by their names on the page."""
    found = {f"qd.{n}": v for n, v in vars(face).items() if isinstance(v, Intrinsic)}
    own = {n: getattr(qd.math, n) for n in qd.math.__all__ if n not in vars(face)}
    found |= {f"qd.math.{n}": v for n, v in own.items() if isinstance(v, Intrinsic)}
    return found | {f"m.{n}": getattr(qd.Matrix, n) for n in METHODS}


def with_derivatives() -> list[str]:
    skipped = ("m.fill", "m.max", "m.min")  # a statement; and below
    return [n for n in functions() if ROWS[n].startswith(("yes", "zero")) and n not in skipped]


def test_every_public_name_is_on_the_page():
    modules = {
        "": qd,
        "ad.": qd.ad,
        "math.": qd.math,
        "algorithms.": qd.algorithms,
        "simt.block.": qd.simt.block,
        "types.": qd.types,
    }
    for prefix, module in modules.items():
        names = [n for n in getattr(module, "__all__", vars(face)) if not n.startswith("_")]
        for n in names:
            value = getattr(module, n)
            constant = isinstance(value, ModuleType | float | str | qd.Arch | type(qd.i) | type(qd.f32) | type(qd.math.vec2))
            if (not constant and getattr(qd, n, None) is not value) or (not prefix and not constant):
                assert re.search(rf"^\| `qd\.{re.escape(prefix + n)}[`(]", PAGE, re.M), prefix + n


def test_an_intrinsic_without_a_word_about_its_derivative_is_noticed():
    assert set(functions()) <= set(ROWS)
    assert all(ROWS[n].startswith(("yes", "zero", "none")) for n in functions())


@pytest.mark.slow
@pytest.mark.parametrize("name", with_derivatives())
def test_a_derivative_of_the_page_is_that_of_differences(name, tmp_path):
    found, differences = both(name, functions()[name], tmp_path)
    np.testing.assert_allclose(
        found[: len(differences)], differences, rtol=1e-5, atol=1e-6 * max(1.0, np.abs(differences).max())
    )
    assert differences.any() == ROWS[name].startswith("yes")


def test_largest_and_smallest_components_pass_the_gradient_on():
    x = np.random.default_rng().permutation([0.3, 0.7, 1.1])
    with qd.init(default_fp=qd.f64):
        v = qd.Vector.field(3, qd.f64, shape=(), needs_grad=True)
        loss = qd.field(qd.f64, shape=(), needs_grad=True)

        @qd.kernel
        def k():
            for _ in range(1):
                loss[None] += 2.0 * v[None].max() + 3.0 * v[None].min()

        v.from_numpy(x)
        loss.grad[None] = 1.0
        k()
        k.grad()
        picked = v.grad.to_numpy().ravel()
    assert picked[x.argmax()] == 2.0 and picked[x.argmin()] == 3.0 and picked.sum() == 5.0
