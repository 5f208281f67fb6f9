"""The report of a run: one page of HTML that holds everything, and nothing that the page could run."""

import html.parser
import json
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from made_runs import GIB, NASTY, SNAPSHOT, large
from typer.testing import CliRunner

from qdrun.runner.cli.app import app
from qdrun.runner.observe import plots
from qdrun.runner.observe.device_load import Load
from qdrun.runner.observe.page import text
from qdrun.runner.observe.plots import PlotsMissing, picked, power
from qdrun.runner.observe.report import gather, value_of, write_report
from qdrun.runner.observe.report import html as page_of
from qdrun.runner.store.attempts import Attempt, pack
from qdrun.runner.study.trials import Trial

pytest.importorskip("matplotlib", reason="plots are an extra")
VOID = ("meta", "img", "br", "link", "input", "hr")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Page(html.parser.HTMLParser):
    """Every element must be closed where it was opened; collects tags, attributes and what is said."""

    def __init__(self, source):
        super().__init__(convert_charrefs=True)
        self.tags, self.names, self.said, self.ids, self.open = [], set(), [], [], []
        self.feed(source)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.names |= {name for name, _ in attrs}
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, (tag, self.open[-3:])
        self.open.pop()

    def handle_data(self, data):
        self.said.append(data)


@pytest.fixture(scope="module")
def thousand(tmp_path_factory):
    from made_runs import Made

    where = tmp_path_factory.mktemp("thousand") / "runs"
    with pytest.MonkeyPatch.context() as patch:
        return large(lambda *args, **options: Made(where, *args, **options), patch)


@pytest.fixture(scope="module")
def report(thousand):
    return (thousand.path.parent / thousand.name / "report.html", write_report(thousand))


@pytest.fixture(scope="module")
def source(report):
    return report[0].read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_thousand_trials_make_a_page_of_some_megabytes(report, source):
    assert report[1] == str(report[0])
    assert 100_000 < len(source) < 4_000_000
    said = " ".join(Page(source).said)
    for words in ("950 of 1000", "Loss against", "loss by step of 40 of 950 trials", "Packing over time", "Slowest trials"):
        assert words in said.replace("Loss and gradient norm against", "Loss against"), words


def test_nothing_in_the_page_can_run_or_load(source):
    page = Page(source)
    assert not {"script", "img", "link", "iframe", "object", "foreignobject"} & set(page.tags)
    assert not [name for name in page.names if name.startswith("on") or name == "src"]
    assert "default-src 'none'" in source
    outside = set(re.findall(r"""(?:href|url)\s*[=(]\s*["']?([^"')\s]+)""", source))
    assert {link for link in outside if not link.startswith("#")} == set()


def test_texts_of_the_user_are_shown_as_they_are(source):
    said = "".join(Page(source).said)
    assert "<script>alert('x')</script>" in said and "$\\frac{a}$" in said
    assert "\x1b" not in source and "Trace <b>" in said


def test_ids_of_plots_are_apart(source):
    ids = Page(source).ids
    assert ids and len(ids) == len(set(ids))


def test_every_plot_is_whole_and_takes_the_colour_of_the_page(source):
    drawings = re.findall(r"<svg.*?</svg>", source, re.S)
    assert len(drawings) == 2 * 3 + 1 + 2 * 2 + 1  # of three parameters, histories, of two devices, planned and used
    for drawing in drawings:
        root = ET.fromstring(drawing)
        assert root.get("role") == "img" and root.get("width") is None
        assert float(root.get("viewBox").split()[2]) < 320, "one plot, that a narrow page has room for"
        assert "currentColor" in drawing and plots.INK not in drawing and "#000000" not in drawing


def test_failures_are_counted_by_message(source):
    said = [words.strip() for words in Page(source).said if words.strip()]
    assert "Bad" in said and "50" in said[said.index("Failed trials") :][:12]


