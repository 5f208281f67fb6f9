"""A job's memory plan: planned is used for every kind, to the byte, with and without a budget; and what explains it."""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

import qdrun as qd
from qdrun.compiler.compile.cache import CACHE
from qdrun.compiler.program.memory.process_memory import _frames
from qdrun.compiler.runtime.cpu.device import CpuDevice
from qdrun.compiler.runtime.gpu.device import GpuDevice
from qdrun.jobs.base import Job, JobParams, MemoryPlan, Outcome, PlanEntry, check_gradients, execute
from qdrun.jobs.core.session import Finished
from qdrun.jobs.mass_spring import MassSpring, MassSpringParams
from qdrun.jobs.planning.memory_plan import OF_THE_DEVICE
from qdrun.jobs.planning.parallel_width import parallel_width
from qdrun.jobs.planning.plan import heap_planes
from qdrun.runner.study.requests import curve


class ChainParams(JobParams):
    size: int = Field(8, ge=1, description="cells")
    inner: int = Field(40, ge=0, description="iterations of the loop in double precision")
    narrow: int = Field(0, ge=0, description="iterations of the loop in single precision")
    start: float = Field(0.7, description="the value of each cell at the beginning")


class Chain(Job[ChainParams]):
    """Two kernels with states in different planes, one with a temporary, an ndarray, and an array that only ``run`` makes."""

    gradients = ("start",)

    def build(self) -> None:
        p = self.params
        self.start = qd.field(qd.f64, shape=(), needs_grad=True)
        self.x = qd.field(qd.f64, shape=p.size, needs_grad=True)
        self.scale = qd.ndarray(qd.f64, p.size)
        self.loss = qd.field(qd.f64, shape=(), needs_grad=True)
        self.start[None] = p.start
        self.scale.from_numpy(np.linspace(0.5, 1.0, p.size))
        start, x, loss = self.start, self.x, self.loss

        @qd.kernel
        def spread():
            first = start[None] * start[None]
            for i in x:
                x[i] = first * (1.0 + 0.1 * i)

        @qd.kernel
        def wide(scale: qd.types.ndarray(qd.f64, ndim=1), inner: qd.i32):
            for i in x:
                v = x[i]
                for _ in range(inner):
                    v = qd.sin(v) * scale[i] + 0.3
                loss[None] += v

        @qd.kernel
        def single(narrow: qd.i32):
            for i in x:
                v = qd.cast(x[i], qd.f32)
                for _ in range(narrow):
                    v = qd.cos(v) * 0.5
                loss[None] += 1e-6 * qd.cast(v, qd.f64)  # the noise of f32 must not show in differences

        self.spread, self.wide, self.single = spread, wide, single

    def launches(self):
        return [(self.spread, ()), (self.wide, (self.scale, self.params.inner)), (self.single, (self.params.narrow,))]

    def allocates(self):
        return [PlanEntry(kind="snapshots", bytes=8 * self.params.size, source="run()", formula="size x 8 bytes")]

    def run(self) -> Outcome:
        program = self.program
        kept = program.allocate(8 * self.params.size, "snapshots")
        with qd.ad.Tape(loss=self.loss) if self.wanted else qd.current_program():
            for kernel, args in self.launches():
                kernel(*args)
        program.device.free(kept)
        found = {"start": float(self.start.grad[None])} if self.wanted else {}
        return Outcome(float(self.loss[None]), found)


def run(params: ChainParams, *, wanted: Any = None, threads: int = 2, **limits: int | None):
    limits = {"memory_limit_bytes": None, **limits}
    return execute(Chain(params, wanted=wanted), backend="cpu", threads=threads, **limits)


def same(plan: MemoryPlan, used: dict[str, int]) -> None:
    assert plan.of_program() == used


