"""The lines of a function as they were when its module was loaded, even if the file has changed since.

Kernels are read from their source, often long after Python has read it: a job's are made in each trial. An edit of the file in between must
not change what runs. So the lines of a file are kept that a function was read from, and those are taken that compile to the function's own
code. Where even the file's lines of now do not, it was edited before anything of it was read.
"""

from __future__ import annotations

import inspect
import linecache
import sys
from importlib.machinery import SourceFileLoader
from types import CodeType, FunctionType
from typing import Any

from ...errors import QdrunSyntaxError
from ...ir.threads import new_lock

MOST = 4
"""Texts of one file that are kept: the last ones."""

Found = tuple[list[str], int, str]
"""The lines of a function, the number of the first, and the file."""


class _Text:
    """The lines of a file, and the code that they compile to."""

    def __init__(self, file: str, lines: list[str]) -> None:
        self.lines = lines
        try:
            whole: CodeType | None = compile("".join(lines), file, "exec", dont_inherit=True)
        except (SyntaxError, ValueError):  # a cell of a notebook, say
            whole = None
        self._blocks: dict[tuple[int, bool], list[str]] = {}  # by their first lines; each trial of a job reads its kernels
        self._codes: dict[tuple[str, int], list[CodeType]] = {}
        for code in () if whole is None else _within(whole):
            self._codes.setdefault((code.co_qualname, code.co_firstlineno), []).append(code)

    def holds(self, code: CodeType) -> bool:
        """Whether it compiles to this code."""
        known = self._codes.get((code.co_qualname, code.co_firstlineno), ())
        return _plain(code) in [_plain(one) for one in known]

    def block(self, code: CodeType, tokenised: bool) -> list[str]:
        """The lines of a function; see ``lines_of``."""
        first = code.co_firstlineno
        known = self._blocks.get((first, tokenised))
        if known is None:
            rest = self.lines[first - 1 :]
            known = inspect.getblock(rest) if tokenised else rest[: _length(rest, _last_line(code) - first)]
            self._blocks[first, tokenised] = known
        return known


def _last_line(code: CodeType) -> int:
    """The last line that some code was compiled from. Expressions without code, and what is never reached, may follow."""
    lines = [end for _, end, _, _ in code.co_positions() if end] or [line for _, _, line in code.co_lines() if line]
    return max([code.co_firstlineno, *lines, *[_last_line(part) for part in code.co_consts if isinstance(part, CodeType)]])


def _length(lines: list[str], inside: int) -> int:
    """The number of lines of the block that begins with the first: it ends where a line behind ``inside`` is indented no deeper."""
    indent, end = _indent(lines[0]), inside + 1
    for k in range(end, len(lines)):
        text = lines[k].strip()
        if text and not text.startswith("#"):
            if _indent(lines[k]) <= indent:
                break
            end = k + 1
    return end


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


_texts: dict[tuple[str, str], list[_Text]] = {}  # by the file, and the module that was made of it
_lock = new_lock(sys.modules[__name__], "_lock")


def lines_of(fn: FunctionType, tokenised: bool = False) -> Found:
    """The lines of a function, decorators included.

    Args:
        fn: the function.
        tokenised: find the last line by ``inspect.getblock``, whose tokeniser makes thousands of calls, instead of by indentation, which
            may cut a string or a bracket that spans lines. Such lines do not parse.

    Raises:
        OSError, TypeError: they are not known.
        QdrunSyntaxError: its file was edited after it was loaded, and before the first kernel of it was read.
    """
    code = fn.__code__
    file = inspect.getsourcefile(fn) or code.co_filename
    key = file, fn.__module__
    with _lock:
        known = _texts.get(key, [])
    found = next((text for text in reversed(known) if text.holds(code)), None)
    if found is not None:
        return found.block(code, tokenised), code.co_firstlineno, file
    linecache.checkcache(file)
    latest = _look(key, fn)
    if latest.lines and not latest.holds(code) and _as_written(fn):
        # linecache compares length and time of a file: within one tick of the file system's clock both may stay
        entry = linecache.cache.get(file, ())
        if len(entry) == 4 and entry[1] is not None:  # else another program has put lines there that are not the file's
            linecache.cache.pop(file)
        latest = _look(key, fn)
        if not latest.holds(code):
            raise QdrunSyntaxError(
                f"the source of `{fn.__name__}` in {file} was edited after it was loaded",
                hint="start again: the process runs the old code, and its lines no longer exist",
            )
    if latest.holds(code):
        return latest.block(code, tokenised), code.co_firstlineno, file
    return (*inspect.getsourcelines(fn), file)


def _look(key: tuple[str, str], fn: FunctionType) -> _Text:
    """The text that a function's file has now, which is kept."""
    now = linecache.getlines(key[0], fn.__globals__)
    with _lock:
        known = _texts.get(key, [])
    if not known or known[-1].lines != now:
        known = [*known, _Text(key[0], now)][-MOST:]
        with _lock:
            _texts[key] = known
    return known[-1]


def _within(code: CodeType) -> list[CodeType]:
    """All code in some code."""
    found = [code]
    for one in found:  # the list grows meanwhile
        found += [part for part in one.co_consts if isinstance(part, CodeType)]
    return found[1:]


def _plain(code: CodeType) -> CodeType:
    """Code without the columns of its statements, which Python may leave out (``-X no_debug_ranges``)."""
    parts = tuple([_plain(part) if isinstance(part, CodeType) else part for part in code.co_consts])
    return code.replace(co_linetable=b"", co_consts=parts)


def _as_written(fn: FunctionType) -> bool:
    """Whether Python itself has compiled the function from its file: no test runner that rewrites assertions, no other import hook."""
    spec: Any = fn.__globals__.get("__spec__")
    loader = fn.__globals__.get("__loader__") if spec is None else spec.loader
    return type(loader) is SourceFileLoader
