"""How many iterations of a job's launches can run at once."""

import numpy as np
import pytest

import qdrun as qd
from qdrun.jobs.base import Job, JobParams
from qdrun.jobs.mass_spring import MassSpring, MassSpringParams
from qdrun.jobs.planning.parallel_width import parallel_width


@pytest.fixture(autouse=True)
def program():
    return qd.init(default_fp=qd.f32)


def width_of(kernel, *args):
    return qd.current_program().parallel_iterations(kernel, args)


def test_each_task_counts_its_own_loop_and_a_serial_one_counts_1():
    x, total = qd.field(qd.f32, shape=(30, 7)), qd.field(qd.f32, shape=())

    @qd.kernel
    def three(n: qd.i32):
        for i, j in x:
            x[i, j] = 1.0
        for i in range(n):
            for j in range(50):
                total[None] += x[i, j % 7]
        total[None] = 0.0

    assert width_of(three, 11) == (210, 11, 1)
    assert width_of(three, 12) == (210, 12, 1)


def test_loops_of_fields_arguments_and_extents():
    count, x = qd.field(qd.i32, shape=()), qd.field(qd.f32, shape=100)
    count[None] = 31

    @qd.kernel
    def in_a_field():
        for i in range(count[None]):
            x[i] = 1.0

    @qd.kernel
    def of_an_array(a: qd.types.ndarray(dtype=qd.f32, ndim=2)):
        for i, j in a:
            a[i, j] = 1.0

    assert width_of(in_a_field)[-1] == 31
    count[None] = 32
    assert width_of(in_a_field)[-1] == 32
    assert width_of(of_an_array, np.zeros((6, 9), np.float32)) == (54,)


def test_methods_count_too_and_nothing_is_compiled():
    @qd.data_oriented
    class Box:
        def __init__(self):
            self.x = qd.field(qd.f32, shape=40)

        @qd.kernel
        def double(self):
            for i in self.x:
                self.x[i] *= 2.0

    box = Box()
    assert width_of(box.double) == (40,)
    (variant,) = Box.double.variants().values()
    assert variant.compiled_kernel.forward.made is None and not variant.compiled_kernel.reversed


@pytest.mark.parametrize("wanted", [None, ()])
def test_a_job_counts_all_tasks_of_its_launches(wanted):
    with MassSpring(MassSpringParams(steps=20), wanted=wanted).opened(threads=1, machine_code=False) as job:
        tasks = [n for kernel, args in job.launches() for n in job.program.parallel_iterations(kernel, args)]
        assert parallel_width(job) == pytest.approx(sum(tasks) / len(tasks))
        assert 1 < parallel_width(job) < 100


def test_a_job_without_launches_or_without_kernels_has_no_width():
    class Still(Job[JobParams]):
        needs_compiler = False

        def build(self):
            pass

    class Silent(Still):
        needs_compiler = True

    for kind in (Still, Silent):
        with kind(JobParams()).opened(threads=1) as job:
            assert parallel_width(job) is None
