"""How a run is doing, from its folder alone; never imports ray."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

from .folder import LOST_AFTER_S, RunFolder, all_runs, replace_text
from .journal import read
from .results import best, rows

STATES = ("running", "done", "failed", "cancelled", "interrupted", "lost")


def run_state(folder: RunFolder, events: list[dict[str, Any]]) -> str:
    """One of ``STATES``: what the journal's last word is, or whether the process behind the run still gives signs of life."""
    for event in reversed(events):
        if event["event"] == "finished":
            return event["state"]
    return "running" if folder.silent_s() < LOST_AFTER_S else "lost"


def status(folder: RunFolder) -> dict[str, Any]:
    """The state of one run: its counts by trial status, the best loss so far, seconds, and damaged journal lines."""
    events, damaged = read(folder.events)
    info, table = folder.info(), rows(folder)
    state = run_state(folder, events)
    end = events[-1]["t"] if state != "running" and events else time.time()
    found = best(table)
    return {
        "id": info["id"],
        "folder": str(folder.path),
        "state": state,
        "cancel_requested": folder.cancel.exists(),
        "trials": len(table),
        "counts": dict(Counter(row["status"] for row in table)),
        "best": found and {"trial": found["trial"], "loss": found["loss"]},
        "seconds": max(0.0, end - info["created"]),
        "damaged_lines": damaged,
        "timing": next((event["timing"] for event in reversed(events) if event["event"] == "finished"), None),
    }


def list_runs(output: Path) -> list[dict[str, Any]]:
    """The state of every run under ``output``, oldest first. A run whose files are damaged does not hide the others."""
    return [_status_or_damage(folder) for folder in all_runs(output)]


def _status_or_damage(folder: RunFolder) -> dict[str, Any]:
    try:
        return status(folder)
    except (OSError, ValueError, KeyError) as error:
        nothing = {"cancel_requested": False, "trials": 0, "counts": {}, "best": None, "seconds": 0.0, "damaged_lines": 0}
        return {
            "id": folder.path.name,
            "folder": str(folder.path),
            "state": "damaged",
            **nothing,
            "timing": None,
            "error": str(error),
        }


def request_cancel(folder: RunFolder) -> tuple[str, bool]:
    """Ask the process behind a run to stop; gives the run's state, and whether there was anything to ask."""
    state = run_state(folder, read(folder.events)[0])
    if state == "running":
        replace_text(folder.cancel, json.dumps({"t": time.time()}))
    return state, state == "running"
