"""Where the dashboard is, whether it answers, and how one gets in."""

import http.server
import json
import socket
import threading
from contextlib import contextmanager

import pytest
from runner_helpers import write_config
from typer.testing import CliRunner

from qdrun.runner.cli.app import app
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.layout import create
from qdrun.runner.study.prepare import prepare


@contextmanager
def serving(code):
    """A page that answers every request with this code; its address."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(code)
            self.end_headers()

        def log_message(self, *args): ...

    with http.server.HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def token(tmp_path, monkeypatch):
    path = tmp_path / "token"
    path.write_text("secret-of-the-cluster")
    path.chmod(0o600)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(path))
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    return path


def dashboard(*words):
    """Exit code, document and text of the command."""
    data = CliRunner().invoke(app, ["dashboard", *map(str, words), "--json"])
    text = CliRunner().invoke(app, ["dashboard", *map(str, words)])
    assert data.exit_code == text.exit_code
    return data.exit_code, json.loads(data.stdout), text.stdout


def run_with(folder, url):
    prepared, _ = prepare(write_config(folder))
    run = create(prepared, folder / "runs")
    with Journal(run) as journal:
        journal.write("ray_ready", sync=True, cores=2, dashboard=url)
    return run


def test_a_run_s_dashboard_is_the_one_that_its_journal_names(tmp_path, token):
    with serving(401) as where:
        run = run_with(tmp_path, where)
        for words in ([run.path], ["--runs", tmp_path / "runs"]):
            code, data, text = dashboard(*words)
            assert (code, data["url"], data["run"]) == (0, f"http://{where}", run.name)
            assert (data["answers"], data["needs_token"], data["token_file_mode"]) == (True, True, "0600")
            assert f"it lies in {token} (permissions 0600): `ray get-auth-token` prints it" in text
            assert "Actors    one row for each worker" in text
            assert "secret-of-the-cluster" not in text + json.dumps(data), "the token itself is never printed"


def test_a_token_that_others_can_read_is_named(tmp_path, token):
    token.chmod(0o644)
    with serving(403) as where:
        _, data, text = dashboard("--address", f"http://{where}")
    assert data["token_file_mode"] == "0644" and f"others can read it\n  do: chmod 600 {token}" in text


def test_a_page_without_a_token_is_open_to_all(tmp_path, token):
    with serving(200) as where:
        code, data, text = dashboard("--address", f"http://{where}")
    assert (code, data["needs_token"]) == (0, False) and "anybody who can reach it can run code as you" in text


def test_nothing_there_is_exit_code_4(tmp_path, token):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        code, data, text = dashboard("--address", f"http://127.0.0.1:{taken.getsockname()[1]}")
    assert (code, data["answers"], data["needs_token"]) == (4, False, None)
    assert "nothing answers there" in text and "ssh -L 8265" in text


def test_a_run_without_a_dashboard_says_how_to_get_one(tmp_path):
    run = run_with(tmp_path, "")
    code, data, text = dashboard(run.path)
    assert (code, data["url"], data["run"]) == (4, "", run.name)
    assert f"run {run.name} has no dashboard\n  do: `qdrun submit CONFIG --dashboard`" in text
    code, _, text = dashboard("--runs", tmp_path / "none")
    assert code == 4 and "no run here has a dashboard" in text


def test_an_address_that_is_none_is_refused(tmp_path):
    result = CliRunner().invoke(app, ["dashboard", "--address", "head:6379"])
    assert result.exit_code == 2 and "http://head:8265" in result.stderr
