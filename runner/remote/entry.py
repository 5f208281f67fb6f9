"""The process of a detached run.

``qdrun submit --detach``, or a Ray Job, starts it as ``python -m qdrun.runner.remote.entry RUN``.

The folder of the run is there; this process claims it and brings it to its end. If it cannot, it prints one line on stderr that begins with
``FAILED``, which the starting process reads.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...compiler.errors import QdrunError
from .. import clock
from ..exit_codes import exit_code
from ..jobcode import places
from ..observe.timing import Timing
from ..ray_adapter.cluster import ClusterError
from ..ray_adapter.jobs_api import headers
from ..store.layout import OtherFormat, RunFolder
from ..store.owner import owner_numbers
from ..store.replay import replay
from ..study.shipping import Shipped

FAILED = "qdrun-failed:"


def main(words: Sequence[str] | None = None) -> int:
    """Run; the exit code of the process."""
    places.drop_unsafe_entries()
    options = _parser().parse_args(words)
    try:
        return run(options)
    except (QdrunError, OSError) as error:
        code = int(getattr(error, "exit_code", 2))
        said = {"type": type(error).__name__, "message": str(error), "exit_code": code}
        print(f"{error}\n{FAILED} {json.dumps(said)}", file=sys.stderr, flush=True)
        return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="qdrun.runner.remote.entry", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", help="folder or URI of the run")
    parser.add_argument("--config", help="its config, where it is not at its old place")
    parser.add_argument("--root", help="of a config that came along: where files beside its modules are")
    parser.add_argument("--address", help="of a cluster; `job`: of the one whose job this is")
    parser.add_argument("--asks", help="the dashboard of the cluster, as the user gave it")
    parser.add_argument("--dashboard", action="store_true", help="of the Ray that is started here")
    parser.add_argument("--resume", action="store_true", help="go on with a run")
    parser.add_argument("--failed", action="store_true", help="with --resume: also what failed by its own fault")
    parser.add_argument("--force", action="store_true", help="although the config has changed")
    parser.add_argument("--debug", action="store_true", help="with --resume: in debug mode")
    parser.add_argument("--since", type=float, help="when the command began, in seconds since the epoch")
    return parser


def run(options: argparse.Namespace) -> int:
    """Bring a run to its end; its exit code.

    Raises:
        ClusterError: the folder of the run cannot be reached from here, or Ray not be joined.
        ConfigChanged, RunAlive, StorageFull: see ``resume`` and ``session.attend``.
    """
    from ..engine.early_plans import EarlyPlans
    from ..engine.event_writer import Kept
    from ..engine.resume import config_of, resume
    from ..engine.session import How, attend

    folder = reached(options.run)
    shipped = Shipped(options.config, options.root) if options.root is not None else None
    address = options.address
    if address == "job":
        address = os.environ.get("RAY_ADDRESS")
        if not headers():  # the cluster has started this process, and has no tokens itself; `submit` has said so
            os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    now = clock.now()
    how: dict[str, Any] = {"timing": Timing(options.since or now, now), "address": address, "dashboard": options.dashboard}
    others = [] if options.resume else owner_numbers(folder.files)
    if others and (ended := replay(folder).finished) is not None and ended.get("state") != "lost":
        state = str(ended.get("state"))
        print(f"{folder.name} is {state}: it was run, or given up, before this process began; nothing was run", file=sys.stderr)
        return exit_code(state)
    if options.resume or others:  # while the job was queued, another process has started the run
        more = {"config": options.config, "force": options.force, "failed": options.failed, "shipped": shipped}
        more |= {"asks": options.asks, "debug": options.debug, "code": "kept"}
        return resume(folder, **more, **how).exit_code
    prepared, job = config_of(folder, options.config, local=address is None, shipped=shipped, code="kept")
    return attend(prepared, job, folder, How(**how), lambda journal: (None, Kept()), EarlyPlans(prepared, job)).exit_code


def reached(uri: str) -> RunFolder:
    """The folder of a run, which another machine may have made.

    Raises:
        ClusterError: there is no run here, or one of another version.
    """
    folder = RunFolder(uri)
    if not folder.is_run:
        there = Path(uri).parent if "://" not in uri else None
        lack = f", where {there} is not even a folder" if there is not None and not there.is_dir() else ""
        raise ClusterError(
            f"the run's folder {uri} cannot be reached from {platform.node()}{lack}; nothing was run\n"
            "  do: set `storage` in the config (or --output) to a folder that all machines share under this name, or to a URI such as "
            "s3://bucket/runs"
        )
    try:
        folder.info()
    except OtherFormat as error:
        raise ClusterError(
            f"{str(error).splitlines()[0]} on {platform.node()}\n  do: install the same qdrun here and on the cluster"
        ) from error
    return folder


if __name__ == "__main__":
    sys.exit(main())
