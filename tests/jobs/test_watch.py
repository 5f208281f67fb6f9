"""A job seen from another thread: what it counts, and how it is stopped between steps."""

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.errors import QdrunRuntimeError
from qdrun.jobs.base import Job, JobParams, Outcome, Session, Stopped, Watch, execute
from qdrun.jobs.mass_spring import MassSpring
from qdrun.jobs.mpm88 import Mpm88
from qdrun.runner.optimize.descent import body_of
from qdrun.runner.workers.records import place_of

SMALL = {MassSpring: {"steps": 12}, Mpm88: {"particles": 16, "grid": 8, "steps": 12}}
HOW = {"backend": "cpu", "threads": 1, "memory_limit_bytes": None}


def made(job, **params):
    return job(job.Params(**SMALL[job] | params))


@pytest.mark.parametrize("job", SMALL)
def test_every_time_step_is_counted_and_a_stopped_job_begins_no_more(job):
    one = made(job)
    execute(one, **HOW)
    assert (one.watch.runs, one.watch.steps) == (1, 12)
    stopped = made(job)
    step, begun = stopped.step, []

    def until_five(t, k):
        if stopped.program.recorders.rehearsal is None:
            if len(begun) == 5:
                stopped.watch.stop("the user cancelled it")
            begun.append(t)
        step(t, k)

    stopped.step = until_five
    with pytest.raises(Stopped, match=r"^the user cancelled it$"):
        execute(stopped, **HOW)
    assert stopped.watch.steps == 5
    assert stopped.program is None  # closed


def test_a_session_that_was_stopped_runs_no_more_and_the_first_reason_stays():
    one = made(MassSpring)
    with Session(one, backend="cpu", threads=1) as session:
        first = session.run()
        one.watch.stop("first")
        one.watch.stop("second")
        with pytest.raises(Stopped, match="first"):
            session.run()
        assert one.watch.runs == 1
    assert np.isfinite(first.loss)


def test_a_request_before_the_start_ends_a_job_before_it_runs():
    one = made(MassSpring)
    one.watch.stop("too late")
    with pytest.raises(Stopped):
        execute(one, **HOW)
    assert (one.watch.runs, one.watch.steps) == (0, 0)


def test_a_descent_is_counted_by_its_steps_and_stops_between_them():
    section = {"rule": "sgd", "steps": 50, "learning_rate": 1e-3, "params": ["stiffness"]}
    one = made(MassSpring)

    def body(session):
        run = session.run

        def three_times(params=None):
            if one.watch.runs == 3:
                one.watch.stop("enough")
            return run(params)

        session.run = three_times
        return body_of(section)(session)

    with pytest.raises(Stopped, match="enough"):
        execute(one, **HOW, body=body)
    assert one.watch.runs == 3


def test_progress_counts_the_steps_of_the_current_run_and_names_the_phase():
    one, seen = made(MassSpring), []
    step = one.step

    def noted(t, k):
        step(t, k)
        if one.program.recorders.rehearsal is None:
            seen.append(one.watch.progress(one.program))

    one.step = noted
    with Session(one, backend="cpu", threads=1) as session:
        session.run()
        assert seen == [f"time step {k + 1} of 12" for k in range(12)]
        seen.clear()
        session.run()
    assert seen == [f"run 2, time step {k + 1} of 12" for k in range(12)]


class LongKernelParams(JobParams):
    n: int = 5


class LongKernel(Job[LongKernelParams]):
    """A job of one launch, which says what the watch says inside of it."""

    gradients = ("x",)

    def build(self):
        self.x = qd.field(qd.f64, shape=self.params.n, needs_grad=True)
        self.loss = qd.field(qd.f64, shape=(), needs_grad=True)
        x, loss = self.x, self.loss

        @qd.kernel
        def work():
            for i in x:
                loss[None] += x[i] ** 2

        self.seen = []

        def noted():
            self.seen.append(self.watch.progress(self.program))
            work()

        def back():
            self.seen.append(self.watch.progress(self.program))
            work.grad()

        self.work = qd.ad.grad_replaced(noted)
        qd.ad.grad_for(self.work)(back)

    def run(self):
        self.seen.append(self.watch.progress(self.program))
        with qd.ad.Tape(loss=self.loss):
            self.work()
        return Outcome(float(self.loss[None]), {"x": self.x.grad.to_numpy()})


def test_a_job_without_time_steps_shows_whether_it_runs_forward_or_backward():
    one = LongKernel(LongKernelParams())
    execute(one, **HOW)
    assert one.seen == ["run", "forward", "backward"]


def test_steps_that_a_gradient_runs_again_are_not_counted_as_new_ones():
    whole, windowed = made(Mpm88), made(Mpm88)
    used = execute(whole, **HOW).plan.bytes
    seen, step = [], windowed.step

    def noted(t, k):
        step(t, k)
        if windowed.program.recorders.rehearsal is None:
            seen.append((t, windowed.watch.progress(windowed.program)))

    windowed.step = noted
    done = execute(windowed, **HOW, memory_budget_bytes=int(used * 0.6))
    assert windowed.steps_plan.replays > 0
    assert windowed.watch.steps == 12 and len(seen) == 12 + windowed.steps_plan.replays
    assert [text for _, text in seen[:12]] == [f"time step {k + 1} of 12" for k in range(12)]
    assert {text for _, text in seen[12:]} == {"backward"} and done.outcome.gradients


def test_a_job_can_say_its_loss_by_step():
    class Falls(Job[JobParams]):
        needs_compiler = False

        def build(self): ...

        def run(self):
            self.said = []
            for t in range(3):
                self.checkpoint()
                self.log(**({} if t == 1 else {"loss": 8.0 / (t + 1), "height": t}))
                self.said.append(self.watch.progress(self.program))
            return Outcome(1.0)

    one = Falls(JobParams())
    execute(one, **HOW)
    assert one.said == ["time step 1, loss 8, height 0", "time step 2, loss 8, height 0", "time step 3, loss 2.66667, height 2"]


def test_progress_of_a_descent_names_its_step_also_when_it_goes_on_from_an_earlier_one():
    section = {"rule": "sgd", "steps": 3, "learning_rate": 1e-4, "params": ["stiffness"]}
    one, seen = made(MassSpring), []

    def body(session):
        run = session.run

        def noted(params=None):
            outcome = run(params)
            seen.append(one.watch.progress(one.program).partition(", ")[0])
            return outcome

        session.run = noted
        return body_of(section)(session)

    execute(one, **HOW, body=body)
    assert seen == [f"optimize step {k} of 3" for k in range(4)]


def test_a_check_that_fails_in_a_later_run_names_the_step_of_that_run():
    watch = Watch()
    for steps in (12, 2):
        watch.run(12)
        for _ in range(steps):
            watch.step()
    error = QdrunRuntimeError("index 9 is out of bounds in kernel `k`")
    assert place_of(error, "t1", watch) == "in trial t1, run 2 of the job, time step 1, forward"
