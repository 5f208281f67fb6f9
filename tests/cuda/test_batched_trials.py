"""Batches of trials on the emulated device: kernels launched one by one, and recorded launches, row by row as single trials on the CPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.codegen.amdgpu.hardware import amdgpu_target
from qdrun.compiler.codegen.cuda.hardware import cuda_target
from qdrun.compiler.codegen.cuda.nvptx_table import NVPTX
from qdrun.compiler.codegen.gpu.hardware import GpuTarget
from qdrun.compiler.codegen.gpu.trials.module import TrialSource, emit_chunks, emit_fill, emit_launch, emit_walk, trial_text
from qdrun.compiler.codegen.gpu.trials.task import TrialShape
from qdrun.compiler.codegen.llvm.function import LlvmModule
from qdrun.compiler.codegen.spirv.features import EVERYTHING
from qdrun.compiler.codegen.spirv.target import spirv_target
from qdrun.compiler.codegen.spirv.translate import translate
from qdrun.compiler.errors import QdrunAssertionError, TrialsFailed
from qdrun.compiler.ir.nodes import Axis, Const, Loop, Op, Stack, Task
from qdrun.compiler.ir.trials import TrialLayout, gpu_layout
from qdrun.compiler.ir.types import i32
from qdrun.compiler.runtime.amdgpu.build import compile_object
from qdrun.compiler.runtime.amdgpu.code_object import read_code
from qdrun.compiler.runtime.cuda.ptx import compile_ptx
from qdrun.compiler.runtime.gpu.trial_graphs import Room, TrialGraphs, shape_of

sys.path.insert(0, str(Path(__file__).parents[1]))
from spirv_check import check

COUNTS = (1, 2, 3, 17)


@dataclass
class Made:
    """What a case has built: fields that go in and out, and what is launched."""

    given: dict[str, Any]
    found: dict[str, Any]
    sweep: Callable[[], Any]
    lanes_exact: bool = field(default=False)


def springs() -> Made:
    """Masses that neighbours pull at: shared indices, sums into elements that iterations share, a loss, gradients of it."""
    n = 6
    x = qd.Vector.field(2, qd.f64, shape=(4, n), needs_grad=True)
    force = qd.Vector.field(2, qd.f64, shape=(3, n), needs_grad=True)
    stiff, loss = qd.field(qd.f64, shape=(), needs_grad=True), qd.field(qd.f64, shape=(), needs_grad=True)
    ends = qd.field(qd.i32, shape=(n + 1, 2), per_trial=False)
    ends.from_numpy(np.array([(k % n, (2 * k + 1) % n) for k in range(n + 1)]))

    @qd.kernel
    def pull(t: qd.i32):
        for s in range(n + 1):
            a, b = ends[s, 0], ends[s, 1]
            f = stiff[None] * qd.sin(x[t, a] - x[t, b])
            force[t, a] -= f
            force[t, b] += 0.5 * f

    @qd.kernel
    def advance(t: qd.i32, dt: qd.f64):
        for i in range(n):
            x[t + 1, i] = x[t, i] + dt * force[t, i]

    @qd.kernel
    def measure():
        for i in range(n):
            loss[None] += x[3, i].norm_sqr() * (i + 1)

    def sweep() -> None:
        force.fill(0.0)
        with qd.ad.Tape(loss):
            for t in range(3):
                pull(t)
                advance(t, 0.1)
            measure()

    return Made({"x": x, "stiff": stiff}, {"loss": loss, "x": x, "dx": x.grad, "dstiff": stiff.grad}, sweep)


def loops() -> Made:
    """Bounds that differ from trial to trial, of a parallel loop and in it, with tapes."""
    n, s = qd.field(qd.i32, shape=2), qd.field(qd.f64, shape=(), needs_grad=True)
    y, loss = qd.field(qd.f64, shape=9, needs_grad=True), qd.field(qd.f64, shape=(), needs_grad=True)

    @qd.kernel
    def run():
        for i in range(n[0]):
            v = s[None] + 0.1 * i
            for k in range(n[1] + i):
                v = qd.sin(v) * s[None] + 0.01 * k
            y[i] += v
        for i in y:
            loss[None] += y[i] * y[i]

    def sweep() -> None:
        y.fill(0.25)
        with qd.ad.Tape(loss):
            run()

    return Made({"n": n, "s": s}, {"loss": loss, "y": y, "ds": s.grad}, sweep)


def long_tape() -> Made:
    """A tape that is too long for the chip: adstack rows in the heap."""
    x, loss = qd.field(qd.f64, shape=5, needs_grad=True), qd.field(qd.f64, shape=(), needs_grad=True)

    @qd.kernel
    def run(steps: qd.i32):
        for i in x:
            v, w = x[i], 1.0
            for k in range(steps):
                v, w = qd.cos(v) + 0.3 * w, 0.5 * w + 0.1 * v * v / (1.0 + k)
            loss[None] += v + w

    def sweep() -> None:
        with qd.ad.Tape(loss):
            run(300)

    return Made({"x": x}, {"loss": loss, "dx": x.grad}, sweep)


def kinds() -> Made:
    """Types, several axes, serial code between loops, minima and maxima, counters."""
    a = qd.field(qd.f32, shape=(3, 4))
    flags, bins = qd.field(qd.u1, shape=(3, 4)), qd.field(qd.i32, shape=5)
    low, high, order = qd.field(qd.f32, shape=()), qd.field(qd.f32, shape=()), qd.field(qd.i64, shape=12)
    mats = qd.Matrix.field(2, 2, qd.f64, shape=3)

    @qd.kernel
    def run(scale: qd.f32):
        low[None] = 1e9
        high[None] = -1e9
        for i, j in qd.ndrange(3, (1, 4)):
            flags[i, j] = a[i, j] > 0.5
            qd.atomic_min(low[None], a[i, j] * scale)
            qd.atomic_max(high[None], a[i, j])
            bins[qd.cast(a[i, j] * 4.0, qd.i32)] += 1
        total = 0
        for k in range(5):
            total += bins[k]
        for i in range(12):
            order[i] = total * i + qd.cast(high[None] * 100.0, qd.i64)
        for i in mats:
            mats[i] = qd.Matrix([[a[i, 0], 1.0], [2.0, a[i, 1]]]) @ qd.Matrix([[1.0, scale], [0.5, i]])

    def sweep() -> None:
        bins.fill(0)
        run(0.5)

    found = {"flags": flags, "bins": bins, "low": low, "high": high, "order": order, "mats": mats}
    return Made({"a": a}, found, sweep, True)


def order() -> Made:
    """Stores, and loads of what they have changed: under the same index, another one, or one that is found at run time."""
    a, m, at = qd.field(qd.f64, shape=6), qd.field(qd.f64, shape=(6, 3)), qd.field(qd.i32, shape=6)
    pair, out = qd.Vector.field(2, qd.f64, shape=6), qd.field(qd.f64, shape=(6, 4))

    @qd.kernel
    def run():
        for i in range(6):
            m[i, 0] = a[i]
            m[i, 1] = 2.0 * m[i, 0] + m[i, 2]
            pair[i][0] = m[i, 1]
            pair[i][1] = pair[i][0] + a[i]
            out[i, 0] = m[i, at[i]]
            m[i, at[i]] += pair[i][1]
            out[i, 1] = m[i, 1]
            m[i, 2] -= out[i, 1]
            if pair[i][0] > 1.0:
                out[i, 2] = m[i, 2]
                m[i, 2] = 0.5
            ratio = pair[i][1] / (1.0 + m[i, 0] ** 2)
            m[i, at[i]] += ratio  # loads behind a division, of what was stored before it and is stored after it
            out[i, 3] = m[i, 2] + qd.sqrt(m[i, at[i]] ** 2 + 1.0)
            m[i, 0] = ratio
            m[i, 1] += m[i, 0] / (2.0 + ratio * ratio)

    def sweep() -> None:
        m.fill(0.125)
        run()

    return Made({"a": a, "at": at}, {"m": m, "pair": pair, "out": out}, sweep, True)


CASES = {f.__name__: f for f in (springs, loops, long_tape, kinds, order)}


def given_to(name: str, count: int) -> dict[str, np.ndarray]:
    """The inputs of a case, by trial; those of trial b are the same in every batch."""
    each = [np.random.default_rng([7, b]) for b in range(count)]
    made: dict[str, list[np.ndarray]] = {}
    for rng in each:
        one: dict[str, Any] = {
            "springs": lambda rng=rng: {"x": rng.random((4, 6, 2)), "stiff": rng.random() + 0.5},
            "loops": lambda rng=rng: {"n": rng.integers(0, 9, 2), "s": rng.random()},
            "long_tape": lambda rng=rng: {"x": rng.random(5)},
            "kinds": lambda rng=rng: {"a": rng.random((3, 4))},
            "order": lambda rng=rng: {"a": rng.random(6), "at": rng.integers(0, 3, 6)},
        }[name]()
        for key, value in one.items():
            made.setdefault(key, []).append(np.asarray(value))
    return {key: np.stack(values) for key, values in made.items()}


def run(name: str, given: dict[str, np.ndarray], record: bool = False, **options: Any) -> dict[str, np.ndarray]:
    """What a case gives."""
    program = qd.init(default_fp=qd.f64, **options)
    made = CASES[name]()

    def fill() -> None:
        for key, value in given.items():
            made.given[key].from_numpy(value)

    fill()
    made.sweep()
    if record:
        graph = qd.capture(made.sweep)
        for _ in range(2):
            fill()
            graph()
    qd.sync()
    out = {key: x.to_numpy() for key, x in made.found.items()}
    program.close()
    return out


@pytest.fixture(scope="module")
def alone() -> Callable[[str, int], list[dict[str, np.ndarray]]]:
    """The first trials of a case, each alone on the CPU."""
    known: dict[str, list[dict[str, np.ndarray]]] = {}

    def of(name: str, count: int) -> list[dict[str, np.ndarray]]:
        rows = known.setdefault(name, [])
        given = given_to(name, count)
        for b in range(len(rows), count):
            one = {key: value[b] for key, value in given.items()}
            rows.append(run(name, one, arch=qd.cpu, cpu_max_num_threads=1, cpu_lanes=1))
        return rows[:count]

    return of


def compare(got: dict[str, np.ndarray], want: list[dict[str, np.ndarray]]) -> None:
    """Row by row equal, but for the order of sums and the last places of functions."""
    for b, row in enumerate(want):
        for key, value in row.items():
            single = got[key].dtype == np.float32
            np.testing.assert_allclose(
                got[key][b], value, rtol=1e-5 if single else 1e-11, atol=1e-12, err_msg=f"{key} of trial {b}"
            )


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("count", COUNTS)
def test_launched_one_by_one(name: str, count: int, alone: Any) -> None:
    compare(run(name, given_to(name, count), arch=qd.cuda, device="emulated", batch=count), alone(name, count))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("count", "lanes"), [(1, 0), (2, 1), (3, 4), (17, 1), (17, 2), (3, 64)])
def test_recorded(name: str, count: int, lanes: int, alone: Any) -> None:
    got = run(name, given_to(name, count), True, arch=qd.cuda, device="emulated", batch=count, gpu_lanes=lanes)
    compare(got, alone(name, count))


def test_a_hundred_trials(alone: Any) -> None:
    for record in (False, True):
        got = run("springs", given_to("springs", 100), record, arch=qd.cuda, device="emulated", batch=100, gpu_lanes=1)
        compare(got, alone("springs", 100))


@pytest.mark.parametrize("options", [{"ad_checkpoint_levels": 2}, {"ad_checkpoint_levels": 3}, {"memory_budget": 40_000}])
def test_levels_and_budgets(options: dict[str, Any], alone: Any) -> None:
    for lanes in (1, 4):
        made = {"arch": qd.cuda, "device": "emulated", "batch": 5, "gpu_lanes": lanes, **options}
        compare(run("long_tape", given_to("long_tape", 5), True, **made), alone("long_tape", 5))


def test_the_bits_are_those_of_a_batch_of_one() -> None:
    """Where one thread has a trial, nothing of it depends on the others."""
    for name in CASES:
        given, options = given_to(name, 11), {"arch": qd.cuda, "device": "emulated", "gpu_lanes": 1}
        whole = run(name, given, True, batch=11, **options)
        for b in (0, 4, 10):
            one = run(name, {key: value[b : b + 1] for key, value in given.items()}, True, batch=1, **options)
            for key, value in one.items():
                np.testing.assert_array_equal(whole[key][b], value[0], f"{name}: {key} of trial {b}")


def test_random_numbers_are_those_that_a_trial_draws_alone() -> None:
    def draw(**options: Any) -> np.ndarray:
        program = qd.init(default_fp=qd.f64, **options)
        x = qd.field(qd.f64, shape=7)

        @qd.kernel
        def shake():
            for i in x:
                x[i] += qd.random() + i

        shake()
        shake()
        if "gpu_lanes" in options:
            x.fill(0.0)
            graph = qd.capture(shake)
            graph()
            graph()
        out = x.to_numpy()
        program.close()
        return out

    for lanes in (None, 1, 4):
        shape = {} if lanes is None else {"gpu_lanes": lanes}
        got = draw(arch=qd.cuda, device="emulated", batch=5, random_seed=3, **shape)
        for b in range(5):
            program = qd.init(arch=qd.cpu, default_fp=qd.f64, random_seed=3 + b, cpu_max_num_threads=1)
            x = qd.field(qd.f64, shape=7)

            @qd.kernel
            def shake(x: qd.Template):
                for i in x:
                    x[i] += qd.random() + i

            for k in range(2 if lanes is None else 4):
                if lanes is not None and k == 2:
                    x.fill(0.0)
                shake(x)
            np.testing.assert_array_equal(got[b], x.to_numpy())
            program.close()


def test_arrays_that_are_one_array() -> None:
    """A kernel is given one array twice: what it stores to the one is what it loads of the other."""
    program = qd.init(arch=qd.cuda, device="emulated", default_fp=qd.f64, batch=3)

    @qd.kernel
    def chain(a: qd.types.ndarray(ndim=1), b: qd.types.ndarray(ndim=1)):
        for _ in range(1):
            a[0] = b[1] + 1.0
            b[2] = a[0] + b[0]
            a[1] = b[2]

    both = qd.ndarray(qd.f64, 3)
    values = np.arange(9.0).reshape(3, 3)
    both.from_numpy(values)
    chain(both, both)
    first = values[:, 1] + 1.0
    np.testing.assert_array_equal(both.to_numpy(), np.stack([first, 2.0 * first, 2.0 * first], axis=1))
    program.close()


def test_the_kernel_of_many_recorded_launches_is_lowered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    program, lowered = qd.init(arch=qd.cuda, device="emulated", batch=4), list[Any]()
    x, source = qd.field(qd.f32, shape=3), TrialGraphs._source

    @qd.kernel
    def step(t: qd.i32):
        for i in x:
            x[i] += t

    def look(self: TrialGraphs, code: Any) -> TrialSource:
        lowered.append(code)
        return source(self, code)

    def sweep() -> None:
        for t in range(20):
            step(t)

    sweep()
    monkeypatch.setattr(TrialGraphs, "_source", look)
    qd.capture(sweep)()
    assert len(lowered) == 1 and x.to_numpy().tolist() == [[380.0] * 3] * 4
    program.close()


def test_adstack_rows_of_all_launches_of_a_walk_lie_at_one_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads are in different launches at one time, and each has one row."""
    program = qd.init(arch=qd.cuda, device="emulated", default_fp=qd.f64, batch=40, gpu_lanes=1, memory_budget=100_000)
    few, many = (qd.field(qd.f64, shape=n, needs_grad=True) for n in (1, 4))
    loss, seen = qd.field(qd.f64, shape=(), needs_grad=True), list[set[int]]()

    @qd.kernel
    def run(x: qd.Template, steps: qd.i32):
        for i in x:
            v, w = x[i], 1.0
            for k in range(steps):
                v, w = qd.cos(v) + 0.3 * w, 0.5 * w + 0.1 * v * v / (1.0 + k)
            loss[None] += v + w

    def sweep() -> None:
        with qd.ad.Tape(loss):
            run(few, 300)
            run(many, 3000)

    compiled = TrialGraphs._compiled

    def look(self: TrialGraphs, rows: list[Any], of: Any) -> Any:
        launches = [r for r in rows if hasattr(r, "context")]
        words = [(r, w) for r in launches for (_, name), w in r.compiled.layout.params.items() if name == "rows"]
        seen.append({int(r.context[w]) for r, w in words})
        assert len(words) == 2
        return compiled(self, rows, of)

    sweep()
    monkeypatch.setattr(TrialGraphs, "_compiled", look)
    qd.capture(sweep)()
    assert len(seen) == 1 and len(seen[0]) == 1
    program.close()


