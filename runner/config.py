"""The config of a run as frozen models, and its loading: a YAML file in, a validated ``RunConfig`` or an error out."""

from __future__ import annotations

import math
import re
import types
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from ..compiler.amounts import bytes_in
from .yaml_lines import ConfigError, Document, KeyPath, Problem, did_you_mean, dotted, read_document

BACKENDS = ("auto", "cpu", "cuda", "amdgpu", "vulkan", "metal")
EMULATED = "emulated"
"""The ``device.id`` of a GPU that this machine's CPU plays: for tests, and to try a config where there is none. Slow."""
AXIS_FORMS = ("grid", "list", "linspace", "logspace", "uniform", "normal")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
DEVICE_ID = re.compile(r"(?:GPU|MIG)-[0-9a-fA-F-]+|(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]|emulated(?::\d)?")
TARGET = re.compile(r"(?:[^:\s]+|[^:\n]+\.py):[A-Za-z_]\w*")


def _refuse(what: str, *, allowed: Sequence[str] = (), hint: str = "") -> PydanticCustomError:
    """An error of a validator that carries the allowed values and what to do."""
    return PydanticCustomError("refused", "{what}", {"what": what, "allowed": list(allowed), "hint": hint})


def _parse_bytes(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    found = bytes_in(value) if isinstance(value, str) else None
    if not found:
        raise _refuse(f"`{value}` is not an amount of memory", allowed=("bytes as a number", "512MiB", "2GiB", "1.5GB"))
    return found


def _parse_number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _refuse(f"`{value}` is not a finite number")
    return value


def _parse_name(value: Any) -> Any:
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise _refuse(
            f"`{value}` cannot be the name of a run",
            hint="use 1 to 64 letters, digits, `-`, `_` and `.`, a letter or digit first",
        )
    return value


def _parse_device(value: Any) -> Any:
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if value is not None and not whole and not (isinstance(value, str) and DEVICE_ID.fullmatch(value)):
        raise _refuse(
            f"`{value}` does not name a device", allowed=("an index, 0 the first", "GPU-<uuid>", "0000:3b:00.0", EMULATED)
        )
    return value


def _parse_target(value: Any) -> Any:
    if not isinstance(value, str) or not TARGET.fullmatch(value):
        raise _refuse(f"`{value}` does not name a job", allowed=("package.module:Name", "path/to/file.py:Name"))
    return value


Bytes = Annotated[int, BeforeValidator(_parse_bytes)]
Number = Annotated[Any, BeforeValidator(_parse_number)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class JobSection(_Section):
    """Which job to run, and the parameters that all trials share."""

    target: Annotated[str, BeforeValidator(_parse_target)]
    params: dict[str, Any] = {}


class DeviceSection(_Section):
    """Where a trial runs, and how many CPU threads it gets. ``id``: the one device that all trials run on; None: any that is free."""

    backend: Literal["auto", "cpu", "cuda", "amdgpu", "vulkan", "metal"] = "cpu"
    id: Annotated[int | str | None, BeforeValidator(_parse_device)] = None
    threads: int = Field(default=1, ge=1, le=1024)


class Axis(_Section):
    """The values of one parameter: exactly one of the forms is set. A plain list in YAML is ``grid``."""

    grid: list[Any] | None = Field(None, min_length=1)
    listed: list[Any] | None = Field(None, alias="list", min_length=1)
    linspace: list[Number] | None = None
    logspace: list[Number] | None = None
    uniform: list[Number] | None = None
    normal: list[Number] | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_short_form(cls, value: Any) -> Any:
        if isinstance(value, list):
            return {"grid": value}
        if not isinstance(value, dict):
            raise _refuse(
                "a swept parameter needs a list or one form", allowed=AXIS_FORMS, hint="a fixed value belongs into job.params"
            )
        return value

    @model_validator(mode="after")
    def _one_form_of_the_right_length(self) -> Axis:
        if len(self.model_fields_set) != 1:
            raise _refuse("a swept parameter needs exactly one form", allowed=AXIS_FORMS)
        form, values = self.form
        if form in ("linspace", "logspace"):
            _check_points(form, values, "[first, last, how many]")
        if form in ("uniform", "normal"):
            parts = "[low, high]" if form == "uniform" else "[mean, deviation]"
            if len(values) == 3:
                _check_points(form, values, parts[:-1] + ", how many]")
            elif len(values) != 2:
                raise _refuse(f"`{form}` is {parts}, with `how many` as a third number in a grid")
            if form == "uniform" and values[0] >= values[1]:
                raise _refuse("`uniform` needs low < high")
            if form == "normal" and values[1] <= 0:
                raise _refuse("`normal` needs a deviation above 0")
        return self

    @property
    def form(self) -> tuple[str, list[Any]]:
        """The name of the form as YAML spells it, and its list."""
        name = next(iter(self.model_fields_set))
        return ("list" if name == "listed" else name), getattr(self, name)


def _check_points(form: str, values: list[Any], parts: str) -> None:
    if len(values) != 3 or not isinstance(values[2], int) or not 1 <= values[2] <= 100_000:
        raise _refuse(f"`{form}` is {parts}, the last a whole number from 1 to 100000")


class SweepSection(_Section):
    """Which trials to run: the product of the axes (grid), all together (zip), random draws (random), or written out (list)."""

    method: Literal["grid", "zip", "random", "list"] = "grid"
    seed: int = Field(0, ge=0)
    params: dict[str, Axis] = {}
    zip: list[Annotated[list[str], Field(min_length=2)]] = []
    trials: list[dict[str, Any]] | None = Field(None, min_length=1)
    samples: int | None = Field(None, ge=1, le=100_000)
    repeat: int = Field(1, ge=1, le=100_000)


class LimitsSection(_Section):
    """What a trial may take, and how often a crashed one is tried again."""

    trial_timeout_s: float | None = Field(default=None, gt=0)
    retries: int = Field(default=1, ge=0, le=10)
    memory: Bytes | None = None
    max_concurrent: int | None = Field(default=None, ge=1)


class RunConfig(_Section):
    """A whole config. ``gradients: null`` asks for all that the job can give; no ``sweep`` is one trial.

    ``memory_budget``: bytes that one trial is planned into; checkpoints make it fit.
    """

    version: Literal[1]
    name: Annotated[str, BeforeValidator(_parse_name)]
    job: JobSection
    gradients: list[str] | None = None
    device: DeviceSection = DeviceSection()
    sweep: SweepSection | None = None
    memory_budget: Bytes | None = None
    limits: LimitsSection = LimitsSection()
    output: str = Field("runs", min_length=1)


@dataclass(frozen=True)
class Loaded:
    """A validated config and the document it came from."""

    config: RunConfig
    document: Document

    @property
    def folder(self) -> Path:
        """The folder of the config: where ``file.py:Name`` targets are looked up."""
        return Path(self.document.file).resolve().parent


def load_config(path: Path) -> Loaded:
    """Read and validate a config file.

    Raises:
        ConfigError: the file cannot be read or something in it is wrong; every problem is named with its line.
    """
    document = read_document(path)
    if not isinstance(document.data, dict):
        raise document.error(document.problem((), "a config is a map of keys", allowed=tuple(RunConfig.model_fields)))
    try:
        config = RunConfig.model_validate(document.data)
    except ValidationError as error:
        raise document.error(*problems_of(document, error, RunConfig)) from error
    return Loaded(config, document)


def problems_of(document: Document, error: ValidationError, model: type[BaseModel], prefix: KeyPath = ()) -> list[Problem]:
    """The problems of a pydantic error, each with its line; ``prefix`` is where ``model`` stands in the document."""
    problems: dict[str, Problem] = {}
    for item in error.errors(include_url=False):
        path = (*prefix, *item["loc"])
        if item["type"] not in ("missing", "extra_forbidden"):
            path = next((path[:n] for n in range(len(path), len(prefix), -1) if path[:n] in document.marks), path)
        what, allowed, hint = explain(item, model)
        problems.setdefault(dotted(path), document.problem(path, what, allowed=allowed, hint=hint))
    return list(problems.values())


def explain(item: ErrorDetails, model: type[BaseModel]) -> tuple[str, tuple[str, ...], str]:
    """What is wrong, the allowed values, and what to do, for one error of a pydantic model."""
    kind, context, location = item["type"], item.get("ctx", {}), item["loc"]
    if kind == "extra_forbidden":
        allowed = tuple(_keys_at(model, location[:-1]))
        return "unknown key", allowed, did_you_mean(str(location[-1]), allowed) or "remove it, or use an allowed key"
    if kind == "missing":
        return "this key is missing", (), f"add `{location[-1]}`"
    if kind == "refused":
        return context["what"], tuple(context["allowed"]), context["hint"]
    if kind == "literal_error":
        words = tuple(re.findall(r"'([^']*)'", context["expected"])) or (context["expected"],)
        return f"`{item['input']}` is not allowed here", words, did_you_mean(str(item["input"]), words)
    message = item["msg"].removeprefix("Value error, ")
    shown = repr(item["input"])
    got = f", got {shown}" if len(shown) <= 60 and not isinstance(item["input"], dict) else ""
    return message[:1].lower() + message[1:] + got, (), ""


def _keys_at(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    here: Any = model
    for part in location:
        if isinstance(here, type) and issubclass(here, BaseModel):
            here = next((f.annotation for n, f in here.model_fields.items() if part in (n, f.alias)), None)
        else:
            here = (get_args(here) or (None,))[-1]
        if get_origin(here) in (Union, types.UnionType):
            here = next((arg for arg in get_args(here) if arg is not type(None)), None)
    if isinstance(here, type) and issubclass(here, BaseModel):
        return [field.alias or name for name, field in here.model_fields.items()]
    return []


__all__ = ["AXIS_FORMS", "BACKENDS", "EMULATED", "Axis", "ConfigError", "Loaded", "RunConfig", "load_config", "problems_of"]
