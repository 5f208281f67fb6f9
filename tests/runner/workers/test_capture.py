"""What trials print goes to their own files; what the process prints to the worker's."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from lane_helpers import Bench, at_once, record

from qdrun.compiler.ir.nodes import Print
from qdrun.compiler.runtime.cpu import device
from qdrun.runner.store.attempts import Attempt, read_log
from qdrun.runner.workers import capture

HERE = Path(__file__).parent


def logs(bench, name, number=1):
    """stdout and stderr of an attempt."""
    attempt = Attempt(name, number, bench.owner.number)
    return [read_log(bench.folder, attempt, stream).decode("utf-8", "surrogateescape") for stream in ("stdout", "stderr")]


def test_lanes_that_print_at_once_do_not_mix(bench):
    worker = bench.worker(lanes=2)
    at_once(*(lambda k=k: worker.run(bench.batch(f"t{k}", number=k, mood="print")) for k in (1, 2)))
    for k in (1, 2):
        out, err = logs(bench, f"t{k}")
        assert out == "".join(f"out of {k} line {i}\n" for i in range(200)) + "bytes \udcff\n"
        assert err.splitlines() == [f"err of {k} line {i}" for i in range(200)]


@pytest.mark.parametrize(
    ("backend", "which", "threads"), [("cpu", None, 1), ("cpu", None, 2), ("cuda", "emulated", 1)], ids=["1", "2", "emulated"]
)
def test_prints_of_kernels_go_to_their_trial_whatever_thread_runs_them(bench, backend, which, threads):
    worker = bench.worker("Spin", lanes=2, backend=backend, which=which, limits={"threads": threads})
    batches = [bench.batch(f"t{k}", n=3, steps=2, k=float(k), say=True) for k in (1, 2)]
    ends = at_once(*(lambda b=b: worker.run(b) for b in batches))
    assert [record(e)["status"] for e in ends] == ["done", "done"]
    for k in (1, 2):
        assert sorted(logs(bench, f"t{k}")[0].splitlines()) == sorted(f"kernel of {k} item {i}" for i in range(50))


def test_a_thread_of_the_pool_prints_for_the_trial_whose_kernel_it_runs(bench, monkeypatch, capsys):
    """A kernel's context is made known in the lane; any thread may run its loop."""
    monkeypatch.setattr(device, "print_text", lambda site, values: f"{site.parts[0]} {values}\n")

    def print_from_elsewhere(address):
        thread = threading.Thread(target=device.print_record, args=(address, 0, [7]))
        thread.start()
        thread.join()

    with capture.captured(bench.folder, Attempt("t1", 1, 1)):
        device.register_context(-8, SimpleNamespace(prints=[Print(("of the trial",))]))
        print_from_elsewhere(-8)
    device.register_context(-16, SimpleNamespace(prints=[Print(("of nobody",))]))
    print_from_elsewhere(-16)
    for address in (-8, -16):
        device.unregister_context(address)
    assert logs(bench, "t1")[0] == "of the trial [7]\n"
    assert capsys.readouterr().out == "of nobody [7]\n"


def test_each_attempt_of_a_trial_has_its_own_files(bench):
    worker = bench.worker(lanes=1)
    worker.run(bench.batch("t1", 1, number=1, mood="print"))
    worker.run(bench.batch("t1", 2, number=1))
    assert logs(bench, "t1", 1)[0] and logs(bench, "t1", 2) == ["", ""]


def test_the_process_has_its_streams_back_when_the_last_worker_is_closed(bench):
    before = sys.stdout, sys.stderr
    first, second = bench.worker(), bench.worker()
    assert isinstance(sys.stdout, capture.Router)
    first.close()
    assert isinstance(sys.stdout, capture.Router)
    second.close()
    assert (sys.stdout, sys.stderr) == before


def test_what_comes_after_the_end_of_a_trial_goes_to_the_process(bench, capsys):
    capture.install()
    try:
        with capture.captured(bench.folder, Attempt("t1", 1, 1)):
            print("within")
            kept = sys.stdout._now()
        kept.write("late\n")
        print("beside")
    finally:
        capture.uninstall()
    assert logs(bench, "t1")[0] == "within\n"
    assert capsys.readouterr().out == "late\nbeside\n"


