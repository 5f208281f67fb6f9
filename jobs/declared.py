"""What a job declares in ``build``: inputs, the objective, outputs. From these a run, its gradients and its first values follow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel

from .outcome import Gradient, Outcome
from .watched import Reads


class Declared:
    """What one open job has declared.

    Attributes:
        inputs: by the name of the parameter, the field that it fills.
        outputs: by the name of the column, the field that it is read from.
        loss: the objective; None before it is declared.
        reads: which parameters ``build`` and ``simulate`` read.

    Args:
        job: the name of its class, for messages.
        precision: the float type of its fields.
    """

    def __init__(self, job: str, precision: str) -> None:
        self._job, self._precision = job, precision
        self.inputs: dict[str, Any] = {}
        self.outputs: dict[str, Any] = {}
        self.loss: Any = None
        self.reads = Reads(job)

    def input(self, params: BaseModel, name: str, differentiable: bool) -> Any:
        """See ``Job.input``. ``differentiable``: its gradient is one of those that the job can give."""
        if name in self.inputs:
            raise ValueError(f"{self._job} declares the input `{name}` twice\n  do: keep the field that self.input gave first")
        value = _array(self._job, name, params)
        self.reads.declare(name)
        real = value.dtype.kind == "f"
        if differentiable and not real:
            raise ValueError(
                f"{self._job}.gradients names `{name}`, which is a whole number\n  do: make the parameter a float, or leave it out"
            )
        self.inputs[name] = made = self._field(self._real() if real else _whole(), value.shape, name, differentiable)
        return made

    def objective(self) -> Any:
        """See ``Job.objective``."""
        if self.loss is not None:
            raise ValueError(
                f"{self._job} declares two objectives\n  do: add both up in one field, and keep the parts as outputs"
            )
        self.loss = self._field(self._real(), (), "objective", True)
        return self.loss

    def output(self, name: str, shape: Sequence[int], needs_grad: bool) -> Any:
        """See ``Job.output``."""
        if name in self.outputs:
            raise ValueError(f"{self._job} declares the output `{name}` twice\n  do: give each column a name of its own")
        self.outputs[name] = made = self._field(self._real(), tuple(shape), name, needs_grad)
        return made

    def _real(self) -> Any:
        import qdrun as qd

        return getattr(qd, self._precision)

    def _field(self, dtype: Any, shape: tuple[int, ...], name: str, needs_grad: bool) -> Any:
        import qdrun as qd

        return qd.field(dtype, shape=shape, name=name, needs_grad=needs_grad)

    def check(self, gradients: Sequence[str]) -> None:
        """What ``build`` has declared is whole. ``gradients``: of the class.

        Raises:
            ValueError: there is no objective, or a gradient of something that is no input.
        """
        if self.loss is None:
            raise ValueError(
                f"{self._job} has a simulate() and declares no objective\n"
                "  do: write `self.loss = self.objective()` in build, and have a kernel add the loss to `loss[None]`"
            )
        for name in gradients:
            if name not in self.inputs:
                raise ValueError(
                    f"{self._job}.gradients names `{name}`, which is no input\n"
                    f"  do: write `self.input({name!r})` in build, and use the field that it gives in the kernels"
                )

    def fill(self, params: BaseModel) -> None:
        """Give the inputs the values of these parameters.

        Raises:
            ValueError: a value has another shape than its field, or does not fit its type.
        """
        for name, field in self.inputs.items():
            put(field, _array(self._job, name, params), f"the parameter `{name}`")

    def outcome(self, wanted: Sequence[str]) -> Outcome:
        """What the fields hold after a run."""
        gradients = {name: _numbers(self.inputs[name].grad) for name in wanted}
        return Outcome(float(self.loss[None]), gradients, {name: _numbers(field) for name, field in self.outputs.items()})


def put(field: Any, value: np.ndarray, what: str) -> None:
    """Write a value to a field, if the field's type can hold it.

    Raises:
        ValueError: it is a whole number that is too large.
    """
    kept = value.astype(field.dtype.numpy)
    if value.dtype.kind != "f" and not np.array_equal(kept, value):
        raise ValueError(f"{what} is {value.max()}, which is too large for {field.dtype}\n  do: give it a smaller range")
    field.from_numpy(kept)


def _array(job: str, name: str, params: BaseModel) -> np.ndarray:
    """The value of a parameter as an array of floats or whole numbers.

    Raises:
        ValueError: there is no such parameter, or it is something else than numbers.
    """
    if name not in type(params).model_fields:
        known = ", ".join(type(params).model_fields) or "none"
        raise ValueError(f"{job} has no parameter `{name}` for an input\n  do: name one of: {known}")
    value = getattr(params, name)
    try:
        array = np.asarray(value)
    except ValueError:  # ragged lists
        array = np.asarray(None)
    if array.dtype.kind not in "iuf" or not array.size:
        raise ValueError(
            f"{job} declares the input `{name}`, whose value is {value!r:.80}: no number and no list of numbers in rows of one length\n"
            "  do: read such a parameter in build; an input is a float, an int, or a list of them"
        )
    return array


def _whole() -> Any:
    import qdrun as qd

    return qd.i32


def _numbers(field: Any) -> Gradient:
    return field.to_numpy() if field.shape else float(field[None])


__all__ = ["Declared", "put"]
