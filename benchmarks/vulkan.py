"""Vulkan beside CUDA, ours beside the peer's: times, bytes of adstacks, seconds of compilation.

    python -m benchmarks.vulkan --out FOLDER [--size gpu|software|small] [--sides qdrun:cuda,qdrun:vulkan,..] [--rounds 2] [--only case,..]

A side is a package on an arch. The sides take turns: each case runs with each side in a process of its own
(``benchmarks.cuda_one``), one after the other, ``--rounds`` times; a figure is the median of its rounds. Times are the host's clock
from the first launch to the end of the work, as both archs have no other clock in common; a function of one launch is called
``--together`` times in between. Results are FOLDER/results.json and the table in FOLDER/report.md.

On a machine without a GPU, Vulkan runs on the software driver lavapipe: ``--size software --sides
qdrun:cpu,qdrun:vulkan,quadrants:vulkan --device llvmpipe``. That driver ends all loops of a thread after 65,536 iterations, so the
sizes are smaller.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.cuda import process
from benchmarks.cuda_report import table


def _sin(steps: int, software: int = 1 << 24, **more: Any) -> dict[str, dict[str, Any]]:
    """``software``: steps of all iterations on a software driver."""
    return {"gpu": {"steps": steps, **more}} | {
        size: {"steps": steps, "n": whole // steps, **more} for size, whole in (("software", software), ("small", 1 << 18))
    }


CASES: dict[str, dict[str, dict[str, Any]]] = {
    "sin1024": _sin(1024),
    "sin1024_accurate": _sin(1024, 1 << 20),
    "sin1024_f64": _sin(1024, 1 << 20, fp="f64"),
    "sin64": _sin(64),
    "mpm88": {"gpu": {"steps": 128}, "software": {"steps": 16}, "small": {"particles": 256, "steps": 4, "grid": 32}},
    "mass_spring": {"gpu": {}, "software": {}, "small": {"steps": 200}},
    "launch": {"gpu": {}, "software": {"many": 100}, "small": {"many": 50}},
}
"""Arguments of the cases by size."""

FIGURES = (
    ("forward, {}", "timed.forward.{}"),
    ("forward as a graph, {}", "timed.forward_graph.{}"),
    ("gradient, {}", "timed.gradient.{}"),
    ("gradient as a graph, {}", "timed.gradient_graph.{}"),
    ("an empty kernel, us of host time", "timed.empty.host_us"),
    ("an ndarray and a number, us of host time", "timed.ndarray_scalar.host_us"),
    ("launches and their gradients through a tape, {}", "timed.tape.{}"),
    ("the same as a graph, {}", "timed.tape_graph.{}"),
    ("bytes of adstacks", "bytes"),
    ("compilation, s", "compile_s"),
    ("compilation, s of CPU time", "compile_cpu_s"),
    ("error of the loss against f64", "errors.loss"),
    ("error of the gradient against f64", "errors.gradient"),
)
"""Text and path of what the table shows. ``{}``: the time in milliseconds, and, of a software driver, the CPU time of all threads, too."""
TOLERANCE = {"sin1024_f64": 1e-9}
Figures = dict[str, Any]
Results = dict[str, dict[str, Figures]]


def measure(asked: argparse.Namespace) -> Results:
    """All rounds, merged; writes what it has after each process."""
    rounds: dict[str, dict[str, list[Figures]]] = {}
    merged: Results = {}
    begin = time.time()
    cases = asked.only.split(",") if asked.only else list(CASES)
    for number in range(asked.rounds):
        for case in cases:
            for side in asked.sides.split(","):
                out = figures(case, side, asked, begin)
                rounds.setdefault(case, {}).setdefault(side, []).append(out)
                print(
                    f"{time.time() - begin:5.0f} s  round {number}  {case:<18} {side:<18} {out.get('error', 'done')}",
                    flush=True,
                )
                merged = {name: {s: merge(found) for s, found in by.items()} for name, by in rounds.items()}
                (asked.out / "results.json").write_text(json.dumps(merged, indent=1, ensure_ascii=False))
    return merged


def figures(case: str, side: str, asked: argparse.Namespace, begin: float) -> Figures:
    """One process with an empty cache folder."""
    left = asked.limit - (time.time() - begin)
    if left < 10:
        return {"error": "no time left"}
    package, asked.arch = side.split(":")
    asked.more = ["--sizes", json.dumps(CASES[case][asked.size]), "--together", str(asked.together)]
    if asked.device and asked.arch == "vulkan":
        asked.more += ["--device", asked.device]
    with tempfile.TemporaryDirectory() as cache:
        return process(package, case, asked, cache, min(asked.case_limit, left))


def merge(rounds: list[Figures]) -> Figures:
    """The median of each number of the rounds that did not fail; the error if all of them did."""
    good = [r for r in rounds if "error" not in r] or rounds[-1:]

    def of(values: list[Any]) -> Any:
        if isinstance(values[0], dict):
            return {name: of([v[name] for v in values if name in v]) for name in values[0]}
        return median(values) if all(isinstance(v, (int, float)) for v in values) else values[0]

    return of(good) | {"rounds": len(rounds), "failed": sum("error" in r for r in rounds)}


def find(figures: Any, path: str) -> float | None:
    """A number by its path."""
    for part in path.split("."):
        figures = figures.get(part) if isinstance(figures, dict) else None
    return figures if isinstance(figures, (int, float)) else None


def report(results: Results, sides: list[str], software: bool) -> str:
    """The table, what failed, and where results disagree."""
    clocks = (("ms", "wall_ms"), ("ms of CPU time", "cpu_ms"))[: 1 + software]
    shown = [
        (text.format(unit), path.format(clock))
        for text, path in FIGURES
        for unit, clock in clocks
        if "{}" in text or clock == "wall_ms"
    ]
    ratios = [(a, b) for a, b in (("qdrun:vulkan", "qdrun:cuda"), ("qdrun:vulkan", "quadrants:vulkan")) if {a, b} <= set(sides)]
    rows = [["case", "figure", *sides, *(f"{a} / {b}" for a, b in ratios)]]
    for case, by in results.items():
        for name, path in shown:
            found = {side: find(by.get(side, {}), path) for side in sides}
            if all(v is None for v in found.values()):
                continue
            cells = ("" if v is None else f"{v:,.0f}" if path == "bytes" else f"{v:,.4g}" for v in found.values())
            rows.append([case, name, *cells, *(quotient(found[a], found[b]) for a, b in ratios)])
    faults = [f"- {case} {side}: {r['error']}" for case, by in results.items() for side, r in by.items() if "error" in r]
    for case, by in results.items():
        for side, r in by.items():
            faults += [f"- {case} {side} {n}: {row['error']}" for n, row in r.get("timed", {}).items() if "error" in row]
    wrong = [f"- {line}" for line in disagreements(results)]
    parts = [table(rows), "## Failed", *(faults or ["none"]), "## Results that disagree", *(wrong or ["none"])]
    return "\n".join(parts) + "\n"


def quotient(a: float | None, b: float | None) -> str:
    """The ratio, where both are known and the second one is not 0."""
    return f"{a / b:.3f}" if a is not None and b else ""


def disagreements(results: Results) -> list[str]:
    """Errors against f64 that are no rounding, and bytes that were used but not planned."""
    out = []
    for case, by in results.items():
        for side, r in by.items():
            most = TOLERANCE.get(case, 1e-3)
            out += [f"{case} {side}: error of the {k} is {v:.1e}" for k, v in r.get("errors", {}).items() if not v < most]
            if "used_bytes" in r and r["used_bytes"] != r["bytes"]:
                out.append(f"{case} {side}: {r['bytes']:,} bytes planned, {r['used_bytes']:,} used")
    return out


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--size", choices=("gpu", "software", "small"), default="gpu")
    parser.add_argument("--sides", default="qdrun:cuda,qdrun:vulkan,quadrants:cuda,quadrants:vulkan")
    parser.add_argument("--only", default="", help="cases, with commas")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--together", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=1.0, help="to measure one function")
    parser.add_argument("--case-limit", type=float, default=90.0, help="seconds of one process")
    parser.add_argument("--limit", type=float, default=460.0, help="seconds of everything; what is left over then is named")
    parser.add_argument("--device", default="", help="which device ours uses on Vulkan")
    parser.set_defaults(small=False)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    text = report(measure(asked), asked.sides.split(","), asked.size == "software")
    (asked.out / "report.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
