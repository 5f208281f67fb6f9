"""The launches of a differentiable program on a tape in other ways: counted by the device, captured, in a batch, through parts of arrays,
with algorithms and solvers behind them.

The first ways must give the bits of plain launches (a batch, whose mathematics is that of lanes, nearly); algorithms and solvers are
compared with central differences.
"""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import qdrun as qd
from qdrun.compiler.program.memory import known_tapes
from qdrun.compiler.program.memory.known_tapes import KnownTapes

from .check import Finding, Result
from .execute import SCALAR, load, options_of, start
from .second import WHERE_REFUSED, add_up, differ
from .slopes import Case, Wrong, same

TIMES = 2
"""Iterations of a loop that the device counts."""
TRIALS = 3


class OnTape:
    """A program's file, and its loss on a tape."""

    def __init__(self, text: str, path: Path, **more: Any) -> None:
        self.program = start(SCALAR, options_of(text), **more)
        self.names = load(path)
        self.inputs, self.outputs, self.between = (self.names[n] for n in ("INPUTS", "OUTPUTS", "BETWEEN"))
        self.names["fill"]()
        self.at = [t.to_numpy() for t in self.inputs]
        self.loss = qd.field(qd.f64, shape=(), needs_grad=True)

    def fill(self) -> None:
        """Give what is no input its first content."""
        for t in (*self.between, *self.outputs):
            t.fill(0.25)

    def launches(self, times: int = 1) -> None:
        """Every kernel so many times; by a loop of the device where the program has one."""
        self.fill()
        self.kernels(times)

    def kernels(self, times: int) -> None:
        counter = self.names.get("times")
        for k, args in self.names["CALLS"]:
            if counter is not None:
                counter[None] = times
            for _ in range(times if counter is None else 1):
                k(*args)

    def move(self, by: list[np.ndarray], h: float) -> None:
        for t, a, d in zip(self.inputs, self.at, by):
            t.from_numpy(a + h * d)

    def gradient(self, run: Callable[[], None]) -> np.ndarray:
        """The loss, and its gradient with respect to the inputs."""
        with qd.ad.Tape(loss=self.loss):
            run()
        return self.found()

    def found(self) -> np.ndarray:
        return Case.flat([self.loss.to_numpy(), *(t.grad.to_numpy() for t in self.inputs)])

    def total(self, times: int = 1) -> None:
        self.launches(times)
        add_up(self.outputs, self.loss, 1.0)


@contextmanager
def on_tape(text: str, path: Path, **more: Any) -> Iterator[OnTape]:
    other = path.with_name(f"{path.stem}_tape.py")
    other.write_text(text)
    try:
        c = OnTape(text, other, **more)
        with c.program:
            yield c
        c.program.close()
    finally:
        other.unlink()


def counted(text: str) -> str:
    """The program with each kernel's body in a loop that the device counts."""
    lines, out, inside = text.splitlines(), [], False
    for n, line in enumerate(lines):
        if line == "@qd.kernel":
            out.append("@qd.kernel(graph=True)")
        elif line.startswith("def ") and n and lines[n - 1] == "@qd.kernel":
            out += [line, "    while qd.graph.do_while(times):"]
            inside = True
        elif inside and line.startswith("    "):
            out.append(f"    {line}")
        elif inside:
            out += ["        times[None] -= 1", line]
            inside = False
        else:
            out.append(line)
    return "\n".join(out).replace("OPTIONS =", "times = qd.field(qd.i32, shape=())\nOPTIONS =", 1) + "\n"


def through_parts(text: str) -> str:
    """The program with a view of the whole in the place of each array of numbers with one axis, where a kernel indexes it."""
    for name, n in re.findall(r"^(\w+) = qd\.(?:field|ndarray)\(qd\.f64, shape=\((\d+),\)", text, re.MULTILINE):
        text = re.sub(rf"\b{name}\[", f"{name}[0:{n}][", text)
    return text


