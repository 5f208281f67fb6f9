"""Bits that flip and files that end too early: said with file, line and remedy, and never a wrong value without a word."""

import csv
import io
import random
import shutil

import numpy as np
import pytest
from store_helpers import make_run, record, run_one, trials
from typer.testing import CliRunner

from qdrun.runner.cli.app import app
from qdrun.runner.engine.resume import look
from qdrun.runner.observe.arrays import Arrays
from qdrun.runner.observe.listing import table_of
from qdrun.runner.observe.table import rows, write_parquet
from qdrun.runner.store import status
from qdrun.runner.store.attempts import Attempt, ResultMissing, arrays_of, ended, started
from qdrun.runner.store.encoding import Damaged
from qdrun.runner.store.follower import read
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.layout import RunFolder
from qdrun.runner.store.owner import owner_numbers
from qdrun.runner.store.replay import record_of, replay


def make_two_owners(where):
    """A run of six trials and two owners: small and large gradients, a retry, lines of the first owner that came too late."""
    folder = make_run(where, 6)
    names = folder.trial_ids()
    first = Journal(folder)
    run_one(folder, first, names[0], 1.25)
    run_one(folder, first, names[1], 2.5, np.full(9000, 0.5))
    started(first, [(Attempt(names[2], 1), {"device": "cpu"})], sync=True)
    second = Journal(folder, gone=1)
    first._segment.append(b'{"seq":9,"event":"ended","trial":"%b","status":"done","loss":666.0}\n' % names[3].encode())
    with second:
        for index, name in enumerate(names[2:], 2):
            run_one(folder, second, name, 10.0 + index, [float("inf"), -0.0], number=2)
        second.write("finished", sync=True, state="done")
    return folder


def seen(folder):
    """Everything that a person can learn of a run, and whether some of it was said to be damaged; errors are what they say."""
    said, facts = [], {}
    try:
        table = table_of(folder)
        facts |= {"rows": [str(sorted(row.items(), key=str)) for part in table.parts() for row in part], "state": table.state}
        said += table.problems
        found = replay(folder)
        facts |= {"counts": dict(found.counts()), "owner": found.owner, "complete": found.complete}
        for name, state in found.trials.items():
            for way in (
                lambda s=state: arrays_of(folder, record_of(folder, s) or {}),
                lambda n=name: Arrays(folder, found, "gradients")[n],
            ):
                try:
                    facts[f"arrays {name} {len(facts)}"] = str({k: v.tolist() for k, v in way().items()})
                except (ResultMissing, Damaged, KeyError) as error:
                    said.append(str(error))
        shown = status.status_or_damage(folder)
        said += [str(shown["damaged_lines"])] if shown["damaged_lines"] or shown["state"] == "damaged" else []
        facts |= {"status": [shown[name] for name in ("state", "trials", "best", "counts")]}
    except (Damaged, OSError) as error:
        said.append(str(error))
    for way in (folder.info, folder.config, folder.plan, folder.trials):
        try:
            facts[way.__name__] = str(way())
        except (Damaged, ValueError) as error:
            said.append(str(error))
    return facts, said


def flip(path, bit):
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(bytes(data))


def harmless(before, after):
    return all(after.get(key) == value for key, value in before.items())


