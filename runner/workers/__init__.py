"""The worker: one process for each device, with a lane (a thread and a program of its own) for each trial that runs at once."""

from .records import error_record, finished_record
from .spec import (
    BatchColumns,
    BatchSpec,
    LaneState,
    LaunchEnded,
    LeaseNews,
    Progress,
    WorkerInfo,
    WorkerSpec,
    log_folder,
    worker_name,
)
from .worker import Worker

__all__ = [
    "BatchColumns",
    "BatchSpec",
    "LaneState",
    "LaunchEnded",
    "LeaseNews",
    "Progress",
    "Worker",
    "WorkerInfo",
    "WorkerSpec",
    "error_record",
    "finished_record",
    "log_folder",
    "worker_name",
]
