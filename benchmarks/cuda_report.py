"""The tables of ``benchmarks.cuda`` from its results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

PEERS = ("quadrants", "jax", "warp")
Results = dict[str, dict[str, Any]]


def report(results: Results) -> str:
    """All tables, in Markdown."""
    parts = ["# On this GPU, ours beside the peers (ratio: ours / peer)", table(_rows(results))]
    curve = results.get("budgets", {}).get("qdrun", {})
    if "rows" in curve:
        parts += ["## 1,024 steps under budgets", table(_curve(curve))]
    faults = [f"- {case} {package}: {r['error']}" for case, by in results.items() for package, r in by.items() if "error" in r]
    for case, by in results.items():
        for package, r in by.items():
            faults += [
                f"- {case} {package} {name}: {row['error']}" for name, row in r.get("timed", {}).items() if "error" in row
            ]
    wrong = [f"- {line}" for line in disagreements(results)]
    parts += ["## Failed or left out", *(faults or ["none"]), "## Results that disagree", *(wrong or ["none"])]
    return "\n".join(parts) + "\n"


def table(rows: list[list[str]]) -> str:
    """A Markdown table; the first row is its head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]])


def _rows(results: Results) -> list[list[str]]:
    out = [["case", "figure", "ours", *PEERS, "ratio"]]
    for case, by in results.items():
        for name, unit, scale in _figures(case, by):
            values = [_find(by.get(p, {}), name) for p in ("qdrun", *PEERS)]
            mine, known = values[0], [v for v in values[1:] if v]
            ratio = f"{mine / known[0]:.3f}" if mine and known else ""
            out.append([case, f"{name} {unit}", *(f"{v * scale:,.4g}" if v is not None else "" for v in values), ratio])
        if case == "copy":
            rate = by.get("copy", {}).get("bytes_per_s")
            out.append([case, "TB/s, read and written", f"{rate / 1e12:.3f}" if rate else "", "", "", "", ""])
    copy, ours = (
        _find(results.get(c, {}).get(p, {}), n)
        for c, p, n in (("copy", "copy", "bytes_per_s"), ("saxpy", "qdrun", "saxpy.bytes_per_s"))
    )
    if copy and ours:
        out.append(["saxpy", "part of the copy's rate", f"{ours / copy:.3f}", "", "", "", ""])
    return out


def _figures(case: str, by: dict[str, Any]) -> Iterator[tuple[str, str, float]]:
    """What to show of a case: path in its figures, unit, factor."""
    timed = {name: row for r in by.values() for name, row in r.get("timed", {}).items()}
    for name, row in timed.items():
        if "error" in row:
            continue
        if case == "launch" and "host_us" in row:
            yield f"{name}.host_us", "us a launch, host", 1.0
        yield f"{name}.ms", "ms", 1.0
        if name.endswith("_graph") and "launches" in row:
            yield f"{name}.ms", "us a launch, device", 1e3 / row["launches"]
        if "bytes_per_s" in row and case == "saxpy":
            yield f"{name}.bytes_per_s", "TB/s", 1e-12
    if any(r.get("bytes") for r in by.values()):
        yield "bytes", "MB of adstack", 1e-6
    if any(r.get("errors") for r in by.values()):
        yield "errors.gradient", "largest relative error", 1.0
    if case == "cold":
        yield "cold_cpu_s", "s of CPU, cold compile", 1.0
        yield "cold_s", "s, cold compile", 1.0
        for part in ("import_s", "open_s", "fields_s"):
            yield f"warm.{part}", f"s, {part.removesuffix('_s')}, second process", 1.0
        yield "to_first_result_s", "s, start to first result, first process", 1.0
        yield "warm.to_first_result_s", "s, start to first result, second process", 1.0


def _find(figures: Any, path: str) -> float | None:
    if path.split(".", maxsplit=1)[0] not in ("bytes", "bytes_per_s", "errors", "warm") and "timed" in figures:
        figures = figures["timed"]
    for part in path.split("."):
        figures = figures.get(part) if isinstance(figures, dict) else None
    return figures if isinstance(figures, (int, float)) else None


def _curve(curve: dict[str, Any]) -> list[list[str]]:
    out = [["budget", "bytes", "ms", "times the first"]]
    first = curve["rows"][0]["ms"]
    for row in curve["rows"]:
        budget = "none" if row["budget"] is None else f"{row['budget']:,}"
        if "error" in row:
            out.append([budget, row["error"], "", ""])
        else:
            out.append([budget, f"{row['bytes']:,}", f"{row['ms']:.3f}", f"{row['ms'] / first:.2f}"])
    out.append(["forward kernel alone", "", f"{curve['forward']['ms']:.3f}", f"{curve['forward']['ms'] / first:.2f}"])
    return out


def disagreements(results: Results, tolerance: float = 2e-2) -> list[str]:
    """Cases whose values differ from package to package by more than rounding, or whose errors are large."""
    out = []
    for case, by in results.items():
        known = {p: np.asarray(r["values"], float) for p, r in by.items() if r.get("values")}
        ours = known.get("qdrun")
        for package, values in known.items():
            if ours is not None and not np.allclose(values, ours[: len(values)], rtol=tolerance, atol=1e-6):
                out.append(f"{case}: {package} has {values.tolist()}, ours {ours.tolist()}")
            if not np.isfinite(values).all():
                out.append(f"{case}: {package} has {values.tolist()}")
        for package, r in by.items():
            out += [f"{case}: {package}: error of {k} is {v:.1e}" for k, v in r.get("errors", {}).items() if not v < tolerance]
    return out
