"""Asks for confirmation of a large sweep on a terminal, after a display of its plan."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Literal

from ...compiler.errors import QdrunError
from ...jobs.base import Job
from ..study.plan import Planned, Prepared, plan_all

MANY = 1000
"""Trials that are run without being asked about."""


class NotWanted(QdrunError):
    """The user has seen the plan and said no; nothing was started."""

    exit_code = 1


def on_terminal() -> bool:
    """Whether a user can answer a question: stdin and stderr are terminals."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def asked(prepared: Prepared, job: type[Job[Any]], *, local: bool = True) -> Sequence[Planned]:
    """The plan of a sweep of more than ``MANY`` trials, once the user has seen it and wants it; else nothing, and nothing is planned.

    Args:
        prepared: the config.
        job: its job.
        local: it runs on this machine, where its placement can be foreseen.

    Raises:
        NotWanted: the user does not.
    """
    count = len(prepared.trials)
    if count <= MANY or not on_terminal():
        return ()
    from ..observe import show
    from ..study.placement import curves, park_of, plans_beside, predict

    planned = plan_all(prepared, job, prepared.loaded.config.limits.timeout_s)
    groups = [group for group, *_ in planned]
    park = park_of(prepared, groups, None) if local else None
    placed, points = None, curves(prepared, job, groups, None)
    if park is not None:
        placed = predict(prepared, groups, park, points, beside=plans_beside(prepared, job))
    print(show.plan_text(prepared, groups, placed), file=sys.stderr)
    print(f"\nrun {count} trials of {prepared.target.text}? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise NotWanted("nothing was started\n  do: `qdrun submit --yes` does not ask")
    return planned


def which_code(changes: Sequence[str], code: str | None) -> Literal["kept", "new"] | None:
    """The code that a resumed run goes on with, once the user of a terminal was asked, if the job's files have changed.

    Args:
        changes: how they have.
        code: what the command line says.

    Raises:
        NotWanted: the user wants neither.
    """
    if code is not None:
        return "new" if code == "new" else "kept"
    if not changes or not on_terminal():
        return None
    print("the code of the run has changed since it was made", *(f"  {text}" for text in changes), sep="\n", file=sys.stderr)
    print("go on with the kept code, or with the new one? [kept/new/N] ", end="", file=sys.stderr, flush=True)
    said = sys.stdin.readline().strip().lower()
    if said not in ("kept", "new"):
        raise NotWanted("nothing was started\n  do: `qdrun resume --code kept` or `--code new` does not ask")
    return "new" if said == "new" else "kept"


__all__ = ["MANY", "NotWanted", "asked", "on_terminal", "which_code"]
