"""The ``export`` section of a config: the programs that get what trials log."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from .axes import Section
from .values import refuse
from .yaml_lines import did_you_mean


class TensorBoardExport(Section):
    """Event files for TensorBoard: a folder for each trial.

    Attributes:
        folder: by default ``tensorboard`` in the run's folder.
    """

    folder: str | None = Field(None, min_length=1)


class WandbExport(Section):
    """A run of Weights & Biases for each trial, in one group.

    Attributes:
        project: by default the config's name.
        entity: the user or team; by default wandb's own.
        mode: None: what ``WANDB_MODE`` says, else online.
        folder: where wandb's files go; by default the run's folder.
    """

    project: str | None = Field(None, min_length=1)
    entity: str | None = Field(None, min_length=1)
    mode: Literal["online", "offline"] | None = None
    folder: str | None = Field(None, min_length=1)


class MlflowExport(Section):
    """A run of MLflow for each trial, below one for the sweep.

    Attributes:
        uri: the address of the tracking server or database; by default MLflow's own (``MLFLOW_TRACKING_URI``).
        experiment: by default the config's name.
    """

    uri: str | None = Field(None, min_length=1)
    experiment: str | None = Field(None, min_length=1)


class ExportSection(Section):
    """The trackers of a run: a list of names, or a map from names to their options.

    Attributes:
        tensorboard, wandb, mlflow: their options; None: not exported there.
        trials: the first so many trials that begin are exported.
    """

    tensorboard: TensorBoardExport | None = None
    wandb: WandbExport | None = None
    mlflow: MlflowExport | None = None
    trials: int = Field(1000, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        known = ("tensorboard", "wandb", "mlflow")
        given = [value] if isinstance(value, str) else value
        if isinstance(given, list):
            for word in given:
                if word not in known:
                    hint = did_you_mean(str(word), known) or "write one of them, or a map from names to options"
                    raise refuse(f"`{word}` is no tracker", allowed=known, hint=hint)
            return {word: {} for word in given}
        if not isinstance(given, dict):
            raise refuse(
                f"`{value}` names no trackers", allowed=known, hint="write a list of names, or a map from names to options"
            )
        return {name: {} if options is None else options for name, options in given.items()}

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        names = {"enum": ["tensorboard", "wandb", "mlflow"]}
        return {"anyOf": [names, {"type": "array", "items": names}, handler(core)]}


__all__ = ["ExportSection", "MlflowExport", "TensorBoardExport", "WandbExport"]
