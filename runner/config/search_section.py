"""The ``search`` section of a config: rounds of trials, each chosen from the results of those before."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from .axes import MOST, Section
from .values import refuse

Method = Literal["descents", "tpe", "cmaes", "random"]


class SearchSection(Section):
    """How ``qdrun search`` spends a number of evaluations of the loss, with or without its gradient.

    Attributes:
        method: ``descents``: descents of ``optimize`` from many starts, of which those go on that still fall; ``tpe``, ``cmaes`` and
            ``random``: samplers of Optuna, which see losses alone.
        evaluations: how many all trials may make together. A step of a descent is one.
        trials: how many a round has; with ``descents``, how many fresh starts.
        steps: with ``descents``: how many each one makes in its first round. With fewer descents in a round they get more steps.
        keep: with ``descents``: the share that goes on to the next round.
        seed: the seed of the sampler, and of the starts.
    """

    method: Method = "descents"
    evaluations: int = Field(ge=1)
    trials: int = Field(32, ge=1, le=MOST)
    steps: int = Field(25, ge=1)
    keep: float = Field(0.5, gt=0.0, lt=1.0)
    seed: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _own_options(self) -> SearchSection:
        for name in ("steps", "keep"):
            if self.method != "descents" and name in self.model_fields_set:
                raise refuse(f"`{name}` belongs to method `descents`, not to `{self.method}`", hint=f"leave {name} out")
        return self


__all__ = ["Method", "SearchSection"]
