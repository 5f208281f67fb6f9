"""``Job.log``: a point for each step, from Python and from fields, alone and in a batch, and what is kept of many."""

import math
import random
import threading

import numpy as np
import pytest

import qdrun as qd
from qdrun.jobs.base import BatchSession, Job, JobParams, Outcome, Session, execute
from qdrun.jobs.core.watch import FULL, LiveValues
from qdrun.runner.config.optimize_section import OptimizeSection
from qdrun.runner.optimize.descent import body_of, descend_batch

HOW = {"backend": "cpu", "threads": 1, "memory_limit_bytes": None}


class RollParams(JobParams):
    speed: float = 2.0
    goal: float = 1.0
    steps: int = 6


class Roll(Job[RollParams]):
    """A declared job that logs a field at each step."""

    gradients = ("speed",)

    def build(self):
        self.speed, self.goal = self.input("speed"), self.input("goal")
        self.x = qd.field(qd.f64, shape=(), needs_grad=True)
        self.loss = self.objective()
        speed, goal, x, loss = self.speed, self.goal, self.x, self.loss

        @qd.kernel
        def move():
            x[None] += 0.1 * speed[None]

        @qd.kernel
        def miss():
            loss[None] += (x[None] - goal[None]) ** 2

        self.move, self.miss = move, miss

    def simulate(self):
        for _ in range(self.params.steps):
            self.checkpoint()
            self.move()
            self.log(x=self.x)
        self.miss()


def always(monkeypatch):
    monkeypatch.setattr(LiveValues, "may_read", lambda self: True)


def test_a_simulation_logs_its_fields_by_time_step_in_each_of_its_runs(monkeypatch):
    always(monkeypatch)
    with Session(Roll(RollParams()), backend="cpu", threads=1) as session:
        for speed in (2.0, 3.0, 5.0):
            session.job.watch.reset()
            session.run(RollParams(speed=speed))
            points = session.job.watch.live.take(last=True)
            assert [point.step for point in points] == [1, 2, 3, 4, 5, 6]
            assert [point.values["x"] for point in points] == pytest.approx([0.1 * speed * k for k in range(1, 7)])
        assert session.builds == 1
        assert session.job.launched() == "one by one: simulate() logs values"


def test_a_batch_logs_a_value_for_each_trial(monkeypatch):
    always(monkeypatch)
    speeds = np.random.default_rng().uniform(1.0, 3.0, 5)
    with BatchSession.open(Roll, RollParams(), 5) as batch:
        for _ in range(3):
            batch.job.watch.reset(5)
            batch.run_columns({"speed": speeds})
        points = batch.job.watch.live.take(last=True)
    np.testing.assert_allclose(np.stack([point.values["x"] for point in points]), 0.1 * np.outer(range(1, 7), speeds))


def test_reading_fields_takes_no_more_than_its_share_of_the_time():
    live = LiveValues()
    assert live.may_read()
    live.has_read(3600.0)
    assert not live.may_read()
    job = Roll(RollParams())
    with job.opened():
        job.watch.live.has_read(3600.0)
        job.run()
        assert job.watch.live.take(last=True) == []


def test_a_step_has_one_point_and_its_names_the_last_values():
    class Says(Job[JobParams]):
        needs_compiler = False

        def build(self): ...

        def run(self):
            for t in range(3):
                self.checkpoint()
                self.log(a=t, b=1)
                self.log(b=np.float32(0.5) * t)
            self.log(step=10, a=np.array(7.0))
            self.log()
            return Outcome(0.0)

    job = Says(JobParams())
    execute(job, **HOW)
    assert job.watch.live.latest.values == {"a": 7.0, "b": 1.0}
    points = job.watch.live.take(last=True)
    assert [(point.step, point.values) for point in points] == [
        *((t + 1, {"a": float(t), "b": 0.5 * t}) for t in range(3)),
        (10, {"a": 7.0}),
    ]
    assert [point.t for point in points] == sorted(point.t for point in points)


