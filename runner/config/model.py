"""The config of a run as frozen models, and its loading: a YAML file in, a validated ``RunConfig`` or an error out."""

from __future__ import annotations

import re
import types
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, Field, GetJsonSchemaHandler, ValidationError, field_validator, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails

from ...jobs.core.debug import Debug
from .axes import AXIS_FORMS, Axis, Section, SweepSection
from .callbacks_section import CallbacksSection
from .export_section import ExportSection
from .optimize_section import OptimizeSection
from .overrides import overridden
from .search_section import SearchSection
from .values import (
    EMULATED,
    INTERPRETER,
    SOFTWARE,
    Batch,
    Budget,
    Bytes,
    DeviceId,
    Name,
    Seconds,
    Share,
    TargetText,
    Uri,
    allowed_count,
    expanded,
    is_whole,
    refuse,
)
from .yaml_lines import ConfigError, ConfigProblem, Document, did_you_mean, dotted, parse_document, read_document

BACKENDS = ("auto", "cpu", "cuda", "amdgpu", "vulkan", "metal", INTERPRETER)
BackendName = Literal["auto", "cpu", "cuda", "amdgpu", "vulkan", "metal", "python"]
ALONE = ("auto", INTERPRETER)
"""Backends that are not one of several."""
OTHER_NAMES = {
    "gpu": "write auto: GPUs come before the CPU",
    **dict.fromkeys(("nvidia", "nvptx", "ptx"), "write cuda"),
    **dict.fromkeys(("amd", "rocm", "hip"), "write amdgpu"),
    **dict.fromkeys(("apple", "mps", "macos"), "write metal"),
    **dict.fromkeys(("x64", "x86", "arm64", "llvm"), "write cpu"),
}
"""Names that other tools give to backends, and what to write here."""
COUNTS = ("gpus", "num_gpus", "devices", "count", "nodes")
"""Keys by which people ask for several devices for one trial: refused by name."""
RETRIES = {"infra": 5, "oom": 2, "crash": 2}
"""Default numbers of retries of a trial, by failure class."""


class JobSection(Section):
    """Which job to run, and the parameters that all trials share.

    Attributes:
        target: ``package.module:Class``, or ``file.py:Class`` relative to the config.
        params: values that differ from the job's defaults. Dotted names set parts of nested ones.
    """

    target: TargetText
    params: dict[str, Any] = Field({})


class DeviceSection(Section):
    """The device of a trial, and its number of CPU threads.

    Attributes:
        backend: one, or several in the order of preference: the first that has a device; ``auto``: GPUs before the CPU; ``python``: the
            reference interpreter, on the CPU: slow, and checks every index.
        together: the trials run on the devices of all backends of a list at once, one by one; else on those of the first.
        id: the one device that all trials run on; None: any that is free.
        threads: CPU threads of a trial.
        min_memory: leave devices with less memory for trials alone.
        slots: lanes of a device: programs that run on it at once; None: as many as the runner thinks best.
    """

    backend: BackendName | list[BackendName] = "cpu"
    together: bool = False
    id: DeviceId = None
    threads: int = Field(default=1, ge=1, le=1024)
    min_memory: Bytes | None = None
    slots: int | None = Field(default=None, ge=1, le=1024)

    @model_validator(mode="before")
    @classmethod
    def _one_device_a_trial(cls, value: Any) -> Any:
        asked = value if isinstance(value, dict) else {}
        name = next((name for name in COUNTS if name in asked), "id" if isinstance(asked.get("id"), list) else None)
        if name is not None:
            hint = f"leave `{name}` out: each GPU runs trials of its own. One that does not fit: memory_budget: auto, or min_memory"
            raise refuse(f"`{name}: {asked[name]}` asks for several devices, and a trial runs on one", hint=hint)
        return value

    @field_validator("backend", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        for word in value if isinstance(value, list) else [value]:
            if not isinstance(word, str) or word not in BACKENDS:
                hint = (
                    OTHER_NAMES.get(str(word).lower())
                    or did_you_mean(str(word), BACKENDS)
                    or "write one of them, or a list of several"
                )
                raise refuse(f"`{word}` is not allowed here", allowed=BACKENDS, hint=hint)
        if isinstance(value, list):
            if not value:
                raise refuse("the list of backends is empty", allowed=BACKENDS, hint="name at least one")
            twice = next((word for word in value if value.count(word) > 1), None)
            whole = next((word for word in value if word in ALONE), None)
            if twice or (whole and len(value) > 1):
                reason = {
                    "auto": "is all of them already",
                    INTERPRETER: "interprets kernels for debugging and is never a second choice",
                }
                what = f"`{twice}` stands twice" if twice else f"`{whole}` {reason[str(whole)]}"
                raise refuse(what, allowed=BACKENDS[1:-1], hint="name each backend once")
        return value

    @model_validator(mode="after")
    def _an_id_is_of_one_backend(self) -> DeviceSection:
        if self.id is not None and isinstance(self.backend, list):
            raise refuse("`id` names a device of one backend", allowed=BACKENDS, hint="write backend: and one word")
        return self

    @model_validator(mode="after")
    def _together_are_several(self) -> DeviceSection:
        if self.together and len(self.backends) < 2:
            what = "`together` takes a list of several backends"
            raise refuse(what, allowed=BACKENDS[1:-1], hint="write backend: [cuda, cpu], or leave `together` out")
        return self

    @property
    def backends(self) -> tuple[str, ...]:
        """The words of ``backend``, the most wanted first."""
        return tuple(self.backend) if isinstance(self.backend, list) else (self.backend,)


class RetriesSection(Section):
    """Numbers of retries of a trial, by failure class.

    Attributes:
        infra: how often a trial begins again after a machine or device was lost.
        oom: how often after memory ran out.
        crash: how often after the trial's own process crashed.
    """

    infra: int = Field(RETRIES["infra"], ge=0, le=100)
    oom: int = Field(RETRIES["oom"], ge=0, le=100)
    crash: int = Field(RETRIES["crash"], ge=0, le=100)

    @model_validator(mode="before")
    @classmethod
    def _one_number_for_all(cls, value: Any) -> Any:
        if is_whole(value):
            return dict.fromkeys(RETRIES, value)
        if not isinstance(value, dict):
            hint = "write 3, or {infra: 5, oom: 2, crash: 2}"
            raise refuse(f"`{value}` is neither a whole number nor a map", allowed=("a count", *RETRIES), hint=hint)
        return value

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"type": "integer", "minimum": 0}, handler(core)]}


