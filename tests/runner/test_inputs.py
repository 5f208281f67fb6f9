"""Parameters that name files: looked for before anything starts, relative to the config, and compared when a run goes on."""

import hashlib
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from qdrun.runner import load
from qdrun.runner.cli.app import app
from qdrun.runner.config.yaml_lines import ConfigError
from qdrun.runner.engine.resume import config_of
from qdrun.runner.observe.report.document import html as page
from qdrun.runner.observe.report.material import gather
from qdrun.runner.provenance.inputs import changed, contents
from qdrun.runner.provenance.record import inputs_of, record, record_data
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.layout import ConfigChanged, create
from qdrun.runner.study.plan import make_plan
from qdrun.runner.study.prepare import prepare
from qdrun.runner.study.trials import trial_id

JOBS = Path(__file__).parent / "workers" / "jobs_with_files.py"


def write(folder, params="{}", sweep=""):
    """A config in ``folder/configs``, and the files that it names beside it."""
    (folder / "configs" / "data").mkdir(parents=True, exist_ok=True)
    for name, text in {"numbers.txt": "1 2 3", "data/two.txt": "4 5"}.items():
        (folder / "configs" / name).write_text(text)
    path = folder / "configs" / "sum.yaml"
    text = f"version: 1\nname: sum\njob:\n  target: {JOBS}:Reads\n  params: {params}\n"
    path.write_text(text + (f"sweep:\n{sweep}\n" if sweep else "") + f"storage: {folder / 'runs'}\n")
    return path


SWEPT = "  params:\n    table: [numbers.txt, data/two.txt]"


def test_paths_begin_in_the_folder_of_the_config_and_ids_do_not_depend_on_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prepared, job = prepare(write(tmp_path / "a", sweep=SWEPT))
    elsewhere, _ = prepare(write(tmp_path / "b", sweep=SWEPT))
    assert [trial.params["table"] for trial in prepared.trials] == ["numbers.txt", "data/two.txt"]
    assert [trial.id for trial in prepared.trials] == [trial.id for trial in elsewhere.trials]
    assert prepared.trials[0].id == trial_id({"scale": 1.0, "table": "numbers.txt"}, 0)
    groups = make_plan(prepared, job)
    assert [len(group.places) for group in groups] == [1, 1] and not any(group.error for group in groups), "3 lines, and 2"
    assert prepared.shared_spec()["folder"] == str(tmp_path / "a" / "configs")


@pytest.mark.parametrize(
    ("params", "sweep", "line", "key"),
    [
        ("{table: gone.txt}", "", 5, "job.params.table"),
        ("{}", "  params:\n    table: [numbers.txt, gone.txt]", 8, "sweep.params.table"),
        ("{}", "  method: list\n  trials:\n    - {table: numbers.txt}\n    - {table: gone.txt}", 10, "sweep.trials[1].table"),
    ],
)
def test_a_file_that_is_missing_is_named_with_the_line_that_names_it(tmp_path, params, sweep, line, key):
    config = write(tmp_path, params, sweep)
    with pytest.raises(ConfigError) as error:
        prepare(config)
    (problem,) = error.value.problems
    assert (problem.line, problem.path) == (line, key)
    assert problem.what == f"`gone.txt` is not there: {config.parent / 'gone.txt'}"
    assert problem.hint == f"write the path of a file; relative ones begin in the config's folder, {config.parent}"
    result = CliRunner().invoke(app, ["submit", str(config)])
    assert result.exit_code == 2 and "`gone.txt` is not there" in result.stderr and not (tmp_path / "runs").exists()


def test_the_default_of_a_job_is_looked_for_too_and_paths_of_other_machines_are_not(tmp_path):
    config = write(tmp_path)
    (tmp_path / "configs" / "numbers.txt").unlink()
    with pytest.raises(ConfigError, match=r"`numbers\.txt` is not there"):
        prepare(config)
    config = write(tmp_path, "{table: /cluster/alone.txt}")
    with pytest.raises(ConfigError, match=r"`/cluster/alone\.txt` is not there"):
        prepare(config)
    prepared, job = prepare(config, local=False)
    assert contents(prepared, job) == ()


def made(tmp_path):
    prepared, job = prepare(write(tmp_path, sweep=SWEPT))
    folder = create(prepared, tmp_path / "runs")
    record(folder.files, prepared, job)
    return prepared, folder


def test_the_provenance_of_a_run_has_the_checksums_of_its_files(tmp_path):
    _, folder = made(tmp_path)
    first, second = inputs_of(folder.files)
    digest = hashlib.sha256(b"1 2 3").hexdigest()
    assert (first.path, first.origin, first.sha256) == ("numbers.txt", str(tmp_path / "configs" / "numbers.txt"), digest)
    assert second.path == "data/two.txt"
    assert json.loads((folder.path / "provenance.json").read_text())["inputs"][0]["sha256"] == digest


def test_a_run_does_not_go_on_with_other_files_than_it_began_with(tmp_path):
    _, folder = made(tmp_path)
    config_of(folder)
    (tmp_path / "configs" / "data" / "two.txt").write_text("4 6")
    with pytest.raises(ConfigChanged, match=r"^data/two\.txt: changed since trials of .* read them\n  do: .* --force`$"):
        config_of(folder)
    config_of(folder, force=True)
    (folder.path / "provenance.json").unlink()
    config_of(folder)


