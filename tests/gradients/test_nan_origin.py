"""``nan_check`` names the line and the iteration of the first value that is not finite: as an oracle of its own does, on every backend."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import qdrun as qd

sys.path.insert(0, str(Path(__file__).parent))
from nan_programs import If, Line, Loop, N, Program, programs, write

BACKENDS = {
    "cpu": {"arch": qd.cpu},
    "lanes": {"arch": qd.cpu, "cpu_lanes": 8},
    "python": {"arch": qd.python},
    "emulated": {"arch": qd.cuda, "device": "emulated"},
}


def load(program: Program, arrays, path, **options):
    """The kernel of a program in a new ``qd`` program, and its fields."""
    qd.init(default_fp=qd.f64, **options)
    fields = {name: qd.field(qd.f64, shape=N, needs_grad=True) for name in ("x", "y")}
    fields |= {f"p{number}": qd.field(qd.f64, shape=content.shape, needs_grad=True) for number, content in arrays.items()}
    for number, content in arrays.items():
        fields[f"p{number}"].from_numpy(content)
    fields["x"].from_numpy(np.linspace(0.1, 0.9, N))
    path.write_text(program.text)
    spec = importlib.util.spec_from_file_location("planted", path)
    module = importlib.util.module_from_spec(spec)
    vars(module).update(fields)
    spec.loader.exec_module(module)
    return module.k, fields


def failure(launch, *args):
    """The error of a launch, or None."""
    try:
        launch(*args)
    except qd.QdrunAssertionError as error:
        return error
    return None


def agrees(error, want, program, mode):
    """An error is about the line and the indices that the oracle has found; None about nothing."""
    if want is None:
        assert error is None, f"{error}\n{program.text}"
        return
    line, index = want
    row = 1 + program.text.splitlines().index("    return 0.5 * v + qd.sqrt(p)") if line.kind == "func" else line.row
    assert error is not None, f"nothing, but {line}, {index}\n{program.text}"
    assert (error.kind, error.mode, error.kernel, error.line) == ("nan", mode, "k", row), f"{error}\n{want}\n{program.text}"
    assert tuple(value for _, value in error.fault.iteration) == index, f"{error}\n{want}\n{program.text}"


def compare(program, arrays, options, path):
    """Launch a kernel, and its gradient if the kernel itself is well."""
    k, fields = load(program, arrays, path, debug=True, nan_check=True, **options)
    want = program.first_fault(arrays)
    agrees(failure(k, 2), want, program, "")
    if want is None:
        fields["y"].grad.fill(1.0)
        agrees(failure(k.grad, 2), program.first_fault_of_gradient(arrays), program, "gradient")


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_the_first_fault_is_where_the_oracle_finds_it(backend, data, tmp_path):
    program = data.draw(programs())
    compare(program, program.plants(data.draw), BACKENDS[backend], tmp_path / f"planted_{abs(hash(program.text))}.py")


@pytest.mark.slow
def test_a_program_with_a_loop_of_each_kind_is_traced_in_machine_code_and_interpreted(tmp_path):
    lines = [Line("sqrt"), Line("masked"), Line("pow"), Line("exp")]
    tree = [lines[0], Loop("literal", 3, [lines[1], Loop("while", 4, [lines[2]])]), If(2, [Loop("argument", 3, [lines[3]])])]
    program = write(tree)
    good = {s.number: np.full((N, *(n for _, n in s.around)), 0.75) for s in program.lines}
    rng = np.random.default_rng()
    for number, (plant, mode) in enumerate(((0.0, "gradient"), (-1.0, ""))):
        arrays = {k: v.copy() for k, v in good.items()}
        where = tuple(rng.integers(0, n) for n in arrays[2].shape)
        arrays[2][where] = plant
        found = program.first_fault(arrays) if mode == "" else program.first_fault_of_gradient(arrays)
        assert found is not None and found[1] == where
        compare(program, arrays, BACKENDS[("cpu", "python")[number]], tmp_path / f"traced_{number}.py")
