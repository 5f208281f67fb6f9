"""What the runner exports: read from the metrics port of a node, and named in the Grafana dashboard."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from qdrun.runner.observe.view import RunView
from qdrun.runner.ray_adapter.pages.metrics import SPECS, Metrics, run_tag
from qdrun.runner.workers.records import gradient_norm

ROOT = Path(__file__).parents[3]
DASHBOARD = ROOT / "docs" / "grafana-qdrun.json"
EXPORTED = {name for spec in SPECS for name in spec.exported}

# A Ray of its own, in a process of its own: it reads its metrics port until every name is there.
READER = r"""
import json, sys, time, urllib.request
import ray
from qdrun.runner.ray_adapter.pages.metrics import SPECS, Metrics
from qdrun.runner.observe.view import DeviceView, RunView

ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
         object_store_memory=80 << 20, _system_config={"metrics_report_interval_ms": 500})
try:
    made = Metrics("20260727-101500-secret-name-0a1b")
    device = DeviceView("cuda:0", "gpu0", "h200", capacity=1000, claimed=600, used=500, lanes=4, running=2)
    made.observe(RunView("r", "running", 5, {"running": 2, "waiting": 3, "done": 4}, 1.0, devices=(device, DeviceView("gone", "p"))))
    made.started(4, 1.5)
    made.ended({"seconds": 0.3, "planned_bytes": 100, "used_bytes": 99, "gradients": {"x": [3.0, 4.0]}, "failure": "out_of_memory"})
    made.ended({"seconds": float("nan"), "planned_bytes": None, "gradients": {"x": {"file": "f"}}})
    made.retried("out_of_memory")
    made.retried("crash")
    made.observe(RunView("r", "running", 5, {"done": 5}, 1.0, devices=(device,)))
    node = ray.nodes()[0]
    url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    wanted = [name for spec in SPECS for name in spec.exported]
    for _ in range(200):
        try:
            text = urllib.request.urlopen(url, timeout=5).read().decode()
        except OSError:
            text = ""
        if all(f"{name}{{" in text for name in wanted):
            break
        time.sleep(0.2)
    print("READ" + json.dumps([line for line in text.splitlines() if "qdrun" in line]))
finally:
    ray.shutdown()
