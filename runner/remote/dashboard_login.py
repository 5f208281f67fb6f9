"""Opens Ray's dashboard in a browser that is logged in.

The dashboard of Ray takes its token from a cookie. Cookies belong to a host, whatever the port, so a page that this process serves once
on the same host can set it. The token is in no address and on no command line. Only processes of this user get that page, and only a
server of this user, or of root, is sent the cookie. Never imports ray.
"""

from __future__ import annotations

import http.server
import os
import secrets
import threading
from collections.abc import Callable
from contextlib import suppress
from html import escape
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

from ...compiler.errors import QdrunError

COOKIE = "ray-authentication-token"
"""Of Ray; a test compares it with the Ray that is installed."""
WAIT_S, ANSWER_S = 60.0, 5.0
LOOPBACK = ("127.0.0.1", "localhost")
TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
LISTENS = "0A"
PAGE = """<!doctype html><meta charset="utf-8"><title>Ray's dashboard</title>
<meta http-equiv="refresh" content="0; url={url}"><p>Logged in: <a href="{url}">{url}</a></p>"""


class NotOpened(QdrunError, PermissionError):
    """The dashboard is not opened with the token of this user."""

    exit_code = 4


def users_of(port: int, *, listening: bool, remote: int = 0, tables: tuple[str, ...] = TABLES) -> set[int]:
    """The users whose sockets have a local port: that listen there, or that are connected to the port ``remote``.

    Raises:
        OSError: this system has no such table.
    """
    found = set[int]()
    for table in tables:
        for row in Path(table).read_text(encoding="ascii").splitlines()[1:]:
            _, local, other, state, _, _, _, user, *_ = row.split()
            ports = [int(end.rpartition(":")[2], 16) for end in (local, other)]
            if ports == [port, remote] and (state == LISTENS) == listening:
                found.add(int(user))
    return found


def check_target(url: str) -> None:
    """Make sure that the cookie of ``url`` reaches a server of this user alone.

    Raises:
        NotOpened: it would not, or that is not known.
    """
    parts = urlsplit(url)
    if parts.hostname not in LOOPBACK or parts.scheme != "http":
        raise NotOpened(
            f"cannot log a browser in to {url}: only a page of the same host can\n"
            f"  do: `ssh -L 8265:127.0.0.1:8265 {parts.hostname}`, then `qdrun dashboard --address http://127.0.0.1:8265`;\n"
            "      or paste the token into the page: `ray get-auth-token` prints it"
        )
    try:
        users = users_of(parts.port or 80, listening=True)
    except OSError as error:
        raise NotOpened(
            f"cannot log a browser in to {url}: this system does not say whose server that is ({error})\n"
            "  do: paste the token into the page: `ray get-auth-token` prints it"
        ) from error
    if not users or not users <= {0, os.getuid()}:
        who = ", ".join(map(str, sorted(users))) or "unknown"
        raise NotOpened(
            f"cannot log a browser in to {url}: the server there belongs to another user ({who}), who would get your token\n"
            "  do: look at `qdrun dashboard` of a run that is running"
        )


class Login:
    """A page on this host, served once, that sets the cookie and leads to the dashboard. ``with Login(url, token) as login``.

    Attributes:
        link: its address.

    Raises:
        NotOpened: see ``check_target``.
    """

    def __init__(self, url: str, token: str) -> None:
        check_target(url)
        secret = secrets.token_urlsafe(24)
        self._done = threading.Event()
        login = self

        class Page(http.server.BaseHTTPRequestHandler):
            timeout = ANSWER_S

            def do_GET(self) -> None:
                if not login._lets_in(self, secret):
                    self.send_error(404)
                    return
                text = PAGE.format(url=escape(url)).encode()
                self.send_response(200)
                self.send_header("Set-Cookie", f"{COOKIE}={token}; Path=/; HttpOnly; SameSite=Strict")
                for name, value in (
                    ("Content-Type", "text/html; charset=utf-8"),
                    ("Content-Length", str(len(text))),
                    ("Cache-Control", "no-store"),
                    ("Referrer-Policy", "no-referrer"),
                ):
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text)
                login._done.set()

            def log_message(self, format: str, *args: object) -> None:
                """Write nothing: the line would have the secret."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="login", daemon=True)
        self.link = f"http://{urlsplit(url).hostname}:{self._server.server_port}/{secret}"

    def _lets_in(self, request: http.server.BaseHTTPRequestHandler, secret: str) -> bool:
        """Whether a request has the secret and comes from a process of this user, for the first time."""
        if self._done.is_set() or not secrets.compare_digest(request.path.encode(), f"/{secret}".encode()):
            return False
        with suppress(OSError):
            return users_of(request.client_address[1], listening=False, remote=self._server.server_port) == {os.getuid()}
        return False

    def wait(self, seconds: float = WAIT_S) -> bool:
        """Wait until the page has been opened; whether it has."""
        return self._done.wait(seconds)

    def __enter__(self) -> Login:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def open_page(url: str, token: str, say: Callable[[str], None]) -> bool:
    """Open the dashboard in the browser of this machine, logged in; where there is none, ``say`` which address to open. Whether it was.

    Raises:
        NotOpened: see ``check_target``.
    """
    import webbrowser

    with Login(url, token) as login:
        try:
            opened = webbrowser.open(login.link)
        except webbrowser.Error:
            opened = False
        if not opened:
            say(f"no browser starts here: open {login.link} within {WAIT_S:g} s")
        return login.wait()


__all__ = ["COOKIE", "Login", "NotOpened", "check_target", "open_page", "users_of"]
