"""Tables of text for terminals: folded between words, and split, so that no line is wider than the terminal.

`rich.table` shrinks columns instead of splitting the table, which tears ids and numbers apart, and takes 140 times as long in a pipe.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Sequence
from itertools import zip_longest

from .visible import visible

FOLDED = 12
"""No column is folded to fewer characters."""


def grid(headers: Sequence[str], lines: Sequence[Sequence[str]], indent: str = "", room: int | None = None) -> str:
    """Columns of text, as wide as their longest cell. On a terminal (or within ``room``) the widest are folded between words until all
    fit; columns that do not fit even so follow in a second table, which begins with the first column again. A word is broken only where
    it does not fit into a line beside the first column.
    """
    lines = [[visible(cell) for cell in line] for line in lines]
    columns = [[row[i] for row in [headers, *lines]] for i in range(len(headers))]
    widths = [max(map(len, column)) for column in columns]
    room = _terminal() if room is None else room
    room -= len(indent) if room else 0
    if room > 0:
        first = min(widths[0], max(FOLDED, _longest_word(columns[0], room)))
        beside = max(FOLDED, room - first - 2)
        least = [first, *(min(width, max(FOLDED, _longest_word(one, beside))) for width, one in zip(widths[1:], columns[1:]))]
        while _width(widths) > room and widths != least:
            widest = max((i for i in range(len(widths)) if widths[i] > least[i]), key=widths.__getitem__)
            widths[widest] -= 1
    tables = [_table([columns[i] for i in part], [widths[i] for i in part], indent) for part in _parts(widths, room)]
    return "\n\n".join(tables)


def _longest_word(column: Sequence[str], most: int) -> int:
    """The width that breaks no word of a column; longer ones than ``most`` are broken."""
    return min(most, max((len(word.strip()) for cell in column for word in _words(cell)), default=0))


def _words(text: str) -> list[str]:
    """The unbreakable parts of a text: words with the spaces before them, and folders of paths."""
    return re.findall(r"\s*[^\s/]*/|\s*[^\s/]+", text)


def _wrapped(text: str, width: int) -> list[str]:
    """A text in lines of at most ``width`` characters."""
    lines = [""]
    for word in _words(text):
        if len(lines[-1] + word) > width and lines[-1]:
            lines.append("")
        rest = lines[-1] + (word if lines[-1] else word.lstrip())
        lines[-1:] = [rest[start : start + width] for start in range(0, len(rest), width)]
    return lines


def _width(widths: Sequence[int]) -> int:
    return sum(widths) + 2 * (len(widths) - 1)


def _parts(widths: Sequence[int], room: int) -> list[list[int]]:
    """The columns of each table, so that each fits; the first column is in all of them."""
    parts: list[list[int]] = [[]]
    for i in range(len(widths)):
        if room > 0 and len(parts[-1]) > 1 and _width([widths[k] for k in (*parts[-1], i)]) > room:
            parts.append([0])
        parts[-1].append(i)
    return parts


def _table(columns: Sequence[Sequence[str]], widths: Sequence[int], indent: str) -> str:
    headers, *lines = zip(*columns)
    rows: list[Sequence[str]] = [headers, ["-" * width for width in widths]]
    for line in lines:
        parts = [_wrapped(cell, width) if len(cell) > width else [cell] for cell, width in zip(line, widths)]
        rows += zip_longest(*parts, fillvalue="")
    return "\n".join(indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


def _terminal() -> int:
    """Characters in a line of the terminal; 0 where the output goes elsewhere, and lines may be long."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0


def amount(number: int | None) -> str:
    """Bytes for people, with the exact number where it is short."""
    if number is None:
        return "-"
    size = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{int(size)} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("the loop returns")


__all__ = ["amount", "grid"]
