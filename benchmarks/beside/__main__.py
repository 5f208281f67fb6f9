"""Jobs of the gallery beside the same simulation in other frameworks, on one core: ratios of time, bytes and lines.

python -m benchmarks.beside [smoke] [burgers] [cloth] [diffmpm] [pendulum] [--seconds 3] [--rounds 3] [--core 0]

It needs ``jax``, ``torch``, ``phiflow``, ``warp-lang`` and ``diffrax`` in this environment; a side whose package is missing is left out and
named. Every side runs in a process of its own on the same core and with empty caches, all of them in turns, ``--rounds`` times. The best
time counts.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from typing import Any

import numpy as np

PEERS = {"smoke": ("jax", "torch"), "burgers": ("phiflow",), "cloth": ("warp",), "diffmpm": ("warp",), "pendulum": ("diffrax",)}
MODULE = {"phiflow": "phi"}
"""Where the module of a package has another name."""
TOLERANCE = {"smoke": 1e-9, "burgers": 1e-6, "cloth": 2e-3, "diffmpm": 2e-3, "pendulum": 1e-4}
"""How far losses and gradients may be apart, relative to the largest: rounding of f32, or another method of integration."""


def side(case: str, name: str, seconds: float) -> None:
    """Measure one side in this process."""
    from .measure import figures, report  # after the core is chosen

    with ExitStack() as keep:
        if name == "ours":
            from .ours import SIDES

            make, source = SIDES[case]
            report(figures(lambda: make(keep), source, seconds))
        else:
            module = importlib.import_module(f"benchmarks.beside.{case}_{name}")
            report(figures(module.make, module.SOURCE, seconds))


def measured(case: str, name: str, options: argparse.Namespace) -> dict[str, Any]:
    """The figures of one side, from a process of its own."""
    command = [sys.executable, "-m", "benchmarks.beside", case, "--side", name, "--seconds", str(options.seconds)]
    with tempfile.TemporaryDirectory() as caches:  # empty ones: the first run compiles everything
        own = os.environ | {"QDRUN_CACHE_DIR": f"{caches}/qdrun", "WARP_CACHE_PATH": f"{caches}/warp"}
        done = subprocess.run([*command, "--core", str(options.core)], capture_output=True, text=True, check=False, env=own)
    lines = [line for line in done.stdout.splitlines() if line.startswith("FIGURES ")]
    if not lines:
        raise SystemExit(f"{case}, {name}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return json.loads(lines[-1].removeprefix("FIGURES "))


def apart(a: dict[str, Any], b: dict[str, Any]) -> float:
    """The largest difference of losses and of gradients, each relative to the largest value."""
    pairs = [(np.array(a[key]), np.array(b[key])) for key in ("loss", "gradient")]
    return max(float(np.abs(x - y).max() / np.abs(y).max()) for x, y in pairs)


def compare(case: str, options: argparse.Namespace) -> None:
    """Measure all sides of a case in turns, and print them."""
    peers = [name for name in PEERS[case] if importlib.util.find_spec(MODULE.get(name, name))]
    for name in set(PEERS[case]) - set(peers):
        print(f"{case}: no {name} in this environment")
    rounds = [{name: measured(case, name, options) for name in ("ours", *peers)} for _ in range(options.rounds)]
    best = {
        name: {**rounds[0][name], **{key: min(one[name][key] for one in rounds) for key in ("seconds", "start", "bytes")}}
        for name in rounds[0]
    }
    print(f"\n{case:10} {'CPU ms':>10} {'start, s':>10} {'MB':>8} {'lines':>6}   ours / theirs: time, start, bytes, lines")
    for name, row in best.items():
        ratios = "".join(f"{best['ours'][key] / row[key]:8.3f}" for key in ("seconds", "start", "bytes", "lines"))
        text = f"{name:10} {1e3 * row['seconds']:10.3f} {row['start']:10.2f} {row['bytes'] / 1e6:8.1f} {row['lines']:6}"
        difference = apart(best["ours"], row)
        print(text if name == "ours" else f"{text}   {ratios}   apart {difference:.1e}")
        if difference > TOLERANCE[case]:
            raise SystemExit(f"{case}: ours and {name} differ by {difference:.1e}, more than {TOLERANCE[case]}")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(PEERS)}; all without one")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := [case for case in options.cases if case not in PEERS]:
        raise SystemExit(f"no case {unknown[0]}: {', '.join(PEERS)}")
    if options.side:
        os.sched_setaffinity(0, {options.core})
        side(options.cases[0], options.side, options.seconds)
        return
    for case in options.cases or PEERS:
        compare(case, options)


if __name__ == "__main__":
    main()
