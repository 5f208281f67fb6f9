"""Which mistakes the kernels of a job look for while they run."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Debug(BaseModel):
    """The checks of debug mode. Each costs time: kernels run several times slower; sums may differ in their last digits.

    Attributes:
        bounds: every index (``qd.init(check_out_of_bound=True)``).
        asserts: each ``assert`` in a kernel, and inputs that change between a launch and its gradient (``debug=True``); implies ``bounds``.
        nan: the operation that makes the first NaN or infinity (``nan_check=True``).
        overflow: integers that do not fit their type (``overflow_check=True``).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    bounds: bool = Field(default=True, description="every index")
    asserts: bool = Field(
        default=True, description="each assert in a kernel, and inputs that change before their gradient; implies bounds"
    )
    nan: bool = Field(default=True, description="the operation that makes the first NaN or infinity")
    overflow: bool = Field(default=False, description="integers that do not fit their type")

    def options(self) -> dict[str, bool]:
        """The options of ``qd.init`` that switch these checks on."""
        chosen = {
            "check_out_of_bound": self.bounds,
            "debug": self.asserts,
            "nan_check": self.nan,
            "overflow_check": self.overflow,
        }
        return {name: True for name, on in chosen.items() if on}

    def __str__(self) -> str:
        """The checks by name, as rows have them."""
        return ", ".join(name for name, on in self if on)

    @staticmethod
    def of(value: Any) -> Debug | None:
        """The checks that a value means: True the usual ones, False or None none, a map as in a config, or a ``Debug``.

        Raises:
            pydantic.ValidationError: a map has another key, or another value than true and false.
        """
        if value is None or value is False:
            return None
        if value is True:
            return Debug.model_validate({})
        return value if isinstance(value, Debug) else Debug.model_validate(value)


BOUNDS = Debug(bounds=True, asserts=False, nan=False, overflow=False)
"""Indices alone: for `qdrun check`, and for a trial that is run again to find why its process died."""

__all__ = ["BOUNDS", "Debug"]
