"""Ours beside the peers on a GPU: times, bytes, launches, compilation.

    python -m benchmarks.cuda --out FOLDER [--arch cuda] [--small] [--only case,..] [--packages qdrun,..] [--limit 460] [--profile case,..]

Each case runs with each package in a process of its own, with a time limit: a failure, or a lost context, costs that one row. Results are
FOLDER/<case>.<package>.json as they come, all of them in FOLDER/results.json, and the tables in FOLDER/report.md. ``--arch cpu --small``
tries everything without a GPU. Medians, by CUDA events where the package launches on a stream that we can record on; see README.md.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.cuda_report import report

PLAN: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("copy", ("copy",)),
    ("sin1024", ("qdrun", "quadrants", "jax")),
    ("sin1024_accurate", ("qdrun", "quadrants")),
    ("sin256", ("qdrun", "quadrants", "jax")),
    ("sin64", ("qdrun", "quadrants", "jax")),
    ("budgets", ("qdrun",)),
    ("launch", ("qdrun", "quadrants")),
    ("saxpy", ("qdrun", "quadrants")),
    ("gated_grid", ("qdrun", "quadrants")),
    ("volume", ("qdrun", "quadrants")),
    ("diffmpm", ("qdrun", "quadrants", "warp")),
    ("cold", ("qdrun", "quadrants")),
    ("mpm88", ("qdrun", "quadrants")),
)
"""The cases, the most wanted ones first, and the packages of each."""

METRICS = (
    "gpu__time_duration.sum",
    "dram__bytes.sum",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__bytes.sum.per_second",
    "lts__t_bytes.sum",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active",
    "sm__inst_issued.avg.pct_of_peak_sustained_active",
    "launch__occupancy_limit_registers",
    "launch__occupancy_limit_shared_mem",
    "launch__registers_per_thread",
    "launch__shared_mem_per_block_dynamic",
)


def process(package: str, case: str, asked: argparse.Namespace, cache: str, limit: float) -> dict[str, Any]:
    """One case with one package in a process of its own: its figures, or ``error``. ``wall_s``: from its start to its end.

    ``asked.more``: further arguments of ``benchmarks.cuda_one``.
    """
    command = [
        sys.executable,
        "-m",
        "benchmarks.cuda_one",
        package,
        case,
        "--arch",
        asked.arch,
        "--seconds",
        str(asked.seconds),
    ]
    command += ["--small"] * asked.small + (["--cache", f"{cache}/peer"] if case == "cold" else [])
    command += asked.more
    begin = time.time()
    environment = {
        **os.environ,
        "QDRUN_CACHE_DIR": f"{cache}/ours",
        "CUDA_CACHE_DISABLE": "1",
        "__GL_SHADER_DISK_CACHE": "0",  # of NVIDIA's Vulkan driver
        "MESA_SHADER_CACHE_DISABLE": "true",
        "WARP_CACHE_PATH": f"{cache}/warp",
        "PYTHONPYCACHEPREFIX": f"{cache}/bytecode",  # as an installed package has it: the second process finds it
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=limit, check=False, env=environment
        )
    except subprocess.TimeoutExpired as e:
        text = e.stderr.decode(errors="replace") if isinstance(e.stderr, bytes) else (e.stderr or "")
        return {"error": f"over {limit:.0f} s", "stderr": text[-2000:], "wall_s": time.time() - begin}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return {"error": last, "code": done.returncode, "stderr": done.stderr[-4000:], "wall_s": time.time() - begin}
    out = json.loads(lines[-1])
    if "done_at" in out:
        out["to_first_result_s"] = out.pop("done_at") - begin
    return out | {"wall_s": time.time() - begin}


def run(asked: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """All cases; writes each result as it comes."""
    results: dict[str, dict[str, Any]] = {}
    begin = time.time()
    only, packages = asked.only.split(","), asked.packages.split(",")
    for case, names in PLAN:
        if asked.only and case not in only:
            continue
        for package in names:
            if asked.packages and package not in packages:
                continue
            left = asked.limit - (time.time() - begin)
            out = {"error": "no time left"} if left < 10 else case_figures(package, case, asked, min(asked.case_limit, left))
            results.setdefault(case, {})[package] = out
            (asked.out / f"{case}.{package}.json").write_text(json.dumps(out, indent=1, ensure_ascii=False))
            print(f"{time.time() - begin:5.0f} s  {case:<12} {package:<10} {out.get('error', 'done')}", flush=True)
    return results


def case_figures(package: str, case: str, asked: argparse.Namespace, limit: float) -> dict[str, Any]:
    """One row, with an empty cache folder; ``cold`` runs twice, the second time (``warm``) with what the first has left there."""
    cache = tempfile.mkdtemp()
    try:
        out = process(package, case, asked, cache, limit)
        if case == "cold" and "error" not in out:
            out["warm"] = process(package, case, asked, cache, limit)
        return out
    finally:
        shutil.rmtree(cache, ignore_errors=True)


def profile(case: str, asked: argparse.Namespace) -> str:
    """Nsight Compute's counters of our forward and gradient kernels in one case, as it prints them."""
    texts = []
    skip = 1 if case.startswith("sin") else 60  # what has the caches cold
    for once in ("forward", "gradient"):
        command = [
            "ncu",
            "--clock-control",
            "none",
            "--launch-skip",
            str(skip),
            "--launch-count",
            "6",
            "-k",
            "regex:^qd_",
            "--csv",
        ]
        command += ["--metrics", ",".join(METRICS), sys.executable, "-m", "benchmarks.cuda_one", "qdrun", case, "--once", once]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=asked.case_limit, check=False)
            lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
            texts.append("\n".join([f"{case} {once}", *map(_short, lines), done.stderr[-1000:] if not lines else ""]))
        except (OSError, subprocess.TimeoutExpired) as e:
            texts.append(f"{case} {once}: {e}")
    return "\n".join(texts)


def _short(line: str) -> str:
    """Kernel, block, grid, metric, unit and value of a line of Nsight Compute's."""
    cells = next(csv.reader([line]))
    return " | ".join([cells[0], *(c.split("(")[0] for c in cells[4:5]), *cells[7:9], *cells[-3:]]) if len(cells) > 12 else line


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--arch", default="cuda", choices=("cuda", "cpu", "emulated"))
    parser.add_argument("--small", action="store_true", help="sizes for a try")
    parser.add_argument("--only", default="", help="cases, with commas")
    parser.add_argument("--packages", default="", help="qdrun, quadrants, jax, warp, copy")
    parser.add_argument("--seconds", type=float, default=1.0, help="to measure one function")
    parser.add_argument("--case-limit", type=float, default=90.0, help="seconds of one process")
    parser.add_argument("--limit", type=float, default=460.0, help="seconds of everything; what is left over then is named")
    parser.add_argument("--profile", default="", help="Nsight Compute on these cases, with commas, after everything")
    parser.set_defaults(more=[])
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    results = run(asked)
    (asked.out / "results.json").write_text(json.dumps(results, indent=1, ensure_ascii=False))
    text = report(results)
    if asked.profile:
        found = [profile(case, asked) for case in asked.profile.split(",")]
        text += "\n## Nsight Compute\n```\n" + "\n".join(found) + "\n```\n"
    (asked.out / "report.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