UPDATES = ("{0} = qd.sin({0}) + 0.3 * {1}", "{0} *= 0.5 + 0.4 * {1} * {0}", "{0} += 0.2 * {1}", "{0} *= {1}", "{0} = 0.7")
"""What a loop does with each element, and one of another array."""


def in_place(text: str, rng: random.Random) -> str:
    """The program with loops between and behind the loops of its kernels, which change what these have read."""
    sizes = dict(re.findall(r"^(x\w+) = qd\.(?:field|ndarray)\(qd\.f64, shape=\((\d+),\)", text, re.MULTILINE))
    out: list[str] = []
    in_kernel = in_loop = False
    for line in [*text.splitlines(), ""]:
        if in_loop and not line.startswith("     "):
            in_loop = False
            if sizes and rng.random() < 0.7:
                x, other = rng.choice(sorted(sizes)), rng.choice(sorted(sizes))
                where = "own" if x == other else f"own % {sizes[other]}"  # else an iteration would read what another one writes
                update = rng.choice(UPDATES).format(f"{x}[own]", f"{other}[{where}]")
                out += [f"    for own in range({sizes[x]}):", f"        {update}"]
        in_kernel = (line.startswith(" ") and in_kernel) or (line.startswith("def ") and out[-1:] == ["@qd.kernel"])
        in_loop = in_loop or (in_kernel and line.startswith("    for "))
        out.append(line)
    return "\n".join(out)


def refusal(run: Callable[[], Any]) -> tuple[Any, str]:
    """What it gives, or the refusal of the gradient."""
    try:
        return run(), ""
    except WHERE_REFUSED as e:
        return None, str(e)


def _counted(text: str, path: Path, rng: random.Random) -> bool:
    with on_tape(text, path) as c:
        want, refused = refusal(lambda: c.gradient(lambda: c.total(TIMES)))
    with on_tape(counted(text), path) as c:
        got, other = refusal(lambda: c.gradient(lambda: c.total(TIMES)))
    if bool(refused) != bool(other):
        raise Wrong("do_while: refused in one way only", refused or other)
    if not refused:
        same("do_while: the gradient", want, got)
    return not refused


def _parts(text: str, path: Path, rng: random.Random) -> bool:
    other = through_parts(text)
    with on_tape(text, path) as c:
        want = c.gradient(c.total)
    with on_tape(other, path) as c:
        same("parts of arrays: the gradient", want, c.gradient(c.total))
    return other != text


def _in_place(text: str, path: Path, rng: random.Random) -> bool:
    other = in_place(text, rng)
    with on_tape(other, path) as c:
        return other != text + "\n" and _differences(c, lambda: c.total(TIMES), "in place", rng)


def _again(text: str, path: Path, rng: random.Random) -> bool:
    """A tape that is recorded again and again, with other inputs, beside one that is recorded once."""
    text = rng.choice((text + "\n", in_place(text, rng)))
    known_tapes.WORTH = 0  # these tapes are short
    shifts = [0.0, 0.0, *rng.choices((0.0, 0.01, -0.02), k=3)]
    found: list[list[np.ndarray]] = []
    followed = 0
    for logs in (True, False):
        with on_tape(text, path) as c:
            by, values = [np.ones(a.shape) for a in c.at], list[np.ndarray]()
            for k, h in enumerate(shifts):
                c.move(by, h)
                c.fill()
                if not logs:
                    c.program.known_tapes = KnownTapes()
                with qd.ad.Tape(loss=c.loss) as tape:
                    c.kernels(TIMES - (k == 3))
                    add_up(c.outputs, c.loss, 1.0)
                followed += tape.log.known is not None
                values.append(Case.flat([c.found(), *(t.to_numpy() for t in (*c.between, *c.outputs))]))
            found.append(values)
    for want, got in zip(found[1], found[0]):
        same("a tape that is recorded again", want, got)
    return followed > 0


