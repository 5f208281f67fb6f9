"""The commands ``qdrun rm`` and ``qdrun gc``: they show what they would remove, and remove it when that is confirmed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...text_grid import amount, grid
from ...visible import visible
from ..base import Json, Runs, complete_runs, print_document, reported
from ..looking import State

if TYPE_CHECKING:
    from ...upkeep.caches import CacheEntry
    from ...upkeep.removal import Removal

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Remove without asking.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be removed, and remove nothing.")]


def rm(
    run: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Folders, URIs or ids of runs, or parts of ids.", autocompletion=complete_runs),
    ],
    yes: Yes = False,
    dry_run: DryRun = False,
    runs: Runs = "runs",
    as_json: Json = False,
) -> None:
    """Remove runs with all of their files.

    Shows what that frees and asks first; without a terminal, nothing is removed unless --yes is given. A run that is running, or queued in
    a cluster, is refused. Other files in the folder of a run stay.
    """
    with reported(as_json):
        from ...store.layout import find
        from ...upkeep.removal import check_removable, removal_of

        found = [
            removal_of(folder) for folder in {folder.uri: folder for folder in (find(name, runs) for name in run)}.values()
        ]
        for one in found:
            check_removable(one)
        _carry_out("rm", found, [], yes=yes, dry_run=dry_run, as_json=as_json)


def gc(
    states: Annotated[
        list[State],
        typer.Option(
            "--state", metavar="STATE", help="Also remove the runs in this state that are old and have no tag. Can be repeated."
        ),
    ] = [],  # noqa: B006
    older: Annotated[
        str,
        typer.Option(
            "--older-than", metavar="TIME", help="Age of runs, and of unused entries of caches, as in `30d` or `12h`."
        ),
    ] = "30d",
    cache: Annotated[str, typer.Option("--cache", metavar="SIZE", help="Size that caches may have together.")] = "20GiB",
    yes: Yes = False,
    dry_run: DryRun = False,
    runs: Runs = "runs",
    as_json: Json = False,
) -> None:
    """Remove unused entries of the caches in ~/.cache/qdrun, old runs, and what is left of runs that were killed while they were made.

    The caches keep downloaded inputs, the code of runs that ran again, and jobs of notebooks. Shows what that frees and asks first;
    without a terminal, nothing is removed unless --yes is given. Runs that are running or have a tag stay, and so do entries that were used
    within a day.
    """
    age_s, most = _seconds(older), _bytes(cache)
    with reported(as_json):
        from ...store.layout import all_runs
        from ...upkeep.caches import entries, unwanted
        from ...upkeep.removal import old, removal_of, unmade

        words = [state.value for state in states if state is not State.running]
        found = [one for folder in (all_runs(runs) if words else ()) if old(one := removal_of(folder), words, age_s)]
        found += unmade(runs, age_s)
        _carry_out("gc", found, unwanted(entries(), age_s, most), yes=yes, dry_run=dry_run, as_json=as_json)


def _seconds(text: str) -> float:
    from ...config.values import Seconds

    return _parsed(Seconds, text, "--older-than", "30d, 12h, 90min")


def _bytes(text: str) -> int:
    from ...config.values import Bytes

    return _parsed(Bytes, text, "--cache", "20GiB, 512MiB")


def _parsed(kind: Any, text: str, option: str, examples: str) -> Any:
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_python(text)
    except ValidationError as error:
        raise typer.BadParameter(f"{error.errors()[0]['msg']}; write it as {examples}", param_hint=option) from None


def _carry_out(
    command: str, found: Sequence[Removal], cached: Sequence[CacheEntry], *, yes: bool, dry_run: bool, as_json: bool
) -> None:
    """Show what goes, ask, and remove it."""
    from ...upkeep.caches import remove_entries
    from ...upkeep.removal import RemovedDocument, remove

    total = sum(one.bytes for one in (*found, *cached))
    if not as_json:
        print(_shown(found, cached, total))
    sure = bool(found or cached) and not dry_run and (yes or (not as_json and _asked(len(found), len(cached), total)))
    if sure:
        for one in found:
            remove(one)
        remove_entries(cached)
    if as_json:
        print_document(command, RemovedDocument(found, cached, total, sure))
    elif sure:
        print(f"removed: {amount(total)}")
    elif (found or cached) and not dry_run:
        print("nothing was removed\n  do: --yes removes it without a question", file=sys.stderr)


def _asked(runs: int, cached: int, total: int) -> bool:
    from ..confirmation import on_terminal

    if not on_terminal():
        return False
    what = " and ".join([f"{runs} runs"] * bool(runs) + [f"{cached} entries of caches"] * bool(cached))
    print(f"\nremove {what}, {amount(total)}? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _shown(found: Sequence[Removal], cached: Sequence[CacheEntry], total: int) -> str:
    from ...upkeep.caches import KINDS
    from ...upkeep.removal import age_text

    text: Callable[[Any], str] = lambda value: visible(str(value))  # noqa: E731
    parts = []
    if found:
        rows = [
            [one.run, one.state, age_text(one.age_s), ", ".join(one.tags) or "-", text(one.files), amount(one.bytes)]
            for one in found
        ]
        parts.append(grid(["run", "state", "age", "tags", "files", "frees"], rows))
        parts += [f"{one.run}: stays: {', '.join(map(text, one.stays))}" for one in found if one.stays]
    if cached:
        rows = [[entry.path.name, KINDS[entry.kind], age_text(entry.age_s), amount(entry.bytes)] for entry in cached]
        parts.append(grid(["entry", "of", "unused", "frees"], rows))
    return "\n\n".join([*parts, f"in all: {amount(total)}" if parts else "nothing to remove"])
