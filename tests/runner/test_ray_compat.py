"""Ray as a run on one machine starts it: what is left out, the dashboard beside it, and what happens when that fails. Private names of
Ray that are not there, and its token.
"""

import json
import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from qdrun.runner.ray_adapter import cluster, compat, idle_agent
from qdrun.runner.ray_adapter.compat import Beside, RayChanged, small_head
from qdrun.runner.ray_adapter.compat_check import missing

SCRIPT = """
import json, sys, urllib.error, urllib.request
import ray, psutil
from qdrun.runner.observe.view import FailureView, RunView
from qdrun.runner.ray_adapter.cluster import close_cluster, open_cluster, token_file
from ray._private import node

whole = node.Node
run = "20261129-101500-drop-0a1b"
here = open_cluster(None, dashboard=sys.argv[1] == "dashboard", job={"run": run, "job_name": "drop", "user": "me"})
assert node.Node is whole and type(ray._private.worker._global_node) is not whole

class Answers:
    def answer(self):
        return 42

actor = ray.remote(Answers).remote()
answer = ray.get(actor.answer.remote())
status = 0
if here.dashboard_url:
    try:
        status = urllib.request.urlopen(f"http://{here.dashboard_url}/", timeout=10).status
    except urllib.error.HTTPError as error:
        status = error.code
shown = {}
if here.record is not None:
    here.record.show(RunView(run, "running", 3, {"done": 1, "running": 2}, 1.0))
    here.record.over("failed", RunView(run, "running", 3, {"done": 2, "failed": 1}, 2.0, failures=(FailureView("t", "x=1", "E", "no"),)))
    token = open(token_file()).read().strip()
    def ask(path):
        asked = urllib.request.Request(f"http://{here.dashboard_url}{path}", headers={"Authorization": f"Bearer {token}"})
        return json.load(urllib.request.urlopen(asked, timeout=10))
    shown = {"jobs": ask("/api/jobs/"), "log": ask(f"/api/jobs/{run}/logs")["logs"], "grafana": ask("/api/grafana_health")["data"]}
children = psutil.Process().children(recursive=True)
names = [" ".join(child.cmdline()) for child in children]
own = ray.remote(Answers).options(runtime_env={"env_vars": {"ANSWER": "42"}}).remote()
answer += ray.get(own.answer.remote())
children = psutil.Process().children(recursive=True)
later = [" ".join(child.cmdline()) for child in children]
close_cluster()
left = [child.pid for child in psutil.wait_procs(children, timeout=20)[1] if child.status() != psutil.STATUS_ZOMBIE]
print(json.dumps({"answer": answer, "status": status, "names": names, "later": later, "left": left, "shown": shown}))
"""
PARTS = ("gcs_server", "raylet/raylet", "monitor.py", "log_monitor.py", "dashboard/dashboard.py")
AGENTS = ["ray::DashboardAgent", "ray::RuntimeEnvAgent"]


@pytest.mark.slow
@pytest.mark.parametrize("dashboard", ["none", "dashboard"])
def test_ray_of_one_machine_has_the_processes_that_a_run_uses_and_no_others(dashboard):
    done = subprocess.run([sys.executable, "-c", SCRIPT, dashboard], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["answer"] == 84 and not found["left"]
    assert found["status"] == (200 if dashboard == "dashboard" else 0)
    there = {part for part in PARTS if any(part in name for name in found["names"])}
    assert there == {"gcs_server", "raylet/raylet"} | (
        {"dashboard/dashboard.py", "monitor.py"} if dashboard == "dashboard" else set()
    )
    assert bool(found["shown"]) == (dashboard == "dashboard")
    if found["shown"]:
        (job,) = found["shown"]["jobs"]  # one row: the process and the record of its run are one job
        assert (job["submission_id"], job["status"], job["type"]) == ("20261129-101500-drop-0a1b", "FAILED", "SUBMISSION")
        assert job["message"] == "3/3 trials, 1 failed" and job["entrypoint"] == "-c dashboard"
        assert job["job_id"] and job["metadata"]["job_name"] == "drop"
        assert "x=1 failed: E: no" in found["shown"]["log"] and "running: 1/3 trials, 2 running" in found["shown"]["log"]
        assert found["shown"]["grafana"] == {"grafanaHost": "DISABLED"}
    workers = [name for name in found["names"] if name.startswith("ray::") and "Agent" not in name]
    assert len(workers) == 1 and workers[0].startswith("ray::Answers"), workers  # none that waits for work
    agents, then = ([one for one in AGENTS if any(one in name for name in found[when])] for when in ("names", "later"))
    assert agents == (AGENTS if dashboard == "dashboard" else [])  # nobody needs them
    assert then == (AGENTS if dashboard == "dashboard" else AGENTS[1:])  # a job has asked for an environment


class Node:
    """Stands for Ray's."""

    webui_url, start_raylet, kill_all_processes = "", None, None

    def __init__(self, ray_params, head=False):
        self.params, self.head, self.webui_url, self.starts = ray_params, head, "", []

    def start_api_server(self, *, include_dashboard, raise_on_failure):
        self.starts.append((include_dashboard, raise_on_failure, threading.current_thread()))
        self.webui_url = "127.0.0.1:8265"


@pytest.fixture
def node(monkeypatch):
    module = pytest.importorskip("ray._private.node")
    monkeypatch.setattr(module, "Node", Node)
    return module


def test_the_log_monitor_is_left_out_and_the_dashboard_starts_in_a_thread_that_stays(node):
    with small_head() as server:
        made = node.Node(ray_params=SimpleNamespace(include_dashboard=True), head=True)
        made.start_api_server(include_dashboard=True, raise_on_failure=True)
    assert server.result() == "127.0.0.1:8265"
    # the autoscaler's monitor writes the cluster status that the dashboard shows
    assert vars(made.params) == {"include_dashboard": True, "no_monitor": False, "include_log_monitor": False} and made.head
    ((included, raises, thread),) = made.starts
    assert included and raises and thread is not threading.current_thread() and thread.daemon and thread.is_alive()
    assert node.Node is Node


def test_where_no_dashboard_is_wanted_its_server_does_not_start(node):
    with small_head() as server:
        made = node.Node(SimpleNamespace(include_dashboard=False))
        made.start_api_server(include_dashboard=False, raise_on_failure=False)
    assert server.result() == "" and not made.starts and made.params.no_monitor


def test_the_class_of_the_node_is_ray_s_own_again_after_a_failure(node):
    with pytest.raises(OSError, match="no room"), small_head():
        raise OSError("no room")
    assert node.Node is Node


def test_a_call_beside_gives_its_error_to_who_asks_for_its_result():
    def fail():
        raise RuntimeError("port 8265 is taken")

    server = Beside()
    server.begin(fail)
    with pytest.raises(RuntimeError, match="port 8265"):
        server.result()


def test_a_dashboard_that_fails_ends_the_ray_beside_it(node, monkeypatch):
    import ray

    class Failing(Node):
        def start_api_server(self, *, include_dashboard, raise_on_failure):
            raise RuntimeError("Failed to start the dashboard")

    def init(**options):
        node.Node(ray_params=SimpleNamespace(include_dashboard=True)).start_api_server(
            include_dashboard=options["include_dashboard"], raise_on_failure=True
        )

    ended = []
    monkeypatch.setattr(node, "Node", Failing)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: ended.append(1))
    with pytest.raises(cluster.ClusterError, match="cannot start Ray on this machine: Failed to start the dashboard"):
        cluster.open_cluster(None, dashboard=True)
    assert ended == [1] and not cluster._OURS


