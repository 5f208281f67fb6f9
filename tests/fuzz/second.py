"""Second derivatives, fixed points and time steps of a differentiable program: ``qd.ad.hvp``, ``qd.ad.fixed_point`` and
``qd.ad.checkpointed_steps`` whose temporaries are its arrays, beside central differences.
"""

from __future__ import annotations

import random
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import qdrun as qd

from .check import Finding, Result
from .execute import SCALAR, load, options_of, start
from .slopes import Case, Wrong, case

WHERE_REFUSED = (qd.DifferentiationError, qd.DataAccessError)
"""What a tape or forward mode does not take."""
STEPS = 3


@qd.kernel
def weigh(y: qd.Template, total: qd.Template, square: qd.Template, vectors: qd.Template):
    """Add up an array, with weights; ``square``: times a half of its squares, too."""
    for i in qd.grouped(y):
        v = y[i]
        w = 0.7
        for k in qd.static(range(len(y.shape))):
            w += 0.1 * i[k]
        if qd.static(vectors):
            total[None] += w * (v.sum() + qd.static(square) * 0.5 * (v * v).sum())
        else:
            total[None] += w * (v + qd.static(square) * 0.5 * v * v)


@qd.kernel
def close(new: qd.Template, base: qd.Template, total: qd.Template, factor: float):
    """The next state: near to ``base``, by what the program computes."""
    for i in qd.grouped(new):
        new[i] = base[i] + factor * qd.tanh(total[None])


@qd.kernel
def enter(state: qd.Template, k: int, first: qd.Template, base: qd.Template, factor: float):
    """The first input of a time step: near to ``base``, by the state."""
    for i in qd.grouped(first):
        first[i] = base[i] + factor * qd.sin(state[k])


@qd.kernel
def leave(state: qd.Template, k: int, total: qd.Template, factor: float):
    """The next state."""
    state[k + 1] = 0.7 * state[k] + factor * qd.tanh(total[None])


@qd.kernel
def last(state: qd.Template, k: int, loss: qd.Template):
    """The loss of the last state."""
    loss[None] += qd.sin(state[k]) + state[k]


def add_up(arrays: list[Any], total: Any, square: float) -> None:
    for y in arrays:
        weigh(y, total, square, bool(y.element_shape))


def of_fields(text: str) -> str:
    """The program with fields in the place of ndarrays, and without gradients: ``lazy_hessian`` gives them all."""
    text = text.replace(", needs_grad=True, needs_dual=True", "")
    text = re.sub(r"qd\.types\.ndarray\(dtype=(qd\.types\.\w+\([^()]*\)|qd\.\w+), ndim=\d+\)", "qd.template()", text)
    return text.replace(".ndarray(", ".field(")


def check_second(text: str, path: Path, seed: int, index: int, out: Result) -> None:
    """Check some of the f64 programs; a finding goes to ``out``."""
    rng = random.Random(f"{seed}:{index}:second")
    chosen = [name for name, share in (("hvp", 0.4), ("fixed point", 0.4), ("steps", 0.3)) if rng.random() < share]
    if "f32" in text:
        return
    numbers = np.random.default_rng(rng.randrange(2**32))
    for name in chosen:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                done = {"hvp": hessian, "fixed point": fixed_point, "steps": steps}[name](text, path, numbers)
            except Wrong as e:
                out.finding = Finding(e.kind, e.detail)
                return
            except WHERE_REFUSED as e:
                done = "\n  do: " in str(e)
                if not done:
                    out.finding = Finding(f"{name}: a refusal without a remedy", str(e))
                    return
                name += " refused"
        if done:
            out.compared.append(name)


