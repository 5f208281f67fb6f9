"""How a tape of launches is handed to a Vulkan device: the time of the tape by how many launches one submission has.

    python -m benchmarks.vulkan_submit [--device llvmpipe] [--launches 30,300,3000] [--n 1,4096] [--rounds 5]

A submission goes out after MOST launches, and after FEW while the device has nothing to do. "one submission" is neither: the tape goes out
when the host waits for its end, or where our throttle asks how far the device is. Each setting is a process of its own, and the settings
take turns; a time is the least of the rounds. "sent" is the number of submissions of one tape, forward and back.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

import qdrun as qd
from benchmarks.cuda_report import table

NEVER = 1 << 30
SETTINGS = {
    "each launch": (1, 1),
    "8 or 256 (ours)": (8, 256),
    "32 or 256": (32, 256),
    "8 or 4096": (8, 4096),
    "256": (256, 256),
    "one submission": (NEVER, NEVER),
}
"""Name -> FEW, MOST."""


def one(asked: argparse.Namespace) -> dict[str, float]:
    """A tape under one setting, in this process: milliseconds of the whole and of its recording, and submissions."""
    from qdrun.compiler.runtime.gpu.commands import words

    ours = words.FEW, words.MOST
    assert ours == SETTINGS["8 or 256 (ours)"], f"the product has {ours}"
    words.FEW, words.MOST = SETTINGS[asked.setting]

    program = qd.init(arch=qd.vulkan, device=asked.device or None, default_fp=qd.f32)
    n, launches = int(asked.n), int(asked.launches)
    x = qd.field(qd.f32, shape=(launches + 1, n), needs_grad=True)
    loss = qd.field(qd.f32, shape=(), needs_grad=True)

    @qd.kernel
    def step(t: qd.i32):
        for i in range(n):
            x[t + 1, i] = 0.99 * x[t, i] + 0.01 * x[t, i] * x[t, i]

    @qd.kernel
    def total():
        for i in range(n):
            loss[None] += x[launches, i]

    def tape() -> tuple[float, float, int]:
        x.fill(0.5)
        loss[None] = 0.0
        qd.sync()
        stream = program.device.driver._streams[program.device.stream]
        sent, begun = stream._words[words.LAST], time.perf_counter()
        with qd.ad.Tape(loss=loss):
            for t in range(launches):
                step(t)
            total()
        recorded = time.perf_counter()
        qd.sync()
        return time.perf_counter() - begun, recorded - begun, stream._words[words.LAST] - sent

    tape()
    whole, recording, sent = (min(column) for column in zip(*[tape() for _ in range(asked.rounds)], strict=True))
    return {"ms": 1e3 * whole, "recorded_ms": 1e3 * recording, "sent": sent}


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="llvmpipe", help="which device; empty: the first GPU")
    parser.add_argument("--launches", default="30,300,3000", help="of a tape")
    parser.add_argument("--n", default="1,4096", help="iterations of a launch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--setting", default="", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.setting:
        print(json.dumps(one(asked)))
        return
    rows = [["launches", "iterations", "submitted after", "ms", "of ours", "recorded, ms", "sent"]]
    for launches in asked.launches.split(","):
        for n in asked.n.split(","):
            found: dict[str, list[dict[str, float]]] = {name: [] for name in SETTINGS}
            for name in [*SETTINGS] * asked.turns:
                options = ["--device", asked.device, "--launches", launches, "--n", n, "--rounds", str(asked.rounds)]
                command = [sys.executable, "-m", "benchmarks.vulkan_submit", "--setting", name, *options]
                ended = subprocess.run(command, capture_output=True, text=True, check=True)
                found[name].append(json.loads(ended.stdout.splitlines()[-1]))
            ours = min(x["ms"] for x in found["8 or 256 (ours)"])
            for name, runs in found.items():
                least = min(runs, key=lambda x: x["ms"])
                ratio = f"{least['ms'] / ours:.2f}"
                rows.append(
                    [launches, n, name, f"{least['ms']:.2f}", ratio, f"{least['recorded_ms']:.2f}", f"{least['sent']:.0f}"]
                )
    print(table(rows))


if __name__ == "__main__":
    main()
