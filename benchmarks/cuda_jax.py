"""The sin recurrence's gradient by JAX, for ``benchmarks.cuda``: a scan, and a scan of checkpointed scans."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

from benchmarks.cuda_clock import Clock


def figures(name: str, small: bool, seconds: float) -> dict[str, Any]:
    """Times and bytes of case ``sin<steps>``.

    Args:
        name: of the case.
        small: for a try on the CPU.
        seconds: about how long to measure each function.
    """
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    import jax
    from jax import lax

    steps, n = int(name.removeprefix("sin")), 1 << (12 if small else 22)
    inner = int(steps**0.5)
    x = jax.device_put(np.random.default_rng(1).uniform(-1, 1, n).astype(np.float32))

    def step(v: Any, _: Any) -> tuple[Any, None]:
        return jax.numpy.sin(v) + 0.1, None

    def plain(x: Any) -> Any:
        return lax.scan(step, x, None, length=steps)[0].sum()

    def checkpointed(x: Any) -> Any:
        def segment(v: Any, _: Any) -> tuple[Any, None]:
            return lax.scan(step, v, None, length=inner)[0], None

        return lax.scan(jax.checkpoint(segment), x, None, length=steps // inner)[0].sum()

    out: dict[str, Any] = {"timed": {}, "version": jax.__version__, "device": str(x.device)}
    for label, f in (("forward", plain), ("checkpointed", jax.grad(checkpointed)), ("gradient", jax.grad(plain))):
        begin, cpu = time.perf_counter(), time.process_time()
        made = jax.jit(f).lower(x).compile()
        compile_s, compile_cpu_s = time.perf_counter() - begin, time.process_time() - cpu
        row = _measure(made, x, seconds)
        memory = made.memory_analysis()
        row |= {"compile_s": compile_s, "compile_cpu_s": compile_cpu_s, "bytes": getattr(memory, "temp_size_in_bytes", None)}
        stats = x.device.memory_stats() or {}
        out["timed"][label] = row | {"peak_bytes": stats.get("peak_bytes_in_use")}
    out["bytes"] = out["timed"]["gradient"]["bytes"]
    return out


def _measure(made: Any, x: Any, seconds: float) -> dict[str, Any]:
    """By the host's clock: JAX has streams of its own."""
    last = made(x)

    def run() -> None:
        nonlocal last
        last = made(x)

    def wait() -> None:
        last.block_until_ready()

    return Clock(wait).measure(run, seconds)
