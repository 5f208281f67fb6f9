"""What the runner costs for each trial of a sweep in batches, beyond the arithmetic: from the command to the last row.

python -m benchmarks.sweep_overhead [--trials 20000] [--steps 200] [--batch auto] [--backend cpu] [--check 50]

The command runs twice, with all trials and with few, whose time is that of the start (Python, Ray, compilation). The overhead is what
is left of the difference without the seconds that the workers' lanes spent on the trials themselves; beside it the processor time and the
most memory of the command's own process, without Ray's. ``--check``: so many trials run one by one, too, and their numbers must be those of
the batches.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

CONFIG = """version: 1
name: robots
job: {{target: "qdrun.jobs.mass_spring:MassSpring", params: {{steps: {steps}}}}}
gradients: [stiffness, actuation]
device: {{backend: {backend}, threads: 1}}
batch: {batch}
sweep:
  method: random
  samples: {trials}
  seed: 7
  params: {{stiffness: {{loguniform: [100.0, 10000.0]}}, actuation.0: {{uniform: [0.1, 0.4]}}, actuation.2: {{uniform: [0.1, 0.4]}}}}
output: {folder}
"""
COMMAND = """
import atexit, resource, sys
path = sys.argv.pop()
def usage():
    own = resource.getrusage(resource.RUSAGE_SELF)
    with open(path, "w") as stream:
        stream.write(f"{own.ru_utime + own.ru_stime} {own.ru_maxrss / 1024}")
atexit.register(usage)
from qdrun.runner.cli.app import main
main()
"""
NUMBERS = ("loss", "gradient_norm", "grad.stiffness", "grad.actuation")


def run(options, trials, batch, folder):
    """The document of a submit, its wall-clock seconds, processor seconds and MiB of the command without its children, and the table."""
    config = Path(folder) / f"robots-{trials}-{batch}.yaml"
    values = {"steps": options.steps, "backend": options.backend, "batch": batch, "trials": trials}
    config.write_text(CONFIG.format(**values, folder=json.dumps(f"{folder}/runs-{trials}-{batch}")))
    usage = config.with_suffix(".usage")
    command, start = [sys.executable, "-c", COMMAND, "submit", str(config), "--json", str(usage)], time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"submit failed ({done.returncode}):\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    document = json.loads(done.stdout)
    (table,) = Path(f"{folder}/runs-{trials}-{batch}").glob("*/results.parquet")
    spent, memory = map(float, usage.read_text().split())
    return document, seconds, spent, memory, pq.read_table(table)


def check(options, table, folder):
    """The largest relative difference between rows of batches and those of the same trials alone."""
    *_, alone = run(options, options.check, "off", folder)
    place = {name: k for k, name in enumerate(table["trial"].to_pylist())}
    worst = 0.0
    for column in NUMBERS:
        ours, single = table[column].to_pylist(), alone[column].to_pylist()
        for name, expected in zip(alone["trial"].to_pylist(), single, strict=True):
            a, b = np.atleast_1d(ours[place[name]]), np.atleast_1d(expected)
            worst = max(worst, float(np.abs(a - b).max() / np.abs(b).max()))
    return worst


def main():
    """Measure and print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=20_000)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", default="auto")
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--lanes", type=int, default=2, help="of the machine: cores of a CPU, cards")
    parser.add_argument("--few", type=int, default=32, help="trials of the short run")
    parser.add_argument("--check", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run(options, options.few, options.batch, folder)  # kernels are compiled once for all that follows
        few, short_s, short_cpu, _, _ = run(options, options.few - 1, options.batch, folder)
        document, long_s, long_cpu, memory, table = run(options, options.trials, options.batch, folder)
        work_s = float(np.sum(table["seconds"].to_numpy())) / options.lanes
        more = options.trials - options.few + 1
        found = {
            "trials": options.trials,
            "done": table["status"].to_pylist().count("done"),
            "seconds": round(long_s, 2),
            "start_s": round(short_s, 2),
            "to_first_trial_s": round(few["timing"]["first_start_s"], 2),
            "work_s": round(work_s, 2),
            "trials_per_s": round(more / max(1e-9, long_s - short_s)),
            "overhead_us_per_trial": round(1e6 * (long_s - short_s - work_s) / more, 1),
            "command_cpu_us_per_trial": round(1e6 * (long_cpu - short_cpu) / more, 1),
            "command_mib": round(memory),
            "used_of_planned": sorted(set(table["used_of_planned"].to_pylist())),
            "timing": document["timing"],
        }
        if options.check:
            found["largest_difference_from_single_trials"] = check(options, table, folder)
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
