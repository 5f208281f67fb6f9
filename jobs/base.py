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

from .core.batch import BatchOutcome, BatchSession
from .core.checks import GradientCheck, check_gradients
from .core.debug import Debug
from .core.inputs import JobParams
from .core.job import Job
from .core.outcome import BadOutcome, Gradient, Outcome
from .core.session import Finished, Session, execute, run_trial
from .core.watch import Stopped, Watch
from .planning.batch_plan import BatchPlan, batch_plan
from .planning.groups import group_key, why_not_batched
from .planning.memory_plan import MemoryPlan, PlanEntry

__all__ = [
    "BadOutcome",
    "BatchOutcome",
    "BatchPlan",
    "BatchSession",
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
    "batch_plan",
    "check_gradients",
    "execute",
    "group_key",
    "run_trial",
    "why_not_batched",
]
