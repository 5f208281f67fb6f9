"""The worker: one process for each device, with a lane (a thread and a program of its own) for each trial that runs at once."""

from .records import error_record, finished_record
from .spec import (
    BatchEnd,
    BatchSpec,
    LaneState,
    LeaseNews,
    Progress,
    TrialEnd,
    TrialSpec,
    WorkerInfo,
    WorkerSpec,
    log_folder,
    worker_name,
)
from .worker import Worker

__all__ = [
    "BatchEnd",
    "BatchSpec",
    "LaneState",
    "LeaseNews",
    "Progress",
    "TrialEnd",
    "TrialSpec",
    "Worker",
    "WorkerInfo",
    "WorkerSpec",
    "error_record",
    "finished_record",
    "log_folder",
    "worker_name",
]
