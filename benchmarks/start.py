"""Seconds until the first trial and until the end of ``qdrun submit``: where it starts Ray (cold), and where it joins that of ``qdrun up``.

python -m benchmarks.start [CONFIG] [--rounds 5]

``up``: the command as a whole. ``warm``: after ``up`` and one submit. Phases are those of the run's journal, since the start of the
command's process: config read, plans made, Ray joined or started, first trial, end. Records of Ray are in a folder of this script's own.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CONFIG = Path(__file__).parents[1] / "configs" / "quickstart.yaml"
QDRUN = str(Path(sys.executable).parent / "qdrun")
PHASES = ("submitted_s", "planned_s", "ray_ready_s", "first_start_s", "ended_s")


def command(*words: str, folder: str) -> tuple[float, str]:
    """Run a command; its seconds and its output."""
    begun = time.perf_counter()
    own = {"XDG_STATE_HOME": f"{folder}/state", "QDRUN_MACHINE_DIR": f"{folder}/machine"}
    done = subprocess.run([QDRUN, *words], capture_output=True, text=True, check=False, cwd=folder, env=os.environ | own)
    if done.returncode:
        raise SystemExit(f"qdrun {' '.join(words)} failed ({done.returncode}):\n{done.stdout}\n{done.stderr}")
    return time.perf_counter() - begun, done.stdout


def submits(config: Path, folder: str, rounds: int) -> dict[str, float]:
    """Medians of the phases of some submits, and of the whole command."""
    found = []
    for _ in range(rounds):
        took, text = command("submit", str(config), "--json", "--quiet", folder=folder)
        found.append({phase: json.loads(text)["timing"][phase] for phase in PHASES} | {"command": took})
    return {name: statistics.median(one[name] for one in found) for name in found[0]}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", nargs="?", type=Path, default=CONFIG)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    config = options.config.resolve()
    with tempfile.TemporaryDirectory(prefix="start-", dir="/tmp") as folder:
        os.makedirs(f"{folder}/machine", mode=0o700)
        rows = {"cold": submits(config, folder, options.rounds)}
        up = command("up", folder=folder)[0]
        try:
            submits(config, folder, 1)
            rows["warm"] = submits(config, folder, options.rounds)
        finally:
            down = command("down", folder=folder)[0]
    for name, medians in rows.items():
        print(f"{name}:", "  ".join(f"{phase.removesuffix('_s')} {seconds:.2f}" for phase, seconds in medians.items()))
    print(f"up {up:.2f}  down {down:.2f}")


if __name__ == "__main__":
    main()