def test_what_is_no_number_is_refused_by_name():
    class Says(Job[JobParams]):
        def build(self):
            self.x = qd.field(qd.f64, shape=3)

        def run(self):
            self.log(fine=1.0, x=self.bad)
            return Outcome(0.0)

    for bad, shown in (("text", "'text'"), ([1.0, 2.0], r"\[1.0, 2.0\]"), (None, "None")):
        job = Says(JobParams())
        job.bad = bad
        with pytest.raises(TypeError) as caught:
            execute(job, **HOW)
        assert str(caught.value) == (
            f"Says logs `x`, which is neither a number nor a 0-d field: {bad!r}\n"
            "  do: log numbers; an array is an output: self.output(name, shape) in build"
        ), shown
    job = Says(JobParams())
    with job.opened(), pytest.raises(TypeError, match=r"^Says logs `x`, which is neither a number nor a 0-d field"):
        job.bad = job.x
        job.run()


def test_a_descent_logs_each_of_its_steps_alone_and_in_a_batch():
    section = {"rule": "adam", "steps": 7, "learning_rate": 0.1, "params": ["speed"], "stop": {"loss": 1e-30}}
    starts = [RollParams(speed=speed) for speed in np.random.default_rng().uniform(1.0, 3.0, 3)] + [
        RollParams(speed=1.0, goal=0.6)
    ]
    alone = []
    for params in starts:
        job = Roll(params)
        outcome = execute(job, **HOW, body=body_of(section)).outcome
        points = job.watch.live.take(last=True)
        assert [point.values["loss"] for point in points] == list(outcome.outputs["opt.history"])
        alone.append(points)
    with BatchSession.open(Roll, RollParams(), 4) as batch:
        batch.job.watch.reset(4)
        ends = descend_batch(batch, starts, OptimizeSection.model_validate(section))
        together = batch.job.watch.live.take(last=True)
    assert len(alone[-1]) < 8, "the last one is over before the others"
    for row, (points, end) in enumerate(zip(alone, ends, strict=True)):
        for name in ("loss", "grad_norm"):
            column = [point.values[name][row] for point in together]
            own = [point.values[name] for point in points]
            np.testing.assert_allclose(column[: len(own)], own, rtol=1e-9, atol=1e-12)
            assert np.isnan(column[len(own) :]).all()
        assert len(end.outputs["opt.history"]) == len(points)


def test_of_many_points_ever_fewer_are_kept_the_last_one_always():
    count = random.Random().randrange(20 * FULL, 30 * FULL)
    live, taken = LiveValues(), []
    for step in range(count):
        live.log(step, {"a": float(step)})
        if step % 777 == 0:
            taken += live.take()
    taken += live.take(last=True)
    steps = [point.step for point in taken]
    assert steps[: FULL + 1] == list(range(FULL + 1)) and steps[-1] == count - 1 and steps == sorted(set(steps))
    assert len(steps) <= FULL * (1 + math.ceil(math.log2(count / FULL)) / 2) + 1
    gaps = np.diff(steps[:-1])
    assert set(gaps) <= {1, 2, 4, 8, 16, 32} and (np.diff(gaps) >= 0).all()
    assert (
        len([LiveValues(1 << 14)._full, LiveValues(100)._full]) == 2
        and LiveValues(1 << 14)._full < LiveValues(100)._full < FULL
    )


def test_points_are_taken_by_another_thread_while_the_job_logs():
    live, seen, over = LiveValues(), [], threading.Event()

    def take():
        while not over.is_set():
            seen.extend(live.take())

    thread = threading.Thread(target=take)
    thread.start()
    for step in range(FULL):
        live.log(step, {"a": 1.0})
    over.set()
    thread.join()
    assert [point.step for point in [*seen, *live.take(last=True)]] == list(range(FULL))