class LimitsSection(Section):
    """Limits of a trial, numbers of retries, and the number of failures that ends the run.

    Attributes:
        trial_timeout: seconds, or ``10m``, after which a trial is stopped.
        trial_timeout_s: the same in seconds; the older name.
        retries: by class of failure; one number for all of them.
        memory: bytes that one trial may plan and use. Its process on the host may hold 512 MiB and 16 MiB a core more.
        max_concurrent: trials at once.
        device_wait: how long a run waits for the first device of a cluster that has none yet; None: not at all.
        max_failed: a count, or ``10%`` of the trials: when more have failed, no more are started.
    """

    trial_timeout: Seconds | None = None
    trial_timeout_s: float | None = Field(default=None, gt=0)
    retries: RetriesSection = RetriesSection.model_validate({})
    memory: Bytes | None = None
    max_concurrent: int | None = Field(default=None, ge=1)
    device_wait: Seconds | None = None
    max_failed: Share | None = None

    @model_validator(mode="after")
    def _one_timeout(self) -> LimitsSection:
        if self.trial_timeout is not None and self.trial_timeout_s is not None:
            what = "`trial_timeout` and `trial_timeout_s` say the same"
            raise refuse(what, allowed=("trial_timeout",), hint="remove trial_timeout_s")
        return self

    @property
    def timeout_s(self) -> float | None:
        """Seconds that a trial may take; None: any."""
        return self.trial_timeout if self.trial_timeout is not None else self.trial_timeout_s

    def failures_allowed(self, trials: int) -> int | None:
        """The number of failures, out of ``count`` trials, that ends the run; None: no limit."""
        return allowed_count(self.max_failed, trials)


class DebugSection(Debug):
    """The run-time checks of a trial's kernels: ``true``, or a map of the checks. Trials take several times as long.

    Attributes:
        bounds: every index.
        asserts: each assert in a kernel, and inputs that change between a launch and its gradient; implies bounds.
        nan: the operation that computes the first NaN or infinity.
        overflow: integers that do not fit their type.
    """

    @model_validator(mode="before")
    @classmethod
    def _true_is_the_usual_ones(cls, value: Any) -> Any:
        if value is True:
            return {}
        if not isinstance(value, dict):
            checks = tuple(cls.model_fields)
            raise refuse(f"`{value}` is neither true nor false nor a map of checks", allowed=("true", "false", *checks))
        return value

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"type": "boolean"}, handler(core)]}


class RunConfig(Section):
    """A whole config.

    Attributes:
        version: the version of the format.
        name: the name of the run: letters, digits, ``-``, ``_`` and ``.``.
        job: which job to run.
        gradients: the parameters whose gradients are columns of the results; null: all that the job can give.
        device: where a trial runs.
        sweep: which trials there are; without it, one.
        optimize: each trial descends, instead of running once.
        export: the programs that get what trials log.
        callbacks: what is called with the row of each trial, and at the end of the run.
        search: rounds of trials that ``qdrun search`` chooses; ``qdrun submit`` ignores it.
        debug: kernels look for mistakes while they run: ``true``, or a map of the checks.
        batch: how many trials that differ in inputs alone run at once in one program: ``auto``, as many as keep the devices busy and
            fit; a number, at most so many; ``off``, each in a program of its own.
        memory_budget: bytes that one trial is planned into; checkpoints make it fit. ``auto``: the runner chooses them for each trial.
        limits: when a trial is ended or tried again.
        storage: where the run's folder is made, a folder or an fsspec URI.
        output: the older name of ``storage``.
    """

    version: Literal[1]
    name: Name
    job: JobSection
    gradients: list[str] | None = None
    device: DeviceSection = DeviceSection()
    sweep: SweepSection | None = None
    optimize: OptimizeSection | None = None
    export: ExportSection | None = None
    callbacks: CallbacksSection | None = None
    search: SearchSection | None = None
    debug: DebugSection | None = None
    batch: Batch = "auto"
    memory_budget: Budget | None = None
    limits: LimitsSection = LimitsSection()
    storage: Uri | None = None
    output: Uri = "runs"

    @field_validator("debug", mode="before")
    @classmethod
    def _false_is_none(cls, value: Any) -> Any:
        return None if value is False else value

    @model_validator(mode="after")
    def _one_storage(self) -> RunConfig:
        if self.storage is not None and "output" in self.model_fields_set:
            raise refuse("`storage` and `output` say the same", allowed=("storage",), hint="remove output")
        return self

    @property
    def uri(self) -> str:
        """Where the run's folder is made: a local path or an fsspec URI, with ``~`` and variables of the environment replaced.

        Raises:
            NoVariable: one is not set.
        """
        return expanded(self.storage or self.output)

    @property
    def elastic(self) -> bool:
        """Whether the runner chooses the budget of each trial."""
        return self.memory_budget == "auto"

    @property
    def budget_bytes(self) -> int | None:
        """The budget in bytes; None without one, and where the runner chooses it."""
        return None if self.elastic else self.memory_budget


