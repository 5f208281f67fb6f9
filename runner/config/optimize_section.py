"""The ``optimize`` section of a config: parameters, update rule, step sizes and stop conditions."""

from __future__ import annotations

import inspect
import math
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler, WithJsonSchema, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from ..optimize.update_rules import RULES, SCHEDULES, SEARCHES, options_of
from .axes import Section
from .values import Number, is_number, refuse
from .yaml_lines import did_you_mean

RuleName = Literal["sgd", "momentum", "nesterov", "adam", "adamw", "rmsprop", "adagrad", "lion", "lbfgs", "levenberg_marquardt"]
assert {*RULES, *SEARCHES} == set(get_args(RuleName))
RANGES = {
    **dict.fromkeys(("eps", "weight_decay", "damping"), "0 or more"),
    "history": "a whole number from 1 to 100",
    "first": "above 0",
}
"""The values that options of rules may have, in words; of all others: from 0 to below 1."""
POSITIVE = ("start", "peak", "factor", "every", "steps", "warmup_steps")


def _numbers_of(schedule: str) -> dict[str, bool]:
    """The numbers of a schedule, and whether each is needed."""
    parameters = inspect.signature(SCHEDULES[schedule]).parameters.values()
    named = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    return {p.name: p.default is p.empty and p.name != "steps" for p in named}


def _parse_rate(value: Any) -> Any:
    if is_number(value) and value > 0:
        return float(value)
    if not isinstance(value, dict) or len(value) != 1 or next(iter(value)) not in SCHEDULES:
        allowed = ("a number above 0", *(f"{{{name}: {{{', '.join(_numbers_of(name))}}}}}" for name in SCHEDULES))
        word = next(iter(value), "") if isinstance(value, dict) else ""
        hint = did_you_mean(str(word), SCHEDULES) or "write, for example, {exponential: {start: 0.1, factor: 0.99}}"
        raise refuse(f"`{value}` is not a learning rate", allowed=allowed, hint=hint)
    ((name, numbers),) = value.items()
    _check_schedule(name, numbers)
    return {name: {key: float(number) for key, number in numbers.items()}}


def _check_schedule(name: str, numbers: Any) -> None:
    known = _numbers_of(name)
    if not isinstance(numbers, dict):
        raise refuse(f"`{name}` needs a map of numbers", allowed=tuple(known), hint=f"write {{{name}: {{start: 0.1, ..}}}}")
    for key, number in numbers.items():
        if key not in known:
            hint = did_you_mean(key, known) or "remove it, or use an allowed key"
            raise refuse(f"`{name}` has no `{key}`", allowed=tuple(known), hint=hint)
        if not is_number(number) or number < 0 or (number == 0 and key in POSITIVE and (name, key) != ("warmup", "start")):
            raise refuse(f"`{key}` of `{name}` is `{number}`", allowed=("a number above 0",), hint="write such a number")
    missing = [key for key, needed in known.items() if needed and key not in numbers]
    if missing:
        raise refuse(f"`{name}` needs `{missing[0]}`", allowed=tuple(known), hint=f"add {missing[0]}: and a number")


def _parse_bounds(value: Any) -> Any:
    fine = isinstance(value, list) and len(value) == 2 and all(part is None or is_number(part) for part in value)
    low, high = value if fine else (None, None)
    if not fine or (low is not None and high is not None and low > high):
        raise refuse(
            f"`{value}` are not bounds",
            allowed=("[low, high]", "[low, null]", "[null, high]"),
            hint="write two numbers, low <= high, null for none",
        )
    return [-math.inf if low is None else float(low), math.inf if high is None else float(high)]


_OPEN = {"anyOf": [{"type": "number"}, {"type": "null"}]}
Rate = Annotated[
    Any,
    BeforeValidator(_parse_rate),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0},
                *(
                    {
                        "type": "object",
                        "required": [name],
                        "additionalProperties": False,
                        "properties": {
                            name: {
                                "type": "object",
                                "description": inspect.getdoc(SCHEDULES[name]),
                                "additionalProperties": False,
                                "properties": {key: {"type": "number", "minimum": 0} for key in _numbers_of(name)},
                                "required": [key for key, needed in _numbers_of(name).items() if needed],
                            }
                        },
                    }
                    for name in SCHEDULES
                ),
            ]
        }
    ),
]
Bounds = Annotated[
    Any, BeforeValidator(_parse_bounds), WithJsonSchema({"type": "array", "items": _OPEN, "minItems": 2, "maxItems": 2})
]


def _in_range(name: str, value: float) -> bool:
    """Whether an option of a rule may have a value, see ``RANGES``."""
    if name == "history":
        return value == int(value) and 1 <= value <= 100
    return value > 0 if name == "first" else value >= 0 and (name in RANGES or value < 1)


