"""The report of a run: one page of HTML with its data, whose policy lets the page's own scripts run and nothing be loaded."""

import base64
import gzip
import html.parser
import json
import re
import shutil
import subprocess
import sys
from hashlib import sha256

import numpy as np
import pytest
from made_runs import GIB, NASTY, SNAPSHOT, large
from typer.testing import CliRunner

from qdrun.runner.cli.app import app
from qdrun.runner.observe.device_load import Load
from qdrun.runner.observe.report import columns, curves
from qdrun.runner.observe.report.columns import ReportColumn, trial_table
from qdrun.runner.observe.report.document import html as page_of
from qdrun.runner.observe.report.document import write_report
from qdrun.runner.observe.report.failures import grouped, line_of
from qdrun.runner.observe.report.library import PlotsMissing
from qdrun.runner.observe.report.material import gather, value_of
from qdrun.runner.observe.report.page import json_script, text
from qdrun.runner.observe.report.thinning import envelope, picked
from qdrun.runner.store.attempts import Attempt, pack
from qdrun.runner.study.trials import Trial

pytest.importorskip("plotly", reason="the charts of reports are an extra")
VOID = ("meta", "img", "br", "link", "input", "hr")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
LIBRARY = "/* a library */"
HOSTILE = "</script><script>alert(1)</script><!--"


class Page(html.parser.HTMLParser):
    """Every element must be closed where it was opened; collects tags, attributes, scripts and what is said."""

    def __init__(self, source):
        super().__init__(convert_charrefs=True)
        self.tags, self.names, self.said, self.ids, self.open, self.scripts, self.charts = [], set(), [], [], [], [], []
        self.feed(source)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.names |= {name for name, _ in attrs}
        self.ids += [value for name, value in attrs if name == "id"]
        if tag == "script":
            self.scripts.append([dict(attrs).get("type"), ""])
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, (tag, self.open[-3:])
        self.open.pop()

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts[-1][1] += data
        elif not self.open or self.open[-1] != "style":
            self.said.append(data)

    @property
    def data(self):
        (source,) = [source for kind, source in self.scripts if kind == "application/json"]
        return json.loads(source)

    def column(self, name):
        (column,) = [column for column in self.data["columns"] if column["name"] == name]
        return column.get("values") or [column["choices"][code] for code in column["codes"]]


def made_page(folder):
    return Page(page_of([gather(folder)], LIBRARY))


@pytest.fixture(scope="module")
def hundreds(tmp_path_factory):
    from made_runs import Made

    where = tmp_path_factory.mktemp("hundreds") / "runs"
    with pytest.MonkeyPatch.context() as patch:
        return large(lambda *args, **options: Made(where, *args, **options), patch, count=300)


@pytest.fixture(scope="module")
def source(hundreds):
    write_report(hundreds)
    return (hundreds.path / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(source):
    return Page(source)


def test_the_page_has_its_sections_and_no_id_twice(page):
    assert {"parameters", "pairs", "parallel", "steps", "failures", "trials", "devices", "memory", "config"} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids)) and "artifacts" not in page.ids
    assert "285 of 300" in " ".join(page.said)


def test_nothing_is_loaded_and_two_scripts_can_run(page, source):
    assert not {"link", "iframe", "object", "embed", "base", "form"} & set(page.tags)
    assert not [name for name in page.names if name.startswith("on") or name in ("src", "href", "style")]
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', source)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'" and rules["img-src"] == "data: blob:" and rules["media-src"] == "data:"
    (own,) = [script for kind, script in page.scripts if kind is None]
    (packed,) = [script for kind, script in page.scripts if kind == "application/octet-stream"]
    library = gzip.decompress(base64.b64decode(packed))
    assert library.startswith(b"/**\n* plotly.js v")
    hashes = {f"'sha256-{base64.b64encode(sha256(data).digest()).decode()}'" for data in (own.encode(), library)}
    assert set(rules["script-src"].split()) == {*hashes, "'unsafe-eval'"}
    assert len(page.scripts) == 3
    assert 'showSendToCloud: false, plotlyServerURL: ""' in own  # plotly.js has a button that uploads a chart