def same_numbers(done: Finished, free: Finished) -> None:
    """A budget changes no bit, but on a GPU, where threads add in any order."""
    numbers = [{"loss": one.outcome.loss, **one.outcome.gradients} for one in (done, free)]
    tolerance = 0.0 if free.device.startswith(("cpu", "emulated")) else 1e-12
    for name, value in numbers[1].items():
        np.testing.assert_allclose(
            numbers[0][name], value, rtol=tolerance, atol=tolerance * np.max(np.abs(value)), err_msg=name
        )


def test_the_gradient_of_the_job_is_right():
    (row,) = check_gradients(Chain, ChainParams(size=3, inner=5))
    assert row.relative_error < 1e-6


@settings(max_examples=12, deadline=None)
@given(st.sampled_from([1, 40]), st.integers(0, 60), st.integers(0, 200), st.integers(1, 2), st.booleans())
def test_planned_is_used_for_every_kind(size, inner, narrow, threads, gradients):
    done = run(ChainParams(size=size, inner=inner, narrow=narrow), wanted=None if gradients else (), threads=threads)
    same(done.plan, done.used)
    assert done.plan.bytes == done.peak_bytes
    kinds = set(done.plan.by_kind()) - set(OF_THE_DEVICE)
    assert kinds == {"state", "gradients", "context", "temporaries", "snapshots", "code"} | (
        {"adstack"} if gradients else set()
    )


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 60), st.integers(0, 200), st.floats(0.0, 1.2))
def test_planned_is_used_under_any_budget_and_fits_it(inner, narrow, part):
    params = ChainParams(inner=inner, narrow=narrow)
    free = run(params, threads=1)
    budget = max(1, int(part * free.plan.bytes))  # 0 is no budget
    try:
        done = run(params, threads=1, memory_budget_bytes=budget)
    except qd.OutOfMemory as error:
        smallest = error.smallest
        assert smallest is not None and smallest > budget
        assert f"memory_budget: {smallest} or more" in str(error)
        done = run(params, threads=1, memory_budget_bytes=smallest)
        budget = smallest
        with pytest.raises(qd.OutOfMemory):
            run(params, threads=1, memory_budget_bytes=smallest - 1)
    same(done.plan, done.used)
    assert done.plan.bytes == done.peak_bytes <= budget
    assert done.plan.budget == budget
    same_numbers(done, free)


def test_a_budget_that_even_the_fields_exceed_names_what_they_need():
    with pytest.raises(qd.OutOfMemory) as error:
        run(ChainParams(size=1000, inner=0), wanted=(), memory_budget_bytes=1000)
    message = str(error.value)
    assert message.startswith("memory_budget of 1,000 bytes is too small for one trial: ")
    assert "state " in message and "snapshots 8,000" in message
    assert run(ChainParams(size=1000, inner=0), wanted=(), memory_budget_bytes=error.value.smallest).peak_bytes


def test_each_entry_says_what_asks_for_it_and_how_it_is_counted():
    with Chain(ChainParams(inner=40, narrow=600)).opened(threads=1) as job:
        plan = job.plan()
        rows = 1 if job.program.device.on_host else 8  # for each thread, or for each iteration
    by_plane = {entry.plane: entry for entry in plan.entries if entry.kind == "adstack"}
    assert set(by_plane) == {"f8", "f4"}
    assert by_plane["f8"].source == "gradient of wide" and by_plane["f4"].source == "gradient of single"
    assert by_plane["f8"].bytes == rows * 40 * 8 and by_plane["f4"].bytes == rows * 600 * 4
    assert "40 x 1 (tape of test_plan.py:" in by_plane["f8"].formula
    lines = open(__file__, encoding="utf-8").read().splitlines()
    assert "range(inner)" in lines[int(by_plane["f8"].where.rpartition(":")[2]) - 1]
    assert "range(narrow)" in lines[int(by_plane["f4"].where.rpartition(":")[2]) - 1]
    state = next(entry for entry in plan.entries if entry.kind == "state")
    assert "x 8 f64 = 64" in state.formula and "scale 8 f64 = 64" in state.formula
    assert str(plan).startswith(f"{plan.bytes:,} bytes on {plan.arch}")
    data = plan.to_json()
    beside = ("code", "driver", "frames", "rounding")  # what a process takes once, for all its trials
    assert data["bytes"] == plan.bytes == sum(n for kind, n in data["by_kind"].items() if kind not in beside)
    assert MemoryPlan.model_validate({name: data[name] for name in ("entries", "arch", "budget", "notes")}) == plan


