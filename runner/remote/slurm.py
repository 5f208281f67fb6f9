"""Runs in an allocation of Slurm: one job, with a Ray of its own on its nodes. ``slurm_node`` is what each node runs."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ..engine.early_plans import EarlyPlans
from ..provenance.record import record
from ..ray_adapter.cluster import ClusterError, make_token
from ..ray_adapter.jobs_api import note_launch
from ..ray_adapter.known_clusters import SLURM as KNOWN
from ..ray_adapter.known_clusters import remember, remembered
from ..store.files import LocalFiles
from ..store.layout import RunFolder, check_shared, create
from ..store.owner import owner_numbers
from ..study.plan import Prepared
from ..study.target import load
from .detach import Detached, never_ran

SLURM = "slurm"
"""The ``--address`` that asks for an allocation."""
ASK_S = 60.0
OPTION = re.compile(r"[a-z][a-z0-9-]*(=[^\n]*)?")
OURS = ("ntasks", "ntasks-per-node", "output", "error", "wrap", "array", "job-name")
"""Options of sbatch that the job sets itself."""


def submit_slurm(prepared: Prepared, output: str, options: Sequence[str]) -> Detached:
    """Create a run and hand it to Slurm; returns once Slurm has queued it.

    Args:
        prepared: its config.
        output: where the run's folder is made; all nodes must see it.
        options: of ``sbatch``, as in ``partition=gpu`` or ``exclusive``.

    Raises:
        CannotPlan: the job can be built for no trial; nothing was queued.
        ClusterError: there is no ``sbatch``, an option is none, or Slurm refuses the job; nothing was run.
        StorageUnknown: other processes cannot access the storage of the run.
    """
    words = [_option(text) for text in options]
    if shutil.which("sbatch") is None:
        raise ClusterError(
            "--address slurm: there is no `sbatch` on this machine\n  do: submit from a login node of the cluster"
        )
    if prepared.loaded.config.device.backend == "auto":
        raise ClusterError(
            "--address slurm: device.backend is auto, and the nodes that Slurm will give are not known yet\n"
            "  do: name the backend in the config, or with --set device.backend=.."
        )
    check_shared(output)
    job = load(prepared.target)
    EarlyPlans(prepared, job, first=True).wait(local=False)
    make_token()  # in the home folder, which the nodes share
    folder = create(prepared, output, describe=lambda files: record(files, prepared, job))
    uri = str(folder.path.absolute()) if isinstance(folder.files, LocalFiles) else folder.uri
    log = (
        str(folder.path.absolute() / "slurm.log") if isinstance(folder.files, LocalFiles) else f"{Path.cwd()}/{folder.name}.log"
    )
    try:
        number = _queued(script(uri, prepared.loaded.config.name, log, words))
    except ClusterError:
        never_ran(folder)
        raise
    note_launch(folder, slurm=number, log=log)
    remember(folder, number, KNOWN)
    return Detached(folder, log, job=number, address="Slurm", over=lambda: _over(folder, number, log))


def script(uri: str, name: str, log: str, options: Sequence[str]) -> str:
    """The batch script: a task for each node, which goes on where another node is lost. Slurm may start it again; it resumes then."""
    own = ["job-name=" + name, "ntasks-per-node=1", "output=" + log, "open-mode=append", "no-kill", "requeue", *options]
    head = "\n".join(f"#SBATCH --{text}" for text in own)
    node = shlex.join([sys.executable, "-P", "-m", "qdrun.runner.remote.slurm_node", uri])
    return f"#!/bin/sh\n{head}\nexec srun --kill-on-bad-exit=0 --no-kill {node}\n"


def _option(text: str) -> str:
    name = text.partition("=")[0]
    if not OPTION.fullmatch(text) or name in OURS:
        why = "is set by the run itself" if name in OURS else "is no long option of sbatch without its dashes"
        raise ClusterError(f"--sbatch {text}: `{name}` {why}\n  do: write for example --sbatch partition=gpu --sbatch nodes=2")
    return text


def _queued(text: str) -> str:
    """Hand a script to ``sbatch``; the number of the job."""
    done = _asked(["sbatch", "--parsable"], text)
    if done.returncode:
        said = (done.stderr or done.stdout).strip() or f"exit code {done.returncode}"
        raise ClusterError(
            f"Slurm refuses the job: {said.removeprefix('sbatch: error: ')}\n  do: see `sinfo`, and the --sbatch options"
        )
    return done.stdout.strip().partition(";")[0]


def _asked(words: Sequence[str], text: str = "") -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(words, input=text, capture_output=True, text=True, timeout=ASK_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise ClusterError(
            f"`{words[0]}` has not answered within {ASK_S:g} s\n  do: `sinfo` says whether Slurm is there"
        ) from error


def stop_queued(folder: RunFolder) -> bool:
    """Take the job of a run that has not begun out of Slurm's queue; False: this user has queued none from this machine.

    Raises:
        ClusterError: Slurm does not answer, or does not cancel it.
    """
    number = remembered(folder).get(KNOWN)
    if number is None:
        return False
    done = _asked(["scancel", number])
    if done.returncode:
        why = done.stderr.strip() or f"exit code {done.returncode}"
        raise ClusterError(f"Slurm does not cancel job {number}: {why}\n  do: see `squeue --jobs {number}`")
    never_ran(folder, "cancelled")
    return True


def _over(folder: RunFolder, number: str, log: str) -> str:
    """How a job has ended; empty while it waits or runs. One that has ended before its run began makes that a failed one."""
    with suppress(ClusterError):
        done = _asked(["squeue", "--noheader", "--jobs", number, "--format", "%T"])
        if done.returncode == 0 and done.stdout.strip():
            return ""
        if done.returncode and "Invalid job id" not in done.stderr:
            return ""  # Slurm does not answer: nothing is known
        if not owner_numbers(folder.files):
            never_ran(folder)
        return f"job {number} of Slurm is over\n  log: {log}" if os.path.exists(log) else f"job {number} of Slurm is over"
    return ""


__all__ = ["SLURM", "script", "stop_queued", "submit_slurm"]
