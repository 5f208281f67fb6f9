"""What a launch from Python costs: kernels, methods, programs in turn, gradients by what their plans read, tapes; and a first plan.

    python -m benchmarks.launch [--packages qdrun,quadrants] [--json] [--arch cpu|emulated|cuda|vulkan] [--device NAME]

Host time: the least of several repeats, in a process for each package. The loops are short, so that the launch is what is measured; on a
GPU the launches of a repeat are waited for outside of the time.
"""

import argparse
import contextlib
import dataclasses
import importlib
import io
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.one import OPTIONS

MANY = 1000
Timed = dict[str, Callable[[], object]]


def gradients(lib: Any) -> Timed:
    """Launches of gradients that differ in what their plans read."""
    x, y = (lib.field(lib.f32, shape=8, needs_grad=True) for _ in range(2))
    alive = lib.field(lib.i32, shape=8)
    a, b = (lib.ndarray(lib.f32, (8,), needs_grad=True) for _ in range(2))
    alive[3] = 1

    @lib.kernel
    def empty():
        pass

    @lib.kernel
    def straight(t: lib.i32, c: lib.f32):
        for i in x:
            y[i] += lib.sin(x[i]) * c + t

    @lib.kernel
    def arrays(a: lib.types.ndarray(dtype=lib.f32, ndim=1), b: lib.types.ndarray(dtype=lib.f32, ndim=1)):
        for i in x:
            y[i] += a[i] * b[i] * x[i]

    @lib.kernel
    def constant(t: lib.i32):
        for i in x:
            v = x[i]
            for _ in range(20):
                v = lib.sin(v)
            y[i] += v + t

    @lib.kernel
    def counted(n: lib.i32, c: lib.f32):
        for i in x:
            v = x[i]
            for _ in range(n):
                v = lib.sin(v) * c
            y[i] += v

    @lib.kernel
    def gated():
        for i in x:
            if alive[i] > 0:
                v = x[i]
                for _ in range(300):
                    v = lib.sin(v)
                y[i] += v

    @lib.kernel
    def wake(i: lib.i32):
        alive[i] = 1

    def gated_and_written() -> None:
        wake(3)
        gated.grad()

    return {
        "a kernel without arguments": empty,
        "a kernel of two numbers": lambda: straight(3, 2.0),
        "gradient without a loop": lambda: straight.grad(3, 2.0),
        "gradient of two ndarrays": lambda: arrays.grad(a, b),
        "gradient, a loop of 20 steps": lambda: constant.grad(3),
        "gradient, a loop of n steps, the same n": lambda: counted.grad(20, 1.0),
        "the same n, another number": _turns(counted.grad, (20, 1.0), (20, 2.0)),
        "n changes with each launch": _turns(counted.grad, (20, 1.0), (21, 1.0)),
        "gradient behind a gate in a field": gated.grad,
        "the same, and a kernel writes the field before": gated_and_written,
    }


def _turns(f: Callable[..., None], *calls: tuple[Any, ...]) -> Callable[[], None]:
    """Calls with these arguments by turns."""
    turn = [0]

    def call() -> None:
        turn[0] = (turn[0] + 1) % len(calls)
        f(*calls[turn[0]])

    return call


FUNCTION, ITS_GRADIENT = "a function over fields", "gradient of a function over fields"
OF_TEN = "a method of an object of ten members"
ARRAYS, THEIR_GRADIENT = "a function of two ndarrays", "gradient of a function of two ndarrays"


