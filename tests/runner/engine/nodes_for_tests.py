"""Runs on a cluster of a head and two nodes, in a process of its own: ``python nodes_for_tests.py FOLDER``; what came of them as JSON."""

import json
import sys
import threading
import time
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

from qdrun.runner.engine import session
from qdrun.runner.observe.table import rows
from qdrun.runner.observe.timing import Timing
from qdrun.runner.ray_adapter import compat, worker_pool
from qdrun.runner.remote.cluster_inventory import devices_at
from qdrun.runner.store.follower import read
from qdrun.runner.study.prepare import prepare

SMALL = {"object_store_memory": 80 << 20}
looked, sizes = [], []


def watch():
    """Note which nodes are asked for what a worker had begun, and how many trials each lease has."""
    read_there, send = worker_pool.read_there, worker_pool.RayWorkers._send

    def there(what, node, path):
        looked.append(node)
        return read_there(what, node, path)

    def sent(self, worker, actor, launches, batches):
        sizes.append(len(launches))
        return send(self, worker, actor, launches, batches)

    worker_pool.read_there, worker_pool.RayWorkers._send = there, sent


def run(config, address):
    now = time.time()
    prepared, job = prepare(config, local=False, cluster=devices_at(address))
    made = session.submit(
        prepared,
        job,
        output=prepared.loaded.config.uri,
        timing=Timing(now, now),
        address=address,
        dashboard=False,
        quiet=True,
    )
    found = sorted(rows(made.folder), key=lambda row: row["param.number"])
    return made, {
        "state": made.state,
        "backend": prepared.backend,
        "rows": [[row["param.number"], row["status"], row["attempts"], row["loss"]] for row in found],
        "devices": sorted({row["device"] for row in found}),
        "spans": sorted((e["started_t"], e["ended_t"]) for e in read(made.folder).events if e["event"] == "ended"),
        "retries": [[e["failure"], e["charged"]] for e in read(made.folder).events if e["event"] == "retry"],
    }


FAST = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 3,
    "health_check_timeout_ms": 2000,
}


def preempt(node, marks, after, killed):
    """Kill the processes of a node by their ids, as an instance that is taken away ends, once so many trials have begun."""
    from psutil import Process  # comes with ray

    raylet = Process(node.all_processes["raylet"][0].process.pid)
    while len(list(marks.iterdir())) < after:
        time.sleep(0.05)
    for one in [raylet, *raylet.children(recursive=True)]:
        one.kill()
        killed.append(one.pid)


def main(folder):
    head = {"num_cpus": 0, "include_dashboard": False, "_system_config": FAST, **SMALL}
    with compat.small_head(), compat.started_with():
        made = Cluster(initialize_head=True, head_node_args=head)
        for _ in range(2):
            made.add_node(num_cpus=1, **SMALL)
    try:
        watch()
        _, crash = run(folder / "crash.yaml", made.address)
        crash |= {"sizes": list(sizes), "looked": list(looked)}
        _, one = run(folder / "one.yaml", made.address)
        killed = []
        taking = threading.Thread(target=preempt, args=(made.list_all_nodes()[-1], folder / "marks-preempted", 12, killed))
        taking.start()
        _, preempted = run(folder / "preempted.yaml", made.address)
        taking.join()
        preempted |= {"killed": killed}
    finally:
        ray.shutdown()
        made.shutdown()
    print(json.dumps({"crash": crash, "one": one, "preempted": preempted}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
