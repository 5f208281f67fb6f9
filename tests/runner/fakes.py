"""Jobs that need no compiler: a quadratic loss with its exact gradient, and ways to misbehave."""

import os
import time
from typing import Literal

import numpy as np
from pydantic import Field

from qdrun.compiler.errors import DeviceError
from qdrun.jobs.base import Job, JobParams, MemoryPlan, Outcome, PlanEntry


class QuadraticParams(JobParams):
    x: float = Field(1.0, description="position, m")
    scale: float = Field(1.0, gt=0, description="stiffness, N/m")
    target: list[float] = Field([0.0, 1.0], min_length=1, description="points to reach, m")
    size: int = Field(4, ge=1, le=1 << 36, description="cells of the pretended field")
    sleep_s: float = Field(0.0, ge=0, description="pretended work, s")
    mood: Literal["good", "raise", "hang", "crash", "nan", "big"] = "good"


class Quadratic(Job[QuadraticParams]):
    """loss = scale * sum((x - target)**2)"""

    gradients = ("x", "target")
    needs_compiler = False

    def build(self):
        self.target = np.array(self.params.target)

    def plan(self, *, arch=None):
        cells = self.params.size * 8
        return MemoryPlan(
            arch=arch or "cpu",
            entries=(
                PlanEntry(kind="state", bytes=cells, source="build()", formula=f"{self.params.size} cells x 8 bytes"),
                PlanEntry(kind="gradients", bytes=cells, source="build()", formula=f"{self.params.size} cells x 8 bytes"),
            ),
        )

    def used(self):
        return self.plan().by_kind()

    def peak_bytes(self):
        return self.plan().bytes

    def run(self):
        mood = self.params.mood
        if mood == "raise":
            raise RuntimeError(f"the fake job raises at x={self.params.x}")
        if mood == "crash":
            os._exit(7)
        if mood == "big":
            np.ones(50_000_000).sum()
        time.sleep(3600.0 if mood == "hang" else self.params.sleep_s)
        away = self.params.x - self.target
        loss = float("nan") if mood == "nan" else float(self.params.scale * (away**2).sum())
        slope = 2 * self.params.scale * away
        exact = {"x": float(slope.sum()), "target": -slope}
        return Outcome(loss, {name: exact[name] for name in self.wanted}, {"reach": float(away.max())})


class DeviceParams(JobParams):
    number: int = Field(0, description="of the trial")
    marks: str = Field("", description="a folder for notes")
    mood: Literal["good", "lost", "lost once", "crash once", "hang"] = "good"
    sleep_s: float = Field(0.0, ge=0, description="pretended work, s")


class OnDevice(Job[DeviceParams]):
    """Says which process it ran in and which devices that sees, and loses its device when it is told to."""

    needs_compiler = False

    def plan(self, *, arch=None):
        beside = (PlanEntry(kind="driver", bytes=1 << 20, source="the process"),) if arch == "cuda" else ()
        return MemoryPlan(entries=(PlanEntry(kind="state", bytes=4096, source="build()"), *beside), arch=arch or "cpu")

    def build(self): ...

    def run(self):
        mood, mark = self.params.mood, os.path.join(self.params.marks, f"{self.params.number}")
        first = not os.path.exists(mark)
        with open(mark, "a", encoding="ascii") as stream:
            stream.write(f"{os.getpid()}\n")
        if mood == "lost" or (mood == "lost once" and first):
            raise DeviceError("the device's memory has failed", "CUDA_ERROR_ECC_UNCORRECTABLE", 214, restart=True)
        if mood == "crash once" and first:
            os._exit(9)
        time.sleep(3600.0 if mood == "hang" else self.params.sleep_s)
        seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        return Outcome(1.0, {}, {"pid": os.getpid(), "sees": float(seen) if seen.isdigit() else -1.0})


class SteppingParams(JobParams):
    steps: int = Field(40, description="time steps")
    door: str = Field("", description="a file; the third step ends once it is there")


class Stepping(Job[SteppingParams]):
    """Says its loss by step."""

    needs_compiler = False

    def build(self): ...

    def run(self):
        for t in range(self.params.steps):
            self.checkpoint()
            self.log(loss=0.5 / (2**t))
            while t == 2 and not os.path.exists(self.params.door):
                time.sleep(0.02)
        return Outcome(0.0)
