"""The judge of killed runs sees what may not be: without this, runs that lose rows would pass."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.chaos.jobs import GOOD, LARGE, PULLS, TRAPS, Batched, BatchedParams, batched, expected, grown
from benchmarks.chaos.play import Verdict, rows_in
from benchmarks.chaos.scenario import BATCH, BATCHED, ENDS, KINDS, Batching, Scenario, scenario
from benchmarks.chaos.verdict import judge
from qdrun.jobs.core.batch import BatchSession
from qdrun.runner.clock import now
from qdrun.runner.observe.table import write_parquet
from qdrun.runner.store.attempts import Attempt, ended, pack, requeued, started
from qdrun.runner.store.columns import made as made_rows
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.layout import write_run
from qdrun.runner.study.trials import Trial, trial_id

ONE = Scenario("worker", 0, "local", 3, 1, 0.1, 7, ())


def made(where, number=int):
    params = [{"number": number(k)} for k in range(3)]
    trials = [Trial(id=trial_id(one, 0), index=k, replicate=0, seed=k, swept=one, params=one) for k, one in enumerate(params)]
    return write_run(where / "runs", "made", "version: 1\n", {"name": "made"}, trials, {}), trials


def run_one(folder, journal, notes, trial, *, number=1, shift=0.0):
    """An attempt as a worker and a runner make it; ``shift``: of the loss."""
    attempt = Attempt(trial.id, number, journal.owner.number)
    started(journal, [(attempt, {})])
    loss, gradient = expected(ONE.salt, trial.params["number"], ONE.mean_s)
    for what in ("begin", "end"):
        notes.write(f"{what} {trial.params['number']} 1 {now():.6f}\n")
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
    assert any(text.startswith("not as they must end: ") for text in problems)
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
        "raylet",
        "head",
        "nodes",
        "mend",
        "full",
        "room",
        "lane",
        "rerun",
        "edit",
        "eio",
        "erofs",
        "stall",
        "pause",
        "gone",
        "second",
        "interrupt",
        "terminate",
    }
    assert {one.place for one in every} == {"cluster", "local", "emulated"}
    assert all(one.faults and (one.faults[0] or one.kind in ("up", "hostile", "proxy", "elsewhere", "early")) for one in every)
    assert not any(one.needs_resume for one in every if one.kind in ("eio", "rerun", "worker", "disk") and not killed(one))


def test_a_run_in_batches_is_that_of_its_seed_with_batches_and_traps():
    for kind in KINDS:
        for seed in range(40):
            alone, one = scenario(kind, seed), scenario(kind + BATCH, seed)
            assert replace(one, batch=None) == alone and one.label == f"{kind}.batch-{seed}"
    every = [scenario(kind, seed).batch for kind in BATCHED for seed in range(40)]
    assert {one.size for one in every} == {2, 3, 4, 5, "auto"}
    assert {trap for one in every for _, trap in one.traps} == set(TRAPS) == set(ENDS)
    assert {one.descends for one in every} == {one.asserts for one in every} == {True, False}
    assert all(one.asserts for one in every if "assert" in dict(one.traps).values())


IN_BATCHES = replace(ONE, kind="guilty", batch=Batching(3, ((1, "nan"),), 4, descends=False, asserts=False))


def batch_judged(where, *, shift=0.0, twice=False, guilty="failed", charged=False):
    """The verdict on a batch of three trials as a worker and a runner write it; trial 1 has failed, as it must."""
    folder, trials = made(where, float)
    names = [trial.id for trial in trials]
    found = [batched(ONE.salt, float(k), 4) for k in (0, 2)]
    gradients = {name: np.array([one[1][name] for one in found]) for name in ("number", "pulls")}
    losses = np.array([one[0] for one in found]) * (1.0 + shift)
    outputs = {"path": np.array([one[2]["path"] for one in found])}
    (rows,) = made_rows((0, 2), (1, 1), {"status": "done"}, losses, None, gradients, outputs)
    (where / "notes").write_text("".join(f"{what} {k} 1 1.0\n" for what in ("begin", "end") for k in range(3)))
    with Journal(folder) as journal:
        journal.write("begun", at=[0, 3], attempts=1, device="cpu", bytes=64)
        for _ in range(1 + twice):
            journal.write("rows", **rows.event())
        if charged:
            journal.write("retry", trial=names[0], attempt=1, failure="crash", charged=True, error={})
        error = {"type": "NotFinite", "message": "inf"}
        record = {"status": guilty, "loss": np.inf if guilty == "failed" else 1.0}
        record |= {"failure": "not_finite", "error": error} if guilty == "failed" else {}
        ended(journal, [(Attempt(names[1], 1, journal.owner.number), record)])
        journal.write("finished", state="failed")
    write_parquet(folder)
    assert rows_in((folder.path / "events" / "000001-000001.jsonl").read_bytes()) == 3 + 2 * twice
    play = SimpleNamespace(
        find=lambda: folder.path, scenario=IN_BATCHES, verdict=Verdict("guilty.batch", 0), notes=where / "notes"
    )
    judge(play)
    return play.verdict.problems


def test_a_batch_as_it_must_be_has_no_problems(tmp_path):
    assert batch_judged(tmp_path) == []


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        ({"shift": 1e-11}, "is not its own"),
        ({"twice": True}, "rows doubled"),
        ({"guilty": "done"}, "not as they must end"),
        ({"charged": True}, "was charged"),
    ],
)
def test_each_wrong_of_a_batch_is_named(tmp_path, spoil, said):
    assert [text for text in batch_judged(tmp_path, **spoil) if said in text]


def test_a_batch_of_the_job_gives_what_is_expected_notes_its_trials_and_springs_its_traps(tmp_path):
    notes = tmp_path / "notes"
    trials = [BatchedParams(number=k, salt=3, mean_s=1e-6, notes=str(notes), size=4) for k in (1.0, 2.0, 4.0)]
    with BatchSession.open(Batched, trials[0], 5) as batch:
        for params in (trials, [trials[0], trials[1].model_copy(update={"trap": TRAPS["nan"]}), trials[2]]):
            found = batch.run(params)
            good = [k for k in range(3) if params[k].trap == GOOD]
            assert np.isfinite(found.losses).tolist() == [k in good for k in range(3)] and not found.errors
            for k in good:
                loss, gradients, outputs = batched(3, params[k].number, 4)
                assert found.losses[k] == pytest.approx(loss, rel=1e-12)
                for named, known in ((found.gradients, gradients), (found.outputs, outputs)):
                    assert all(np.allclose(named[name][k], value, rtol=1e-12, atol=0.0) for name, value in known.items())
        with pytest.raises(ValueError, match="one trial of this batch is wrong"):
            batch.run([trials[0], trials[1].model_copy(update={"trap": TRAPS["raise"]})])
    lines = [line.split()[:2] for line in notes.read_text().splitlines()]
    assert sorted(lines) == sorted([what, number] for what in ("begin", "end") for number in ("1", "2", "4") for _ in range(2))


def test_the_numbers_that_are_expected_of_a_batch_have_the_gradients_of_their_loss():
    step, start, pulls = 1e-6, 1.7, np.array(PULLS)
    _, number, slopes = grown(start, pulls, 3)
    assert number == pytest.approx((grown(start + step, pulls, 3)[0] - grown(start - step, pulls, 3)[0]) / (2 * step), rel=1e-8)
    for k, slope in enumerate(slopes):
        far = step * (np.arange(3) == k)
        assert slope == pytest.approx(
            (grown(start, pulls + far, 3)[0] - grown(start, pulls - far, 3)[0]) / (2 * step), rel=1e-8
        )