def bodies(lib: Any) -> Timed:
    """One body as functions and as methods, called in the same way."""
    x, y = (lib.field(lib.f32, shape=8, needs_grad=True) for _ in range(2))
    a, b = (lib.ndarray(lib.f32, (8,), needs_grad=True) for _ in range(2))

    @lib.kernel
    def over_fields(c: lib.f32):
        for i in range(1):
            y[i] += x[i] * c

    @lib.kernel
    def of_arrays(a: lib.types.ndarray(dtype=lib.f32, ndim=1), b: lib.types.ndarray(dtype=lib.f32, ndim=1), c: lib.f32):
        for i in range(1):
            b[i] += a[i] * c

    @lib.data_oriented
    class Fields:
        def __init__(self) -> None:
            self.x, self.y, self.steps, self.table = x, y, 0, list(range(100))

        @lib.kernel
        def run(self, c: lib.f32):
            for i in range(1):
                self.y[i] += self.x[i] * c

    @lib.data_oriented
    class Ten(Fields):
        """Ten members, of which the kernel reads two."""

        def __init__(self) -> None:
            super().__init__()
            self.numbers, self.word, self.pair = [1.0] * 3, "x", (1, 2)
            self.t, self.u, self.v = 0.1, [2], fields

    @lib.data_oriented
    class Arrays:
        def __init__(self) -> None:
            self.a, self.b, self.steps = a, b, 0

        @lib.kernel
        def run(self, c: lib.f32):
            for i in range(1):
                self.b[i] += self.a[i] * c

    fields, arrays = Fields(), Arrays()
    ten = Ten()

    def counting() -> None:
        fields.steps += 1
        fields.run(2.0)

    def swapping() -> None:
        arrays.a, arrays.b = arrays.b, arrays.a
        arrays.run(2.0)

    return {
        FUNCTION: lambda: over_fields(2.0),
        "a method over fields": lambda: fields.run(2.0),
        "the same, and a number of the object is set": counting,
        OF_TEN: lambda: ten.run(2.0),
        ARRAYS: lambda: of_arrays(a, b, 2.0),
        "a method over ndarrays": lambda: arrays.run(2.0),
        "the same, and they are exchanged": swapping,
        ITS_GRADIENT: lambda: over_fields.grad(2.0),
        "gradient of a method over fields": lambda: fields.run.grad(2.0),
        f"gradient of {OF_TEN}": lambda: ten.run.grad(2.0),
        THEIR_GRADIENT: lambda: of_arrays.grad(a, b, 2.0),
        "gradient of a method over ndarrays": lambda: arrays.run.grad(2.0),
    }


def forms(lib: Any) -> Timed:
    """One kernel, called in every form that Python has; and kernels that return numbers."""
    a = lib.ndarray(lib.f32, (8,))

    @lib.kernel
    def fill(x: lib.types.ndarray(dtype=lib.f32, ndim=1), c: lib.f32):
        for i in range(1):
            x[i] = c

    @lib.kernel
    def double(c: lib.f32) -> lib.f32:
        return 2.0 * c

    @lib.data_oriented
    class Meter:
        def __init__(self) -> None:
            self.a = a

        @lib.kernel
        def read(self) -> lib.f32:
            return self.a[0]

    sixty = dataclasses.make_dataclass("Sixty", [(f"a{k}", lib.types.ndarray(dtype=lib.f32, ndim=1)) for k in range(60)])

    @lib.kernel
    def first(s: sixty):
        for i in range(1):
            s.a0[i] = 2.0

    meter, arrays = Meter(), sixty(*(lib.ndarray(lib.f32, (8,)) for _ in range(60)))
    out: Timed = {
        "by position": lambda: fill(a, 2.0),
        "by keyword": lambda: fill(x=a, c=2.0),
        "by position and keyword": lambda: fill(a, c=2.0),
        "a number is returned": lambda: double(2.0),
        "a method returns a number": meter.read,
        "a dataclass of 60 ndarrays": lambda: first(arrays),
    }
    if lib.__name__ == "qdrun":  # Quadrants has no defaults

        @lib.kernel
        def defaulted(x: lib.types.ndarray(dtype=lib.f32, ndim=1), c: lib.f32 = 2.0):
            for i in range(1):
                x[i] = c

        out["with a default"] = lambda: defaulted(a)
    return out


IN_TURN = "of 3 programs in turn"


def in_turn(lib: Any, options: dict[str, Any]) -> Timed:
    """Kernels of the module that several programs use in turn, without the time that it takes to change the program."""

    @lib.kernel
    def of_arrays(a: lib.types.ndarray(dtype=lib.f32, ndim=1), b: lib.types.ndarray(dtype=lib.f32, ndim=1), c: lib.f32):
        for i in range(1):
            b[i] += a[i] * c

    calls: list[tuple[Any, tuple[Any, ...]]] = []
    for _ in range(3):
        program = lib.init(**options)
        calls.append((program, (*(lib.ndarray(lib.f32, (8,), needs_grad=True) for _ in range(2)), 2.0)))

    def turns(f: Callable[..., object]) -> Callable[[], object]:
        def call() -> None:
            for program, given in calls:
                with program:
                    f(*given)

        return call

    return {
        f"with program: nothing, {IN_TURN}": turns(lambda a, b, c: None),
        f"with program: a function of two ndarrays, {IN_TURN}": turns(of_arrays),
        f"with program: its gradient, {IN_TURN}": turns(of_arrays.grad),
    }


def ratios(ours: dict[str, float]) -> dict[str, float]:
    """Times of the function's, by what was measured; of programs in turn without that of changing the program."""
    bases = {
        FUNCTION: ("a method over fields", OF_TEN),
        ITS_GRADIENT: ("gradient of a method over fields", f"gradient of {OF_TEN}"),
    }
    bases |= {ARRAYS: ("a method over ndarrays",), THEIR_GRADIENT: ("gradient of a method over ndarrays",)}
    out = {name: ours[name] / ours[base] for base, names in bases.items() for name in names}
    turning = ours[f"with program: nothing, {IN_TURN}"]
    for base, name in ((ARRAYS, "a function of two ndarrays"), (THEIR_GRADIENT, "its gradient")):
        whole = f"with program: {name}, {IN_TURN}"
        out[whole] = (ours[whole] - turning) / 3 / ours[base]
    return out


