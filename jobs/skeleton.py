"""A pendulum is let go: with which angle and speed must it start, so that it passes a given angle at the end?

Replace the parameters, the kernel and the loss by your own. Run the file to compare its gradients with finite differences.
"""

from __future__ import annotations

from pydantic import Field

import qdrun as qd
from qdrun.jobs.base import Job, JobParams, check_gradients


class SkeletonParams(JobParams):
    """A config sets these values; numbers outside of their range are refused."""

    angle: float = Field(1.0, description="at the start, rad")
    speed: float = Field(0.0, description="at the start, rad/s")
    length: float = Field(1.0, gt=0, description="of the pendulum, m")
    drag: float = Field(0.1, ge=0, description="deceleration for each unit of speed, 1/s")
    target: float = Field(-0.5, description="wanted angle at the end, rad")
    steps: int = Field(200, ge=1, description="time steps of 10 ms")


class Skeleton(Job[SkeletonParams]):
    """The loss is the squared distance of the last angle from the target, in rad^2."""

    gradients = ("angle", "speed", "length", "drag")

    def build(self) -> None:
        """Create fields and kernels; run nothing."""
        angle, speed, length, drag = (self.input(name) for name in self.gradients)  # 0-d fields, filled before each run
        target, steps = self.input("target"), self.params.steps
        loss = self.objective()  # 0-d field, zero at the start of a run
        path = self.output("path", (steps + 1,))  # the column out.path of the results

        @qd.kernel
        def swing():
            for _ in range(1):  # the outermost loop runs in parallel: here it has one iteration
                a, v = angle[None], speed[None]
                path[0] = a
                for t in range(steps):  # an inner loop carries a state; its gradient runs it backwards
                    v += 0.01 * (-9.81 / length[None] * qd.sin(a) - drag[None] * v)
                    a += 0.01 * v
                    path[t + 1] = a
                loss[None] += (a - target[None]) ** 2

        self.swing = swing

    def simulate(self) -> None:
        """Launch the kernels, and nothing else."""
        self.swing()


if __name__ == "__main__":
    for row in check_gradients(Skeleton, SkeletonParams(steps=50)):
        print(f"{row.name}: gradient {row.given:.9g}, finite difference {row.difference:.9g}")
        assert row.relative_error < 1e-6
