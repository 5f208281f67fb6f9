"""Seconds to compile kernels of 100, 1,000 and 10,000 statements, by stage, and how they grow with the size.

    python -m benchmarks.compile_time [--sizes 100 1000 10000] [--shapes straight branchy loopy indexed] [--peer] [--json]

``straight``: arithmetic, one statement after another. ``branchy``: an if with two arms in every four statements. ``loopy``: a loop
of unknown length in every eight, every fourth with a loop inside. ``indexed``: a vector of so many components, written and returned by
an index that only running tells; its forward call alone is timed. The figures are CPU seconds of one process; the exponent between two
sizes is log(ratio of the seconds) / log(ratio of the sizes), 1 means linear. ``--peer`` compiles the same source with quadrants.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.table import Table

SHAPES = ("straight", "branchy", "loopy", "indexed")
STAGES = ("lower", "simplify", "emit", "llvm", "reverse", "reverse_simplify", "reverse_emit", "reverse_llvm")
STAGE_OF = {
    "lower": "lower",
    "exits": "simplify",
    "simplify": "simplify",
    "reverse-raw": "reverse",
    "reverse": "reverse_simplify",
}
"""The figure that each stage of ``compile.pipeline`` is a part of."""
NAMES = 12  # variables of a kernel: each is assigned again and again


def _statement(rng: random.Random) -> str:
    a, b, c = (f"v{rng.randrange(NAMES)}" for _ in range(3))
    forms = (
        f"{a} = {b} * 0.5 + {c} * 0.25",
        f"{a} = {b} * {c} * 0.1 - {a}",
        f"{a} += 0.01 * {b}",
        f"{a} = lib.max({b}, {c}) * 0.5",
    )
    return rng.choice(forms)


def _straight(rng: random.Random, n: int) -> list[str]:
    return [_statement(rng) for _ in range(n)]


def _branchy(rng: random.Random, n: int) -> list[str]:
    out: list[str] = []
    for _ in range(n // 4):
        arms = [f"    {_statement(rng)}" for _ in range(2)]
        out += [f"if v{rng.randrange(NAMES)} > 0.3:", arms[0], "else:", arms[1], _statement(rng)]
    return out


def _loopy(rng: random.Random, n: int) -> list[str]:
    out: list[str] = []
    for k in range(n // 8):
        body = [f"    {_statement(rng)}" for _ in range(4)]
        inner = ["    for _i in range(count[None]):", *(f"    {line}" for line in body[2:])] if k % 4 == 0 else body[2:]
        out += ["for _j in range(count[None]):", *body[:2], *inner, _statement(rng), _statement(rng)]
    return out


def source(shape: str, n: int, seed: int = 1) -> str:
    """A module with ``make(lib)``, which returns a kernel of about ``n`` statements over fields of its own."""
    if shape == "indexed":
        return (
            "def make(lib):\n"
            f"    V = lib.types.vector({n}, lib.f32)\n\n"
            "    @lib.kernel\n    def k() -> V:\n"
            f"        r = V(0.0)\n        for i in range({n}):\n            r[i] = i\n        return r\n\n    return k\n"
        )
    body = {"straight": _straight, "branchy": _branchy, "loopy": _loopy}[shape](random.Random(seed), n)
    first = [f"v{k} = x[i] * {0.1 * (k + 1):.1f}" for k in range(NAMES)]
    last = "y[i] = " + " + ".join(f"v{k}" for k in range(NAMES))
    lines = "\n".join(f"            {line}" for line in [*first, *body, last])
    return (
        "def make(lib):\n"
        "    x = lib.field(lib.f32, shape=64, needs_grad=True)\n"
        "    y = lib.field(lib.f32, shape=64, needs_grad=True)\n"
        "    count = lib.field(lib.i32, shape=())\n"
        "    count[None] = 2\n\n"
        "    @lib.kernel\n    def k():\n        for i in range(64):\n"
        f"{lines}\n\n    return k\n"
    )


def load(folder: Path, shape: str, n: int) -> ModuleType:
    """The generated module, from a file: kernels are read from their source."""
    path = folder / f"{shape}_{n}.py"
    path.write_text(source(shape, n))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def stages(shape: str, n: int) -> dict[str, float]:
    """CPU seconds of each of our stages, and the statements of the simplified kernels."""
    import qdrun as qd
    from qdrun.compiler.codegen.llvm.cost import suggested_lanes
    from qdrun.compiler.codegen.llvm.kernel import emit_kernel
    from qdrun.compiler.codegen.llvm.target import Target
    from qdrun.compiler.compile import pipeline
    from qdrun.compiler.frontend.signature import LowerOptions
    from qdrun.compiler.ir.process import while_compiling
    from qdrun.compiler.ir.walk import task_blocks
    from qdrun.compiler.options import Options
    from qdrun.compiler.runtime.jit import compile_text, host

    qd.init(arch=qd.cpu, offline_cache=False)
    out: dict[str, float] = {}

    def timed(stage: str, f: Any, *args: Any) -> Any:
        begin = time.process_time()
        with while_compiling():  # as when a kernel is called
            result = f(*args)
        out[stage] = out.get(stage, 0.0) + time.process_time() - begin
        return result

    def stage(step: pipeline.Stage, f: Any, *args: Any, **keywords: Any) -> Any:
        return timed(STAGE_OF[step.name], lambda: f(*args, **keywords))

    with tempfile.TemporaryDirectory() as folder:
        kernel = load(Path(folder), shape, n).make(qd)
        machine = host()

        def compile_both(prefix: str, ir: Any) -> None:
            def emit() -> str:
                ready, how = pipeline.device_input(ir, Options())
                lanes = suggested_lanes(ready, machine.triple, machine.features) if not prefix else 1
                return emit_kernel(ready, Target("cpu", machine.triple, machine.cpu, machine.features, lanes), how.plain)

            text = timed(f"{prefix}emit", emit)
            timed(f"{prefix}llvm", compile_text, text, ir.name)

        primal = pipeline.simplified(pipeline.lowered(kernel.source, {}, LowerOptions(), run=stage), run=stage)
        compile_both("", primal)
        adjoint = pipeline.gradient(primal, run=stage).kernel
        compile_both("reverse_", adjoint)
        out["statements"] = sum(1 for t in primal.tasks for _ in task_blocks(t))
        out["reverse_statements"] = sum(1 for t in adjoint.tasks for _ in task_blocks(t))
    return out


def first_calls(package: str, shape: str, n: int) -> dict[str, float]:
    """CPU seconds of the first forward and the first gradient call with one package: everything between them and the result."""
    from benchmarks.one import OPTIONS

    lib = importlib.import_module(package)
    lib.init(arch=lib.cpu, **OPTIONS[package])
    out: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        warm = load(Path(folder), "straight", 8).make(lib)
        warm()
        warm.grad()
        kernel = load(Path(folder), shape, n).make(lib)
        timed = {"forward": kernel} if shape == "indexed" else {"forward": kernel, "gradient": kernel.grad}
        for name, call in timed.items():
            begin = time.process_time()
            call()
            out[name] = time.process_time() - begin
    return out


def in_process(*arguments: str, seconds: float) -> dict[str, float] | None:
    """The figures of one process of its own; None when it takes longer than ``seconds``."""
    command = [sys.executable, "-m", "benchmarks.compile_time", "--one", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def exponents(sizes: list[int], rows: list[dict[str, float] | None], name: str) -> list[str]:
    """The growth of one figure from each size to the next; "-" where it is too short to tell."""
    out = ["" for _ in sizes[:1]]
    for (n, row), (m, bigger) in zip(zip(sizes, rows), list(zip(sizes, rows))[1:]):
        known = row is not None and bigger is not None and row.get(name, 0) > 0.002 and bigger.get(name, 0) > 0
        out.append(f"{math.log(bigger[name] / row[name]) / math.log(m / n):.2f}" if known else "-")  # type: ignore[index]
    return out


def report(shape: str, sizes: list[int], rows: list[dict[str, float] | None], names: list[str], title: str) -> None:
    """Print one table: a line for each figure, a column for each size, the growth in brackets."""
    table = Table(title, *(f"{n:,}" for n in sizes))
    for name in names:
        grows = exponents(sizes, rows, name)
        cells = [f"{row[name]:.4g} {f'({g})' if g else ''}" if row else "too long" for row, g in zip(rows, grows)]
        table.add_row(name, *cells)
    Console(width=140).print(table)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="*", type=int, default=[100, 1000, 10000])
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES))
    parser.add_argument("--peer", action="store_true", help="also the first calls of both packages")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds that one process may take")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", nargs=3, metavar=("PACKAGE", "SHAPE", "N"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        package, shape, n = options.one
        figures = stages(shape, int(n)) if package == "stages" else first_calls(package, shape, int(n))
        print(json.dumps(figures))
        return
    everything: dict[str, Any] = {}
    for shape in options.shapes:
        for package in ("stages", *(("qdrun", "quadrants") if options.peer else ())):
            rows = [in_process(package, shape, str(n), seconds=options.limit) for n in options.sizes]
            everything[f"{shape}.{package}"] = dict(zip(map(str, options.sizes), rows))
            calls = ["forward"] if shape == "indexed" else ["forward", "gradient"]
            names = [*STAGES, "statements", "reverse_statements"] if package == "stages" else calls
            if not options.json:
                report(shape, options.sizes, rows, names, f"{shape}: {package}, CPU seconds (growth)")
    if options.json:
        print(json.dumps(everything, indent=1))


if __name__ == "__main__":
    main()
