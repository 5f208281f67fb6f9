"""Generates docs/cli.md from the commands and the types of their documents: ``python -m qdrun.runner.cli.reference > docs/cli.md``."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, get_args, get_origin, get_type_hints

from typer.models import OptionInfo

from ..fields import Data
from .documents import TYPES, VERSION, adapter
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
    if name in TYPES:
        yield ""
        yield from _document(name)


def _document(name: str) -> Iterator[str]:
    schema = adapter(name).json_schema(mode="serialization")
    yield f"`qdrun.{name}/{VERSION}`: {schema['description'].partition(chr(10))[0]}"
    yield ""
    yield from _table(["field", "type", "meaning"], list(_fields(schema, schema.get("$defs", {}), "")))


def _fields(schema: Data, parts: Data, prefix: str) -> Iterator[list[str]]:
    """The rows of an object and of the objects inside it. ``parts``: the schemas that references name."""
    for name, field in schema["properties"].items():
        kind, inner = _type(field, parts)
        yield [f"`{prefix}{name}`", kind, field.get("description", "").replace("|", "\\|")]
        if inner is not None:
            yield from _fields(inner, parts, f"{prefix}{name}{'[]' if 'list' in kind else ''}.")


def _type(schema: Data, parts: Data) -> tuple[str, Data | None]:
    """Describe a type in words. Returns the text, and the object that the type contains if its fields are described."""
    if "anyOf" in schema:
        kinds = [_type(part, parts) for part in schema["anyOf"]]
        return " or ".join(text for text, _ in kinds), next((inner for _, inner in kinds if inner), None)
    if "$ref" in schema:
        inner = parts[schema["$ref"].rpartition("/")[2]]
        described = all("description" in field for field in inner["properties"].values())
        return ("object", inner) if described else ("map", None)
    kind = schema.get("type", "")
    if kind == "array":
        first = schema.get("items") or schema.get("prefixItems", [{}])[0]
        text, inner = _type(first, parts)
        return "list of " + (text if text.startswith("list of ") else f"{text}s"), inner
    if kind == "object":
        items = schema.get("additionalProperties")
        text = _type(items, parts)[0] if items and items is not True else ""
        return "map" + (f" to {text if text.startswith('list of ') else f'{text}s'}" if text else ""), None
    words = {"string": "text", "integer": "whole number", "number": "number", "boolean": "boolean", "null": "null"}
    return words.get(kind, "value"), None


def _table(headers: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in [headers, ["---"] * len(headers), *rows]]


if __name__ == "__main__":
    sys.stdout.write(page())
