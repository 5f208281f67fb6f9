"""The predicted time of a trial: every launch once a time step, its gradient where one is wanted, steps that are run again."""

import pytest

from qdrun.jobs.base import Job, JobParams
from qdrun.jobs.mass_spring import MassSpring, MassSpringParams
from qdrun.jobs.trial_time import trial_time


def predicted(steps=20, *, wanted=None, budget=None, **how):
    job = MassSpring(MassSpringParams(steps=steps), wanted=wanted)
    with job.opened(threads=1, memory_budget_bytes=budget, machine_code=False) as made:
        found = trial_time(made, **how)
        return found, made.steps_plan


def test_each_launch_counts_once_a_time_step_and_so_does_its_gradient():
    found, _ = predicted()
    assert [times for times, _ in found.launches] == [20] * 9
    assert [launch.tasks[0].name for _, launch in found.launches[2:5]] == ["excite_0", "pull_0", "pull_0_grad"]
    assert found.seconds == pytest.approx(20 * sum(launch.seconds for _, launch in found.launches))
    assert predicted(40)[0].seconds == pytest.approx(2 * found.seconds)


def test_without_gradients_there_are_kernels_alone():
    found, _ = predicted(wanted=())
    assert [launch.tasks[0].name for _, launch in found.launches] == ["stand_0", "excite_0", "pull_0", "advance_0", "walked_0"]
    assert found.seconds < predicted()[0].seconds


def test_steps_that_a_budget_runs_again_count():
    found, plan = predicted(200, budget=60_000)
    assert plan.replays > 0
    assert [times for times, _ in found.launches[:2]] == [200 + plan.replays, 200]


def test_another_backend_has_its_own_prediction():
    here, there = predicted()[0], predicted(arch="cuda")[0]
    assert there.seconds > 10 * here.seconds, "eight masses are nothing for a GPU"
    assert there.beside(4, 4.5, 270_336) == pytest.approx(there.seconds / 4)


def test_a_job_without_launches_or_without_kernels_has_none():
    class Still(Job[JobParams]):
        needs_compiler = False

        def build(self):
            pass

    class Silent(Still):
        needs_compiler = True

    for kind in (Still, Silent):
        with kind(JobParams()).opened(threads=1) as job:
            assert trial_time(job) is None
