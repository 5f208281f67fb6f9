"""What a batch costs around its recorded graph: ``python -m benchmarks.batched.around --model robot --batch 131072 --arch cuda``.

Prints one line: trials a second of ``BatchSession.run_columns``, and of the graph alone with the put-back that is a part of it; the
milliseconds between the two, and those of two parts of the host's side: inputs, results.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.batched.__main__ import MODELS
from qdrun.jobs.core.batch import BatchSession


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=sorted(MODELS), default="robot")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--arch", default="cpu")
    parser.add_argument("--device")
    parser.add_argument("--runs", type=int, default=20)
    given = parser.parse_args()
    model = MODELS[given.model]
    kind, fixed = model.job()
    columns = model.sample(np.random.default_rng(given.batch), given.batch)
    first = kind.Params(**fixed, **{name: column[0].tolist() for name, column in columns.items()})
    threads = {"threads": 2} if given.arch == "cpu" else {}
    with BatchSession.open(
        kind, first, given.batch, wanted=model.wanted, backend=given.arch, device=given.device, **threads
    ) as session:
        kept: Any = [session.run_columns(columns) for _ in range(3)]
        job: Any = session.job
        (recorded,) = job._recorded.values()
        if recorded._graph is None:
            raise SystemExit(f"no graph: {recorded.why}")

        def graph() -> None:
            recorded._graph()
            job.program.synchronize()

        def inputs() -> None:
            for name, column in columns.items():
                job.declared.put(name, column, job.program)
            job.program.synchronize()

        parts: dict[str, Callable[[], Any]] = {
            "session": lambda: session.run_columns(columns),
            "graph": graph,
            "inputs": inputs,
            "results": lambda: job.declared.columns(job.wanted, job.program),
        }
        spent: dict[str, list[float]] = {name: [] for name in parts}
        for _ in range(given.runs):
            for name, part in parts.items():
                begin = time.perf_counter()
                kept = part() or kept  # results live until the next ones are there, as in a sweep
                spent[name].append(time.perf_counter() - begin)
    best = {name: min(times) for name, times in spent.items()}
    rates = ", ".join(f"{name} {given.batch / best[name]:,.0f} trials/s" for name in ("session", "graph"))
    around = 1e3 * (best["session"] - best["graph"])
    print(f"{given.model}, B = {given.batch:,}: {rates}; around {around:.2f} ms, ", end="")
    print(", ".join(f"{name} {1e3 * best[name]:.2f} ms" for name in ("inputs", "results")))


if __name__ == "__main__":
    main()