def test_texts_of_the_user_are_shown_as_they_are(page, source):
    said = "".join(page.said)
    assert "<script>alert('x')</script>" in said and "$\\frac{a}$" in said
    assert "\x1b" not in source and "Trace <b>" in said


def test_data_cannot_end_its_element(made, monkeypatch):
    run = made([{"x": 1.0, HOSTILE: "a"}, {"x": 2.0, HOSTILE: HOSTILE + "\x00\u2028"}])
    for k in range(2):
        record = {"outputs": {HOSTILE: 1.0 + k}, "gradients": {HOSTILE: 1.0}, "device": HOSTILE}
        run.end(monkeypatch, 1 + k, k, **record)
    page = made_page(run.finish(monkeypatch, 3))
    assert [kind for kind, _ in page.scripts] == ["application/json", "application/octet-stream", None]
    assert page.column(HOSTILE) == ["a", HOSTILE + "\ufffd\ufffd"] and page.column(f"out.{HOSTILE}") == [1.0, 2.0]
    source = json_script("data", {"x": [HOSTILE, "&amp;\ud800"]})
    inside = source.removeprefix('<script type="application/json" id="data">').removesuffix("</script>")
    assert not set("<>&") & set(inside) and json.loads(inside) == {"x": [HOSTILE, "&amp;\ud800"]}


def test_the_table_has_parameters_results_and_gradients_of_each_trial(page, hundreds):
    rows = gather(hundreds).rows
    assert page.column("trial") == [row["trial"] for row in rows]
    assert page.column("loss") == [None if row["loss"] is None else float(f"{row['loss']:.7g}") for row in rows]
    assert page.column("status").count("failed") == 15
    assert page.data["swept"] == ["E", "kind", "n"]
    assert {column["name"]: column["numeric"] for column in page.data["columns"]}["kind"] is False


def test_gradients_belong_to_the_parameters_they_were_computed_at(made, monkeypatch):
    swept = [{"legs.1": 0.5 * k, "mass": 1.0 + k} for k in range(2)]
    run = made(swept)
    for k in range(2):
        run.end(monkeypatch, 1 + k, k, gradients={"legs": [7.0, 8.0 + k], "mass": -1.0})
    page = made_page(run.finish(monkeypatch, 3))
    assert page.data["gradients"] == {"legs.1": "grad.legs.1", "mass": "grad.mass"}
    assert page.column("grad.legs.1") == [8.0, 9.0]


def test_gradients_of_an_optimisation_belong_to_what_it_has_found(made, monkeypatch):
    run = made([{"mass": 1.0}, {"mass": 2.0}])
    for k in range(2):
        outputs = {"opt.mass": 5.0 + k, "opt.stopped": 3.0, "opt.steps": 9.0, "opt.history": [3.0, 1.0]}
        run.end(monkeypatch, 1 + k, k, gradients={"mass": 0.5}, outputs=outputs)
    page = made_page(run.finish(monkeypatch, 3))
    assert page.data["gradients"] == {"out.opt.mass": "grad.mass"}
    assert page.column("out.opt.mass") == [5.0, 6.0] and page.column("out.opt.stopped") == ["patience"] * 2
    (loss,) = page.data["steps"]
    assert loss["name"] == "loss" and loss["curves"][0] == {"trial": 0, "x": [0, 1], "y": [3.0, 1.0]}


def test_values_that_are_not_finite_are_texts():
    column = ReportColumn("loss", "result", [1.0, float("nan"), float("-inf"), None, 2])
    assert column.numeric and column.data()["choices"] == [1.0, "nan", "-inf", None, 2]


def test_text_takes_the_room_of_its_letters():
    numbers, texts = (
        ReportColumn("a", "result", [float(k) for k in range(100)]),
        ReportColumn("b", "fact", [f"{k:040d}" for k in range(100)]),
    )
    assert numbers.cells() == 100 and texts.cells() == 500
    assert (
        ReportColumn("c", "fact", ["done"] * 100).cells() == 25
        and ReportColumn("d", "fact", ["x" * 500 + str(k) for k in range(100)]).cells() == 900
    )


