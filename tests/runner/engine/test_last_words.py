"""What a row says of a process that died: the signal and the stack of its own log, and where that is."""

import signal
import subprocess
import sys

import pytest

from qdrun.runner.engine.failures import counted
from qdrun.runner.ray_adapter.worker_deaths import TAIL, last_words, left_behind, signal_of
from qdrun.runner.store.files import open_files
from qdrun.runner.workers import WorkerSpec

RAY = {"type": "WorkerCrashedError", "message": "The actor died unexpectedly before finishing this task.", "traceback": ""}
STACKS = """*** SIGSEGV received at time=1795300358 on cpu 0 ***
Fatal Python error: Segmentation fault

Thread 0x00007f6cd7ebb6c0 (most recent call first):
  File "/lib/threading.py", line 327 in wait

Current thread 0x00007f6cd96be6c0 (most recent call first):
  File "/home/me/wave.py", line 33 in run
  File "/q/jobs/session.py", line 60 in run

Extension modules: yaml._yaml (total: 15)
"""


@pytest.fixture(params=["disk", "memory"])
def spec(request, tmp_path):
    run = str(tmp_path / "run") if request.param == "disk" else f"memory://words/{tmp_path.name}"
    return WorkerSpec(run=run, owner=2, token="t", device="cuda:0", backend="cuda", which=0, lanes=1, number=4)


def write(spec, text):
    open_files(spec.run).put("workers/cuda%3A0/w4-owner2/stderr.log", text.encode())


def test_a_fatal_error_is_named_with_the_stack_of_its_thread(spec):
    write(spec, "x" * 2 * TAIL + "\n" + STACKS)
    error = last_words(RAY, spec)
    first, see = error["message"].splitlines()
    assert (error["type"], first) == ("WorkerCrashedError", "its process died: Segmentation fault")
    assert see == f"  see: `qdrun logs {spec.run} --workers`, workers/cuda%3A0/w4-owner2/stderr.log"
    assert error["traceback"].splitlines() == [
        "WorkerCrashedError: its process died: Segmentation fault",
        '  File "/home/me/wave.py", line 33 in run',
        '  File "/q/jobs/session.py", line 60 in run',
        see,
    ]
    assert counted(error, 3)["message"].startswith("its process died: Segmentation fault (3 attempts)\n  see: ")


def test_the_log_on_the_host_of_the_worker_counts_before_the_store_has_it(spec, tmp_path):
    (tmp_path / "begun").write_text("                  7\n                  0\n")
    (tmp_path / "stderr.log").write_text("x" * 2 * TAIL + "\n" + STACKS)
    begun, text = left_behind(str(tmp_path / "begun"))
    assert begun == {7}
    error = last_words(RAY, spec, text)
    assert signal_of(error) == "Segmentation fault" and "wave.py" in error["traceback"]
    (tmp_path / "stderr.log").unlink()
    assert left_behind(str(tmp_path / "begun")) == ({7}, None)
    assert left_behind("") == (None, None)


@pytest.mark.parametrize("number", ["SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL"])
def test_the_signals_that_mistakes_raise_are_known_by_their_words(spec, number):
    code = f"import faulthandler, os, signal; faulthandler.enable(); os.kill(os.getpid(), signal.{number})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == -getattr(signal, number)
    assert signal_of(last_words(RAY, spec, done.stderr))
    assert not signal_of(last_words(RAY, spec, "")) and not signal_of(RAY)


@pytest.mark.parametrize("place", ["error: {}Segmentation fault", "error: Segmentation fault{}"])
def test_a_signal_is_known_where_another_handler_writes_into_the_line_that_names_it(spec, place):
    ray = "[2026-11-23 13:40:42,414 E 23863 23955] logging.cc:474:     @     0x7f48  (unknown)  (unknown)\n"
    write(spec, STACKS.replace("error: Segmentation fault", place.format(ray)))
    error = last_words(RAY, spec)
    assert signal_of(error) == "Segmentation fault"
    assert error["traceback"].splitlines()[1] == '  File "/home/me/wave.py", line 33 in run'


@pytest.mark.parametrize("text", ["", "hello\n"])
def test_a_process_that_left_no_word_is_said_to_have_been_killed_or_ended(spec, text):
    write(spec, text)
    error = last_words(RAY, spec)
    assert error["message"].startswith("its process died without a word: killed, perhaps for its memory")
    assert "os._exit" in error["message"] and "stderr.log" in error["message"] and error["traceback"] == ""


def test_a_log_that_is_not_there_is_no_proof_of_silence(spec):
    """Object stores get the log of a worker every few seconds."""
    said = last_words(RAY, spec)["message"]
    assert said.startswith(
        "its process died before its log was in the run's folder: by a signal, killed, perhaps for its memory"
    )


def test_a_fatal_error_without_a_stack_is_still_named(spec):
    write(spec, "Fatal Python error: Aborted\n")
    assert last_words(RAY, spec)["message"].startswith("its process died: Aborted\n")