def differ(kind: str, got: np.ndarray, differences: list[np.ndarray]) -> bool:
    """Compare with differences at two step sizes. False: they do not agree with each other, as at a corner.

    Raises:
        Wrong: they agree, and not with ``got``.
    """
    coarse, fine = differences
    scale = max(1.0, float(np.max(np.abs(coarse), initial=0.0)))
    if not np.isfinite(scale) or scale > 1e6 or not np.abs(coarse - fine).max() <= 1e-6 * scale:
        return False
    if not np.abs(got - coarse).max() <= 2e-5 * scale:
        worst = int(np.argmax(np.abs(got - coarse)))
        raise Wrong(kind, f"at {worst}: {got.reshape(-1)[worst]} and by differences {coarse.reshape(-1)[worst]}")
    return True


def hessian(text: str, path: Path, numbers: np.random.Generator) -> bool:
    """``qd.ad.hvp`` beside differences of the gradient along a vector. Whether they could be compared."""
    other = path.with_name(f"{path.stem}_second.py")
    other.write_text(of_fields(text))
    try:
        with start(SCALAR, options_of(text)):
            names = load(other)
            loss = qd.field(qd.f64, shape=())
            qd.root.lazy_hessian()
            names["fill"]()
            return _hessian(names, loss, numbers)
    finally:
        other.unlink()


def _hessian(names: dict[str, Any], loss: Any, numbers: np.random.Generator) -> bool:
    inputs, outputs = names["INPUTS"], names["OUTPUTS"]
    at = [t.to_numpy() for t in inputs]
    by = [numbers.uniform(-1, 1, a.shape) for a in at]

    def run() -> None:
        for t in (*names["BETWEEN"], *outputs):
            t.fill(0.25)
        for k, args in names["CALLS"]:
            k(*args)
        add_up(outputs, loss, 1.0)

    def gradient(h: float) -> np.ndarray:
        for t, a, d in zip(inputs, at, by):
            t.from_numpy(a + h * d)
        with qd.ad.Tape(loss=loss):
            run()
        return Case.flat([t.grad.to_numpy() for t in inputs])

    found = qd.ad.hvp(run, loss, inputs, by)
    check_heap([*names["CALLS"], *((weigh, (y, loss, 1.0, bool(y.element_shape))) for y in outputs)])
    first, product = Case.flat(found.gradient), Case.flat(found.product)
    want = gradient(0.0)
    differences = [(gradient(h) - gradient(-h)) / (2 * h) for h in (1e-5, 1e-6)]
    if not np.isfinite(want).all() or not np.abs(want).max() < 1e6:
        return False
    if not np.abs(first - want).max() <= 1e-8 * max(1.0, np.abs(want).max()):
        raise Wrong("hvp: the gradient", f"{first.tolist()[:4]} and by reverse mode {want.tolist()[:4]}")
    return differ("hvp", product, differences)


def check_heap(launches: list[tuple[Any, tuple[Any, ...]]]) -> None:
    """Compare the heap that a Hessian product has left with the plans of its launches: of each plane the largest.

    Raises:
        Wrong: they are not equal to the byte.
    """
    planned: dict[str, int] = {}
    for kernel, args in launches:
        try:
            planes = qd.ad.hvp_plan(kernel, *args).planes
        except qd.NothingToDifferentiate:
            continue
        planned |= {plane: max(planned.get(plane, 0), amount) for plane, amount in planes.items()}
    held = qd.current_program().usage().get("adstack", 0)
    if held != sum(planned.values()):
        raise Wrong("hvp: the heap", f"{held} bytes are held and {planned} are planned")


