"""The sweep section of a config: the forms in which the values of a parameter are given, and how axes make trials."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from .values import Number, is_whole, refuse

MOST = 10_000_000


class Section(BaseModel):
    """A map of a config: frozen, unknown keys refused, no words taken for numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


@dataclass(frozen=True)
class Form:
    """One form of an axis: the meaning of its list, an example, and whether it draws at random."""

    parts: str
    example: str
    draws: bool = False


FORMS = {
    "grid": Form("[value, value, ..]", "[1, 2, 3]"),
    "list": Form("[value, value, ..]", "[1, 2, 3]"),
    "range": Form("[first, end, step], without the end", "[0, 10, 2]"),
    "linspace": Form("[first, last, how many]", "[0, 1, 5]"),
    "logspace": Form("[exponent of the first, of the last, how many]", "[2, 4, 6]"),
    "uniform": Form("[low, high]", "[0, 1, 5]", True),
    "loguniform": Form("[low, high]", "[1e-4, 1e-1, 5]", True),
    "normal": Form("[mean, deviation]", "[0, 1, 5]", True),
    "randint": Form("[low, high], without high", "[0, 10, 5]", True),
    "choice": Form("[value, value, ..]", "[a, b, c], samples: 5", True),
    "file": Form("a path of .npy, .npz, .parquet or .csv", "starts.npy"),
}
AXIS_FORMS = tuple(FORMS)
BESIDE = ("samples", "shape", "column")
"""Keys that say more of a form."""
WRITTEN = ("grid", "list", "choice", "file")
"""Forms that are no lists of numbers with a meaning for each."""


def _wrong(form: str, what: str) -> Exception:
    shown = f"{{{form}: {FORMS[form].example}}}"
    return refuse(what, allowed=(f"{form}: {FORMS[form].parts}",), hint=f"write, for example, {shown}")


Extent = Annotated[int, Field(ge=1, le=1 << 24)]


class Axis(Section):
    """The values of one parameter: exactly one of the forms is set. A plain list in YAML is ``grid``.

    Attributes:
        samples: how many values a form draws, unless its list says so with a third number.
        shape: of each value that is drawn: numbers of elements along its axes; one number for a list.
        file: whose values these are, relative to the folder of the config. The first axis of an array counts them.
        column: of a table, or the array of an ``.npz`` file.
    """

    grid: list[Any] | None = Field(None, min_length=1)
    listed: list[Any] | None = Field(None, alias="list", min_length=1)
    range: list[Number] | None = None
    linspace: list[Number] | None = None
    logspace: list[Number] | None = None
    uniform: list[Number] | None = None
    loguniform: list[Number] | None = None
    normal: list[Number] | None = None
    randint: list[Number] | None = None
    choice: list[Any] | None = Field(None, min_length=1)
    file: str | None = None
    samples: int | None = Field(None, ge=1, le=MOST)
    shape: Extent | Annotated[list[Extent], Field(min_length=1)] | None = None
    column: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_short_form(cls, value: Any) -> Any:
        if isinstance(value, list):
            return {"grid": value}
        if not isinstance(value, dict):
            raise refuse(
                "a swept parameter needs a list or one form", allowed=AXIS_FORMS, hint="a fixed value belongs into job.params"
            )
        return value

    @model_validator(mode="after")
    def _one_form_of_the_right_length(self) -> Axis:
        forms = self.model_fields_set.difference(BESIDE)
        if len(forms) != 1:
            found = f", not {len(forms)}: {', '.join(sorted(form.removesuffix('ed') for form in forms))}" if forms else ""
            hint = "write, for example, {linspace: [0, 1, 5]}"
            raise refuse(f"a swept parameter needs exactly one form{found}", allowed=AXIS_FORMS, hint=hint)
        form, values = self.form
        if values is None:
            raise _wrong(form, f"`{form}` is empty")
        for name in ("samples", "shape"):
            if not FORMS[form].draws and getattr(self, name) is not None:
                hint = f"leave `{name}` out, or use a form that draws"
                raise refuse(f"`{form}` draws nothing", allowed=[name for name in FORMS if FORMS[name].draws], hint=hint)
        if form != "file" and self.column is not None:
            raise refuse(f"`column` belongs to `file`, not to `{form}`", hint="leave `column` out")
        if form not in WRITTEN:
            _check_numbers(form, values, self.samples)
        return self

    @property
    def form(self) -> tuple[str, Any]:
        """The name of the form as YAML spells it, and its list, or the path of its file."""
        name = next(iter(self.model_fields_set.difference(BESIDE)))
        return ("list" if name == "listed" else name), getattr(self, name)

    @property
    def draws(self) -> bool:
        """Whether the values are drawn at random."""
        return FORMS[self.form[0]].draws

    @property
    def count(self) -> int | None:
        """The number of draws; None if it is not given."""
        form, values = self.form
        return values[2] if form != "choice" and self.draws and len(values) == 3 else self.samples

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core)
        whole = handler.resolve_ref_schema(schema)
        whole["minProperties"], whole["maxProperties"] = 1, 3
        whole["oneOf"] = [{"required": [name]} for name in FORMS]
        for name, form in FORMS.items():
            if name == "file":
                whole["properties"][name] = {"type": "string", "description": f"{form.parts}: for example {form.example}"}
                continue
            whole["properties"][name] = {
                "type": "array",
                "minItems": 1,
                "description": f"{form.parts}: for example {form.example}",
                **({} if name in WRITTEN else _numbers(3 if name in ("linspace", "logspace") else 2)),
            }
        return {"anyOf": [{"type": "array", "minItems": 1, "description": "the values"}, schema]}


