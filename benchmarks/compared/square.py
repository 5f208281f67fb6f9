"""The trial as a job of qdrun."""

from trial import square

from qdrun.jobs.base import Job, JobParams, Outcome


class Params(JobParams):
    x: int = 0
    row: str = "sweep"
    folder: str = "."


class Square(Job[Params]):
    needs_compiler = False

    def build(self): ...

    def run(self):
        return Outcome(square(self.params.x, self.params.row, self.params.folder))
