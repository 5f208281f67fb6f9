"""Seconds until Ray of one machine has answered a first call to an actor: as ``ray.init`` starts it, and as a run starts it here.

python -m benchmarks.ray_start [--rounds 5] [--dashboard]

Each start is a process of its own, in turn; wall clock from its first line on, and seconds of CPU of all processes until then.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time


def start(which: str, dashboard: bool) -> dict[str, float]:
    """Start Ray once in this process and call an actor; how long each part took."""
    begun = time.perf_counter()
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    imported = time.perf_counter()
    import psutil  # Ray brings it along and makes it known

    if which == "ours":
        from qdrun.runner.ray_adapter.cluster import open_cluster

        open_cluster(None, dashboard=dashboard)
    else:
        ray.init(address="local", include_dashboard=dashboard, dashboard_host="127.0.0.1", log_to_driver=False)
    ready = time.perf_counter()

    class Answers:
        def answer(self) -> int:
            return 42

    actor = ray.remote(Answers).options(num_cpus=0).remote()
    assert ray.get(actor.answer.remote()) == 42  # pyright: ignore[reportAttributeAccessIssue]
    answered, own = time.perf_counter(), psutil.Process()
    spent = [one.cpu_times() for one in (own, *own.children(recursive=True))]
    ray.shutdown()
    return {
        "import": imported - begun,
        "init": ready - imported,
        "actor": answered - ready,
        "all": answered - begun,
        "cpu": sum(one.user + one.system for one in spent),
    }


def main() -> None:
    """Take turns and print the median of each part, and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dashboard", action="store_true")
    parser.add_argument("--one", choices=("ours", "ray"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(start(options.one, options.dashboard)))
        return
    times: dict[str, list[dict[str, float]]] = {"ray": [], "ours": []}
    for _ in range(options.rounds):
        for which, taken in times.items():
            command = [sys.executable, "-m", "benchmarks.ray_start", "--one", which, *["--dashboard"] * options.dashboard]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            taken.append(json.loads(done.stdout.splitlines()[-1]))
    medians = {
        which: {part: statistics.median(one[part] for one in taken) for part in taken[0]} for which, taken in times.items()
    }
    for which, parts in medians.items():
        print(f"{which:5}", "  ".join(f"{part} {seconds:.2f} s" for part, seconds in parts.items()), flush=True)
    print(f"ratio of all: {medians['ours']['all'] / medians['ray']['all']:.2f}")


if __name__ == "__main__":
    main()
