"""The declarations of a job in ``build``: inputs, the objective, outputs. The base class runs a job by them.

Inputs, loss, gradients and outputs are columns (``program.column``): a single value if the program is not batched.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel

from .outcome import Gradient, Outcome
from .watched import Reads


class Declared:
    """The declarations of one open job.

    Attributes:
        inputs: the field of each input, by parameter name.
        outputs: the field of each output, by column name.
        loss: the objective; None before it is declared.
        residuals: the field of the residuals, where the loss is made of them.
        weights: of a program of a reverse-mode Jacobian the field by which each trial chooses its residual.
        finish: the kernel that makes the loss of the residuals; None: kernels of the job make it.
        reads: records the parameters that ``build`` and ``simulate`` read.

    Args:
        job: the name of its class, for messages.
        precision: the float type of its fields.
    """

    def __init__(self, job: str, precision: str) -> None:
        self._job, self._precision = job, precision
        self.inputs: dict[str, Any] = {}
        self.outputs: dict[str, Any] = {}
        self.loss: Any = None
        self.residuals: Any = None
        self.weights: Any = None
        self.finish: Any = None
        self.reads = Reads(job)
        self._columns: dict[int, Any] = {}  # by the ids of the fields
        self._held: dict[str, float | int] = {}  # what inputs of one number hold

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

    def residual_field(self, count: int, jacobian: str) -> Any:
        """See ``Job.residuals``. ``jacobian``: the mode in which the program computes their Jacobian; empty: it does not."""
        import qdrun as qd

        if self.loss is not None:
            raise ValueError(
                f"{self._job} declares residuals beside an objective\n"
                "  do: write residuals alone: the loss is half the sum of their squares"
            )
        self.residuals = residuals = self._field(self._real(), (count,), "residuals", True)
        self.loss = loss = self._field(self._real(), (), "objective", True)
        if jacobian == "reverse":
            self.weights = weights = self._field(self._real(), (count,), "weights", False)

            @qd.kernel
            def weighted_sum():
                for i in residuals:
                    loss[None] += weights[i] * residuals[i]

            self.finish = weighted_sum
        elif not jacobian:

            @qd.kernel
            def half_squares():
                for i in residuals:
                    loss[None] += 0.5 * residuals[i] ** 2

            self.finish = half_squares
        return residuals

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
        """Check that the declarations of ``build`` are complete. ``gradients``: those of the class.

        Raises:
            ValueError: there is no objective, or a gradient that is no input.
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

    def fill(
        self, params: BaseModel, program: Any, apart: Container[str] = (), given: Mapping[str, np.ndarray] | None = None
    ) -> None:
        """Give the inputs the values of these parameters, but for those ``apart``. What has its value already is left alone.

        ``given``: some of the values as arrays. The conversion of a list of numbers takes as long as many a kernel.

        Raises:
            ValueError: a value has another shape than its field, or does not fit its type.
        """
        for name in self.inputs:
            if name in apart:
                continue
            value = getattr(params, name)
            held = self._held.get(name)
            if held is None or not same(value, held):
                array = given.get(name) if given else None
                self.put(name, as_array(value) if array is None else array, program)
                if type(value) in (float, int):  # immutable values
                    self._held[name] = value

    def put(self, name: str, values: np.ndarray, program: Any) -> None:
        """Write an input, if its type can hold the values: the parameter's, or in a batched program a row for each trial.

        Raises:
            ValueError: one is a whole number that is too large.
        """
        column = self._column(self.inputs[name], program)
        kept = values.astype(column.dtype, copy=False)
        if values.dtype.kind != "f" and not np.array_equal(kept, values):
            raise ValueError(
                f"the parameter `{name}` is {values.max()}, which is too large for {self.inputs[name].dtype}\n"
                "  do: give it a smaller range"
            )
        self._held.pop(name, None)
        column.write(kept)

    def shape(self, name: str, program: Any) -> tuple[int, ...]:
        """The shape of an input."""
        return self._column(self.inputs[name], program).shape

    def forget(self, written: Collection[Any]) -> None:
        """A run has written to some of the inputs, which are filled before each run then. ``written``: their fields."""
        for name in [name for name, field in self.inputs.items() if any(field is x for x in written)] if written else ():
            self._held.pop(name, None)

    def columns(self, wanted: Sequence[str], program: Any) -> tuple[np.ndarray, dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Read the results of a run from the fields: the loss, the gradients and the outputs, with a row per trial in a batched program."""
        fields = [self.loss, *(self.inputs[name].grad for name in wanted), *self.outputs.values()]
        loss, *found = program.read_columns([self._column(field, program) for field in fields])
        return loss, dict(zip(wanted, found)), dict(zip(self.outputs, found[len(wanted) :]))

    def read(self, field: Any, program: Any) -> np.ndarray:
        """A copy of any field of the program, with a row per trial in a batched one. Waits for launches."""
        return program.read_columns([self._column(field, program)])[0]

    def outcome(self, wanted: Sequence[str], program: Any) -> Outcome:
        """The result of a run in a program that is not batched."""
        loss, gradients, outputs = self.columns(wanted, program)
        return Outcome(float(loss), _numbers(gradients), _numbers(outputs))

    def _column(self, field: Any, program: Any) -> Any:
        found = self._columns.get(id(field))
        if found is None:
            found = self._columns[id(field)] = program.column(field)
        return found


def same(a: Any, b: Any) -> bool:
    """Whether two values of parameters are the same to the bit: equal numbers of other types are not, nor are ``0.0`` and ``-0.0``."""
    if a is b or type(a) is not type(b):
        return a is b
    if isinstance(a, float):
        return a.hex() == b.hex()
    if isinstance(a, BaseModel):
        return all(same(getattr(a, name), getattr(b, name)) for name in type(a).model_fields)
    if isinstance(a, Mapping):
        return list(a) == list(b) and all(same(a[name], b[name]) for name in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def as_array(value: Any) -> np.ndarray:
    """A parameter as an array. Where its first number is a float, NumPy need not look for a type, which takes half of the time."""
    known = type(value) is list and value and type(value[0]) is float
    return np.asarray(value, np.float64) if known else np.asarray(value)


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


def _numbers(columns: Mapping[str, np.ndarray]) -> dict[str, Gradient]:
    return {name: value if value.ndim else float(value) for name, value in columns.items()}


__all__ = ["Declared", "same"]