class TrialsSection(Section):
    """At which steps a descent is compared with those of the other trials, and which go on. As text: ``rule``.

    Attributes:
        rule: ``halving``: the best 1 / factor of all that have come so far, compared at the steps first, first * factor, first * factor^2,
            ..; ``median``: those not above the median, compared every ``first`` steps.
        first: the first step at which they are compared.
        factor: with ``halving``: one of so many descents goes on.
        least: while fewer have come so far, all go on.
    """

    rule: Literal["halving", "median"]
    first: int = Field(10, ge=1)
    factor: float = Field(3.0, gt=1.0, allow_inf_nan=False)
    least: int = Field(4, ge=2)

    @model_validator(mode="before")
    @classmethod
    def _a_rule_alone(cls, value: Any) -> Any:
        return {"rule": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _factor_of_halving(self) -> TrialsSection:
        if "factor" in self.model_fields_set and self.rule != "halving":
            raise refuse(f"`factor` belongs to rule `halving`, not to `{self.rule}`", hint="leave factor out")
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"enum": ["halving", "median"]}, handler(core)]}


class StopSection(Section):
    """When a descent is over before its last step. Without any of them it takes all steps.

    Attributes:
        gradient_norm: the global norm of the gradients is at most this; without what a bound holds back.
        loss: the loss is at most this.
        patience: so many steps have not lowered the best loss by more than ``progress``.
        progress: in the unit of the loss.
        trials: it is behind the descents of other trials of the sweep.
    """

    gradient_norm: float | None = Field(None, ge=0)
    loss: Number | None = None
    patience: int | None = Field(None, ge=1)
    progress: float = Field(0.0, ge=0)
    trials: TrialsSection | None = None

    @model_validator(mode="after")
    def _progress_needs_patience(self) -> StopSection:
        if "progress" in self.model_fields_set and self.patience is None:
            raise refuse("`patience` needs `progress`", allowed=("patience",), hint="add patience: 20")
        return self


class WarmStartSection(Section):
    """Where descents begin: where those of another run have ended. As text: ``run``.

    Attributes:
        run: its folder relative to the config, its URI, or its id among the runs of ``storage``.
        take: ``same``: of each trial the point of the trial with the same parameters, else the best of those that differ in what is
            optimised alone; ``best``: of every trial that with the smallest loss.
    """

    run: str = Field(min_length=1)
    take: Literal["same", "best"] = "same"

    @model_validator(mode="before")
    @classmethod
    def _a_run_alone(cls, value: Any) -> Any:
        return {"run": value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"type": "string", "minLength": 1}, handler(core)]}


class OptimizeSection(Section):
    """Gradient descent from the parameters of each trial: the loss is minimised.

    Attributes:
        rule: how a gradient becomes a step.
        options: options of the rule, see ``qdrun.runner.optimize.update_rules``.
        steps: how many steps a descent makes at most.
        learning_rate: a number, or one of the schedules exponential, cosine, warmup with its numbers. None: the rule needs none.
        params: which parameters; None: all of ``gradients`` that are parameters.
        scale: what counts as 1 of a parameter: it is optimised as x / scale.
        clip: the most that the global norm of the gradients may be.
        bounds: [low, high] of parameters, null for no bound: each step ends between them.
        stop: when to end before the last step.
        keep: the point that the row shows: the one with the smallest loss, or the last.
        warm_start: begin where another run has ended.
    """

    rule: RuleName = "adam"
    options: dict[str, Number] = Field({})
    steps: int = Field(100, ge=1, le=1_000_000)
    learning_rate: Rate = None
    params: list[str] | None = Field(None, min_length=1)
    scale: dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field({})
    clip: float | None = Field(None, gt=0, allow_inf_nan=False)
    bounds: dict[str, Bounds] = Field({})
    stop: StopSection = StopSection.model_validate({})
    keep: Literal["best", "last"] = "best"
    warm_start: WarmStartSection | None = None

    @model_validator(mode="after")
    def _options_of_the_rule(self) -> OptimizeSection:
        known = options_of(self.rule)
        for name, value in self.options.items():
            if name not in known:
                hint = did_you_mean(name, known) or "remove it from `options`"
                raise refuse(f"`{self.rule}` has no option `{name}`", allowed=tuple(known) or ("none",), hint=hint)
            if not _in_range(name, value):
                allowed = (RANGES.get(name, "from 0 to below 1"),)
                raise refuse(f"the option `{name}` is `{value}`", allowed=allowed, hint=f"the default is {known[name]}")
        return self

    @model_validator(mode="after")
    def _what_the_rule_needs(self) -> OptimizeSection:
        if self.rule not in SEARCHES:
            if self.learning_rate is None:
                raise refuse(
                    f"`{self.rule}` needs `learning_rate`", allowed=("a number above 0",), hint="add learning_rate: 0.01"
                )
            return self
        if self.learning_rate is not None:
            hint = "remove learning_rate" + ("; options.first is the length of the first step" if self.rule == "lbfgs" else "")
            raise refuse(f"`{self.rule}` has no learning rate: it finds the length of each step", hint=hint)
        if self.clip is not None:
            raise refuse(f"`{self.rule}` compares gradients, which `clip` would change", hint="remove clip")
        if self.keep == "last":
            what = f"the last point of `{self.rule}` may be a try of a step length"
            raise refuse(what, allowed=("best",), hint="remove keep: last")
        return self


__all__ = ["OptimizeSection", "StopSection", "TrialsSection"]
