"""What one sees of runs: tables by column, lists, logs, reasons of waiting; from the folder alone."""

import json
import threading
import time

import pytest
from runner_helpers import trial_record, write_config
from test_documents import call, finished  # noqa: F401 - a fixture
from typer.testing import CliRunner

from qdrun.runner.cli.app import app
from qdrun.runner.cli.looking import State
from qdrun.runner.observe import listing
from qdrun.runner.observe.board import Board
from qdrun.runner.observe.ended import RunEnd, Submitted, summary_text
from qdrun.runner.observe.table import flat
from qdrun.runner.provenance.record import record
from qdrun.runner.query.picking import NotFound, best_place, column_of, ordered, trial_of
from qdrun.runner.query.run_table import RunTable
from qdrun.runner.store.attempts import STREAMS, Attempt, Log
from qdrun.runner.store.encoding import document
from qdrun.runner.store.files import open_files
from qdrun.runner.store.follower import Follower
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.layout import RunFolder, create, write_run
from qdrun.runner.store.owner import cancel_requests
from qdrun.runner.store.status import STATES
from qdrun.runner.study.plan import make_plan
from qdrun.runner.study.prepare import prepare
from qdrun.runner.study.trials import Trial, trial_id

A1, B2 = (trial_id({"x": i}, 0) for i in range(2))


@pytest.fixture
def alive(tmp_path):
    """A run of this process: its folder, its journal, and the two trials of it, A1 and B2."""
    ids = (A1, B2)
    trials = [Trial(id=name, index=i, replicate=0, seed=i, swept={"x": i}, params={"x": i}) for i, name in enumerate(ids)]
    folder = write_run(tmp_path / "runs", "hand", "", {"gradients": []}, trials, {})
    with Journal(folder) as journal:
        journal.write("submitted", sync=True)
        journal.beat()
        yield folder, journal


