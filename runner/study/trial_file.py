"""The text of ``trials.jsonl``: the trials of a run with their parameters, one a line. Damage is found line by line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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


_HEAD, _OF = re.compile(rb'\{"id":"([^"\\\\]{1,200})",'), re.compile(rb'"of":(\d+),"crc"')


def ids_of(data: bytes) -> tuple[list[str], list[str]]:
    """The ids of the trials, and the damage, as ``parsed`` gives them. Lines that are as they were written are not decoded."""
    lines = data.splitlines()
    heads, count = list(map(_HEAD.match, lines)), _OF.search(lines[-1]) if lines else None
    if count is not None and int(count[1]) == len(lines) and all(map(is_sealed, lines)):
        names = [head[1].decode() for head in heads if head is not None]
        if len(names) == len(lines):
            return names, []
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


__all__ = ["TrialList", "ids_of", "parsed", "trial_lines", "trials_of"]
