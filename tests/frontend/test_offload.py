"""Tasks: what becomes parallel, what crosses from one task to the next, and how."""

import numpy as np
import pytest

from qdrun.compiler.errors import QdrunAssertionError
from qdrun.compiler.frontend.markers import loop_config, ndrange, static
from qdrun.compiler.frontend.signature import LowerOptions, MatrixArg
from qdrun.compiler.ir.nodes import Assert, GlobalStore, Loop, Op
from qdrun.compiler.ir.types import f32, i64
from qdrun.compiler.ir.walk import walk

from .kernels import Field, build, func, run, text

ARRAY = np.zeros(8, np.float32)


def atomics(task):
    return [s.attr[1] for s in walk(task.body) if isinstance(s, Op) and s.op == "atomic"]


def test_each_top_level_loop_is_a_task_and_statements_between_are_serial():
    def kernel(x):
        "A docstring makes no task."
        for i in range(3):
            x[i] = 1
        x[0] = 2
        x[1] = 3
        for i in range(3):
            x[i] = 4

    tasks = build(kernel, x=ARRAY)[0].tasks
    assert [len(t.axes) for t in tasks] == [1, 0, 1]
    assert [t.name for t in tasks] == ["kernel_0", "kernel_1", "kernel_2"]


def test_a_cheap_value_is_computed_again_in_each_task():
    def kernel(x, n):
        m = n * 2 - 1
        size = x.shape[0]
        for i in range(m):
            x[i] = m
        for i in range(size // 2):
            x[i] = i

    kernel_ir = build(kernel, x=ARRAY, n=3)[0]
    assert kernel_ir.tmps == [] and len(kernel_ir.tasks) == 2


def test_a_value_read_from_memory_goes_through_a_temporary():
    def kernel(x):
        first = x[0]
        for i in range(8):
            x[i] -= first

    kernel_ir = build(kernel, x=ARRAY)[0]
    (tmp,) = kernel_ir.tmps
    assert tmp.differentiable and tmp.buffer.kind == "tmp" and tmp.grad.buffer.kind == "tmp_grad"
    assert [s.place for s in walk(kernel_ir.tasks[0].body) if isinstance(s, GlobalStore)] == [tmp]


def test_an_integer_temporary_has_no_gradient_and_bounds_read_it_in_the_prologue():
    def kernel(k, x):
        n = k[0]
        for i in range(n):
            x[i] = 1

    kernel_ir = build(kernel, k=np.zeros(1, np.int32), x=ARRAY)[0]
    assert not kernel_ir.tmps[0].differentiable
    assert [s.op for s in kernel_ir.tasks[1].prologue if isinstance(s, Op)] == ["gload"]


def test_adding_to_a_kernel_variable_in_a_parallel_loop_is_atomic():
    def kernel(x):
        s = 0.0
        for i in range(8):
            s += x[i]
        return s

    kernel_ir = build(kernel, x=ARRAY)[0]
    assert atomics(kernel_ir.tasks[1]) == ["add"] and kernel_ir.returns == [f32]


def test_a_variable_that_nobody_reads_later_needs_no_task():
    def kernel(x):
        s = 0.0
        s += 1.0
        for i in range(8):
            x[i] = i

    kernel_ir = build(kernel, x=ARRAY)[0]
    assert len(kernel_ir.tasks) == 1 and kernel_ir.tmps == []


def test_several_axes_stay_several():
    def kernel(x):
        for i, j, k in ndrange(2, (1, 3), 4):
            x[i] = j + k

    (task,) = build(kernel, x=ARRAY)[0].tasks
    assert len(task.axes) == 3


def test_loop_config_serializes_the_next_loop_only():
    def kernel(x):
        loop_config(serialize=True)
        for i in range(3):
            x[i] = 1
        loop_config(block_dim=64)
        for i in range(3):
            x[i] = 1

    tasks = build(kernel, x=ARRAY)[0].tasks
    assert [t.serialize for t in tasks] == [True, False]


def test_a_loop_under_a_run_time_if_is_serial():
    def kernel(x, n):
        if n > 2:
            for i in range(n):
                x[i] = 1

    (task,) = build(kernel, x=ARRAY, n=3)[0].tasks
    assert not task.axes and any(isinstance(s, Loop) for s in walk(task.body))


def test_a_loop_under_a_static_if_is_parallel():
    def kernel(x, flag):
        if static(flag):
            for i in range(3):
                x[i] = 1

    assert len(build(kernel, x=ARRAY, flag=True)[0].tasks[0].axes) == 1
    assert build(kernel, x=ARRAY, flag=False)[0].tasks == []


def test_a_vector_variable_crosses_tasks():
    @func
    def pair(a, b):
        return [a, b]

    def kernel(f, x):
        v = f[0]
        for i in range(2):
            v += f[i] * 2
        for i in range(2):
            x[i] = v[0] + v[1] * 10

    field, array = Field(np.arange(4, dtype=np.float32).reshape(2, 2), (2,)), np.zeros(2, np.float32)
    run(kernel, f=field, x=array)
    assert array.tolist() == [(0 + 0 + 4) + 10 * (1 + 2 + 6)] * 2


def test_a_vector_argument_is_one_scalar_entry_a_component():
    def kernel(v, x):
        for i in range(8):
            x[i] = v[0] + v.y

    kernel_ir = build(kernel, v=MatrixArg(f32, (2,)), x=ARRAY)[0]
    assert [(a.name, a.index) for a in kernel_ir.args] == [("v.0", 0), ("v.1", 1), ("x", 2)]


def test_a_wide_bound_makes_a_wide_index():
    def kernel(x, n):
        for i in range(n):
            x[i] = 1

    from qdrun.compiler.frontend.signature import ScalarArg

    assert build(kernel, x=ARRAY, n=ScalarArg(i64))[0].tasks[0].axes[0].index.dtype is i64


def test_asserts_are_compiled_in_debug_mode_only():
    def kernel(x, n):
        for i in range(n):
            assert x[i] >= 0, f"x[{i}] is {x[i]}"

    plain, _ = build(kernel, x=ARRAY, n=2)
    assert not any(isinstance(s, Assert) for t in plain.tasks for s in walk(t.body))
    run(kernel, LowerOptions(debug=True), x=np.ones(2, np.float32), n=2)
    with pytest.raises(QdrunAssertionError, match=r"x\[1\] is -2"):
        run(kernel, LowerOptions(debug=True), x=np.array([1, -2], np.float32), n=2)


def test_indices_are_checked_when_the_options_say_so():
    def kernel(x, n):
        for i in range(n):
            x[i] = 1

    options = LowerOptions(check_out_of_bound=True)
    run(kernel, options, x=np.zeros(2, np.float32), n=2)
    with pytest.raises(QdrunAssertionError, match="out of range"):
        run(kernel, options, x=np.zeros(2, np.float32), n=3)
    assert "assert" not in text(kernel, x=ARRAY, n=3)


def test_the_same_source_gives_the_same_text():
    def kernel(x, n):
        s = 0.0
        for i in range(n):
            s += x[i] if x[i] > 0 and i > 2 else -x[i]
        return s

    assert text(kernel, x=ARRAY, n=3) == text(kernel, x=ARRAY, n=3)