"""


@pytest.fixture(scope="module")
def page(ray_folder):
    done = subprocess.run([sys.executable, "-c", READER], capture_output=True, text=True, check=False, timeout=200, cwd="/")
    assert done.returncode == 0, done.stderr[-2000:]
    lines = json.loads(done.stdout.split("READ", 1)[1])
    found = {}
    for line in lines:
        if not line.startswith("#"):
            name, tags, value = re.fullmatch(r"(\w+)\{(.*)\} (\S+)", line).groups()
            found.setdefault(name, []).append((dict(re.findall(r'(\w+)="([^"]*)"', tags)), float(value)))
    return found


def value(page, name, **tags):
    (found,) = [value for have, value in page[name] if tags.items() <= have.items()]
    return found


def bucket(page, name):
    """The bounds of the bucket that holds the one value of a histogram."""
    counts = sorted((float(tags["le"]), number) for tags, number in page[f"{name}_bucket"])
    (upper,) = [i for i, (_, number) in enumerate(counts) if number == 1 and (i == 0 or counts[i - 1][1] == 0)]
    return counts[upper - 1][0], counts[upper][0]


@pytest.mark.slow
def test_every_metric_is_on_the_port_of_the_node(page):
    assert set(page) >= EXPORTED
    assert {name for name in page if "qdrun" in name} == EXPORTED


@pytest.mark.slow
def test_the_figures_are_those_of_the_run(page):
    assert value(page, "ray_qdrun_trials", state="done") == 5
    assert value(page, "ray_qdrun_trials", state="running") == 0  # a state that nobody is in any more
    assert value(page, "ray_qdrun_device_bytes", device="cuda:0", kind="claimed") == 600
    assert value(page, "ray_qdrun_device_bytes", device="cuda:0", kind="capacity") == 1000
    assert value(page, "ray_qdrun_device_bytes", device="cuda:0", kind="used") == 500
    assert value(page, "ray_qdrun_device_lanes", device="cuda:0", kind="total") == 4
    assert bucket(page, "ray_qdrun_batch_trials") == (2.0, 4.0)
    assert bucket(page, "ray_qdrun_queue_wait_seconds") == (1.0, 2.0)
    assert value(page, "ray_qdrun_trial_seconds_count") == 1  # the other was not a number
    assert value(page, "ray_qdrun_trial_seconds_sum") == 0.3
    assert value(page, "ray_qdrun_trial_seconds_bucket", le="+Inf") == 1
    assert bucket(page, "ray_qdrun_gradient_norm") == (1.0, 10.0)
    assert bucket(page, "ray_qdrun_used_of_planned") == (0.95, 0.99)
    assert value(page, "ray_qdrun_oom_total") == 2
    assert value(page, "ray_qdrun_retries_total", failure="crash") == 1


def test_a_trial_that_ends_is_no_call_of_ray(monkeypatch):
    """They are counted here, and said about once a second: a call takes longer than all else that is written down of a short trial."""
    from ray.util import metrics

    calls, said = [], {}

    class Gauge:
        def __init__(self, name, says, tags):
            self.name, self.tags = name, tags

        def set_default_tags(self, tags):
            assert set(tags) == {"run"}
            return self

        def set(self, value, tags=None):
            assert {"run", *(tags or ())} == set(self.tags)
            calls.append(self.name)
            said[self.name, (tags or {}).get("le")] = value

    monkeypatch.setattr(metrics, "Gauge", Gauge)
    made = Metrics("20260727-101500-0a1b")
    for k in range(1000):
        made.started(1, 0.25)
        made.ended({"seconds": 0.01 * k, "planned_bytes": 10, "used_bytes": 9, "gradients": {"x": [3.0, 4.0]}})
    assert not calls
    made.observe(RunView("r", "running", 1000, {}, 1.0))
    assert said["qdrun_trial_seconds_count", None] == 1000 and said["qdrun_gradient_norm_sum", None] == 5000.0
    assert said["qdrun_trial_seconds_sum", None] == pytest.approx(0.01 * 999 * 500)
    below = [said["qdrun_trial_seconds_bucket", le] for le in ("0.01", "0.5", "1.0", "10.0", "+Inf")]
    assert below == [2, 51, 101, 1000, 1000]  # a bound is in its own bucket


@pytest.mark.slow
def test_a_device_that_is_gone_is_set_to_nothing(page):
    assert value(page, "ray_qdrun_device_bytes", device="gone", kind="capacity") == 0


@pytest.mark.slow
def test_no_tag_holds_what_the_user_named(page):
    assert {tags["run"] for series in page.values() for tags, _ in series} == {"20260727-101500-0a1b"}
    assert "secret" not in json.dumps(page)


@pytest.mark.parametrize(
    ("run", "tag"),
    [
        ("20260727-101500-drop-0a1b", "20260727-101500-0a1b"),
        ("20260727-101500-my-secret-plan-0a1b", "20260727-101500-0a1b"),
        ("20260727-101500-0a1b", "20260727-101500-0a1b"),
        ("named-by-me", "named-by-me"),
        ("mine", "run"),
    ],
)
def test_a_run_is_named_without_its_name(run, tag):
    assert run_tag(run) == tag


def test_the_norm_is_over_all_gradients():
    assert gradient_norm({"gradients": {"a": [[1.0, 2.0]], "b": 2.0}}) == 3.0
    assert gradient_norm({"gradients": {"a": {"file": "f"}}, "gradient_norm": 7.0}) == 7.0
    assert gradient_norm({"gradients": {"a": {"file": "f"}}}) is None
    assert gradient_norm({"gradients": {}}) is None
    assert gradient_norm({}) is None


def test_metrics_does_not_import_ray_before_it_is_made():
    code = "import sys, qdrun.runner.ray_adapter.pages.metrics; assert 'ray' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd="/").returncode == 0


def expressions():
    document = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return [(panel["title"], target["expr"]) for panel in document["panels"] for target in panel.get("targets", ())]


@pytest.mark.parametrize(("title", "expression"), expressions())
def test_the_dashboard_asks_for_what_is_exported(title, expression):
    names = set(re.findall(r"\bray_\w+", expression))
    assert names, title
    assert names <= EXPORTED, title


def test_the_dashboard_shows_every_metric():
    asked = {name for _, expression in expressions() for name in re.findall(r"\bray_\w+", expression)}
    assert [spec.name for spec in SPECS if not asked & set(spec.exported)] == []


def test_the_dashboard_asks_for_tags_that_the_metric_has():
    tags = {name: {*spec.tags, "le"} for spec in SPECS for name in spec.exported}
    for title, expression in expressions():
        for name, inside in re.findall(r"\b(ray_\w+)\{([^}]*)\}", expression):
            assert set(re.findall(r"(\w+)\s*=~?", inside)) <= tags[name], title


def test_the_dashboard_is_one():
    document = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    assert document["title"] == "qdrun" and document["schemaVersion"] >= 36
    ids = [panel["id"] for panel in document["panels"]]
    assert len(set(ids)) == len(ids)
    places = [panel["gridPos"] for panel in document["panels"]]
    cells = [(x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])]
    assert len(set(cells)) == len(cells) and max(x for x, _ in cells) < 24  # no panel lies on another


def test_the_page_of_metrics_names_them_all():
    page = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `ray_(\w+)` \| (\w+) \|", page, re.M) == [(spec.name, spec.kind) for spec in SPECS]