def test_planes_of_several_gradients_are_each_as_large_as_the_largest_and_shrink_where_there_is_no_room():
    class Heap:
        def __init__(self, **planes: int) -> None:
            self.planes = planes

    heaps = [Heap(f8=100, f4=0), Heap(f8=40, f4=50)]
    assert heap_planes(heaps) == {"f8": 100, "f4": 50}
    assert heap_planes(heaps, 150) == {"f8": 100, "f4": 50}
    assert heap_planes(heaps, 149) == {"f8": 100, "f4": 0}
    assert heap_planes([]) == {}


def test_a_plan_for_another_backend_takes_its_rows():
    with Chain(ChainParams(size=8, inner=40)).opened(threads=1) as job:
        here, there = job.plan(), job.plan(arch="amdgpu")
        assert there.arch == "amdgpu" and "code" not in there.by_kind()
        assert here.by_kind()["state"] == there.by_kind()["state"]
        planes = {entry.plane: entry.bytes for entry in there.entries if entry.kind == "adstack"}
        assert planes == {"f8": 8 * 40 * 8, "f4": 8 * 1 * 4}, (
            "8 rows, one for each iteration; a loop that should not run has 1 slot"
        )
        assert job.program.usage().get("adstack", 0) == 0
        with pytest.raises(qd.QdrunTypeError, match="metal has no f64"):
            job.plan(arch="metal")


GPU = {"backend": "cuda", "device": "emulated", "threads": 1}
ARCH = os.environ.get("QDRUN_TEST_ARCH", "")
BACKEND = ARCH if ARCH in ("amdgpu", "vulkan") else "cuda"
"""What ``GPU`` opens (``tests/conftest.py``)."""


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    """Nothing was compiled by an earlier run of the tests, nor by another test of this process."""
    monkeypatch.setenv("QDRUN_CACHE_DIR", str(tmp_path / "cache"))
    CACHE.clear()


def refuse_to_compile(monkeypatch) -> None:
    def compiled(device, kernel, *more):
        raise AssertionError(f"{kernel.name} is compiled for {device.arch}")

    monkeypatch.setattr(CpuDevice, "compile", compiled)
    monkeypatch.setattr(GpuDevice, "compile", compiled)


@pytest.mark.parametrize(
    ("where", "part"),
    [({"threads": 2}, None), ({"threads": 2}, 60), pytest.param(GPU, 60, marks=pytest.mark.slow)],
    ids=["cpu", "budget", "gpu"],
)
@pytest.mark.parametrize("wanted", [None, ()], ids=["gradients", "forward"])
@pytest.mark.parametrize(
    "job, params", [(Chain, ChainParams(inner=33, narrow=21)), (MassSpring, MassSpringParams(steps=23))], ids=["chain", "steps"]
)
@pytest.mark.usefixtures("empty_cache")
def test_a_plan_without_machine_code_compiles_nothing_and_has_the_same_bytes(job, params, part, wanted, where, monkeypatch):
    params = params.model_copy(update={"steps" if job is MassSpring else "size": 24 + len(str(where)) + (part or 0)})
    budget = None
    with monkeypatch.context() as patch:
        refuse_to_compile(patch)
        with job(params, wanted=wanted).opened(**where, machine_code=False) as made:
            planned = made.plan()
            made.explain()
        if part is not None:
            budget = planned.bytes * part // 100 if job is MassSpring else planned.bytes
            with job(params, wanted=wanted).opened(**where, memory_budget_bytes=budget, machine_code=False) as made:
                planned = made.plan()
    assert "code" not in planned.by_kind()
    with job(params, wanted=wanted).opened(**where, memory_budget_bytes=budget) as made:
        whole = made.plan()
    assert whole.code_bytes > 0
    beside = ("code", "frames")  # what only compiled kernels tell
    assert {k: n for k, n in planned.by_kind().items() if k not in beside} == {
        k: n for k, n in whole.by_kind().items() if k not in beside
    }
    formulas = [[e.formula for e in plan.entries if e.kind not in beside] for plan in (planned, whole)]
    assert formulas[0] == formulas[1]


