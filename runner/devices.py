"""Which devices this machine has, and the choice of one for a run."""

from __future__ import annotations

import os
import platform

from pydantic import BaseModel, ConfigDict

from .config import BACKENDS, Loaded


class DeviceRow(BaseModel):
    """One backend on this machine: usable or not, and why not."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    backend: str
    name: str
    usable: bool
    cores: int | None = None
    memory_bytes: int | None = None
    reason: str = ""


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_bytes() -> int:
    """Memory of this machine, at most what the control group of this process allows."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = "/sys/fs/cgroup/memory.max"
    if os.path.isfile(limit):
        with open(limit, encoding="ascii") as stream:
            text = stream.read().strip()
        if text.isdigit():
            total = min(total, int(text))
    return total


def devices() -> list[DeviceRow]:
    """One row for each backend word of a config."""
    return [_cpu()] + [_missing(backend) for backend in BACKENDS if backend not in ("auto", "cpu")]


def _cpu() -> DeviceRow:
    name = platform.processor() or platform.machine()
    if os.path.isfile("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as stream:
            name = next((line.split(":", 1)[1].strip() for line in stream if line.startswith("model name")), name)
    return DeviceRow(backend="cpu", name=name, usable=True, cores=cores(), memory_bytes=memory_bytes())


def _missing(backend: str) -> DeviceRow:
    reason = "this version of qdrun makes machine code for the CPU only"
    return DeviceRow(backend=backend, name="-", usable=False, reason=reason)


def require_device(loaded: Loaded, *, local: bool = True) -> str:
    """The backend that the config's ``device`` means here: ``auto`` is the first usable one.

    Raises:
        ConfigError: there is no such device, or the machine has fewer cores than one trial wants.
    """
    wanted, document = loaded.config.device, loaded.document
    rows = devices()
    usable = [row.backend for row in rows if row.usable]
    if wanted.backend not in (*usable, "auto"):
        reason = next(row.reason for row in rows if row.backend == wanted.backend)
        problem = document.problem(
            ("device", "backend"),
            f"no {wanted.backend} device can be used: {reason}",
            allowed=(*usable, "auto"),
            hint="`qdrun devices` shows what this machine has",
        )
        raise document.error(problem)
    if local and wanted.threads > cores():
        what = f"one trial wants {wanted.threads} threads, this machine has {cores()} cores"
        raise document.error(document.problem(("device", "threads"), what, hint=f"ask for at most {cores()}"))
    return usable[0] if wanted.backend == "auto" else wanted.backend
