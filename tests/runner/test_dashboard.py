"""Where the dashboard is, whether it answers, and how one gets in."""

import http.server
import json
import socket
import sys
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager
from functools import partial

import pytest
from runner_helpers import write_config
from typer.testing import CliRunner

from qdrun.runner.cli.app import app
from qdrun.runner.remote.dashboard_login import COOKIE, Login, NotOpened, check_target, users_of
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.layout import create
from qdrun.runner.study.prepare import prepare


@contextmanager
def serving(code):
    """A page that answers every request with this code, or with what it is for its headers; its address."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(code(self.headers) if callable(code) else code)
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
            assert f"it is in {token} (permissions 0600): `ray get-auth-token` prints it" in text
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


@pytest.fixture
def browser(tmp_path, monkeypatch):
    """A browser that writes down what it was sent: the headers of each page, and which page comes next."""
    script, seen = tmp_path / "browser", tmp_path / "seen"
    script.write_text(
        f"#!{sys.executable}\nimport sys, urllib.request\n"
        "opened = urllib.request.build_opener(urllib.request.ProxyHandler({})).open(sys.argv[1])\n"
        f"open({str(seen)!r}, 'w').write(sys.argv[1] + '\\n' + str(opened.headers) + opened.read().decode())\n"
    )
    script.chmod(0o700)
    monkeypatch.setenv("BROWSER", f"{script} %s")
    return seen


def test_the_page_is_opened_with_the_token_in_a_cookie(tmp_path, token, browser):
    with serving(lambda headers: 200 if headers.get("Authorization") == "Bearer secret-of-the-cluster" else 401) as where:
        result = CliRunner().invoke(app, ["dashboard", "--address", f"http://{where}", "--open"])
    assert result.exit_code == 0, result.output
    link, _, page = browser.read_text().partition("\n")
    assert f"Set-Cookie: {COOKIE}=secret-of-the-cluster; Path=/; HttpOnly; SameSite=Strict\n" in page
    assert f'content="0; url=http://{where}"' in page and "Cache-Control: no-store" in page
    assert "secret-of-the-cluster" not in link + result.output and link.startswith("http://127.0.0.1:")


def test_a_page_that_refuses_the_token_is_not_opened(tmp_path, token, browser):
    with serving(403) as where:
        result = CliRunner().invoke(app, ["dashboard", "--address", f"http://{where}", "--open"])
    assert result.exit_code == 4 and "refuses your token\n  do: put the token of that cluster" in result.stderr
    assert not browser.exists()


def test_the_login_page_is_for_one_look_by_this_user_who_knows_its_address(monkeypatch):
    def look(address):
        try:
            with urllib.request.urlopen(address, timeout=10) as page:
                return page.headers["Set-Cookie"]
        except urllib.error.HTTPError as error:
            assert error.headers["Set-Cookie"] is None
            return error.code

    with serving(401) as where, Login(f"http://{where}", "secret") as login:
        assert look(login.link[:-1]) == 404 and not login.wait(0)
        with monkeypatch.context() as other:  # whoever looks is not the user whom this process takes for itself
            other.setattr("qdrun.runner.remote.dashboard_login.os.getuid", lambda: 12345)
            assert look(login.link) == 404 and not login.wait(0)
        assert look(login.link).startswith(f"{COOKIE}=secret;") and login.wait(5)
        assert look(login.link) == 404


def test_no_token_goes_to_a_server_of_another_user_or_to_another_host(monkeypatch):
    with serving(401) as where:
        check_target(f"http://{where}")
        monkeypatch.setattr("qdrun.runner.remote.dashboard_login.users_of", lambda port, listening: {0, 12345})
        with pytest.raises(NotOpened, match="belongs to another user \\(0, 12345\\), who would get your token"):
            check_target(f"http://{where}")
    for url in ("http://head:8265", "https://127.0.0.1:8265"):
        with pytest.raises(NotOpened, match="only a page of the same host can\n  do: `ssh -L 8265"):
            check_target(url)


def test_a_system_that_does_not_tell_whose_server_it_is_gets_no_token(monkeypatch):
    monkeypatch.setattr("qdrun.runner.remote.dashboard_login.TABLES", ())
    monkeypatch.setattr("qdrun.runner.remote.dashboard_login.users_of", partial(users_of, tables=("/none/tcp",)))
    with serving(401) as where, pytest.raises(NotOpened, match="does not say whose server that is"):
        check_target(f"http://{where}")


def test_the_cookie_is_the_one_that_ray_reads():
    constants = pytest.importorskip("ray._private.authentication.authentication_constants")
    assert constants.AUTHENTICATION_TOKEN_COOKIE_NAME == COOKIE
