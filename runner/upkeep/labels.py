"""Tags and notes of a run: ``labels.json`` in its folder. The run itself does not read them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict

from ...compiler.errors import QdrunError
from ..clock import now
from ..fields import about
from ..store.encoding import document, read_document
from ..store.layout import RunFolder

FILE = "labels.json"
TAG = re.compile(r"\w[\w.:/+-]{0,63}")
NOTE_CHARACTERS = 4000


class WrongLabel(QdrunError, ValueError):
    """A tag or a note that cannot be kept."""


class Note(BaseModel):
    """A note."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    t: Annotated[float, about("when it was written, in seconds since 1970")]
    text: Annotated[str, about("what it says")]


class Labels(BaseModel):
    """The tags of a run, sorted, and its notes, the oldest first."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tags: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True)
class RunLabels:
    """The tags and notes of a run."""

    run: Annotated[str, about("its id")]
    tags: Annotated[tuple[str, ...], about("its tags, sorted")]
    notes: Annotated[tuple[Note, ...], about("its notes, the oldest first")]


def labels_of(folder: RunFolder) -> Labels:
    """The tags and notes of a run; none where there are none, or the file is damaged."""
    try:
        return Labels.model_validate(read_document(folder.files.read(FILE)))
    except (FileNotFoundError, ValueError):
        return Labels()


def tag(folder: RunFolder, names: Iterable[str], *, remove: bool = False) -> Labels:
    """Give tags to a run, or take them away; gives what it has then.

    Raises:
        WrongLabel: a name is no tag, or one to remove is not there.
        StorageFull: no room.
    """
    before, names = labels_of(folder), list(names)
    for name in names:
        if not TAG.fullmatch(name):
            raise WrongLabel(
                f"`{name}` is no tag\n  do: use letters, digits and . : / + - _, at most 64, as in `baseline` or `paper/fig2`"
            )
        if remove and name not in before.tags:
            raise WrongLabel(f"{folder.name} has no tag `{name}`\n  do: its tags: {', '.join(before.tags) or 'none'}")
    kept = {*before.tags} - {*names} if remove else {*before.tags, *names}
    return _written(folder, Labels(tags=tuple(sorted(kept)), notes=before.notes))


def note(folder: RunFolder, text: str) -> Labels:
    """Add a note to a run; gives what it has then.

    Raises:
        WrongLabel: the text is empty, or longer than ``NOTE_CHARACTERS``.
        StorageFull: no room.
    """
    text, before = text.strip(), labels_of(folder)
    if not text or len(text) > NOTE_CHARACTERS:
        raise WrongLabel(f"a note of {len(text)} characters\n  do: write between 1 and {NOTE_CHARACTERS}")
    return _written(folder, Labels(tags=before.tags, notes=(*before.notes, Note(t=now(), text=text))))


def _written(folder: RunFolder, labels: Labels) -> Labels:
    folder.files.put(FILE, document(labels.model_dump(mode="json"), indent=1))
    return labels


__all__ = ["FILE", "Labels", "Note", "RunLabels", "WrongLabel", "labels_of", "note", "tag"]
