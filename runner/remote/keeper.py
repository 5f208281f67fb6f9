"""Starts the Ray that ``qdrun up`` keeps on this machine, holds it in a process of its own, and ends it; see ``ray_adapter.standing``."""

from __future__ import annotations

import fcntl
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict

from ..ledger.inventory import RESOURCES, local
from ..private import write_private
from ..processes import alive, pid_space, started
from ..ray_adapter.cluster import Capacity, ClusterError, check_packages, close_cluster, open_cluster
from ..ray_adapter.pages.job_record import start_mending
from ..ray_adapter.standing import RECORD, USERS, Standing, standing, standing_folder
from ..stops import Stops, counted_signals

KEEPER, LOG = "ray.keeper", "ray.log"
START_S, STOP_S, LOOK_S, AWAY_S, HEAD_EVERY_S = 90.0, 30.0, 0.05, 10.0, 1.0


def start(*, dashboard: bool) -> tuple[Standing, bool]:
    """Start it, unless it stands already: it, and whether it is new.

    Raises:
        ClusterError: it did not start; has the last lines of its log. Or a package of its dashboard is missing.
    """
    if found := standing():
        return found, False
    if dashboard:
        check_packages("`qdrun up --no-dashboard`")
    log, words = standing_folder() / LOG, [] if dashboard else ["--no-dashboard"]
    write_private(log, b"")
    with log.open("ab") as printed:
        made = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, *words],
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=printed,
            start_new_session=True,
        )
    try:
        if found := _came_up(made):
            return found, found.pid == made.pid
    except BaseException:  # Ctrl-C: nothing is left behind
        _end(made)
        raise
    with suppress(OSError):
        made.terminate()
    tail = "\n".join(f"  {line}" for line in log.read_text(errors="replace").strip().splitlines()[-8:])
    raise ClusterError(
        f"Ray did not start on this machine; the end of {log}:\n{tail}\n  do: see that log; `qdrun up` tries again"
    )


def _came_up(made: subprocess.Popen[bytes]) -> Standing | None:
    """Wait for the record of the keeper that was started, or of another one; None: there is none."""
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if found := standing():
            return found
        if made.poll() is not None and not standing():
            return None
        time.sleep(LOOK_S)
    return None


def _end(made: subprocess.Popen[bytes]) -> None:
    """End a keeper that is starting Ray, and wait for it; at a second Ctrl-C at once."""
    with suppress(OSError, ValueError):
        print(
            "interrupted: waiting until the Ray that was starting has ended; Ctrl-C again kills it", file=sys.stderr, flush=True
        )
    try:
        made.terminate()
        made.wait(STOP_S)
    except (KeyboardInterrupt, subprocess.TimeoutExpired):
        made.kill()
        made.wait()


def _beginner() -> int:
    """The process that starts Ray here and has no record yet, 0 where there is none: it holds the lock and has written its id there."""
    try:
        keeper = os.open(standing_folder() / KEEPER, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    try:
        fcntl.flock(keeper, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        said = os.read(keeper, 32)
        return int(said) if said.strip().isdigit() and alive(int(said)) else 0
    finally:
        os.close(keeper)
    return 0


def _stop_beginner(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + START_S
    while _beginner() == pid:
        if time.monotonic() > end:
            raise ClusterError(f"process {pid} starts Ray and does not end\n  do: `kill -9 {pid}`, then `qdrun up` again")
        time.sleep(LOOK_S)


def stop(*, force: bool = False) -> int | None:
    """End it, also while it is starting, and give the id of its process; None: there was none.

    Raises:
        ClusterError: runs use it and ``force`` is false, or it does not end.
    """
    found = standing()
    if found is None:
        pid = _beginner()
        if pid:
            _stop_beginner(pid)
        return pid or None
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
    return found.pid


def _keep(dashboard: bool) -> int:
    """Start Ray, write the record, and hold Ray until a signal comes or its head is gone; the exit code."""
    keeper = os.open(standing_folder() / KEEPER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(keeper, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        print("another process starts Ray here, or holds it")
        return 0
    os.ftruncate(keeper, 0)
    os.pwrite(keeper, b"%d" % os.getpid(), 0)
    # Ray's processes die with the thread that started them; in the main thread Ray would also replace the handlers of signals
    with counted_signals(stops := Stops()), ThreadPoolExecutor(1) as ray_thread:
        gpus = sum(row.usable and RESOURCES[row.backend] == "GPU" for row in local())
        job = {"job_name": "qdrun up"}
        made = ray_thread.submit(open_cluster, None, dashboard=dashboard, gpus=gpus, job=job, keep=True).result()
        end_mending = start_mending()
        try:
            lost = _hold(made, stops)
        finally:
            end_mending()
            (standing_folder() / RECORD).unlink(missing_ok=True)
        close_cluster(lost=lost)
    gc.freeze()  # `qdrun down` waits for this process, which would scan all objects again while Python ends
    return int(lost)


def _hold(made: Capacity, stops: Stops) -> bool:
    """Write the record, and wait for a signal, or for the end of the head; whether the head is gone."""
    if stops.asked:
        return False
    record = Standing(
        os.getpid(), started(os.getpid()), pid_space(), made.head, made.dashboard_url, sys.prefix, made.cores, made.gpus
    )
    write_private(standing_folder() / RECORD, json.dumps(asdict(record)).encode())
    looked = last = time.monotonic()
    while not stops.asked:
        time.sleep(LOOK_S)
        if time.monotonic() - looked < HEAD_EVERY_S:
            continue
        looked = time.monotonic()
        with suppress(OSError):
            host, _, port = made.head.rpartition(":")
            socket.create_connection((host, int(port)), timeout=1.0).close()
            last = time.monotonic()
        if time.monotonic() - last > AWAY_S:
            return True
    return False


if __name__ == "__main__":
    sys.exit(_keep("--no-dashboard" not in sys.argv))


__all__ = ["start", "stop"]
