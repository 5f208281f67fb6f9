"""Ray's connection errors in words that say what to do."""

import json
import os
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from runner_helpers import write_config
from typer.testing import CliRunner

from qdrun.runner.cli.app import app
from qdrun.runner.ray_adapter import cluster, compat
from qdrun.runner.ray_adapter.cluster import ClusterError, check_address, translated

MISMATCH = """Version mismatch: The cluster was started with:
    Ray: 2.9.0
    Python: 3.10.1
This process on 10.0.0.1 was started with:
    Ray: 2.60.0
    Python: 3.11.7
"""


class AuthenticationError(Exception):
    """As Ray's class is called."""


@pytest.fixture
def token(tmp_path, monkeypatch):
    path = tmp_path / "token"
    path.write_text("f" * 64)
    path.chmod(0o600)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(path))
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    return path


@pytest.fixture
def closed_port():
    """A port of this machine where nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]  # bound and not listening: it refuses


def test_a_port_where_nothing_listens_is_refused_at_once(closed_port, tmp_path):
    result = CliRunner().invoke(
        app, ["submit", str(write_config(tmp_path)), "--address", f"127.0.0.1:{closed_port}", "--quiet", "--json"]
    )
    data = json.loads(result.stdout)
    assert (result.exit_code, data["schema"], data["exit_code"]) == (4, "qdrun.error/1", 4)
    assert data["error"]["message"] == (
        f"cannot join the Ray cluster at 127.0.0.1:{closed_port}: 127.0.0.1 refuses the connection: no Ray listens on that port\n"
        "  do: `ray status` on that machine says whether Ray runs; `ray start --head --port 6379` starts it"
    )
    assert not (tmp_path / "runs").exists(), "nothing was started"


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("head", "that is no host:port\n  do: write for example head:6379"),
        ("", "that is no host:port\n  do: write for example head:6379"),
        ("head:http", "`http` is no port\n  do: write for example head:6379"),
        ("head:99999", "`99999` is no port"),
        ("ray://head:10001", "an address of Ray Client, which qdrun does not use\n  do: give the host and port"),
        ("gopher://head", "an address that Ray does not know"),
        ("no-such-machine.invalid:6379", "no machine is called no-such-machine.invalid\n  do: check the name"),
    ],
)
def test_a_wrong_address_is_refused_with_a_right_one(address, words, monkeypatch):
    def unknown(where, timeout):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "create_connection", unknown)
    with pytest.raises(ClusterError) as error:
        check_address(address)
    assert str(error.value).startswith(f"cannot join the Ray cluster at {address}: ") and words in str(error.value)


def test_an_address_that_does_not_answer(monkeypatch):
    def silent(where, timeout):
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", silent)
    with pytest.raises(ClusterError, match=r"no answer within 5 s\n  do: check the address, and that no firewall"):
        check_address("10.255.255.1:6379")


def test_an_open_port_is_left_to_ray():
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)
        check_address(f"127.0.0.1:{server.getsockname()[1]}")
        server.accept()[0].close()  # it was asked, and has answered
        server.settimeout(0)
        check_address("auto")
        with pytest.raises(BlockingIOError):
            server.accept()


def test_other_versions_are_named():
    try:
        try:
            raise RuntimeError(MISMATCH)
        except RuntimeError as inner:
            raise ConnectionError("Failed to connect to Ray cluster at h:1") from inner
    except ConnectionError as error:
        said = str(translated(error, "h:1"))
    assert said == (
        "cannot join the Ray cluster at h:1: it runs Ray 2.9.0 and Python 3.10.1, here are Ray 2.60.0 and Python 3.11.7\n"
        "  do: install that Ray and that Python here, or run qdrun on the cluster"
    )


def test_a_wrong_token_a_missing_one_an_empty_one(token, monkeypatch):
    def said(error, address="h:1"):
        return str(translated(error, address))

    refused = ConnectionError("Failed to connect to Ray cluster at h:1")
    assert "another token, another program, or a head that hangs" in said(refused)
    assert f"the token in {token} was sent, which is not the cluster's" in said(refused)
    assert "copy the cluster's token (there: `ray get-auth-token`) into that file" in said(refused)
    token.write_text("")
    assert f"the token file {token} is empty" in said(AuthenticationError("no token"))
    token.unlink()
    missing = said(AuthenticationError("Token authentication is enabled but no authentication token was found"))
    assert f"there is no token in {token}\n  do: copy the cluster's token" in missing and "permissions 0600" in missing
    ours = str(translated(AuthenticationError("no authentication token"), None))
    assert ours.startswith(
        f"cannot start Ray on this machine: there is no token in {token}\n  do: `ray get-auth-token --generate`"
    )
    monkeypatch.setenv("RAY_AUTH_TOKEN", "abc")
    assert "the token in the variable RAY_AUTH_TOKEN was sent" in said(refused)
    assert "abc" not in said(refused)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert "RAY_AUTH_MODE=disabled, so no token was sent\n  do: unset RAY_AUTH_MODE" in said(refused)


def test_ray_s_own_words_are_kept_where_nothing_is_known_about_them(token, monkeypatch, tmp_path):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    said = str(translated(RuntimeError("the plasma store burnt down\nmore"), None))
    assert said == (
        "cannot start Ray on this machine: the plasma store burnt down\n"
        f"  do: look into the logs in {tmp_path}/ray/session_latest/logs"
    )
    assert str(translated(ValueError(""), None)).startswith("cannot start Ray on this machine: ValueError\n")


def test_a_machine_that_is_too_busy_for_ray_is_named(token, monkeypatch, tmp_path):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    said = str(translated(Exception("The current node timed out during startup. This could happen because some ..."), None))
    assert said == (
        "cannot start Ray on this machine: its node was not up within the time that Ray waits, 3 times; the machine is very busy, or the "
        f"node ended\n  do: try again when less runs here; else look into the logs in {tmp_path}/ray/session_latest/logs"
    )


def test_what_ray_raises_is_translated(monkeypatch, ray_folder):
    import ray

    def fail(**options):
        raise ConnectionError("Failed to connect to Ray cluster at somewhere")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", fail)
    monkeypatch.setattr(cluster, "check_address", lambda address: None)
    with pytest.raises(ClusterError, match="something listens there and does not let us in") as error:
        cluster.open_cluster("h:1")
    assert isinstance(error.value.__cause__, ConnectionError) and error.value.exit_code == 4


def test_the_token_is_for_its_owner_alone(token):
    token.chmod(0o644)
    cluster.protect_token()
    assert token.stat().st_mode & 0o777 == 0o600


def test_a_new_token_can_be_read_by_its_owner_alone_from_its_first_byte_on(tmp_path, monkeypatch):
    """Ray would make it with the user's umask, and whoever opened it by then could read it for ever."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    modes, link = [], os.link
    monkeypatch.setattr(os, "link", lambda a, b: (modes.append(os.stat(a).st_mode & 0o777), link(a, b)))
    before = os.umask(0)
    try:
        cluster.make_token()
    finally:
        os.umask(before)
    path = tmp_path / ".ray" / "auth_token"
    token = path.read_text()
    assert modes == [0o600] and path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    assert len(bytes.fromhex(token)) == 32 and [one.name for one in path.parent.iterdir()] == ["auth_token"]
    cluster.make_token()
    assert path.read_text() == token


