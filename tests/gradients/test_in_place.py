"""State that is updated in place, under a tape: random programs against central differences, and how many bytes are kept."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qdrun as qd

sys.path.insert(0, str(Path(__file__).parent))
from in_place_programs import InPlace, random_values


@pytest.fixture(autouse=True)
def no_program():
    yield
    qd.reset()


def check_program(case: InPlace, seed: int, **tape: Any) -> bool:
    """One random program: its gradient along random directions, and what its fields hold. Whether differences say anything."""
    rng = np.random.default_rng(seed)
    calls = case.draw(rng, int(rng.integers(3, 18)))
    values = random_values(rng, case)
    case.loss_at(calls, values)
    left = case.values()
    gradient = case.gradient(calls, values, **tape)
    for got, want in zip(case.values(), left, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, err_msg=f"{seed}: {calls}")
    assert "tape" not in case.program.usage()
    said = 0
    for _ in range(2):
        by = [rng.uniform(-1, 1, v.shape) for v in values]
        terms = [g * d for g, d in zip(gradient, by, strict=True)]
        scale = max(1.0, sum(float(np.abs(t).sum()) for t in terms))
        found = []
        for h in (1e-5, 1e-6):
            up, low = (case.loss_at(calls, [v + s * d for v, d in zip(values, by, strict=True)]) for s in (h, -h))
            found.append(float(np.sum(up - low)) / (2 * h))
        if abs(found[0] - found[1]) < 1e-6 * scale:  # else there is a jump, or a tie
            said += 1
            assert abs(sum(float(t.sum()) for t in terms) - found[1]) < 1e-6 * scale, f"{seed}: {calls}"
    return said > 0


WAYS: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "threads": ({"cpu_max_num_threads": 2}, {}, 12),
    "one thread": ({"cpu_max_num_threads": 1}, {"validation": True}, 8),
    "interpreter": ({"arch": "python"}, {}, 4),
    "debug": ({"debug": True}, {}, 6),
    "batch": ({"batch": 3}, {}, 8),
    "emulated CUDA": ({"arch": "cuda", "device": "emulated"}, {}, 6),
    "a batch on emulated CUDA": ({"arch": "cuda", "device": "emulated", "batch": 3}, {}, 4),
    "Vulkan": ({"arch": "vulkan", "device": "llvmpipe"}, {}, 6),
}
SLOW = ("debug", "batch", "emulated CUDA", "a batch on emulated CUDA", "Vulkan")


@pytest.mark.parametrize("way", [pytest.param(w, marks=pytest.mark.slow) if w in SLOW else w for w in WAYS])
def test_random_programs_in_place_have_the_gradients_of_differences(way):
    options, tape, count = WAYS[way]
    arch = {"arch": getattr(qd, options["arch"])} if "arch" in options else {}
    case = InPlace(**{**options, **arch})
    first = int(np.random.default_rng().integers(1 << 30))
    assert sum(check_program(case, first + k, **tape) for k in range(count)) > count // 2


def in_steps(case: InPlace, calls: list[tuple[str, float]], values: list[np.ndarray], n: int, window: int | None) -> Any:
    """The gradient of ``n`` steps that update everything in place; ``window``: None for a plain loop. And the plan, and bytes kept."""
    turns, plan = sum(name == "turns" for name, _ in calls), None

    def step(t: int, k: int) -> None:
        case.current = (t * turns) % 2
        for name, c in calls:
            case.launches[name](c * (1.0 - 0.01 * t))

    case.start(values)
    with qd.ad.Tape(loss=case.loss):
        case.touch()
        if window is None:
            for t in range(n):
                step(t, t)
        else:
            plan = qd.ad.checkpointed_steps(step, n, in_place=[*case.inputs, case.grid, case.trips], window=window)
        case.add_up()
    return [*(t.grad.to_numpy() for t in case.inputs), *case.values()], plan


STEPS = {"one thread": {"cpu_max_num_threads": 1}, "budget": {"cpu_max_num_threads": 1, "memory_budget": 60_000}}
SLOW_STEPS = {
    "debug": {"debug": True, "cpu_max_num_threads": 1},
    "batch": {"batch": 3, "cpu_max_num_threads": 1},
    "emulated CUDA": {"arch": "cuda", "device": "emulated"},
    "interpreter": {"arch": "python"},
}


@pytest.mark.parametrize("way", [*STEPS, *(pytest.param(w, marks=pytest.mark.slow) for w in SLOW_STEPS)])
def test_steps_in_place_have_the_gradient_of_a_plain_loop_in_any_window(way):
    options = {**STEPS, **SLOW_STEPS}[way]
    options = {**options, "arch": getattr(qd, options["arch"])} if "arch" in options else options
    seed = int(np.random.default_rng().integers(1 << 30))
    rng, n = np.random.default_rng(seed), 7
    case = InPlace(**options)
    for _ in range(2 if way in STEPS else 1):
        calls, values = case.draw(rng, int(rng.integers(2, 7))), random_values(rng, case)
        want, _ = in_steps(case, calls, values, n, None)
        for window in (n, 3, 1):
            got, plan = in_steps(case, calls, values, n, window)
            for a, b in zip(got, want, strict=True):
                np.testing.assert_allclose(
                    a, b, rtol=0 if "cpu_max_num_threads" in options else 1e-9, err_msg=f"{seed}: {calls}"
                )
            assert plan.windows == -(-n // window)
            assert not {"tape", "snapshots"} & case.program.usage().keys()


class Springs:
    """``v -= dt sin(x); x += dt v``, unmodified or in windows."""

    def __init__(self, size: int, **options: Any) -> None:
        self.program = qd.init(default_fp=qd.f64, cpu_max_num_threads=1, **options)
        x, v = self.x, self.v = [qd.field(qd.f64, size, needs_grad=True, name=name) for name in "xv"]
        loss = self.loss = qd.field(qd.f64, (), needs_grad=True)

        @qd.kernel
        def euler(dt: qd.f64):
            for i in x:
                v[i] -= dt * qd.sin(x[i])
                x[i] += dt * v[i]

        @qd.kernel
        def total():
            for i in x:
                loss[None] += x[i] ** 2

        self.euler, self.total = euler, total

    def run(self, n: int, window: int | None, **how: Any) -> tuple[Any, int]:
        """The plan, and the bytes that the tape holds at its end."""
        plan = None
        self.x.from_numpy(np.linspace(0.3, 2.0, self.x.shape[0]))
        self.v.fill(0.0)
        with qd.ad.Tape(loss=self.loss):
            if window is None:
                for _ in range(n):
                    self.euler(0.05)
            else:
                plan = qd.ad.checkpointed_steps(
                    lambda t, k: self.euler(0.05), n, in_place=[self.x, self.v], window=window, **how
                )
            self.total()
            used = self.program.usage()
        return plan, used.get("tape", 0) + used.get("snapshots", 0)

    def results(self) -> tuple[bytes, ...]:
        """The gradients and the final state."""
        return tuple(a.to_numpy().tobytes() for a in (self.x.grad, self.v.grad, self.x, self.v))


def test_steps_in_place_keep_what_one_window_needs():
    n, size = 64, 10
    found, peaks = set(), []
    for window in (None, 64, 8, 4):
        case = Springs(size)
        plan, held = case.run(n, window)
        if window in (8, 4):
            assert plan.state_bytes == 2 * 8 * size and plan.made_bytes == window * 8 * size
            assert plan.bytes == 4 * 8 * size + plan.snapshot_bytes + plan.made_bytes
            assert held == plan.snapshot_bytes + plan.made_bytes
        found.add(case.results())
        peaks.append(case.program.peak_bytes)
    assert len(found) == 1 and peaks[0] == peaks[1] > peaks[2]


def test_steps_in_place_fit_the_memory_budget_that_a_refusal_names():
    want = Springs(10)
    want.run(64, None)
    budget, refusals = 1_700, []
    while True:  # fields, then snapshots, then kernels, then what a window keeps
        case = Springs(10, memory_budget=budget)
        try:
            case.run(64, 8, levels=3)
            break
        except qd.OutOfMemory as error:
            assert error.smallest is not None and error.smallest > budget and f"memory_budget={error.smallest}" in str(error)
            budget = error.smallest
            refusals.append(str(error))
    assert (
        len(refusals) < 5 and "3 snapshots and the final state, 640 bytes, in half of what memory_budget leaves" in refusals[0]
    )
    assert case.results() == want.results() and case.program.peak_bytes <= budget


@pytest.mark.parametrize("arrays", ["temporaries", "in_place"])
def test_what_steps_overwrite_within_a_window_is_kept(arrays):
    """A grid that each step clears, fills and normalises in place, beside state with slots."""
    found = set()
    for window in (9, 4, 1):
        case = Grid(window)
        slope = (case.run(arrays, 1e-6) - case.run(arrays, -1e-6)) / 2e-6
        case.run(arrays)
        np.testing.assert_allclose(case.by.grad[None], slope, rtol=1e-7)
        found.add((case.by.grad[None], case.x.grad.to_numpy()[0].tobytes()))
    assert len(found) == 1


class Grid:
    """State with slots, and a grid without."""

    def __init__(self, window: int) -> None:
        qd.init(default_fp=qd.f64, cpu_max_num_threads=1)
        self.window = window
        x = self.x = qd.field(qd.f64, (window + 1, 6), needs_grad=True)
        grid = self.grid = qd.field(qd.f64, 6, needs_grad=True, name="grid")
        by, loss = self.by, self.loss = [qd.field(qd.f64, (), needs_grad=True) for _ in range(2)]

        @qd.kernel
        def scatter(k: qd.i32):
            for i in grid:
                grid[i] = 0.0
            for i in range(6):
                grid[(2 * i) % 6] += x[k, i] * x[k, i] * by[None]

        @qd.kernel
        def normalise():
            for i in grid:
                grid[i] = grid[i] / (1.0 + grid[i] ** 2)

        @qd.kernel
        def gather(k: qd.i32):
            for i in grid:
                x[k + 1, i] = qd.cos(x[k, i]) * grid[(i + 1) % 6] + 0.3 * x[k, i]

        @qd.kernel
        def total(k: qd.i32):
            for i in range(6):
                loss[None] += x[k, i] ** 2

        self.kernels = scatter, normalise, gather, total

    def step(self, t: int, k: int) -> None:
        scatter, normalise, gather, _ = self.kernels
        scatter(k)
        normalise()
        normalise()
        gather(k)

    def run(self, arrays: str, h: float = 0.0) -> float:
        first = np.zeros(self.x.shape)
        first[0] = np.linspace(0.2, 1.1, 6)
        self.x.from_numpy(first)
        self.grid.fill(0.0)
        self.by[None] = 0.9 + h
        with qd.ad.Tape(loss=self.loss):
            qd.ad.checkpointed_steps(self.step, 9, self.x, **{arrays: [self.grid]})
            self.kernels[3](min(9, self.window))
        return self.loss[None]


@pytest.mark.parametrize("window", [4, 2])
def test_an_array_that_an_earlier_launch_reads_and_python_assigns_in_a_step_is_kept(window):
    qd.init(default_fp=qd.f64)
    s = qd.field(qd.f64, window + 1, needs_grad=True)
    p, x, y, loss = (qd.field(qd.f64, (), needs_grad=True) for _ in range(4))

    @qd.kernel
    def first():
        y[None] = p[None] * x[None]

    @qd.kernel
    def move(k: qd.i32):
        s[k + 1] = qd.sin(s[k])

    @qd.kernel
    def measure(k: qd.i32):
        loss[None] += s[k] + y[None]

    def step(t, k):
        p[None] = 100.0 + t
        move(k)

    p[None], x[None], s[0] = 2.0, 3.0, 0.5
    with qd.ad.Tape(loss=loss):
        first()
        qd.ad.checkpointed_steps(step, 4, s)
        measure(window)
    assert (x.grad[None], p.grad[None], p[None]) == (2.0, 3.0, 103.0)


def test_the_budget_that_a_refusal_names_is_enough_and_is_the_peak():
    for seed in np.random.default_rng().integers(1 << 30, size=3).tolist():
        rng = np.random.default_rng(seed)
        case = InPlace(cpu_max_num_threads=1)
        calls, values = [("euler", 0.5), ("scaled", 0.3), *case.draw(rng, 8), ("iterate", 0.4)], random_values(rng, case)
        want = case.gradient(calls, values)
        small = InPlace(cpu_max_num_threads=1, memory_budget=1)
        with pytest.raises(qd.OutOfMemory, match=r"checkpointed_steps|memory_budget=") as error:
            small.gradient(calls, values)
        assert "tape" not in small.program.usage()
        budget = error.value.smallest
        assert f"qd.init(memory_budget={budget})" in str(error.value)
        enough = InPlace(cpu_max_num_threads=1, memory_budget=budget)
        for got, wanted in zip(enough.gradient(calls, values), want, strict=True):
            assert np.array_equal(got, wanted), (seed, calls)
        assert enough.program.peak_bytes == budget, (seed, calls)


def test_a_gradient_that_is_compiled_later_is_in_the_budget_that_a_tape_names():
    def run(budget: int) -> qd.Program:
        program = qd.init(default_fp=qd.f64, memory_budget=budget)
        x, y, loss = (qd.field(qd.f64, shape=s, needs_grad=True) for s in (8, 8, ()))

        @qd.kernel
        def first():
            for i in x:
                y[i] = x[i] * x[i]

        @qd.kernel
        def total(n: qd.i32):
            for i in x:
                v = y[i] + 0.1
                for _ in range(n):
                    v = qd.sin(v) * v
                loss[None] += v

        with qd.ad.Tape(loss):
            first()
            total(6)
            total(9)
        return program

    with pytest.raises(qd.OutOfMemory) as error:
        run(1)
    assert run(error.value.smallest).peak_bytes == error.value.smallest


class TwoArrays:
    """Launches that read one array as they find it and another one as they leave it, while earlier gradients need both."""

    def __init__(self) -> None:
        self.program = qd.init(default_fp=qd.f64)
        x, v = self.x, self.v = [qd.field(qd.f64, 6, needs_grad=True, name=name) for name in "xv"]
        loss = self.loss = qd.field(qd.f64, (), needs_grad=True)

        @qd.kernel
        def kick_and_drift(c: qd.f64):
            for i in v:
                v[i] -= qd.sin(x[i]) * c
            for i in x:
                x[i] += v[i] * x[i] * c

        @qd.kernel
        def drag(c: qd.f64):
            for i in v:
                v[i] *= 1.0 / (1.0 + c * x[i] * x[i])

        @qd.kernel
        def neighbour(k: qd.i32, c: qd.f64):
            x[k] = x[k] * x[k] * x[k + 1] + c
            v[k] = v[k] * c
            v[k + 1] = v[k] * v[k] * v[k + 1]

        @qd.kernel
        def total():
            for i in x:
                loss[None] += x[i] ** 2 + v[i] ** 3

        self.launches = [kick_and_drift, drag, lambda c: neighbour(int(5 * c), c)]
        self.total = total

    def run(self, calls: list[tuple[int, float]], values: np.ndarray) -> None:
        """Launch."""
        self.x.from_numpy(values[:6])
        self.v.from_numpy(values[6:])
        for number, c in calls:
            self.launches[number](c)
        self.total()


def test_a_launch_reads_one_array_as_it_finds_it_and_another_as_it_leaves_it():
    seed = int(np.random.default_rng().integers(1 << 30))
    rng, case = np.random.default_rng(seed), TwoArrays()
    for _ in range(4):
        calls = [(int(rng.integers(3)), float(rng.uniform(0.0, 0.9))) for _ in range(8)]
        values = rng.uniform(0.4, 1.1, 12)
        with qd.ad.Tape(case.loss):
            case.run(calls, values)
        found = np.concatenate([case.x.grad.to_numpy(), case.v.grad.to_numpy()])
        by, h, losses = rng.uniform(-1, 1, 12), 1e-6, []
        for step in (h, -h):
            case.loss[None] = 0.0
            case.run(calls, values + step * by)
            losses.append(case.loss[None])
        np.testing.assert_allclose(found @ by, (losses[0] - losses[1]) / (2 * h), rtol=1e-6, atol=1e-7, err_msg=f"{seed}")
