"""``qd.ad.jacobian``, ``vjp`` and ``jvp``: derivatives of fields and ndarrays that launches compute from others.

A row of a Jacobian is a pass in reverse mode, a column one in forward mode. Each pass runs the function again. Before it, all fields and
ndarrays of the program get what they held at first, and the same random numbers are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from ....errors import DifferentiationError, QdrunRuntimeError, QdrunTypeError, warn_user
from ....program.program import Program, current_program
from ...data.field import Field
from ...data.matrix import Matrix
from ...data.ndarray import Ndarray
from ...data.tensor import unwrap
from ...no_gradient import refuse_in_a_trial, refuse_in_forward_mode
from ..forward_mode import FwdMode
from ..gradient_arrays import dual_of, has_grad
from ..overwrites import Overwrites
from ..saved_memory import SavedMemory
from ..tape import Tape
from ..zeros.tape_paths import recorded_by, told

Mode = Literal["forward", "reverse"]


class VectorProduct(NamedTuple):
    """What ``vjp`` and ``jvp`` compute. Lists have one array for each of several fields.

    Attributes:
        output: in the shape of ``output.to_numpy()``.
        product: of ``vjp`` in the shape of ``param.to_numpy()``, of ``jvp`` in that of ``output.to_numpy()``.
    """

    output: Any
    product: Any


def jacobian(run: Callable[[], Any], output: Any, param: Any, *, mode: Mode | None = None) -> Any:
    """The Jacobian of fields with respect to others: an array of shape ``output.shape + param.shape``, elements of vectors included.

    In a batched program each trial has its own, on the first axis. ``run`` runs once for each number of the smaller side; at the end all
    fields hold what it leaves. Gradients (or duals) of the program are overwritten.

    Args:
        run: launches the kernels that compute ``output`` from ``param``, as the body of a ``Tape``.
        output: a field or an ndarray, or a list of them: then the result is a list.
        param: a field or an ndarray, or a list of them: then the result (for each output) is a list.
        mode: "reverse" takes gradients and one pass for each number of ``output``, "forward" duals and one pass for each number of
            ``param``. None: what takes fewer passes, of the modes for which all fields have memory.

    Raises:
        QdrunTypeError: an argument is something else than a field or an ndarray of real numbers; no such mode.
        QdrunRuntimeError: neither mode has memory; ``run`` assigns to a parameter from Python, or gives another output in another pass;
            inside of a tape, a ``FwdMode`` block or the block of a trial.
        DifferentiationError: a derivative is lost in an array without one, or a kernel has none, by name and line.
    """
    task = _JacobianTask("qd.ad.jacobian", run, _Side(output, "output"), _Side(param, "param"))
    outputs, params = task.outputs.tensors, task.params.tensors
    reverse = task.is_reverse(mode)
    task.begin()
    seeded, found = (outputs, params) if reverse else (params, outputs)
    rows: list[list[list[np.ndarray]]] = [[[] for _ in found] for _ in seeded]
    passes = (task.outputs if reverse else task.params).numbers
    with _Repeated(task.program, passes) as again:
        for part, seeds in enumerate(_units(seeded)):
            for seed in seeds:
                again()
                for of, one in zip(rows[part], task.run_pass(reverse, seed), strict=True):
                    of.append(one)
    blocks = [[_assembled(rows, task, o, p, reverse) for p in range(len(params))] for o in range(len(outputs))]
    return task.outputs.shown([task.params.shown(row) for row in blocks])


def vjp(run: Callable[[], Any], output: Any, param: Any, vector: Any) -> VectorProduct:
    """A vector times the Jacobian, by one pass in reverse mode: the gradient of ``sum(vector * output)``.

    Args:
        run: launches the kernels that compute ``output`` from ``param``, as the body of a ``Tape``.
        output: a field or an ndarray with a gradient, or a list of them.
        param: a field or an ndarray with a gradient, or a list of them.
        vector: for each output an array of the shape of ``output.to_numpy()``, or flat. In a batched program the first axis of trials
            may be left out.

    Raises:
        QdrunTypeError, QdrunRuntimeError, DifferentiationError: see ``jacobian``; the vector does not fit.
    """
    return _product("qd.ad.vjp", run, output, param, vector, reverse=True)


def jvp(run: Callable[[], Any], output: Any, param: Any, vector: Any) -> VectorProduct:
    """The Jacobian times a vector, by one pass in forward mode: the derivative of ``output`` in the direction ``vector``.

    Args:
        run: launches the kernels that compute ``output`` from ``param``.
        output: a field or an ndarray with a dual, or a list of them.
        param: a field or an ndarray with a dual, or a list of them.
        vector: for each parameter an array of the shape of ``param.to_numpy()``, or flat. In a batched program the first axis of trials
            may be left out.

    Raises:
        QdrunTypeError, QdrunRuntimeError, DifferentiationError: see ``jacobian``; the vector does not fit.
    """
    return _product("qd.ad.jvp", run, output, param, vector, reverse=False)


def _product(name: str, run: Callable[[], Any], output: Any, param: Any, vector: Any, *, reverse: bool) -> VectorProduct:
    task = _JacobianTask(name, run, _Side(output, "output"), _Side(param, "param"))
    task.is_reverse("reverse" if reverse else "forward")
    task.begin()
    seeded, found = (task.outputs, task.params) if reverse else (task.params, task.outputs)
    vectors = [shaped(v, t, f"the vector of {name}") for v, t in zip(seeded.vectors(name, vector), seeded.tensors, strict=True)]
    products = task.run_pass(reverse, vectors)
    return VectorProduct(task.outputs.shown([t.to_numpy() for t in task.outputs.tensors]), found.shown(products))


@dataclass
class _Side:
    """The outputs or the parameters, as they were given."""

    given: Any
    what: str
    tensors: list[Any] = field(init=False)

    def __post_init__(self) -> None:
        every = self.given if isinstance(self.given, (list, tuple)) else [self.given]
        self.tensors = [unwrap(each) for each in every]

    @property
    def many(self) -> bool:
        """Whether a list was given."""
        return isinstance(self.given, (list, tuple))

    @property
    def numbers(self) -> int:
        """Numbers of one trial."""
        return sum(int(np.prod(_form(t), dtype=int)) for t in self.tensors)

    def shown(self, results: list[Any]) -> Any:
        """Results in the form in which the tensors were given."""
        return results if self.many else results[0]

    def vectors(self, name: str, vector: Any) -> Sequence[Any]:
        """The vectors that were given, one for each tensor."""
        if not self.many:
            return [vector]
        if not isinstance(vector, (list, tuple)) or len(vector) != len(self.tensors):
            raise QdrunRuntimeError(
                f"{name} got a list of {len(self.tensors)} as `{self.what}`; do: give a list of as many vectors"
            )
        return vector

    def check(self, name: str, program: Program) -> None:
        """Refuse what is not differentiated."""
        if not self.tensors:
            raise QdrunTypeError(f"the list `{self.what}` of {name} is empty", hint="name a field or an ndarray")
        for tensor in self.tensors:
            if not isinstance(tensor, (Field, Ndarray)):
                raise QdrunTypeError(
                    f"`{self.what}` of {name} is a field or an ndarray, or a list of them, not {type(tensor).__name__}",
                    hint="pass x itself; of a struct field its members; `run` copies numpy arrays with x.from_numpy(array) before",
                )
            if not tensor.dtype.is_real:
                raise QdrunTypeError(
                    f"`{tensor.name}` holds {tensor.dtype} and has no derivative", hint="make it of real numbers, qd.f64"
                )
            if tensor._owner is not program:
                raise QdrunRuntimeError(f"`{tensor.name}` belongs to another program; do: make it after qd.init()")
            tensor.refuse_blocks(f"`{self.what}` of {name}")


@dataclass
class _JacobianTask:
    """A function, and what is differentiated with respect to what."""

    name: str
    run: Callable[[], Any]
    outputs: _Side
    params: _Side
    program: Program = field(default_factory=current_program)
    first: list[np.ndarray] | None = None
    """The outputs of the first pass."""

    def __post_init__(self) -> None:
        self.program.materialize()
        self.outputs.check(self.name, self.program)
        self.params.check(self.name, self.program)

    @property
    def tensors(self) -> list[Any]:
        """The outputs and the parameters."""
        return [*self.outputs.tensors, *self.params.tensors]

    def is_reverse(self, mode: str | None) -> bool:
        """Choose a mode.

        Raises:
            QdrunTypeError: there is no such mode.
            QdrunRuntimeError: a tensor has no memory for it.
        """
        if mode not in (None, "forward", "reverse"):
            raise QdrunTypeError(f"{self.name}: mode={mode!r}", hint='mode="forward", "reverse" or None')
        fewer = "reverse" if self.outputs.numbers < self.params.numbers else "forward"
        without = {"reverse": self._without(has_grad), "forward": self._without(dual_of)}
        if mode is None:
            usable = [m for m in (fewer, "reverse", "forward") if not without[m]]
            # A mode that others in the program have no memory for may lose the derivative on its way: then it is refused.
            mode = next((m for m in usable if self._everywhere(m)), usable[0] if usable else fewer)
        if without[mode]:
            has, needs = ("gradient", "needs_grad") if mode == "reverse" else ("dual", "needs_dual")
            raise QdrunRuntimeError(
                f"{self.name} in {mode} mode: `{without[mode][0].name}` has no {has}\n"
                f"  do: make it, and all fields between param and output, with {needs}=True"
            )
        return mode == "reverse"

    def _without(self, has: Callable[[Any], Any]) -> list[Any]:
        return [tensor for tensor in self.tensors if not has(tensor)]

    def _everywhere(self, mode: str) -> bool:
        """Whether all fields that have a derivative have that of a mode."""
        for tensor in self.program.tensors():
            grad, dual = has_grad(tensor), dual_of(tensor) is not None
            if dual and not grad if mode == "reverse" else grad and not dual:
                return False
        return True

    def begin(self) -> None:
        """Refuse to run inside of something that records."""
        program = self.program
        refuse_in_forward_mode(program, self.name)
        refuse_in_a_trial(program, f"{self.name} runs the launches of all trials")
        if program.recorders.tape is not None:
            raise QdrunRuntimeError(f"{self.name} opens a tape of its own; do: call it outside of the tape")
        if program.recorders.recording is not None:
            raise QdrunRuntimeError(f"{self.name} reads results, which a captured function cannot; do: call it outside")

    def run_pass(self, reverse: bool, seeds: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        """One pass; see ``_backward`` and ``_forward``.

        Raises:
            QdrunRuntimeError: the outputs differ from those of the first pass.
        """
        found = (self._backward if reverse else self._forward)(seeds)
        now = [tensor.to_numpy() for tensor in self.outputs.tensors]
        if self.first is None:
            self.first = now
        for tensor, before, after in zip(self.outputs.tensors, self.first, now, strict=True):
            if not _agree(before, after):
                raise QdrunRuntimeError(
                    f"the function that {self.name} runs gave another `{tensor.name}` in another pass: it depends on something that is"
                    " no field or ndarray, and that it changes\n"
                    "  do: keep counters and numpy arrays that it writes in fields; no random numbers of numpy or Python"
                )
        return found

    def _backward(self, seeds: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        """Run, and hand gradients back. ``seeds``: those of the outputs; None: 0."""
        with Tape(validation=self.first is None) as tape:
            self.run()
            for write in tape.log.writes:
                self._refuse_write(write.tensor, write.source)
            for tensor, seed in zip(self.outputs.tensors, seeds, strict=True):
                if seed is not None:
                    tensor.grad._assign(seed)
        if self.first is None and not self.outputs.many:
            self._warn_of_zeros(tape)
        return [tensor.grad.to_numpy() for tensor in self.params.tensors]

    def _warn_of_zeros(self, tape: Tape) -> None:
        """Warn where the derivative is 0 whatever the values are."""
        tape.loss = self.outputs.tensors[0]
        recorded = recorded_by(tape, self.program, Overwrites.of(tape.log.timed(), []).groups)
        for path in told(recorded.paths([p for p in self.params.tensors if p is not tape.loss])):
            warn_user(str(path))

    def _forward(self, seeds: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        """Run on tangents. ``seeds``: the tangents of the parameters; None: 0."""
        given = {id(t): seed for t, seed in zip(self.params.tensors, seeds, strict=True)}
        first = self.params.tensors[0]
        with _Checked(self.outputs.tensors, first, np.zeros(int(np.prod(_form(first), dtype=int))), refuse=self._refuse_write):
            for tensor in self.params.tensors:
                if (seed := given[id(tensor)]) is not None:
                    tensor.dual._assign(seed)
            self.run()
            return [tensor.dual.to_numpy() for tensor in self.outputs.tensors]

    def _refuse_write(self, tensor: Any, source: Any) -> None:
        """Refuse an assignment of Python to a parameter: it cuts the derivative."""
        if source is None and any(tensor is p for p in self.params.tensors):
            raise QdrunRuntimeError(
                f"the function that {self.name} runs writes to its parameter `{tensor.name}`: what it writes does not depend on it\n"
                "  do: write to it before"
            )


class _Checked(FwdMode):
    """A forward-mode block that refuses where a tangent is lost."""

    def __init__(self, loss: Any, param: Any, seed: Any, refuse: Callable[[Any, Any], None]) -> None:
        super().__init__(loss, param, seed)
        self._refuse = refuse

    def wrote(self, tensor: Any, index: tuple[int, ...] | None, source: Any = None, parts: tuple[Any, ...] = ()) -> None:
        self._refuse(tensor, source)
        super().wrote(tensor, index, source, parts)

    def _lost_tangent(self, text: str) -> None:
        raise DifferentiationError(text)


class _Repeated:
    """``with``: each call gives the program the state and the random numbers of the first one. The first of several only keeps them."""

    def __init__(self, program: Program, passes: int) -> None:
        self._program, self._passes, self._kept = program, passes, None
        self._random = program.seeds.state()

    def __enter__(self) -> Callable[[], None]:
        return self._again

    def __exit__(self, *error: object) -> None:
        self._kept = None

    def _again(self) -> None:
        program = self._program
        if self._kept is None:
            self._kept = SavedMemory.of(program, []) if self._passes > 1 else None
            return
        self._kept.put_back()
        program.seeds.restore(self._random)


def _form(tensor: Any) -> tuple[int, ...]:
    """The shape that ``to_numpy`` shows for one trial."""
    column = isinstance(tensor, Field) and tensor.element_shape[1:] == (1,)  # it is shown as a vector
    return *tensor.shape, *(tensor.element_shape[:1] if column else tensor.element_shape)


def _units(tensors: list[Any]) -> Iterator[Iterator[list[np.ndarray | None]]]:
    """For each tensor the seeds with a single 1, one after the other."""

    def of(part: int, form: tuple[int, ...]) -> Iterator[list[np.ndarray | None]]:
        for k in range(int(np.prod(form, dtype=int))):
            seed = np.zeros(form)
            seed.flat[k] = 1.0
            yield [seed if n == part else None for n in range(len(tensors))]

    for part, tensor in enumerate(tensors):
        yield of(part, _form(tensor))


def _assembled(rows: list[list[list[np.ndarray]]], task: _JacobianTask, output: int, param: int, reverse: bool) -> np.ndarray:
    """The block of an output and a parameter: (trials,) + output + param."""
    one, two = task.outputs.tensors[output], task.params.tensors[param]
    of, by = _form(one), _form(two)
    dtype = np.result_type(one.dtype.numpy, two.dtype.numpy)
    parts = rows[output][param] if reverse else rows[param][output]
    trials = one._whole.count
    shape = (len(parts), trials, *(by if reverse else of))
    every = np.array(parts, dtype).reshape(shape) if parts else np.zeros(shape, dtype)
    every = np.moveaxis(every, 0, 1 if reverse else -1).reshape(trials, *of, *by)
    return every if one._whole.batched else every[0]


def _agree(before: np.ndarray, after: np.ndarray) -> bool:
    """Whether two runs gave the same up to the order of sums."""
    rtol = 1e-9 if before.dtype == np.float64 else 1e-3
    scale = np.abs(before[np.isfinite(before)]).max(initial=0.0)
    return np.allclose(before, after, rtol, rtol * float(scale), equal_nan=True)


def shaped(vector: Any, tensor: Any, what: str) -> np.ndarray:
    """A vector as an array of the form of a field or an ndarray. In a batched program the axis of trials may be left out.

    Raises:
        QdrunRuntimeError: it does not fit.
    """
    one, trials = _form(tensor), tensor._whole
    form = trials.shape(one)
    given = vector.to_numpy() if isinstance(vector, (Matrix, Field, Ndarray)) else vector
    try:
        found = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        raise QdrunRuntimeError(f"{what} is a list or an array of numbers, not {vector!r}") from None
    if trials.batched and found.size == np.prod(one, dtype=int) and found.shape in (one, (found.size,)):
        return np.broadcast_to(found.reshape(one), form)
    if found.size != np.prod(form, dtype=int) or (found.ndim > 1 and found.shape != form):
        raise QdrunRuntimeError(
            f"{what} has shape {found.shape}, `{tensor.name}` has shape {form}; do: give it in that shape, or flat"
        )
    return found.reshape(form)


__all__ = ["VectorProduct", "jacobian", "jvp", "shaped", "vjp"]
