"""One node of an allocation of Slurm: ``srun python -m qdrun.runner.remote.slurm_node RUN``. The first one has Ray's head and the run."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from ..ray_adapter import compat
from ..ray_adapter.cluster import ClusterError
from ..ray_adapter.head_watch import reachable
from ..store.layout import RunFolder
from ..store.owner import owner_numbers
from . import entry

FIRST_PORT, PORTS = 30000, 10000
START_S, LOOK_S, MISSES, END_S = 120.0, 1.0, 5, 15.0
STORE_BYTES = 256 << 20


def main(words: Sequence[str] | None = None) -> int:
    """Run this node's part; the exit code of its process."""
    (run,) = sys.argv[1:] if words is None else words
    compat.keep_loopback_direct()
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", "5")  # of 30, as long as Slurm waits before SIGKILL
    head = address()
    first = os.environ.get("SLURM_PROCID", "0") == "0"
    with tempfile.TemporaryDirectory(prefix="qs", dir="/tmp", ignore_cleanup_errors=True) as folder:
        ray = subprocess.Popen(ray_words(head, folder, first=first), stdin=subprocess.DEVNULL)
        try:
            if not first:
                return _stay(head, ray)
            _wait(head, ray)
            return entry.main([run, "--address", head, *again(run)])
        except ClusterError as error:
            print(error, file=sys.stderr, flush=True)
            return int(ClusterError.exit_code)
        finally:
            ray.terminate()
            try:
                ray.wait(END_S)
            except subprocess.TimeoutExpired:
                ray.kill()


def again(run: str) -> list[str]:
    """How a run goes on that Slurm has started again after a preemption or the loss of a node, whatever its state was then."""
    return ["--resume"] if int(os.environ.get("SLURM_RESTART_COUNT", "0")) and owner_numbers(RunFolder(run).files) else []


def address() -> str:
    """host:port of the head: the node that has started the step, as Slurm says, and a port by the number of the job.

    Raises:
        KeyError: this is no step of Slurm.
    """
    return f"{os.environ['SLURM_LAUNCH_NODE_IPADDR']}:{FIRST_PORT + int(os.environ['SLURM_JOB_ID']) % PORTS}"


def ray_words(head: str, folder: str, *, first: bool) -> list[str]:
    """The command that starts Ray on this node, with the cores that Slurm has given. It stays until it is ended."""
    host, _, port = head.rpartition(":")
    cores = os.environ.get("SLURM_CPUS_PER_TASK") or os.environ.get("SLURM_CPUS_ON_NODE") or "1"
    words = [sys.executable, "-P", "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus", cores]
    words += ["--object-store-memory", str(STORE_BYTES), "--disable-usage-stats"]
    if first:
        return [
            *words,
            "--head",
            "--node-ip-address",
            host,
            "--port",
            port,
            "--include-dashboard",
            "false",
            "--temp-dir",
            folder,
        ]
    return [*words, "--address", head]


def _wait(head: str, ray: subprocess.Popen[bytes]) -> None:
    """Wait until the head answers.

    Raises:
        ClusterError: it does not, or Ray has ended.
    """
    end = time.monotonic() + START_S
    while not reachable(head):
        if ray.poll() is not None or time.monotonic() > end:
            raise ClusterError(f"Ray's head at {head} does not start: see above\n  do: `qdrun resume` in another allocation")
        time.sleep(LOOK_S / 4)


def _stay(head: str, ray: subprocess.Popen[bytes]) -> int:
    """A node beside the first one: until that one's Ray is gone, or its own."""
    seen, misses, end = False, 0, time.monotonic() + START_S
    while misses < MISSES and ray.poll() is None and (seen or time.monotonic() < end):
        there = reachable(head)
        seen, misses = seen or there, 0 if there or not seen else misses + 1
        time.sleep(LOOK_S)
    return 0 if seen else int(ClusterError.exit_code)


if __name__ == "__main__":
    sys.exit(main())
