"""The judge of killed runs sees what may not be: without this, runs that lose rows would pass."""

import time
from types import SimpleNamespace

import pytest

from benchmarks.chaos.jobs import LARGE, expected
from benchmarks.chaos.play import Verdict
from benchmarks.chaos.scenario import KINDS, Scenario, scenario
from benchmarks.chaos.verdict import judge
from qdrun.runner.observe.table import write_parquet
from qdrun.runner.store.attempts import Attempt, ended, pack, requeued, started
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.layout import write_run
from qdrun.runner.study.trials import Trial, trial_id

ONE = Scenario("worker", 0, "local", 3, 1, 0.1, 7, ())


def made(where):
    trials = [
        Trial(id=trial_id({"number": k}, 0), index=k, replicate=0, seed=k, swept={"number": k}, params={"number": k})
        for k in range(3)
    ]
    return write_run(where / "runs", "made", "version: 1\n", {"name": "made"}, trials, {}), trials


def run_one(folder, journal, notes, trial, *, number=1, shift=0.0):
    """An attempt as a worker and a runner make it; ``shift``: of the loss."""
    attempt = Attempt(trial.id, number, journal.owner.number)
    started(journal, [(attempt, {})])
    loss, gradient = expected(ONE.salt, trial.params["number"], ONE.mean_s)
    for what in ("begin", "end"):
        notes.write(f"{what} {trial.params['number']} 1 {time.time():.6f}\n")
    record = {"status": "done", "loss": loss + shift, "gradients": {"x": gradient}}
    ended(journal, [(attempt, pack(folder, attempt, record))])


def judged(where, spoil=lambda *all: None, trials_run=3, finish=True):
    folder, trials = made(where)
    with open(where / "notes", "w", encoding="utf-8") as notes, Journal(folder) as journal:
        for trial in trials[:trials_run]:
            run_one(folder, journal, notes, trial)
        spoil(folder, journal, notes, trials)
        if finish:
            journal.write("finished", state="done")
    write_parquet(folder)
    play = SimpleNamespace(find=lambda: folder.path, scenario=ONE, verdict=Verdict("worker", 0), notes=where / "notes")
    judge(play)
    return play.verdict.problems


def test_a_run_as_it_must_be_has_no_problems(tmp_path):
    assert judged(tmp_path) == []
    assert {len(expected(ONE.salt, number, ONE.mean_s)[1]) == LARGE for number in range(3)} == {True, False}, (
        "rows of both sorts"
    )


def again(folder, journal, notes, trials, **options):
    run_one(folder, journal, notes, trials[0], number=2, **options)


def asked_again(folder, journal, notes, trials):
    requeued(journal, {trials[0].id: "it failed"})
    again(folder, journal, notes, trials, shift=1.0)


def damaged(folder, journal, notes, trials):
    with open(next((folder.path / "events").iterdir()), "ab") as file:
        file.write(b'{"event": "end\n')


def unknown_attempt(folder, journal, notes, trials):
    notes.write(f"begin {trials[0].params['number']} 1 1.0\n")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (again, "rows doubled"),
        (again, "ran again after its row was written"),
        (asked_again, "is not its own"),
        (damaged, "1 lines damaged"),
        (unknown_attempt, "ran 2 times in 1 attempts"),
    ],
)
def test_each_wrong_is_named(tmp_path, spoil, said):
    assert [text for text in judged(tmp_path, spoil) if said in text]


def test_a_missing_row_and_a_missing_end_are_named(tmp_path):
    problems = judged(tmp_path, trials_run=2, finish=False)
    assert any(text.startswith("not done: ") for text in problems)
    assert any(text.endswith("has 0 rows and was requeued 0 times") for text in problems)
    assert "the journal's last word is None" in problems
    assert any(text.endswith("never came to its end") for text in problems)


def killed(one):
    return any(fault.what == "runner" for faults in one.faults for fault in faults)


def test_scenarios_depend_on_kind_and_seed_alone():
    assert scenario("disk", 3) == scenario("disk", 3) != scenario("disk", 4)
    every = [scenario(kind, seed) for kind in KINDS for seed in range(40)]
    happens = {fault.what for one in every for faults in one.faults for fault in faults}
    assert happens == {
        "worker",
        "runner",
        "ledger",
        "raylet",
        "head",
        "nodes",
        "mend",
        "full",
        "room",
        "lane",
        "rerun",
        "eio",
        "gone",
        "second",
    }
    assert {one.place for one in every} == {"cluster", "local", "emulated"}
    assert all(one.faults and one.faults[0] for one in every)
    assert not any(one.needs_resume for one in every if one.kind in ("eio", "rerun", "worker", "disk") and not killed(one))
