"""A trial that takes the memory of its host: refused at ``limits.memory``, in its own line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, resource, sys
sys.path.insert(0, sys.argv[1])
from lane_helpers import Bench
from qdrun.runner.workers import host_limit

bench = Bench(sys.argv[2])
made = bench.worker("Taking", lanes=1, target="jobs_that_take.py", gradients=["g"])
made._host = host_limit.HostLimit(64 << 20)
before = resource.getrlimit(resource.RLIMIT_DATA)
spare = host_limit.spare_bytes()
out = []
for k, (mib, at_once) in enumerate([(40, True), ((spare >> 20) + 400, True), ((spare >> 20) + 400, False), (40, False)]):
    (end,) = made.run(bench.batch(f"t{k}", launch=k + 1, mib=mib, at_once=at_once)).ends.values()
    out.append([end["status"], end.get("failure"), end.get("loss"), (end.get("error") or {}).get("message", ""),
                (end.get("error") or {}).get("traceback", "")])
assert resource.getrlimit(resource.RLIMIT_DATA) == before
print(json.dumps([spare, out]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not say what a process has")
def test_memory_of_the_host_beyond_the_limit_is_refused_in_the_line_that_asks_for_it(tmp_path):
    words = [sys.executable, "-c", SCRIPT, str(Path(__file__).parent), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    spare, ends = json.loads(done.stdout.splitlines()[-1])
    for status, failure, loss, *_ in (ends[0], ends[3]):
        assert (status, failure, loss) == ("done", None, 40.0), "below the limit, before and after the others"
    for status, failure, _, message, trace in ends[1:3]:
        assert (status, failure) == ("failed", "out_of_memory")
        assert f"`limits.memory` is {64 << 20:,} bytes, and {spare:,} for the process beside it" in message
        assert "do: raise limits.memory" in message and "jobs_that_take.py" in trace


LANES = """
import json, resource, sys, threading
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from lane_helpers import Bench, at_once
from qdrun.runner.workers import host_limit

bench = Bench(sys.argv[2])
job = {"memory_limit_bytes": 64 << 20}
made = bench.worker("Taking", lanes=4, target="jobs_that_take.py", gradients=["g"], own_process=True, limits=job)
made.hello()
before = resource.getrlimit(resource.RLIMIT_DATA)
much = (host_limit.spare_bytes(2) >> 20) + 2 * 64 + 300
go = str(Path(sys.argv[2]) / "go")

def hold():
    (end,) = made.run(bench.batch("held", launch=1, mib=40, until=go)).ends.values()
    return end

def take():
    while made._host.trials < 1:
        pass
    (end,) = made.run(bench.batch("much", launch=2, mib=much, at_once=False)).ends.values()
    (small,) = made.run(bench.batch("small", launch=3, mib=40)).ends.values()
    Path(go).touch()
    return end, small

held, (taken, small) = at_once(hold, take)
(alone,) = made.run(bench.batch("alone", attempt=2, launch=4, mib=much, at_once=False)).ends.values()
assert resource.getrlimit(resource.RLIMIT_DATA) == before
made.close()
rows = [held, small, taken, alone]
said = [[row["status"], row.get("failure"), row.get("shared"), (row.get("error") or {}).get("message", "")] for row in rows]
print(json.dumps(said), file=sys.__stdout__)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not say what a process has")
def test_lanes_of_one_process_together_get_no_more_of_the_host_than_their_limits(tmp_path):
    """Which of them has taken it nobody knows: it is said, and alone each has its own limit."""
    words = [sys.executable, "-c", LANES, str(Path(__file__).parent), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    held, small, taken, alone = json.loads(done.stdout.splitlines()[-1])
    assert held[:3] == small[:3] == ["done", None, None]
    assert taken[:3] == ["failed", "out_of_memory", True]
    assert f"`limits.memory` is {64 << 20:,} bytes for each of 2 trials that shared the process, and" in taken[3]
    assert alone[:3] == ["failed", "out_of_memory", None] and "bytes, and" in alone[3]
