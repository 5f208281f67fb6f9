"""Points of many descents are checked at once where a schema declares limits alone, and as validation does."""

from typing import Annotated, Any

import numpy as np
import pytest
from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    ValidationError,
    computed_field,
    field_serializer,
    field_validator,
    model_serializer,
    model_validator,
)

from qdrun.jobs.base import JobParams
from qdrun.jobs.core import paths
from qdrun.runner.config.limits import limits_of


class Material(BaseModel):
    stiffness: float = Field(10.0, gt=0, le=40)
    layers: list[Annotated[float, Field(ge=0.1)]] = [1.0, 2.0, 3.0]


class Plain(JobParams):
    k: float = Field(1.0, ge=0, lt=2)
    w: tuple[float, ...] = Field((0.1, 0.2), min_length=2, max_length=2)
    finite: float = Field(0.5, allow_inf_nan=False)
    perhaps: float | None = Field(0.5, lt=1)
    grid: tuple[tuple[float, ...], ...] = ((1.0, 2.0), (3.0, 4.0))
    material: Material = Field(default_factory=Material)
    parts: tuple[Material, ...] = (Material.model_validate({}),) * 2
    names: dict[str, int] = Field(default_factory=dict)

    _private: int = 3


NAMES = ["k", "w", "finite", "perhaps", "grid", "material.stiffness", "material.layers", "parts.1.stiffness"]


def validates(model, values):
    try:
        model.model_validate(values)
    except ValidationError:
        return False
    return True


def test_rows_within_the_limits_are_those_that_validate():
    rng, start = np.random.default_rng(), paths.plain_params(Plain())
    real = {}
    for name in NAMES:
        at = np.asarray(paths.get(start, name))
        real[name] = at + rng.normal(scale=0.3, size=(400, *at.shape)) * (rng.random((400, *[1] * at.ndim)) < 0.3)
    real["k"][:3] = 0.0, 2.0, np.nextafter(2.0, 0.0)
    real["material.stiffness"][3:6] = 0.0, 40.0, np.nan
    limits = limits_of(Plain, NAMES)
    allowed = limits.certainly_allow(real)
    expected = []
    for row in range(400):
        values: Any = start
        for name in NAMES:
            values = paths.replaced(values, name, real[name][row].tolist())
        expected.append(validates(Plain, values))
    assert allowed.tolist() == expected and 0 < sum(expected) < 400
    assert paths.plain_params(Plain()) == start


def test_numbers_that_are_not_finite_are_left_to_validation():
    rows = np.array([[1.0, np.nan], [np.inf, 1.0], [1.0, 2.0]])
    assert limits_of(Plain, ["w"]).certainly_allow({"w": rows}).tolist() == [False, False, True]


def of_three(x):
    return x


class WithModelValidator(Plain):
    @model_validator(mode="after")
    def check(self):
        return self


class WithFieldValidator(Plain):
    @field_validator("names")
    @classmethod
    def check(cls, value):
        return value


class WithPostInit(Plain):
    def model_post_init(self, context):
        if self.k > 1.5:
            raise ValueError("too stiff")


class WithAnnotation(Plain):
    extra: Annotated[float, AfterValidator(of_three)] = 1.0


class Inner(BaseModel):
    x: float = 1.0

    def model_post_init(self, context):
        raise AssertionError


class WithInnerPostInit(Plain):
    inner: Inner | None = None


class WithModelSerializer(Plain):
    @model_serializer(mode="wrap")
    def shown(self, handler):
        return handler(self)


class WithFieldSerializer(Plain):
    @field_serializer("names")
    def shown(self, value):
        return value


class WithComputedField(Plain):
    @computed_field
    @property
    def twice(self) -> float:
        return 2 * self.k


class WithDefaultOfOthers(Plain):
    half: float = Field(default_factory=lambda data: 0.5 * data["k"])


class WithDefaultOfItsOwn(Plain):
    number: float = Field(default_factory=lambda: 1.0)


class WithMultiple(Plain):
    k: float = Field(1.0, multiple_of=0.5)


class WithInit(Plain):
    def __init__(self, **values):
        super().__init__(**values)


@pytest.mark.parametrize(
    "model",
    [
        WithModelSerializer,
        WithFieldSerializer,
        WithComputedField,
        WithDefaultOfOthers,
        WithDefaultOfItsOwn,
        WithModelValidator,
        WithFieldValidator,
        WithPostInit,
        WithAnnotation,
        WithInnerPostInit,
        WithMultiple,
        WithInit,
    ],
)
def test_code_of_a_job_decides_for_each_point_alone(model):
    assert limits_of(model, ["k"]) is None


@pytest.mark.parametrize("name", ["names", "names.a", "nowhere", "material"])
def test_what_is_no_number_has_no_limits(name):
    assert limits_of(Plain, [name]) is None
