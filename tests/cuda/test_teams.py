"""Iterations that several lanes of a trial run together, on the emulated device: random kernels beside single trials on the CPU, one lane
each, and beside differences.
"""

from __future__ import annotations

import importlib.util
import random
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.codegen.cuda.hardware import cuda_target
from qdrun.compiler.codegen.cuda.nvptx_table import NVPTX
from qdrun.compiler.codegen.gpu.trials import task, team
from qdrun.compiler.runtime.cuda.ptx import compile_ptx
from qdrun.compiler.runtime.gpu import trial_graphs

HEAD = """
import qdrun as qd

def build():
    x = qd.field(qd.f64, shape={n}, needs_grad=True)
    w = qd.field(qd.f64, shape={m}, needs_grad=True)
    u = qd.field(qd.f64, shape=({n}, {m}), needs_grad=True)
    y = qd.field(qd.f64, shape={m}, needs_grad=True)
    z = qd.field(qd.f64, shape=(), needs_grad=True)
    low = qd.field(qd.i32, shape=())
    loss = qd.field(qd.f64, shape=(), needs_grad=True)

    @qd.kernel
    def work():
{body}
    @qd.kernel
    def measure():
        for j in range({m}):
            loss[None] += y[j] * y[j] + 0.3 * w[j] * y[j]
        loss[None] += qd.sin(z[None])

    def sweep():
        y.fill(0.0)
        z[None] = 0.0
        with qd.ad.Tape(loss):
            work()
            measure()

    return {{"x": x, "w": w, "u": u, "low": low}}, {{"loss": loss, "y": y, "z": z, "dx": x.grad, "dw": w.grad, "du": u.grad}}, sweep
"""


def inner_loop(rng: random.Random, m: int, depth: str) -> list[str]:
    """A loop that sums up: in locals, in elements that its index chooses, in one that does not depend on it; or that cannot be divided."""
    begin = rng.choice(["0", "0", "low[None]", "2"])
    over = rng.choice([f"range({begin}, {m})", f"range({m} - 1, -1, -1)", f"range({m})"])
    out = [f"{depth}for j in {over}:", f"{depth}    p = w[j] * a + u[i, j] * {rng.choice(['b', 'qd.cos(a)', '0.5'])}"]
    if rng.random() < 0.4:
        out += [
            f"{depth}    if p > 0.1:",
            f"{depth}        p = p * p",
            f"{depth}        {rng.choice(['c += 0.1 * p', 'c -= p'])}",
        ]
    if rng.random() < 0.3:
        out += [f"{depth}    for k in range(3):", f"{depth}        p = qd.sin(p + 0.1 * k)"]
    sums = rng.sample(
        [
            "b += 0.2 * qd.sin(p)",
            "c -= p * w[j]",
            "y[j] += 0.1 * p",
            "y[(j * 3) % 4] += 0.05 * p",
            "z[None] += 0.01 * p",
            "y[i % 3] -= 0.02 * p",
        ],
        rng.randint(1, 4),
    )
    out += [f"{depth}    {line}" for line in sums]
    if rng.random() < 0.15:
        out.append(f"{depth}    a = qd.sin(a) + 0.01 * p")  # the next iteration needs it: not divided
    return out


def random_program(rng: random.Random) -> str:
    """A module with kernels of such loops, in parallel loops, in serial ones, in time steps."""
    n, m = rng.choice([1, 2, 3, 5]), rng.choice([5, 8, 17])
    depth = " " * 12
    body = ["        qd.loop_config(serialize=True)"] * (rng.random() < 0.2) + [f"        for i in range({n}):"]
    body += [f"{depth}a, b, c = x[i], 0.0, 0.5"]
    steps = rng.random() < 0.4
    if steps:
        body.append(f"{depth}for t in range({rng.randint(2, 4)}):")
    inside = depth + "    " * steps
    for _ in range(rng.randint(1, 2)):
        body += inner_loop(rng, m, inside)
        if rng.random() < 0.5:
            body.append(f"{inside}a = a + 0.1 * qd.tanh(b) - 0.01 * c")
    body += [f"{depth}y[i % {m}] += 0.1 * a + b", f"{depth}z[None] += 0.1 * c * a", f"{depth}loss[None] += a * b + 0.1 * c"]
    return HEAD.format(n=n, m=m, body="\n".join(body) + "\n")


def loaded(text: str, folder: Path) -> ModuleType:
    name = f"teams_{abs(hash(text))}"
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def drawn(fields: dict[str, Any], count: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        name: rng.integers(0, 4, (count, *f.shape)) if name == "low" else rng.normal(size=(count, *f.shape))
        for name, f in fields.items()
    }


def run(module: ModuleType, given: dict[str, np.ndarray] | None, seed: int, record: bool, **options: Any) -> tuple[Any, Any]:
    """Inputs and results; ``given``: None draws them for a batch."""
    program = qd.init(default_fp=qd.f64, **options)
    inputs, outputs, sweep = module.build()
    given = drawn(inputs, options["batch"], seed) if given is None else given

    def fill() -> None:
        for name, value in given.items():
            inputs[name].from_numpy(value)

    fill()
    sweep()
    if record:
        graph = qd.capture(sweep)
        fill()
        graph()
    qd.sync()
    found = {name: f.to_numpy() for name, f in outputs.items()}
    program.close()
    return given, found


