"""Adstacks on a GPU, run on the emulated one: one gradient whatever the plan, that of the processor; heaps to the byte; failures."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from harness import PLANS

import qdrun as qd
from qdrun.compiler.program import state
from qdrun.compiler.program.plans import gradient_plans
from qdrun.compiler.tape.machine import CUDA_SHARED, machine

N = 37
STARTS, WEIGHTS = (np.random.default_rng(7).uniform(low, 0.9, N) for low in (0.2, -0.9))
GATE = (np.random.default_rng(8).random(N) < 0.3).astype(np.int32)


WHERE = {
    "cpu": {"arch": qd.cpu, "cpu_lanes": 1},
    "emulated": {"arch": qd.cuda, "device": "emulated"},
    "amdgpu": {"arch": qd.amdgpu, "device": "emulated:gfx942"},
}


class Case:
    """The kernels of these tests in one program, with content."""

    def __init__(self, arch: str, dtype, **options) -> None:
        # `--arch` redirects `qd.init`; the processor that a device is compared with stays the processor.
        init = getattr(qd.init, "__wrapped__", qd.init) if arch == "cpu" else qd.init
        self.program = init(**WHERE[arch], default_fp=dtype, **options)
        x, y = qd.field(dtype, N, needs_grad=True), qd.field(dtype, N, needs_grad=True)
        gate, table = qd.field(qd.i32, N), qd.field(dtype, N)
        table.from_numpy(STARTS[::-1].astype(dtype.numpy))
        x.from_numpy(STARTS.astype(dtype.numpy))
        gate.from_numpy(GATE)
        self.x, self.y, self.gate = x, y, gate

        @qd.kernel
        def two(n: qd.i32):
            for i in x:
                v = x[i]
                w = x[i] * 0.5
                for _ in range(n):
                    v = v * (0.9 + 0.1 * w)
                    w = w * 0.98 + 0.1 * v * v
                y[i] = v + w

        @qd.kernel
        def behind(n: qd.i32):
            for i in x:
                if gate[i] == 1:
                    v = x[i]
                    for _ in range(n):
                        v = v * v * 0.3 + 0.4
                    y[i] = v

        @qd.kernel
        def nest(n: qd.i32, m: qd.i32):
            for i in x:
                v = x[i]
                for _ in range(n):
                    for _ in range(m):
                        v = v * v * 0.3 + x[i] * 0.1
                    v = v / (1.0 + v)
                y[i] = v

        @qd.kernel
        def decay():
            for i in x:
                v = x[i]
                while v > 0.01:
                    v = v - 0.05 * v * v
                y[i] = v

        @qd.kernel
        def broken(n: qd.i32):
            for i in x:
                v = x[i] + 1.0
                for _ in range(n):
                    v = v * 0.97 + 0.001 * v * v * x[i]
                    if v < 0.2:
                        break
                y[i] = v

        @qd.kernel
        def serial(n: qd.i32):
            if n >= 0:
                v = x[0]
                for _ in range(n):
                    v = v * v * 0.3 + x[1]
                y[0] = v

        @qd.kernel
        def mixed(n: qd.i32):
            for i in x:
                v = x[i]
                k = i
                for _ in range(n):
                    k = (k * 5 + 3) % N
                    v = v * (0.5 + table[k])
                    if v > 2.0:
                        v = v * 0.25
                y[i] = v

        self.kernels = {k.source.name: k for k in (two, behind, nest, decay, broken, serial, mixed)}

    def gradient(self, name: str, args: tuple[int, ...], **budget):
        """Values, gradients, the plan and the bytes of the heap."""
        kernel = self.kernels[name]
        self.y.fill(0.0)
        kernel(*args)
        values = self.y.to_numpy()
        self.y.grad.from_numpy(WEIGHTS.astype(values.dtype))
        self.x.grad.fill(0.0)
        kernel.grad(*args, **budget)
        plan = kernel.grad.plan(*args, **budget)
        return values, self.x.grad.to_numpy(), plan, qd.current_program().usage().get("adstack", 0)


LAUNCHES = [
    *(("two", (n,)) for n in (0, 1, 2, 45, 47, 300)),
    *(("behind", (n,)) for n in (5, 400)),
    *(("nest", sizes) for sizes in ((3, 50), (120, 30), (100, 100), (1, 1), (0, 5))),
    ("decay", ()),
    *(("broken", (n,)) for n in (5, 300)),
    *(("serial", (n,)) for n in (50, 2000)),
    *(("mixed", (n,)) for n in (30, 200)),
]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [qd.f32, qd.f64], ids=str)
def test_the_gradient_has_the_bits_of_the_processor_at_every_level(dtype):
    here = Case("cpu", dtype)
    want = [here.gradient(name, args)[:2] for name, args in LAUNCHES]
    placed = set()
    for levels in (1, 2, 3):
        there = Case("emulated", dtype, ad_checkpoint_levels=levels)
        for (name, args), (values, gradient) in zip(LAUNCHES, want):
            got = there.gradient(name, args)
            assert np.array_equal(got[0], values) and np.array_equal(got[1], gradient), (name, args, levels)
            placed.add((bool(got[2].far), any(t.shared for t in got[2].tasks)))
    both = {(True, False), (False, True), (True, True)}
    assert placed == (both if machine(there.program.arch.name).shared else {(False, False)})


FEW = [("behind", (5,)), ("nest", (3, 4)), ("mixed", (6,))]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [qd.f32, qd.f64], ids=str)
def test_the_gradient_on_an_emulated_amd_card_has_the_bits_of_the_processor(dtype):
    """``QDRUN_AMD_BITS=1``: all of the launches, at every level."""
    whole = bool(os.environ.get("QDRUN_AMD_BITS"))
    launches = LAUNCHES if whole else FEW
    here = Case("cpu", dtype)
    want = [here.gradient(name, args)[:2] for name, args in launches]
    for levels in (1, 2, 3) if whole else (2,):
        there = Case("amdgpu", dtype, ad_checkpoint_levels=levels)
        for (name, args), (values, gradient) in zip(launches, want, strict=True):
            got = there.gradient(name, args)
            assert np.array_equal(got[0], values) and np.array_equal(got[1], gradient), (name, args, levels)


@pytest.mark.parametrize("name,args", [("two", (300,)), ("nest", (60, 40)), ("behind", (200,)), ("decay", ())])
def test_a_budget_changes_bytes_and_no_bit(name, args):
    one = Case("emulated", qd.f64)
    want = one.gradient(name, args)
    sizes = set()
    for share in (0.0, 0.2, 0.5, 0.9):
        there = Case("emulated", qd.f64)
        budget = int(share * want[2].bytes)
        try:
            there.kernels[name].grad.plan(*args, budget=budget)
        except qd.OutOfMemory as error:
            assert error.smallest is not None
            budget = error.smallest
        got = there.gradient(name, args, budget=budget)
        assert np.array_equal(got[1], want[1]) and got[3] == got[2].bytes <= budget
        sizes.add(got[2].bytes)
    assert len(sizes) > 1


@pytest.mark.parametrize("name", PLANS)
def test_any_plan_of_any_placement_has_the_same_bits(name, monkeypatch):
    """All plans of the interpreter's tests; tapes on chip as long as there is room, or all in the heap.

    The backend that the session asks for may have tapes in the heap alone.
    """
    want = [Case("cpu", qd.f64).gradient(*launch)[1] for launch in SOME]
    options = gradient_plans.GradientPlans._options
    own = machine(Case("emulated", qd.f64).program.arch.name, 5)
    for room in (CUDA_SHARED, 64, 1) if own.shared else (0,):
        placed = replace(own, shared=room)

        def chosen(self, budget=None, placed=placed):
            return replace(options(self, budget), machine=placed, choose=PLANS[name])

        monkeypatch.setattr(gradient_plans.GradientPlans, "_options", chosen)
        for launch, gradient in zip(SOME, want):
            got = Case("emulated", qd.f64).gradient(*launch)
            assert np.array_equal(got[1], gradient), (launch, room)
            assert got[3] == got[2].bytes
        monkeypatch.undo()


SOME = [("two", (19,)), ("nest", (7, 5)), ("behind", (9,)), ("mixed", (13,))]


def test_a_loop_that_runs_too_far_is_reported_and_the_program_goes_on():
    case = Case("emulated", qd.f64, ad_stack_size=20)
    kernel = case.kernels["decay"]
    kernel()
    case.y.grad.fill(1.0)
    with pytest.raises(qd.AdStackOverflow, match=r"ran more iterations than its adstack holds, which is 20 \(ad_stack_size"):
        kernel.grad()  # a device may be so fast that its launch reports it
        qd.sync()
    case.x.fill(0.01004)
    case.x.grad.fill(0.0)
    case.gradient("decay", ())
    assert np.isfinite(case.x.grad.to_numpy()).all()


def test_threads_behind_a_gate_claim_the_rows_that_there_are():
    case = Case("emulated", qd.f64)
    plan = case.kernels["behind"].grad.plan(500)
    assert plan.tasks[0].rows == int(GATE.sum()) and plan.tasks[0].params["threads"] == N
    assert plan.bytes == int(GATE.sum()) * 500 * 8


def test_a_plan_without_a_device_is_the_plan_on_it():
    texts, gpu = [], Case("emulated", qd.f32).program.arch.name
    for where, asked in (("cpu", {"arch": gpu}), ("emulated", {})):
        case = Case(where, qd.f32)
        texts.append([case.kernels[name].grad.plan(*args, **asked).to_json() for name, args in LAUNCHES])
    assert texts[0] == texts[1]


@pytest.mark.parametrize("arch", ["emulated", "amdgpu"])
@pytest.mark.parametrize("own", [{"shared": 0}, {"shared": CUDA_SHARED, "block": 128}, {"shared": 8, "block": 64}], ids=str)
def test_code_and_plan_agree_on_what_lies_on_chip(monkeypatch, arch, own):
    """Whatever a device's parameters say: a target without tapes on chip has none, and a plan without any has all in the heap."""
    args = (12,)
    want = Case("cpu", qd.f64).gradient("two", args)
    monkeypatch.setattr(state, "machine", lambda *args, **options: replace(machine(*args, **options), **own))
    there = Case(arch, qd.f64)
    values, gradient, plan, heap = there.gradient("two", args)
    assert np.array_equal(values, want[0]) and np.array_equal(gradient, want[1])
    assert heap == plan.bytes and any(t.shared for t in plan.tasks) == (own["shared"] == CUDA_SHARED and arch == "emulated")
