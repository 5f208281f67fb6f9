"""Runs in a bucket, against moto's server, which plays S3. With the lowest versions, where moto is not installed, they are skipped."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request

import pytest

from qdrun.runner.api import load
from qdrun.runner.store.files import StorageUnknown, open_files
from qdrun.runner.store.layout import all_runs
from qdrun.runner.store.replay import replay

needs = "needs an S3 to talk to: pip install 'moto[s3]' flask flask-cors s3fs"
pytest.importorskip("s3fs", reason=needs)
server = pytest.importorskip("moto.server", reason=needs)

JOB = """
import time
import numpy as np
from qdrun.jobs.base import Job, JobParams, Outcome

class Params(JobParams):
    x: float = 1.0

class Slow(Job[Params]):
    gradients = ("x",)
    needs_compiler = False
    def build(self): ...
    def run(self):
        print("x is", self.params.x)
        time.sleep(0.5)
        x = self.params.x
        return Outcome(x ** 2, {"x": 2 * x}, {"path": np.full(20_000, x)})  # large: it goes into a file of its own
"""
CONFIG = """
version: 1
name: slow
job: {target: "slow.py:Slow"}
sweep: {params: {x: {linspace: [1, 16, 16]}}}
limits: {memory: 64MiB}
storage: s3://bucket/runs
"""


@pytest.fixture
def bucket(monkeypatch):
    """An S3 of this test, with one bucket; the environment says where it is, and who we are."""
    import boto3
    import s3fs

    played = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    played.start()
    host, port = played.get_host_and_port()
    said = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
    for name, value in (said | {"AWS_ENDPOINT_URL": f"http://{host}:{port}"}).items():
        monkeypatch.setenv(name, value)
    urllib.request.urlopen(
        f"http://{host}:{port}/moto-api/reset", data=b""
    ).close()  # servers of one process share what they hold
    boto3.client("s3").create_bucket(Bucket="bucket")
    s3fs.S3FileSystem.clear_instance_cache()
    yield "s3://bucket/runs"
    s3fs.S3FileSystem.clear_instance_cache()
    played.stop()


def test_a_file_is_claimed_by_one_of_many(bucket):
    files, won = open_files(bucket), []

    def claim(number):
        if files.claim("owners/000001.json", str(number).encode()):
            won.append(number)

    threads = [threading.Thread(target=claim, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1 and files.read("owners/000001.json") == str(won[0]).encode()


def test_files_are_written_read_listed_and_removed(bucket):
    files = open_files(bucket).at("run")
    files.put("a/one", b"12345")
    files.put("a/b/two", b"")
    assert (files.read("a/one", 1, 3), files.names("a"), files.sizes("a")) == (b"23", ["b", "one"], {"one": 5})
    assert files.read("a/one", 5) == files.read("a/one", 5, 9) == files.read("a/b/two", 0, 9) == b"", "a journal at its end"
    assert files.below("a") == {"a/one": 5, "a/b/two": 0} and files.below("nothing") == {}
    files.remove("a/one")
    assert not files.exists("a/one") and files.names("a") == ["b"] and files.names("nothing") == []


def test_a_bucket_that_is_not_there_is_not_made(bucket):
    import boto3

    with pytest.raises(StorageUnknown, match="there is no bucket `bukket` for s3://bukket/runs"):
        open_files("s3://bukket/runs").put("run.json", b"{}")
    assert [found["Name"] for found in boto3.client("s3").list_buckets()["Buckets"]] == ["bucket"]


def qdrun(folder, *words):
    """A command of its own, in a session of its own."""
    out = folder / "said.txt"
    with out.open("w") as stream:
        command = [sys.executable, "-c", "from qdrun.runner.cli.app import main; main()", *words]
        return subprocess.Popen(command, cwd=folder, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True), out


@pytest.mark.slow
def test_a_run_in_a_bucket_that_was_killed_is_resumed_and_read(bucket, tmp_path):
    (tmp_path / "slow.py").write_text(JOB)
    (tmp_path / "slow.yaml").write_text(CONFIG)
    process, said = qdrun(tmp_path, "submit", "slow.yaml")
    end, folder = time.monotonic() + 300, None
    while folder is None or replay(folder).counts()["done"] < 3:
        assert process.poll() is None and time.monotonic() < end, said.read_text()
        time.sleep(0.2)
        folder = folder or next(iter(all_runs(bucket)), None)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = replay(folder)
    assert 0 < before.counts()["done"] < 16 and not before.complete

    process, said = qdrun(tmp_path, "resume", "latest", "--runs", bucket, "--json")
    assert process.wait(400) == 0, said.read_text()
    state, run = replay(folder), load(folder.uri)
    assert state.complete and (state.counts()["done"], state.damaged, state.doubled) == (16, 0, 0)
    assert [row["loss"] for row in run.rows] == [float(x * x) for x in range(1, 17)]
    for row in run.rows:
        assert row["grad.x"] == 2 * row["param.x"] and run.outputs[row["trial"]]["path"].tolist() == [row["param.x"]] * 20_000

    process, said = qdrun(tmp_path, "logs", "latest", "@4", "--runs", bucket, "--json")
    assert process.wait(100) == 0 and "x is 5.0\n" in [part["text"] for part in json.loads(said.read_text())["logs"]]