@pytest.mark.parametrize("lanes", [1, 4])
def test_a_trial_that_fails_is_alone(lanes: int) -> None:
    program = qd.init(arch=qd.cuda, device="emulated", default_fp=qd.f64, batch=9, gpu_lanes=lanes, check_out_of_bound=True)
    at, x, after = qd.field(qd.i32, shape=4), qd.field(qd.f64, shape=6), qd.field(qd.f64, shape=())

    @qd.kernel
    def scatter():
        for i in at:
            x[at[i]] += 1.0
        for _ in range(1):
            after[None] += 1.0

    wanted = np.tile(np.array([0, 2, 2, 5]), (9, 1))
    wanted[3, 1], wanted[7, 3] = 6, 99
    good = [b for b in range(9) if b not in (3, 7)]

    def once(launch: Callable[[], Any]) -> None:
        x.fill(0.0)
        after.fill(0.0)
        at.from_numpy(wanted)
        with pytest.raises(TrialsFailed, match="2 of 9 trials failed: 3, 7") as caught:
            launch()
            qd.sync()
        assert sorted(caught.value.failed) == [3, 7]
        assert all(isinstance(e, QdrunAssertionError) for e in caught.value.failed.values())
        assert "99" in str(caught.value.failed[7]) and "scatter" in str(caught.value.failed[7])
        np.testing.assert_array_equal(x.to_numpy()[good], np.tile([1.0, 0, 2, 0, 0, 1], (7, 1)))
        np.testing.assert_array_equal(after.to_numpy(), [float(b in good) for b in range(9)])

    once(scatter)
    at.fill(0)
    graph = qd.capture(lambda: (scatter(), scatter())[0])
    x.fill(0.0)
    after.fill(0.0)
    at.from_numpy(wanted)
    with pytest.raises(TrialsFailed):
        graph()
        qd.sync()
    np.testing.assert_array_equal(after.to_numpy(), [2.0 * (b in good) for b in range(9)])
    at.fill(1)
    graph()  # all trials take part again
    qd.sync()
    np.testing.assert_array_equal(after.to_numpy(), [2.0 * (b in good) + 2.0 for b in range(9)])
    program.close()


