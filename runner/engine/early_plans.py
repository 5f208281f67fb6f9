"""Plans that begin before Ray: a job that can be built for no trial is refused at once, before anything is started."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from ...compiler.errors import QdrunError
from ...jobs.base import Job
from ..study.plan import TOO_SLOW, Planned, PlannedGroup, Prepared, plan_each
from ..study.target import notes_of
from ..study.trials import counted

WAIT_S = 2.0
"""Ray is not started for so long while no shape has its plan: most jobs that cannot be built say so much earlier."""
SHOWN = 3


class CannotPlan(QdrunError, ValueError):
    """The job cannot be built for any trial; no trial was started."""


class EarlyPlans:
    """The plans of a sweep, made in a thread.

    Args:
        prepared: the config.
        job: its class.
        first: only until one shape has its plan.
    """

    def __init__(self, prepared: Prepared, job: type[Job[Any]], *, first: bool = False) -> None:
        self._prepared, self._job, self._first = prepared, job, first
        self._plans: list[Planned] = []
        self._error: BaseException | None = None
        self._known, self._over = threading.Event(), threading.Event()
        threading.Thread(target=self._run, name="plans", daemon=True).start()

    def _run(self) -> None:
        try:
            for planned in plan_each(self._prepared, self._job, self._prepared.loaded.config.limits.timeout_s):
                self._plans.append(planned)
                if planned[0].plan is not None:
                    self._known.set()
                    if self._first:
                        break
        except BaseException as error:  # raised again where the plans are asked for
            self._error = error
        finally:
            self._over.set()
            self._known.set()

    def wait(self, *, local: bool = True) -> None:
        """Return once one shape has its plan, or after ``WAIT_S`` seconds.

        Raises:
            CannotPlan: see ``refuse``.
        """
        self._known.wait(WAIT_S)
        if self._over.is_set():
            refuse(self.all(), notes_of(self._prepared.target), local=local)

    def all(self) -> Sequence[Planned]:
        """All plans, once they are made. Raises what planning raised."""
        self._over.wait()
        if self._error is not None:
            raise self._error
        return self._plans


def refuse(planned: Sequence[Planned], notes: Sequence[str] = (), *, local: bool = True) -> None:
    """Refuse a sweep of which no shape could be planned.

    Args:
        planned: all shapes.
        notes: about the code of the job: that another module hides one of its files explains most of these errors.
        local: the trials run on this machine. Elsewhere, files, packages and memory may be there that are not here: only errors of the
            job's own code count.

    Raises:
        CannotPlan: names the user's lines. A shape that took too long does not count: its trials have their own time limit.
    """
    groups = [group for group, *_ in planned]
    if not groups or any(group.plan is not None or group.error.startswith(TOO_SLOW) for group in groups):
        return
    if not local and any(group.error.startswith(OF_THIS_MACHINE) for group in groups):
        return
    said = "\n".join([failures_text(groups), *notes])
    advice = "" if "\n  do: " in said else "\n  do: correct the job; `qdrun plan` builds it without running anything"
    raise CannotPlan(f"the job can be built for no trial, and nothing was started\n{said}{advice}")


OF_THIS_MACHINE = (
    *("ImportError: ", "ModuleNotFoundError: ", "OSError: ", "FileNotFoundError: ", "InputMissing: ", "NotADirectoryError: "),
    *("IsADirectoryError: ", "PermissionError: ", "ConnectionError: ", "MemoryError: ", "OutOfMemory: ", "DeviceError: "),
)
"""Prefixes of errors that may come from the planning machine instead of the job."""


def failures_text(groups: Sequence[PlannedGroup]) -> str:
    """The shapes that could not be planned, equal errors together, each with how many trials it concerns."""
    by_error: dict[str, list[PlannedGroup]] = {}
    for group in groups:
        if group.plan is None:
            by_error.setdefault(group.error, []).append(group)
    parts = []
    for error, own in list(by_error.items())[:SHOWN]:
        parts.append(f"{own[0].example}{_and_others(sum(len(group.places) for group in own) - 1)}: {error}")
    if len(by_error) > SHOWN:
        parts.append(f"... and {counted(len(by_error) - SHOWN, 'other error')}")
    return "\n".join(parts)


def _and_others(count: int) -> str:
    return f" and {counted(count, 'trial')} like it" if count else ""


__all__ = ["CannotPlan", "EarlyPlans", "failures_text", "refuse"]