def test_a_run_that_has_just_begun_has_a_page(made, monkeypatch):
    run = made([{"x": i} for i in range(3)], name=NASTY[:50])
    page = page_of(gather(run.folder))
    run.journal.close()
    Page(page)
    assert "0 of 3" in page and "<svg" not in page


def test_a_run_whose_trials_all_failed_has_no_empty_plot(made, monkeypatch):
    run = made([{"x": i} for i in range(3)])
    for k in range(3):
        run.end(monkeypatch, 1 + k, k, status="failed", loss=None, error={"type": "Bad", "message": "no"})
    folder = run.finish(monkeypatch, 9, "failed")
    page = page_of(gather(folder))
    assert "No trial has a loss: 3 trials failed." in page and "<svg" not in page.partition("Packing over time")[0]
    assert plots.against("x", [1, 2], [None, None], [None, None]) == []


def test_plots_stand_side_by_side_where_there_is_room_and_below_one_another_where_there_is_none(source):
    assert "grid-template-columns: repeat(auto-fit, minmax(min(100%, 340px), 1fr))" in source
    pairs = re.findall(r'<div class="plots">(.*?)</div>', source, re.S)
    assert [pair.count("<svg") for pair in pairs] == [2, 2, 2, 1, 2, 2, 1]


def test_a_run_without_a_sweep_is_drawn_by_the_order_of_its_trials(made, monkeypatch):
    run = made([{}])
    run.start(monkeypatch, 1, 0)
    run.end(monkeypatch, 2, 0, loss=1.0, gradients={"x": [3.0, 4.0]})
    page = page_of(gather(run.finish(monkeypatch, 3)))
    assert "Loss and gradient norm of each trial" in page


def test_a_trial_that_is_not_given_a_swept_parameter_has_the_value_of_the_config():
    params = {"x": 1.0, "mode": "ok", "legs": [0.1, 0.2]}
    trial = Trial(id="a1", index=0, replicate=0, seed=0, swept={"x": 1.0}, params=params)
    assert [value_of(trial, name) for name in ("x", "mode", "legs.1", "gone")] == [1.0, "ok", 0.2, None]


def test_norms_of_gradients_wherever_they_lie(made, monkeypatch):
    run = made([{"x": i} for i in range(4)])
    big = pack(run.folder, Attempt(run.trials[0].id, 1), {"status": "done", "gradients": {"x": np.full(40_000, 0.5)}})
    assert "file" in big["gradients"]["x"]
    run.start(monkeypatch, 1, 0)
    run.end(monkeypatch, 2, 0, **big)
    run.end(monkeypatch, 2, 1, gradients={"x": [3.0, "NaN"]})
    run.end(monkeypatch, 2, 2, gradients={"x": {"shape": [9], "dtype": "float64", "file": "trials/none"}})
    run.end(monkeypatch, 2, 3, gradients={"x": {"file": "f"}}, gradient_norm=2.5)
    found = gather(run.finish(monkeypatch, 3)).norms
    norms = [found[trial.id] for trial in run.trials]
    assert norms[0] == pytest.approx(100.0)
    assert np.isnan(norms[1]) and norms[2] is None and norms[3] == 2.5


def test_a_device_without_a_known_capacity_is_drawn(made):
    assert "claimed, GiB" in plots.packing(Load("d", None, [0.0, 1.0], [3 * GIB, 0], [1, 0]))[0]
    assert "claimed, KiB" in plots.packing(Load("d", None, [0.0, 1.0], [3 << 10, 0], [1, 0]))[0]


def test_bytes_have_a_unit_that_fits():
    assert "planned, GiB" in plots.planned_used([GIB, 2 * GIB], [GIB, GIB])
    assert "used, KiB" in plots.planned_used([1 << 10, 900 << 10], [1 << 10, 800 << 10])  # wide: logarithmic
    assert "used, bytes" in plots.planned_used([64], [64])