def _captured(text: str, path: Path, rng: random.Random) -> bool:
    with on_tape(text, path) as c:
        by = [np.full(a.shape, rng.uniform(-1, 1)) for a in c.at]

        def iteration() -> None:
            with qd.ad.Tape(loss=c.loss):
                c.total()

        iteration()
        try:
            graph = qd.capture(iteration)
        except qd.QdrunRuntimeError as e:
            if "a heap cannot be sized in a graph" in str(e):
                return False
            raise
        for h in (0.01, -0.02):
            c.move(by, h)
            want = c.gradient(c.total)
            graph()
            same("a captured tape", want, c.found())
    return True


def _batch(text: str, path: Path, rng: random.Random) -> bool:
    shifts = [0.03 * k for k in range(TRIALS)]
    with on_tape(text, path) as c:
        one = [np.ones(a.shape) for a in c.at]
        want = []
        for h in shifts:
            c.move(one, h)
            c.gradient(c.total)
            want.append([c.loss.to_numpy(), *(t.grad.to_numpy() for t in c.inputs)])
    with on_tape(text, path, batch=TRIALS) as c:
        for t, a in zip(c.inputs, c.at):
            t.from_numpy(np.stack([a[0] + h for h in shifts]))
        c.gradient(c.total)
        got = [c.loss.to_numpy(), *(t.grad.to_numpy() for t in c.inputs)]
    for k in range(TRIALS):
        w, g = Case.flat(want[k]), Case.flat([x[k] for x in got])
        if np.isfinite(w).all() and np.abs(w).max() < 1e6 and not np.abs(w - g).max() <= 1e-7 * max(1.0, np.abs(w).max()):
            raise Wrong("a batch: the gradient", f"trial {k}: {w.tolist()[:5]} and {g.tolist()[:5]}")
    return True


def _differences(c: OnTape, run: Callable[[], None], kind: str, rng: random.Random) -> bool:
    """A gradient beside differences of the loss along a direction."""
    numbers = np.random.default_rng(rng.randrange(2**32))
    by = [numbers.uniform(-1, 1, a.shape) for a in c.at]

    def value(h: float) -> float:
        c.move(by, h)
        c.loss[None] = 0.0
        run()
        return c.loss[None]

    c.move(by, 0.0)
    found = c.gradient(run)[1:]
    if not np.isfinite(found).all() or np.abs(found).max() > 1e6:
        return False
    differences = [np.array([(value(h) - value(-h)) / (2 * h)]) for h in (1e-5, 1e-6)]
    return differ(kind, np.array([float((found * Case.flat(by)).sum())]), differences)


def _algorithms(text: str, path: Path, rng: random.Random) -> bool:
    with on_tape(text, path) as c:
        arrays = [t for t in c.outputs if len(t.shape) == 1 and not t.element_shape]
        if not arrays:
            return False
        y = rng.choice(arrays)
        n = y.shape[0]
        sums, picked = (qd.ndarray(qd.f64, n, needs_grad=True) for _ in range(2))
        most = qd.field(qd.f64, shape=1, needs_grad=True)
        keys, order = qd.ndarray(qd.i32, n), qd.ndarray(qd.i32, n)
        keys.from_numpy(np.array([rng.randrange(4) for _ in range(n)], np.int32))
        scan = rng.choice((qd.algorithms.inclusive_scan, qd.algorithms.exclusive_scan))
        op = rng.choice(("add", "min", "max"))

        def run() -> None:
            c.launches()
            scan(y, sums)
            qd.algorithms.argsort(keys, order)
            qd.algorithms.gather(sums, order, picked)
            qd.algorithms.reduce(y, most, op)
            add_up([picked, most], c.loss, 1.0)

        return _differences(c, run, f"algorithms with {op}", rng)


