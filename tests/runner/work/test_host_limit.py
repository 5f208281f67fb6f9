"""A trial that takes the memory of its host: refused at ``limits.memory``, in its own line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, resource, sys
from dataclasses import replace
sys.path.insert(0, sys.argv[1])
from lane_helpers import Bench
from qdrun.runner.work import host_limit

bench = Bench(sys.argv[2])
made = bench.worker("Taking", lanes=1, target="jobs_that_take.py", gradients=["g"])
made.spec = replace(made.spec, own_process=True, job=dict(made.spec.job) | {"memory_limit_bytes": 64 << 20})
before = resource.getrlimit(resource.RLIMIT_DATA)
spare = host_limit.spare_bytes()
out = []
for k, (mib, at_once) in enumerate([(40, True), ((spare >> 20) + 400, True), ((spare >> 20) + 400, False), (40, False)]):
    (end,) = made.run(bench.batch(f"t{k}", launch=k + 1, mib=mib, at_once=at_once)).ends
    out.append([end.record["status"], end.record.get("failure"), end.record.get("loss"), (end.record.get("error") or {}).get("message", ""),
                (end.record.get("error") or {}).get("traceback", "")])
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
