"""Failed trials in groups: of one error, at one line of the user's code, whatever numbers its message has."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from ...study.trials import counted
from .material import Material
from .page import folded, soft, text, trial_button

GROUPS, EXAMPLES, TRACE = 30, 8, 4000
"""Groups that are shown, trials that a group names, and the last letters of a trace."""
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?", re.I)
_FRAME = re.compile(r'^  File "([^"\n]+)", line (\d+)(?:, in (\S+))?\n(?:    (\S[^\n]*)\n)?', re.M)
_AT = re.compile(r"^  at (.+?):(\d+)(?: in (\S+))?$(?:\n    (\S[^\n]*)$)?", re.M)
_LIBRARY = re.compile(r"[/\\](?:site-packages|dist-packages|lib[/\\]python3[^/\\]*)[/\\]")


@dataclass(frozen=True)
class Line:
    """A line of Python in which an error arose; ``source`` is its text, where it is known."""

    file: str
    number: int
    function: str = ""
    source: str = ""

    def __str__(self) -> str:
        inside = f" in {self.function}" if self.function and self.function != "<module>" else ""
        return f"{os.path.basename(self.file)}:{self.number}{inside}"


def line_of(message: str, traceback: str) -> Line | None:
    """The innermost line outside of installed libraries, by the traceback, or by the message of an error of the compiler."""
    for pattern, searched in ((_AT, message), (_FRAME, traceback)):
        found = [Line(m[1], int(m[2]), m[3] or "", m[4] or "") for m in pattern.finditer(searched)]
        own = [line for line in found if not _LIBRARY.search(line.file)]
        if own:
            return own[0] if pattern is _AT else own[-1]
    return None


@dataclass
class FailureGroup:
    """Failed trials of one kind: the error's type, its line, the first message, and the places of the trials in the run."""

    kind: str
    line: Line | None
    message: str
    traceback: str
    places: list[int] = field(default_factory=list)
    messages: set[str] = field(default_factory=set)


def grouped(run: Material) -> list[FailureGroup]:
    """The failed trials of a run, the largest group first."""
    groups = dict[tuple[str, str, str], FailureGroup]()
    for place in (place for place, word in enumerate(run.rows.column("status")) if word in ("failed", "poisoned")):
        row, entry = run.rows[place], run.found.state_at(place).entry
        traceback = str(((entry.event if entry else {}).get("error") or {}).get("traceback") or "")
        kind, message = str(row["error_type"] or row["failure"] or "failed"), str(row["error"] or "")
        line, first = line_of(message, traceback), (message.splitlines() or [""])[0]
        key = kind, str(line and (line.file, line.number)), _NUMBER.sub("..", first)
        group = groups.setdefault(key, FailureGroup(kind, line, message, traceback))
        group.places.append(place)
        group.messages.add(first)
    return sorted(groups.values(), key=lambda group: -len(group.places))


def failures(run: Material, place_of: Callable[[int], int | None]) -> list[str]:
    """The groups as HTML; ``place_of``: of a trial in the page's data, by its index in the run."""
    groups = grouped(run)
    parts = [_group(run, group, place_of) for group in groups[:GROUPS]]
    rest = groups[GROUPS:]
    if rest:
        parts.append(soft(f"and {counted(sum(len(group.places) for group in rest), 'trial')} in {len(rest)} more groups"))
    return parts


def _group(run: Material, group: FailureGroup, place_of: Callable[[int], int | None]) -> str:
    first = (group.message.splitlines() or [""])[0]
    at = f' <span class="soft">at {text(group.line)}</span>' if group.line else ""
    title = f"<b>{counted(len(group.places), 'trial')}</b> <b class='failed'>{text(group.kind)}</b>{at}<br>{text(first)}"
    others = len(group.messages) - 1
    source = f"<pre>{text(group.line.source)}</pre>" if group.line and group.line.source else ""
    more = soft(f"The numbers in the message differ between trials: {others + 1} messages.") if others else ""
    whole = f"<pre>{text(group.message)}</pre>" if "\n" in group.message else ""
    trace = folded("traceback of the first", f"<pre>{text(group.traceback[-TRACE:])}</pre>") if group.traceback else ""
    trials = " ".join(trial_button(place_of(place), run.trials[place].label) for place in group.places[:EXAMPLES])
    rest = len(group.places) - EXAMPLES
    trials += f" and {rest} more" if rest > 0 else ""
    return f'<details class="group" open><summary>{title}</summary>{source}{more}{whole}<p>{trials}</p>{trace}</details>'


__all__ = ["FailureGroup", "Line", "failures", "grouped", "line_of"]