def test_an_object_store_gets_the_logs_of_a_trial_when_it_ends():
    bench = Bench("memory://captured/runs")
    worker = bench.worker(lanes=1)
    try:
        worker.run(bench.batch("t1", number=1, mood="print"))
        assert logs(bench, "t1")[0].startswith("out of 1 line 0\n")
    finally:
        worker.close()


PROCESS = """
import sys
sys.path.insert(0, {here!r})
from lane_helpers import Bench, record
bench = Bench({uri!r})
worker = bench.worker(lanes=1, own_process=True)
print(worker.hello().log, flush=True, file=sys.__stderr__)
print("the process itself")
{body}
worker.close()
print("after the end", flush=True)
"""


def in_a_process(tmp_path, body, uri=None):
    """A worker that has a process for itself; how that ended, and the folder of its log."""
    text = PROCESS.format(here=str(HERE), uri=uri or str(tmp_path / "runs"), body=textwrap.dedent(body))
    ended = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=240, check=False)
    found = list((tmp_path / "runs").glob("*/workers/dev0/w1"))
    return ended, found[0] if found else None


def test_descriptors_threads_and_children_go_to_the_log_of_the_worker(tmp_path):
    body = """
    assert record(worker.run(bench.batch("t1", mood="child")))["status"] == "done"
    assert record(worker.run(bench.batch("t2", mood="warn")))["status"] == "done"
    """
    ended, log = in_a_process(tmp_path, body)
    assert ended.returncode == 0, ended.stderr + (log / "stderr.log").read_text()
    assert ended.stdout == "after the end\n"
    lines = (log / "stdout.log").read_text().splitlines()
    assert sorted(lines) == ["a child of the trial", "a thread of the job", "the process itself", "written to descriptor 1"]
    assert not list((tmp_path / "runs").glob("*/trials/t1/*/stdout.log"))
    (err,) = (tmp_path / "runs").glob("*/trials/t2/*/stderr.log")  # Python's own warnings go where `sys.stderr` goes
    assert "UserWarning: warned by 0" in err.read_text()


FULL = """
import errno, os, sys
sys.path.insert(0, {here!r})
from pathlib import Path
from lane_helpers import Bench, record
from qdrun.runner.workers.spec import log_folder
bench = Bench({uri!r})
log = bench.folder.path / log_folder("dev0", 1, 1)
{body}
worker = bench.worker(lanes=1, own_process=True)
worker.hello()
print("dropped" * 9000, flush=True)
print("dropped", file=sys.stderr)
assert record(worker.run(bench.batch("t1", mood="print")))["status"] == "done"
worker.close()
print("after the end", flush=True)
"""
NO_ROOM = """
def refuse(*args, **options):
    raise OSError(errno.ENOSPC, "No space left on device")
real, os.mkdir = os.mkdir, refuse
import atexit; atexit.register(setattr, os, "mkdir", real)
"""
FULL_FILES = """
log.mkdir(parents=True)
for stream in ("stdout", "stderr"):
    (log / f"{stream}.log").symlink_to("/dev/full")
"""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device that is always full")
@pytest.mark.parametrize(("body", "kept"), [(FULL_FILES, ""), (NO_ROOM, "dropped")], ids=["files", "folder"])
def test_a_full_disk_fails_no_worker_and_nobody_who_prints(tmp_path, body, kept):
    """Where its log cannot be made, the process keeps the descriptors that it had."""
    text = FULL.format(here=str(HERE), uri=str(tmp_path / "runs"), body=body)
    ended = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.endswith("after the end\n") and ended.stdout.startswith(kept)
    assert bool(kept) == ("dropped" in ended.stdout)


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_a_process_that_dies_leaves_the_stacks_of_its_threads(tmp_path):
    body = """
    import jobs_for_lanes, ctypes
    worker._lanes.run = lambda *a: ctypes.string_at(0)
    worker.run(bench.batch("t1"))
    """
    ended, log = in_a_process(tmp_path, body)
    assert ended.returncode == -signal.SIGSEGV
    said = (log / "stderr.log").read_text()
    assert "Fatal Python error: Segmentation fault" in said
    assert "lanes.py" in said  # the lane's own stack


def test_the_log_of_a_worker_reaches_an_object_store_at_its_end(tmp_path):
    body = """
    worker.close()
    data = bench.folder.files.read("workers/dev0/w1/stdout.log")
    assert data == b"the process itself\\n", data
    """
    ended, _ = in_a_process(tmp_path, body, uri="memory://logs/runs")
    assert ended.returncode == 0, ended.stderr
