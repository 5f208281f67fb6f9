"""Jobs that print, raise, exit, hang, take memory: what a worker must stand. Some with kernels, some without."""

import os
import subprocess
import sys
import threading
import time
import warnings
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

import qdrun as qd
from qdrun.compiler.errors import DeviceError
from qdrun.jobs.base import Job, JobParams, MemoryPlan, Outcome, PlanEntry

GATES: dict[str, threading.Barrier | threading.Event] = {}
"""By name, for tests in this process: where trials meet, and what they wait for."""


class PlainParams(JobParams):
    number: int = 0
    gate: str = Field("", description="a barrier: the trial goes on when all are there")
    wait: str = Field("", description="an event that the trial waits for, without looking for a request")
    steps: int = 0
    size: int = Field(1, description="numbers in the gradient")
    mood: Literal[
        "good",
        "raise",
        "exit",
        "print",
        "nan",
        "lost",
        "greedy",
        "rude",
        "text",
        "leak a program",
        "child",
        "warn",
        "keep",
        "look for a program",
    ] = "good"


class Plain(Job[PlainParams]):
    """No kernels. Loss = number, gradient = number, number + 1, .."""

    gradients = ("g",)
    needs_compiler = False
    kept: ClassVar[list[bytearray]] = []

    def plan(self, *, arch=None):
        return MemoryPlan(entries=(PlanEntry(kind="state", bytes=100, source="build()"),), arch=arch or "cpu")

    def build(self): ...

    def used(self):
        return {"state": 150 if self.params.mood == "greedy" else 100}

    def peak_bytes(self):
        return self.used()["state"]

    def run(self):
        p = self.params
        if p.gate:
            GATES[p.gate].wait(60)
        if p.wait:
            GATES[p.wait].wait(60)
        for t in range(p.steps):
            self.step(t)
        getattr(self, "_" + p.mood.replace(" ", "_"), lambda: None)()
        loss = float("nan") if p.mood == "nan" else float(p.number)
        return Outcome(loss, {"g": np.arange(p.size, dtype=np.float32) + p.number}, {"count": 1})

    def step(self, t):
        self.checkpoint()
        time.sleep(0.002)

    def _raise(self):
        raise RuntimeError(f"trial {self.params.number} raises")

    def _exit(self):
        sys.exit(f"trial {self.params.number} exits")

    def _lost(self):
        raise DeviceError("the device's memory has failed", "CUDA_ERROR_ECC_UNCORRECTABLE", 214, restart=True)

    def _rude(self):
        try:
            while True:
                self.step(0)
        except Exception:  # one that goes on whatever happens
            pass

    def _text(self):
        raise ValueError("bad \udc80 text")

    def _print(self):
        for k in range(200):
            print(f"out of {self.params.number} line {k}")
            sys.stderr.write(f"err of {self.params.number} line {k}\n")
            time.sleep(0)
        sys.stdout.buffer.write(b"bytes \xff\n")

    def _warn(self):
        warnings.warn(f"warned by {self.params.number}", stacklevel=1)

    def _child(self):
        os.write(1, b"written to descriptor 1\n")
        subprocess.run([sys.executable, "-c", "print('a child of the trial')"], check=True)
        thread = threading.Thread(target=print, args=("a thread of the job",))
        thread.start()
        thread.join()

    def _leak_a_program(self):
        qd.init(arch=qd.cpu, cpu_max_num_threads=1)

    def _look_for_a_program(self):
        qd.field(qd.f64, shape=3)  # needs a current program

    def _keep(self):
        self.kept.append(bytearray(os.urandom(1) * (8 << 20)))


class SpinParams(JobParams):
    n: int = 6
    steps: int = 5
    k: float = 1.0
    repeat: int = Field(1, description="times the whole run is done: two lanes meet in the middle of it")
    say: bool = False
    threads_print: int = 0
    memory: int = Field(1, description="times the fields")


@qd.kernel
def advance(t: qd.i32, x: qd.template(), k: qd.template(), n: qd.i32):
    for i in range(n):
        x[t + 1, i] = x[t, i] + 0.01 * qd.sin(k[None] * x[t, i])


@qd.kernel
def total(x: qd.template(), loss: qd.template(), t: qd.i32, n: qd.i32):
    for i in range(n):
        loss[None] += x[t, i] * x[t, i]


@qd.kernel
def speak(number: qd.i32, n: qd.i32):
    for i in range(n):
        print("kernel of", number, "item", i)


class Spin(Job[SpinParams]):
    """Kernels of the module: all programs of the process share the objects, and each has its own code and memory behind them."""

    gradients = ("k", "x")

    def build(self):
        p = self.params
        self.x = qd.field(qd.f64, shape=(p.steps + 1, p.n * p.memory), needs_grad=True)
        self.k = qd.field(qd.f64, shape=(), needs_grad=True)
        self.loss = qd.field(qd.f64, shape=(), needs_grad=True)

    def fill(self):
        start = np.zeros(self.x.shape)
        start[0] = np.linspace(0.1, 1.0, self.x.shape[1])
        self.x.from_numpy(start)
        self.k[None] = self.params.k

    def launches(self):
        p = self.params
        return [(advance, (0, self.x, self.k, p.n)), (total, (self.x, self.loss, p.steps, p.n))]

    def run(self):
        p = self.params
        if p.say:
            speak(int(p.k), 50)
        for _ in range(p.repeat):
            with qd.ad.Tape(loss=self.loss):
                for t in range(p.steps):
                    self.checkpoint()
                    advance(t, self.x, self.k, p.n)
                total(self.x, self.loss, p.steps, p.n)
        return Outcome(float(self.loss[None]), {"k": float(self.k.grad[None]), "x": self.x.grad.to_numpy()[0]})
