"""Sweeps from Python: ``plan`` and ``submit`` a config or a class, ``load`` a run. ``from qdrun.runner import submit, load, plan``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..compiler.errors import QdrunError
from . import clock
from .config.values import expanded
from .live.points import Series, live_values
from .observe import table
from .observe.arrays import Arrays
from .observe.html import SHOWN, line_html
from .observe.remarks import remarks_of
from .observe.show import results_html
from .query.table_file import finished_table
from .store import status
from .store.layout import RunFolder, find
from .store.replay import Replay, replay
from .store.status import RunState
from .upkeep import labels
from .upkeep.labels import labels_of

if TYPE_CHECKING:
    import pandas
    import pyarrow
    from pydantic import BaseModel

    from ..jobs.base import Job
    from .interactive.configs import ConfigSource
    from .observe.planned import SweepPlan
    from .study.plan import Prepared


TARGET = "job.target="


class PandasMissing(QdrunError, ImportError):
    """pandas is not installed."""


class Rows(list[dict[str, Any]]):
    """Rows of a run: a list of maps, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        return results_html(self)


class Results:
    """A run as its folder has it at the moment when it was loaded; ``load`` it again to see what has happened since.

    Everything is read when it is first asked for; Ray is never needed. ``folder`` is the run's folder, wherever it lies.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {word}" for word, count in sorted(self._replay.counts().items()))
        return f"Results({self.folder.uri!r}: {counts})"

    def _repr_html_(self) -> str:
        from .observe.listing import table_of

        found = table_of(self.folder, limit=SHOWN, shown=True)
        counts = ", ".join(f"{count} {word}" for word, count in sorted(self.status["counts"].items()))
        return line_html(f"{self.id}: {self.state}, {counts}") + results_html(found.rows, found.swept, found.total)

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
    def status(self) -> RunState:
        """The present state of the run, as in ``qdrun status --json``: state, counts, best, seconds."""
        return status.status(self.folder)

    @property
    def warnings(self) -> list[str]:
        """Warnings about gradients that are 0 in every trial and optimisation runs that lowered no loss, each in one line."""
        return remarks_of(self.folder)

    def wait(self, every_s: float = 1.0) -> Results:
        """The run as it is when it is over: done, failed, cancelled, interrupted or lost.

        Looks every ``every_s`` seconds; at a large journal less often: looking takes at most a tenth of the time.
        """
        status.wait(self.folder, every_s)
        return Results(self.folder)

    @cached_property
    def rows(self) -> Rows:
        """One row per trial, finished or not, in the order of the sweep."""
        return Rows(table.rows(self.folder))

    @property
    def arrow(self) -> pyarrow.Table:
        """The rows as a ``pyarrow.Table``: of a run that has ended its Parquet file, else made of the journal."""
        found = finished_table(self.folder)
        return table.arrow(self.folder) if found is None else found

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

    @cached_property
    def gradients(self) -> Arrays:
        """Trial to its gradients by name; large ones are mapped from their files when they are asked for."""
        return Arrays(self.folder, self._replay, "gradients")

    @cached_property
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
    def tags(self) -> tuple[str, ...]:
        """The tags of the run, sorted, as they are now."""
        return labels_of(self.folder).tags

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes on the run as they are now, the oldest first."""
        return tuple(one.text for one in labels_of(self.folder).notes)

    def tag(self, *names: str, remove: bool = False) -> None:
        """Give tags to the run, or take them away, as ``qdrun tag``. Raises ``WrongLabel``."""
        labels.tag(self.folder, names, remove=remove)

    def note(self, text: str) -> None:
        """Add a note to the run, as ``qdrun note``. Raises ``WrongLabel``."""
        labels.note(self.folder, text)

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
        from .query.picking import best_place
        from .query.run_table import RunTable

        rows = RunTable.of(self.rows)
        place = best_place(rows, column, rows.names)
        return None if place is None else self.rows[place]


def load(run: str | os.PathLike[str], runs: str | os.PathLike[str] = "runs") -> Results:
    """Return a run, finished or not.

    Args:
        run: its folder or URI, its id, its name, or ``latest``. Of several runs with this name the newest, with a warning.
        runs: folder or URI where runs lie, to look up ids.

    Raises:
        RunNotFound: there is no such run; names those that there are.
    """
    return Results(find(os.fspath(run), runs, newest=True))


def plan(
    config: str | os.PathLike[str] | type[Job[Any]],
    *,
    overrides: Sequence[str] = (),
    params: Mapping[str, Any] | BaseModel | None = None,
    sweep: Mapping[str, Any] | None = None,
    gradients: Sequence[str] | None = None,
    **keys: Any,
) -> SweepPlan:
    """The trials of a sweep, their memory and their placement; nothing is run. The arguments are those of ``submit``.

    Raises:
        ConfigError, TargetError, WrongArgument: see ``submit``.
    """
    from .observe.planned import plan_of

    keys |= {"params": params, "sweep": sweep, "gradients": gradients}
    prepared, job, _ = _prepared(config, overrides, keys)
    return plan_of(prepared, job)


