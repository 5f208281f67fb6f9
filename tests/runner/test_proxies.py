"""The token of Ray goes to the address that the user gave, and to no proxy that the environment names."""

import http.server
import json
import os
import threading
from contextlib import contextmanager

import pytest

from qdrun.runner.ray_adapter import compat
from qdrun.runner.ray_adapter.jobs_api import Jobs, ask, known_dead
from qdrun.runner.ray_adapter.known_clusters import JOB, remember
from qdrun.runner.remote.dashboard import asks

VARIABLES = [name for word in ("http_proxy", "https_proxy", "all_proxy") for name in (word, word.upper())]
TOKEN = "0123456789abcdef" * 4
JOBS = {"ray_version": "2.60.0", "version": "4", "session_name": "s", "ray_commit": "c"}


class Listener(http.server.BaseHTTPRequestHandler):
    """Answers as a dashboard, and notes what it was asked."""

    def answer(self):
        length = int(self.headers.get("Content-Length") or 0)
        self.server.seen.append((self.command, self.path, dict(self.headers), self.rfile.read(length)))
        if self.path.endswith("/api/moved"):
            self.send_response(302)
            self.send_header("Location", self.server.elsewhere)
            self.end_headers()
            return
        said = {"submission_id": "one", "job_id": "one"} if self.command == "POST" else JOBS
        said = {"stopped": True} if self.path.endswith("/stop") else said
        data = json.dumps([] if self.path.endswith("/jobs/") and self.command == "GET" else said).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_DELETE = do_CONNECT = answer

    def log_message(self, *_):
        pass


@contextmanager
def listening():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Listener) as server:
        server.seen = []
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server, f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def both(monkeypatch):
    """A dashboard, and a proxy of another program that all variables name."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with listening() as (dashboard, url), listening() as (proxy, place):
        for name in VARIABLES:
            monkeypatch.setenv(name, place)
        dashboard.elsewhere = f"{place}/stolen"
        yield dashboard, url, proxy


def test_no_client_of_ours_goes_through_a_proxy(both, tmp_path):
    dashboard, url, proxy = both
    jobs = Jobs(url)
    jobs.submit("one", ["uri"], {"run": "one"}, None)
    jobs.status("one"), jobs.log("one")
    jobs.stop("one")
    ask(url, "/api/jobs/")
    asks(url)
    assert proxy.seen == []
    assert {method for method, _, headers, _ in dashboard.seen if headers.get("Authorization") == f"Bearer {TOKEN}"} >= {
        "GET",
        "POST",
    }


def test_the_files_of_a_run_go_to_the_dashboard_alone(both, tmp_path):
    dashboard, url, proxy = both
    (tmp_path / "parcel").mkdir()
    (tmp_path / "parcel" / "a.txt").write_text("a")
    Jobs(url).submit("one", ["uri"], {}, tmp_path / "parcel")
    assert proxy.seen == [] and any(path.startswith("/api/packages/") for _, path, *_ in dashboard.seen)


def test_a_redirection_is_not_followed(both):
    _, url, proxy = both
    client = compat.direct_client()(url, headers={"Authorization": f"Bearer {TOKEN}"})
    assert client._do_request("GET", "/api/moved").status_code == 302 and proxy.seen == []


def test_the_control_plane_is_asked_directly(both):
    _, url, proxy = both
    assert compat.asks_for_token(url.removeprefix("http://")) is None, "it is none"
    assert proxy.seen == []


def test_a_run_that_a_cluster_has_is_asked_for_directly(both, tmp_path):
    from runner_helpers import write_config

    from qdrun.runner.store.layout import create
    from qdrun.runner.store.owner import Owner
    from qdrun.runner.study.prepare import prepare

    _, url, proxy = both
    run = create(prepare(write_config(tmp_path))[0], tmp_path / "runs")
    remember(run, url, JOB)
    assert known_dead(run, Owner(1, "t", 1, "h", 0.0), url) is False and proxy.seen == []


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ({}, ()),
        ({"no_proxy": "lab.example, .inner"}, ("lab.example", " .inner")),
        ({"NO_PROXY": "localhost,lab.example"}, ("lab.example",)),
        ({"no_grpc_proxy": "grpc.example", "no_proxy": "lab.example"}, ("grpc.example",)),
    ],
)
def test_grpc_within_this_machine_goes_through_no_proxy(monkeypatch, told, kept):
    for name in ("no_grpc_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    for _ in range(2):  # again changes nothing
        compat.keep_loopback_direct()
        assert os.environ["no_grpc_proxy"].split(",") == [*kept, "127.0.0.1", "localhost", "::1"]
    monkeypatch.delenv("no_grpc_proxy")
