"""``Tape.gradient_paths``: a path that is cut has a gradient of exactly zero, and a zero that differences contradict has a cut."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import qdrun as qd

sys.path.insert(0, str(Path(__file__).parent))
from path_programs import Maker

POINTS = 4


def load(folder: Path, seed: int) -> ModuleType:
    """A random program as a module."""
    file = folder / f"program_{seed}.py"
    file.write_text(Maker(seed).program())
    spec = importlib.util.spec_from_file_location(f"path_program_{seed}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def evaluate(module: ModuleType, point: np.ndarray, gradients: bool = True) -> tuple[float, np.ndarray, qd.ad.Tape | None]:
    """The loss, its gradient, and the tape."""
    for x, value in zip(module.inputs, point):
        x[None] = value
    for f in module.every:
        f.fill(0)
    module.loss[None] = 0.0
    if not gradients:
        module.run()
        return module.loss[None], np.zeros(4), None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with qd.ad.Tape(module.loss) as tape:
            module.run()
    return module.loss[None], np.array([x.grad[None] for x in module.inputs]), tape


def contradictions(folder: Path, seed: int) -> list[str]:
    """What is wrong with the paths of one random program."""
    try:
        module = load(folder, seed)
        rng = np.random.default_rng(seed)
        points = rng.uniform(-1.0, 1.0, (POINTS, 4))
        found = [evaluate(module, point) for point in points]
    except (qd.QdrunCompilationError, qd.QdrunRuntimeError) as refused:
        assert "do:" in str(refused)
        return []
    tape = found[-1][2]
    assert tape is not None
    paths = tape.gradient_paths(*module.inputs)
    gradients = np.array([gradient for _, gradient, _ in found])
    wrong = []
    for k, (path, e) in enumerate(zip(paths, np.eye(4))):
        zero = (gradients[:, k] == 0.0).all()
        if not path.connected and not zero:
            wrong.append(f"{path} although it is {gradients[:, k]}")
        if zero and not path.cuts:
            ends = [(evaluate(module, p + h * e)[:2], evaluate(module, p - h * e)[:2]) for p in points for h in (1e-2, 0.3)]
            flat = all(gradient[k] == 0.0 for pair in ends for _, gradient in pair)
            off = [up - low for (up, _), (low, _) in ends]
            if flat and max(map(abs, off)) > 1e-12:
                wrong.append(f"{path.source} has no cut, a gradient of 0, and differences {off}")
    return wrong


@pytest.mark.parametrize("seed", range(12))
def test_cut_paths_of_random_programs_have_no_gradient_and_zeros_have_a_cause(tmp_path: Path, seed: int) -> None:
    """See the module."""
    assert contradictions(tmp_path, seed) == []
