"""Who goes on with a run while somebody else does, too: one of them has it, and nothing runs twice."""

import pyarrow.parquet as pq
import pytest
from runner_helpers import write_config

from qdrun.runner.engine import resume as resuming
from qdrun.runner.engine import session
from qdrun.runner.observe.ended import Submitted
from qdrun.runner.observe.table import write_parquet
from qdrun.runner.observe.timing import Timing
from qdrun.runner.ray_adapter.jobs_api import note_launch
from qdrun.runner.ray_adapter.known_clusters import JOB, remember
from qdrun.runner.remote import detach, entry
from qdrun.runner.store import status
from qdrun.runner.store.encoding import document, read_document
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.layout import create
from qdrun.runner.store.owner import OwnerLost, RunAlive
from qdrun.runner.study.prepare import prepare

NOBODY = 2**22 + 1
"""No process has this number."""


@pytest.fixture
def run(tmp_path):
    return create(prepare(write_config(tmp_path))[0], tmp_path / "runs")


def died(run, pid=NOBODY):
    """Somebody has claimed the run, and is gone."""
    journal = Journal(run)
    path = run.path / f"owners/{journal.owner.number:06}.json"
    path.write_bytes(document(read_document(path.read_bytes()) | {"pid": pid}))
    return journal


def test_of_two_that_resume_a_dead_run_at_once_the_second_is_refused(run, monkeypatch):
    died(run)
    first = []
    attend = session.attend

    def late(*words, **more):
        """Between its look at the dead owner and its claim, another one has claimed the run."""
        first.append(Journal(run, gone=1))
        return attend(*words, **more)

    monkeypatch.setattr(resuming, "attend", late)
    with pytest.raises(RunAlive, match=f"{run.name} is run by process"):
        resuming.resume(run, quiet=True)
    first[0].beat()  # it still has it
    first[0].close()


def test_the_best_of_a_resumed_run_is_that_of_all_its_trials(run, monkeypatch):
    with died(run) as journal:
        names = [trial.id for trial in run.trials()]
        for name, loss in zip(names[:-1], range(3, 100)):
            journal.write("ended", trial=name, attempt=1, status="done", loss=float(loss))
    boards, made = [], session.Board

    def noted(**words):
        boards.append(made(**words))
        return boards[-1]

    def stop(*words, **more):
        raise RuntimeError("far enough")

    monkeypatch.setattr(session, "Board", noted)
    monkeypatch.setattr(session, "_start", stop)
    monkeypatch.setattr(session, "_planned", stop)
    with pytest.raises(RuntimeError, match="far enough"):
        resuming.resume(run, quiet=True)
    assert boards[0].best == (3.0, run.trials()[0].label) and boards[0].counts == {"done": len(names) - 1}


def test_a_table_of_an_earlier_end_is_made_again_when_the_last_owner_was_killed_before_it(run):
    names = [trial.id for trial in run.trials()]
    with Journal(run) as journal:
        journal.write("finished", state="interrupted", timing=None)
    write_parquet(run)
    with Journal(run) as journal:
        for name in names:
            journal.write("ended", trial=name, attempt=1, status="done", loss=1.0)
        journal.write("finished", state="done", timing=Timing(1.0, 1.0).summary())
    assert resuming.resume(run, quiet=True).state == "done"
    assert pq.read_table(run.table)["status"].to_pylist() == ["done"] * len(names)


def test_who_followed_a_job_that_is_gone_leaves_a_run_alone_that_goes_on(run, monkeypatch):
    died(run, 11)
    jobs = [{"status": "FAILED", "metadata": {"run": run.name}, "driver_info": {"pid": "11"}}]
    monkeypatch.setattr("qdrun.runner.ray_adapter.jobs_api.ask", lambda address, path: jobs)
    note_launch(run, address="http://head:8265", job=run.name)
    with Journal(run, gone=1) as other:
        other.beat()
        detach._bury(run)
        other.beat()
    assert status.status(run)["state"] == "running"


def test_who_followed_a_job_that_is_gone_says_that_its_run_is_lost(run, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(run.path.parent / "state"))
    journal = died(run, 11)
    journal.beat()
    jobs = [{"status": "FAILED", "metadata": {"run": run.name}, "driver_info": {"pid": "11"}}]
    monkeypatch.setattr("qdrun.runner.ray_adapter.jobs_api.ask", lambda address, path: jobs)
    detach._bury(run)
    assert status.status(run)["state"] == "running", "nobody says where it ran"
    note_launch(run, address="http://head:8265", job=run.name)
    detach._bury(run)
    assert status.status(run)["state"] == "running", "an address that only the run's folder names is not asked"
    remember(run, "http://head:8265", JOB)
    detach._bury(run)
    assert status.status(run)["state"] == "lost"
    with pytest.raises(OwnerLost):
        journal.beat()


@pytest.mark.parametrize(("rows", "state", "code"), [(3, "done", 0), (0, "cancelled", 1), (1, "interrupted", 130)])
def test_a_job_that_begins_when_its_run_has_ended_runs_nothing(run, rows, state, code, monkeypatch, capsys):
    """Its cluster had no room for it: the user has run it elsewhere since, or cancelled it."""
    with Journal(run) as journal:
        for trial in run.trials()[:rows]:
            journal.write("ended", trial=trial.id, attempt=1, status="done", loss=1.0)
        journal.write("finished", state=state)
    for where in (session, resuming):
        monkeypatch.setattr(where, "attend", lambda *words, **more: pytest.fail("it was run"))
    assert entry.main([run.uri]) == code
    assert f"{run.name} is {state}: it was run, or given up, before this process began" in capsys.readouterr().err
    assert status.status(run)["state"] == state


def test_a_job_that_begins_after_somebody_else_was_lost_with_its_run_goes_on_where_that_one_was(run, monkeypatch, capsys):
    done = run.trials()[0].id
    with died(run) as journal:
        journal.write("ended", trial=done, attempt=1, status="done", loss=1.0)
    staged = []

    def attend(prepared, job, folder, how, stage, *more, **words):
        with Journal(folder) as journal:
            staged.append([work.place for work in stage(journal)[0]])
        return Submitted(folder, "done", {})

    monkeypatch.setattr(resuming, "attend", attend)
    monkeypatch.setattr(session, "attend", lambda *words, **more: pytest.fail("from its beginning"))
    assert entry.main([run.uri]) == 0, capsys.readouterr().err
    assert staged == [list(range(1, len(run.trials())))]
