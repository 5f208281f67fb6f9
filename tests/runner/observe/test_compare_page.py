"""Two runs on one page: the same axes on both sides, all texts escaped, nothing loaded from elsewhere."""

import json
import re

import pytest
from made_runs import NASTY, Made
from test_documents import call
from typer.testing import CliRunner

from qdrun.runner.cli.app import app
from qdrun.runner.compare import plots
from qdrun.runner.compare.plots import html, losses_of, varied_in, write_page
from qdrun.runner.compare.runs import pair_of
from qdrun.runner.live.points import Series
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


def figures(page):
    return json.loads(re.search(r'id="compare-data">(.*?)</script>', page, re.S)[1])["figures"]


def test_both_sides_have_their_trials_on_equal_axes(two):
    found = [losses_of(folder) for folder in two]
    assert [[row["loss"] for row in one.rows] for one in found] == [[1.0, 2.0, 3.0], [0.5, 400.0]], "the best first"
    assert varied_in(found) == ["param.mass", "param.kind"]
    page = html(pair_of(*two), SOURCE)
    mass, other, kind, _ = figures(page)
    assert mass["data"][0]["x"] == [2.0, 4.0, 1.0] and mass["data"][0]["y"] == [1.0, 2.0, 3.0]
    assert other["data"][0]["x"] == [4.0, 2.0] and other["data"][0]["y"] == [0.5, 400.0]
    assert mass["layout"] == other["layout"] and mass["layout"]["yaxis"]["type"] == "log", "they differ by more than 50 times"
    assert mass["layout"]["yaxis"]["range"][0] < -0.30 and mass["layout"]["yaxis"]["range"][1] > 2.60
    assert kind["layout"]["xaxis"]["type"] == "category" and "Loss by mass" in page and "Best trials" in page


def test_losses_by_step_are_drawn_where_they_were_logged(two, monkeypatch):
    import numpy as np

    trial = losses_of(two[1]).rows[0]["trial"]
    live = {trial: Series(np.arange(3), np.arange(3.0), {"loss": np.array([9.0, np.nan, 0.5])})}
    monkeypatch.setattr(plots, "live_values", lambda folder: live if folder.uri == two[1].uri else {})
    page = html(pair_of(*two), SOURCE)
    empty, curves = figures(page)[-2:]
    assert empty["data"] == [] and curves["data"][0]["y"] == [9.0, None, 0.5] and curves["data"][0]["x"] == [0, 1, 2]
    assert empty["layout"]["yaxis"] == curves["layout"]["yaxis"] and "Loss by step" in page


def test_texts_of_users_are_texts_and_nothing_is_loaded(two):
    page = html(pair_of(*two), SOURCE)
    assert "<script>alert" not in page and "<script>alert" not in json.dumps(figures(page)) and "\x1b" not in page
    assert "default-src 'none'" in page and not re.search(r'(src|href)="http', page)
    assert page.count("<script>") == 1 and page.count("'sha256-") == 2


def test_many_trials_are_thinned(tmp_path, monkeypatch, two):
    monkeypatch.setattr(plots, "POINTS", 2)
    first = figures(html(pair_of(*two), SOURCE))[0]["data"][0]
    assert first["y"] == [1.0, 3.0]


def test_the_command_writes_the_page_and_names_it(two, tmp_path, monkeypatch):
    monkeypatch.setattr(plots, "library", lambda: SOURCE)
    out = tmp_path / "both.html"
    code, said = call("compare", two[0].path, two[1].path, "--html", out)
    assert code == 0 and said["html"] == str(out) and out.read_text().startswith("<!doctype html>")
    text = CliRunner().invoke(app, ["compare", str(two[0].path), str(two[1].path), "--html", str(out)]).stdout
    assert text.endswith(f"\nside by side: {out}\n") and call("compare", two[0].path, two[1].path)[1]["html"] is None

    def missing():
        raise PlotsMissing("no charts")

    monkeypatch.setattr(plots, "library", missing)
    with pytest.raises(PlotsMissing):
        write_page(pair_of(*two), out)


def test_runs_without_a_loss_are_compared_too(tmp_path, monkeypatch):
    first, second = (run(tmp_path / "runs", monkeypatch, name, [None, None]) for name in ("a", "b"))
    page = html(pair_of(first, second), SOURCE)
    assert figures(page) == [] and "2 failed" in page
