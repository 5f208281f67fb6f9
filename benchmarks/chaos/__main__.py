"""Many runs that are killed: ``python -m benchmarks.chaos [--kinds worker,runner.batch] [--seeds 0-39] [--only worker-3] [--out FOLDER]``.

Plays a scenario for each kind and each seed, those of one cluster one after the other, prints a line for each and a table at the end: kind,
runs, how many were right, faults that happened, commands, seconds. ``--hours H`` plays seeds that were never played before, until the time
is over. What went wrong is kept in FOLDER/<kind>-<seed>. Exit code 1 when something did. Full disks need root (a tmpfs is mounted).
"""

import argparse
import json
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from .cluster import Cluster
from .play import play
from .processes import SmallDisk, adopt_orphans, processes, reap, until
from .scenario import BATCHED, KINDS, scenario

AGENTS_S = 90.0


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description=__doc__)
    parser.add_argument("--kinds", default=",".join((*KINDS, *BATCHED)))
    parser.add_argument("--seeds", default="0-39", help="0-39, or 3,17")
    parser.add_argument("--hours", type=float, help="fresh seeds for so long, instead of --seeds")
    parser.add_argument("--only", help="these alone, as worker-3,disk-7")
    parser.add_argument("--out", default="/tmp/chaos", help="a short path: sockets lie below it")
    options = parser.parse_args()
    first, dash, last = options.seeds.partition("-")
    seeds = range(int(first), int(last) + 1) if dash else [int(seed) for seed in options.seeds.split(",")]
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    adopt_orphans()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))  # and the cluster is ended
    named = [word.rsplit("-", 1) for word in options.only.split(",")] if options.only else []
    kinds = options.kinds.split(",")
    chosen = named or (fresh(kinds, options.hours) if options.hours else [(kind, seed) for seed in seeds for kind in kinds])
    if {"disk", "disk.batch"}.intersection(kinds if not named else [kind for kind, _ in named]) and not SmallDisk.possible():
        sys.exit(
            "a small disk cannot be mounted here\n  do: run this as root, or leave the kinds `disk` and `disk.batch` out with --kinds"
        )
    done = run_all((scenario(kind, int(seed)) for kind, seed in chosen), out)
    print(table(done))
    sys.exit(any(not verdict.ok for verdict in done))


def fresh(kinds, hours):
    """Kinds with seeds of this moment, until so many hours are over."""
    end, seed = time.monotonic() + 3600 * hours, time.time_ns() // 1_000_000 % 1_000_000_000
    while time.monotonic() < end:
        for kind in kinds:
            if time.monotonic() < end:
                yield kind, seed
        seed += 1


def run_all(scenarios, out):
    """Play them; the verdicts. The cluster starts with the first that wants one."""
    cluster, done = None, []
    try:
        for one in scenarios:
            print(f"{one.label}", file=sys.stderr, flush=True)
            if cluster is None and one.place == "cluster":
                cluster = Cluster(out / f"c{int(time.time()) % 100000}")
            verdict = play(one, out, cluster)
            done.append(verdict)
            told = {"kind": one.name, "seed": one.seed, "ok": verdict.ok, **verdict.facts}
            line = json.dumps(told | ({} if verdict.ok else {"problems": verdict.problems}))
            print(line, flush=True)
            with open(out / "verdicts.jsonl", "a", encoding="utf-8") as file:
                file.write(line + "\n")
            if not verdict.ok and cluster is not None and any("left behind" in text for text in verdict.problems):
                cluster.close(remove=False)  # what is left must not disturb the others
                cluster = None
    finally:
        if cluster is not None:
            cluster.close(remove=all(verdict.ok for verdict in done))
    agents_end(done)
    return done


def agents_end(done):
    """See that the processes of Ray that need a minute are gone after it."""

    def still():
        reap()
        now = processes()
        return [(verdict, one) for verdict in done for one in verdict.agents if now.get(one.pid) == one]

    until(lambda: not still(), AGENTS_S, every=1)
    for verdict, one in still():
        verdict.problems.append(f"left behind: process {one.pid} {one.title}, for more than {AGENTS_S:g} s")


def table(done):
    """The verdicts by kind, as Markdown."""
    lines = [
        "| kind | runs | right | faults | commands | attempts lost | seconds a run |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for kind in dict.fromkeys(verdict.kind for verdict in done):
        mine = [verdict for verdict in done if verdict.kind == kind]
        total = Counter()
        for verdict in mine:
            facts = verdict.facts
            lost = sum(facts.get("retries", {}).values())
            total.update({key: facts.get(key, 0) for key in ("fired", "commands", "seconds")} | {"lost": lost})
        seconds = total["seconds"] / len(mine)
        right = sum(verdict.ok for verdict in mine)
        lines.append(
            f"| {kind} | {len(mine)} | {right} | {total['fired']} | {total['commands']} | {total['lost']} | {seconds:.1f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
