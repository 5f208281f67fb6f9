"""The jobs that come with the package: gradients against central differences in f64, plans against use."""

from __future__ import annotations

import numpy as np
import pytest

from qdrun.jobs.base import check_gradients, execute
from qdrun.jobs.billiards import Billiards, BilliardsParams
from qdrun.jobs.mass_spring import MassSpring, MassSpringParams, truss
from qdrun.jobs.mpm88 import Mpm88, Mpm88Params


def robots(seed: int) -> MassSpringParams:
    r = np.random.default_rng(seed)
    return MassSpringParams(
        steps=60,
        stiffness=float(r.uniform(500, 1500)),
        damping=float(r.uniform(5, 20)),
        actuation=r.uniform(0.1, 0.35, 4).tolist(),
    )


def blocks(seed: int) -> Mpm88Params:
    r = np.random.default_rng(seed)
    return Mpm88Params(
        particles=36,
        steps=40,
        stiffness=float(r.uniform(20, 60)),
        velocity=[float(r.uniform(2.5, 3.5)), float(r.uniform(-2, 0))],
    )


@pytest.mark.parametrize("params", [robots(1), blocks(1)], ids=["mass_spring", "mpm88"])
def test_gradients_equal_central_differences(params):
    check(params)


@pytest.mark.slow
@pytest.mark.parametrize("params", [make(seed) for seed in range(2, 7) for make in (robots, blocks)])
def test_gradients_equal_central_differences_for_more_parameters(params):
    check(params)


def check(params: MassSpringParams | Mpm88Params) -> None:
    job = MassSpring if isinstance(params, MassSpringParams) else Mpm88
    rows = [
        min(pair, key=lambda row: row.relative_error)
        for pair in zip(*(check_gradients(job, params, step=h) for h in (1e-5, 1e-6)))
    ]
    largest = max(abs(row.given) for row in rows)
    for row in rows:  # a component far below the largest is compared with that one: differences cannot see it
        assert row.given != 0.0, f"{row.name} has no influence: the case is too easy"
        assert abs(row.given - row.difference) <= 1e-6 * max(abs(row.given), 1e-4 * largest), row


@pytest.mark.parametrize("wanted", [None, ()], ids=["with gradients", "forward only"])
@pytest.mark.parametrize(
    "job",
    [MassSpring(robots(3)), Mpm88(blocks(3)), Billiards(BilliardsParams(steps=40))],
    ids=["mass_spring", "mpm88", "billiards"],
)
def test_what_is_planned_is_what_is_used(job, wanted):
    again = type(job)(job.params, wanted=wanted)
    done = execute(again, backend="cpu", threads=2, memory_limit_bytes=None)
    assert done.plan.bytes == done.peak_bytes
    assert done.plan.of_program() == done.used


def test_forward_only_gives_the_same_loss():
    params = robots(4)
    both = [execute(MassSpring(params, wanted=w), backend="cpu", threads=1, memory_limit_bytes=None) for w in (None, ())]
    assert both[0].outcome.loss == both[1].outcome.loss
    assert both[1].outcome.gradients == {}


def test_a_robot_needs_an_amplitude_for_each_muscle():
    with (
        pytest.raises(ValueError, match="3 amplitudes for 4 muscles"),
        MassSpring(MassSpringParams(actuation=[0.1] * 3)).opened(),
    ):
        pass


def test_the_truss_is_connected():
    body = truss(5)
    reached, todo = {0}, [0]
    while todo:
        here = todo.pop()
        for a, b in body.ends:
            for other in {a, b} - {here} if here in (a, b) else set():
                if other not in reached:
                    reached.add(other)
                    todo.append(other)
    assert reached == set(range(len(body.points)))


def test_gradients_of_a_break_shot_equal_differences_through_several_collisions():
    params = BilliardsParams(steps=220, velocity=[2.0, 0.1])
    with Billiards(params).opened(threads=1) as job:
        outcome = job.run()
        hits = int((np.abs(job.impulse.to_numpy()).sum(axis=2) > 0).sum())
    assert hits > 20, "the triangle was broken"
    rows = check_gradients(Billiards, params)
    assert len(rows) == 4 and all(row.given != 0.0 and row.relative_error < 1e-5 for row in rows), rows
    assert outcome.loss == pytest.approx(float(np.sum((np.array([0.9, 0.75]) - outcome.outputs["end"]) ** 2)), rel=1e-12)
