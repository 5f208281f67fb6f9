"""Sessions are opened, run and closed by different threads, as a web server does."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.program.program import CURRENT
from qdrun.jobs.base import BatchSession, Job, JobParams, Session


class SpringParams(JobParams):
    stiffness: float = 2.0
    cells: int = 3


class Spring(Job[SpringParams]):
    gradients = ("stiffness",)

    def build(self):
        k, loss, cells = self.input("stiffness"), self.objective(), self.params.cells

        @qd.kernel
        def energy():
            for i in range(cells):
                loss[None] += 0.5 * k[None] ** 2 * (i + 1)

        self.energy = energy

    def simulate(self):
        self.energy()


def _loss(stiffness, cells=3):
    return 0.5 * stiffness**2 * cells * (cells + 1) / 2


def _check(outcome, stiffness, cells=3):
    assert outcome.loss == pytest.approx(_loss(stiffness, cells))
    assert outcome.gradients["stiffness"] == pytest.approx(2 * _loss(stiffness, cells) / stiffness)


def _in_thread(call):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result(60)


def test_a_session_runs_and_is_built_again_and_closed_in_other_threads():
    session = _in_thread(Session(Spring(SpringParams())).__enter__)
    for stiffness in (1.5, 4.0):
        _check(_in_thread(lambda: session.run(SpringParams(stiffness=stiffness))), stiffness)  # noqa: B023
    _check(_in_thread(lambda: session.run(SpringParams(stiffness=3.0, cells=5))), 3.0, 5)
    assert session.builds == 2 and _in_thread(session.plan).entries is not None
    program = session.job.program
    _in_thread(session.close)
    assert program.closed and CURRENT.get() is None


def test_a_batch_is_opened_run_and_closed_in_different_threads():
    batch = _in_thread(lambda: BatchSession.open(Spring, SpringParams(), 4))
    column = np.array([1.0, 2.0, 3.0, 4.0])
    outcome = _in_thread(lambda: batch.run_columns({"stiffness": column}))
    np.testing.assert_allclose(outcome.losses, _loss(column))
    np.testing.assert_allclose(outcome.gradients["stiffness"], 6 * column)
    program = batch.job.program
    _in_thread(batch.close)
    assert program.closed and CURRENT.get() is None


def test_a_session_leaves_the_callers_program_alone():
    session = _in_thread(Session(Spring(SpringParams())).__enter__)
    with qd.init() as outer:
        x = qd.field(qd.f32, shape=2)
        _check(session.run(SpringParams(stiffness=2.5)), 2.5)
        assert CURRENT.get() is outer
        session.close()
        assert CURRENT.get() is outer and not outer.closed
        x.fill(3.0)
        assert x[1] == 3.0
    assert outer.closed and CURRENT.get() is None


def test_threads_take_turns_in_one_session_and_run_side_by_side_in_two():
    wanted = [0.5 + n for n in range(12)]
    with Session(Spring(SpringParams())) as one, Session(Spring(SpringParams(cells=4))) as two:

        def run(stiffness):
            _check(one.run(SpringParams(stiffness=stiffness)), stiffness)
            _check(two.run(SpringParams(stiffness=stiffness, cells=4)), stiffness, 4)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(run, wanted))
        assert one.builds == two.builds == 1


def test_asyncio_may_run_sessions_in_its_threads():
    async def serve(session):
        values = [0.5 + n for n in range(6)]
        outcomes = await asyncio.gather(*(asyncio.to_thread(session.run, SpringParams(stiffness=v)) for v in values))
        for value, outcome in zip(values, outcomes):
            _check(outcome, value)

    with Session(Spring(SpringParams())) as session:
        asyncio.run(serve(session))


def test_a_kernel_in_a_thread_without_a_program_is_told_to_open_one():
    with qd.init():
        x = qd.field(qd.f32, shape=2)

        @qd.kernel
        def fill():
            for i in x:
                x[i] = 1.0

        found = []

        def launch():
            with pytest.raises(
                qd.QdrunRuntimeError, match=r"no program in this thread; do: qd.init\(\) here, or `with program:`"
            ):
                fill()
            found.append(True)

        thread = threading.Thread(target=launch)
        thread.start()
        thread.join()
        assert found
