"""``qdrun search``: what its rounds ask for, what they cost, that they go on after a kill with the same trials; and what is refused."""

import json
import math
import signal
import threading
import time
from contextlib import nullcontext

import numpy as np
import pytest

from qdrun.jobs.lj_cluster import KNOWN
from qdrun.runner.config.axes import SweepSection
from qdrun.runner.config.optimize_section import OptimizeSection
from qdrun.runner.config.search_section import SearchSection
from qdrun.runner.observe.ended import Submitted
from qdrun.runner.rounds import driver
from qdrun.runner.rounds.driver import RoundSettings, SearchChanged, SearchProgress, SearchRuns, search
from qdrun.runner.rounds.plans import NotSearchable, rounds_of
from qdrun.runner.store.files import LocalFiles, StorageLost, open_files
from qdrun.runner.store.layout import RunFolder
from qdrun.runner.store.owner import take

OPTIMIZE = OptimizeSection.model_validate({"rule": "lbfgs"})
QUIET = RoundSettings(quiet=True)
CONFIG = """
version: 1
name: lj
job: {{target: "qdrun.jobs.lj_cluster:LjCluster", params: {{atoms: 7}}}}
gradients: [positions]
device: {{backend: cpu, threads: 1}}
sweep: {{params: {{start: {{randint: [0, 1000]}}}}}}
optimize: {{rule: lbfgs, params: [positions], stop: {{gradient_norm: 1e-6}}}}
search: {{evaluations: 260, trials: 8, steps: 12}}
storage: {storage}
"""


def waves(x):
    return 0.1 * x * x - math.cos(3 * x)


def played(rounds, budget, rate=0.1):
    """Rounds whose descents are computed here: gradient steps on ``waves``. What was asked for, and what it took."""
    asked, spent = [], 0
    while (found := rounds.ask(budget - spent)) is not None:
        rows = []
        for trial in found.trials:
            x, history = trial["x"], [waves(trial["x"])]
            for _ in range(found.overrides["optimize.steps"]):
                x -= rate * (0.2 * x + 3 * math.sin(3 * x))
                history.append(waves(x))
            over = abs(0.2 * x + 3 * math.sin(3 * x)) < 1e-6
            row = {"status": "done", "loss": min(history), "out.opt.history": history, "out.opt.stopped": float(over)}
            rows.append(row | {"out.opt.x": np.float64(x)})
        spent += rounds.tell(rows)
        asked.append((found, rows))
        assert spent <= budget
    return asked, spent


def descents(**keys):
    section = SearchSection(evaluations=3000, **{"trials": 16, "steps": 5} | keys)
    sweep = SweepSection.model_validate({"params": {"x": {"uniform": [-8.0, 8.0]}}})
    return rounds_of(section, sweep, OPTIMIZE, ["x"])


def test_descents_go_on_where_they_were_and_fresh_starts_follow():
    asked, spent = played(descents(), 3000)
    assert 2900 < spent <= 3000
    (first, rows), (second, _) = asked[:2]
    assert len(first.trials) == 16 and first.overrides == {"optimize.steps": 5}
    ended = {float(row["out.opt.x"]) for row in rows}
    assert len(second.trials) == 8 and second.overrides == {"optimize.steps": 10}
    assert all(trial["x"] in ended for trial in second.trials)
    fresh = [found for found, _ in asked if len(found.trials) == 16]
    assert len(fresh) > 1 and fresh[0].trials != fresh[1].trials
    assert min(row["loss"] for _, rows in asked for row in rows) == pytest.approx(-1.0, abs=1e-6)


def test_descents_of_a_rule_that_does_not_end_by_itself_make_room_for_fresh_starts_at_a_minimum():
    rounds, best, fresh = descents(trials=2, keep=0.99), {}, 0
    for _ in range(20):
        found = rounds.ask(10_000)
        fresh += not any(trial["x"] in best for trial in found.trials)
        rows = []
        for trial in found.trials:
            before = best.get(trial["x"], 3.0)  # each round halves what is left above 1
            after = 1.0 + (before - 1.0) / 2 if before > 1.001 else before
            end = trial["x"] + 0.001
            best[end] = after
            history = [before, after + 0.1, after, after + 0.2]
            rows.append({"status": "done", "loss": after, "out.opt.history": history, "out.opt.stopped": 0.0, "out.opt.x": end})
        rounds.tell(rows)
    assert 1 < fresh < 4