@dataclass(frozen=True)
class Loaded:
    """A validated config, the document it came from, and what ``--set`` changed in it."""

    config: RunConfig
    document: Document
    overrides: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """The folder of the config: where ``file.py:Name`` targets are looked up."""
        return Path(self.document.file).resolve().parent


def load_config(path: Path, overrides: Sequence[str] = (), text: str | None = None) -> Loaded:
    """Read and validate a config file.

    Args:
        path: of the file.
        overrides: texts such as ``limits.memory=1GiB``, set one after the other before the config is validated.
        text: instead of what lies at ``path``, from where relative paths still begin.

    Raises:
        ConfigError: the file cannot be read or something in it, or in an override, is wrong; every problem is named with its line.
    """
    document = read_document(path) if text is None else parse_document(text, str(path))
    if not isinstance(document.data, dict):
        raise document.error(document.problem((), "a config is a map of keys", allowed=tuple(RunConfig.model_fields)))
    document = overridden(document, overrides)
    try:
        config = RunConfig.model_validate(document.data)
    except ValidationError as error:
        raise document.error(*problems_of(document, error, RunConfig)) from error
    return Loaded(config, document, tuple(overrides))


def problems_of(document: Document, error: ValidationError, model: type[BaseModel]) -> list[ConfigProblem]:
    """The problems of a pydantic error, each with its line."""
    problems: dict[str, ConfigProblem] = {}
    for item in error.errors(include_url=False):
        path = item["loc"]
        if item["type"] not in ("missing", "extra_forbidden"):
            path = next((path[:n] for n in range(len(path), 0, -1) if path[:n] in document.marks), path)
        what, allowed, hint = explain(item, model)
        problems.setdefault(dotted(path), document.problem(path, what, allowed=allowed, hint=hint))
    return list(problems.values())


_EXAMPLES: dict[tuple[int | str, ...], str] = {
    ("version",): "version: 1",
    ("name",): "name: my-sweep",
    ("job",): "job: {target: my_job.py:MyJob}",
    ("job", "target"): "target: my_job.py:MyJob",
}


def explain(item: ErrorDetails, model: type[BaseModel]) -> tuple[str, tuple[str, ...], str]:
    """What is wrong, the allowed values, and what to do, for one error of a pydantic model."""
    kind, context, location = item["type"], item.get("ctx", {}), item["loc"]
    if kind == "extra_forbidden":
        allowed = tuple(_keys_at(model, location[:-1]))
        return "unknown key", allowed, did_you_mean(str(location[-1]), allowed) or "remove it, or use an allowed key"
    if kind == "missing":
        return "this key is missing", (), f"add `{_EXAMPLES.get(location, location[-1])}`"
    if kind == "refused":
        return context["what"], tuple(context["allowed"]), context["hint"]
    if kind == "literal_error":
        words = tuple(re.findall(r"'([^']*)'", context["expected"])) or (context["expected"],)
        if isinstance(item["input"], str) and item["input"] in context["expected"].split(" or ")[-1].split(", "):
            return f"the text `{item['input']!r}` is not allowed here, but the number is", words, "leave out the quotes"
        return f"`{item['input']}` is not allowed here", words, did_you_mean(str(item["input"]), words)
    if kind in ("model_type", "dict_type"):
        return f"a map of keys is needed, got {item['input']!r:.60}", (), ""
    if kind == "too_short" and not item["input"]:
        return "the list is empty", (), "write at least one, or leave the key out"
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


__all__ = [
    "AXIS_FORMS",
    "BACKENDS",
    "EMULATED",
    "INTERPRETER",
    "RETRIES",
    "SOFTWARE",
    "Axis",
    "ConfigError",
    "DeviceSection",
    "LimitsSection",
    "Loaded",
    "OptimizeSection",
    "RetriesSection",
    "RunConfig",
    "SweepSection",
    "load_config",
    "problems_of",
]
