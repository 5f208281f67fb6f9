"""Jobs that need no compiler: a quadratic loss with its exact gradient, and ways to misbehave."""

import os
import time
from typing import Literal

import numpy as np
from pydantic import Field

from qdrun.jobs.base import Job, JobParams, MemoryPlan, Outcome, PlanEntry


class QuadraticParams(JobParams):
    x: float = Field(1.0, description="position, m")
    scale: float = Field(1.0, gt=0, description="stiffness, N/m")
    target: list[float] = Field([0.0, 1.0], min_length=1, description="points to reach, m")
    size: int = Field(4, ge=1, le=1 << 30, description="cells of the pretended field")
    sleep_s: float = Field(0.0, ge=0, description="pretended work, s")
    mood: Literal["good", "raise", "hang", "crash", "nan", "big"] = "good"


class Quadratic(Job[QuadraticParams]):
    """loss = scale * sum((x - target)**2)"""

    gradients = ("x", "target")
    needs_compiler = False

    def build(self):
        self.target = np.array(self.params.target)

    def plan(self):
        cells = self.params.size * 8
        return MemoryPlan(
            entries=(
                PlanEntry(kind="state", bytes=cells, source="build()", formula=f"{self.params.size} cells x 8 bytes"),
                PlanEntry(kind="gradients", bytes=cells, source="build()", formula=f"{self.params.size} cells x 8 bytes"),
            )
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