def test_columns_without_room_are_named_and_a_sample_of_trials_has_the_best(made, monkeypatch):
    monkeypatch.setattr(columns, "TRIALS", 120)
    monkeypatch.setattr(columns, "CELLS", 530)  # trial takes 240, x and loss 120 each, and each constant 30
    run = made([{"x": float(k)} for k in range(200)])
    for k in range(200):
        run.end(monkeypatch, 1, k, loss=float(abs(k - 3)), outputs={"a": float(k)})
    run = gather(run.finish(monkeypatch, 11))
    table = trial_table([run])
    assert (
        len(table.places) == 120 and {3, 199} <= set(table.places) and table.left_out == ["planned_bytes", "attempts", "out.a"]
    )
    assert table.place_of()(199) == 119
    said = " ".join(Page(page_of([run], LIBRARY)).said)
    assert "120 of 200 trials, evenly spread, with the best" in said and "Columns without room here: planned_bytes, " in said


def test_failures_are_grouped_by_their_line_whatever_numbers_the_message_has(made, monkeypatch):
    run = made([{"x": i} for i in range(5)])
    for k in range(4):
        trace = f'Traceback\n  File "/a/job.py", line {7 + k // 3}, in run\n    go()\n  File "/v/site-packages/n.py", line 1, in f\n'
        run.end(monkeypatch, 1 + k, k, status="failed", error={"type": "Bad", "message": f"at -{k}.5e-3 m", "traceback": trace})
    run.end(monkeypatch, 6, 4)
    run = gather(run.finish(monkeypatch, 9, "failed"))
    assert [(str(group.line), group.places, len(group.messages)) for group in grouped(run)] == [
        ("job.py:7 in run", [0, 1, 2], 3),
        ("job.py:8 in run", [3], 1),
    ]
    said = " ".join(Page(page_of([run], LIBRARY)).said)
    assert "3 trials" in said and "at job.py:7 in run" in said and "go()" in said


def test_the_line_of_an_error_of_the_compiler_is_in_its_message():
    message = "no such name\n  at /home/me/throw.py:12 in fly\n    x = gone\n        ^^^^\n  do: define it"
    assert str(line_of(message, "")) == "throw.py:12 in fly" and line_of(message, "").source == "x = gone"
    assert line_of("worker died", "") is None


def test_a_run_that_has_just_begun_has_a_page(made):
    run = made([{"x": i} for i in range(3)], name=NASTY[:50])
    page = made_page(run.folder)
    run.journal.close()
    assert "0 of 3" in page.said and not {"pairs", "parameters", "devices"} & set(page.ids)


def test_a_run_whose_trials_all_failed_has_no_empty_chart(made, monkeypatch):
    run = made([{"x": i, "y": -i} for i in range(3)])
    for k in range(3):
        run.end(monkeypatch, 1 + k, k, status="failed", loss=None, error={"type": "Bad", "message": "no"})
    page = made_page(run.finish(monkeypatch, 9, "failed"))
    assert "No trial has a loss: 3 trials failed." in page.said and not {"pairs", "parallel"} & set(page.ids)


def test_a_run_without_a_sweep_is_drawn_by_the_order_of_its_trials_and_one_trial_needs_no_chart(made, monkeypatch):
    for count, title in ((2, "Loss by trial"), (1, None)):
        run = made([{"x": 1.0}] * count, name=f"made{count}")
        for k in range(count):
            run.end(monkeypatch, 2 + k, k, loss=1.0, gradients={"x": 3.0})
        page = made_page(run.finish(monkeypatch, 9))
        assert ("Loss by trial" in page.said) is (title is not None) and page.data["swept"] == []


def test_charts_are_side_by_side_where_there_is_room_and_below_one_another_where_there_is_none(source):
    assert ".plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 340px), 1fr))" in source


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
    norms = [row["gradient_norm"] for row in gather(run.finish(monkeypatch, 3)).rows]
    assert norms[0] == pytest.approx(100.0)
    assert np.isnan(norms[1]) and norms[2] is None and norms[3] == 2.5


