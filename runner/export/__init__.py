"""Exports: what a run logs and finds, handed on to TensorBoard, Weights & Biases, MLflow, or a tracker of the user's."""

from .feed import Feed, export, exporting
from .tracker import TRACKERS, Beginning, Tracker, TrackerMissing

__all__ = ["TRACKERS", "Beginning", "Feed", "Tracker", "TrackerMissing", "export", "exporting"]