def check_flips(tmp_path, count, seed):
    """Flip one bit of one file at a time; the number that were reported, changed nothing, and changed something without a word."""
    whole = make_two_owners(tmp_path)
    before, said = seen(whole)
    assert not said
    rng, verdicts = random.Random(seed), {"reported": 0, "harmless": 0, "silent": []}
    files = [path for path in sorted(whole.path.rglob("*")) if path.is_file() and path.stat().st_size]
    for _ in range(count):
        path = rng.choice(files)
        bit = rng.randrange(8 * path.stat().st_size)
        data = path.read_bytes()
        flip(path, bit)
        after, said = seen(whole)
        path.write_bytes(data)
        if said:
            verdicts["reported"] += 1
        elif harmless(before, after):
            verdicts["harmless"] += 1
        else:
            verdicts["silent"].append((path.name, bit // 8, bit % 8))
    return verdicts


def test_of_some_flipped_bits_none_changes_anything_without_a_word(tmp_path):
    verdicts = check_flips(tmp_path, 25, 1)
    assert not verdicts["silent"] and verdicts["reported"] > 8


@pytest.mark.slow
def test_of_five_hundred_flipped_bits_none_changes_anything_without_a_word(tmp_path):
    seed = random.randrange(2**32)
    verdicts = check_flips(tmp_path, 500, seed)
    assert not verdicts["silent"], seed
    assert verdicts["reported"] > 160


@pytest.mark.parametrize("where", ["in the middle", "its newline", "the last newline"])
def test_a_damaged_row_is_damaged_by_name_and_runs_again(tmp_path, where):
    folder = make_run(tmp_path, 3)
    names = folder.trial_ids()
    with Journal(folder) as journal:
        for index, name in enumerate(names):
            ended(journal, [(Attempt(name, 1), record(float(index)))])
        if where != "the last newline":
            journal.write("finished", sync=True, state="done")
    path = folder.path / "events/000001-000001.jsonl"
    data = path.read_bytes()
    end = data.rfind(b"\n") if where == "the last newline" else data.index(b"\n", data.index(names[2].encode()))
    flip(path, 8 * (end if "newline" in where else end - 40) + 5)
    (folder.path / "heartbeat.json").unlink()
    table = {row["trial"]: row["status"] for row in rows(folder)}
    assert table == {names[0]: "done", names[1]: "done", names[2]: "damaged"}
    (problem,) = replay(folder).problems(folder)
    assert problem.startswith(
        f"{folder.uri}/events/000001-000001.jsonl, line 4: the checksum does not match, and its event is lost"
    )
    assert names[2] in problem and f"do: `qdrun resume {folder.uri}`" in problem
    assert look(folder).retried == {names[2]: "a line of the journal that names it is damaged"}


def test_the_cut_between_owners_does_not_hang_on_one_line(tmp_path):
    """What a former owner wrote too late stays refused, also where the first line of the next one is damaged."""
    folder = make_two_owners(tmp_path)
    before = [row["loss"] for row in rows(folder)]
    assert before == [1.25, 2.5, 12.0, 13.0, 14.0, 15.0]
    flip(folder.path / "events/000002-000001.jsonl", 100)
    found = replay(folder)
    assert [row["loss"] for row in rows(folder)] == before and found.damaged == 1 and read(folder).refused == 1
    with Journal(folder, gone=max(owner_numbers(folder.files))) as journal:
        assert journal.owner.number == 3
    assert [row["loss"] for row in rows(folder)] == before


def test_a_damaged_file_of_gradients_is_never_read_and_its_trial_runs_again_without_it(tmp_path):
    folder = make_two_owners(tmp_path)
    name = folder.trial_ids()[1]
    path = folder.path / f"trials/{name}/a1/gradients.safetensors"
    assert look(folder).retried == {}
    flip(path, 8 * 40_000)
    entry = record_of(folder, replay(folder).trials[name])
    for way in (lambda: arrays_of(folder, entry), lambda: Arrays(folder, replay(folder), "gradients")[name]):
        with pytest.raises(
            ResultMissing, match=rf"{path} cannot be read: its checksum .*\n  do: remove the file .*`qdrun resume"
        ):
            way()
    path.unlink()
    assert look(folder).retried == {name: f"trials/{name}/a1/gradients.safetensors is not there, or not whole"}


@pytest.mark.parametrize("left", [0.0, 0.5, 0.99])
@pytest.mark.parametrize("name", ["trials.jsonl", "plan.json", "run.json", "config.resolved.json", "summary.json"])
def test_results_come_from_the_journal_whatever_other_file_is_cut_short(tmp_path, name, left):
    folder = make_two_owners(tmp_path)
    write_parquet(folder)
    losses = {row["trial"]: row["loss"] for row in rows(folder)}
    path = folder.path / name
    data = path.read_bytes()
    path.write_bytes(data[: int(left * len(data))])
    result = CliRunner().invoke(app, ["results", folder.uri, "--format", "csv"])
    assert result.exit_code == 0, result.output
    columns = ("trial", "status", "loss")  # all are asked for: a few of an ended run are read from its Parquet file
    shown = [tuple(row[c] for c in columns) for row in csv.DictReader(io.StringIO(result.stdout))]
    assert {trial: float(loss) for trial, _, loss in shown if loss} == losses
    if name == "trials.jsonl":
        assert "trials.jsonl" in result.stderr and "  do: `qdrun resume" in result.stderr
        lost = {trial for trial, state, _ in shown if state == "damaged"}
        assert lost and lost >= {trial.id for trial in trials(6)} - {t.id for t in folder.found_trials().trials if t.params}
        with pytest.raises(Damaged, match=r"trials\.jsonl.*\n  do: `qdrun resume"):
            folder.trials()
    elif name == "plan.json":
        assert f"{folder.uri}/plan.json is damaged: " in result.stderr
    elif name != "summary.json":
        way = folder.info if name == "run.json" else folder.config
        with pytest.raises(Damaged, match=rf"{path} is damaged: it .*\n  do: `qdrun results"):
            way()
    shown = CliRunner().invoke(app, ["status", folder.uri])
    assert shown.exit_code in (0, 2) and "Traceback" not in shown.output


def test_a_copy_without_a_segment_says_what_is_gone(tmp_path):
    folder = make_two_owners(tmp_path / "a")
    copy = RunFolder(shutil.copytree(folder.path, tmp_path / "b" / folder.name))
    (copy.path / "events/000001-000001.jsonl").unlink()
    (problem,) = replay(copy).problems(copy)
    assert problem.startswith(
        f"{copy.uri}/events/000001-000001.jsonl: its end, or all of it, is gone, and the events there are lost"
    )