def text(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_best_trial_by_any_column(finished):  # noqa: F811
    rows = call("results", finished.path)[1]["rows"]
    done = [row for row in rows if row["status"] == "done"]
    (best,) = call("results", finished.path, "--best", "loss")[1]["rows"]
    assert best["loss"] == min(row["loss"] for row in done)
    (most,) = call("results", finished.path, "--best", "max:out.reach")[1]["rows"]
    assert most["out.reach"] == max(row["out.reach"] for row in done) and most["trial"] != best["trial"]
    assert call("results", finished.path, "--best", "max:error")[1]["rows"] == []
    head, _, row = text("results", finished.path, "--best", "loss").splitlines()
    assert head.split()[:3] == ["trial", "x", "mood"], "what was swept is shown of one row, too"
    assert row.split()[1] == f"{best['param.x']:g}"


def test_rows_are_ordered_and_cut_to_columns(finished):  # noqa: F811
    code, data = call("results", finished.path, "--sort", "max:loss", "--columns", "trial,param.x,loss")
    assert code == 0 and data["columns"] == ["trial", "param.x", "loss"]
    losses = [row["loss"] for row in data["rows"]]
    assert losses[0] > losses[1] and losses[2:] == [None, None], "trials without a loss come last"
    assert [list(row) for row in data["rows"]] == [data["columns"]] * 4
    csv = text("results", finished.path, "--format", "csv", "--columns", "loss,status", "--sort", "loss")
    assert csv.splitlines()[0] == "loss,status" and csv.splitlines()[1].endswith(",done")
    assert "param.x" in text("results", finished.path, "--columns", "trial,param.x").splitlines()[0]


def test_columns_are_found_by_their_last_part_and_wrong_ones_are_refused():
    columns = ["trial", "loss", "param.x", "param.size", "grad.x", "out.reach"]
    assert column_of("size", columns) == "param.size" and column_of("out.reach", columns) == "out.reach"
    assert column_of("x", columns) == "param.x"  # as the table heads it; the gradient is headed grad.x
    with pytest.raises(NotFound, match=r"`y` is grad\.y or out\.y"):
        column_of("y", [*columns, "grad.y", "out.y"])
    with pytest.raises(NotFound, match="did you mean `loss`"):
        column_of("los", columns)
    rows = [{"loss": 1.0, "status": "done"}, {"loss": float("nan"), "status": "done"}, {"loss": 0.5, "status": "done"}]
    table = RunTable.of(rows)
    assert ordered(table, "loss", columns).tolist() == [2, 0, 1] and ordered(table, "max:loss", columns).tolist() == [0, 2, 1]
    assert best_place(table, "max:loss", columns) == 0
    with pytest.raises(NotFound, match="has no order"):
        ordered(RunTable.of([{"grad.x": [1.0]}]), "grad.x", columns)


def test_the_device_of_a_trial_is_known_while_it_runs_and_where_it_does_not_say_it(alive):
    folder, journal = alive
    for name in (A1, B2):
        journal.write("started", sync=True, trial=name, attempt=1, device="cuda:0")
    journal.write("ended", sync=True, trial=B2, attempt=1, status="done", loss=1.0, device="")
    assert [row["device"] for row in call("results", folder.path)[1]["rows"]] == ["cuda:0", "cuda:0"]


def test_the_end_of_a_run_is_said_with_all_that_failed_and_what_the_best_descent_has_found(tmp_path):
    found = {
        "out.opt.x": 3.25,
        "out.opt.v": [1.0, 2.0, 3.0, 4.0],
        "out.opt.steps": 9.0,
        "out.opt.stopped": 0.0,
        "out.reach": 1.0,
    }
    rows = [
        {"trial": "a1", "status": "done", "loss": 0.5, "param.x": 1.0} | found,
        {"trial": "b2", "status": "failed", "loss": None, "param.x": 2.0, "error_type": "E", "error": "no\nmore"},
        {"trial": "c3", "status": "poisoned", "loss": None, "param.x": 3.0, "error_type": "Gone", "error": None},
    ]
    times = {"ended_s": 3.0, "first_start_s": None, "overhead_ms_per_trial": None}
    done = Submitted(RunFolder(tmp_path / "run"), "failed", times, rows)
    said = summary_text(done).splitlines()
    assert said[0] == "failed: 1 done, 1 failed, 1 poisoned of 3 trials"
    assert said[1] == "best: loss 0.5 at x=3.25, v=[1, 2, 3, ..], from the start x=1 (trial a1)"
    assert said[2:4] == ["failed: b2 E: no", "poisoned: c3 Gone: "]
    assert [row["trial"] for row in RunEnd.of(done).failures] == ["b2", "c3"]
    rows = [{name: value for name, value in rows[0].items() if not name.startswith("out.")}]
    said = summary_text(Submitted(RunFolder(tmp_path / "run"), "failed", times, rows)).splitlines()
    assert said[:2] == ["failed: 1 done of 1 trial", "best: loss 0.5 at its parameters (trial a1)"]
    assert not any(line.startswith("artifacts:") for line in said)
    done.rows[0]["artifacts_folder"] = "trials/a1/a1/artifacts"
    uri = done.folder.uri
    said = summary_text(done).splitlines()
    assert said[-2] == f"artifacts: 1 trial left some; `qdrun results {uri} --columns trial,artifacts` names them"


def test_the_best_trial_need_not_have_all_keys_of_a_dictionary_parameter(tmp_path):
    rows = [{"trial": f"t{k}", "status": "done", "loss": float(k), f"param.d.{k}": k, "param.x": k} for k in range(2)]
    times = {"ended_s": 3.0, "first_start_s": None, "overhead_ms_per_trial": None}
    done = Submitted(RunFolder(tmp_path / "run"), "done", times, rows)
    assert summary_text(done).splitlines()[1] == "best: loss 0 at d.0=0, x=0 (trial t0)"


def test_keys_with_dots_and_nested_ones_have_columns_of_their_own():
    params = {"d": {"a.b": 1, "a": {"b": 2, "c": {"=": 3}}, "": 4}, "x": 5}
    expect = {'param.d."a.b"': 1, "param.d.a.b": 2, "param.d.a.c.=": 3, "param.d.": 4, "param.x": 5}
    assert list(flat(params, "param.").items()) == list(expect.items())


def test_equal_failures_are_one_line(tmp_path):
    failed = {"status": "failed", "loss": None, "error_type": "E"}
    rows = [failed | {"trial": f"t{k}", "error": f"{'no' if k % 10 else 'other'}\nmore"} for k in range(31)]
    rows += [failed | {"trial": f"u{k}", "error": f"number {k}"} for k in range(9)]
    times = {"ended_s": 3.0, "first_start_s": None, "overhead_ms_per_trial": None}
    done = Submitted(RunFolder(tmp_path / "run"), "failed", times, rows)
    said = summary_text(done).splitlines()[1:12]
    assert said[0] == "failed: 4 trials (t0, t10, t20, ..) E: other"
    assert said[1:3] == ["failed: 27 trials (t1, t2, t3, ..) E: no", "failed: u0 E: number 0"]
    assert said[-1] == "  ... and 1 more failure"


def test_views_say_what_the_best_descent_has_found(alive):
    folder, journal = alive
    folder.files.put("config.resolved.json", document({"optimize": {"steps": 1}}))
    outputs = {
        "opt.x": 3.25,
        "opt.v": {"shape": [300], "dtype": "float64", "file": "f"},
        "opt.history": [9.0, 0.5],
        "opt.stopped": 0.0,
    }
    journal.write("ended", sync=True, trial=A1, attempt=1, status="done", loss=0.5, outputs=outputs)
    journal.write("ended", sync=True, trial=B2, attempt=1, status="done", loss=0.75, outputs={"reach": 2.0})
    assert call("watch", folder.path)[1]["best"] == {"loss": 0.5, "at": "x=3.25, v=[300]"}
    board = Board(run="r", total=2)
    board.stopped(A1, "done", "x=0", 0.5, {"outputs": outputs})
    board.stopped(B2, "done", "x=1", 0.75, {"outputs": {"reach": 2.0}})
    assert board.view().best == (0.5, "x=3.25, v=[300]")


def test_the_table_says_which_replicate_a_row_is_and_what_a_descent_has_found(alive):
    folder, journal = alive
    outputs = {"opt.v": [float(k) for k in range(100)], "opt.history": [float(k) for k in range(90)]}
    journal.write("ended", sync=True, trial=A1, attempt=1, status="done", loss=0.5, outputs=outputs)
    shown = text("results", folder.path)
    assert "[0, 1, .. 99] of 100" in shown and "[90]" in shown and "replicate" not in shown
    trials = [Trial(id=f"a{k}", index=k, replicate=k, seed=k, swept={}, params={}) for k in range(2)]
    repeated = write_run(folder.path.parent, "two", "", {"gradients": []}, trials, {})
    head, _, first, second = text("results", repeated.path).splitlines()
    assert head.split()[:3] == ["trial", "replicate", "status"]
    assert [line.split()[:2] for line in (first, second)] == [["a0", "0"], ["a1", "1"]]


def test_a_trial_is_named_by_the_beginning_of_its_id_or_its_place(alive):
    folder, _ = alive
    assert [trial_of(folder, word) for word in (A1[:3], B2, "@1")] == [A1, B2, B2]
    with pytest.raises(NotFound, match=r"has no trial `zz`\n  do: .*qdrun results"):
        trial_of(folder, "zz")
    with pytest.raises(NotFound, match="has 2 trials that begin with ``"):
        trial_of(folder, "")


def test_runs_are_listed_the_latest_first(finished, tmp_path):  # noqa: F811
    trials = [Trial(id="a1", index=0, replicate=0, seed=0, swept={}, params={})]
    later = write_run(finished.path.parent, "zz", "", {}, trials, {})
    later.path.rename(later.path.with_name("99991231-000000-zz-0000"))
    data = call("ls", "--runs", finished.path.parent)[1]
    assert [row["name"] for row in data["runs"]] == ["zz", "fake"]
    fake = data["runs"][1]
    assert (fake["state"], fake["trials"], fake["finished"], fake["failed"], fake["best"]) == ("failed", 4, 4, 2, 1.0)
    assert [row["name"] for row in call("ls", "--runs", finished.path.parent, "-n", 1)[1]["runs"]] == ["zz"]
    assert [row["name"] for row in call("ls", "--runs", finished.path.parent, "--state", "failed")[1]["runs"]] == ["fake"]
    assert "4/4" in text("ls", "--runs", finished.path.parent)
    assert (
        text("ls", "--runs", tmp_path / "none")
        == text("status", "--runs", tmp_path / "none")
        == f"no runs in {tmp_path}/none\n"
    )
    assert text("ls", "--runs", finished.path.parent, "--state", "lost") == f"no lost runs in {finished.path.parent}\n"
    wrong = CliRunner().invoke(app, ["ls", "--state", "over"])
    assert wrong.exit_code == 2 and "'over' is not one of 'running', 'done', 'failed'" in wrong.stderr
    assert [word.value for word in State] == list(STATES)


def test_logs_are_what_attempts_printed_and_the_traceback_of_the_error(finished):  # noqa: F811
    rows = call("results", finished.path)[1]["rows"]
    good, bad = rows[0]["trial"], rows[-1]["trial"]
    assert text("logs", finished.path, good).startswith("hello from mood=good")
    (out, error) = call("logs", finished.path, bad)[1]["logs"]
    assert (out["stream"], out["attempt"], out["text"]) == ("stdout", 1, "hello from mood=raise,x=3\n")
    assert out["path"] == str(finished.path / "trials" / bad / "a1" / "stdout.log")
    assert error["stream"] == "error" and "RuntimeError: the fake job raises at x=3" in error["text"]
    everything = text("logs", finished.path)
    assert everything.count("==>") == 6 and f"==> {bad} attempt 1 error <==" in everything
    assert [part["stream"] for part in call("logs", finished.path, bad, "--attempt", 1)[1]["logs"]] == ["stdout", "error"]
    none = CliRunner().invoke(app, ["logs", str(finished.path), bad, "--attempt", "2"])
    assert none.exit_code == 2 and f"trial {bad} has no attempt 2" in none.stderr and "its attempts: 1" in none.stderr
    followed = text("logs", finished.path, "-f")
    assert followed.count("==>") == 6 and followed.endswith("RuntimeError: the fake job raises at x=3.0\n")
    nothing = CliRunner().invoke(app, ["logs", str(finished.path), good, "--stream", "stderr"])
    assert nothing.stdout == "" and f"nothing was printed by trial {good}" in nothing.stderr
    silent = CliRunner().invoke(app, ["logs", str(finished.path), good, "--stream", "stderr", "-f"])
    assert (silent.stdout, silent.stderr, silent.exit_code) == ("", nothing.stderr, 0)


def test_logs_are_followed_until_the_trial_has_its_row(alive):
    folder, journal = alive
    attempt = Attempt(A1, 1, journal.owner.number)
    journal.write("started", sync=True, trial=A1, attempt=1)

    def work():
        with Log(folder, attempt, "stdout") as log:
            for part in ("first li", "ne\nsecond", " line"):
                log.write(part.encode())
                time.sleep(0.4)
        journal.write("ended", sync=True, trial=A1, attempt=1, status="done", loss=1.0)

    thread = threading.Thread(target=work)
    thread.start()
    shown = text("logs", folder.path, A1, "-f")
    thread.join()
    assert shown == f"==> {A1} attempt 1 stdout <==\nfirst line\nsecond line"


def test_a_run_that_is_over_is_followed_to_its_end_at_once(finished):  # noqa: F811
    assert text("logs", finished.path, "-f").count("hello from") == 4


def test_status_says_why_trials_wait(alive):
    folder, journal = alive
    why = "needs 3.1 GiB at its smallest: pool gpu0 has 2 GiB free of 22.8 GiB"
    journal.write("snapshot", sync=True, waiting=[{"count": 7, "example": B2, "why": "older"}])
    journal.write("snapshot", sync=True, waiting=[{"count": 2, "example": B2, "why": why}], pools=[], devices=[])
    (state,) = call("status", folder.path)[1]["runs"]
    assert state["waiting"] == [{"count": 2, "why": why}]
    assert f"waiting\n  2: {why}" in text("status", folder.path)
    journal.write("finished", sync=True, state="cancelled")
    assert "3.1 GiB" not in text("status", folder.path), "a run that is over waits for nothing"


def test_status_and_watch_say_how_far_running_trials_are(alive):
    folder, journal = alive
    journal.write("started", sync=True, trial=A1, attempt=1, device="cpu", bytes=4096)
    said = {"text": "time step 3 of 40, loss 0.25", "step": 3, "t": 1.5, "values": {"loss": 0.25}}
    journal.beat({A1: said})
    (state,) = call("status", folder.path)[1]["runs"]
    assert [(lane["values"], lane["at"]) for lane in state["lanes"]] == [({"loss": 0.25}, 3)]
    assert [(lane["trial"], lane["step"]) for lane in state["lanes"]] == [(A1, "time step 3 of 40, loss 0.25")]
    assert call("watch", folder.path)[1]["lanes"][0]["step"] == "time step 3 of 40, loss 0.25"
    shown = text("status", folder.path).splitlines()
    assert shown[-3].split() == ["running", "parameters", "device", "step", "since"]
    assert shown[-1].split()[:-2] == [A1, "x=0", "cpu", "time", "step", "3", "of", "40,", "loss", "0.25"]
    journal.write("finished", sync=True, state="cancelled")
    assert call("status", folder.path)[1]["runs"][0]["lanes"] == []


def test_one_trial_can_be_cancelled(alive):
    folder, journal = alive
    assert text("cancel", folder.path, B2[:4]) == f"{folder.name}, trial {B2}: asked to stop\n"
    requests = cancel_requests(folder, journal.owner)
    assert not requests.whole and requests.trials == {B2}
    journal.write("ended", sync=True, trial=A1, attempt=1, status="done", loss=1.0)
    data = call("cancel", folder.path, "@0")[1]
    assert (data["trial"], data["state"], data["cancel_requested"]) == (A1, "running", False)
    assert "nothing to stop, the trial is over" in text("cancel", folder.path, A1)
    result = CliRunner().invoke(app, ["cancel", str(folder.path), "zz"])
    assert result.exit_code == 2 and "has no trial `zz`" in result.stderr


def test_watch_gives_one_look_as_a_document(alive):
    folder, journal = alive
    journal.write("started", sync=True, trial=A1, attempt=1, device="cpu", bytes=4096)
    data = call("watch", folder.path)[1]
    assert (data["state"], data["total"], data["counts"]["running"]) == ("running", 2, 1)
    assert [(lane["trial"], lane["device"], lane["bytes"]) for lane in data["lanes"]] == [(A1, "cpu", 4096)]


def test_the_json_format_is_the_rows_alone(finished):  # noqa: F811
    rows = json.loads(text("results", finished.path, "--format", "json"))
    assert rows == call("results", finished.path)[1]["rows"] and len(rows) == 4


def test_what_the_processes_of_workers_said(alive):
    folder, _ = alive
    folder.files.put("workers/cpu/w1/stderr.log", b"Fatal Python error: Segmentation fault\n")
    folder.files.put("workers/cpu/w2/stdout.log", b"")
    (part,) = call("logs", folder.path, "--workers")[1]["logs"]
    assert (part["worker"], part["stream"], part["trial"]) == ("cpu/w1", "stderr", None)
    assert text("logs", folder.path, "--workers") == "Fatal Python error: Segmentation fault\n"
    code, data = call("logs", folder.path, A1, "--workers")
    assert code == 2 and "leave out the trial" in data["error"]["message"]


def test_resume_shows_what_it_would_keep_run_and_leave(finished):  # noqa: F811
    data = call("resume", finished.path, "--dry-run")[1]
    rows = call("results", finished.path)[1]["rows"]
    assert data["kept"] == [row["trial"] for row in rows if row["status"] == "done"]
    assert set(data["skipped"]) == {row["trial"] for row in rows if row["status"] == "failed"}
    assert (data["retried"], data["ended"], data["state"]) == ({}, None, "failed")
    assert "RuntimeError: the fake job raises" in next(iter(data["skipped"].values()))
    again = call("resume", finished.path, "--dry-run", "--failed")[1]
    assert (set(again["retried"]), again["skipped"]) == (set(data["skipped"]), {})
    shown = text("resume", finished.path, "--dry-run")
    assert "kept     2       they have succeeded" in shown and "`--failed` runs the skipped ones again" in shown


def test_resume_refuses_a_config_that_has_changed(finished):  # noqa: F811
    config = finished.path.parent.parent / "fake.yaml"
    config.write_text(config.read_text().replace("seed: 7", "seed: 8"))
    code, data = call("resume", finished.path, "--quiet", "--failed")
    assert (code, data["error"]["type"]) == (2, "ConfigChanged") and "sweep" in data["error"]["message"]


@pytest.mark.slow
def test_resume_runs_what_is_left_to_the_end(one_worker, tmp_path):
    """A run whose process died after one trial: the finished row stays, the others run."""
    prepared, job = prepare(write_config(tmp_path, sweep={"x": [0, 1, 2]}))
    folder = create(prepared, tmp_path / "more")
    record(folder.files, prepared, job)
    folder.save_plan(make_plan(prepared, job))
    journal = Journal(folder)
    first = prepared.trials[0]
    journal.write("started", trial=first.id, attempt=1)
    journal.write("ended", trial=first.id, attempt=1, sync=True, **(trial_record(prepared.spec(first)) | {"loss": 77.0}))
    journal.close()
    code, data = call("resume", folder.path, "--quiet")
    assert (code, data["schema"], data["kept"], len(data["retried"])) == (0, "qdrun.resume/1", [first.id], 2)
    assert data["ended"]["counts"] == {"done": 3}
    assert [row["loss"] for row in call("results", folder.path)[1]["rows"]] == [77.0, 1.0, 5.0], (
        "the kept row was not run again"
    )


@pytest.mark.parametrize(
    "words", [("results",), ("results", "--format", "csv"), ("results", "--format", "parquet"), ("report",)]
)
def test_a_file_that_was_asked_for_is_written_with_its_folders_or_it_is_said_why_not(finished, tmp_path, words):  # noqa: F811
    command, *more = words
    out = tmp_path / "a" / "b" / "file"
    text(command, finished.path, *more, "--out", out)
    assert out.stat().st_size > 100
    said = CliRunner().invoke(app, [command, str(finished.path), *more, "--out", f"{out}/below"])
    assert (said.exit_code, said.stdout) == (2, "")
    assert said.stderr == f"cannot write {out}/below: Not a directory\n  do: name a file in a folder in which you may write\n"


def test_a_table_goes_to_a_uri(finished):  # noqa: F811
    text("results", finished.path, "--format", "csv", "--out", "memory://tables/of/run.csv")
    assert open_files("memory://tables/of").read("run.csv").decode() == text("results", finished.path, "--format", "csv")


EVIL = "\x1b]0;title\x07\x1b[2J\x1b[31mred\u202e \x9b1m back\rover\b\b\b"


def test_nothing_that_a_job_prints_or_raises_reaches_the_terminal_raw(tmp_path):
    """It stays as it was in the files."""
    trials = [Trial(id=A1, index=0, replicate=0, seed=0, swept={"x": 0, "s": EVIL}, params={"x": 0})]
    folder = write_run(tmp_path / "runs", "evil", "", {"gradients": []}, trials, {})
    with Journal(folder) as journal:
        with Log(folder, Attempt(A1, 1), "stdout") as log:
            log.write(EVIL.encode() + b"\n")
        journal.write("started", trial=A1, attempt=1, device=EVIL)
        error = {"type": EVIL, "message": EVIL, "traceback": EVIL}
        journal.write("ended", sync=True, trial=A1, attempt=1, status="failed", failure="user_error", error=error, device=EVIL)
        journal.write("finished", state="failed")
    commands = [["results"], ["logs"], ["logs", A1, "-f"], ["status"], ["ls", "--runs", tmp_path / "runs"], ["watch"]]
    for name, *rest in commands:
        words = [name, *([] if name == "ls" else [folder.path]), *rest]
        result = CliRunner().invoke(app, [str(word) for word in words])
        shown = result.stdout + result.stderr
        assert shown and all(c.isprintable() or c in "\n\t" for c in shown), (name, ascii(shown))
    assert folder.files.read(f"trials/{A1}/a1/stdout.log").decode() == EVIL + "\n"


def test_who_follows_logs_reads_the_journal_again_only_when_it_has_grown(alive, monkeypatch):
    folder, journal = alive
    looked, real = [], Follower._read
    monkeypatch.setattr(Follower, "_read", lambda self, *words: looked.append(1) or real(self, *words))
    follower = listing.LogFollower(folder, None, None, STREAMS)
    for _ in range(20):
        assert not follower.over()
        list(follower.news())
    assert len(looked) == 1
    journal.write("ended", sync=True, trial=A1, attempt=1, status="done", loss=1.0)
    journal.write("finished", sync=True, state="done")
    follower._again = 0.0
    assert follower.over() and len(looked) == 2
