"""Where a token of Ray is while a run goes on, and who else could reach into its Ray: files, arguments, logs, ports, the run's folder."""

import http.server
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
from runner_helpers import FAKES, write_config
from typer.testing import CliRunner

from qdrun.runner.cli.app import app
from qdrun.runner.engine.resume import config_of
from qdrun.runner.ray_adapter import jobs_api
from qdrun.runner.ray_adapter.known_clusters import DASHBOARD, remember, remembered, trusted
from qdrun.runner.store.encoding import document, read_document
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.layout import ConfigChanged, create
from qdrun.runner.study.prepare import prepare

pytest.importorskip("ray")
import psutil

QDRUN = [sys.executable, "-c", "from qdrun.runner.cli.app import main; main()"]


def readable(folder):
    """All files below a folder that this process can read, without those that it may not look at."""
    for path in Path(folder).rglob("*"):
        if path.is_file() and not path.is_symlink():
            yield path


def until(happens, seconds=60.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := happens():
            return found
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds:g} s")


@pytest.fixture
def home():
    """A short folder that is the user's home, the place for Ray's sockets and the machine's account in one."""
    with tempfile.TemporaryDirectory(prefix="qs", dir="/tmp", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o755)  # as other homes
        yield Path(folder)


def environment(home):
    ours = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    return ours | {"HOME": str(home), "RAY_TMPDIR": str(home), "QDRUN_CACHE_DIR": str(home / "cache")}


@pytest.mark.slow
def test_the_token_of_a_run_and_its_ray_are_its_user_s_alone(home, tmp_path):
    """The first run of a user, of a job whose file imports Ray before this package has set anything."""
    job = tmp_path / "own.py"
    job.write_text("import ray\n" + FAKES.read_text() + "\n\nclass Own(Quadratic):\n    pass\n")
    config = write_config(tmp_path, target="own.py:Own", params={"sleep_s": 1.0}, sweep={"x": {"linspace": [0, 1, 8]}})
    before = os.umask(0o022)
    try:
        run = subprocess.Popen(
            [*QDRUN, "submit", config, "--quiet", "--output", str(tmp_path / "runs")],
            env=environment(home),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=tmp_path,
            text=True,
        )
    finally:
        os.umask(before)
    path, modes = home / ".ray" / "auth_token", set()
    try:
        until(path.exists)
        journal = until(lambda: next(tmp_path.glob("runs/*/events/*.jsonl"), None))
        until(lambda: modes.add(path.stat().st_mode & 0o777) or '"started"' in journal.read_text() or run.poll() is not None)
        token = path.read_bytes().strip()
        assert len(token) >= 32 and modes == {0o600}, modes
        ours = psutil.Process(run.pid).children(recursive=True)
        ports = {c.laddr.port for p in ours if p.is_running() for c in _listening(p)}
        (session,) = home.glob("qdrun-ray-*")
        assert session.stat().st_mode & 0o777 == 0o700, "Ray makes its own folders writable for all"
        sockets = list(session.rglob("sockets/*"))
        assert any(socket.name == "raylet" for socket in sockets), sockets
        for process in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                assert token not in process.read_bytes(), process
            except OSError:
                continue
        for place in (tmp_path, home):
            for file in readable(place):
                if file != path:
                    assert token not in file.read_bytes(), file
        assert ports
        for port in ports:  # without a password
            assert "# HELP" not in _page(port), port
    finally:
        said = run.communicate(timeout=120)[0]
    assert run.returncode == 0, said
    assert token.decode() not in said
    for file in readable(tmp_path):
        assert token not in file.read_bytes(), file
    assert list(home.glob("qdrun-ray-*")) == [], "Ray has ended"


