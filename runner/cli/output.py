"""What a command says: documents on a stdout that nothing else writes to, errors as text or as a document, exit codes."""

from __future__ import annotations

import ctypes
import io
import json
import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, replace
from typing import Annotated, Any, TextIO

import typer

from ...compiler.errors import QdrunError
from ..fields import about
from ..visible import visible

EXIT_CODES = {
    0: "success; for a run: all trials succeeded",
    1: "some trials failed, or the run was cancelled; `plan`, `explain`: a trial cannot be planned; `check`: gradients differ; "
    "an exception of the job",
    2: "the command, the config, or the run that it names is wrong; nothing was started",
    3: "`plan`: a trial fits on no device",
    4: "the cluster cannot be reached or started, or refuses the token",
    5: "the run was lost or interrupted; it can be resumed",
    130: "Ctrl-C",
}
_DOCUMENTS: list[TextIO] = []
"""Where documents go while ``sys.stdout`` leads to stderr; the last one counts."""


@dataclass(frozen=True)
class DescribedProblem:
    """One problem of a config."""

    what: Annotated[str, about("what is wrong")]
    file: Annotated[str, about("the file, or `--set`")]
    line: Annotated[int | None, about("the line number")]
    key: Annotated[str, about("the dotted name of the key")]
    allowed: Annotated[list[Any], about("the allowed values")]
    hint: Annotated[str, about("what to do")]


@dataclass(frozen=True)
class ErrorPart:
    """What went wrong."""

    type: Annotated[str, about("`ConfigError`, `UsageError`, or the name of the exception")]
    message: Annotated[str, about("what happened, where, what to do")]
    problems: Annotated[list[DescribedProblem] | None, about("the problems of a `ConfigError`")] = None
    traceback: Annotated[str | None, about("the traceback of an exception of the job")] = None


@dataclass(frozen=True)
class ErrorDocument:
    """The document of every command that fails."""

    error: Annotated[ErrorPart, about("what went wrong")]
    exit_code: Annotated[int, about("the exit code of the command")]


@contextmanager
def reported(as_json: bool) -> Iterator[None]:
    """Turn errors into a message, or into a document, and an exit code; what a job prints meanwhile goes to stderr.

    Ours end with their own ``exit_code``, 2 where they have none; others, of the job, with 1 and their traceback; Ctrl-C with 130.
    """
    from ...compiler.versions import new_enough

    try:
        with _documents_alone() if as_json else redirected_to_nothing():
            try:
                with new_enough():
                    yield
            except (typer.Exit, typer.Abort, BrokenPipeError, KeyboardInterrupt):
                raise
            except (QdrunError, OSError) as error:
                _fail(described(error), str(error), as_json, getattr(error, "exit_code", 2))
            except Exception as error:
                if not as_json:
                    raise
                _fail(replace(described(error), traceback=traceback.format_exc()), "", as_json, 1)
    except BrokenPipeError:  # `qdrun results RUN | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        with suppress(OSError, ValueError):
            print("interrupted", file=sys.stderr)
        raise typer.Exit(130) from None


@contextmanager
def redirected_to_nothing() -> Iterator[None]:
    """Leave stdout as it is."""
    yield


@contextmanager
def _documents_alone() -> Iterator[None]:
    """Keep stdout for documents: what Python or a kernel prints there goes to stderr."""
    try:
        number = sys.stdout.fileno()
    except (io.UnsupportedOperation, AttributeError):  # a stream in memory: only Python can write to it
        number = -1
    sys.stdout.flush()
    real = os.fdopen(os.dup(number), "w", encoding="utf-8") if number >= 0 else sys.stdout
    _DOCUMENTS.append(real)
    try:
        if number >= 0:
            os.dup2(2, number)
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _DOCUMENTS.pop()
        if number >= 0:
            with suppress(OSError, AttributeError):
                ctypes.CDLL(None).fflush(None)  # what a kernel printed, before stdout is stdout again
            real.flush()
            os.dup2(real.fileno(), number)
            real.close()


def described(error: BaseException) -> ErrorPart:
    """An exception as the ``error`` of a document."""
    from ..config.yaml_lines import ConfigError

    if not isinstance(error, ConfigError):
        return ErrorPart(type(error).__name__, str(error))
    problems = [
        DescribedProblem(p.what, p.source or error.file, p.line, p.path, list(p.allowed), p.hint) for p in error.problems
    ]
    return ErrorPart("ConfigError", str(error), problems)


def _fail(data: ErrorPart, text: str, as_json: bool, code: int) -> None:
    if as_json:
        print_document("error", ErrorDocument(data, code))
    else:
        print(visible(text), file=sys.stderr)
    raise typer.Exit(code)


def print_document(command: str, data: Any) -> None:
    """Print the JSON document of a command, given as its type of ``documents.TYPES`` or as plain data that fits it.

    Raises:
        pydantic.ValidationError, pydantic.PydanticSerializationError: ``data`` does not fit: a mistake of ours.
    """
    from .documents import document

    print_json(document(command, data))


def print_rows(command: str, data: dict[str, Any], rows: Iterable[str]) -> None:
    """As ``print_document`` of ``data`` with ``rows``, which come as parts of the text of a JSON list and are not kept."""
    from .documents import document

    text = json.dumps(document(command, data | {"rows": []}), indent=1, allow_nan=False)
    before, after = text.split('\n "rows": []')
    stream = _stdout()
    stream.write(f'{before}\n "rows": ')
    stream.writelines(rows)
    stream.write(after + "\n")


def _stdout() -> TextIO:
    return _DOCUMENTS[-1] if _DOCUMENTS else sys.stdout


def print_json(data: Any) -> None:
    """Print one JSON document on the real stdout."""
    print(json.dumps(data, indent=1, allow_nan=False), file=_stdout())