def test_arguments_and_results_of_each_trial() -> None:
    program = qd.init(arch=qd.cuda, device="emulated", default_fp=qd.f64, batch=5)

    @qd.kernel
    def scale(a: qd.types.ndarray(), by: qd.f64) -> qd.f64:
        total = 0.0
        for _ in range(1):
            for i in range(a.shape[0]):
                a[i] = a[i] * by
        for i in range(a.shape[0]):
            total += a[i]
        return total

    a = qd.ndarray(qd.f64, 3)
    values = np.arange(15.0).reshape(5, 3)
    a.from_numpy(values)
    np.testing.assert_allclose(scale(a, 2.0), 2.0 * values.sum(1))
    np.testing.assert_allclose(a.to_numpy(), 2.0 * values)
    program.close()


def test_what_cannot_be_recorded_is_refused_by_name() -> None:
    program = qd.init(arch=qd.cuda, device="emulated", batch=3)
    x, shared = qd.field(qd.f32, shape=4), qd.field(qd.f32, shape=4, per_trial=False)
    with pytest.raises(qd.QdrunRuntimeError, match="what all of them share"):
        qd.capture(lambda: x.from_numpy(np.arange(12.0).reshape(3, 4)))
    with pytest.raises(qd.QdrunRuntimeError, match="what all of them share"):
        qd.capture(lambda: shared.fill(1.0))
    with pytest.raises(qd.QdrunRuntimeError, match="read after the graph was launched"):
        qd.capture(x.to_numpy)
    x.fill(2.0)
    assert x.to_numpy().tolist() == [[2.0] * 4] * 3
    program.close()


