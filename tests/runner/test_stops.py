"""Requests to stop: counted once, kept when native code replaces the handlers, and never waited for without end."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from qdrun.runner.engine import writer_threads
from qdrun.runner.engine.writer_threads import Patience, patiently
from qdrun.runner.stops import Stops, counted_signals, join
from qdrun.runner.store.files import StorageLost

PATIENCE_S = 30.0


def until(what):
    end = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("handler", [0, 1], ids=["default", "ignored"])
def test_a_handler_that_native_code_replaces_is_put_back(number, handler):
    """Ray does that when a process joins it, and when it leaves, from whatever thread."""
    before = signal.signal(number, signal.default_int_handler)
    take, get = ctypes.pythonapi.PyOS_setsig, ctypes.pythonapi.PyOS_getsig
    take.restype = get.restype = ctypes.c_void_p
    take.argtypes, get.argtypes = [ctypes.c_int, ctypes.c_void_p], [ctypes.c_int]
    try:
        with counted_signals(stops := Stops()):
            ours = get(number)
            thread = threading.Thread(target=take, args=(number, handler))
            thread.start()
            thread.join()
            until(lambda: get(number) == ours)
            os.kill(os.getpid(), number)
            until(lambda: stops.asked)
    finally:
        signal.signal(number, before)


def test_a_request_to_a_run_of_a_search_is_one_to_the_search():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with counted_signals(outer := Stops()):
            with counted_signals(inner := Stops()):
                os.kill(os.getpid(), signal.SIGINT)
                until(lambda: inner.asked)
            assert outer.asked == 1
            os.kill(os.getpid(), signal.SIGINT)
            until(lambda: outer.asked == 2)
    finally:
        signal.signal(signal.SIGINT, before)


COMMAND = """
import sys, threading, time
from qdrun.runner import stops
stops.END_S = stops.HURRY_S = 0.1
stops.is_command()
with stops.counted_signals(found := stops.Stops()):
    print("ready", flush=True)
    threading.Lock().acquire(); lock = threading.Lock(); lock.acquire(); lock.acquire()  # for ever
"""
LEAVES = """
import os, signal, sys
from qdrun.runner import stops
signal.signal(signal.SIGTERM, signal.SIG_DFL)
stops.is_command()
with stops.counted_signals(stops.Stops()):
    pass
os.kill(os.getpid(), signal.SIGTERM)
sys.exit(3)
"""


def test_a_command_that_hangs_ends_at_the_second_request_and_says_so():
    process = subprocess.Popen([sys.executable, "-c", COMMAND], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130 and said.startswith("interrupted: the command does not end by itself")


def test_a_signal_after_the_run_is_over_changes_no_exit_code():
    assert subprocess.run([sys.executable, "-c", LEAVES], check=False, timeout=PATIENCE_S).returncode == 3


class Asked:
    """Stop requests that a test makes."""

    def __init__(self, count=0):
        self.count = count


@pytest.mark.parametrize(
    ("before", "waited", "more", "over"),
    [
        (0, 10.0, 0, False),
        (0, 10.0, 1, False),
        (0, 1.0, 2, False),
        (0, 10.0, 2, True),
        (1, 11.0, 1, True),
        (1, 10.0, 0, False),
        (2, 1.0, 0, False),
        (2, 6.0, 0, False),
        (2, 11.0, 0, True),
        (0, 4000.0, 0, True),
    ],
)
def test_the_store_is_waited_for_until_a_second_request_or_the_end_of_patience(before, waited, more, over):
    clock, asked = [0.0], Asked(before)
    patience = Patience(asked, lambda: clock[0])
    clock[0], asked.count = waited, before + more
    assert patience.over is over


def test_a_call_that_the_store_never_answers_ends_with_the_command_that_goes_on(monkeypatch):
    monkeypatch.setattr(writer_threads, "STALL_S", 0.05)
    monkeypatch.setattr(writer_threads, "HURRY_S", 0.1)
    asked, notes, door = Asked(), [], threading.Event()

    def note(text):
        notes.append(text)
        asked.count = 2

    with pytest.raises(
        StorageLost, match=r"^the run ends without its store: it has not answered.*\n.*`qdrun resume runs/r`"
    ) as said:
        patiently(door.wait, "the end waits", "runs/r", asked, note)
    door.set()
    assert said.value.exit_code == 5 and notes == [
        "the store does not answer; the end waits; Ctrl-C twice ends the run without it"
    ]


def test_a_call_gives_its_value_or_its_error():
    assert patiently(lambda: 3, "", "", Asked(), print) == 3
    with pytest.raises(ZeroDivisionError):
        patiently(lambda: 1 // 0, "", "", Asked(), print)


def test_a_thread_is_not_waited_for_once_the_user_is_in_a_hurry():
    door = threading.Event()
    thread = threading.Thread(target=door.wait, daemon=True)
    thread.start()
    assert not join(thread, Stops(asked=2)) and not join(thread, Stops(), 0.05)
    door.set()
    assert join(thread, Stops())
