"""Batches in the words of Ray's pages: the name of a call among the tasks of an actor, and the lines of the actor's log."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress

from ...packing.claims import amount
from ...study.trials import counted
from ...workers.spec import BatchSpec, LaunchEnded


def call_name(batches: Sequence[BatchSpec]) -> str:
    """The name of a call that runs batches: ``64 trials in 1 batch, planned 1.2 MiB``.

    Ray's page of a job has a bar for each name, so that names have neither numbers nor trials.
    """
    claims = [batch.claim_bytes for batch in batches if batch.claim_bytes is not None]
    trials = counted(sum(len(batch.trials) for batch in batches), "trial")
    planned = f", planned {amount(max(claims))}" if claims else ""
    return f"{trials} in {len(batches)} batch{'' if len(batches) == 1 else 'es'}{planned}"


def started_text(batches: Sequence[BatchSpec]) -> str:
    """What an actor begins with: ``64 trials from 3f2a9c01d5e6 in 1 batch, planned 1.2 MiB``."""
    count, _, rest = call_name(batches).partition(" in ")
    return f"runs {count} from {batches[0].trials[0]} in {rest}"


def ended_text(end: LaunchEnded) -> str:
    """What an actor has ended: ``64 trials: 63 done, 1 failed in 2.1 s, planned 1.2 MiB, used 1.1 MiB``."""
    records = [(len(rows.trials), rows.shared) for rows in end.rows] + [(1, record) for record in end.ends.values()]
    states = Counter[str]()
    for count, record in records:
        states[record["status"]] += count
    said = ", ".join(f"{count} {state}" for state, count in states.items())
    seconds = sum(count * (record.get("seconds") or 0.0) for count, record in records)
    text = f"{counted(sum(count for count, _ in records), 'trial')}: {said} in {seconds:.3g} s"
    for name, key in (("planned", "planned_bytes"), ("used", "used_bytes")):
        known = [count * record[key] for count, record in records if record.get(key) is not None]
        text += f", {name} {amount(sum(known))}" if known else ""
    return text


class ActorLog:
    """The log of an actor's page. Make it before a worker sends the descriptors of its process to the log of the run."""

    def __init__(self) -> None:
        self._out = os.dup(2)  # whose page is the first one

    def started(self, batches: Sequence[BatchSpec]) -> None:
        """Batches that the actor was given."""
        self._say([started_text(batches)])

    def ended(self, ends: Iterable[LaunchEnded]) -> None:
        """Batches that have ended."""
        self._say([ended_text(end) for end in ends if end.ends or end.rows])

    def _say(self, lines: Sequence[str]) -> None:
        stamp = time.strftime("%H:%M:%S")
        with suppress(OSError):  # a full disk, which the run itself tells of
            os.write(self._out, "".join(f"{stamp} {line}\n" for line in lines).encode())


__all__ = ["ActorLog", "call_name", "ended_text", "started_text"]
