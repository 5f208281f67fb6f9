"""``python -m benchmarks.programs.genesis --genesis PLACE --peer-python PYTHON [--only ..] [--steps 4]``

Runs the kernels of Genesis' solvers (fluids, positions, material points with their gradient, tetrahedra, smoke) unchanged, through
``qdrun.compat`` and with Quadrants, on the same numbers in f64 and one thread, and prints how far their fields are apart and the CPU
seconds of a sub-step. PLACE is an address of Genesis' repository, which is cloned, or a working tree of it. ``genesis_one`` has the
cases.
"""

from __future__ import annotations

import argparse
import pickle
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from .__main__ import difference, fetch
from .genesis_one import CASES

HERE = Path(__file__).parent


def child(python: str, side: str, clone: Path, case: str, steps: int, out: Path) -> dict[str, Any]:
    """The outcome of a case on one side."""
    out.unlink(missing_ok=True)
    command = [python, str(HERE / "genesis_one.py"), side, str(clone), case, str(steps), str(out)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    except subprocess.TimeoutExpired:
        return {"status": "too long", "text": "600 s"}
    return pickle.loads(out.read_bytes()) if out.exists() else {"status": "crashes", "text": done.stderr[-300:]}


def shown(case: str, ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """A line of the table."""
    line = f"{case:16} {ours['status']:9} {theirs['status']:9}"
    if ours["status"] == theirs["status"] == "runs":
        apart = difference(ours["arrays"], theirs["arrays"])
        (a, *later), (b, *their_later) = ours["seconds"], theirs["seconds"]
        line += f" {len(ours['arrays']):6} {apart:10.0e} {a:7.2f} {b:7.2f}"
        if later:
            line += f" {1e3 * statistics.median(later):9.2f} {1e3 * statistics.median(their_later):9.2f}"
    return f"{line} {ours['text'][:200]}"


def main() -> None:
    """Run all cases and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.programs.genesis")
    parser.add_argument("--genesis", required=True, help="where its repository is: an address or a path")
    parser.add_argument("--peer-python", required=True, help="the Python that has Quadrants")
    parser.add_argument("--only", default=",".join(CASES), help="names of cases, separated by commas")
    parser.add_argument("--steps", type=int, default=4)
    o = parser.parse_args()
    print(f"{'case':16} {'qdrun':9} {'quadrants':9} fields difference   first   theirs  ms a step   theirs")
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(o.genesis).resolve()
        clone = tree if (tree / "genesis").is_dir() else fetch("genesis", o.genesis, Path(folder))
        for case in o.only.split(","):
            sides = (sys.executable, "qdrun"), (o.peer_python, "quadrants")
            outcomes = [child(p, side, clone, case, o.steps, Path(folder) / "out.pickle") for p, side in sides]
            print(shown(case, *outcomes), flush=True)


if __name__ == "__main__":
    main()