class Heads:
    """A control plane that ends the call for its life with a status, or answers it."""

    def __init__(self, status):
        self.status = status

    def __enter__(self):
        grpc = pytest.importorskip("grpc")
        status = self.status and getattr(grpc.StatusCode, self.status)

        class Head(grpc.GenericRpcHandler):
            def service(self, details):
                def answer(request, context):
                    if status:
                        context.abort(status, "a text that says nothing")
                    return b""

                known = details.method == "/ray.rpc.NodeInfoGcsService/CheckAlive"
                return grpc.unary_unary_rpc_method_handler(answer) if known else None

        self.server = grpc.server(ThreadPoolExecutor(1), handlers=[Head()])
        port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()
        return f"127.0.0.1:{port}"

    def __exit__(self, *error):
        self.server.stop(None)


@pytest.mark.parametrize(
    ("status", "asks"),
    [("", False), ("UNAUTHENTICATED", True), ("PERMISSION_DENIED", True), ("UNIMPLEMENTED", None), ("UNAVAILABLE", None)],
)
def test_a_cluster_wants_a_token_only_when_it_says_so(monkeypatch, status, asks):
    """The nodes of one without would refuse this process's answers. What gives another answer, as a newer Ray may, is refused."""
    monkeypatch.setattr(compat, "ANSWER_S", 1.0)
    with Heads(status) as head:
        assert compat.asks_for_token(head) is asks
        if asks:
            cluster.check_token_is_wanted("head:6379", head)
        else:
            with pytest.raises(
                cluster.ClusterError, match="has no token" if asks is False else "does not show whether it refuses"
            ):
                cluster.check_token_is_wanted("head:6379", head)
    assert compat.asks_for_token(head) is None  # nobody is there
