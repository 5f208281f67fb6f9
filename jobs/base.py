"""Jobs: simulations with parameters as input, and a loss, gradients and outputs as results. Re-exports the public names.

A job is one small class in one readable file:

    class DropParams(JobParams):
        height: float = Field(2.0, gt=0, description="height of the drop, m")

    class Drop(Job[DropParams]):
        gradients = ("height",)

        def build(self) -> None: ...       # fields and kernels of this trial
        def run(self) -> Outcome: ...      # the loss and its gradients

``docs/writing-a-job.md`` writes one from start to end. This module imports nothing of the runner, and the compiler only when a
job that needs it is opened.
"""

from .checks import GradientCheck, check_gradients
from .debug import Debug
from .job import Job, JobParams
from .memory_plan import MemoryPlan, PlanEntry
from .outcome import BadOutcome, Gradient, Outcome
from .session import Finished, Session, execute, run_trial
from .watch import Stopped, Watch

__all__ = [
    "BadOutcome",
    "Debug",
    "Finished",
    "Gradient",
    "GradientCheck",
    "Job",
    "JobParams",
    "MemoryPlan",
    "Outcome",
    "PlanEntry",
    "Session",
    "Stopped",
    "Watch",
    "check_gradients",
    "execute",
    "run_trial",
]
