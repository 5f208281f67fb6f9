"""Which code a run goes on with: the code that its folder keeps, or, if its user asks for it, the files as they are now."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from ..jobcode import store
from ..jobcode.closure import read_again
from ..jobcode.live import live_changes
from ..jobcode.modules import ImportKind, JobCode, changes
from ..optimize.kept import DESCENT, forget_batches
from ..store.layout import TRIALS, ConfigChanged, RunFolder
from ..study.target import Target, TargetError, code_of, kept_target, resolve
from .again import KEPT_OF
from .record import inputs_of

CodeChange = Literal["kept", "new"]
SHOWN = 5


class CodeChanged(ConfigChanged):
    """The files of a run's job have changed since it was made. ``changes``: each of them, as text."""

    def __init__(self, message: str, changes: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.changes = changes


def code_changed(folder: RunFolder, found: Sequence[str], command: str = "") -> CodeChanged:
    """The error of a run whose code has changed. ``command``: that goes on."""
    shown = [f"  {text}" for text in found[:SHOWN]] + ([f"  and {len(found) - SHOWN} more"] if len(found) > SHOWN else [])
    go_on = command or f"qdrun resume {folder.uri}"
    return CodeChanged(
        "\n".join([f"the code of {folder.name} has changed since the run was made", *shown]) + f"\n  do: `{go_on} --code kept` "
        "goes on with the code that the run keeps, `--code new` with the present files; rows then say which code they come from",
        found,
    )


def code_for(folder: RunFolder, code: CodeChange | None = None, *, home: str = "") -> Target | None:
    """The job of a run with the code to go on with; None for a run that keeps none, which an older qdrun has made.

    Args:
        folder: of the run.
        code: where its files have changed: the kept code, or the new one; None: refuse.
        home: see ``Target``. Where it is given, the user's files are not here, and are not compared.

    Raises:
        CodeChanged: they have changed, and ``code`` is None.
        NotKept: a file of the kept code is missing, or damaged.
        TargetError: ``new`` is asked for, and there is no job at its place any more.
    """
    known = store.versions(folder.files)
    if not known.all:
        return None
    then = store.read(folder.files, known.current)
    text = str(folder.config()["job"]["target"])
    mine = kept_target(text, then, home=home, label=known.label(known.current))
    if home or code == "kept":
        return mine
    now, found = _compared(folder, text, then)
    if not found:
        return mine
    if code is None:
        raise code_changed(folder, found)
    if now is None:
        raise TargetError(f"there is no job at {text} any more\n  do: `qdrun resume {folder.uri} --code kept`")
    return now.model_copy(update={"label": known.label(now.code)})


def code_changes(folder: RunFolder) -> list[str]:
    """How the files of a run's job differ from the code that the run keeps, as text; nothing of a run that keeps none."""
    known = store.versions(folder.files)
    if not known.all or KEPT_OF in folder.info():
        return []
    return _compared(folder, str(folder.config()["job"]["target"]), store.read(folder.files, known.current))[1]


def adopt(folder: RunFolder, target: Target) -> None:
    """Keep the code of a job in the folder of its run, from which its workers import it. To be called by the owner of the run.

    What descents have reached with other code is removed: the rest of such a descent would give a row of two codes.

    Raises:
        StorageFull: no room.
    """
    if target.code == store.versions(folder.files).current:
        return
    forget_batches(folder.files)
    for path in folder.files.below(TRIALS):
        if path.endswith(DESCENT):
            folder.files.remove(path)
    store.save(folder.files, code_of(target))


def _compared(folder: RunFolder, text: str, then: JobCode) -> tuple[Target | None, list[str]]:
    """The job as it is on disk now, and how its code differs from ``then``."""
    try:
        now = resolve(text, Path(str(folder.info()["config"])).parent, then.root)
        found = changes(then, code_of(now))
    except TargetError as error:
        now, found = None, [str(error).partition("\n")[0].partition(";")[0]]
    found += live_changes(then.live, [one.origin for one in inputs_of(folder.files)])  # inputs are compared by themselves
    used = set(folder.files.names(store.USED))
    for one in then.modules.values():
        if one.found is ImportKind.imported or (one.found is ImportKind.spare and one.name in used):
            data = read_again(one)
            if data != one.data:
                found.append(f"{one.origin} {'is gone' if data is None else 'was edited'}")
    return now, list(dict.fromkeys(found))


__all__ = ["CodeChange", "CodeChanged", "adopt", "code_changed", "code_changes", "code_for"]
