"""A job of one kernel, as small or as large as it is told to be, for the choice of a backend."""

from pydantic import Field

import qdrun as qd
from qdrun.jobs.base import Job, JobParams, Outcome


class ChainsParams(JobParams):
    n: int = Field(16, ge=1, description="chains")
    k: int = Field(4, ge=1, description="links of each")
    start: float = Field(0.5, description="where the chains begin")
    fails: bool = Field(False, description="it cannot be built")


class Chains(Job[ChainsParams]):
    gradients = ("start",)
    built = 0

    def build(self):
        type(self).built += 1
        if self.params.fails:
            raise RuntimeError("no material of this name")
        n, k = self.params.n, self.params.k
        self.x, self.loss = qd.field(qd.f64, shape=n, needs_grad=True), qd.field(qd.f64, shape=(), needs_grad=True)
        x, loss = self.x, self.loss

        @qd.kernel
        def chain():
            for i in range(n):
                v = x[i]
                for _ in range(k):
                    v = qd.sin(v) + 0.1
                loss[None] += v / n

        self.chain = chain

    def fill(self):
        self.x.fill(self.params.start)

    def launches(self):
        return [(self.chain, ())]

    def run(self):
        with qd.ad.Tape(loss=self.loss):
            self.chain()
        return Outcome(float(self.loss[None]), {"start": float(self.x.grad.to_numpy().sum())})


class Silent(Chains):
    """Says nothing of its launches."""

    def launches(self):
        return ()
