"""Gradients by the bytes of tapes that lie outside of the heap for each thread: Vulkan beside CUDA.

    python -m benchmarks.vulkan_tapes [--arch cuda,vulkan] [--fp f32,f64] [--bytes 0,32,64,100,128,260] [--steps 1024] [--n 4194304]

0: all states in the heap. On CUDA the bytes are shared memory, on Vulkan an array of the thread; plans have 284 on both. Each row is a
process of its own; results are checked against numpy in f64.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

from benchmarks.cuda_clock import Clock
from benchmarks.cuda_one import measured, opened
from benchmarks.cuda_report import table


def plans_with(lib: Any, shared: int, cache: int, most: int) -> None:
    """From now on plans of the program have so many bytes of on-chip memory for a thread, and its code has tapes there."""
    from qdrun.compiler.program import state
    from qdrun.compiler.tape.machine import Machine, cuda, machine

    on_chip = cuda()

    def other(arch: str, workers: int | None = None, *, fast_math: bool = False) -> Machine:
        own = machine(arch, workers, fast_math=fast_math)
        if not shared:
            return replace(own, shared=0, block=1, cache=0, most=0, small=0)
        return replace(own, shared=shared, block=on_chip.block, cache=cache, most=most or on_chip.most, small=on_chip.small)

    state.machine = other
    device = lib.current_program().device
    device._target = replace(device._target, tapes_on_chip=bool(shared))


def one(asked: argparse.Namespace) -> dict[str, Any]:
    """One row, in this process."""
    from benchmarks.cuda_cases import sin_recurrence

    lib = opened("qdrun", asked.arch, accurate=asked.accurate, device=asked.device)
    plans_with(lib, int(asked.bytes), asked.cache, asked.most)
    case = sin_recurrence(lib, asked.steps, asked.n, asked.fp)
    gradient, (kernel, args) = case.timed["gradient"], case.reverse[0]
    gradient()
    case.load()
    errors, plan = case.errors(), kernel.grad.plan(*args)
    row = plan.rows()[0]
    out = measured(Clock(lib.sync), gradient, asked.seconds, asked.together)
    return {
        "ms": out["wall_ms"],
        "bytes": plan.bytes,
        "levels": row["levels"],
        "segment": row["segment"],
        "rows": row["rows"],
        "on_chip": row.get("shared_bytes", 0),
        "error": errors["gradient"],
    }


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="cuda,vulkan")
    parser.add_argument("--fp", default="f32,f64")
    parser.add_argument("--bytes", default="0,32,64,100,128,260", help="of on-chip memory for a thread")
    parser.add_argument(
        "--cache", type=int, default=24 << 20, help="smaller tapes stay in the heap; 1 for a try with few iterations"
    )
    parser.add_argument(
        "--most", type=int, default=0, help="threads in flight where all tapes are on chip; 0: those of CUDA's plans"
    )
    parser.add_argument("--steps", type=int, default=1024)
    parser.add_argument("--n", type=int, default=1 << 22, help="iterations")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--together", type=int, default=4)
    parser.add_argument("--accurate", action="store_true", help="without fast_math")
    parser.add_argument("--device", default="", help="which device, on Vulkan")
    parser.add_argument("--one", action="store_true", help="a row, in this process")
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(one(asked)))
        return
    rows = [["arch", "numbers", "bytes on chip", "ms", "heap", "levels", "segment", "rows", "error"]]
    same = ["--one", "--steps", str(asked.steps), "--n", str(asked.n), "--seconds", str(asked.seconds)]
    same += ["--cache", str(asked.cache), "--most", str(asked.most)]
    same += ["--together", str(asked.together)] + ["--accurate"] * asked.accurate
    for fp in asked.fp.split(","):
        for shared in asked.bytes.split(","):
            for arch in asked.arch.split(","):
                given = ["--arch", arch, "--fp", fp, "--bytes", shared]
                given += ["--device", asked.device] if asked.device and arch == "vulkan" else []
                command = [sys.executable, "-m", "benchmarks.vulkan_tapes", *same, *given]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    rows.append([arch, fp, shared, (done.stderr.strip().splitlines() or ["failed"])[-1]] + [""] * 5)
                    continue
                r = json.loads(done.stdout.splitlines()[-1])
                figures = [f"{r['ms']:.3f}", f"{r['bytes']:,}", *(str(r[k]) for k in ("levels", "segment", "rows"))]
                rows.append([arch, fp, str(r["on_chip"]), *figures, f"{r['error']:.1e}"])
                print(" ".join(rows[-1]), flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
