"""What lies or changes around a run and must not matter: edits of its code, files in the working directory, a proxy that listens."""

import socket
import threading
from contextlib import suppress
from pathlib import Path

from . import jobs

VARIABLES = [name for word in ("http_proxy", "https_proxy", "all_proxy") for name in (word, word.upper())]
RIGHT, WRONG = "number + salt / 7", "number + salt / 9"


def own_job(folder):
    """A copy of the jobs beside a file that imports them; the file."""
    code = folder / "code"
    code.mkdir(exist_ok=True)
    text = Path(jobs.__file__).read_text()
    assert RIGHT in text
    (code / "helper.py").write_text(text)
    (code / "own.py").write_text("from helper import Batched, Indexed, Shaken\n")
    return code / "own.py"


def edit(folder):
    """Change the numbers of the copied jobs."""
    helper = folder / "code" / "helper.py"
    helper.write_text(helper.read_text().replace(RIGHT, WRONG))


def elsewhere(folder):
    """A working directory with modules that the job imports, and that would be wrong."""
    away = folder / "away"
    away.mkdir(exist_ok=True)
    text = Path(jobs.__file__).read_text().replace(RIGHT, WRONG)
    (away / "helper.py").write_text(text)
    for name in ("numpy", "pydantic", "qdrun", "json", "random"):
        (away / f"{name}.py").write_text("raise SystemExit('a module of the working directory was imported')\n")
    return away


class Proxy:
    """A program that all variables name as the proxy, and that notes what it is sent."""

    def __init__(self):
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.seen = []
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def environment(self):
        """The variables."""
        place = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        return dict.fromkeys(VARIABLES, place) | {"no_proxy": "", "NO_PROXY": ""}

    def _serve(self):
        with suppress(OSError):
            while True:
                one, _ = self._socket.accept()
                one.settimeout(1)
                with one, suppress(OSError):
                    self.seen.append(one.recv(1 << 16))
                    one.sendall(b"HTTP/1.1 502 no\r\nContent-Length: 0\r\n\r\n")

    def close(self):
        """What was wrong."""
        self._socket.close()
        return [f"the proxy was sent {data[:120]!r}" for data in self.seen]
