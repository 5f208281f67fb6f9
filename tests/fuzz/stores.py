"""Random stores through computed indices: those that two iterations make to one element must be refused, and all others have the gradient
of what is left in the end. And what a launch reads that a later one of the tape overwrites.

Python evaluates the indices with numpy's numbers, which wrap as a kernel's do. It shares no code with the compiler, so it knows which
programs must be refused.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import qdrun as qd

from .check import Finding, Result
from .execute import SCALAR, load, options_of, start

SIZE = 32
"""Elements of the arrays; each index ends in ``& 31``."""
ROUNDS = 2
"""Kernels for each differentiable program, and pairs of launches."""
KEEPS = ("({} ^ C)", "({} + C)", "({} * ODD)", "(31 - {})", "(({} + C) % 32)", "(-{} % 32)", "(~{} + 32)", "({} if {} < 16 else 47 - {})",
         "(({} >> 1 & 15) | (({} & 1) << 4))", "({} * HUGE * INVERSE)", "qd.i32(qd.u8({}))", "qd.i32(qd.i64({}))", "({} // 4 + {} % 4 * 8)",
         "({} + s * C)", "({} * (2 * s + 1))", "qd.min({}, 31)", "abs(-{})")  # fmt: skip
LOSES = ("({} // 2)", "({} & C)", "({} % LOW)", "qd.min({}, C)", "qd.max({}, C)", "abs({} - C)", "({} >> 1)", "({} * LOW)", "({} * s)",
         "qd.select({} > C, {}, {} // 2)", "qd.i32(qd.i8({} * 16))", "({} << 30)",
         "qd.popcnt({})", "({} * {})", "qd.max({} - C, 0)")  # fmt: skip


@dataclass(frozen=True)
class Write:
    """``if guard: y[at] = x[source] * factor``, or ``+=``."""

    guard: str
    at: str
    plain: bool
    source: str
    factor: float

    def lines(self) -> list[str]:
        line = f"y[{self.at}] {'=' if self.plain else '+='} x[{self.source}] * {self.factor}"
        return [f"if {self.guard}:", f"    {line}"] if self.guard else [line]


@dataclass(frozen=True)
class Kernel:
    """A kernel, and the indices of its iterations; ``s`` is its argument."""

    head: str
    iterations: list[dict[str, int]]
    writes: list[Write]
    s: int

    def text(self) -> str:
        body = [line for w in self.writes for line in w.lines()]
        if "k" in self.iterations[0]:
            body = ["for k in range(2):", *("    " + line for line in body)]
        kernel = ["@qd.kernel", "def kernel(s: qd.i32):", f"    for {self.head}:", *("        " + line for line in body)]
        fields = [f"{n} = qd.field(qd.f64, shape={SIZE}, needs_grad=True)" for n in "xy"]
        return "\n".join([*HEAD, *fields, f"p = qd.field(qd.i32, shape={SIZE})", "", "", *kernel]) + "\n"


HEAD = ["import qdrun as qd", "", 'OPTIONS = {"default_fp": "f64"}', ""]


def _popcnt(x: Any) -> Any:
    return np.int32(bin(int(x) & 0xFFFFFFFF).count("1"))


def _integer(kind: type) -> Any:
    return lambda x: np.asarray(x).astype(kind)[()]


_QD = SimpleNamespace(
    **{
        name: _integer(getattr(np, long))
        for name, long in (("i8", "int8"), ("u8", "uint8"), ("i32", "int32"), ("i64", "int64"))
    },
    min=np.minimum,  # Python's would give its own numbers, which do not wrap
    max=np.maximum,
    select=lambda cond, a, b: a if cond else b,
    popcnt=_popcnt,
)


def evaluated(text: str, names: dict[str, int], p: np.ndarray | None = None) -> int:
    """The value of an index, which wraps."""
    with np.errstate(all="ignore"):
        return int(eval(text, {"qd": _QD, "p": p, "abs": abs}, {n: np.int32(v) for n, v in names.items()}))


def draw_index(rng: random.Random, base: str) -> str:
    """An index made of maps of the numbers below 32, most of which keep different numbers different."""
    out = base
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        huge = 2 * rng.randrange(2**28, 2**30) + 1
        inverse = pow(huge, -1, 2**32)
        numbers = {"C": rng.randrange(32), "ODD": rng.randrange(1, 32, 2), "LOW": rng.choice((2, 3, 5)), "HUGE": huge}
        numbers["INVERSE"] = inverse - 2**32 if inverse >= 2**31 else inverse
        text = rng.choice(LOSES if rng.random() < 0.25 else KEEPS)
        for name, value in numbers.items():
            text = text.replace(name, f"({value})" if value < 0 else str(value))
        out = text.replace("{}", out) if len(out) < 120 else out
    return out


def draw(rng: random.Random, memory: bool) -> Kernel:
    """A kernel; with ``memory`` its indices go through ``p``."""
    s = rng.randrange(4)
    if rng.random() < 0.3:
        head, base = "i, j in qd.ndrange(4, 8)", rng.choice(("i * 8 + j", "j * 4 + i", "i + j * 4", "i + j", "j"))
        iterations = [{"i": i, "j": j} for i in range(4) for j in range(8)]
    else:
        begin, end, step = rng.choice(((0, 8, 1), (0, 32, 1), (0, 1, 1), (3, 20, 1), (0, 30, 3), (31, -1, -2), (0, 5 + s, 1)))
        ends = f"{begin}, 5 + s" if end == 5 + s else f"{begin}, {end}, {step}"
        head, base = f"i in range({ends})", "i"
        iterations = [{"i": i} for i in range(begin, end, step)]
    if rng.random() < 0.25:
        base = f"({base}) * 2 + k" if rng.random() < 0.7 else f"({base}) + k"
        iterations = [{**at, "k": k} for at in iterations for k in range(2)]
    writes: list[Write] = []
    for number in range(rng.choice((1, 1, 2))):
        at = draw_index(rng, f"({base})")
        at = f"p[({at}) & 31]" if memory else f"({at}) & 31"
        at = f"({at} + {base}) & 31" if memory and rng.random() < 0.3 else at
        guard = rng.choice(("", "", "", "i % 2 == 0", "i > 3", "i == 2", "i == s"))
        plain = number == 0 or rng.random() < 0.5
        writes.append(Write(guard, at, plain, rng.choice(("i & 31", "i & 31", at, "3")), float(rng.randint(1, 5))))
    return Kernel(head, iterations, writes, s)


def expected(kernel: Kernel, p: np.ndarray) -> tuple[bool, bool, np.ndarray]:
    """Whether the gradient must be refused, whether it may be, and the factors of x in y.

    Iterations that store one value to one element may do so. Of two writes, one through memory, nothing is known before a launch.
    """
    content = np.zeros((SIZE, SIZE))  # of y, by the elements of x
    touched: dict[int, set[tuple[tuple[int, ...], bool, object]]] = {}
    for at in kernel.iterations:
        names = {**at, "s": kernel.s}
        for number, w in enumerate(kernel.writes):
            if w.guard and not evaluated(w.guard, names, p):
                continue
            element, source = evaluated(w.at, names, p), evaluated(w.source, names, p)
            iteration = tuple(v for n, v in at.items() if n != "k")
            touched.setdefault(element, set()).add((iteration, w.plain, (number, source)))
            if w.plain:
                content[element] = 0.0
            content[element, source] += w.factor
    must, may = False, len({w.at for w in kernel.writes}) > 1 and any("p[" in w.at for w in kernel.writes)
    for writes in touched.values():
        if len({iteration for iteration, *_ in writes}) > 1 and any(plain for _, plain, _ in writes):
            may = True
            must = must or len({value for *_, value in writes}) > 1
    return must, may, content


def check_stores(path: Path, seed: int, index: int, result: Result) -> None:
    """Draw kernels and pairs of launches, and compare."""
    rng = random.Random(f"{seed}:{index}:stores")
    for number in range(ROUNDS):
        result.compared.append("stores")
        wrong = one_kernel(rng, path.with_name(f"{path.stem}_stores_{number}.py")) or one_pair(
            rng, path.with_name(f"{path.stem}_pair_{number}.py")
        )
        if wrong:
            result.finding = Finding(*wrong)
            return


def one_kernel(rng: random.Random, path: Path) -> tuple[str, str] | None:
    """The gradient of one kernel: what is wrong with it, and the kernel."""
    memory = rng.random() < 0.3
    kernel, p = draw(rng, memory), np.array([rng.randrange(32) for _ in range(SIZE)], np.int32)
    if memory and rng.random() < 0.6:
        p = np.array(rng.sample(range(SIZE), SIZE), np.int32)
    text = kernel.text()
    must, may, content = expected(kernel, p)
    names = _loaded(path, text, debug=memory)
    x, y = names["x"], names["y"]
    names["p"].from_numpy(p)
    at = np.array([rng.uniform(0.5, 1.5) for _ in range(SIZE)])
    weights = np.array([rng.uniform(0.5, 1.5) for _ in range(SIZE)])
    x.from_numpy(at)
    y.fill(0.0)
    names["kernel"](kernel.s)
    values = y.to_numpy()
    y.grad.from_numpy(weights)
    where = f"s = {kernel.s}, p = {p.tolist()}\n{text}"
    try:
        names["kernel"].grad(kernel.s)
    except qd.DataAccessError as error:
        return None if may else ("a store is refused that no two iterations make to one element", f"{error}\n{where}")
    if must:
        return "several iterations store to one element, and the gradient is not refused", where
    if not np.allclose(values, content @ at):
        return "stores leave something else than Python's", where
    if not np.allclose(x.grad.to_numpy(), content.T @ weights):
        return "the gradient through a computed index is wrong", f"{x.grad.to_numpy()} != {content.T @ weights}\n{where}"
    return None


def one_pair(rng: random.Random, path: Path) -> tuple[str, str] | None:
    """A launch that reads an element, and a later one that may overwrite it: the tape keeps the old value, or refuses."""
    forms = (
        "a + b + c",
        "a * b + c",
        "(a << (b & 31)) + c",
        "(a - b) * c",
        "a // 3 + b % 7",
        "qd.i32(qd.i8(a + b)) + c",
        "(a ^ b) + c",
    )
    read, write = (rng.choice(forms) for _ in range(2))
    numbers = (0, 1, 2, 3, 7, -1, 100, 2**31 - 1, -(2**31), 2**30, 65536)
    first, second = ([rng.choice(numbers) for _ in range(3)] for _ in range(2))
    arguments = "a: qd.i32, b: qd.i32, c: qd.i32"
    lines = [
        *HEAD,
        f"x = qd.field(qd.f64, shape={SIZE}, needs_grad=True)",
        "loss = qd.field(qd.f64, shape=(), needs_grad=True)",
        "",
        "",
    ]
    lines += ["@qd.kernel", f"def read({arguments}):", f"    loss[None] += x[({read}) & 7] ** 2", "", ""]
    lines += ["@qd.kernel", f"def write({arguments}):", f"    x[({write}) & 7] = 5.0"]
    text = "\n".join(lines) + "\n"
    elements = [evaluated(f"({form}) & 7", dict(zip("abc", at))) for form, at in ((read, first), (write, second))]
    names = _loaded(path, text)
    x, at = names["x"], np.array([rng.uniform(0.5, 1.5) for _ in range(SIZE)])
    x.from_numpy(at)
    where = f"read{tuple(first)} is element {elements[0]}, write{tuple(second)} is element {elements[1]}\n{text}"
    try:
        with qd.ad.Tape(loss=names["loss"]):
            names["read"](*first)
            names["write"](*second)
    except qd.DataAccessError:
        return ("a launch is refused that overwrites another element", where) if elements[0] != elements[1] else None
    want = np.zeros(SIZE)
    want[elements[0]] = 2 * at[elements[0]]
    return None if np.allclose(x.grad.to_numpy(), want) else ("the gradient on a tape is wrong", where)


def _loaded(path: Path, text: str, **more: Any) -> dict[str, Any]:
    path.write_text(text)
    start(SCALAR, options_of(text), **more)
    names = load(path)
    for kernel in ("kernel", "read", "write"):
        if kernel in names:
            assert names[kernel].source  # read now: the file goes
    path.unlink()
    return names
