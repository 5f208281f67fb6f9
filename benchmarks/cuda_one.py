"""One case of ``benchmarks.cuda`` with one package, in this process; prints the figures as one line of JSON.

    python -m benchmarks.cuda_one PACKAGE CASE [--arch cuda] [--small] [--seconds 1.0] [--once NAME] [--sizes JSON] [--together 8]

PACKAGE: qdrun, quadrants, jax, warp or copy. ``--once``: launch one timed function three times and stop, for a profiler. ``--sizes``:
arguments of the case, in place of its own. ``--together``: calls between two waits for the device, for functions of one launch.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.cuda_cases import CASES, Case
from benchmarks.cuda_clock import Clock, copy_rate, make_context, used_bytes
from benchmarks.one import peer_adstack_bytes

OPTIONS: dict[str, dict[str, Any]] = {
    "qdrun": {"fast_math": True},
    "quadrants": {"src_ll_cache": False, "ad_stack_experimental_enabled": True, "log_level": "error"},
}
"""Both packages compute sin and exp fast, as the peer does by default, but in cases named `_accurate`. Caches on disk are
off but for ``cold``."""


def opened(package: str, arch: str, cache: str = "", accurate: bool = False, device: str = "") -> Any:
    """The package with a program.

    Args:
        cache: its folder of compiled kernels, none if empty.
        accurate: without ``fast_math``.
        device: which device ours uses; empty: its default.
    """
    lib = importlib.import_module(package)
    options = {**OPTIONS[package], "offline_cache": bool(cache)} | ({"fast_math": False} if accurate else {})
    if cache and package == "quadrants":
        options |= {"offline_cache_file_path": cache, "src_ll_cache": True}
    if arch != "cpu":
        options |= {"device_memory_GB": 20} if package == "quadrants" else {}
    device = device or ("emulated" if arch == "emulated" else "")
    if device and package == "qdrun":
        options |= {"device": device}
    with contextlib.redirect_stdout(io.StringIO()):
        lib.init(arch=getattr(lib, "cuda" if arch == "emulated" else arch), **options)
    return lib


def stream_of(lib: Any, arch: str) -> int | None:
    """The stream of a package's launches: ours has its own, the peer uses the default one."""
    if arch != "cuda":
        return None
    make_context()
    return int(lib.current_program().device.stream) if hasattr(lib, "current_program") else 0


@contextlib.contextmanager
def stderr_text() -> Iterator[list[str]]:
    """What is written to file descriptor 2 inside, by C++ too; it comes when the block ends."""
    out: list[str] = []
    with tempfile.TemporaryFile() as file:
        sys.stderr.flush()
        keep = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield out
        finally:
            sys.stderr.flush()
            os.dup2(keep, 2)
            os.close(keep)
            file.seek(0)
            out.append(file.read().decode(errors="replace"))
            sys.stderr.write(out[0][-4000:])


def adstack_bytes(lib: Any, case: Case) -> dict[str, Any]:
    """Bytes of adstack heap: ours by plan and as used, the peer's as it reports them. Runs the gradients once."""
    if not case.reverse:
        return {}
    if hasattr(lib, "current_program"):
        plans = [kernel.grad.plan(*args) for kernel, args in case.reverse]
        for kernel, args in case.reverse:
            kernel.grad(*args)
        used = lib.current_program().usage().get("adstack", 0)
        return {"bytes": max(p.bytes for p in plans), "used_bytes": used, "plans": [str(p) for p in plans]}
    os.environ["QD_DEBUG_ADSTACK"] = "1"
    with stderr_text() as text:
        for kernel, args in case.reverse:
            kernel.grad(*args)
        lib.sync()
    del os.environ["QD_DEBUG_ADSTACK"]
    return {"bytes": peer_adstack_bytes(text[0])}


def figures(lib: Any, case: Case, arch: str, seconds: float, together: int = 1) -> dict[str, Any]:
    """Everything about one case: see ``Case``. ``compile_s``, ``compile_cpu_s``: what the first calls of its functions take
    longer than later ones.
    """
    clock = Clock(lib.sync, stream_of(lib, arch))
    begin, cpu = time.perf_counter(), time.process_time()
    for f in case.timed.values():
        f()
    lib.sync()
    first_s, first_cpu_s = time.perf_counter() - begin, time.process_time() - cpu
    case.load()
    out: dict[str, Any] = {**adstack_bytes(lib, case), "values": case.values(), "errors": case.errors(), "timed": {}}
    for name, f in case.timed.items():
        one = per_launch(case, name)
        times = together if one["launches"] == 1 else 1
        row = out["timed"][name] = measured(clock, f, seconds, times) | one
        row["host_us"] = 1e3 * row["host_ms"] / row["launches"]
        if name in case.moved:
            row["bytes_per_s"] = case.moved[name] / row["ms"] * 1e3
        if arch != "cpu" and row["launches"] > 10 and hasattr(lib, "capture"):
            out["timed"][f"{name}_graph"] = graph(lib, f, clock, seconds) | per_launch(case, name)
    out["compile_s"] = first_s - sum(1e-3 * out["timed"][name]["wall_ms"] for name in case.timed)
    out["compile_cpu_s"] = first_cpu_s - sum(1e-3 * out["timed"][name]["cpu_ms"] for name in case.timed)
    if arch == "cuda":
        out["device_bytes"] = used_bytes()
    return out