def test_the_same_results_give_the_same_rounds():
    assert [found for found, _ in played(descents(), 2000)[0]] == [found for found, _ in played(descents(), 2000)[0]]
    assert played(descents(seed=1), 200)[0][0] != played(descents(), 200)[0][0]


def test_axes_without_draws_are_gone_through_once():
    sweep = SweepSection.model_validate({"params": {"x": [1.0, 2.0, 3.0, 4.0, 5.0]}})
    rounds = rounds_of(SearchSection(evaluations=10**6, trials=2, steps=400), sweep, OPTIMIZE, ["x"])
    asked, _ = played(rounds, 10**6)
    starts = [trial["x"] for found, _ in asked for trial in found.trials if trial["x"] in (1.0, 2.0, 3.0, 4.0, 5.0)]
    assert starts == [1.0, 2.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize(
    "axis", [{"normal": [0, 1, 5]}, {"uniform": [-1, 1], "samples": 3}, {"loguniform": [0.1, 1, 4], "shape": 3}]
)
def test_starts_are_drawn_as_many_as_a_round_has_whatever_the_axis_says(axis):
    sweep = SweepSection.model_validate({"params": {"x": axis, "n": {"randint": [0, 9, 2]}}})
    found = rounds_of(SearchSection(evaluations=3000, trials=6), sweep, OPTIMIZE, ["x"]).ask(3000)
    assert len(found.trials) == 6 and len({str(one["x"]) for one in found.trials}) == 6
    assert all(np.shape(one["x"]) == ((3,) if "shape" in axis else ()) for one in found.trials)


def test_items_of_an_array_are_replaced_by_what_was_found_for_the_whole():
    sweep = SweepSection.model_validate({"params": {"x.0": {"uniform": [0, 1]}, "y": {"uniform": [0, 1]}}})
    rounds = rounds_of(SearchSection(evaluations=100, trials=1, steps=5, keep=0.9), sweep, OPTIMIZE, ["x"])
    ((first,), _) = rounds.ask(100)
    assert set(first) == {"x.0", "y"}
    rounds.tell([{"status": "done", "loss": 1.0, "out.opt.history": [3.0, 2.0, 1.5, 1.0], "out.opt.x": np.array([0.25, 0.5])}])
    assert rounds.ask(90).trials == [{"y": first["y"], "x": [0.25, 0.5]}]


def test_failed_trials_cost_an_evaluation_and_do_not_go_on():
    rounds = descents(trials=2)
    rounds.ask(100)
    assert rounds.tell([{"status": "failed", "loss": None}, {"status": "failed", "loss": None}]) == 2
    assert len(rounds.ask(98).trials) == 2, "fresh starts"


@pytest.mark.parametrize(
    ("method", "optimize", "said"),
    [
        ("descents", None, "search.method descents needs a section `optimize`\n  do: add one"),
        ("descents", {"warm_start": "run"}, "optimize.warm_start does not go with `search`"),
        ("tpe", {}, "search.method tpe chooses the parameters itself, and the config has a section `optimize`\n  do: leave"),
    ],
)
def test_sections_that_do_not_fit_are_refused(method, optimize, said):
    made = None if optimize is None else OptimizeSection.model_validate({"rule": "lbfgs"} | optimize)
    sweep = SweepSection.model_validate({"params": {"x": [1.0]}})
    with pytest.raises(NotSearchable, match=said.replace(".", r"\.")):
        rounds_of(SearchSection(method=method, evaluations=9), sweep, made, ["x"])


def test_a_config_without_a_search_is_refused(tmp_path):
    config = tmp_path / "lj.yaml"
    config.write_text(CONFIG.format(storage=tmp_path).replace("search:", "# "))
    with pytest.raises(NotSearchable, match=r"lj\.yaml has no section `search`\n  do: add one"):
        search(config, folder=str(tmp_path / "s"))


def test_a_search_has_one_owner_and_a_process_that_has_lost_it_writes_nothing(tmp_path, monkeypatch):
    killed, config = [], {"search": {"seed": 0}}
    monkeypatch.setattr(driver, "BEAT_EVERY_S", 0.01)
    monkeypatch.setattr(driver.signal, "pthread_kill", lambda *thread: killed.append(thread))
    uri = str(tmp_path / "s")
    files, folder = open_files(uri), RunFolder(uri)

    def record(owner):
        return driver._Record(files, SearchProgress(uri, 9), config, owner)

    def state():
        return {path: files.read(path) for path in files.below("search")} | {"beat": folder.last_beat()["owner"]}

    with pytest.raises(SearchRuns, match=r"process \d+ on .* has taken the search in .* over from this process") as lost:
        with driver._claimed(uri, files) as owner:
            first = record(owner)
            first._known.append({"run": "", "mark": "1/1", "trials": [{"x": 1.0}], "overrides": {}})
            first._keep()
            with pytest.raises(
                SearchRuns, match=r"process \d+ on .* runs the search in .*\n  do: wait for its end, or stop it"
            ):
                with driver._claimed(uri, files):
                    pass
            other = take(folder, gone=owner.number)
            second = record(other)
            assert second._known == first._known and sorted(files.names("search")) == ["000001.json", "000002.json"]
            folder.beat(other.number)
            for _ in range(200):
                time.sleep(0.01)
                if killed:
                    break
            before = state()
            first._known.append({"run": "", "mark": "1/2", "trials": [{"x": 666.0}], "overrides": {}})
            first._keep()
    assert "do: wait for its end" in str(lost.value)
    assert killed == [(threading.main_thread().ident, signal.SIGINT)] and state() == before and before["beat"] == other.number
    files.put(
        "search/000001.json", json.dumps({"config": config, "rounds": [1, 2, 3]}).encode()
    )  # between its check and its write
    assert record(None)._known == second._known


def test_a_search_whose_round_ended_without_its_store_asks_nothing_more_of_it(tmp_path, monkeypatch):
    config = tmp_path / "lj.yaml"
    config.write_text(CONFIG.format(storage=tmp_path))

    def lost(*args, output, **options):
        for name in ("read", "put", "names", "remove"):
            monkeypatch.setattr(LocalFiles, name, lambda *words, **options: pytest.fail("the store was asked"))
        return Submitted(RunFolder(f"{output}/r"), "done", {}, lost=StorageLost("the run ends without its store"))

    monkeypatch.setattr(driver, "kept_open", lambda *words: nullcontext())
    monkeypatch.setattr(driver, "submit", lost)
    monkeypatch.setattr(driver, "BEAT_EVERY_S", 60.0)
    with pytest.raises(StorageLost):
        search(config, folder=str(tmp_path / "lost"), where=QUIET)


@pytest.mark.slow
def test_a_search_that_was_killed_goes_on_with_the_same_trials_to_the_same_end(one_worker, tmp_path, monkeypatch):
    config = tmp_path / "lj.yaml"
    config.write_text(CONFIG.format(storage=tmp_path))
    whole = search(config, folder=str(tmp_path / "whole"), where=QUIET)
    assert KNOWN[7] - 1e-6 < whole.best["loss"] < -12.0 and whole.spent <= 260 and len(whole.rounds) > 2

    real, calls = driver.submit, []

    def killed(*args, **options):
        done = real(*args, **options)
        calls.append(done)
        if len(calls) == 2:
            raise KeyboardInterrupt  # the run has ended, and its id was not noted
        return done

    monkeypatch.setattr(driver, "submit", killed)
    with pytest.raises(KeyboardInterrupt):
        search(config, folder=str(tmp_path / "cut"), where=QUIET)
    again = search(config, folder=str(tmp_path / "cut"), where=QUIET)
    assert again.best["loss"] == whole.best["loss"] and again.spent == whole.spent
    assert [one["trials"] for one in again.rounds] == [one["trials"] for one in whole.rounds]
    assert len(list((tmp_path / "cut" / "rounds").iterdir())) == len(whole.rounds), "no round ran twice"

    with monkeypatch.context() as patched:
        for name in ("kept_open", "submit"):
            patched.setattr(driver, name, lambda *args, **options: pytest.fail("a search that has ended starts Ray"))
        once_more = search(config, folder=str(tmp_path / "cut"), where=QUIET)
    assert once_more.result() == again.result(), "a search that has ended stays as it is"

    record = tmp_path / "cut" / "search" / "000003.json"
    data = json.loads(record.read_text())
    data["rounds"][0]["trials"][0]["start"] += 1
    record.write_text(json.dumps(data))
    with pytest.raises(SearchChanged, match=r"round 1 of the search in .* would have other trials than it has"):
        search(config, folder=str(tmp_path / "cut"), where=QUIET)
    with pytest.raises(SearchChanged, match=r"was made from another config; other now: search\.seed\n  do: give its config"):
        search(config, overrides=["search.seed=5"], folder=str(tmp_path / "cut"), where=QUIET)