def test_what_is_not_a_number_is_a_tick_at_the_edge():
    (whole,), (failed,) = (
        plots.against("x", [1, 2], [1.0, 2.0], [None, None]),
        plots.against("x", [1, 2], [1.0, None], [None, None]),
    )
    assert plots.RED not in whole and plots.RED in failed
    loss, norm = plots.against("x", [True, "a"], [float("inf"), 2.0], [1.0, 2.0])
    assert plots.RED in loss and plots.RED not in norm


def test_indices_are_spread_evenly():
    assert picked(3, 10) == [0, 1, 2]
    assert picked(1000, 3) == [0, 500, 999] or picked(1000, 3)[1] in (499, 500)
    assert len(picked(100_000, 3000)) == 3000


@pytest.mark.parametrize(("value", "shown"), [(1.0, "1"), (0.01, "0.01"), (1000.0, "1000"), (1e-5, "10⁻⁵"), (1e12, "10¹²")])
def test_powers_of_ten(value, shown):
    assert power(value) == shown


def test_text_is_only_text():
    assert text('<a b="c">&\x00\ud800') == "&lt;a b=&quot;c&quot;&gt;&amp;\ufffd\ufffd"


def test_without_matplotlib_the_message_says_what_to_install(made, monkeypatch):
    run = made([{"x": 1}])
    folder = run.finish(monkeypatch, 1)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PlotsMissing, match=r"not installed\n  do: pip install matplotlib$"):
        write_report(folder)
    assert not folder.files.exists("report.html")
    done = CliRunner().invoke(app, ["report", folder.uri, "--json"])
    assert done.exit_code == 2 and "pip install matplotlib" in json.loads(done.stdout)["error"]["message"]


def test_the_commands_write_it(made, monkeypatch, tmp_path):
    run = made([{"x": 1}])
    run.end(monkeypatch, 1, 0)
    folder = run.finish(monkeypatch, 2)
    done = CliRunner().invoke(app, ["report", folder.uri, "-o", str(tmp_path / "a.html")])
    assert (done.exit_code, done.stdout.strip()) == (0, str(tmp_path / "a.html"))
    done = CliRunner().invoke(app, ["report", folder.uri, "--json"])
    assert json.loads(done.stdout) == {"schema": "qdrun.report/1", "run": folder.name, "path": f"{folder.uri}/report.html"}
    (folder.path / "report.html").unlink()
    done = CliRunner().invoke(app, ["results", folder.uri, "--plot", "--json"])
    assert json.loads(done.stdout)["report"] == f"{folder.uri}/report.html" and (folder.path / "report.html").exists()


def test_a_report_of_a_run_in_memory(monkeypatch):
    from made_runs import Made

    run = Made("memory://watch/runs", [{"x": 1}])
    run.at(monkeypatch, 0, "snapshot", **SNAPSHOT)
    folder = run.finish(monkeypatch, 2)
    assert write_report(folder) == f"{folder.uri}/report.html"
    assert folder.files.read("report.html").startswith(b"<!doctype html>")


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here: chromium, chromium-browser, google-chrome")
@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
def test_a_browser_draws_it(report, tmp_path, dark):
    shot, command = tmp_path / "shot.png", [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += ["--enable-logging=stderr", "--v=0", f"--user-data-dir={tmp_path / 'profile'}", "--window-size=800,1200"]
    command += ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if dark else []
    command += [f"--screenshot={shot}", report[0].as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert shot.exists(), done.stderr[-1000:]
    assert "CONSOLE" not in done.stderr  # a policy that was broken, or an error of the page, would be said there
    from matplotlib.image import imread

    pixels = imread(shot)[..., :3]
    ground = pixels[5, 5]
    assert bool(ground.mean() < 0.3) is dark
    assert (np.abs(pixels - ground).max(axis=2) > 0.3).mean() > 0.01  # there is something on it
    blue = np.array([0x3F, 0x8C, 0xCB]) / 255
    assert (np.abs(pixels - blue).max(axis=2) < 0.2).sum() > 200  # the points of a plot
