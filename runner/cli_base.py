"""What all commands share: arguments, options with their completion, and how errors become messages and exit codes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from ..compiler.errors import QdrunError
from .yaml_lines import ConfigError


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
Run = Annotated[str, typer.Argument(help="Folder or URI of a run, or its id.", autocompletion=complete_runs)]
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


@contextmanager
def reported(as_json: bool) -> Iterator[None]:
    """Turn our errors into a message and an exit code: 2 for what is wrong before anything starts, 130 for Ctrl-C."""
    try:
        yield
    except ConfigError as error:
        _fail(error.as_json(), str(error), as_json)
    except BrokenPipeError:  # `qdrun results RUN | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (QdrunError, OSError) as error:
        _fail({"error": {"type": type(error).__name__, "message": str(error)}}, str(error), as_json)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _fail(data: dict[str, Any], text: str, as_json: bool) -> None:
    if as_json:
        print_json(data)
    else:
        print(text, file=sys.stderr)
    raise typer.Exit(2)


def print_json(data: Any) -> None:
    """Print one JSON document."""
    print(json.dumps(data, indent=1, allow_nan=False))
