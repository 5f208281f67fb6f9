"""``trials.jsonl``: the trials of a run as columns, some hundred of them in each line. Damage is found line by line.

A line has the ids, of each parameter one value where all of its trials have that, or numbers as base64 of their bytes, or a list. The first
line of an older file begins with another key; the functions at the end read that.
"""

from __future__ import annotations

import base64
import re
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from ..store.encoding import Damaged, is_sealed, lossless, read_document, sealed
from ..store.files import Files, StorageFull
from ..value_columns import ABSENT, ValueColumn, from_base64, joined
from .trial_list import Trial, TrialNames, Trials
from .trials import trial_id

LINE_BYTES, MOST_OF_LINE = 1 << 16, 1 << 13
"""About the bytes of a line, and the most trials of one: a damaged line loses the parameters of all of them."""
PROBE = 32
TRIALS_FILE, ENDS = "trials.jsonl", "trials.jsonl: it ends after trial"
DIGITS = 12
_FIRST = b'{"ids":'
_IDS, _EACH = re.compile(rb'^\{"ids":"([^"]*)'), re.compile(rb'^\{"ids":\[((?:"[^"\\\\]{1,200}",?)*)')
_AT, _OF = re.compile(rb'"at":(\d+),"of":(\d+),'), re.compile(rb'"of":(\d+),')


@dataclass(frozen=True)
class TrialList:
    """The trials of a run, the damage of their lines, and the ids of trials with unknown parameters."""

    trials: Trials
    problems: list[str]
    damaged: frozenset[str] = frozenset()

    def so_far(self) -> TrialList:
        """The same of a file that is still being written, if it ends early."""
        problems, there = of_growing(self.problems)
        return self if there is None else TrialList(self.trials, problems, self.damaged.difference(self.trials.ids[there:]))


def of_growing(problems: list[str]) -> tuple[list[str], int | None]:
    """The damage of a file but for its early end, and how many trials are before that; None: it does not end early."""
    if not problems or not problems[-1].startswith(ENDS):
        return problems, None
    return problems[:-1], int(problems[-1].removeprefix(ENDS).split()[0])


def trial_lines(trials: Sequence[Trial]) -> bytes:
    """The text of ``trials.jsonl``. Each line says which trials it has, as ``at``, and how many there are, as ``of``."""
    made = Trials.of(trials)
    return _lines_of(made, 0, len(made), _step(made, len(made)))