def tapes(lib: Any) -> Timed:
    """1,000 launches and their gradients, in each of these functions."""
    x = lib.field(lib.f32, shape=(MANY + 1, 8), needs_grad=True)
    loss = lib.field(lib.f32, shape=(), needs_grad=True)

    @lib.kernel
    def step(t: lib.i32, c: lib.f32):
        for i in range(8):
            x[t + 1, i] = c * lib.sin(x[t, i])

    @lib.kernel
    def add():
        for i in range(8):
            loss[None] += x[0, i]

    def of_steps() -> None:
        with lib.ad.Tape(loss):
            for t in range(MANY):
                step(t, 0.9)

    def of_one() -> None:
        with lib.ad.Tape(loss):
            for _ in range(MANY):
                add()

    return {"tape: a launch of two numbers and its gradient": of_steps, "tape: a launch without arguments": of_one}


def planned(lib: Any) -> float:
    """CPU seconds of a first plan: nothing of the gradient was compiled before, and nothing is."""
    x, y = (lib.field(lib.f32, shape=64, needs_grad=True) for _ in range(2))

    @lib.kernel
    def nest(n: lib.i32):
        for i in x:
            v, w = x[i], 2.0 * x[i]
            for j in range(n):
                v = lib.sin(v) * w + x[j]
                for _ in range(n):
                    w = w * v + lib.cos(w)
            y[i] = v + w

    begin = time.process_time()
    nest.grad.plan(20)
    return time.process_time() - begin


def best(f: Callable[[], object], number: int, wait: Callable[[], object], repeats: int = 60) -> float:
    """Seconds of one call."""
    for _ in range(3):
        f()
    found = float("inf")
    for _ in range(repeats):
        wait()
        begin = time.perf_counter()
        for _ in range(number):
            f()
        found = min(found, time.perf_counter() - begin)
    wait()
    return found / number


def measure(package: str, arch: str, device: str) -> dict[str, float]:
    """All figures of one package: microseconds by name; the plan in milliseconds."""
    lib = importlib.import_module(package)
    options: dict[str, Any] = OPTIONS[package] | {"default_fp": lib.f32}
    device = "emulated" if arch == "emulated" else device
    if device and package == "qdrun":
        options["device"] = device
    with contextlib.redirect_stdout(io.StringIO()):
        options |= {"arch": getattr(lib, "cuda" if arch == "emulated" else arch)}
        options |= {"cpu_max_num_threads": 1} if arch == "cpu" else {}
        lib.init(**options)
    number = 100
    out: dict[str, float] = {}
    for name, f in (gradients(lib) | bodies(lib) | forms(lib)).items():
        with contextlib.suppress(*(() if package == "qdrun" else (RuntimeError,))):  # a peer that refuses has no figure
            out[name] = 1e6 * best(f, number, lib.sync)
    out |= {name: 1e6 * best(f, 1, lib.sync, 12) / MANY for name, f in tapes(lib).items()}
    if package == "qdrun":
        out |= {name: 1e6 * best(f, number, lib.sync) for name, f in in_turn(lib, options).items()}
        out["a first plan, CPU ms"] = 1e3 * planned(lib)
    return out


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packages", default="qdrun,quadrants")
    parser.add_argument("--arch", default="cpu", choices=["cpu", "emulated", "cuda", "vulkan"])
    parser.add_argument("--device", default="", help="which device ours uses")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options.arch, options.device)))
        return
    packages = options.packages.split(",")
    found: dict[str, dict[str, float]] = {}
    for package in packages:
        command = [sys.executable, "-m", "benchmarks.launch", "--one", package, "--arch", options.arch]
        command += ["--device", options.device] if options.device else []
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{package}: {done.stderr}")
        found[package] = json.loads(done.stdout.splitlines()[-1])
    if options.json:
        print(json.dumps(found))
        return
    table = Table("launch, us", *packages, "ours: of the function's", title=f"Host time on {options.arch}")
    of_function = ratios(found["qdrun"]) if "qdrun" in found else {}
    for name in found[packages[0]]:
        ratio = f"{of_function[name]:.2f}" if name in of_function else ""
        table.add_row(name, *(f"{found[p][name]:,.2f}" if name in found[p] else "-" for p in packages), ratio)
    Console().print(table)


if __name__ == "__main__":
    main()