@pytest.mark.usefixtures("empty_cache")
@pytest.mark.usefixtures("empty_cache")  # a kernel that another test has stored is not compiled
def test_windows_are_chosen_without_compiling_the_kernels_of_those_that_are_not_taken(monkeypatch):
    compiled = []

    def compile(device, kernel, *more):
        compiled.append(kernel.name)
        return original(device, kernel, *more)

    of = CpuDevice if qd.init().device.on_host else GpuDevice
    original = of.compile
    monkeypatch.setattr(of, "compile", compile)
    done = execute(
        MassSpring(MassSpringParams(steps=61)), backend="cpu", threads=1, memory_limit_bytes=None, memory_budget_bytes=30_000
    )
    assert done.plan.bytes == done.peak_bytes <= 30_000
    # Five kernels and their gradients, of one window alone; another test may have compiled one that is the same.
    assert 0 < len(compiled) == len(set(compiled)) <= 10


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (lambda job: [(job.wide.grad, (job.scale, 1))], "the gradient of `wide`"),
        (lambda job: [job.spread], "<kernel Chain.build.<locals>.spread>"),
        (lambda job: [(job.single, 3)], "(<kernel Chain.build.<locals>.single>, 3)"),
        (lambda job: [("wide", ())], "('wide', ())"),
    ],
)
def test_launches_that_are_no_kernels_are_refused_with_what_to_write(wrong, what):
    class Wrong(Chain):
        def launches(self):
            return wrong(self)

    with Wrong(ChainParams()).opened(threads=1) as job:
        for asks in (job.plan, job.explain, lambda: parallel_width(job), lambda: curve(job, MemoryPlan())):
            with pytest.raises(TypeError) as error:
                asks()
            first, second = str(error.value).splitlines()
            assert first == f"Wrong.launches() gives {what}, not a kernel with a tuple of its arguments"
            assert second == "  do: write `(self.step, (0,))` for `self.step(0)`; the gradient of a kernel is planned with it"


@pytest.mark.parametrize("budget", [None, 20_000])
def test_a_kernel_that_touches_no_gradient_is_planned_as_it_runs_forward_alone(budget):
    class Counting(Chain):
        def build(self):
            super().build()
            self.counter = counter = qd.field(qd.i32, shape=64)

            @qd.kernel
            def count():
                for i in counter:
                    counter[i] += 1

            self.count = count

        def launches(self):
            return [(self.count, ()), *super().launches()]

    done = execute(Counting(ChainParams()), backend="cpu", threads=1, memory_limit_bytes=None, memory_budget_bytes=budget)
    same(done.plan, done.used)
    assert done.plan.by_kind()["adstack"] > 0
    with Counting(ChainParams()).opened(threads=1, machine_code=False) as job:
        assert job.program.parallel_iterations(job.count, ()) == (64,)
        assert len(curve(job, job.plan())) > 1 and job.explain().remedies


def test_a_plan_says_whether_the_job_names_its_launches():
    class Silent(Chain):
        def launches(self):
            return ()

    with Chain(ChainParams()).opened(threads=1, machine_code=False) as job:
        assert job.plan().whole
    with Silent(ChainParams()).opened(threads=1, machine_code=False) as job:
        assert not job.plan().whole


