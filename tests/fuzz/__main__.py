"""``python -m tests.fuzz --seconds 600 --seed 7 --jobs 16``: random programs, run in every way there is; exit status 1 on a finding.

The last line is a summary in JSON. ``--only N`` prints program N and checks it again in this process.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path

from .execute import CUDA, VULKAN
from .parent import Tally, search

REPORT = 55.0
"""Seconds after ``--seconds`` in which findings are made small; with what a process takes to end, a run ends within a minute."""


def devices() -> list[str]:
    """The devices beside the processor: the emulated one, and a GPU and a software driver of Vulkan where they are."""
    import qdrun as qd

    out = ["emulated"]
    for config in (CUDA, VULKAN):
        try:
            qd.init(**config.options).close()
            out.append(config.name)
        except qd.QdrunError:
            pass
    return out


def summary(tally: Tally, seed: int, seconds: float, where: list[str]) -> str:
    """What was done, in one line."""
    return json.dumps(
        {
            "seed": seed, "programs": tally.programs, "seconds": round(seconds, 1), "devices": where, "wrong": tally.kinds.total(),
            "kinds": dict(tally.kinds.most_common()), "compared": dict(tally.compared.most_common()),
            "refused": dict(tally.refused.most_common()), "features": dict(tally.features.most_common()),
        }
    )  # fmt: skip


def again(seed: int, index: int, where: list[str]) -> int:
    """Check one program in this process and print what is found."""
    from .child import examine, use_libm

    use_libm()
    with tempfile.TemporaryDirectory() as folder:
        program, result = examine(seed, index, where, Path(folder))
    print(program.text if program else "")
    print(result)
    return int(result.finding is not None)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None, help="the same seed makes the same programs; default: a fresh one")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--first", type=int, default=0, help="the number of the first program")
    parser.add_argument("--out", type=Path, default=None, help="a folder for what is found, as files that run")
    parser.add_argument("--only", type=int, default=None, help="check this program, in this process")
    parser.add_argument("--cpu-only", action="store_true", help="leave devices out")
    args = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if args.seed is None else args.seed
    where = [] if args.cpu_only else devices()
    if args.only is not None:
        return again(seed, args.only, where)
    print(f"seed {seed}, {args.jobs} processes, devices {where}", flush=True)
    began = time.monotonic()
    tally = search(seed, args.seconds, args.jobs, where, args.first)
    took = time.monotonic() - began
    from .report import write_all

    write_all(tally, seed, where, args.out, min(REPORT, REPORT + args.seconds - took))
    print(summary(tally, seed, took, where), flush=True)
    return int(bool(tally.found))


if __name__ == "__main__":
    sys.exit(main())
