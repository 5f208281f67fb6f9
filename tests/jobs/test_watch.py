"""A job seen from another thread: what it counts, and how it is stopped between steps."""

import numpy as np
import pytest

from qdrun.jobs.base import Session, Stopped, execute
from qdrun.jobs.mass_spring import MassSpring
from qdrun.jobs.mpm88 import Mpm88
from qdrun.runner.descent import body_of

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
