"""Gradients and outputs of a run by trial: read when they are asked for, mapped from the files where those are on this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..store.attempts import arrays_of, check_crc, check_inside, missing
from ..store.files import LocalFiles
from ..store.follower import EventReader
from ..store.layout import RunFolder
from ..store.replay import Replay

DTYPES = {
    **{"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1"},
    **{"U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?"},
}
"""The types of safetensors that numpy has."""
MOST_HEADER = 100 << 20
Array = np.ndarray[Any, Any]


class Arrays(Mapping[str, Mapping[str, Array]]):
    """Trial to its arrays by name, of the trials that have a row. Nothing is read before a trial is asked for."""

    def __init__(self, folder: RunFolder, found: Replay, kind: str) -> None:
        self._folder, self._kind, self._found = folder, kind, found
        self._lines = EventReader(folder)  # trials of a batch have one line

    def __getitem__(self, trial: str) -> Mapping[str, Array]:
        entry = self._found.trials[trial].entry
        if entry is None:
            raise KeyError(trial)
        record = self._lines.at(entry)
        files = self._folder.files
        if not isinstance(files, LocalFiles):
            return arrays_of(self._folder, record, self._kind)
        named: dict[str, Any] = record.get(self._kind) or {}
        inline = arrays_of(self._folder, {self._kind: {k: v for k, v in named.items() if not isinstance(v, dict)}}, self._kind)
        mapped: dict[str, dict[str, Array]] = {}
        for value in named.values():
            if isinstance(value, dict) and value["file"] not in mapped:
                mapped[value["file"]] = mapped_file(self._folder, str(value["file"]), record)
        return {k: mapped[v["file"]][k] if isinstance(v, dict) else inline[k] for k, v in named.items()}

    def __contains__(self, trial: object) -> bool:
        return isinstance(trial, str) and self._found.has_row(trial)

    def __iter__(self) -> Iterator[str]:
        return filter(self._found.has_row, self._found.trials)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"{self._kind} of {len(self)} trials of {self._folder.name}"


def mapped_file(folder: RunFolder, path: str, record: Mapping[str, Any]) -> dict[str, Array]:
    """The arrays of a safetensors file of a run, mapped read-only: read once for the checksum that ``record`` has of it, never copied.

    Raises:
        ResultMissing: the file is not there, is damaged, or lies outside of the run.
    """
    check_inside(folder, path)
    try:
        data = np.memmap(os.path.join(folder.uri, path), dtype=np.uint8, mode="r")
        check_crc(record, path, data.data)
        size = int.from_bytes(data[:8].tobytes(), "little")
        if size > min(MOST_HEADER, len(data) - 8):
            raise ValueError("its header is longer than the file")
        header = json.loads(data[8 : 8 + size].tobytes())
        return {k: _array(data[8 + size :], part) for k, part in header.items() if k != "__metadata__"}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise missing(folder, path, error) from error


def _array(data: Array, part: dict[str, Any]) -> Array:
    first, end = part["data_offsets"]
    dtype, shape = np.dtype(DTYPES[part["dtype"]]), tuple(part["shape"])
    if not 0 <= first <= end <= len(data) or end - first != dtype.itemsize * int(np.prod(shape, dtype=np.int64)):
        raise ValueError("its arrays do not fit into the file")
    return data[first:end].view(dtype).reshape(shape)