def test_devices_have_a_unit_that_fits_and_their_lanes_at_most():
    (first,) = curves.devices([Load("d", None, [0.0, 1.0], [3 * GIB, 0], [2, 0])])
    assert (first["unit"], first["capacity"], first["claimed"]["y"], first["running"]["y"]) == ("GiB", None, [3.0, 0.0], [2, 0])
    assert first["said"] == "d: 3 GiB claimed on average; 2.0 trials at once, 2 at most"
    assert curves.devices([Load("d", 6 << 10, [0.0, 1.0], [3 << 10, 0], [1, 0])])[0]["unit"] == "KiB"


def test_a_thinned_curve_keeps_the_extremes_of_each_part():
    rng = np.random.default_rng()
    x, y = np.sort(rng.random(5000)), rng.standard_normal(5000)
    y[rng.integers(5000, size=50)] = np.nan
    kept = envelope(x, y, 40)
    assert len(kept) <= 82 and (np.diff(kept) > 0).all() and np.isfinite(y[kept]).all()
    finite = np.flatnonzero(np.isfinite(y))
    assert kept[0] == finite[0] and kept[-1] == finite[-1]
    low, high = x[finite[0]], x[finite[-1]]
    part = np.minimum((x - low) / ((high - low) / 40), 39).astype(int)
    for k in range(40):
        own, shown = y[finite][part[finite] == k], y[kept][part[kept] == k]
        assert (shown.min(), shown.max()) == (own.min(), own.max())
    assert envelope(np.arange(3.0), np.array([1.0, np.inf, 2.0]), 40).tolist() == [0, 2]
    assert len(envelope(np.zeros(500), np.arange(500.0), 40)) == 2


def test_indices_are_spread_evenly():
    assert picked(3, 10) == [0, 1, 2]
    assert picked(1000, 3) in ([0, 499, 999], [0, 500, 999])
    assert len(picked(100_000, 3000)) == 3000


def test_text_is_only_text():
    assert text('<a b="c">&\x00\ud800') == "&lt;a b=&quot;c&quot;&gt;&amp;\ufffd\ufffd"


@pytest.mark.parametrize(
    ("change", "said"), [(None, "not installed\n  do: pip install plotly"), ("3.0.1", "has 3.0.1\n  do: pip install -U plotly")]
)
def test_without_the_chart_library_the_message_says_what_to_install(made, monkeypatch, change, said):
    run = made([{"x": 1}])
    folder = run.finish(monkeypatch, 1)
    if change is None:
        monkeypatch.setitem(sys.modules, "plotly.offline", None)
    else:
        monkeypatch.setattr("plotly.offline.get_plotlyjs_version", lambda: change)
    with pytest.raises(PlotsMissing, match=re.escape(said)):
        write_report(folder)
    assert not folder.files.exists("report.html")
    done = CliRunner().invoke(app, ["report", folder.uri, "--json"])
    assert done.exit_code == 2 and said in json.loads(done.stdout)["error"]["message"]


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
def test_a_browser_draws_every_chart_and_reports_no_error(hundreds, source, tmp_path):
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0", "--dump-dom"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1000,6000", "--virtual-time-budget=10000"]
    command += ["--enable-unsafe-swiftshader"]
    done = subprocess.run(
        [*command, (hundreds.path / "report.html").as_uri()], capture_output=True, text=True, check=False, timeout=120
    )
    errors = [line for line in done.stderr.splitlines() if "CONSOLE" in line and "GL Driver" not in line]
    assert not errors and done.returncode == 0, done.stderr[-2000:]
    boxes = re.findall(r'<div class="chart [^"]*js-plotly-plot"', done.stdout)
    assert len(boxes) == 3 + 1 + 1 + 1 + 2 * 2 + 1  # parameters, pairs, parallel, steps, two devices, memory
    rows = re.findall(r'<tr data-trial="\d+"', done.stdout)
    assert '<div class="no-webgl"' not in done.stdout
    assert 'data-title="Zoom"' in done.stdout and 'data-title="Share' not in done.stdout
    assert len(rows) == 25 and "1 to 25 of 300" in done.stdout