def test_a_folder_of_files_has_changed_when_a_name_or_a_content_has(tmp_path):
    prepared, job = prepare(write(tmp_path, "{table: data}"))
    before = contents(prepared, job)
    data, seen = tmp_path / "configs" / "data", []
    for change in (lambda: None, lambda: (data / "more.txt").write_text(""), lambda: (data / "two.txt").write_text("7")):
        change()
        seen.append(changed(prepared.inputs, before))
        before = contents(prepared, job)
    assert seen == [[], ["data"], ["data"]]
    (data / "two.txt").rename(data / "2.txt")
    assert changed(prepared.inputs, before) == ["data"]


def test_a_run_says_which_artifacts_its_trials_have_left(tmp_path):
    prepared, folder = made(tmp_path)
    first, second = (trial.id for trial in prepared.trials)
    own = {"path": f"trials/{first}/a1/artifacts", "files": 1, "bytes": 5, "names": ["sub/seen.txt"]}
    folder.files.put(f"{own['path']}/sub/seen.txt", b"1 2 3")
    with Journal(folder) as journal:
        journal.write("ended", sync=True, trial=first, attempt=1, status="done", loss=6.0, artifacts=own)
        journal.write(
            "ended", sync=True, trial=second, attempt=1, status="done", loss=9.0, artifacts=own | {"path": "../elsewhere"}
        )
    run = load(folder.uri)
    assert run.artifacts(first) == {"sub/seen.txt": f"{folder.uri}/{own['path']}/sub/seen.txt"}
    assert Path(run.artifacts("@0")["sub/seen.txt"]).read_bytes() == b"1 2 3"
    with pytest.raises(LookupError, match="a file outside of itself"):
        run.artifacts(second)
    assert run.rows[0]["artifacts"] == ["sub/seen.txt"] and run.arrow.column("artifacts").to_pylist()[0] == ["sub/seen.txt"]
    assert run.arrow.column("artifacts_folder").to_pylist()[0] == own["path"]
    with pytest.raises(LookupError, match="a file outside of itself"):
        page([gather(folder)], "")
    shown = CliRunner().invoke(app, ["results", folder.uri, "--columns", "trial,artifacts,artifacts_folder"]).stdout
    assert own["path"] in shown and "sub/seen.txt" in shown


def test_the_report_lists_artifacts_with_links_and_shows_pictures_and_videos(tmp_path):
    prepared, folder = made(tmp_path)
    first, second = (trial.id for trial in prepared.trials)
    names = ["a & b.txt", "shot.png", "clip.webm", "late.png"]
    picture = b"\x89PNG" + bytes(10)
    for name in (first, second):
        own = {"path": f"trials/{name}/a1/artifacts", "files": 5, "bytes": 9, "names": names}
        for one in (*names, "unlisted"):
            folder.files.put(f"{own['path']}/{one}", picture if one in ("shot.png", "clip.webm") else b"x" * (3 << 20))
        with Journal(folder) as journal:
            journal.write("ended", sync=True, trial=name, attempt=1, status="done", loss=6.0, artifacts=own)
            journal.write("finished", state="done")
    shown = page([gather(folder)], "", linked=True)
    assert shown.count(f'href="{folder.uri}/trials/{first}/a1/artifacts/a%20%26%20b.txt">a &amp; b.txt</a>') == 1
    assert shown.count(" and 1 more") == 2 and shown.count("data:image/png;base64,iVBOR") == 2, (
        "a large picture is a link alone"
    )
    assert shown.count('<video controls src="data:video/webm;base64,iVBOR') == 2
    assert "2 more pictures or videos are linked only" in shown
    assert f'data-trial="0">{prepared.trials[0].label}</button> shot.png' in shown
    assert f'href="trials/{second}/' in page([gather(folder)], "")


def test_files_of_data_are_in_the_provenance_once_the_job_is_planned_and_compared_when_a_run_goes_on(tmp_path):
    config = write(tmp_path)
    (tmp_path / "configs" / "own.py").write_text(
        "from qdrun.jobs.base import Job, JobParams, Outcome\n\n\nclass Own(Job[JobParams]):\n    needs_compiler = False\n\n"
        "    def build(self):\n        self.text = self.data('numbers.txt').read_text()\n\n"
        "    def run(self):\n        return Outcome(float(len(self.text)))\n"
    )
    config.write_text(config.read_text().replace(f"{JOBS}:Reads", "own.py:Own"))
    prepared, job = prepare(config)
    folder = create(prepared, tmp_path / "runs")
    record(folder.files, prepared, job)
    (group,) = make_plan(prepared, job)
    assert group.data == ("numbers.txt",) and inputs_of(folder.files) == ()
    record_data(folder.files, prepared, group.data)
    record_data(folder.files, prepared, group.data)
    (one,) = inputs_of(folder.files)
    assert (one.path, one.kept) == ("numbers.txt", "inputs/0/numbers.txt") and folder.files.read(one.kept) == b"1 2 3"
    config_of(folder)
    (config.parent / "numbers.txt").write_text("1 2 4")
    with pytest.raises(ConfigChanged, match=r"^numbers\.txt: changed since trials"):
        config_of(folder)
    (config.parent / "numbers.txt").unlink()
    result = CliRunner().invoke(app, ["submit", str(config), "--quiet"])
    assert result.exit_code == 2 and "Own.data('numbers.txt') names " in result.stderr and "  do: put it there" in result.stderr
