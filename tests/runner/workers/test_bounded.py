"""The log of a worker's process never grows beyond its limit, whoever writes to it and however fast."""

import os
import random
import subprocess
import sys
import textwrap
import threading

import pytest

from qdrun.runner.store.attempts import LOG_BYTES
from qdrun.runner.workers.bounded_log import BoundedFile, copy

NOTE = 80
"""Bytes of the line that says what is gone."""


def test_a_log_that_is_too_long_keeps_its_beginning_and_its_end_and_says_what_is_gone(tmp_path):
    path = tmp_path / "log"
    file = BoundedFile(str(path), 1000)
    file.write(b"first".ljust(250, b"a"))
    for _ in range(3):
        file.write(b"a" * 250)
    assert path.stat().st_size == 1000
    file.write(b"last")
    assert (
        path.read_bytes()
        == b"first".ljust(250, b"a") + b"\n[500 bytes were dropped here: the log was full]\n" + b"a" * 250 + b"last"
    )


@pytest.mark.parametrize("seed", range(20))
def test_no_write_makes_a_log_longer_than_its_limit_and_all_that_is_gone_is_counted(tmp_path, seed):
    rng, path, limit = random.Random(seed), tmp_path / "log", 2000
    file, written, longest = BoundedFile(str(path), limit), b"", 0
    for k in range(400):
        data = f"{k:04} ".encode().ljust(rng.randint(5, file.chunk), b".")
        file.write(data)
        written += data
        longest = max(longest, path.stat().st_size)
    assert limit // 2 < longest <= limit
    head, _, tail = path.read_bytes().partition(b"\n[")
    count, _, tail = tail.partition(b" bytes were dropped here: the log was full]\n")
    assert head == written[: limit // 4] and written.endswith(tail.rpartition(b"\n")[2]) and b"0399 " in tail
    notes = len(written) - (len(head) + int(count) + len(tail))
    assert abs(notes) <= NOTE * len(written) // (limit // 4)  # earlier notes are among what was dropped


def test_two_files_are_copied_until_nobody_can_write_to_them(tmp_path):
    pipes = [os.pipe() for _ in range(2)]
    paths = {read: str(tmp_path / f"log{k}") for k, (read, _) in enumerate(pipes)}
    thread = threading.Thread(target=copy, args=(1 << 20, paths))
    thread.start()
    os.write(pipes[1][1], b"second")
    os.close(pipes[1][1])
    os.write(pipes[0][1], b"first")
    os.close(pipes[0][1])
    thread.join(30)
    assert not thread.is_alive()
    assert [(tmp_path / f"log{k}").read_bytes() for k in range(2)] == [b"first", b"second"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device that is always full")
def test_what_finds_no_room_is_dropped_and_the_copy_goes_on(tmp_path):
    read, write = os.pipe()
    thread = threading.Thread(target=copy, args=(1000, {read: "/dev/full"}))
    thread.start()
    for _ in range(100):
        os.write(write, b"x" * 1000)
    os.close(write)
    thread.join(30)
    assert not thread.is_alive()


PROCESS = """
import ctypes, os, subprocess, sys
from qdrun.runner.store.layout import RunFolder
from qdrun.runner.workers.capture import ProcessLog
log = ProcessLog(RunFolder({uri!r}), "workers/d/w1")
os.write(1, b"it begins\\n")
{body}
os.write(1, b"\\nit ends\\n")
log.close()
"""
NATIVE = """
many = b"x" * (100 << 20)
assert ctypes.PyDLL(None).write(1, many, ctypes.c_size_t(len(many))) == len(many)  # no other thread of Python runs meanwhile
"""
CHILD = """
subprocess.run([sys.executable, "-c", "import os\\nfor _ in range(100): os.write(1, b'x' * (1 << 20))"], check=True)
"""


@pytest.mark.parametrize("body", [NATIVE, CHILD], ids=["native code", "a child process"])
def test_100_mb_in_a_second_leave_a_log_within_its_limit(tmp_path, body):
    (tmp_path / "run").mkdir()
    path, sizes = tmp_path / "run/workers/d/w1/stdout.log", []
    text = PROCESS.format(uri=str(tmp_path / "run"), body=textwrap.dedent(body))
    process = subprocess.Popen([sys.executable, "-c", text])
    while process.poll() is None:
        if path.exists():
            sizes.append(path.stat().st_size)
    assert process.returncode == 0 and LOG_BYTES // 2 < max(sizes) <= LOG_BYTES
    said = path.read_bytes()
    assert len(said) <= LOG_BYTES and said.startswith(b"it begins\n") and said.endswith(b"\nit ends\n")
    assert said.count(b"bytes were dropped here") <= 2


def test_what_a_process_printed_before_it_was_killed_is_in_its_log(tmp_path):
    (tmp_path / "run").mkdir()
    body = "os.write(1, b'y' * 5_000_000); os.kill(os.getpid(), 9)"
    process = subprocess.Popen([sys.executable, "-c", PROCESS.format(uri=str(tmp_path / "run"), body=body)])
    assert process.wait(60) == -9
    path = tmp_path / "run/workers/d/w1/stdout.log"
    for _ in range(3000):
        if path.stat().st_size == 5_000_010:
            return
        threading.Event().wait(0.01)
    pytest.fail(f"{path.stat().st_size} bytes")
