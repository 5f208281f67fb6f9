"""TensorBoard: an event file for each trial, with its live values as scalars, its parameters and its end as those of the HParams page."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportMissingImports]
from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportMissingImports]
from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2  # pyright: ignore[reportMissingImports]
from tensorboard.plugins.hparams.summary_v2 import hparams_pb  # pyright: ignore[reportMissingImports]
from tensorboard.summary.writer.record_writer import RecordWriter  # pyright: ignore[reportMissingImports]

from ...compiler.errors import QdrunError
from ..config.export_section import TensorBoardExport
from ..config.values import expanded
from ..live.points import Logged
from ..store.files import LocalFiles
from ..store.layout import RunFolder
from .tracker import Beginning, numbers

NAME = "events.out.tfevents.{t:010}.qdrun"


class NoFolder(QdrunError, ValueError):
    """Event files cannot be written where the run is."""


class TensorBoard:
    """See ``tracker.Tracker``. A file is written anew when its trial begins, so that a second export replaces the first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, Path] = {}

    def begin(self, trial: Beginning) -> None:
        """A trial begins: its file, and its parameters."""
        label = re.sub(r"[^\w.,=+-]", "_", trial.label or trial.trial)[:100]
        path = self.folder / f"{trial.index:05}-{label}" / NAME.format(t=trial.index)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
        self._files[trial.trial] = path
        values = {
            name: value if isinstance(value, bool | int | float | str) else str(value) for name, value in trial.params.items()
        }
        started = hparams_pb(values, trial_id=trial.trial, start_time_secs=time.time())
        self._write(trial.trial, Event(wall_time=time.time(), file_version="brain.Event:2"), Event(summary=started))

    def log(self, logged: Logged) -> None:
        """Points of a trial."""
        events = []
        for k, (step, t) in enumerate(zip(logged.step.tolist(), logged.t.tolist(), strict=True)):
            values = [
                Summary.Value(tag=name, simple_value=float(column[k]))
                for name, column in logged.values.items()
                if column[k] == column[k]
            ]
            events.append(Event(wall_time=t, step=step, summary=Summary(value=values)))
        self._write(logged.trials[0], *events)

    def end(self, trial: str, record: Mapping[str, Any]) -> None:
        """A trial has ended: its numbers, and its status."""
        values = [Summary.Value(tag=f"result/{name}", simple_value=value) for name, value in numbers(record).items()]
        status = api_pb2.STATUS_SUCCESS if record.get("status") == "done" else api_pb2.STATUS_FAILURE
        ended = plugin_data_pb2.SessionEndInfo(status=status, end_time_secs=time.time())
        about = metadata.create_summary_metadata(plugin_data_pb2.HParamsPluginData(session_end_info=ended))
        values.append(Summary.Value(tag=metadata.SESSION_END_INFO_TAG, metadata=about, tensor=metadata.NULL_TENSOR))
        self._write(trial, Event(wall_time=time.time(), summary=Summary(value=values)))

    def close(self, state: str) -> None:
        """All files are closed already."""

    def _write(self, trial: str, *events: Any) -> None:
        with open(self._files[trial], "ab") as stream:
            writer = RecordWriter(stream)
            for event in events:
                writer.write(event.SerializeToString())


def open_tracker(folder: RunFolder, options: TensorBoardExport) -> TensorBoard:
    """The tracker of a run.

    Raises:
        NoFolder: the run is not on this machine, and no folder is given.
    """
    if options.folder is None and not isinstance(folder.files, LocalFiles):
        raise NoFolder(f"{folder.uri} is not on this machine\n  do: name a folder: export.tensorboard.folder")
    where = folder.path / "tensorboard" if options.folder is None else Path(expanded(options.folder)) / folder.name
    return TensorBoard(where)


__all__ = ["NoFolder", "TensorBoard", "open_tracker"]
