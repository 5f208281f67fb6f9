"""The text of ``trials.jsonl``: the trials of a run with their parameters, one a line. Damage is found line by line."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np

from ..store.encoding import Damaged, is_sealed, lossless, read_document, sealed, untagged_keys
from .trial_list import Trial, Trials, filled, members
from .trials import trial_id


@dataclass(frozen=True)
class TrialList:
    """The trials of a run, the damage of their lines, and the ids of trials with unknown parameters."""

    trials: list[Trial]
    problems: list[str]
    damaged: frozenset[str] = frozenset()


def trial_lines(trials: Sequence[Trial]) -> bytes:
    """The text of ``trials.jsonl``. Each line says, as ``of``, how many there are."""
    made = Trials.of(trials)
    if made.uneven is not None or not made.columns or not untagged_keys(made.columns):
        return b"".join(sealed(lossless(trial.model_dump() | {"of": len(made)})) + b"\n" for trial in made)
    text = lambda value: lossless(value).decode()  # noqa: E731
    head = {"id": made.ids, "index": made.indices, "replicate": made.replicates, "seed": made.seeds}
    names = made.swept[0].keys()
    same = untagged_keys(names) and all(values.keys() == names for values in made.swept)
    swept = (
        members({name: [values[name] for values in made.swept] for name in names}, text)
        if same
        else [list(map(text, made.swept))]
    )
    parts = [*members(head, text)[:-1], ',"swept":', *swept, ',"params":', *members(made.columns, text), f',"of":{len(made)}}}']
    return b"".join(sealed(line.encode()) + b"\n" for line in filled(parts, len(made)))


def trials_of(lines: list[dict[str, Any]], problems: list[str]) -> TrialList:
    """The trials of ``trials.jsonl``. Their ids are computed again: parameters that are not those of the id are damage, too."""
    trials, damaged = [], set()
    for number, line in enumerate(lines, 1):
        wrong = line.pop("damaged", False)
        trial = Trial.model_validate(line)
        if not wrong and trial.id != trial_id(trial.params, trial.replicate):
            wrong = True
            problems.append(f"trials.jsonl, line {number}: its parameters are not those of its id, {trial.id}")
        damaged |= {trial.id} if wrong else set()
        trials.append(trial)
    return TrialList(trials, problems, frozenset(damaged))


class TrialIds(Sequence[str]):
    """The ids of the trials, each taken from its line of ``trials.jsonl`` when it is asked for. Nothing is checked.

    Args:
        read: gives the bytes of the file.
    """

    def __init__(self, read: Callable[[], bytes]) -> None:
        self._read = read

    @cached_property
    def _data(self) -> bytes:
        return self._read()

    @cached_property
    def _starts(self) -> list[int]:
        ends = np.flatnonzero(np.frombuffer(self._data, np.uint8) == ord("\n")) + 1
        return [0, *ends[ends < len(self._data)].tolist()] if self._data else []

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: int | slice) -> str | list[str]:
        if isinstance(place, slice):
            return [self[k] for k in range(*place.indices(len(self)))]
        head = _HEAD.match(self._data, self._starts[place])
        return head[1].decode() if head else f"line-{range(len(self))[place] + 1}"


_FIRST = b'{"id":"'
_HEAD, _OF = re.compile(rb'\{"id":"([^"\\\\]{1,200})",'), re.compile(rb'"of":(\d+),"crc"')


def ids_of(data: bytes) -> tuple[list[str], list[str]]:
    """The ids of the trials, and the damage, as ``parsed`` gives them. Lines that are as they were written are not decoded."""
    lines = data.split(b"\n")
    count = _OF.search(lines[-1]) if not lines.pop() and lines else None
    if count is not None and int(count[1]) == len(lines) and all(map(is_sealed, lines)):
        texts = [line[len(_FIRST) : line.index(b'"', len(_FIRST))] for line in lines if line.startswith(_FIRST)]
        if len(texts) == len(lines) and b"\\" not in (text := b"\n".join(texts)):
            return text.decode().split("\n"), []
    found, problems = parsed(data)
    return [members["id"] for members in found], problems


def parsed(data: bytes) -> tuple[list[dict[str, Any]], list[str]]:
    """The members of each line of ``trials.jsonl``, and the damage; a damaged line gives a trial with the id that it names."""
    found, problems, of = [], [], 0
    for number, line in enumerate(data.splitlines(), 1):
        try:
            members = read_document(line)
            of = max(of, members.pop("of"))
        except Damaged as error:
            said = re.match(rb'\{"id":"([0-9a-f]{12})"', line)
            name = said[1].decode() if said else f"line-{number}"
            members = {"id": name, "index": number - 1, "replicate": 0, "seed": 0, "swept": {}, "params": {}, "damaged": True}
            problems.append(f"trials.jsonl, line {number}: {error}; the parameters of trial {name} are lost")
        found.append(members)
    if len(found) < of:
        problems.append(f"trials.jsonl: it ends after line {len(found)} of {of}; the trials behind are lost")
    return found, problems


__all__ = ["TrialIds", "TrialList", "ids_of", "parsed", "trial_lines", "trials_of"]