def submit(
    config: str | os.PathLike[str] | type[Job[Any]],
    *,
    overrides: Sequence[str] = (),
    output: str | os.PathLike[str] | None = None,
    address: str | None = None,
    dashboard: bool = False,
    quiet: bool | None = None,
    detach: bool = False,
    debug: bool = False,
    params: Mapping[str, Any] | BaseModel | None = None,
    sweep: Mapping[str, Any] | None = None,
    gradients: Sequence[str] | None = None,
    **keys: Any,
) -> Results:
    """Run a sweep and wait for its end, as ``qdrun submit`` does. Trials that fail are rows, not exceptions.

    A Ray that is open in this process is used, and stays open; otherwise one is started for the run.

    Args:
        config: the YAML file; or the class of a job, whose config the arguments below make. Workers import the class from its module or
            file. One that a notebook defines travels as text, with the definitions that it uses. A script must call ``submit`` below
            ``if __name__ == "__main__"``.
        overrides: of keys of the config, as in ``["limits.memory=1GiB"]``. ``job.target=__main__:Name`` names a job of the script that
            runs.
        output: folder or URI for the run, instead of that of the config.
        address: of a Ray cluster to join, host:port; http://host:port to run it there as a Ray Job; None: run here.
        dashboard: start Ray's dashboard, on 127.0.0.1.
        quiet: show no progress; None: show it in notebooks.
        detach: hand the run to a process of its own, or to the cluster, and return when it has begun; see ``Results.wait``.
        debug: check every index, assert and NaN in the kernels, as ``debug: true`` in the config.
        params: of a class: parameters that are not the defaults, or an instance of ``Params``.
        sweep: of a class: the swept parameters, as in ``{"mass": [1, 2, 3]}``, or a whole ``sweep`` section.
        gradients: of a class: their names; None: all.
        keys: of a class: other keys of the config: ``limits={"memory": "1GiB"}``, ``name``, ``device``, ``optimize`` and so on.

    Raises:
        ConfigError: anything in the config is wrong.
        WrongArgument: ``config`` is neither a file nor a job, or keys of a config are given with a file.
        CannotPlan: the job can be built for no trial; nothing was started.
        TargetError: workers cannot import the job, or ``submit`` is called while the job's file is imported.
        ClusterError: Ray cannot be started or joined; no trial was started.
        NotStarted: the process of a detached run ended before the run began.
        StorageFull: there is no room for the run.
    """
    from .engine.session import submit as run
    from .observe.notebook import in_notebook
    from .observe.timing import Timing
    from .provenance.again import KEPT_OF, NOTEBOOK

    quiet = not in_notebook() if quiet is None else quiet
    keys |= {"params": params, "sweep": sweep, "gradients": gradients}
    prepared, job, source = _prepared(config, overrides, keys, address=address, debug=debug)
    now = clock.now()
    where = expanded(os.fspath(output)) if output is not None else prepared.loaded.config.uri
    timing, more = Timing(command_t=now, submitted_t=now), {KEPT_OF: NOTEBOOK} if source.own else None
    if detach or (address is not None and address.startswith(("http://", "https://"))):
        from .remote.detach import Order, follow, submit_detached

        made = submit_detached(prepared, where, Order(timing, address, dashboard), more)
        return Results(made.folder if detach else follow(made, timing, quiet=quiet).folder)
    done = run(prepared, job, output=where, timing=timing, address=address, dashboard=dashboard, quiet=quiet, more=more)
    return Results(done.folder)


def _prepared(
    config: str | os.PathLike[str] | type[Job[Any]],
    overrides: Sequence[str],
    keys: Mapping[str, Any],
    *,
    address: str | None = None,
    debug: bool = False,
) -> tuple[Prepared, type[Job[Any]], ConfigSource]:
    from .interactive.configs import config_source
    from .remote.cluster_inventory import devices_at
    from .search.warm_start import warm_started
    from .study.prepare import prepare
    from .study.target import importable, refuse_while_loading

    refuse_while_loading()
    source = config_source(config, keys)
    changes = [
        f"{TARGET}{importable(text.removeprefix(TARGET).strip())}" if text.startswith(f"{TARGET}__main__:") else text
        for text in overrides
    ]
    how = {"local": address is None, "overrides": changes, "debug": debug, "cluster": devices_at(address)}
    prepared, job = prepare(source.path, text=source.text, root=source.root, **how)
    return warm_started(prepared, job), job, source