def test_a_graph_says_how_many_threads_a_trial_has() -> None:
    for lanes in (1, 4):
        program = qd.init(arch=qd.cuda, device="emulated", batch=3, gpu_lanes=lanes)
        x = qd.field(qd.f32, shape=4)

        @qd.kernel
        def work(x: qd.Template):
            for i in x:
                x[i] += 1.0

        work(x)
        graph = qd.capture(lambda k=work, x=x: k(x))
        assert graph.threads[0] == lanes and graph.threads[1] >= lanes
        text = f"1 launches for 3 trials, threads of a trial: {lanes}, of a block: {graph.threads[1]}>"
        assert repr(graph).endswith(text)
        program.close()


@pytest.fixture(scope="module")
def sources() -> list[TrialSource]:
    """Kernels with failures, random numbers, tapes on chip and in the heap."""
    program = qd.init(arch=qd.cuda, device="emulated", default_fp=qd.f64, batch=3, check_out_of_bound=True)
    x, loss = qd.field(qd.f64, shape=5, needs_grad=True), qd.field(qd.f64, shape=(), needs_grad=True)
    at, most = qd.field(qd.i32, shape=5), qd.field(qd.i32, shape=())

    @qd.kernel
    def work(steps: qd.i32):
        for i in x:
            v = x[at[i]]
            for _ in range(steps):
                v = qd.sin(v) + 0.1
            loss[None] += v
            qd.atomic_max(most[None], i % 2)

    @qd.kernel
    def shake():
        for i in x:
            x[i] += qd.random()

    for steps in (4, 400):
        shake()
        with qd.ad.Tape(loss):
            work(steps)
    made = [k for vs in program.variants.values() for v in vs.values() for k in (v.executable, v.__dict__.get("gradient"))]
    sources = [TrialSource(*k.compiled.gpu.trial_source()) for k in made if k is not None]
    program.close()
    assert len(sources) == 3
    return sources


