"""Jobs that log values: without kernels, and one that can be batched."""

import threading

import qdrun as qd
from qdrun.jobs.base import Job, JobParams, Outcome

GATES: dict[str, threading.Event] = {}


class SaysParams(JobParams):
    number: float = 1.0
    wait: str = ""
    fails: bool = False


class Says(Job[SaysParams]):
    """Logs three steps, waits, and logs a fourth."""

    needs_compiler = False

    def build(self): ...

    def run(self):
        for t in range(3):
            self.checkpoint()
            self.log(loss=self.params.number / (t + 1), t=t)
        if self.params.wait:
            GATES[self.params.wait].wait(60)
        self.checkpoint()
        self.log(loss=0.0)
        if self.params.fails:
            raise ValueError("after all of that")
        return Outcome(0.0)


class RollParams(JobParams):
    speed: float = 2.0
    goal: float = 1.0


class Roll(Job[RollParams]):
    """The square of a distance."""

    gradients = ("speed",)

    def build(self):
        self.speed, self.goal, self.loss = self.input("speed"), self.input("goal"), self.objective()
        speed, goal, loss = self.speed, self.goal, self.loss

        @qd.kernel
        def miss():
            loss[None] += (speed[None] - goal[None]) ** 2

        self.miss = miss

    def simulate(self):
        self.miss()