def check(seed: int, folder: Path, lanes: int) -> int:
    """Compare a random program with single trials; how many teams had more than one lane."""
    text, sizes = random_program(random.Random(seed)), list[int]()
    module = loaded(text, folder)

    def noted(of: Any, lanes: int) -> team.Team:
        sizes.append(team.team_of(of, lanes).size)
        return team.team_of(of, lanes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task, "team_of", noted)
        given, found = run(module, None, seed, True, arch=qd.cuda, device="emulated", batch=3, gpu_lanes=lanes)
    for b in range(3):
        one = {name: value[b] for name, value in given.items()}
        _, alone = run(module, one, seed, False, arch=qd.cpu, cpu_max_num_threads=1, cpu_lanes=1)
        for name, value in alone.items():
            largest = float(np.abs(value).max())  # gradients of several steps can be large, and their sums cancel
            np.testing.assert_allclose(
                found[name][b], value, rtol=1e-9, atol=1e-9 * max(0.01, largest), err_msg=f"{name} of trial {b}\n{text}"
            )
    return sum(size > 1 for size in sizes)


@pytest.mark.parametrize("lanes", [2, 8, 16, 64])
def test_random_kernels_have_the_values_and_gradients_of_single_trials(lanes: int, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 30)
    print("seed", seed)
    found = [check(seed + k, tmp_path, lanes) for k in range(6)]
    while not any(found) and len(found) < 60:  # with few lanes most programs have none to spare
        found.append(check(seed + len(found), tmp_path, lanes))
    assert sum(found) > 0


@pytest.mark.slow
def test_many_random_kernels_have_the_values_and_gradients_of_single_trials(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 30)
    print("seed", seed)
    assert sum(check(seed + k, tmp_path, 2 << k % 6) for k in range(60)) > 30


def test_gradients_of_a_team_are_differences(tmp_path: Path) -> None:
    """A network's layer in time steps; the loss by 16 lanes, the gradient by central differences of it."""
    module = loaded(random_program(random.Random(11)), tmp_path)
    options: dict[str, Any] = {"arch": qd.cuda, "device": "emulated", "batch": 2, "gpu_lanes": 16}
    given, found = run(module, None, 5, True, **options)
    direction, h = np.random.default_rng().normal(size=given["w"].shape), 1e-6
    up, down = (run(module, given | {"w": given["w"] + s * h * direction}, 5, True, **options)[1]["loss"] for s in (1, -1))
    slope = (found["dw"] * direction).sum(1)
    np.testing.assert_allclose((up - down) / (2 * h), slope, rtol=1e-6, atol=1e-7)


def text_of(patch: pytest.MonkeyPatch, module: ModuleType, lanes: int) -> str:
    """The module of the recorded launches, for an NVIDIA GPU."""
    found, write = list[str](), trial_graphs.trial_text
    made = trial_graphs.emit_chunks, trial_graphs.emit_walk

    def chunks(of: Any, sources: Any, shape: Any, same: Any) -> Any:
        from qdrun.compiler.codegen.gpu.trials.module import emit_chunks, emit_walk, trial_text
        from qdrun.compiler.codegen.llvm.function import LlvmModule

        own = LlvmModule(cuda_target())
        emitted, common = emit_chunks(own, sources, shape, same)
        emit_walk(own, emitted, len(common), shape, "walk")
        found.append(trial_text(own, "walk", cuda_target(), shape))
        return made[0](of, sources, shape, same)

    assert write is not None
    patch.setattr(trial_graphs, "emit_chunks", chunks)
    run(module, None, 1, True, arch=qd.cuda, device="emulated", batch=2, gpu_lanes=lanes)
    return found[-1]


def test_the_code_for_nvidia_folds_by_shuffles_and_waits_for_the_team_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = text_of(monkeypatch, loaded(random_program(random.Random(11)), tmp_path), 16)
    NVPTX.check(text, "walk")
    ptx = compile_ptx(text, "walk", "sm_90", "+ptx80")
    assert "shfl.sync.idx.b32" in ptx and re.search(r"bar\.warp\.sync\s+%r", ptx)


DIVISION = """
import qdrun as qd

def build():
    w = qd.field(qd.f64, shape=32)
    out = qd.field(qd.f64, shape=4)

    @qd.kernel
    def work():
        for i in range(4):
            b = 0.0
            for j in range(32):
                {line}
            out[i] = b

    return work
"""


@pytest.mark.parametrize(
    ("line", "lanes"),
    [
        ("b += qd.sin(w[j])", 128),
        ("b = qd.sin(b) + w[j]", 4),  # the next iteration needs it
        ("b = qd.max(b, w[j])", 4),  # no sum
        ("w[j] = 2.0 * w[j]; b += w[j]", 4),  # a store
        ("b += qd.sin(w[j]); w[0] += b", 4),  # it reads what it adds to, and the sum so far
        ("b += qd.random()", 128),  # a number is that of its iteration
    ],
)
def test_a_loop_is_divided_if_its_iterations_only_add(line: str, lanes: int, tmp_path: Path) -> None:
    program = qd.init(arch=qd.cuda, device="emulated", default_fp=qd.f64, batch=2)
    work = loaded(DIVISION.format(line=line), tmp_path).build()
    work()
    (variant,) = [v for found in program.variants.values() for v in found.values()]
    kernel, _, _ = variant.executable.compiled.gpu.trial_source()
    assert [team.useful_lanes(t) for t in kernel.tasks] == [lanes]
    assert [team.team_of(t, 64).size for t in kernel.tasks] == [16 if lanes > 4 else 1]
    program.close()