@pytest.mark.parametrize("budget", [None, 40, 75])
@pytest.mark.parametrize(
    "job",
    [
        Chain(ChainParams(inner=40)),
        Chain(ChainParams(size=70, inner=300, narrow=500)),
        MassSpring(MassSpringParams(steps=20, substeps=10)),
    ],
    ids=["tapes on chip", "tapes in the heap", "time steps"],
)
def test_a_gpu_is_planned_without_one_to_the_byte(job, budget):
    """On the CPU for the GPU, on the (emulated) GPU, and what a run there holds: the same bytes of every kind, and the same results."""

    def again() -> Job[Any]:
        return type(job)(job.params)

    free = execute(again(), backend="cpu", threads=1, memory_limit_bytes=None)
    with again().opened(**GPU) as there:
        total = there.plan().bytes
    limit = None if budget is None else total * budget // 100
    try:
        with again().opened(threads=1, memory_budget_bytes=limit, arch=BACKEND) as here:
            planned = here.plan(arch=BACKEND)
    except qd.OutOfMemory:
        with pytest.raises(qd.OutOfMemory), again().opened(**GPU, memory_budget_bytes=limit) as there:
            there.plan()
        return
    done = execute(again(), **GPU, memory_limit_bytes=None, memory_budget_bytes=limit)
    beside = ("driver", "frames", "rounding", "code")
    kinds = {kind: n for kind, n in planned.by_kind().items() if kind not in beside}
    assert kinds == {kind: n for kind, n in done.plan.by_kind().items() if kind not in beside}
    assert {kind: n for kind, n in kinds.items() if n} == {kind: n for kind, n in done.used.items() if kind != "code"}
    assert planned.bytes == done.plan.bytes == done.peak_bytes and (limit is None or done.peak_bytes <= limit)
    assert done.device.startswith("emulated") or BACKEND == "vulkan"
    for name, value in free.outcome.gradients.items():
        np.testing.assert_allclose(done.outcome.gradients[name], value, rtol=1e-6, atol=1e-15)


def test_what_a_process_takes_of_a_gpu_is_listed_and_not_part_of_the_program():
    with Chain(ChainParams(size=100, inner=400)).opened(threads=1) as job:
        here, there = job.plan(), job.plan(arch="cuda")
    kinds = there.by_kind()
    assert here.footprint == here.bytes and not {"driver", "frames", "rounding"} & set(here.by_kind())
    assert kinds["driver"] == 552_000_000 and kinds["frames"] == 0
    device_bytes = there.bytes - kinds["context"]  # contexts are the host's
    assert (device_bytes + kinds["rounding"]) % (32 << 20) == 0 <= kinds["rounding"] < 32 << 20
    assert there.footprint == there.bytes + kinds["driver"] + kinds["rounding"]


def test_frames_of_kernels_are_counted_for_all_threads_that_may_be_resident():
    class Compiled:
        def __init__(self, *frames: int) -> None:
            self.frames = frames

    class Executable:
        def __init__(self, name: str, compiled: object) -> None:
            self.name, self.compiled = name, compiled

    threads = 132 * 2048
    small = _frames([Executable("a", Compiled(0, 1024)), Executable("b", object())], threads, 1024)
    assert small.bytes == 0 and "1024 bytes of stack" in small.formula
    large = _frames([Executable("a", Compiled(40)), Executable("b", Compiled(8, 2048))], threads, 1024)
    assert large.bytes == 132 * 2048 * 1024 and large.formula.startswith("`b`: 270,336 resident threads x (2048 - 1024)")


# ---- explain
def test_an_explanation_accounts_for_every_byte():
    with Chain(ChainParams(inner=400, narrow=600)).opened(threads=2) as job:
        found = job.explain()
        kinds = found.plan.by_kind()
        sums = {kind: sum(row["bytes"] for row in found.fields if row["kind"] == kind) for kind in ("state", "gradients")}
        assert kinds["gradients"] - 64 <= sums["gradients"] <= kinds["gradients"], "but for padding"
        assert kinds["state"] - 64 <= sums["state"] <= kinds["state"]
        assert {row["name"] for row in found.fields} == {"start", "x", "scale", "loss"}
        for kind in ("context", "temporaries", "code"):
            assert sum(row[kind] for row in found.kernels) == kinds[kind]
        assert [row["gradient"] for row in found.loops] == ["wide_grad", "single_grad"]
        rows = 2 if job.program.device.on_host else 8  # for each thread, or for each iteration
        assert [row["bytes"] for row in found.loops] == [rows * 400 * 8, rows * 600 * 4]
        assert job.program.usage().get("adstack", 0) == 0, "nothing ran"


