"""What the runtime costs on a GPU: opening, code, memory, copies between numpy and the device.

    python -m benchmarks.cuda_runtime [--json FILE]

Copies: the driver's own way for pageable memory, and two pinned buffers of ours that a few threads fill while the other one is copied.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from qdrun.compiler.runtime.cuda import ptx
from qdrun.compiler.runtime.cuda.device import CudaDevice

TEXT = """
define ptx_kernel void @k(ptr %x, i64 %n) {
entry:
  %p = getelementptr i64, ptr %x, i64 3
  store i64 %n, ptr %p
  ret void
}
"""
CHUNK = 8 << 20


def median(work, repeat=5):
    """Milliseconds of a call."""
    times = []
    for _ in range(repeat):
        begin = time.perf_counter()
        work()
        times.append(1e3 * (time.perf_counter() - begin))
    return sorted(times)[len(times) // 2]


def opening() -> tuple[CudaDevice, dict[str, float]]:
    """The first program of a process, then the second."""
    begin = time.perf_counter()
    from cuda.bindings import driver as d

    imported = time.perf_counter()
    d.cuInit(0)
    started = time.perf_counter()
    first = CudaDevice(0)
    opened = time.perf_counter()
    second = CudaDevice(0)
    again = time.perf_counter()
    second.close()
    marks = {"import cuda-python": imported - begin, "cuInit": started - imported}
    marks |= {"first device": opened - started, "second device": again - opened}
    return first, {k: 1e3 * v for k, v in marks.items()}


def code(device: CudaDevice) -> dict[str, float]:
    """A kernel of one store: text to PTX, PTX to machine code, load, function."""
    ptx.compile_ptx(TEXT, "k", "sm_90")
    text = ptx.compile_ptx(TEXT, "k", ptx.target_cpu(device.info)).encode()
    image = device.driver.assemble(text, "k")
    modules = []
    out = {
        "LLVM": median(lambda: ptx.compile_ptx(TEXT, "k", "sm_90")),
        "driver's compiler": median(lambda: device.driver.assemble(text, "k")),
        "load a module": median(lambda: modules.append(device.driver.load_module(image, "k"))),
    }
    out["find a function"] = median(lambda: device.driver.function(modules[0], "k"))
    for m in modules:
        device.driver.unload(m)
    return out


def memory(device: CudaDevice) -> dict[str, float]:
    """Allocate and free, each with a wait at its end."""
    out = {}
    for nbytes in (64, 1 << 16, 1 << 20, 1 << 30):

        def once(n=nbytes):
            device.free(device.allocate(n, "adstack"))
            device.synchronize()

        once()
        out[f"allocate, free, wait {nbytes:,} B"] = median(once, 20)
    out["wait for nothing"] = median(device.synchronize, 100)
    return out


class Staging:
    """Two pinned buffers: one is filled or emptied by threads while the device copies the other."""

    def __init__(self, device: CudaDevice, threads: int) -> None:
        self.device, self.threads, self.pool = device, threads, ThreadPoolExecutor(threads)
        self.buffers = [device.host_words(CHUNK // 8, "staging") for _ in range(2)]
        self.events = [device.driver.event() for _ in range(2)]

    def move(self, to: int, source: int, nbytes: int) -> None:
        part = -(-nbytes // self.threads // 4096) * 4096
        spans = [(k, min(part, nbytes - k)) for k in range(0, nbytes, part)]
        list(self.pool.map(lambda s: ctypes.memmove(to + s[0], source + s[0], s[1]), spans))

    def upload(self, to: int, source: int, nbytes: int) -> None:
        driver, stream = self.device.driver, self.device.stream
        for k, at in enumerate(range(0, nbytes, CHUNK)):
            n, buffer, event = min(CHUNK, nbytes - at), self.buffers[k % 2].ptr, self.events[k % 2]
            if k >= 2:
                driver.event_wait(event)
            self.move(buffer, source + at, n)
            driver.upload(to + at, buffer, n, stream)
            driver.record(event, stream)
        driver.synchronize(stream)

    def download(self, to: int, source: int, nbytes: int) -> None:
        driver, stream = self.device.driver, self.device.stream
        starts = list(range(0, nbytes, CHUNK))

        def begin(k: int) -> None:
            driver.fetch(self.buffers[k % 2].ptr, source + starts[k], min(CHUNK, nbytes - starts[k]), stream)
            driver.record(self.events[k % 2], stream)

        begin(0)
        for k, at in enumerate(starts):
            driver.event_wait(self.events[k % 2])
            if k + 1 < len(starts):
                begin(k + 1)
            self.move(to + at, self.buffers[k % 2].ptr, min(CHUNK, nbytes - at))


def copies(device: CudaDevice, nbytes: int) -> dict[str, float]:
    """GB/s of copies of one size, each way."""
    host, a = np.ones(nbytes, np.uint8), device.allocate(nbytes, "adstack")
    address = host.ctypes.data
    work = {
        "up, driver": lambda: (device.upload(a.ptr, address, nbytes), device.synchronize()),
        "down, driver": lambda: device.download(address, a.ptr, nbytes),
        "down, driver, new array": lambda: device.download(np.empty(nbytes, np.uint8).ctypes.data, a.ptr, nbytes),
    }
    for threads in (1, 2, 4, 8) if nbytes > CHUNK else ():
        staging = Staging(device, threads)
        work[f"up, {threads} threads"] = lambda s=staging: s.upload(a.ptr, address, nbytes)
        work[f"down, {threads} threads"] = lambda s=staging: s.download(address, a.ptr, nbytes)
    out = {}
    for what, call in work.items():
        call()
        out[f"{what}, {nbytes >> 10:,} KiB"] = nbytes / 1e6 / median(call)
    device.free(a)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    device, opened = opening()
    found = {"opening, ms": opened, "code, ms": code(device), "memory, ms": memory(device), "copies, GB/s": {}}
    for nbytes in (1 << 16, 1 << 20, 1 << 26, 1 << 30):
        found["copies, GB/s"] |= copies(device, nbytes)
    found["device"] = {device.info.name: device.info.driver_version}
    device.close()
    for part, rows in found.items():
        print(part)
        for name, value in rows.items():
            print(f"  {name:45} {value:10.3f}")
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
