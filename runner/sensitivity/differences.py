"""Gradients of some trials of a run beside differences of their losses, computed here and now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from ...compiler.errors import QdrunError
from ..engine.resume import config_of
from ..fields import about
from ..store.layout import RunFolder
from ..study.check import check
from ..study.trial_list import Trials
from .points import Samples


@dataclass(frozen=True)
class CheckedTrial:
    """One trial, at its start if it was optimised, with a horizon as short as that of ``qdrun check``."""

    trial: Annotated[str, about("its id")]
    agrees: Annotated[bool, about("whether all gradients agree with their differences")]
    worst: Annotated[float | None, about("largest relative error of those that can be compared; null where there is none")]
    error: Annotated[str, about("why it could not be checked; empty where it was")] = ""


def checked(folder: RunFolder, samples: Samples, count: int) -> list[CheckedTrial]:
    """So many trials, spread evenly over the sweep.

    Raises:
        ConfigChanged: the config or the job has changed since the run.
    """
    prepared, job = config_of(folder, code="kept")
    places = np.unique(np.linspace(0, len(samples.trials) - 1, min(count, len(samples.trials))).round().astype(int))
    out = []
    for name in (samples.trials[k] for k in places):
        one = prepared.model_copy(update={"trials": Trials.of([prepared.trials.named[name]])})
        try:
            found = check(one, job)
        except QdrunError as error:
            out.append(CheckedTrial(name, False, None, str(error).partition("\n")[0]))
            continue
        told = [row.relative_error for row in found.rows if row.tells]
        out.append(CheckedTrial(name, found.agrees, float(max(told)) if told else None))
    return out


__all__ = ["CheckedTrial", "checked"]
