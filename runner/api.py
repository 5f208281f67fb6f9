"""Sweeps from Python: ``submit`` a config, ``load`` a run. ``from qdrun.runner import submit, load``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..compiler.errors import QdrunError
from . import clock
from .live.points import Series, live_values
from .observe import table
from .observe.arrays import Arrays
from .store import status
from .store.layout import RunFolder, find
from .store.replay import Replay, replay

if TYPE_CHECKING:
    import pandas
    import pyarrow


TARGET = "job.target="


class PandasMissing(QdrunError, ImportError):
    """pandas is not installed."""


class Results:
    """A run as its folder has it at the moment when it was loaded; ``load`` it again to see what has happened since.

    Everything is read when it is first asked for; Ray is never needed. ``folder`` is the run's folder, wherever it lies.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {word}" for word, count in sorted(self._replay.counts().items()))
        return f"Results({self.folder.uri!r}: {counts})"

    def __len__(self) -> int:
        return len(self._replay.trials)

    @property
    def id(self) -> str:
        """The id of the run."""
        return self.folder.name

    @cached_property
    def _replay(self) -> Replay:
        return replay(self.folder)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The config as it was understood: defaults filled in, overrides applied."""
        return self.folder.config()

    @property
    def state(self) -> str:
        """Running, done, failed, cancelled, interrupted or lost: as it is now."""
        return str(self.status["state"])

    @property
    def status(self) -> dict[str, Any]:
        """The present state of the run, as in ``qdrun status --json``: state, counts, best, seconds."""
        return status.status(self.folder)

    def wait(self, every_s: float = 1.0) -> Results:
        """The run as it is when it is over: done, failed, cancelled, interrupted or lost.

        Looks every ``every_s`` seconds; at a large journal less often: looking takes at most a tenth of the time.
        """
        status.wait(self.folder, every_s)
        return Results(self.folder)

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """One row per trial, finished or not, in the order of the sweep."""
        return table.rows(self.folder)

    @property
    def arrow(self) -> pyarrow.Table:
        """The rows as a ``pyarrow.Table``."""
        return table.arrow(self.folder)

    @property
    def pandas(self) -> pandas.DataFrame:
        """The rows as a ``pandas.DataFrame``.

        Raises:
            PandasMissing: pandas is not installed.
        """
        try:
            import pandas as _  # noqa: F401
        except ImportError as error:
            message = "`run.pandas` is a table of pandas, which is not installed\n  do: pip install pandas, or use run.rows or run.arrow"
            raise PandasMissing(message) from error
        return self.arrow.to_pandas()

    @property
    def live(self) -> dict[str, Series]:
        """The values that trials have logged so far, by trial: ``run.live[id].step``, ``run.live[id]["loss"]``. Read at each call, also
        while the run goes on; trials that have logged nothing are left out.
        """
        return live_values(self.folder)

    @property
    def gradients(self) -> Arrays:
        """Trial to its gradients by name; large ones are mapped from their files when they are asked for."""
        return Arrays(self.folder, self._replay, "gradients")

    @property
    def outputs(self) -> Arrays:
        """Trial to its outputs by name, as ``gradients``."""
        return Arrays(self.folder, self._replay, "outputs")

    def artifacts(self, trial: str) -> dict[str, str]:
        """The files that a trial has left in its ``Job.artifacts``: their names there, each with its path, or its URI where the run is not
        local. Of a trial that was tried again those of its last attempt.

        Raises:
            NotFound: the run has no such trial.
            ResultMissing: the row names a folder outside of the run.
        """
        from .query.picking import trial_of
        from .store.attempts import check_inside

        row = next(row for row in self.rows if row["trial"] == trial_of(self.folder, trial))
        folder = row.get("artifacts_folder")
        if folder is None:
            return {}
        check_inside(self.folder, folder)
        below = self.folder.files.below(folder)
        return {path.removeprefix(f"{folder}/"): f"{self.folder.uri}/{path}" for path in sorted(below)}

    @property
    def provenance(self) -> dict[str, Any]:
        """Where the run comes from: command line, sources, inputs, git commit, versions; empty where it was not written down."""
        from .provenance.record import provenance_of

        found = provenance_of(self.folder.files)
        return {} if found is None else found.model_dump()

    @property
    def devices(self) -> dict[str, dict[str, Any]]:
        """The devices on which trials have begun: node, backend, model, UUID, PCI address, driver, bytes of memory, as far as known."""
        from .provenance.devices import devices_of

        return devices_of(self.folder)

    def best(self, column: str = "loss") -> dict[str, Any] | None:
        """The row of the finished trial with the smallest value of a column, or, for ``max:column``, with the largest.

        Raises:
            NotFound: there is no such column.
        """
        from .query.picking import best_row

        return best_row(self.rows, column, table.columns(self.rows))


def load(run: str | os.PathLike[str], runs: str | os.PathLike[str] = "runs") -> Results:
    """A run, finished or not.

    Args:
        run: its folder or URI, or its id.
        runs: folder or URI where runs lie, to look up ids.

    Raises:
        RunNotFound: there is no such run; names those that there are.
    """
    return Results(find(os.fspath(run), runs))


def submit(
    config: str | os.PathLike[str],
    *,
    overrides: Sequence[str] = (),
    output: str | os.PathLike[str] | None = None,
    address: str | None = None,
    dashboard: bool = False,
    quiet: bool = True,
    detach: bool = False,
    debug: bool = False,
) -> Results:
    """Run a sweep and wait for its end, as ``qdrun submit`` does. Trials that fail are rows, not exceptions.

    A Ray that is open in this process is used, and stays open; otherwise one is started for the run.

    Args:
        config: the YAML file.
        overrides: of its keys, as in ``["limits.memory=1GiB"]``. ``job.target=__main__:Name`` names a job of the script that runs: workers
            import its file, so the call of ``submit`` must be below ``if __name__ == "__main__"``.
        output: folder or URI for the run, instead of that of the config.
        address: of a Ray cluster to join, host:port; http://host:port to run it there as a Ray Job; None: run here.
        dashboard: start Ray's dashboard, on 127.0.0.1.
        quiet: show no progress on stderr.
        debug: check every index, assert and NaN in the kernels, as ``debug: true`` in the config.
        detach: hand the run to a process of its own, or to the cluster, and return when it has begun; see ``Results.wait``.

    Raises:
        ConfigError: anything in the config is wrong.
        CannotPlan: the job can be built for no trial; nothing was started.
        TargetError: ``__main__`` is an interactive session, or ``submit`` is called while the job's file is imported.
        ClusterError: Ray cannot be started or joined; no trial was started.
        NotStarted: the process of a detached run ended before the run began.
        StorageFull: there is no room for the run.
    """
    from .engine.session import submit as run
    from .observe.timing import Timing
    from .remote.cluster_inventory import devices_at
    from .search.warm_start import warm_started
    from .study.prepare import prepare
    from .study.target import importable, refuse_while_loading

    refuse_while_loading()
    changes = [
        f"{TARGET}{importable(text.removeprefix(TARGET).strip())}" if text.startswith(f"{TARGET}__main__:") else text
        for text in overrides
    ]
    prepared, job = prepare(Path(config), local=address is None, overrides=changes, debug=debug, cluster=devices_at(address))
    prepared = warm_started(prepared, job)
    now = clock.now()
    where = os.fspath(output) if output is not None else prepared.loaded.config.uri
    timing = Timing(command_t=now, submitted_t=now)
    if detach or (address is not None and address.startswith(("http://", "https://"))):
        from .remote.detach import Order, follow, submit_detached

        made = submit_detached(prepared, where, Order(timing, address, dashboard))
        return Results(made.folder if detach else follow(made, timing, quiet=quiet).folder)
    done = run(prepared, job, output=where, timing=timing, address=address, dashboard=dashboard, quiet=quiet)
    return Results(done.folder)
