"""Two runs on one page, the report of both: trials in the same charts, all texts escaped, nothing loaded from elsewhere."""

import json
import re

import numpy as np
import pytest
from made_runs import NASTY, Made
from test_documents import call
from typer.testing import CliRunner

from qdrun.runner.cli.app import app
from qdrun.runner.compare import page as compare_page
from qdrun.runner.compare.page import page_of, write_page
from qdrun.runner.compare.runs import pair_of
from qdrun.runner.live.points import Series
from qdrun.runner.observe.report import columns, document, material
from qdrun.runner.observe.report.library import PlotsMissing

SOURCE = "window.Plotly = {};"


def run(where, monkeypatch, name, losses, mass=1.0):
    made = Made(where, [{"mass": mass * (k + 1), "kind": [NASTY[:40], "b"][k % 2]} for k in range(len(losses))], name)
    for k, loss in enumerate(losses):
        failed = {"status": "failed", "loss": None, "error": {"type": "E", "message": NASTY}, "failure": "user_error"}
        made.end(monkeypatch, 1.0, k, **({"loss": loss} if loss is not None else failed))
    return made.finish(monkeypatch, 2.0)


@pytest.fixture
def two(tmp_path, monkeypatch):
    first = run(tmp_path / "runs", monkeypatch, "first", [3.0, 1.0, None, 2.0])
    return first, run(tmp_path / "runs", monkeypatch, "second", [400.0, 0.5], mass=2.0)


def data_of(page):
    return json.loads(re.search(r'id="report-data">(.*?)</script>', page, re.S)[1])


def values(data):
    """The columns of the trials of both runs, by name."""
    found = {one["name"]: one for one in data["columns"]}
    return {name: one.get("values", [one["choices"][k] for k in one.get("codes", ())]) for name, one in found.items()}


def test_trials_of_both_runs_are_in_one_table_and_known_by_their_run(two):
    page = page_of(pair_of(*two), SOURCE)
    data = data_of(page)
    found = values(data)
    assert found["loss"] == [3.0, 1.0, None, 2.0, 400.0, 0.5] and found["mass"] == [1.0, 2.0, 3.0, 4.0, 2.0, 4.0]
    assert found["run id"] == [two[0].name] * 4 + [two[1].name] * 2 and data["runs"] == [one.name for one in two]
    assert data["swept"] == ["mass", "kind"], "the run is no parameter"
    heads = re.findall(r'<p class="run run(\d)">([^<]*)</p>', page)
    assert heads == [("0", two[0].name), ("1", two[1].name)] and page.count("<h1>") == 2
    for name in ("ends", "differences", "code", "parameters", "failures", "trials", "config"):
        assert f'<section id="{name}">' in page, name


def test_a_parameter_that_is_constant_in_each_run_is_an_axis_where_it_differs(tmp_path, monkeypatch):
    first = Made(tmp_path / "runs", [{"x": 1.0}, {"x": 2.0}], "first")
    both = [material.gather(made.finish(monkeypatch, 1.0)) for made in (first,)]
    other = Made(tmp_path / "runs", [{"x": 5.0}], "second")
    both.append(material.gather(other.finish(monkeypatch, 1.0)))
    assert material.swept_of(both) == ["x"] and material.swept_of(both[1:]) == []


def test_losses_by_step_are_those_of_both_runs(two, monkeypatch):
    trials = [folder.trial_ids()[-1] for folder in two]
    live = [
        {trials[0]: Series(np.arange(2), np.arange(2.0), {"loss": np.array([7.0, 2.0])})},
        {trials[1]: Series(np.arange(3), np.arange(3.0), {"loss": np.array([9.0, np.nan, 0.5])})},
    ]
    monkeypatch.setattr(material, "live_values", lambda folder: live[folder.uri == two[1].uri])
    (steps,) = data_of(page_of(pair_of(*two), SOURCE))["steps"]
    assert (steps["name"], steps["of"]) == ("loss", 2)
    assert steps["curves"] == [{"trial": 3, "x": [0, 1], "y": [7.0, 2.0]}, {"trial": 5, "x": [0, 2], "y": [9.0, 0.5]}]


def test_texts_of_users_are_texts_and_nothing_is_loaded(two):
    page = page_of(pair_of(*two), SOURCE)
    assert "<script>alert" not in page and "\x1b" not in page and "\x1b" not in json.dumps(data_of(page), ensure_ascii=False)
    assert "default-src 'none'" in page and not re.search(r'(src|href)="http', page)
    assert page.count("<script>") == 1 and page.count("'sha256-") == 2


def test_many_trials_are_thinned_through_both_runs(monkeypatch, two):
    monkeypatch.setattr(columns, "TRIALS", 3)
    page = page_of(pair_of(*two), SOURCE)
    found = values(data_of(page))
    assert len(found["loss"]) == 3 and 0.5 in found["loss"] and set(found["run id"]) == {one.name for one in two}
    assert "3 of 6 trials, evenly spread" in page


def test_the_commands_write_the_page_and_name_it(two, tmp_path, monkeypatch):
    monkeypatch.setattr(compare_page, "library", lambda: SOURCE)
    out = tmp_path / "both.html"
    code, said = call("compare", two[0].path, two[1].path, "--html", out)
    assert code == 0 and said["html"] == str(out) and out.read_text().startswith("<!doctype html>")
    text = CliRunner().invoke(app, ["compare", str(two[0].path), str(two[1].path), "--html", str(out)]).stdout
    assert text.endswith(f"\nside by side: {out}\n") and call("compare", two[0].path, two[1].path)[1]["html"] is None
    before = out.read_text()
    out.unlink()
    code, said = call("report", two[0].path, two[1].path, "--out", out)
    assert code == 0 and said == {"schema": "qdrun.report/1", "run": two[0].name, "path": str(out)}
    assert out.read_text() == before, "one page, by either command"
    code, said = call("report", two[0].path, two[1].path)
    assert code == 2 and "name its file, --out FILE" in said["error"]["message"]

    def missing():
        raise PlotsMissing("no charts")

    for module in (compare_page, document):
        monkeypatch.setattr(module, "library", missing)
    with pytest.raises(PlotsMissing):
        write_page(pair_of(*two), out)


def test_runs_without_a_loss_are_compared_too(tmp_path, monkeypatch):
    first, second = (run(tmp_path / "runs", monkeypatch, name, [None, None]) for name in ("a", "b"))
    page = page_of(pair_of(first, second), SOURCE)
    assert "No trial has a loss: 4 trials failed." in page and page.count("2 failed") >= 2
