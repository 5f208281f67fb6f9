"""An optimiser in a batched program: points, the memory of its rule and the best step of each trial are fields beside those of the job.

One launch takes a step of all trials: it keeps the points that the host names, moves the others by the rule, and writes the inputs of the
next run. So parameters, gradients and moments stay on the device; a few numbers of each trial cross the bus.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..planning.memory_plan import Launches

TAKE, MOVE = 1, 2
"""Bits of ``Optimizer.code``: keep the point of a trial, move it."""
BLOCK = 1024
"""Squares of one parameter that are added one after the other; blocks are added in parallel, and then in their order."""


@dataclass(frozen=True)
class Moved:
    """A parameter that the optimiser moves, an input with a gradient. Points are divided by ``scale``; the rest is in its own units.

    Attributes:
        name: of the input.
        scale: the unit of its points.
        low, high: every point is moved into this range.
        least, most: what the job allows: a trial with another number is ``outside``.
        nan: the job allows NaN.
    """

    name: str
    scale: float = 1.0
    low: float = -math.inf
    high: float = math.inf
    least: float = -math.inf
    most: float = math.inf
    nan: bool = True

    @property
    def bounds(self) -> tuple[float, float]:
        """The range of its points."""
        return self.low / self.scale, self.high / self.scale

    @property
    def bounded(self) -> bool:
        """It has bounds."""
        return (self.low, self.high) != (-math.inf, math.inf)

    @property
    def is_input(self) -> bool:
        """Its points are the inputs of the runs, if these are f64."""
        return self.scale == 1.0 and not self.limited

    @property
    def limited(self) -> bool:
        """The job does not allow every number."""
        return (self.least, self.most, self.nan) != (-math.inf, math.inf, True)


@dataclass(frozen=True)
class OptimizerSpec:
    """An optimiser.

    Attributes:
        rule: ``rule(x, g, *memory, rate, m_scale, v_scale, *options)`` gives the new number and its memory; compiled for the device.
        memory: what it keeps for each number, by names; zero at first.
        options: its last arguments.
        params: what it moves.
        clip: ``step`` multiplies the gradient of each trial by a factor.
    """

    rule: Callable[..., tuple[Any, ...]] = field(repr=False)
    memory: tuple[str, ...]
    options: tuple[float, ...]
    params: tuple[Moved, ...]
    clip: bool = False


class Optimizer:
    """The fields and kernels of an optimiser in an open program.

    Attributes:
        x: the point of each trial that runs next, divided by the scale; the input itself where it can be.
        point, gradients, outputs: of its best step the point, the wanted gradients and the outputs.
        memory: what the rule keeps, by kind. All of these by name.
        code: what ``step`` does with each trial. ``part``: the factor of its gradient, with ``clip``.
        squares: after ``measure`` the sum of the squares of its gradient, without what pushes a number at a bound outwards.
        whole: the same with it.
        outside: not 0 where its next point is not what the job allows. Such a trial runs where it was.

    Args:
        program: batched, and open; the caller makes it current for each call.
        spec: what it does.
        inputs: the fields of the job's inputs, by name.
        wanted: names of the gradients that are kept, and
        outputs: of the fields.
    """

    def __init__(
        self, program: Any, spec: OptimizerSpec, inputs: Mapping[str, Any], wanted: Sequence[str], outputs: Mapping[str, Any]
    ) -> None:
        import qdrun as qd

        self.spec, self._program, self._columns = spec, program, dict[int, Any]()

        def like(what: str, sources: Mapping[str, Any], dtype: Any = None) -> dict[str, Any]:
            return {name: qd.field(dtype or one.dtype, shape=one.shape, name=f"{what} {name}") for name, one in sources.items()}

        moved = {one.name: inputs[one.name] for one in spec.params}
        itself = {one.name: inputs[one.name] for one in spec.params if one.is_input and inputs[one.name].dtype == qd.f64}
        others = like("point of", {name: one for name, one in moved.items() if name not in itself}, qd.f64)
        self.x = {name: itself.get(name) or others[name] for name in moved}
        self.point = like("best point of", moved, qd.f64)
        self.memory = {kind: like(f"optimizer {kind} of", moved, qd.f64) for kind in spec.memory}
        self.gradients, self.outputs = like("best gradient of", {n: inputs[n].grad for n in wanted}), like("best", outputs)
        self.code, self.outside = (qd.field(qd.i32, shape=(), name=name) for name in ("optimizer code", "outside"))
        self.squares, self.whole, self.part = (
            qd.field(qd.f64, shape=(), name=f"{name} of the gradient") for name in ("squares", "all squares", "part")
        )
        beside = [(inputs[name].grad, self.gradients[name]) for name in wanted if name not in moved]
        beside += [(one, self.outputs[name]) for name, one in outputs.items()]
        self._step = self._step_kernel(list(moved.values()), beside)
        self._measure = self._measure_kernel(list(moved.values()))

    def _step_kernel(self, inputs: Sequence[Any], beside: Sequence[tuple[Any, Any]]) -> Any:
        """The kernel of ``step``. ``beside``: what is kept of other fields than the gradients of ``inputs``, and where."""
        import qdrun as qd

        spec, params, count, kinds = self.spec, self.spec.params, len(inputs), len(self.spec.memory)
        x, point = list(self.x.values()), list(self.point.values())
        gradients, memory = [one.grad for one in inputs], [list(of.values()) for of in self.memory.values()]
        best, code, part, outside = [self.gradients[one.name] for one in params], self.code, self.part, self.outside
        sources, kept = [source for source, _ in beside], [one for _, one in beside]
        dtypes, sizes = [one.dtype for one in inputs], [math.prod(one.shape) for one in inputs]
        scale, low, high = ([getattr(one, name) for one in params] for name in ("scale", "low", "high"))
        lows, highs = ([one.bounds[end] for one in params] for end in (0, 1))
        least, most, nan = ([getattr(one, name) for one in params] for name in ("least", "most", "nan"))
        bounded, limited = [one.bounded for one in params], [one.limited for one in params]
        apart = [one is not point for one, point in zip(inputs, x, strict=True)]
        options, clip, checked = spec.options, spec.clip, any(limited)
        rule, index = qd.func(spec.rule), [_index(one.shape) for one in inputs]

        @qd.func
        def real(k: qd.template(), value: qd.f64):  # pyright: ignore[reportInvalidTypeForm]
            """A number of a point in the units of its parameter, within its bounds."""
            found = scale[k] * value
            if qd.static(bounded[k]):
                found = qd.select(found < low[k], low[k], qd.select(found > high[k], high[k], found))
            return found

        @qd.kernel
        def optimizer_step(rate: qd.f64, m_scale: qd.f64, v_scale: qd.f64):
            for k in qd.static(range(count)):
                for i in qd.grouped(x[k]):
                    take, move, old = (code[None] & 1) != 0, (code[None] & 2) != 0, x[k][i]
                    gradient = gradients[k][i]
                    point[k][i] = qd.select(take, old, point[k][i])
                    best[k][i] = qd.select(take, gradient, best[k][i])
                    g = scale[k] * qd.cast(gradient, qd.f64)
                    if qd.static(clip):
                        g *= part[None]
                    new = rule(old, g, *[memory[j][k][i] for j in qd.static(range(kinds))], rate, m_scale, v_scale, *options)
                    moved = new[0]
                    if qd.static(bounded[k]):
                        moved = qd.select(moved < lows[k], lows[k], qd.select(moved > highs[k], highs[k], moved))
                    moved = qd.select(move, moved, old)
                    x[k][i] = moved
                    for j in qd.static(range(kinds)):
                        memory[j][k][i] = qd.select(move, new[j + 1], memory[j][k][i])
                    if qd.static(apart[k] and not limited[k]):
                        inputs[k][i] = qd.cast(real(k, moved), dtypes[k])
            for k in qd.static(range(len(kept))):
                for i in qd.grouped(kept[k]):
                    kept[k][i] = qd.select((code[None] & 1) != 0, sources[k][i], kept[k][i])
            if qd.static(checked):
                for _ in range(1):
                    found = 0
                    for k in qd.static(range(count)):
                        if qd.static(limited[k]):
                            for j in range(sizes[k]):
                                value = real(k, x[k][index[k](j)])
                                if value < least[k] or value > most[k] or (qd.static(not nan[k]) and value != value):  # noqa: PLR0124
                                    found = 1
                    outside[None] = found
                for k in qd.static(range(count)):
                    if qd.static(limited[k]):
                        for i in qd.grouped(x[k]):
                            if outside[None] == 0:
                                inputs[k][i] = qd.cast(real(k, x[k][i]), dtypes[k])

        return optimizer_step

    def _measure_kernel(self, inputs: Sequence[Any]) -> Any:
        """The kernel of ``measure``."""
        import qdrun as qd

        params, count, x = self.spec.params, len(inputs), list(self.x.values())
        gradients, sizes = [one.grad for one in inputs], [math.prod(one.shape) for one in inputs]
        scale, bounded = [one.scale for one in params], [one.bounded for one in params]
        lows, highs = ([one.bounds[end] for one in params] for end in (0, 1))
        squares, whole, index = self.squares, self.whole, [_index(one.shape) for one in inputs]
        free_sums, all_sums = (
            [qd.field(qd.f64, shape=(-(-size // BLOCK),), name=f"{name} {one.name}") for size, one in zip(sizes, params)]
            for name in ("sums of squares of", "sums of all squares of")
        )
        blocks = [one.shape[0] for one in free_sums]

        @qd.kernel
        def gradient_squares():
            for k in qd.static(range(count)):
                for b in range(blocks[k]):
                    free, every = 0.0, 0.0
                    for i in range(b * BLOCK, min(sizes[k], (b + 1) * BLOCK)):
                        g = scale[k] * qd.cast(gradients[k][index[k](i)], qd.f64)
                        every += g * g
                        if qd.static(bounded[k]):
                            value = x[k][index[k](i)]
                            out = ((value <= lows[k]) & (g > 0.0)) | ((value >= highs[k]) & (g < 0.0))
                            g = qd.select(out, 0.0, g)
                        free += g * g
                    free_sums[k][b] = free
                    all_sums[k][b] = every
            for _ in range(1):
                free, every = 0.0, 0.0
                for k in qd.static(range(count)):
                    for b in range(blocks[k]):
                        free += free_sums[k][b]
                        every += all_sums[k][b]
                squares[None] = free
                whole[None] = every

        return gradient_squares

    def launches(self) -> Launches:
        """Its kernels, for memory plans."""
        return [(self._step, (0.0, 1.0, 1.0)), (self._measure, ())]

    @property
    def told(self) -> list[Any]:
        """What the host reads after each run: ``squares``, with ``clip`` also ``whole``, and where the job has limits ``outside``."""
        limited = any(one.limited for one in self.spec.params)
        return [self.squares, *([self.whole] if self.spec.clip else []), *([self.outside] if limited else [])]

    def forget(self) -> None:
        """Set the memory of the rule to zero."""
        for fields in self.memory.values():
            for one in fields.values():
                one.fill(0.0)

    def step(self, rate: float, m_scale: float, v_scale: float) -> None:
        """Keep and move the trials as ``code`` says, and write the inputs."""
        self._step(rate, m_scale, v_scale)

    def measure(self) -> None:
        """Sum the squares of the gradients that the last run has left."""
        self._measure()

    def write(self, fields: Sequence[Any], columns: Sequence[np.ndarray]) -> None:
        """Write fields. ``columns``: of each one (B, ...)."""
        for one, column in zip(fields, columns, strict=True):
            found = self._column(one)
            found.write(column.astype(found.dtype, copy=False))

    def read(self, fields: Sequence[Any]) -> list[np.ndarray]:
        """Copies of fields, (B, ...) each. Waits for launches."""
        return self._program.read_columns([self._column(one) for one in fields])

    def _column(self, one: Any) -> Any:
        if id(one) not in self._columns:
            self._columns[id(one)] = self._program.column(one)
        return self._columns[id(one)]


def _index(shape: Sequence[int]) -> Any:
    """A function of kernels: from the number of an element, in C order, to its index."""
    import qdrun as qd

    if not shape:

        @qd.func
        def index(i: int):  # pyright: ignore[reportRedeclaration]
            return None

    elif len(shape) == 1:

        @qd.func
        def index(i: int):  # pyright: ignore[reportRedeclaration]
            return i

    else:
        strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]

        @qd.func
        def index(i: int):
            return qd.Vector([i // strides[axis] % shape[axis] for axis in qd.static(range(len(shape)))])

    return index


__all__ = ["MOVE", "TAKE", "Moved", "Optimizer", "OptimizerSpec"]