def _numbers(least: int) -> JsonSchemaValue:
    """The schema of a form of numbers; the loader says more."""
    return {"items": {"type": "number"}, "minItems": least, "maxItems": 3}


def _check_numbers(form: str, values: list[Any], samples: int | None) -> None:
    """The numbers of a form that is not simply a list of values.

    Raises:
        PydanticCustomError: too few or too many of them, or they contradict each other.
    """
    parts = FORMS[form].parts
    if form in ("linspace", "logspace"):
        if len(values) != 3:
            raise _wrong(form, f"`{form}` is {parts}")
        _check_count(form, values[2])
    elif form == "range":
        if len(values) not in (2, 3) or (len(values) == 3 and values[2] == 0):
            raise _wrong(form, f"`range` is {parts}; a step of 1 may be left out, and 0 is none")
        step = values[2] if len(values) == 3 else 1
        if (values[1] - values[0]) * step <= 0:
            raise _wrong(form, "`range` has no values: the step leads away from the end")
    else:
        if len(values) not in (2, 3):
            raise _wrong(form, f"`{form}` is {parts}, with how many as a third number or as `samples`")
        if len(values) == 3:
            _check_count(form, values[2])
            if samples is not None:
                raise _wrong(form, f"`{form}` says twice how many values to draw: {values[2]} and samples: {samples}")
        _check_draw(form, values[0], values[1])


def _check_count(form: str, count: Any) -> None:
    if not is_whole(count) or not 1 <= count <= MOST:
        raise _wrong(form, f"`{form}` is {FORMS[form].parts}, how many being a whole number from 1 to {MOST}")


def _check_draw(form: str, first: float, second: float) -> None:
    if form != "normal" and first >= second:
        raise _wrong(form, f"`{form}` needs low < high")
    if form == "normal" and second <= 0:
        raise _wrong(form, "`normal` needs a deviation above 0")
    if form == "loguniform" and first <= 0:
        raise _wrong(form, "`loguniform` needs 0 < low")
    if form == "randint" and not (is_whole(first) and is_whole(second) and max(abs(first), abs(second)) < 2**63):
        raise _wrong(form, "`randint` needs whole numbers below 2**63")


class PointTable(Section):
    """A table whose rows are the points of a sweep.

    Attributes:
        file: ``.parquet`` or ``.csv``, relative to the folder of the config.
        columns: the columns to read, by the parameters that they are; None: each column is the parameter of its name.
    """

    file: str
    columns: dict[str, str] | None = Field(None, min_length=1)


class SweepSection(Section):
    """Which trials to run: the product of the axes (grid), all together (zip), random draws (random), or written out (list).

    Attributes:
        method: how the trials are made from the axes: ``grid`` takes every combination, ``zip`` the first values of all axes, then the
            second ones, ``random`` draws, ``list`` takes ``trials`` as they are.
        seed: the seed of all draws, and of the trials' own seeds.
        params: parameter, dotted for nested ones and with an index for one item of a list, to its values.
        zip: with ``grid``: groups of parameters that go together and count as one axis.
        trials: with the method ``list``: the values of each trial.
        table: with the method ``list``: a table that has them.
        exclude: points to leave out: a trial is left out when all values of one of the maps are its own.
        samples: how many values each axis draws that does not say; of ``random``, how many trials.
        repeat: each point this many times.
    """

    method: Literal["grid", "zip", "random", "list"] = "grid"
    seed: int = Field(0, ge=0)
    params: dict[str, Axis] = Field({})
    zip: list[Annotated[list[str], Field(min_length=2)]] = []
    trials: list[dict[str, Any]] | None = Field(None, min_length=1)
    table: PointTable | None = None
    exclude: list[Annotated[dict[str, Any], Field(min_length=1)]] = []
    samples: int | None = Field(None, ge=1, le=MOST)
    repeat: int = Field(1, ge=1, le=MOST)

    @property
    def files(self) -> list[str]:
        """The files that points come from, as the config names them."""
        return [*(axis.file for axis in self.params.values() if axis.file), *([self.table.file] if self.table else [])]


__all__ = ["AXIS_FORMS", "FORMS", "MOST", "Axis", "Form", "PointTable", "Section", "SweepSection"]
