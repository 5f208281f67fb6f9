"""A head of a Ray cluster with its dashboard, in a process of its own: says where it is, and ends with its stdin.

python head_for_tests.py PORT AGENT_PORT: the dashboard and the agent that takes jobs listen there.
"""

import json
import os
import sys

import ray
from ray.cluster_utils import Cluster

from qdrun.runner.ray_adapter import compat


def main():
    os.makedirs(os.path.join(os.environ["RAY_TMPDIR"], "ray"), exist_ok=True)
    dashboard, agent = map(int, sys.argv[1:])
    options = {"num_cpus": 2, "object_store_memory": 80 << 20, "include_dashboard": True, "dashboard_host": "127.0.0.1"}
    options |= {"dashboard_port": dashboard, "dashboard_agent_listen_port": agent}
    with compat.small_head() as server:
        made = Cluster(initialize_head=True, head_node_args=options)
        server.result()
    gcs = made.head_node.all_processes[ray._private.ray_constants.PROCESS_TYPE_GCS_SERVER][0].process.pid
    print(json.dumps({"address": made.address, "dashboard": f"http://127.0.0.1:{dashboard}", "gcs": gcs}), flush=True)
    try:
        sys.stdin.read()
    finally:
        made.shutdown()


if __name__ == "__main__":
    main()
