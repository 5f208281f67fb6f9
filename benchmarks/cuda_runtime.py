"""What the runtime costs on a GPU: opening, code, memory, copies between numpy and the device.

    python -m benchmarks.cuda_runtime [--json FILE] [--copies] [--device emulated --small]

Copies: the driver's own way for pageable memory, the product's (``runtime/gpu/memory/staging.py``: two pinned buffers, one of which a few
threads fill while the device copies the other), and the product's with other buffers and threads, to set its constants by.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from pathlib import Path

import numpy as np

import qdrun as qd
from qdrun.compiler.runtime.cuda import ptx
from qdrun.compiler.runtime.cuda.driver import CudaDriver
from qdrun.compiler.runtime.gpu.device import GpuDevice
from qdrun.compiler.runtime.gpu.memory import staging
from qdrun.compiler.runtime.gpu.memory.staging import Staging

TEXT = """
define ptx_kernel void @k(ptr %x, i64 %n) {
entry:
  %p = getelementptr i64, ptr %x, i64 3
  store i64 %n, ptr %p
  ret void
}
"""


def median(work, repeat=5):
    """Milliseconds of a call."""
    times = []
    for _ in range(repeat):
        begin = time.perf_counter()
        work()
        times.append(1e3 * (time.perf_counter() - begin))
    return sorted(times)[len(times) // 2]


def opening() -> tuple[GpuDevice, dict[str, float]]:
    """The first program of a process, then the second."""
    begin = time.perf_counter()
    from cuda.bindings import driver as d

    imported = time.perf_counter()
    d.cuInit(0)
    started = time.perf_counter()
    first = GpuDevice(CudaDriver(), 0)
    opened = time.perf_counter()
    second = GpuDevice(CudaDriver(), 0)
    again = time.perf_counter()
    second.close()
    marks = {"import cuda-python": imported - begin, "cuInit": started - imported}
    marks |= {"first device": opened - started, "second device": again - opened}
    return first, {k: 1e3 * v for k, v in marks.items()}


def code(device: GpuDevice) -> dict[str, float]:
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


def memory(device: GpuDevice) -> dict[str, float]:
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


def copies(device: GpuDevice, nbytes: int, chunks: tuple[int, ...], threads: tuple[int, ...]) -> dict[str, float]:
    """GB/s of copies of one size, each way: by the driver, as the product is set, and by other buffers and threads."""
    host, a = np.ones(nbytes, np.uint8), device.allocate(nbytes, "adstack")
    address, kept = host.ctypes.data, [host]

    def new() -> int:
        kept[:] = [np.empty(nbytes, np.uint8)]
        return kept[0].ctypes.data

    def driver_up() -> None:
        device.driver.upload(a.ptr, address, nbytes, device.stream)
        device.synchronize()

    def product_up() -> None:
        device.upload(a.ptr, address, nbytes)
        device.synchronize()

    work = {
        "up, driver": driver_up,
        "up, product": product_up,
        "down, driver": lambda: device.driver.download(address, a.ptr, nbytes, device.stream),
        "down, product": lambda: device.download(address, a.ptr, nbytes),
        "down to a new array, driver": lambda: device.driver.download(new(), a.ptr, nbytes, device.stream),
        "down to a new array, product": lambda: device.download(new(), a.ptr, nbytes),
    }
    for chunk, n in itertools.product(chunks, threads):
        own = Staging(device.driver, device.stream, chunk << 20, n)
        name = f"{chunk} MiB x {n} threads"
        work[f"up, {name}"] = lambda own=own: (own.upload(a.ptr, address, nbytes), device.synchronize())
        work[f"down, {name}"] = lambda own=own: own.download(address, a.ptr, nbytes)
    out = {}
    for what, call in work.items():
        call()
        out[f"{what}, {nbytes >> 10:,} KiB"] = nbytes / 1e6 / median(call)
    device.free(a)
    return out


def whole_fields(which: int | str, nbytes: int) -> dict[str, float]:
    """GB/s of ``from_numpy`` and ``to_numpy``, and of a kernel with a numpy array, with the driver's way and with the product's."""
    out, values = {}, np.ones(nbytes // 4, np.float32)

    @qd.kernel
    def touch(a: qd.types.ndarray(qd.f32, 1)):
        a[0] += 1.0

    with qd.init(arch=qd.cuda, device=which) as program:
        x = qd.field(qd.f32, nbytes // 4)
        for name, threshold in (("driver", 1 << 62), ("product", staging.THRESHOLD)):
            staging.THRESHOLD = threshold
            work = {"from_numpy": lambda: x.from_numpy(values), "to_numpy": x.to_numpy, "argument": lambda: touch(values)}
            for what, call in work.items():
                call()
                ms = median(lambda call=call: (call(), program.device.synchronize()))
                out[f"{what}, {name}, {nbytes >> 20:,} MiB"] = nbytes / 1e6 / ms
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--copies", action="store_true", help="copies alone")
    parser.add_argument("--device", default=0, type=lambda x: int(x) if x.isdigit() else x)
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    if args.copies or args.device != 0:
        device = GpuDevice(CudaDriver(), args.device)
    else:
        device, found["opening, ms"] = opening()
        found |= {"code, ms": code(device), "memory, ms": memory(device)}
    found["copies, GB/s"] = rates = {}
    for mib in (1, 2, 4, 8, 16) if args.small else (1, 2, 4, 8, 16, 64, 256, 1024):
        many = mib in (16, 64, 256)
        rates |= copies(device, mib << 20, (1, 2, 4, 8) if many else (), (1, 2, 4, 8, 12) if many else ())
    rates |= whole_fields(args.device, (16 if args.small else 256) << 20)
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
