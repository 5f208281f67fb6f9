"""Generates docs/cli.md from the commands and the models of their documents: ``python -m qdrun.runner.cli.reference > docs/cli.md``."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from typer.models import OptionInfo

from .documents import MODELS, VERSION
from .output import EXIT_CODES

HEAD = """# The command line

This is the reference of the `qdrun` command: its subcommands, their arguments and options, and the JSON documents that `--json` prints.
Look up options and fields here; [running-sweeps.md](running-sweeps.md) is the guide. The page is generated from the program
(`python -m qdrun.runner.cli.reference > docs/cli.md`).

With `--json` a command prints exactly one document on stdout. The output of a job during its build goes to stderr. An error is a document,
too, `qdrun.error/1`, which contains the exit code. The first field of each document is `schema`. Its number is raised when a field is
removed or changes its meaning; fields may be added at any time. Non-finite numbers are the texts `NaN`, `Infinity` and `-Infinity`.
`qdrun schema` and `--format json` print plain JSON without a `schema` field.

An unexpected exception of a job ends a command with exit code 1. Its traceback is on stderr, or in the document.
"""


@dataclass(frozen=True)
class Parameter:
    """An argument or an option of a command."""

    names: list[str]
    option: bool
    needed: bool
    value: str
    default: str
    help: str


def page() -> str:
    """Render docs/cli.md."""
    from .app import app

    lines = [HEAD, "## Exit codes", "", *_table(["code", "meaning"], [[str(k), text] for k, text in EXIT_CODES.items()])]
    for function in sorted((command.callback for command in app.registered_commands), key=lambda f: f.__name__ if f else ""):
        lines += ["", *_command(function)] if function is not None else []
    lines += ["", "## error", "", "Every command prints this document when it fails under `--json`.", "", *_document("error")]
    return "\n".join(lines) + "\n"


def parameters(function: Callable[..., Any]) -> list[Parameter]:
    """The arguments and options of a command, from its signature."""
    hints = get_type_hints(function, include_extras=True)
    return [_parameter(name, hints[name], p.default) for name, p in inspect.signature(function).parameters.items()]


def _parameter(name: str, hint: Any, default: Any) -> Parameter:
    annotation, info = get_args(hint)[:2]
    option, needed = isinstance(info, OptionInfo), default is inspect.Parameter.empty
    given = [word for word in (info.default, *(info.param_decls or ())) if isinstance(word, str)]
    names = given or [f"--{name.replace('_', '-')}"] if option else [name.upper()]
    kinds = [kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type) and kind is not type(None)]
    kind = kinds[-1] if get_origin(annotation) is not list else str
    words = [str(word.value) for word in kind] if issubclass(kind, Enum) else []
    plain_word = {int: "N", float: "X"}.get(kind, "TEXT")
    value = "" if kind is bool or not option else "\\|".join(words) or info.metavar or plain_word
    shown = "" if needed or default in (None, False, []) else f"`{default.value if isinstance(default, Enum) else default}`"
    return Parameter(names, option, needed, value, shown, (info.help or "").replace("|", "\\|"))


def _command(function: Callable[..., Any]) -> Iterator[str]:
    name, found = function.__name__, parameters(function)
    words = [p.names[0] if p.needed else f"[{p.names[0]}]" for p in found if not p.option]
    options = ["[OPTIONS]"] if any(p.option for p in found) else []
    yield f"## {name}"
    yield ""
    yield f"`{' '.join(['qdrun', name, *options, *words])}`"
    yield ""
    yield " ".join((inspect.getdoc(function) or "").split())
    rows = []
    for p in sorted(found, key=lambda p: p.option):
        said = ", ".join(f"`{word}`" for word in p.names) + (f" `{p.value}`" if p.value else "")
        rows.append([said, "needed" if p.needed else p.default, p.help])
    if rows:
        yield ""
        yield from _table(["argument or option", "default", "meaning"], rows)
    if name in MODELS:
        yield ""
        yield from _document(name)


def _document(name: str) -> Iterator[str]:
    model = MODELS[name]
    yield f"`qdrun.{name}/{VERSION}`: {(model.__doc__ or '').strip()}"
    yield ""
    yield from _table(["field", "type", "meaning"], list(_fields(model, "")))


def _fields(model: type[BaseModel], prefix: str) -> Iterator[list[str]]:
    for name, field in model.model_fields.items():
        kind, inner = _type(field.annotation)
        yield [f"`{prefix}{name}`", kind, (field.description or "").replace("|", "\\|")]
        if inner is not None:
            yield from _fields(inner, f"{prefix}{name}{'[]' if 'list' in kind else ''}.")


def _type(annotation: Any) -> tuple[str, type[BaseModel] | None]:
    """Describe a type in words. Returns the text, and the model that the type contains."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        parts = [_type(part) for part in inside]
        return " or ".join(text for text, _ in parts), next((inner for _, inner in parts if inner), None)
    if origin is list:
        text, inner = _type(inside[0])
        return f"list of {text}s", inner
    if origin is dict:
        return ("map" if inside[1] is Any else f"map to {_type(inside[1])[0]}s"), None
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "object", annotation
    words = {str: "text", int: "whole number", float: "number", bool: "boolean", type(None): "null", Any: "value"}
    return words[annotation], None


def _table(headers: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in [headers, ["---"] * len(headers), *rows]]


if __name__ == "__main__":
    sys.stdout.write(page())