def test_planning_and_explaining_hand_no_array_out():
    """An array that was handed out is looked at in every launch afterwards."""
    with Chain(ChainParams()).opened(threads=1, memory_budget_bytes=100_000) as job:
        job.plan()
        job.explain()
        assert job.program.arrays.shown == {}


def test_what_a_remedy_promises_is_what_it_gives():
    params = ChainParams(inner=400, narrow=600)
    with Chain(params).opened(threads=2) as job:
        found, on_host = job.explain(), job.program.device.on_host
    remedies = {remedy.name: remedy for remedy in found.remedies}
    for remedy in found.remedies:
        assert remedy.saves == found.plan.bytes - remedy.bytes > 0
        assert remedy.time is not None and remedy.time > 1.0, "every byte saved costs time"
    if on_host:
        assert run(params, threads=1).peak_bytes == remedies["device: {threads: 1}"].bytes
    for levels in (2, 3):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("QD_AD_CHECKPOINT_LEVELS", str(levels))
            assert run(params).peak_bytes == remedies[f"qd.init(ad_checkpoint_levels={levels})"].bytes
    least = found.remedies[-1]
    assert least.name == f"memory_budget: {least.bytes}"
    assert run(params, memory_budget_bytes=least.bytes).peak_bytes <= least.bytes
    with pytest.raises(qd.OutOfMemory):
        run(params, memory_budget_bytes=least.bytes - 1)


def test_under_a_budget_only_a_smaller_one_is_a_remedy():
    """Fewer threads or more levels would free bytes that the planner spends at once."""
    params = ChainParams(inner=400, narrow=600)
    with Chain(params).opened(threads=2, memory_budget_bytes=5000) as job:
        found = job.explain()
    (remedy,) = found.remedies
    assert remedy.name == f"memory_budget: {remedy.bytes}" and remedy.bytes < found.plan.bytes <= 5000
    assert run(params, memory_budget_bytes=remedy.bytes).peak_bytes <= remedy.bytes
    with MassSpring(MassSpringParams(steps=60, substeps=40)).opened(threads=2, memory_budget_bytes=20_000) as job:
        assert all(remedy.name.startswith("memory_budget: ") for remedy in job.explain().remedies)


def test_a_job_without_gradients_or_without_a_compiler_is_explained_too():
    class Plain(Job[ChainParams]):
        needs_compiler = False

        def build(self) -> None: ...

    with Chain(ChainParams(), wanted=()).opened(threads=1) as job:
        found = job.explain()
    assert found.loops == () and found.remedies == () and found.fields
    with Plain(ChainParams()).opened() as job:
        assert job.explain().plan == MemoryPlan()


@pytest.mark.parametrize("part", [2, 4, 10])
def test_time_steps_have_budgets_as_remedies_and_they_hold(part):
    def steps() -> MassSpring:
        return MassSpring(MassSpringParams(steps=120))

    with steps().opened(threads=1) as job:
        found = job.explain()
    remedy = next(r for r in found.remedies if r.bytes == found.plan.bytes // part)
    assert remedy.name == f"memory_budget: {remedy.bytes}" and remedy.time is not None and remedy.time > 1
    limits = {"backend": "cpu", "threads": 1, "memory_limit_bytes": None}
    free, done = execute(steps(), **limits), execute(steps(), **limits, memory_budget_bytes=remedy.bytes)
    same(done.plan, done.used)
    assert done.plan.bytes == done.peak_bytes <= remedy.bytes
    same_numbers(done, free)
    snapshots = next(entry for entry in done.plan.entries if entry.kind == "snapshots")
    again = int(re.search(r"(\d+) steps run again", remedy.how)[1])
    assert abs(again - int(re.search(r"(\d+) run again", snapshots.formula)[1])) <= 0.1 * again
