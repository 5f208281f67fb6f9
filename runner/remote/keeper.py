"""Starts the Ray that ``qdrun up`` keeps on this machine, holds it in a process of its own, and ends it; see ``ray_adapter.standing``."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict

from ..ledger.inventory import RESOURCES, local
from ..private import write_private
from ..processes import pid_space, started
from ..ray_adapter.cluster import ClusterError, close_cluster, open_cluster
from ..ray_adapter.standing import RECORD, USERS, Standing, standing, standing_folder

KEEPER, LOG = "ray.keeper", "ray.log"
START_S, STOP_S, LOOK_S, AWAY_S = 90.0, 30.0, 0.05, 10.0


def start(*, dashboard: bool) -> tuple[Standing, bool]:
    """Start it, unless it stands already: it, and whether it is new.

    Raises:
        ClusterError: it did not start; has the last lines of its log.
    """
    if found := standing():
        return found, False
    log, words = standing_folder() / LOG, [] if dashboard else ["--no-dashboard"]
    write_private(log, b"")
    with log.open("ab") as printed:
        made = subprocess.Popen(
            [sys.executable, "-m", __name__, *words],
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=printed,
            start_new_session=True,
        )
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if found := standing():
            return found, found.pid == made.pid
        if made.poll() is not None and not standing():
            break
        time.sleep(LOOK_S)
    with suppress(OSError):
        made.terminate()
    tail = "\n".join(f"  {line}" for line in log.read_text(errors="replace").strip().splitlines()[-8:])
    raise ClusterError(
        f"Ray did not start on this machine; the end of {log}:\n{tail}\n  do: see that log; `qdrun up` tries again"
    )


def stop(*, force: bool = False) -> Standing | None:
    """End it, and give what it was; None: there was none.

    Raises:
        ClusterError: runs use it and ``force`` is false, or it does not end.
    """
    found = standing()
    if found is None:
        return None
    users = os.open(standing_folder() / USERS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if not force:
                raise ClusterError(
                    "runs of yours use the Ray of `qdrun up`\n"
                    "  do: wait for them, or `qdrun cancel` them (`qdrun ls` lists them); or `qdrun down --force`: they can be resumed"
                ) from None
        os.kill(found.pid, signal.SIGTERM)
        end = time.monotonic() + STOP_S
        while found.lives:
            if time.monotonic() > end:
                raise ClusterError(
                    f"process {found.pid} holds Ray and does not end\n  do: `kill -9 {found.pid}`, then `qdrun up` again"
                )
            time.sleep(LOOK_S)
    finally:
        os.close(users)
    return found


def _keep(dashboard: bool) -> int:
    """Start Ray, write the record, and hold Ray until a signal comes or its head is gone; the exit code."""
    keeper = os.open(standing_folder() / KEEPER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(keeper, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        print("another process starts Ray here, or holds it")
        return 0
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    gpus = sum(row.usable and RESOURCES[row.backend] == "GPU" for row in local())
    made = open_cluster(None, dashboard=dashboard, gpus=gpus, job={"job_name": "qdrun up"}, keep=True)
    record = Standing(
        os.getpid(), started(os.getpid()), pid_space(), made.head, made.dashboard_url, sys.prefix, made.cores, made.gpus
    )
    write_private(standing_folder() / RECORD, json.dumps(asdict(record)).encode())
    lost, last = False, time.monotonic()
    while not over.wait(1.0) and not lost:
        with suppress(OSError):
            host, _, port = made.head.rpartition(":")
            socket.create_connection((host, int(port)), timeout=1.0).close()
            last = time.monotonic()
        lost = time.monotonic() - last > AWAY_S
    (standing_folder() / RECORD).unlink(missing_ok=True)
    close_cluster(lost=lost)
    return int(lost)


if __name__ == "__main__":
    sys.exit(_keep("--no-dashboard" not in sys.argv))


__all__ = ["start", "stop"]