def measured(clock: Clock, f: Callable[[], None], seconds: float, times: int) -> dict[str, Any]:
    """``Clock.measure`` of one of so many calls between two waits; ``cpu_ms``: of all threads of this process."""

    def repeated() -> None:
        for _ in range(times):
            f()

    begin = time.process_time()
    row = clock.measure(repeated, seconds)
    row["cpu_ms"] = 1e3 * (time.process_time() - begin) / (row["runs"] + 1)
    return row | {name: row[name] / times for name in ("ms", "least_ms", "wall_ms", "host_ms", "cpu_ms")}


def per_launch(case: Case, name: str) -> dict[str, int]:
    """How many launches a timed function makes."""
    return {"launches": case.launches.get(name, 1)}


def graph(lib: Any, f: Any, clock: Clock, seconds: float) -> dict[str, Any]:
    """The same launches as one graph; ``capture_ms``: to record and build it."""
    begin = time.perf_counter()
    try:
        made = lib.capture(f)
    except lib.QdrunError as e:
        return {"error": str(e)}
    capture_ms = 1e3 * (time.perf_counter() - begin)
    return measured(clock, made, seconds, 1) | {"capture_ms": capture_ms}


def cold(package: str, arch: str, cache: str, small: bool) -> dict[str, Any]:
    """All kernels of diffmpm, forward and gradient, compiled or taken from the cache; ``done_at``: time.time() at the first result."""
    start = time.perf_counter()
    importlib.import_module(package)
    imported = time.perf_counter()
    lib = opened(package, arch, cache)
    ready = time.perf_counter()
    make, _, tiny = CASES["diffmpm"]
    case = make(lib, **(tiny if small else {"steps": 2}))
    lib.sync()
    cpu, begin = os.times(), time.perf_counter()
    parts = {"import_s": imported - start, "open_s": ready - imported, "fields_s": begin - ready}
    values = case.values()
    lib.sync()
    done, end, after = time.time(), time.perf_counter(), os.times()
    spent = sum(after[:4]) - sum(cpu[:4])
    begin_again = time.process_time()
    case.values()
    lib.sync()
    return {
        "done_at": done,
        "cold_s": end - begin,
        "cold_cpu_s": spent - (time.process_time() - begin_again),
        "values": values,
        **parts,
    }


def budgets(lib: Any, arch: str, seconds: float, small: bool) -> dict[str, Any]:
    """The gradient of 1,024 steps under smaller and smaller budgets, and at the fixed levels: time and bytes."""
    make, full, tiny = CASES["sin1024"]
    case = make(lib, **(tiny if small else full))
    case.load()
    clock, gradient = Clock(lib.sync, stream_of(lib, arch)), case.timed["gradient"]
    kernel = case.reverse[0][0]
    free = kernel.grad.plan()
    rows = [{"budget": None, "bytes": free.bytes, **clock.measure(gradient, seconds), "plan": str(free)}]
    for budget in (1 << k for k in range(29, 17, -1)):
        try:
            plan = kernel.grad.plan(budget=budget)
        except lib.OutOfMemory as e:
            rows.append({"budget": budget, "error": str(e).splitlines()[0]})
            break
        row = {"budget": budget, "bytes": plan.bytes, "plan": str(plan)}
        rows.append(row | clock.measure(lambda b=budget: kernel.grad(budget=b), seconds))
    return {"rows": rows, "forward": clock.measure(case.timed["forward"], seconds)}


def one(package: str, name: str, asked: argparse.Namespace) -> dict[str, Any]:
    """The figures of one case with one package."""
    if package == "copy":
        return {"bytes_per_s": copy_rate()}
    if package in ("jax", "warp"):
        return importlib.import_module(f"benchmarks.cuda_{package}").figures(name, asked.small, asked.seconds)
    if name == "cold":
        return cold(package, asked.arch, asked.cache, asked.small)
    lib = opened(package, asked.arch, accurate=name.endswith("_accurate"), device=asked.device)
    if name == "budgets":
        return budgets(lib, asked.arch, asked.seconds, asked.small)
    make, full, tiny = CASES[name]
    case = make(lib, **(json.loads(asked.sizes) if asked.sizes else tiny if asked.small else full))
    if asked.once:
        case.load()
        for _ in range(3):
            case.timed[asked.once]()
        lib.sync()
        return {}
    return figures(lib, case, asked.arch, asked.seconds, asked.together)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("package")
    parser.add_argument("case")
    parser.add_argument("--arch", default="cuda", choices=("cuda", "cpu", "emulated", "vulkan"))
    parser.add_argument("--device", default="")
    parser.add_argument("--sizes", default="")
    parser.add_argument("--together", type=int, default=1)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--cache", default="")
    parser.add_argument("--once", default="")
    asked = parser.parse_args()
    print(json.dumps(one(asked.package, asked.case, asked), default=float), flush=True)


if __name__ == "__main__":
    main()
