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
from typing import Any, TextIO

import typer

from ...compiler.errors import QdrunError
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
                _fail(described(error) | {"traceback": traceback.format_exc()}, "", as_json, 1)
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


def described(error: BaseException) -> dict[str, Any]:
    """An exception as the ``error`` of a document: a ConfigError says itself what is in it."""
    own = getattr(error, "as_json", None)
    if isinstance(error, QdrunError) and own is not None:
        return dict(own()["error"])
    return {"type": type(error).__name__, "message": str(error)}


def _fail(data: dict[str, Any], text: str, as_json: bool, code: int) -> None:
    if as_json:
        print_document("error", {"error": data, "exit_code": code})
    else:
        print(visible(text), file=sys.stderr)
    raise typer.Exit(code)


def print_document(command: str, data: dict[str, Any]) -> None:
    """Print the JSON document of a command; its model says what is in it.

    Raises:
        pydantic.ValidationError: ``data`` is not what the model says: a mistake of ours.
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
