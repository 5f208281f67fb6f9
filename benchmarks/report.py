"""The report of a run of many trials: seconds of `qdrun report`, and bytes of the page, beside a page that plotly.py writes.

python -m benchmarks.report [--trials 10000] [--json]

The run is made by hand, no trial runs: each trial has six swept numbers and one text, their gradients, five outputs and times; every
hundredth failed; 2,000 have logged 400 steps of two values; 40 have left a picture of 50 kB. `qdrun report` is a process of its own. The
peer is a process that reads the table of the run (Parquet) and writes with `plotly.express` the same points against the same parameters,
a heat map and parallel coordinates into one page, with the library in it: it has no table, no curves, no failures and no pictures.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from qdrun.runner.live.points import Logged
from qdrun.runner.observe.table import write_parquet
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.layout import RunFolder, write_run
from qdrun.runner.study.trials import Trial, trial_id

NAMES = ("mass", "stiffness", "damping", "speed", "angle", "height")
LOGGED, STEPS, PICTURES, PICTURE_BYTES = 2000, 400, 40, 50_000
PEER = """
import sys
import pandas as pd, plotly.express as px
table, out, *names = sys.argv[1:]
rows = pd.read_parquet(table)
columns = [f"param.{name}" for name in names]
figures = [px.scatter(rows, x=name, y="loss", hover_data=["trial", *columns]) for name in columns]
figures += [px.density_heatmap(rows, x=columns[0], y=columns[1], z="loss", histfunc="avg", nbinsx=36, nbinsy=36)]
figures += [px.parallel_coordinates(rows, dimensions=[*columns, "loss"], color="loss")]
with open(out, "w") as stream:
    for number, figure in enumerate(figures):
        stream.write(figure.to_html(full_html=False, include_plotlyjs=number == 0))
"""


def made_run(where: Path, count: int) -> RunFolder:
    """A finished run of so many trials."""
    rng, noise = random.Random(1), np.random.default_rng(1)
    points = [{name: rng.uniform(0.1, 10.0) for name in NAMES} | {"gait": rng.choice("abc")} for _ in range(count)]
    trials = [
        Trial(id=trial_id(params, 0), index=k, replicate=0, seed=k, swept=params, params=params)
        for k, params in enumerate(points)
    ]
    folder = write_run(where, "many", "version: 1\nname: many\n", {"name": "many"}, trials, {})
    folder.save_plan([])
    picture = noise.bytes(PICTURE_BYTES)
    with Journal(folder) as journal:
        created = folder.info()["created"]
        for k, trial in enumerate(trials):
            began = created + 0.01 * k
            journal.write("started", trial=trial.id, attempt=1, device="cpu", bytes=1 << 20, slot=k % 2)
            journal.write(
                "ended", trial=trial.id, attempt=1, **record(folder, trial, rng, picture), started_t=began, ended_t=began + 0.02
            )
        journal.write("finished", state="done")
    lines = []
    for trial in trials[:LOGGED]:
        values = {name: np.exp(-np.arange(STEPS) / 50.0) + 0.1 * noise.random(STEPS) for name in ("loss", "grad_norm")}
        lines.append(Logged((trial.id,), (1,), np.arange(STEPS), created + np.arange(STEPS) * 1e-3, values).line())
    folder.files.put("workers/cpu/w1/live/000001.jsonl", b"".join(lines))
    return folder


def record(folder: RunFolder, trial: Trial, rng: random.Random, picture: bytes) -> dict:
    """What a trial has given."""
    if trial.index % 100 == 7:
        trace = 'Traceback (most recent call last):\n  File "/home/me/walk.py", line 12, in run\n    raise ValueError(x)\n'
        return {
            "status": "failed",
            "failure": "user_error",
            "error": {"type": "ValueError", "message": f"x = {rng.random()}", "traceback": trace},
        }
    own = {
        "status": "done",
        "loss": rng.random(),
        "gradients": {name: rng.gauss(0.0, 1.0) for name in NAMES},
        "outputs": {f"out{k}": rng.random() for k in range(5)},
        "seconds": rng.random(),
        "planned_bytes": 1 << 20,
        "used_bytes": 1 << 20,
        "device": "cpu",
    }
    if trial.index % 100 == 0 and trial.index < 100 * PICTURES:
        path = f"trials/{trial.id}/a1/artifacts"
        folder.files.put(f"{path}/walk.png", picture)
        own["artifacts"] = {"path": path, "files": 1, "bytes": len(picture), "names": ["walk.png"]}
    return own


def timed(command: list[str]) -> float:
    """Seconds of a process."""
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as where:
        folder = made_run(Path(where), arguments.trials)
        write_parquet(folder)
        ours, peer = Path(where) / "ours.html", Path(where) / "peer.html"
        command = [sys.executable, "-c", "from qdrun.runner.cli.app import main; main()", "report", folder.uri, "-o", str(ours)]
        found = {"trials": arguments.trials, "ours_s": timed(command), "ours_bytes": ours.stat().st_size}
        found["peer_s"] = timed([sys.executable, "-c", PEER, f"{folder.uri}/results.parquet", str(peer), *NAMES])
        found["peer_bytes"] = peer.stat().st_size
    if arguments.json:
        print(json.dumps(found))
        return
    print(f"{arguments.trials} trials      seconds       MB")
    for name in ("ours", "peer"):
        print(f"{name:12} {found[f'{name}_s']:12.2f} {found[f'{name}_bytes'] / 1e6:8.2f}")
    print(f"{'ours / peer':12} {found['ours_s'] / found['peer_s']:12.2f} {found['ours_bytes'] / found['peer_bytes']:8.2f}")


if __name__ == "__main__":
    main()
