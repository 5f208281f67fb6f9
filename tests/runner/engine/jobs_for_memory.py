"""A job whose gradient keeps states, so that it has a curve; it may take more than it plans, or say nothing of its kernels."""

import threading

from pydantic import Field

import qdrun as qd
from qdrun.jobs.base import Job, JobParams, Outcome


class TapesParams(JobParams):
    cells: int = Field(4, ge=1, description="cells")
    inner: int = Field(2000, ge=1, description="iterations whose states are kept")
    start: float = Field(0.7, description="the first value of each cell")
    extra: int = Field(0, ge=0, description="bytes that the run takes beside its plan")
    log: str = Field("", description="a file that gets a line for each program that is built")


class Tapes(Job[TapesParams]):
    """loss = the sum over cells of a recurrence"""

    gradients = ("start",)

    def build(self):
        self.start = qd.field(qd.f64, shape=(), needs_grad=True)
        self.x = qd.field(qd.f64, shape=self.params.cells, needs_grad=True)
        self.loss = qd.field(qd.f64, shape=(), needs_grad=True)
        start, x, loss = self.start, self.x, self.loss

        @qd.kernel
        def spread():
            for i in x:
                x[i] = start[None] + 0.01 * i

        @qd.kernel
        def follow(inner: qd.i32):
            for i in x:
                v = x[i]
                for _ in range(inner):
                    v = qd.sin(v) * 0.99 + 0.3
                loss[None] += v

        self.spread, self.follow = spread, follow

    def fill(self):
        self.start[None] = self.params.start

    def launches(self):
        return [(self.spread, ()), (self.follow, (self.params.inner,))]

    def run(self):
        kept = self.program.allocate(self.params.extra, "temporaries") if self.params.extra else None
        with qd.ad.Tape(loss=self.loss):
            self.spread()
            self.follow(self.params.inner)
        if kept is not None:
            self.program.device.free(kept)
        return Outcome(float(self.loss[None]), {"start": float(self.start.grad[None])} if self.wanted else {})


class Silent(Tapes):
    """Its plan knows nothing of its kernels."""

    def launches(self):
        return ()


class Live(Tapes):
    """Its program serves one start after the other. Says in a file which thread has built a program."""

    def build(self):
        super().build()
        if self.params.log:
            with open(self.params.log, "a") as log:
                log.write(f"{threading.current_thread().name} {self.params.cells}\n")