def fixed_point(text: str, path: Path, numbers: np.random.Generator) -> bool:
    """``qd.ad.fixed_point`` of a contraction that runs the program, beside differences of the loss along a direction of its parameters."""
    with case(path, text, SCALAR) as c:
        slope = c.gradient()
        state, others = c.inputs[0], c.inputs[1:]
        make = qd.field if isinstance(state, qd.Field) else qd.ndarray
        form = qd.types.vector(*state.element_shape, qd.f64) if len(state.element_shape) == 1 else qd.f64
        if len(state.element_shape) > 1 or not np.isfinite(slope).all():
            return False
        new, base = (make(form, state.shape, needs_grad=True) for _ in range(2))
        total, loss = (qd.field(qd.f64, shape=(), needs_grad=True) for _ in range(2))
        factor = 0.3 / (1.0 + float(np.abs(slope).sum()))
        params, at = [base, *others], [c.at[0], *c.at[1:]]

        def step() -> None:
            c.forward()
            total.fill(0.0)
            add_up(c.outputs, total, 0.0)
            close(new, base, total, factor)

        def solve() -> None:
            qd.ad.fixed_point(step, state, new, max_steps=200)
            add_up([state], loss, 1.0)

        def value(h: float, by: list[np.ndarray]) -> float:
            for t, a, d in zip(params, at, by):
                t.from_numpy(a + h * d)
            state.fill(0.1)
            loss[None] = 0.0
            solve()
            return loss[None]

        by = [numbers.uniform(-1, 1, a.shape) for a in at]
        try:
            value(0.0, by)
            state.fill(0.1)
            with qd.ad.Tape(loss=loss):
                solve()
            got = sum(float((t.grad.to_numpy() * d).sum()) for t, d in zip(params, by))
            differences = [np.array([(value(h, by) - value(-h, by)) / (2 * h)]) for h in (1e-4, 1e-5)]
        except qd.QdrunRuntimeError as e:
            if "converge" in str(e) or "not finite" in str(e):
                return False
            raise
        return differ("fixed_point", np.array([got]), differences)


class _Steps:
    """The program as a time step whose arrays are temporaries: its first input follows the state, its outputs make the next one."""

    def __init__(self, c: Case, window: int) -> None:
        self.case, self.first = c, c.inputs[0]
        make = qd.field if isinstance(self.first, qd.Field) else qd.ndarray
        self.base = make(qd.f64, self.first.shape, needs_grad=True)
        self.total, self.loss = (qd.field(qd.f64, shape=(), needs_grad=True) for _ in range(2))
        self.state = qd.field(qd.f64, shape=window + 1, needs_grad=True)
        self.params, self.window = [self.base, *c.inputs[1:]], window

    def step(self, t: int, k: int) -> None:
        """One step."""
        enter(self.state, k, self.first, self.base, 0.1)
        self.case.forward()
        add_up(self.case.outputs, self.total, 0.0)
        leave(self.state, k, self.total, 0.3)

    def begin(self, at: list[np.ndarray]) -> None:
        """Set the parameters and the state."""
        for t, a in zip(self.params, at):
            t.from_numpy(a)
        self.state.fill(0.4)
        self.loss[None] = 0.0

    def run(self) -> None:
        """All steps, and the loss."""
        temporaries = [self.first, *self.case.between, *self.case.outputs, self.total]
        qd.ad.checkpointed_steps(self.step, STEPS, self.state, temporaries=temporaries)
        last(self.state, self.window, self.loss)

    def value(self, at: list[np.ndarray]) -> float:
        """The loss."""
        self.begin(at)
        self.run()
        return self.loss[None]


def steps(text: str, path: Path, numbers: np.random.Generator) -> bool:
    """Time steps in windows of all lengths beside each other, and beside differences along a direction of the parameters."""
    gradients = []
    for window in (STEPS, 2, 1):
        with case(path, text, SCALAR) as c:
            if c.inputs[0].element_shape:
                return False
            s = _Steps(c, window)
            s.begin(c.at)
            with qd.ad.Tape(loss=s.loss):
                s.run()
            gradients.append(Case.flat([t.grad.to_numpy() for t in s.params]))
            if not np.array_equal(gradients[-1], gradients[0], equal_nan=True):
                raise Wrong("steps: another window", f"{gradients[-1].tolist()[:4]} and {gradients[0].tolist()[:4]}")
            by = [numbers.uniform(-1, 1, a.shape) for a in c.at]
            moved = [[[a + sign * h * d for a, d in zip(c.at, by)] for sign in (1, -1)] for h in (1e-4, 1e-5)]
            differences = [np.array([(s.value(up) - s.value(down)) / (2 * h)]) for (up, down), h in zip(moved, (1e-4, 1e-5))]
    return differ("steps", np.array([gradients[0] @ Case.flat(by)]), differences)
