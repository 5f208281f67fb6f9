"""The command ``qdrun search``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ...clock import now
from ..base import Config, Debug, Json, Set, print_document, reported
from ..running import Address, Code, Quiet


def search(
    config: Config,
    changes: Set = [],  # noqa: B006 - typer makes a list of its own
    address: Address = None,
    output: Annotated[
        str | None,
        typer.Option(
            help="Folder or URI of the search; one that exists goes on. Default: a new one in `storage` of the config."
        ),
    ] = None,
    code: Annotated[
        Code | None,
        typer.Option(
            "--code", help="If the job's files changed since the last round: go on with its code, or with the new one."
        ),
    ] = None,
    debug: Debug = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Search for the least loss: rounds of trials, each chosen from the results of those before, as `search` in the config says."""
    with reported(as_json):
        from ...config.model import load_config
        from ...config.values import expanded
        from ...exit_codes import exit_code
        from ...rounds.driver import RoundSettings
        from ...rounds.driver import search as run
        from ..confirmation import which_code

        folder = expanded(output) if output else new_folder(load_config(config, changes).config.uri)
        where = RoundSettings(address, quiet=True, debug=debug, code=which_code((), code))
        silent = quiet or as_json
        if not silent:
            print(f"search: {folder}", file=sys.stderr)
        found = run(config, overrides=changes, folder=folder, where=where, told=(lambda line: None) if silent else _note)
        if as_json:
            print_document("search", found.result())
        elif found.best is None:
            print(f"{found.state}: no trial has a loss; rounds: {folder}/rounds")
        else:
            print(f"{found.state}: {found.spent:,} evaluations in {len(found.rounds)} rounds")
            print(f"best: loss {found.best['loss']:.9g} (trial {found.best['trial']} of {found.best_run})")
        if found.state not in ("done", "failed"):
            print(f"go on: qdrun search {config} --output {folder}", file=sys.stderr)
        raise typer.Exit(exit_code(found.state))


def new_folder(storage: str) -> str:
    """The place of a new search, by the time in UTC."""
    import time

    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now()))
    return f"{storage.rstrip('/')}/search-{stamp}"


def _note(line: str) -> None:
    print(line, file=sys.stderr)
