"""What all commands share: arguments and options with their completion; see ``commands/output.py`` for what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .commands.output import print_document, print_json, print_rows, reported


def complete_runs(ctx: typer.Context, incomplete: str) -> list[str]:
    """The runs in the folder of `--runs`, the latest first, for a shell's completion."""
    folder = Path(str(ctx.params.get("runs") or "runs"))
    names = [entry.name for entry in folder.iterdir() if (entry / "run.json").is_file()] if folder.is_dir() else []
    return sorted((name for name in names if name.startswith(incomplete)), reverse=True)


def complete_keys(incomplete: str) -> list[str]:
    """The keys of a config that begin with what was typed, each with its `=`, for a shell's completion."""
    from .schema import keys

    return [f"{key}=" for key in keys() if key.startswith(incomplete)]


def complete_configs(incomplete: str) -> list[str]:
    """YAML files and folders that begin with what was typed, for a shell's completion."""
    folder, _, start = incomplete.rpartition("/")
    prefix = f"{folder}/" if folder or incomplete.startswith("/") else ""
    found = sorted(Path(prefix or ".").glob(f"{start}*")) if Path(prefix or ".").is_dir() else []
    named = [prefix + path.name + ("/" if path.is_dir() else "") for path in found]
    return [name for name in named if name.endswith(("/", ".yaml", ".yml"))]


Config = Annotated[Path, typer.Argument(help="YAML file of the run.", autocompletion=complete_configs)]
Run = Annotated[
    str, typer.Argument(help="Folder or URI of a run, its id or a part of it, or `latest`.", autocompletion=complete_runs)
]
Trial = Annotated[str | None, typer.Argument(help="Id of a trial, its beginning, or @n: its place in the sweep, from 0.")]
Runs = Annotated[str, typer.Option("--runs", help="Folder or URI where runs lie, to look up ids.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Set = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set a key of the config, as in `--set limits.memory=1GiB`; may be given several times.",
        autocompletion=complete_keys,
    ),
]

Debug = Annotated[
    bool,
    typer.Option(
        "--debug",
        help="Check every index, assert and NaN in the kernels: slow, and each error names its line; as `debug: true` in the config.",
    ),
]

__all__ = ["Config", "Debug", "Json", "Run", "Runs", "Set", "Trial", "print_document", "print_json", "print_rows", "reported"]
