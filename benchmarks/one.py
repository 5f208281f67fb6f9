"""Runs one case with one package in this process and prints the figures as JSON. ``benchmarks.run`` calls it for both."""

import contextlib
import importlib
import io
import json
import re
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.cases import CASES

OPTIONS: dict[str, dict[str, Any]] = {
    "qdrun": {"offline_cache": False},
    "quadrants": {"offline_cache": False, "src_ll_cache": False, "ad_stack_experimental_enabled": True, "log_level": "error"},
}


def best(f: Callable[[], None], least: int = 3, seconds: float = 2.0) -> float:
    """The shortest of at least ``least`` runs, in seconds, over about ``seconds``."""
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < least or (time.perf_counter() - start < seconds and len(times) < 200):
        t = time.perf_counter()
        f()
        times.append(time.perf_counter() - t)
    return min(times)


def case_figures(lib: Any, name: str) -> dict[str, Any]:
    """Cold first calls, best times, the result, and bytes of adstack."""
    case = CASES[name](lib)
    cpu, wall = time.process_time(), time.perf_counter()
    case.forward()
    case.gradient()
    cold_cpu, cold_wall = time.process_time() - cpu, time.perf_counter() - wall
    forward = best(case.forward)
    gradient = best(case.gradient)
    case.forward()
    case.gradient()
    loss, grad = case.result()
    return {
        "forward_s": forward,
        "gradient_s": gradient,
        "cold_cpu_s": cold_cpu - forward - gradient,
        "cold_wall_s": cold_wall - forward - gradient,
        "loss": float(loss),
        "grad": np.asarray(grad, float).reshape(-1)[:4].tolist(),
        "adstack_bytes": ours(case) if hasattr(lib, "Program") else None,
    }


def ours(case: Any) -> int:
    """Planned bytes: the largest launch."""
    plans = [kernel.grad.plan(*args) for kernel, args in case.reverse]
    return max((p.bytes for p in plans), default=0)


def launch_figures(lib: Any) -> dict[str, float]:
    """Seconds of an empty launch, and of one with an ndarray and a scalar."""

    @lib.kernel
    def empty():
        pass

    @lib.kernel
    def touch(a: lib.types.ndarray(dtype=lib.f32, ndim=1), s: lib.f32):
        for _ in range(1):
            a[0] = s

    array = lib.ndarray(lib.f32, (16,))
    empty()
    touch(array, 1.0)

    def loop(f: Callable[..., None], *args: Any) -> float:
        def many() -> None:
            for _ in range(1000):
                f(*args)

        return best(many, 5, 1.0) / 1000

    return {"launch_empty_s": loop(empty), "launch_ndarray_scalar_s": loop(touch, array, 1.0)}


def peer_adstack_bytes(log: str) -> int:
    """Largest float heap plus largest int heap that the peer reports."""
    sizes: dict[str, int] = {}
    for kind, nbytes in re.findall(r"\[adstack_heap\].*?kind=([FI]).*?required_bytes=(\d+)", log):
        sizes[kind] = max(sizes.get(kind, 0), int(nbytes))
    return sum(sizes.values())


def main() -> None:
    """``python -m benchmarks.one PACKAGE CASE``"""
    package, case = sys.argv[1:3]
    lib = importlib.import_module(package)
    with contextlib.redirect_stdout(io.StringIO()):
        lib.init(arch=lib.cpu, **OPTIONS[package])
    figures = launch_figures(lib) if case == "launch" else case_figures(lib, case)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
