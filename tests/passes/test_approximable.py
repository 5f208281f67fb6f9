"""What ``fast_math`` would replace, and the note about it."""

from __future__ import annotations

import warnings

import pytest

import qdrun as qd
from qdrun.compiler.compile.cache import CACHE
from qdrun.compiler.compile.fast_math_note import fast_math_note
from qdrun.compiler.passes.approximable import approximable
from qdrun.compiler.program.plans.launch_facts import launch_note
from qdrun.jobs.base import Job, JobParams
from qdrun.runner.observe.show import _group_lines
from qdrun.runner.study.plan import PlannedGroup


def sines(dtype):
    x = qd.field(dtype, shape=8)

    @qd.kernel
    def swing(steps: qd.i32):
        for i in x:
            v = x[i]
            for _ in range(steps):
                v = qd.sin(v) + qd.cast(0.1, dtype)
            x[i] = v

    @qd.kernel
    def once():
        for i in x:
            x[i] = qd.sin(x[i])

    return swing, once


def ir(kernel, *args):
    return kernel.variant(args, {})[0].compiled_kernel.ir


def test_a_loop_of_f32_sines_is_mostly_approximable_and_its_line_is_in_the_note():
    qd.init()
    swing, once = sines(qd.f32)
    found = approximable(ir(swing, 3))
    assert found.names == ("sin",) and 0.7 < found.share < 1.0
    note = launch_note(swing, (3,), "cuda")
    assert launch_note(swing, (3,), "cpu") == ""
    assert "of kernel `swing` compute f32 sin accurately" in note.splitlines()[0]
    assert "test_approximable.py:" in note and "do: qd.init(fast_math=True)" in note
    assert approximable(ir(once)).share == 0.0  # bound by memory


def test_f64_and_fast_math_give_no_note():
    qd.init(default_fp=qd.f64)
    swing, _ = sines(qd.f64)
    assert fast_math_note(ir(swing, 3)) == ""
    qd.init(fast_math=True)
    swing, _ = sines(qd.f32)
    assert launch_note(swing, (3,), "cuda") == ""


@pytest.mark.parametrize("approximates", [True, False])
def test_the_note_is_given_once_where_the_device_has_approximations(approximates):
    CACHE.clear()  # it is given where the kernel is compiled
    program = qd.init(arch=qd.cuda, device="emulated", offline_cache=False)
    program.device.approximates = approximates
    swing, _ = sines(qd.f32)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", qd.PerformanceWarning)
        swing(2)
        swing(3)
    notes = [w for w in seen if w.category is qd.PerformanceWarning]
    assert len(notes) == approximates
    if notes:
        assert notes[0].filename == __file__


class Swinging(Job[JobParams]):
    """Its one kernel is a loop of f32 sines."""

    precision = "f32"

    def build(self):
        self.swing, _ = sines(qd.f32)

    def launches(self):
        return [(self.swing, (5,))]


def test_the_plan_for_a_gpu_has_the_note_and_qdrun_plan_prints_it():
    with Swinging(JobParams()).opened(threads=1) as job:
        there, here = job.plan(arch="cuda"), job.plan(arch="cpu")
    assert here.notes == ()
    assert len(there.notes) == 1 and "of kernel `swing`" in there.notes[0]
    lines = _group_lines(PlannedGroup(places=(0,), first=0, example="t", plan=there), {})
    assert any(line.startswith("  note: about") for line in lines)
