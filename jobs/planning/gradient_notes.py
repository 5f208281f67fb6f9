"""What a plan knows of the gradients of a job: which inputs no gradient can reach, and at which line the path is cut."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict

from ..core.job import Job


class GradientNote(BaseModel):
    """What is known of the gradient of one input before a run.

    Attributes:
        name: of the input.
        connected: a gradient can reach it; False: it is 0 in every trial.
        warning: one line for people; empty: nothing is wrong.
        why: the statement that cuts a path, and what to do; empty: none does.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    connected: bool
    warning: str = ""
    why: str = ""


class Noted(Protocol):
    """A planned group."""

    @property
    def gradients(self) -> tuple[GradientNote, ...]:
        """Of its trials."""
        ...


def notes_of(job: Job[Any]) -> tuple[GradientNote, ...]:
    """The notes of an open job, for each gradient with a path that something cuts."""
    paths = [path for path in job.gradient_paths() if path.cuts or not path.connected]
    return tuple(
        GradientNote(name=path.source, connected=path.connected, warning=str(path) if path.mistake else "", why=path.why)
        for path in paths
    )


def warnings_of(groups: Iterable[Noted]) -> list[str]:
    """The warnings of planned groups, each once."""
    return list(dict.fromkeys(note.warning for group in groups for note in group.gradients if note.warning))


def causes_of(groups: Iterable[Noted]) -> Mapping[str, GradientNote]:
    """The note of each gradient that has one, by name: that of the first group."""
    found: dict[str, GradientNote] = {}
    for group in groups:
        for note in group.gradients:
            found.setdefault(note.name, note)
    return found


__all__ = ["GradientNote", "causes_of", "notes_of", "warnings_of"]
