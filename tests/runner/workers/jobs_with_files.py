"""Jobs that read files of their parameters, and leave files in their folders."""

import os
import time
from pathlib import Path
from typing import Literal

from pydantic import Field

from qdrun.jobs.base import Job, JobParams, Outcome


class LeavesParams(JobParams):
    x: float = 1.0
    count: int = Field(2, description="files")
    size: int = Field(3, description="bytes of each")
    door: str = Field("", description="a file; the run ends once it is there")
    mood: Literal["good", "raise", "stop", "link", "none"] = "good"


class Leaves(Job[LeavesParams]):
    """Writes files; says how many were there before."""

    needs_compiler = False

    def build(self): ...

    def run(self):
        p = self.params
        if p.mood == "none":
            return Outcome(0.0)
        before = len(list(self.artifacts.iterdir()))
        (self.artifacts / "frames").mkdir()
        for k in range(p.count):
            (self.artifacts / "frames" / f"{k} of {p.x}.bin").write_bytes(bytes([k]) * p.size)
        if p.mood == "raise":
            raise RuntimeError("after its files")
        if p.mood == "stop":
            while not os.path.exists(p.door):
                time.sleep(0.01)
                self.checkpoint()
        if p.mood == "link":
            (self.artifacts / "link").symlink_to("/etc/passwd")
            os.mkfifo(self.artifacts / "pipe")
        return Outcome(p.x, {}, {"before": float(before)})


class ReadsParams(JobParams):
    table: Path = Field(Path("numbers.txt"), description="numbers to add up")
    scale: float = 1.0


class Reads(Job[ReadsParams]):
    """The sum of the numbers in a file, which it copies to its folder. The number of lines decides its shape."""

    gradients = ("scale",)
    needs_compiler = False

    @classmethod
    def shape_key(cls, params):
        return {"lines": len(params.table.read_text().split())}

    def build(self):
        self.numbers = [float(word) for word in self.params.table.read_text().split()]

    def run(self):
        (self.artifacts / "seen.txt").write_text(self.params.table.read_text())
        total = sum(self.numbers)
        found = {"scale": total}
        return Outcome(self.params.scale * total, {name: found[name] for name in self.wanted})