def test_the_ray_that_is_installed_has_every_private_name_that_is_used():
    pytest.importorskip("ray")
    assert missing() == []


@pytest.mark.parametrize(
    "gone", ["Node", "start_api_server", "start_raylet", "kill_all_processes", "webui_url", "include_dashboard"]
)
def test_a_ray_without_a_private_name_is_started_the_public_way_after_one_warning_that_names_it(monkeypatch, gone):
    module = pytest.importorskip("ray._private.node")
    members = {
        "webui_url": "",
        "start_raylet": None,
        "kill_all_processes": None,
        "start_api_server": (lambda self, *, raise_on_failure: None)
        if gone == "include_dashboard"
        else (lambda self, *, include_dashboard, raise_on_failure: None),
    }
    members.pop(gone, None)
    whole = type("Node", (), members)
    if gone == "Node":
        monkeypatch.delattr(module, "Node")
    else:
        monkeypatch.setattr(module, "Node", whole)
    with pytest.warns(RayChanged, match=f"has no .*{gone}.*started with all its processes") as said, small_head() as server:
        assert getattr(module, "Node", whole) is whole
    assert len(said) == 1 and server.result() == ""
    assert any(gone in name for name in missing())


def test_the_settings_of_a_ray_that_is_started_are_the_user_s_where_there_are_some(monkeypatch):
    monkeypatch.setenv("RAY_enable_metrics_collection", "1")
    monkeypatch.delenv("RAY_prestart_worker_first_driver", raising=False)
    with compat.started_with():
        assert os.environ["RAY_enable_metrics_collection"] == "1" and os.environ["RAY_prestart_worker_first_driver"] == "0"
    assert os.environ["RAY_enable_metrics_collection"] == "1" and "RAY_prestart_worker_first_driver" not in os.environ


def test_a_node_whose_command_has_other_options_keeps_its_agents(monkeypatch):
    services = pytest.importorskip("ray._private.services")
    given = []
    monkeypatch.setattr(services, "start_ray_process", lambda command, kind: given.append(command))
    command = ["raylet", "--session_dir=/s", "--node_id=n", "--node_ip_address=::1"]
    for more in (
        ["--dashboard_agent_command=python a"],
        ["--dashboard_agent_command=python a", "--runtime_env_agent_command=b c=d"],
    ):
        with compat.idle_agents():
            services.start_ray_process([*command, *more], "raylet")
    assert given[0] == [*command, "--dashboard_agent_command=python a"]
    stub = f"{sys.executable} -I -S {idle_agent.__file__} /s n"
    assert given[1][4:] == [
        f"--dashboard_agent_command={stub} metrics_agent_port,metrics_export_port,dashboard_agent_listen_port",
        f"--runtime_env_agent_command={stub} runtime_env_agent_port ::1 b c=d",
    ]


def test_an_agent_that_nobody_asks_for_ends_with_the_process_that_started_it(tmp_path):
    command = [sys.executable, "-I", "-S", idle_agent.__file__, str(tmp_path), "n", "port", "127.0.0.1", "agent"]
    starts = f"import os, subprocess; os.environ['RAY_RAYLET_PID'] = str(os.getpid()); print(subprocess.Popen({command}).pid)"
    pid = int(subprocess.run([sys.executable, "-c", starts], capture_output=True, text=True, check=True, timeout=60).stdout)
    assert pid > 0  # its stdout was the pipe that has been read to its end: it has gone
    assert int((tmp_path / "port_n").read_text()) > 0