def _listening(process):
    try:
        return [c for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    except psutil.Error:
        return []


def _page(port):
    """What somebody without a token reads at ``/metrics`` of a port."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=3) as page:
            return re.sub(r"\s+", " ", page.read().decode(errors="replace"))
    except (OSError, ValueError, urllib.error.HTTPError):
        return ""
    except Exception as error:  # no HTTP at all
        return type(error).__name__


# ---- a run's folder that somebody else has written


@contextmanager
def listener(status=200, more=()):
    """A server that notes what it is sent; the headers of each request, and its address."""
    seen = []

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append((self.path, dict(self.headers)))
            self.send_response(status)
            for name, value in more:
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(b'{"ray_version": "2.60.0"}')

        do_POST = do_PUT = do_DELETE = do_GET

        def log_message(self, *words):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield seen, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def secret(tmp_path, monkeypatch):
    path = tmp_path / "token"
    path.write_text("5ec7e7" * 10)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("RAY_AUTH_TOKEN", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    return path.read_text()


def hostile(tmp_path, address, *, began):
    """A run's folder whose every file names a dashboard of somebody else's choice."""
    run = create(prepare(write_config(tmp_path))[0], tmp_path / "runs")
    jobs_api.note_launch(run, address=address, job=run.name)
    if began:
        with Journal(run) as journal:
            journal.write("ray_ready", sync=True, cores=1, node_memory_bytes=1, dashboard=address)
        for name in ("owners/000001.json", "heartbeat.json"):  # a process of another machine, heard of a moment ago
            path = run.path / name
            path.write_bytes(document(read_document(path.read_bytes()) | {"host": "elsewhere", "t": time.time()}))
        (run.path / "owners/000001.over").unlink(missing_ok=True)
    return run


@pytest.mark.parametrize("words", [["cancel"], ["resume"], ["status"], ["dashboard"], ["watch", "--json"]])
def test_the_token_is_sent_to_no_address_that_only_a_run_s_folder_names(tmp_path, secret, words):
    with listener() as (seen, address):
        run = hostile(tmp_path, address, began=words[0] == "resume")
        result = CliRunner().invoke(app, [words[0], run.uri, *words[1:]])
        sent = [headers for _, headers in seen if secret in json.dumps(headers)]
    assert not sent and secret not in result.output
    if words[0] == "cancel":
        assert result.exit_code == 4 and f"`qdrun cancel {run.uri} --address {address}`" in result.output
    if words[0] == "resume":
        assert "is run by process" in result.output, "its silence is waited for"
    if words[0] != "dashboard":
        assert not seen


def test_the_token_is_sent_to_addresses_of_the_user_and_of_the_user_s_own_record(tmp_path, secret, monkeypatch):
    with listener() as (seen, address):
        run = hostile(tmp_path, "http://192.0.2.1:8265", began=False)
        assert trusted(run) == []
        CliRunner().invoke(app, ["cancel", run.uri, "--address", address])
        assert seen and all(headers["Authorization"] == f"Bearer {secret}" for _, headers in seen)
    remember(run, "http://joined:8265", DASHBOARD)
    monkeypatch.setenv("RAY_ADDRESS", "https://mine:8265")
    assert trusted(run, "http://given:8265", None) == ["http://given:8265", "https://mine:8265", "http://joined:8265"]
    (record,) = (tmp_path / "state" / "qdrun" / "runs").iterdir()
    assert record.stat().st_mode & 0o777 == 0o600 and record.parent.stat().st_mode & 0o777 == 0o700
    moved = type(run)(str(run.path.rename(tmp_path / "moved")))
    assert remembered(moved) == {}, "another folder"


def test_a_redirection_is_not_followed_with_the_token(secret):
    with listener() as (seen, there), listener(307, [("Location", f"{there}/api/jobs/")]) as (first, here):
        with pytest.raises(urllib.error.HTTPError):
            jobs_api.ask(here, "/api/jobs/")
        assert len(first) == 1 and seen == []


def test_a_run_goes_on_with_the_config_in_its_folder_and_not_with_the_one_that_it_names(tmp_path):
    """The folder may name any file; what lies there is compared, and neither run nor imported."""
    config = write_config(tmp_path)
    run = create(prepare(config)[0], tmp_path / "runs")
    other = tmp_path / "other"
    other.mkdir()
    ran = tmp_path / "ran"
    (other / "evil.py").write_text(f"open({str(ran)!r}, 'w')\n" + FAKES.read_text())
    evil = write_config(other, target="evil.py:Quadratic")
    info = run.info() | {"config": str(evil)}
    (run.path / "run.json").write_bytes(document(info))
    with pytest.raises(ConfigChanged, match=r"has changed since .*: job.target"):
        config_of(run)
    forced, _ = config_of(run, force=True)
    assert forced.target.file == str(FAKES) and not ran.exists()
    evil.unlink()
    assert config_of(run)[0].target == forced.target, "the copy is enough"
    config_of(run, write_config(other, target="evil.py:Quadratic"), force=True)
    assert ran.exists(), "what the user names is run"
