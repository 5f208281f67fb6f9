"""A Ray cluster of one head and two nodes on this machine, for as many runs as one likes."""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from qdrun.runner.processes import alive

from .processes import below, kill, processes, reap, until

FAST = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 1000,
    "health_check_failure_threshold": 4,
    "health_check_timeout_ms": 2000,
}
STORE_BYTES = 80 << 20
LANES, NODES, TRIES = 1, 2, 4
ANSWER_S = 60.0
TOKEN = "0123456789abcdef" * 4

PROBE = """
import json, os, sys
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what Ray prints is no answer
import ray
from dataclasses import asdict
from qdrun.runner.ray_adapter import placement_groups

ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
for line in sys.stdin:
    try:
        named = [row["name"] for row in ray.util.list_named_actors(all_namespaces=True)]
        groups = [asdict(group) for group in placement_groups.existing()]
        answer = {"groups": groups, "actors": [name for name in named if name.startswith("qdrun")]}
    except Exception as error:
        answer = {"error": repr(error)}
    print(json.dumps(answer), file=answers, flush=True)
"""


def environment(folder):
    """Variables of everything that shall use Ray in ``folder``, with a token of its own; the user's Ray is left alone."""
    Path(folder, "ray").mkdir(parents=True, exist_ok=True)
    token = Path(folder, "token")
    token.write_text(TOKEN)
    token.chmod(0o600)
    mine = {"RAY_TMPDIR": str(folder), "RAY_AUTH_TOKEN_PATH": str(token), "RAY_AUTH_MODE": "token"}
    mine |= {"QDRUN_MACHINE_DIR": str(Path(folder, "machine")), "XDG_STATE_HOME": str(Path(folder, "state"))}
    mine["QDRUN_FIRST_CHECK"] = "0"  # it runs a trial, which would count as an attempt
    return mine | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", "RAY_raylet_start_wait_time_s": "90"}


class Cluster:
    """See the module. This process is no part of it: it starts the daemons, and asks through a process of its own."""

    def __init__(self, folder):
        self.folder, self.environment = Path(folder), environment(folder)
        os.environ.update(self.environment)
        self._made = self._probe = None
        self.open()

    def open(self):
        """Start it, or start it anew."""
        from ray.cluster_utils import Cluster as Nodes

        head = {"num_cpus": 0, "object_store_memory": STORE_BYTES, "include_dashboard": False, "_system_config": FAST}
        before = signal.getsignal(signal.SIGTERM)
        self._made = self._patiently(lambda: Nodes(initialize_head=True, head_node_args=head))
        signal.signal(signal.SIGTERM, before)  # Ray's handler waits for half a minute
        self.mend()
        self.ask()

    def _patiently(self, start):
        """Start daemons. Ray gives them half a minute, which may be too short on a machine that does other things as well."""
        from qdrun.runner.ray_adapter import compat

        for attempt in range(TRIES):
            try:
                with compat.small_head(), compat.started_with():  # as a run starts its own: without what no run uses
                    return start()
            except Exception as error:
                if attempt + 1 == TRIES or "timed out during startup" not in str(error):
                    raise
                known, me = self.daemons(), os.getpid()
                for one in processes().values():
                    if one.parent == me and one.pid not in known and str(self.folder / "ray") in one.title:
                        kill(one.pid)

    def mend(self):
        """Bring the number of nodes back to what it was."""
        for node in list(self._made.worker_nodes):
            if not alive(self._raylet(node)):
                self._made.remove_node(node, allow_graceful=False)
        while len(self._made.worker_nodes) < NODES:
            self._patiently(lambda: self._made.add_node(num_cpus=LANES, object_store_memory=STORE_BYTES))

    @staticmethod
    def _raylet(node):
        return node.all_processes["raylet"][0].process.pid

    @property
    def address(self):
        """Of the head."""
        return self._made.address

    @property
    def whole(self):
        """Whether the head lives."""
        return alive(self.head)

    @property
    def head(self):
        """The raylet of the head."""
        return self._raylet(self._made.head_node)

    def raylets(self):
        """Those of the nodes that run trials."""
        return [self._raylet(node) for node in self._made.worker_nodes]

    def daemons(self):
        """All processes that belong to the cluster and to no run."""
        nodes = [self._made.head_node, *self._made.worker_nodes] if self._made is not None else []
        roots = [info.process.pid for node in nodes for infos in node.all_processes.values() for info in infos]
        return {*roots, *([self._probe.pid] if self._probe else [])}

    def workers(self):
        """The workers of runs: processes that Ray calls after our class."""
        return [one.pid for one in below(*self.raylets(), self.head) if one.title.startswith("ray::Worker")]

    def ask(self):
        """What runs hold of the cluster, and the names of our actors."""
        for _ in range(3):
            if self._probe is None or self._probe.poll() is not None:
                command = [sys.executable, "-c", PROBE, self.address]
                with open(self.folder / "probe.log", "ab") as log:
                    pipe = subprocess.PIPE
                    self._probe = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, text=True, cwd="/")
            with contextlib.suppress(OSError):
                self._probe.stdin.write("?\n")
                self._probe.stdin.flush()
                if select.select([self._probe.stdout], [], [], ANSWER_S)[0] and (line := self._probe.stdout.readline()):
                    return json.loads(line)
            self._forget_probe()
        return {"error": f"the probe does not start, see {self.folder}/probe.log"}

    def _forget_probe(self):
        if self._probe is not None:
            kill(self._probe.pid)
            self._probe.wait()
            self._probe = None

    def leftovers(self):
        """What any run still holds, or Ray still runs; empty when all is given back."""
        seen = self.ask()
        if "error" in seen:
            return [seen["error"]]
        out = [f"group {group['id']} of {group['run']}: {group['amount']:g} {group['resource']}" for group in seen["groups"]]
        out += [f"actor {name}" for name in seen["actors"]]
        return out + [f"worker process {pid}" for pid in self.workers()]

    def settled(self, seconds):
        """Wait until nothing is left; what is left after so many seconds."""
        left = []

        def nothing():
            left[:] = self.leftovers()
            return not left

        until(nothing, seconds)
        return left

    def logs(self, into):
        """Keep the logs of Ray."""
        for session in (self.folder / "ray").glob("session_2*/logs"):
            shutil.copytree(
                session, Path(into) / session.parent.name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.sock")
            )

    def close(self, remove=True):
        """End everything, at once: Ray would say good-bye to nodes that are gone."""
        self._forget_probe()
        if self._made is not None:
            daemons = self.daemons()
            for pid in [*daemons, *(one.pid for one in below(*daemons))]:
                kill(pid)
            until(lambda: reap() or not any(alive(pid) for pid in daemons), 10)
            self._made = None
        if remove:
            shutil.rmtree(self.folder, ignore_errors=True)