def _solver(text: str, path: Path, rng: random.Random) -> bool:
    with on_tape(text, path) as c:
        arrays = [t for t in c.outputs if len(t.shape) == 1 and not t.element_shape and isinstance(t, qd.Field)]
        if not arrays:
            return False
        b, d = arrays[0], arrays[-1]
        x = qd.field(qd.f64, shape=b.shape, needs_grad=True)
        if d.shape != b.shape:
            d = b
        n = b.shape[0]

        @qd.kernel
        def matvec(v: qd.Template, out: qd.Template):
            for i in v:
                out[i] = (2.5 + qd.tanh(d[i])) * v[i] - 0.5 * (v[(i + 1) % n] + v[(i + n - 1) % n])

        def run() -> None:
            c.launches()
            x.fill(0.0)
            qd.linalg.MatrixFreeCG(qd.linalg.LinearOperator(matvec), b, x, tol=1e-11, maxiter=200)
            add_up([x], c.loss, 1.0)

        return _differences(c, run, "a solver", rng)


def _budget(text: str, path: Path, rng: random.Random) -> bool:
    """A tape under the memory budget that refusals ask for, and somewhat more: the same bits, and no more bytes; no less will do."""
    options = {} if rng.random() < 0.7 else {"batch": TRIALS}
    with on_tape(text, path, **options) as c:
        want, budget = c.gradient(c.total), 1
    for _ in range(8):
        try:
            with on_tape(text, path, memory_budget=budget, **options) as c:
                got, peak = c.gradient(c.total), c.program.peak_bytes
            break
        except qd.OutOfMemory as e:
            if e.smallest is None or e.smallest <= budget or f"memory_budget={e.smallest})" not in str(e):
                raise Wrong(
                    "a memory budget: the refusal asks for what is not enough", f"{e.smallest} after {budget}: {e}"
                ) from None
            budget = e.smallest
    else:
        raise Wrong("a memory budget: one refusal after the other", f"{budget}")
    same("a memory budget gives other bits", want, got)
    if peak > budget:
        raise Wrong("a memory budget is exceeded", f"{peak} of {budget}")
    more = budget + rng.randrange(1, 400)
    with on_tape(text, path, memory_budget=more, **options) as c:
        same("a memory budget gives other bits", want, c.gradient(c.total))
        if c.program.peak_bytes > more:
            raise Wrong("a memory budget is exceeded", f"{c.program.peak_bytes} of {more}")
    try:
        with on_tape(text, path, memory_budget=budget - 1, **options) as c:
            c.gradient(c.total)
    except qd.OutOfMemory:
        return True
    if c.program.peak_bytes >= budget:
        raise Wrong("a memory budget below the smallest is exceeded", f"{c.program.peak_bytes} of {budget - 1}")
    return True


WAYS: tuple[tuple[str, float, Callable[[str, Path, random.Random], bool]], ...] = (
    ("do_while", 0.3, _counted),
    ("parts", 0.3, _parts),
    ("captured", 0.2, _captured),
    ("in place", 0.4, _in_place),
    ("again", 0.3, _again),
    ("batch", 0.2, _batch),
    ("algorithms", 0.3, _algorithms),
    ("solver", 0.2, _solver),
    ("budget", 0.3, _budget),
)


def check_tapes(text: str, path: Path, seed: int, index: int, out: Result) -> None:
    """Check some of the f64 programs; a finding goes to ``out``."""
    rng = random.Random(f"{seed}:{index}:tapes")
    chosen = [(name, way) for name, share, way in WAYS if rng.random() < share]
    if "f32" in text:
        return
    for name, way in chosen:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                done = way(text, path, rng)
            except Wrong as e:
                out.finding = Finding(e.kind, e.detail)
                return
            except WHERE_REFUSED as e:
                if "\n  do: " not in str(e):
                    out.finding = Finding(f"{name}: a refusal without a remedy", str(e))
                    return
                done, name = True, f"{name} refused"
        if done:
            out.compared.append(name)