def walk_text(sources: list[TrialSource], target: GpuTarget, lanes: int) -> str:
    """These kernels and fills as one module: a launch, and a walk."""
    target = replace(target, trials=8)
    module, shape = LlvmModule(target), TrialShape(target.block // lanes, lanes)
    chunks, common = emit_chunks(module, sources, shape, [lambda word: word] * 3)
    emit_launch(module, chunks[0], len(common), shape, "one")
    chunks += [emit_fill(module, 1, shape), emit_fill(module, 8, shape)]
    emit_walk(module, chunks, len(common), shape, "walk")
    return trial_text(module, "all", target, shape)


@pytest.mark.parametrize("lanes", [1, 8])
def test_the_code_for_nvidia_is_what_llvm_can_compile(sources: list[TrialSource], lanes: int) -> None:
    text = walk_text(sources, cuda_target(), lanes)
    NVPTX.check(text, "walk")
    ptx = compile_ptx(text, "walk", "sm_90", "+ptx80")
    assert ptx.count(".entry") == 2 and "st.global.b64" in ptx
    assert ("bar.warp.sync" in ptx) == ("global.add.f64" in ptx) == (lanes > 1)


@pytest.mark.parametrize("lanes", [1, 8])
def test_the_code_for_vulkan_is_valid(sources: list[TrialSource], lanes: int) -> None:
    """One word is pushed, the address of the others; lanes of a trial meet at the barrier of the block."""
    text = walk_text(sources, spirv_target(EVERYTHING), lanes)
    made = translate(text, EVERYTHING)
    check({"walk": made.data})
    assert [(e.name, e.pushed, e.threads, e.dynamic) for e in made.functions] == [
        ("one", False, 128, False),
        ("walk", False, 128, False),
    ]
    assert ("@qd.barrier" in text) == (lanes > 1)


ON_AMD = [("gfx942", 8), ("gfx90a", 1), ("gfx1100", 128)]


@pytest.mark.slow
@pytest.mark.parametrize(("chip", "lanes"), ON_AMD if os.environ.get("QDRUN_TEST_ALL_CHIPS") else ON_AMD[:1])
def test_the_code_for_amd_is_what_llvm_can_compile(sources: list[TrialSource], chip: str, lanes: int) -> None:
    """Nothing is called, and nothing lies in a thread's memory. Lanes of one wave meet without an instruction."""
    text = walk_text(sources, amdgpu_target(chip), lanes)
    code = read_code(compile_object(text, "walk", chip, listing=True))
    assert {k.scratch_bytes for k in code.kernels.values()} == {0} and set(code.kernels) == {"one", "walk"}
    assert "s_swappc" not in code.listing
    assert ("s_barrier" in code.listing) == (lanes > 64)


def test_how_trials_lie_on_a_device() -> None:
    """An H200 has 132 multiprocessors of 2,048 threads. The loops of a robot have 16 iterations, those of particles 512."""

    def task(count: int, stacks: bool = False) -> Task:
        index = Op("index", dtype=i32)
        stack = Stack(Loop(index, Const(0, i32), Const(1, i32), []), "tape", (), "0")
        return Task("loop", [], [Axis(index, Const(0, i32), Const(count, i32))], stacks=[stack] * stacks)

    def lanes(layout: TrialLayout, *tasks: Task, asked: int = 0) -> tuple[int, int]:
        found = shape_of(layout, tasks, asked, Room(132 * 2048, 132, 1024, 32, 128))
        return found.lanes, found.trials

    robot, particles = (task(4), task(16)), (task(512), task(576))
    assert [gpu_layout(5, n).width for n in (0, 16, 63, 64, 512)] == [4, 4, 4, 1, 1]
    small = {b: lanes(gpu_layout(b, 16), *robot) for b in (1, 32, 1024, 8192, 131072)}
    assert small == {1: (16, 1), 32: (16, 1), 1024: (16, 4), 8192: (16, 8), 131072: (8, 16)}
    wide = {b: lanes(gpu_layout(b, 512), *particles) for b in (1, 256, 1024, 4096)}
    assert wide == {1: (512, 1), 256: (512, 1), 1024: (128, 1), 4096: (32, 4)}
    alone = {b: lanes(gpu_layout(b, 1), task(1)) for b in (5, 1024, 16384, 131072)}
    assert alone == {b: (1, 128) for b in alone}
    with_rows = {b: lanes(gpu_layout(b, 512), task(512, stacks=True)) for b in (5, 64, 1024, 4096)}
    assert with_rows == {5: (64, 1), 64: (64, 1), 1024: (16, 4), 4096: (16, 8)}
    assert lanes(gpu_layout(5, 1), task(1), asked=64) == (64, 1)


def test_trials_with_many_elements_lie_alone() -> None:
    """The same function in two programs, whose trials lie in groups of four and alone: memory, values and code are those of each."""

    def run(n: int, count: int) -> None:
        program = qd.init(arch=qd.cuda, device="emulated", default_fp=qd.f64, batch=count)
        table, total = qd.field(qd.f64, shape=500, per_trial=False), qd.field(qd.f64, shape=())
        x = qd.field(qd.f64, shape=(2, n))
        table.from_numpy(np.arange(500.0))

        @qd.kernel
        def work(x: qd.Template, total: qd.Template):
            for i in range(50):
                x[1, i] = table[i] * x[0, i]
                total[None] += x[1, i]

        values = np.random.default_rng(n).random((count, 2, n))
        x.from_numpy(values)
        assert program.trials is not None and program.trials.width == (4 if n < 64 else 1)
        groups = -(-count // program.trials.width) * program.trials.width
        used = program.usage()
        assert used["fields"] == groups * 8 * (2 * n + 1) + 4000 and used["trials"] == groups * 72
        work(x, total)
        graph = qd.capture(lambda: work(x, total))
        total.fill(0.0)
        graph()
        products = np.arange(50.0) * values[:, 0, :50]
        np.testing.assert_allclose(x.to_numpy()[:, 1, :50], products, rtol=1e-15)
        np.testing.assert_allclose(total.to_numpy(), products.sum(1), rtol=1e-13)
        program.close()

    for n in (63, 64, 63):
        run(n, 5)