def _step(trials: Trials, known: int) -> int:
    """Trials of a line. ``known``: of so many the ids are made."""
    few = min(PROBE, known)
    each = (len(_line(trials, 0, few)) - len(_line(trials, 0, 1))) // max(1, few - 1) if few else 1
    return max(1, min(MOST_OF_LINE, LINE_BYTES // max(1, each)))


def _lines_of(trials: Trials, begin: int, end: int, step: int) -> bytes:
    return b"".join(_line(trials, start, min(start + step, end)) for start in range(begin, end, step))


def write_as_made(files: Files, trials: Trials, names: TrialNames) -> None:
    """Write the first block of ``trials.jsonl``, and the others when ``names`` makes them.

    Raises:
        StorageFull: no room.
    """
    names.before(1)
    file, step, written = files.grow(TRIALS_FILE), _step(trials, len(names.made_ids)), 0

    def more() -> None:
        nonlocal written
        stop = len(names.made_seeds)
        if written < stop:
            file.append(_lines_of(trials, written, stop, step))
            written = stop
            if stop == len(trials):
                file.close()

    def write() -> bool:
        with suppress(StorageFull):  # it is tried again with the next block, and at the end of the run
            more()
        return written == len(trials)

    more()
    file.sync()
    names.write = write


def _line(trials: Trials, start: int, stop: int) -> bytes:
    part = trials.part(start, stop)
    usual = all(len(name) == DIGITS and not name.strip("0123456789abcdef") for name in part.ids)
    line: dict[str, Any] = {"ids": "".join(part.ids) if usual else list(part.ids), "at": start, "of": len(trials)}
    if list(part.indices) != list(range(start, stop)):
        line["index"] = list(part.indices)
    line |= {"replicate": _stored(ValueColumn.of(list(part.replicates))), "seed": _stored(ValueColumn(list(part.seeds)))}
    line["swept"] = {name: _stored(column) for name, column in part.swept.items()}
    line["params"] = (
        {name: _stored(column) for name, column in part.columns.items()} if part.uneven is None else list(part.uneven)
    )
    numbers = part.uneven is None and all(
        column.distinct_numbers() is not None for column in (*part.swept.values(), *part.columns.values())
    )
    return sealed(lossless(line), looked_through=numbers) + b"\n"


def _stored(column: ValueColumn) -> Any:
    """A column as JSON: a map of one value, or of the bytes of numbers, or a list; ``[]`` for a value that is not there."""
    if column.is_shared and column.values[0] is not ABSENT:
        return {"one": column[0]}
    numbers = column.numbers()
    if numbers is None:
        return [[] if value is ABSENT else [value] for value in column]
    data = base64.b64encode(np.ascontiguousarray(numbers, numbers.dtype.newbyteorder("<")).tobytes()).decode()
    return {"f8" if numbers.dtype.kind == "f" else "i8": data, "shape": list(numbers.shape)}


def _loaded(stored: Any, count: int) -> ValueColumn:
    """The column of ``_stored``."""
    if isinstance(stored, list):
        return ValueColumn.of([value[0] if value else ABSENT for value in stored])
    if "one" in stored:
        return ValueColumn.shared(stored["one"], count)
    kind = "f8" if "f8" in stored else "i8"
    return ValueColumn(from_base64(stored[kind], f"<{kind}", stored["shape"]))


def _trials_of(line: Mapping[str, Any], ids: list[str]) -> Trials:
    count, at, params = len(ids), line["at"], line["params"]
    columns = lambda stored: {name: _loaded(one, count) for name, one in stored.items()}  # noqa: E731
    heads = (ids, line.get("index", range(at, at + count)), _loaded(line["replicate"], count), _loaded(line["seed"], count))
    if isinstance(params, list):  # they have different names
        return Trials.of(
            [
                one.model_copy(update={"params": own})
                for one, own in zip(Trials(*heads, columns(line["swept"]), {}), params, strict=True)
            ]
        )
    return Trials(*heads, columns(line["swept"]), columns(params))


def _split(text: str) -> list[str]:
    return [text[k : k + DIGITS] for k in range(0, len(text) - DIGITS + 1, DIGITS)]


def _is_old(data: bytes) -> bool:
    return data.startswith(b'{"id":') and _FIRST not in data


def read_trials(data: bytes) -> TrialList:
    """The trials of ``trials.jsonl``, as far as they can be read: of a damaged line come trials without parameters."""
    if _is_old(data):
        trials, problems, lost = _old_trials(data)
        return TrialList(Trials.of(trials), problems, frozenset(lost))
    parts, problems, damaged = list[Trials](), list[str](), set[str]()
    for names, at, line in _lines(data, problems):
        if line is None:
            damaged |= {*names}
            blank = [Trial(id=name, index=at + k, replicate=0, seed=0, swept={}, params={}) for k, name in enumerate(names)]
            parts.append(Trials.of(blank))
        else:
            parts.append(_trials_of(read_document(line), names))
    return TrialList(_joined(parts), problems, frozenset(damaged))


def _joined(parts: Sequence[Trials]) -> Trials:
    """The trials of several lines."""
    if not parts:
        return Trials.of([])
    first = parts[0]
    if any(part.uneven is not None or part.columns.keys() != first.columns.keys() for part in parts):
        return Trials.of(chain.from_iterable(parts))
    indices, replicates, seeds = (_integers([getattr(p, name) for p in parts]) for name in ("indices", "replicates", "seeds"))
    swept = {
        name: joined([part.swept.get(name, ValueColumn.shared(ABSENT, len(part))) for part in parts])
        for name in dict.fromkeys(chain.from_iterable(part.swept for part in parts))
    }
    columns = {name: joined([part.columns[name] for part in parts]) for name in first.columns}
    ids = list(chain.from_iterable(part.ids for part in parts))
    all_there = indices == array("q", range(len(ids)))
    return Trials(ids, range(len(ids)) if all_there else indices, replicates, seeds, swept, columns)


def _integers(parts: Sequence[Sequence[int]]) -> Sequence[int]:
    found = joined([part if isinstance(part, ValueColumn) else ValueColumn(list(part)) for part in parts])
    numbers = found.numbers()
    return found.tolist() if numbers is None else array("q", numbers.tobytes())


def _lines(data: bytes, problems: list[str]) -> list[tuple[list[str], int, bytes | None]]:
    """For each line the ids of its trials, the place of the first one, and the line; None where it is damaged: ``problems`` says so."""
    lines = data.split(b"\n")
    lines = lines if lines[-1] else lines[:-1]
    known = [_AT.search(line) if is_sealed(line) else None for line in lines]
    of = max((int(one[2]) for one in known if one is not None), default=0) or max(
        (int(n) for n in _OF.findall(data)), default=0
    )
    found, place = list[tuple[list[str], int, bytes | None]](), 0
    for number, (line, one) in enumerate(zip(lines, known, strict=True), 1):
        names = _names(line, one is not None)
        if one is not None:
            place = int(one[1])
            found.append((names, place, line))
        else:
            least = place + max(1, len(names))
            after = next((int(later[1]) for later in known[number:] if later is not None), of or least)
            count = min(after, least) - place if number < len(lines) and known[number] is None else after - place
            names = [name or f"line-{place + k + 1}" for k, name in enumerate([*names, *[""] * (count - len(names))])][
                : max(0, count)
            ]
            found.append((names, place, None))
            problems.append(f"trials.jsonl, line {number}: {_why(line)}; the parameters of {_said(names)} are lost")
        place += len(names)
    if place < of:
        problems.append(f"{ENDS} {place} of {of}; the trials behind are lost")
        found.append(([f"line-{k + 1}" for k in range(place, of)], place, None))
    return found


def _names(line: bytes, is_whole: bool) -> list[str]:
    """The ids that a line begins with; empty ones where they are damaged."""
    usual, each = _IDS.match(line), _EACH.match(line)
    if usual is not None:
        found = _split(usual[1].decode("ascii", "replace"))
        return found if is_whole else [name if name.isalnum() else "" for name in found]
    if each is not None and is_whole:
        return list(read_document(line)["ids"])
    return [name.strip(b'"').decode("utf-8", "replace") for name in each[1].split(b",") if name] if each is not None else []


def _why(line: bytes) -> str:
    try:
        read_document(line)
    except Damaged as error:
        return str(error)
    return "it does not say which trials it has"


def _said(names: Sequence[str]) -> str:
    few = ", ".join(names[:3])
    return f"trial {few}" if len(names) == 1 else f"{len(names)} trials ({few}{', ..' if len(names) > 3 else ''})"


def ids_of(data: bytes) -> tuple[list[str], list[str]]:
    """The ids of the trials, and the damage; lines that are as they were written are not decoded."""
    if _is_old(data):
        return _old_ids(data)
    problems = list[str]()
    return list(chain.from_iterable(names for names, _, _ in _lines(data, problems))), problems


def trial_of(data: bytes, name: str) -> Trial | None:
    """One trial by its id; None where its line is damaged or gone."""
    if _is_old(data):
        found = read_trials(data)
        return None if name in found.damaged else found.trials.named.get(name)
    for names, _, line in _lines(data, []):
        if line is not None and name in names:
            return _trials_of(read_document(line), names)[names.index(name)]
    return None


def is_complete(data: bytes) -> bool:
    """Whether all lines are there, as they were written; nothing of them is decoded."""
    ids, problems = ids_of(data)
    return bool(ids) and not problems


# Formats 3 and 4 of run folders: each line has one trial, with all of its parameters.

_OLD_FIRST = b'{"id":"'
_OLD_OF = re.compile(rb'"of":(\d+),"crc"')


def _old_trials(data: bytes) -> tuple[list[Trial], list[str], set[str]]:
    """The trials, the damage, and the ids of trials whose parameters are lost.

    Ids are computed again: parameters that are not those of the id are damage, too.
    """
    lines, problems = _old_lines(data)
    trials, damaged = list[Trial](), set[str]()
    for number, line in enumerate(lines, 1):
        wrong = line.pop("damaged", False)
        trial = Trial.model_validate(line)
        if not wrong and trial.id != trial_id(trial.params, trial.replicate):
            wrong = True
            problems.append(f"trials.jsonl, line {number}: its parameters are not those of its id, {trial.id}")
        damaged |= {trial.id} if wrong else set()
        trials.append(trial)
    return trials, problems, damaged


def _old_ids(data: bytes) -> tuple[list[str], list[str]]:
    """The ids of the trials, and the damage, as ``_old_trials`` gives them. Lines that are as they were written are not decoded."""
    lines = data.split(b"\n")
    count = _OLD_OF.search(lines[-1]) if not lines.pop() and lines else None
    if count is not None and int(count[1]) == len(lines) and all(map(is_sealed, lines)):
        texts = [line[len(_OLD_FIRST) : line.index(b'"', len(_OLD_FIRST))] for line in lines if line.startswith(_OLD_FIRST)]
        if len(texts) == len(lines) and b"\\" not in (text := b"\n".join(texts)):
            return text.decode().split("\n"), []
    found, problems = _old_lines(data)
    return [members["id"] for members in found], problems


def _old_lines(data: bytes) -> tuple[list[dict[str, Any]], list[str]]:
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


__all__ = ["TrialList", "ids_of", "is_complete", "of_growing", "read_trials", "trial_lines", "trial_of", "write_as_made"]
